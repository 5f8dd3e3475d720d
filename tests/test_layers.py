"""The house: rooms import one way, and no public name of the package hides a module."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bdpvi

HOME = Path(bdpvi.__file__).parents[1]
PLAIN = {"types", "_runtime"}
MAY_IMPORT = {
    "_runtime": set(),
    "types": {"_runtime"},
    "datasets": PLAIN,
    "models": PLAIN,
    "guides": PLAIN | {"models"},
    "inference": PLAIN | {"models"},
    "accounting": PLAIN,
    "neighbours": PLAIN | {"accounting", "guides", "inference", "models"},
    "neighbours.mode": PLAIN
    | {"accounting", "guides", "inference", "models", "neighbours", "neighbours.optimum"},
    "neighbours.optimum": PLAIN
    | {"accounting", "datasets", "guides", "inference", "models", "neighbours"},
    "dp": PLAIN | {"accounting", "inference", "models"},
    "dp.networks": PLAIN | {"accounting", "dp"},
    "dp.programs": PLAIN | {"accounting", "dp", "inference", "models"},
    "_fit": PLAIN
    | {
        "accounting",
        "datasets",
        "guides",
        "inference",
        "models",
        "neighbours",
        "neighbours.mode",
        "neighbours.optimum",
    },
    "releasing": PLAIN
    | {
        "_fit",
        "accounting",
        "datasets",
        "inference",
        "models",
        "neighbours",
        "neighbours.mode",
    },
    "recipes": PLAIN
    | {
        "_fit",
        "accounting",
        "datasets",
        "dp",
        "dp.programs",
        "guides",
        "inference",
        "models",
        "neighbours",
        "neighbours.optimum",
        "releasing",
    },
    "synthesis": {"_runtime", "accounting", "datasets"},
    "commands": PLAIN
    | {
        "accounting",
        "datasets",
        "guides",
        "models",
        "neighbours",
        "recipes",
        "releasing",
        "synthesis",
    },
}
"""What each room imports. ``bench`` and the face put the rooms together."""

OUTSIDE = ("guides", "datasets")
"""Rooms beside the folder ``bdpvi``."""
FILES = sorted(file for name in ("bdpvi", *OUTSIDE) for file in (HOME / name).rglob("*.py"))


def room(path: Path) -> str:
    """Return the room of a file: its folder, or the file itself in the face."""
    parts = path.relative_to(HOME).with_suffix("").parts
    parts = parts[parts[0] == "bdpvi" :]
    return ".".join(parts[:-1]) or parts[0]


def imported(path: Path) -> set[str]:
    """Return the rooms that a file imports from."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bdpvi":
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("bdpvi.")}
    return {found for name in names if (found := _room_of(name.split(".")[1:]))}


def _room_of(parts: list[str]) -> str:
    root = HOME if parts[:1] and parts[0] in OUTSIDE else HOME / "bdpvi"
    for length in range(len(parts), 0, -1):
        path = root.joinpath(*parts[:length])
        if path.with_suffix(".py").exists():
            return room(path.with_suffix(".py"))
        if path.is_dir():
            return ".".join(parts[:length])
    return ""


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if room(path) in MAY_IMPORT],
    ids=lambda path: str(path.relative_to(HOME)),
)
def test_rooms_import_one_way(path: Path) -> None:
    assert imported(path) - {room(path)} <= MAY_IMPORT[room(path)]


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_the_table_permits_what_is_used_and_no_more(name: str) -> None:
    files = [path for path in FILES if room(path) == name]
    assert set().union(*map(imported, files)) - {name} == MAY_IMPORT[name]


def test_the_drawing_shows_the_table() -> None:
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    drawn = {
        names.strip(" `"): set(said.replace(",", " ").split()) for _, names, _, said, _ in rows
    }
    assert {name: drawn[name] | PLAIN for name in MAY_IMPORT if name in drawn} == {
        name: rooms | PLAIN for name, rooms in MAY_IMPORT.items() if name not in PLAIN
    }


def test_the_package_shows_public_names_only() -> None:
    assert set(dir(bdpvi)) == set(bdpvi.__all__)
    assert not {name for name in bdpvi.__all__ if (HOME / "bdpvi" / f"{name}.py").exists()}


def test_settings_are_known_before_what_fits_is_loaded() -> None:
    code = "import sys, bdpvi; bdpvi.recommended(1.0); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = [name for name in done.stdout.split() if name.split(".")[0] == "bdpvi"]
    assert "bdpvi.recipes.recommended" in own
    assert len(own) <= 81
    assert "bdpvi._fit" not in own

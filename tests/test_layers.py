"""The house: rooms import one way, and no public name of the package hides a module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import bdpvi

ROOT = Path(bdpvi.__file__).parent
PLAIN = {"types", "_runtime"}
MAY_IMPORT = {
    "_runtime": set(),
    "types": {"_runtime"},
    "datasets": PLAIN,
    "models": PLAIN,
    "guides": PLAIN | {"models"},
    "inference": PLAIN | {"models"},
    "accounting": PLAIN,
    "neighbours": PLAIN | {"accounting", "guides", "inference", "models", "neighbours.optimum"},
    "neighbours.optimum": PLAIN | {"accounting", "inference", "models", "neighbours"},
    "dp": PLAIN | {"accounting", "inference", "models", "neighbours"},
    "_fit": PLAIN
    | {"accounting", "guides", "inference", "models", "neighbours", "neighbours.optimum"},
    "releasing": PLAIN
    | {
        "_fit",
        "accounting",
        "datasets",
        "guides",
        "inference",
        "models",
        "neighbours",
        "neighbours.optimum",
    },
    "studies": PLAIN | {"accounting", "dp"},
}
"""What each room may import. ``compare`` and the face put the rooms together."""


def room(path: Path) -> str:
    """Return the room of a file: its folder, or the file itself in the face."""
    parts = path.relative_to(ROOT).with_suffix("").parts
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
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        if path.with_suffix(".py").exists():
            return room(path.with_suffix(".py"))
        if path.is_dir():
            return ".".join(parts[:length])
    return ""


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(ROOT.rglob("*.py")) if room(path) in MAY_IMPORT],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_rooms_import_one_way(path: Path) -> None:
    assert imported(path) - {room(path)} <= MAY_IMPORT[room(path)]


def test_the_package_shows_public_names_only() -> None:
    assert set(dir(bdpvi)) == set(bdpvi.__all__)
    assert not {name for name in bdpvi.__all__ if (ROOT / f"{name}.py").exists()}

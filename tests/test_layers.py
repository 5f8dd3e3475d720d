"""The rooms: drawn as they import each other, and no public name of the package hides a module."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import bdpvi

HOME = Path(bdpvi.__file__).parents[1]


def test_the_drawing_is_the_contract() -> None:
    """``make lint`` holds the imports against the contract."""
    contract = (HOME / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.findall(r'"([^"]+)"', contract.partition("layers = [")[2].partition("]")[0])
    page = (HOME / "CONTRIBUTING.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE)
    rooms = [re.findall(r"`(\w+)`", line) for line in drawn]
    assert rooms == [re.findall(r"\w+", layer) for layer in layers if "__main__" not in layer]


def test_the_package_shows_public_names_only() -> None:
    assert set(dir(bdpvi)) == set(bdpvi.__all__)
    assert not {name for name in bdpvi.__all__ if (HOME / "bdpvi" / f"{name}.py").exists()}


def test_settings_are_known_before_what_fits_is_loaded() -> None:
    code = "import sys, bdpvi; bdpvi.recommended(1.0); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = [name for name in done.stdout.split() if name.split(".")[0] == "bdpvi"]
    assert "bdpvi.tables.recommended" in own
    assert len(own) <= 81
    assert "bdpvi.bayesian.fit" not in own

"""Doctests: of ``guides/`` and ``datasets/`` as ``bdpvi`` has them, and of what is installed."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
NEEDS = {
    "flwr": "*/flower*.py",
    "numba": "bdpvi/neighbours/*compiled*.py",
    "opacus": "bdpvi/dp/networks/opacus.py",
}
"""Doctests of what needs an extra cannot be collected without it; tests say so by skipping."""
collect_ignore_glob = [files for package, files in NEEDS.items() if not find_spec(package)]


def pytest_report_header() -> list[str]:
    """Say what is left out."""
    return [f"left out, as its package is not installed: {name}" for name in collect_ignore_glob]


def pytest_collect_file(file_path: Path) -> None:
    """Let a file of ``guides/`` or ``datasets/`` be the module of bdpvi, not one of its own."""
    name = ".".join(file_path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    if name.split(".")[0] in {"guides", "datasets"}:
        sys.modules[name] = import_module(f"bdpvi.{name}")


def pytest_sessionstart() -> None:
    """Say so if another checkout's ``guides/`` and ``datasets/`` would be tested."""
    for name in ("bdpvi", "bdpvi.guides", "bdpvi.datasets"):
        found = find_spec(name)
        if found is None or found.origin is None or not Path(found.origin).is_relative_to(ROOT):
            raise pytest.UsageError(
                f"{name} is not this checkout's ({found and found.origin}): pip install -e ."
            )

"""Doctests of what needs an extra cannot be collected without it; tests say so by skipping."""

from __future__ import annotations

from importlib.util import find_spec

NEEDS = {
    "flwr": "*/flower*.py",
    "numba": "bdpvi/neighbours/*compiled*.py",
    "opacus": "bdpvi/dp/networks/opacus.py",
}
collect_ignore_glob = [files for package, files in NEEDS.items() if not find_spec(package)]


def pytest_report_header() -> list[str]:
    """Say what is left out."""
    return [f"left out, as its package is not installed: {name}" for name in collect_ignore_glob]

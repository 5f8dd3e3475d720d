"""Without numba the doctests of what it compiles cannot be collected; tests say so by skipping."""

from __future__ import annotations

from importlib.util import find_spec

COMPILED = ["bdpvi/neighbours/*compiled*.py"]
collect_ignore_glob = [] if find_spec("numba") else COMPILED


def pytest_report_header() -> list[str]:
    """Say what is left out."""
    return [f"left out, as numba is not installed: {name}" for name in collect_ignore_glob]

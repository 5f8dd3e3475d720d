"""Which tests run where: what needs an extra, and what only ``make test-all`` has."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

NEEDS = {
    "flwr": "*/flower*.py",
    "numba": "bdpvi/neighbours/*compiled*.py",
    "opacus": "bdpvi/dp/networks/opacus.py",
}
WHOLE = (
    "tests/bench",
    "tests/dp/test_example_federated.py",
    "tests/dp/test_example_mnist.py",
    "tests/dp/test_federated_benchmark.py",
    "tests/dp/test_network_benchmarks.py",
    "tests/dp/test_static_costs.py",
    "tests/studies",
    "tests/test_documentation.py",
    "tests/test_examples.py",
    "tests/test_generative_examples.py",
)
"""Comparisons, studies, scripts of benchmarks, fits of examples, commands of pages."""
# Doctests cannot be collected without what they need; tests say so by skipping.
collect_ignore_glob = [files for package, files in NEEDS.items() if not find_spec(package)]


def pytest_report_header() -> list[str]:
    """Say what is left out."""
    return [f"left out, as its package is not installed: {name}" for name in collect_ignore_glob]


@pytest.hookimpl(tryfirst=True)  # before -m leaves any out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of whole files and folders."""
    root = Path(__file__).parent
    for item in items:
        if any(item.path.is_relative_to(root / place) for place in WHOLE):
            item.add_marker("whole")

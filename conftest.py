"""Which tests run where, and doctests of ``guides/`` and ``datasets/`` as ``bdpvi`` has them."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
NEEDS = {
    "flwr": "*/flower*.py",
    "numba": "bdpvi/bayesian/neighbours/*compiled*.py",
    "opacus": "bdpvi/networks/opacus.py",
}
"""Doctests of what needs an extra cannot be collected without it; tests say so by skipping."""
WHOLE = (
    "tests/_ground/test_checkpoint.py",
    "tests/_ground/test_interrupted.py",
    "tests/_ground/test_readers.py",
    "tests/bench",
    "tests/datasets/test_mnist.py",
    "tests/bench/test_dpvi.py",
    "tests/federated/test_example_federated.py",
    "tests/networks/test_example_mnist.py",
    "tests/federated/test_federated_benchmark.py",
    "tests/federated/test_federated_vi.py",
    "tests/federated/test_flower.py",
    "tests/networks/test_network_benchmarks.py",
    "tests/networks/test_static_costs.py",
    "tests/models/test_regressions.py",
    "tests/bayesian/optimum/test_stream.py",
    "tests/bayesian/optimum/test_wide.py",
    "tests/bayesian/neighbours/test_released_covariance.py",
    "tests/programs/test_dpvi_route.py",
    "tests/regression/test_intervals.py",
    "tests/tables/test_numbers.py",
    "tests/programs/test_trained.py",
    "tests/bayesian/test_one_account.py",
    "tests/studies",
    "tests/synthesis/test_combine.py",
    "tests/synthesis/test_quality.py",
    "tests/test_devices.py",
    "tests/bayesian/test_distributed.py",
    "tests/test_documentation.py",
    "tests/test_examples.py",
    "tests/test_generative_examples.py",
    "tests/test_outputs.py",
    "tests/sklearn/test_sklearn_regressors.py",
)
"""What make test-all has: comparisons, studies, examples, pages, long tests of each room."""
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


@pytest.hookimpl(tryfirst=True)  # before -m leaves any out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of whole files and folders."""
    for item in items:
        if any(item.path.is_relative_to(ROOT / place) for place in WHOLE):
            item.add_marker("whole")

"""Which tests run where, and doctests of ``guides/`` and ``datasets/`` as ``bdpvi`` has them."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

ROOT, PROCESS = Path(__file__).parent, os.getpid()
NEEDS = {
    "flwr": "*/flower*.py",
    "opacus": "bdpvi/networks/opacus.py",
}
"""Doctests of what needs an extra cannot be collected without it; tests say so by skipping."""
WHOLE = (
    "_ground/test_checkpoint.py",
    "_ground/test_interrupted.py",
    "_ground/test_readers.py",
    "bench",
    "datasets/test_mnist.py",
    "federated/test_example_federated.py",
    "networks/test_example_mnist.py",
    "federated/test_federated_vi.py",
    "federated/test_flower.py",
    "models/test_regressions.py",
    "bayesian/optimum/test_stream.py",
    "bayesian/optimum/test_wide.py",
    "bayesian/neighbours/test_released_covariance.py",
    "programs/test_dpvi_route.py",
    "regression/test_intervals.py",
    "tables/test_numbers.py",
    "programs/test_trained.py",
    "bayesian/test_one_account.py",
    "studies",
    "synthesis/test_combine.py",
    "synthesis/test_quality.py",
    "test_devices.py",
    "test_documentation.py",
    "test_examples.py",
    "test_generative_examples.py",
    "test_outputs.py",
    "sklearn/test_sklearn_regressors.py",
    "sklearn/test_mixed_estimators.py",
    "sklearn/test_sklearn.py::test_the_conventions_of_scikit_learn",
    "models/test_survival.py::test_with_little_noise",
    "programs/test_number_types.py",
    "programs/test_other_guides.py",
    "programs/test_pyro_features.py",
    "programs/test_replays.py::test_whatever_changes",
    "programs/test_spellings.py",
    "programs/test_zoo.py",
    "regression/test_group_moments.py::test_intervals",
    "regression/test_group_scores.py::test_intervals",
    "regression/test_noisy_scores.py::test_a_wrong_model",
    "regression/test_noisy_scores.py::test_intervals",
    "regression/test_row_weights.py::test_weighted_intervals",
    "tables/test_compared.py::test_intervals",
    "tables/test_mixed.py::test_groups_that_are_records_have",
    "tables/test_times.py",
    "test_remedies.py",
    "test_too_few_records.py",
)
"""What make test-all has: comparisons, coverage, studies, pages, long tests of each room."""
SLOW = tuple((ROOT / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines())
"""Tests of several seconds beside a quicker one of the same part; names may end early."""
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
    """Mark the tests of whole files and folders, and those that are slow."""
    whole, slow = (tuple(f"tests/{name}" for name in names) for names in (WHOLE, SLOW))
    for item in items:
        if item.nodeid.startswith(whole):
            item.add_marker("whole")
        if item.nodeid.startswith(slow):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Let no search for garbage go through what was imported and collected."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the seconds of each room, if durations are asked for; make durations does."""
    if config.option.durations is None:
        return
    found: Counter[str] = Counter()
    reports = {id(one): one for some in terminalreporter.stats.values() for one in some}
    for one in reports.values():
        path = str(getattr(one, "nodeid", "")).partition("::")[0].split("/")
        found["/".join(path[:2])] += getattr(one, "duration", 0.0)
    terminalreporter.section("seconds by room")
    for room, seconds in found.most_common():
        terminalreporter.write_line(f"{seconds:8.1f}  {room}")


@contextmanager
def _entropy(name: str) -> Iterator[None]:
    """Let what asks the system for random bytes get the same ones in each run of this name."""
    digest, drawn = hashlib.sha256(name.encode()).digest(), 0

    def urandom(count: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return hashlib.shake_256(digest + f"{os.getpid() - PROCESS} {drawn}".encode()).digest(count)

    seed = int.from_bytes(digest[:4], "big")
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what scikit-learn draws from
    torch.default_generator.manual_seed(seed)  # others note where from, in a millisecond
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.urandom", urandom)
        patch.setattr("random._urandom", urandom)  # what secrets asks
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Give each test its own randomness, the same in each run: a test that passes, passes again."""
    with _entropy(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    """Give what several tests share its own, whichever of them comes first."""
    if fixturedef.scope == "function":
        return (yield)
    with _entropy(f"{fixturedef.baseid} {fixturedef.argname} {getattr(request, 'param', '')!r}"):
        return (yield)


@pytest.fixture(autouse=True)
def _own_account() -> Iterator[None]:
    """Begin each test and doctest without what the process spent before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bdpvi.privacy.process._accounts", [])
        yield

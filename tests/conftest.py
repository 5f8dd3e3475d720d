"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from hypothesis import HealthCheck, settings
from simulated import logistic_data

from bdpvi import Dataset
from bdpvi.privacy import accounts
from bdpvi.privacy.conceivable import Influence

# A busy machine is slow, which is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", patient)  # new examples: --hypothesis-profile=search
settings.register_profile("patient", patient, derandomize=True)
settings.load_profile("patient")

UCI = Path(__file__).parents[1].parent / "shared" / "data" / "uci"


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Every test starts without parameters and accounts, and leaves no parameters or threads."""
    pyro.clear_param_store()
    accounts._used.clear()
    threads = torch.get_num_threads()
    yield
    accounts._used.clear()
    assert torch.get_num_threads() == threads
    assert not dict(pyro.get_param_store().items()), "a call left parameters in Pyro's store"


@pytest.fixture(scope="session")
def uci() -> Path:
    """Return the folder of the real tables, or skip."""
    if not UCI.exists():
        pytest.skip("the UCI tables are not on this machine")
    return UCI


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the closed form alone for what any record costs, which is looser and takes no search."""

    def delta(
        one: Influence, at: float, way: str = "", draws: int = 1, weight: Any = None
    ) -> float:
        return min(1.0, one._closed(at, way, draws, draws if weight is None else weight))

    monkeypatch.setattr(Influence, "delta", delta)


@pytest.fixture
def data() -> Dataset:
    """Return 60 records of 3 features."""
    return logistic_data(60, 3)

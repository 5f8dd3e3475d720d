"""What all tests share."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from hypothesis import HealthCheck, settings
from in_blocks import SECRET
from simulated import logistic_data

from bdpvi import Dataset
from bdpvi.privacy import accounts
from bdpvi.privacy.conceivable import Influence
from bdpvi.releases.transaction import Transaction

# A busy machine is slow, which is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", patient)  # new examples: --hypothesis-profile=search
settings.register_profile("patient", patient, derandomize=True)
settings.load_profile("patient")
torch.set_warn_always(True)  # or only the first test that meets a warning of torch's fails

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


@pytest.fixture
def fresh_store() -> Iterator[None]:
    """Draw the same numbers in every run; parameters of a test end with it."""
    torch.manual_seed(0)
    yield
    pyro.clear_param_store()


@pytest.fixture
def in_double(fresh_store: None) -> Iterator[None]:
    """Make new tensors have double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def known_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all keys of works follow from a known one."""
    monkeypatch.setattr(Transaction, "_key", lambda work, _, one: SECRET.child(one.purpose))
    monkeypatch.setattr(secrets, "token_hex", lambda size: "0f" * size)


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

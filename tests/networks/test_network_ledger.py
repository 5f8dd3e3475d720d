"""Networks and the ledger of their people: nothing is taken back, and all adds up."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bdpvi import Budget, BudgetExceededError, Ledger, make_private
from bdpvi.networks import DPSGDSettings
from bdpvi.networks.private import Private
from bdpvi.privacy.entry import Entry
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant

Q, Z, DELTA = 0.1, 2.0, 1e-5


def records() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 3, generator=generator)
    return x, (x[:, 0] > 0).long()


def network(ledger: Ledger | None = None, noise: float | None = Z, **settings: Any) -> Private:
    module = nn.Linear(3, 2)
    return make_private(
        module, torch.optim.SGD(module.parameters(), lr=0.1), loss=F.cross_entropy,
        data=records(), rate=Q, max_grad_norm=1.0, noise_multiplier=noise,
        settings=DPSGDSettings(**{"ledger": ledger, "records": 300} | settings),
    )  # fmt: skip


def train(private: Private, steps: int) -> Private:
    for _ in range(steps):
        private.step()
    return private


def charged(ledger: Ledger) -> int:
    return sum(entry.count for entry in ledger.entries())


def theirs(*runs: tuple[float, int]) -> float:
    """Return ε of runs of (noise, steps) by dp_accounting, together."""
    events = [SampledGaussian(noise_multiplier=z, rate=Q, steps=t) for z, t in runs]
    return PrivacyLossAccountant().together(events, DELTA)


def network_alone(steps: int) -> Private:
    return train(network(Ledger()), steps)


@pytest.mark.parametrize("others", [0, 1])
def test_the_budget_is_used_up_to_the_last_step(others: int) -> None:
    ledger = Ledger(budget=Budget(theirs((Z, 37)) + 1e-6, DELTA))
    private = network(ledger)
    if others:  # charges in between are counted at once
        train(private, 3)
        ledger.charge(Entry(kind="steps", events=(private.mechanism.event(1),), count=11))
    with pytest.raises(BudgetExceededError, match="Nothing was charged; 37 charges made"):
        train(private, 100)
    assert private.steps == 37 - 11 * others
    assert charged(ledger) == 37


def test_noise_is_found_for_all_that_the_ledger_has() -> None:
    ledger = Ledger()
    train(network(ledger), 20)
    private = train(network(ledger, None, epsilon=2.0, steps=20), 20)
    assert 1.98 < private.worst_case(DELTA).epsilon <= 2.0
    assert private.worst_case(DELTA).epsilon == ledger.worst_case(DELTA).epsilon  # type: ignore[union-attr]
    with pytest.raises(BudgetExceededError, match="steps=20 were asked for"):
        private.step()
    with pytest.raises(ValueError, match=r"cannot be reached.*40 charges made before"):
        network(ledger, None, epsilon=0.5, steps=1)


def test_a_state_counts_as_much_as_the_ledger_or_it_says(tmp_path: Path) -> None:
    path = tmp_path / "people.jsonl"
    private = train(network(Ledger.at(path)), 3)
    early = private.state_dict()
    train(private, 9)
    # A process of its own, by the same file: what was charged ahead counts as taken.
    resumed = network(Ledger(path))
    resumed.load_state_dict(early)
    assert (resumed.steps, charged(Ledger(path))) == (20, 20)
    train(resumed, 1)
    assert (resumed.steps, charged(Ledger(path))) == (21, 30)
    # Without the ledger.
    elsewhere = network()
    elsewhere.load_state_dict(private.state_dict())
    assert (elsewhere.steps, charged(elsewhere.ledger)) == (12, 12)
    # Both what was done here and what the state tells of.
    other = train(network(), 2)
    other.load_state_dict(early)
    assert (other.steps, charged(other.ledger)) == (5, 10)
    train(other, 5)
    assert (other.steps, charged(other.ledger)) == (10, 10)


def test_a_state_with_more_than_the_budget_is_charged_all_the_same() -> None:
    state = network_alone(40).state_dict()
    private = network(Ledger(budget=Budget(theirs((Z, 20)), DELTA)))
    private.load_state_dict(state)
    assert charged(private.ledger) == 40
    with pytest.raises(BudgetExceededError):
        private.step()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_a_copy_has_no_budget_of_its_own(duplicate: Any, tmp_path: Path) -> None:
    ledger = Ledger.at(tmp_path / "people.jsonl", budget=Budget(theirs((Z, 24)) + 1e-6, DELTA))
    private = train(network(ledger), 3)
    copied = duplicate(private)
    with pytest.raises(ValueError, match="changed outside"):
        copied.step()  # nobody knows what its weights are
    copied.load_state_dict(private.state_dict())
    train(copied, 4)  # what was charged ahead is not for both
    assert (private.steps, copied.steps, charged(ledger)) == (3, 7, 20)
    # Each counts what the other may have drawn.
    assert private.worst_case(DELTA).epsilon == pytest.approx(theirs((Z, 3 + 10)), rel=1e-6)
    assert copied.worst_case(DELTA).epsilon == pytest.approx(theirs((Z, 10 + 4)), rel=1e-6)
    train(private, 7)
    assert charged(ledger) == 20
    for one in (private, copied):
        with pytest.raises(BudgetExceededError):
            train(one, 30)
    assert charged(ledger) == 24
    alone = duplicate(own := network())
    with pytest.raises(ValueError, match="keep it in a file"):
        alone.load_state_dict(own.state_dict())


def test_a_copy_and_a_run_that_went_back_draw_coins_of_their_own() -> None:
    private = network()
    early = private.state_dict()
    batches = []
    for _ in range(2):
        private.step()
        batches.append(private.batch.tolist())
        private.load_state_dict(early)
    copied = copy.deepcopy(private)
    batches += [one.mechanism.batch(2).tolist() for one in (private, copied)]
    assert len({tuple(batch) for batch in batches}) == 4


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_does_not_go_on(tmp_path: Path) -> None:
    private = train(network(Ledger.at(tmp_path / "people.jsonl")), 1)
    child = os.fork()
    if child == 0:
        try:
            private.step()
        except ValueError:
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3

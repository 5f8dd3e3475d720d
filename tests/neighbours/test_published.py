"""Publishing while training: every step charged, per record and by Hölder."""

from __future__ import annotations

import pytest
import torch
from simulated import logistic_data

import bdpvi
from bdpvi import Add, Coupled, Remove
from bdpvi._runtime.progress import silent
from bdpvi.accounting.bayesian import BayesianAccountant
from bdpvi.accounting.events import PosteriorDraws
from bdpvi.accounting.gaussian_pairs import summarise
from bdpvi.accounting.ledger import Charge
from bdpvi.accounting.panel import Panel
from bdpvi.guides import FullRank
from bdpvi.inference.plan import Plan
from bdpvi.inference.svi import Problem, default_optimiser, run_svi
from bdpvi.neighbours.published import ORDERS

STEPS = 12


@pytest.fixture(scope="module")
def fit() -> bdpvi.Fit:
    model = bdpvi.BayesianLogisticRegression(clip=0.3)
    return bdpvi.fit(
        model, FullRank(model), logistic_data(40, 2), steps=STEPS, rate=0.5, seed=0,
        account_training=True, progress=False, device="cpu",
    )  # fmt: skip


def test_total_equals_separate_runs_compared_step_by_step(fit: bdpvi.Fit) -> None:
    data = logistic_data(40, 2)

    def path(records: bdpvi.Dataset) -> list[torch.distributions.Distribution]:
        model = bdpvi.BayesianLogisticRegression(clip=0.3)
        guide = FullRank(model)
        plan = Plan(steps=STEPS, rate=0.5, seed=0)
        steps: list[torch.distributions.Distribution] = []
        run_svi(
            Problem(model, guide, records, plan, default_optimiser(STEPS)),
            silent,
            lambda _, now: steps.append(guide.posterior(now)),
        )
        return steps

    with_all, without = path(data), path(data.without(11))
    expected = sum(
        summarise(p, q).log_moment(ORDERS.values)[:, 0]
        for p, q in zip(with_all, without, strict=True)
    )
    assert fit.training is not None
    total = fit.training.panel.tally().totals["remove D‖D′"][:, 11]
    torch.testing.assert_close(total, torch.as_tensor(expected), rtol=1e-8, atol=1e-14)


def test_holder_costs_at_least_the_panel(fit: bdpvi.Fit) -> None:
    assert fit.training is not None
    for direction in ("remove D‖D′", "remove D′‖D"):
        panel = fit.training.panel.cost(direction, ORDERS.values[:60])
        holder = fit.training.holder.cost(direction, ORDERS.values[:60])
        assert bool((holder.log_mean >= panel.log_mean - 1e-12).all())
    assert fit.training.holder.get_epsilon(delta=1e-5) >= fit.training.panel.get_epsilon(delta=1e-5)


def test_samples_are_published_once_a_step(fit: bdpvi.Fit) -> None:
    assert fit.training is not None
    assert fit.training.samples.shape == (STEPS, 2)


def test_a_step_more_than_holder_was_made_for_is_an_error(fit: bdpvi.Fit) -> None:
    assert fit.training is not None
    with pytest.raises(ValueError, match="count=1: Hölder was fixed at 12 events"):
        fit.training.holder.step(PosteriorDraws(fit.panels))


def test_a_release_counts_what_was_published_while_training(fit: bdpvi.Fit) -> None:
    assert fit.training is not None
    delta = 1e-3  # so many draws from so small a table cost an ε at which rounding counts
    before = fit.training.panel.get_epsilon(delta=delta)
    assert bdpvi.spent(fit, delta=delta).epsilon == pytest.approx(before, rel=1e-6)
    assert bdpvi.spent(fit, delta=delta, planned=Charge(5, 1.0)).epsilon > before


def test_memory_does_not_grow_with_steps() -> None:
    accountant = BayesianAccountant(orders=ORDERS)
    pairs = summarise(
        torch.distributions.Normal(torch.zeros(50).double(), 1.0),
        torch.distributions.Normal(torch.linspace(0, 0.1, 50).double(), 1.0),
    )
    event = PosteriorDraws((Panel("remove", torch.arange(50), pairs),))
    for _ in range(20):
        accountant.step(event)
    states = accountant.tally().totals
    assert {name: tuple(total.shape) for name, total in states.items()} == {
        "remove D‖D′": (97, 50),
        "remove D′‖D": (97, 50),
    }


def test_two_kinds_of_neighbours_are_refused() -> None:
    data = logistic_data(40, 2)
    model = bdpvi.BayesianLogisticRegression()
    kinds = Coupled(Remove(), Add(data.select(torch.arange(30, 40))))
    with pytest.raises(ValueError, match="account_training: 2 kinds"):
        bdpvi.fit(
            model, FullRank(model), data.select(torch.arange(30)), steps=3, neighbours=kinds,
            account_training=True, progress=False,
        )  # fmt: skip

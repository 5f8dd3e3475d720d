"""The smallest ε that is reliable: against a plain search, and against what it must not hide."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from accounts import Accountant, bayes, evidence_of
from scipy import stats

from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.privacy.conversions import REAL_ORDERS

M, GAMMA, DELTA = 2000, 1e-30, 1e-5


def panel(distances: torch.Tensor) -> Panel:
    pairs = GaussianPairs(torch.ones(len(distances), 1).double(), distances[:, None])
    return Panel("remove", torch.arange(len(distances)), pairs)


def bounded(largest: float = 0.02) -> torch.Tensor:
    """Squared distances between 0 and a bound, the small ones more frequent."""
    return largest * torch.rand(M, generator=torch.Generator().manual_seed(0)).double() ** 3


def accountant(distances: torch.Tensor, only: bool = True, draws: int = 1) -> Accountant:
    made = Accountant(only_reliable=only, failure_probability=GAMMA)
    made.step(GuideDraws((panel(distances),), draws))
    return made


def test_it_is_the_smallest_of_all_orders_that_are_reliable() -> None:
    """Every order of the grid, by formulas written out in numpy and scipy."""
    b2, estimates = bounded().numpy(), 2 * len(REAL_ORDERS)
    t = stats.t.isf(GAMMA, M - 1)
    hazard = np.exp(stats.norm.logpdf(t) - stats.norm.logsf(t))
    beta, best = DELTA - estimates * GAMMA, (math.inf, 0.0)
    for order in REAL_ORDERS.values.tolist():
        if order * (order + 1) * b2.max() / 2 > 200:
            continue  # a few records make the mean, and the cubes overflow
        y = np.exp(order * (order + 1) * b2 / 2)
        skewness = stats.skew(y) + math.sqrt(6 / M)
        rate = GAMMA * math.exp(min(skewness * (2 * t**2 + 1) * hazard / 6 / math.sqrt(M), 60))
        if rate > 0.01 * DELTA / estimates:
            continue
        cost = math.log(y.mean() + t * y.std() / math.sqrt(M - 1))
        offset = order * math.log(order / (order + 1)) - math.log(order + 1)
        best = min(best, ((cost + offset - math.log(beta)) / order, order))
    found = bayes(accountant(bounded()).cost(DELTA))
    assert found.epsilon == pytest.approx(best[0], rel=1e-9)
    assert evidence_of(found).order == best[1]
    assert found.reliable


def test_the_delta_of_its_epsilon_is_the_delta_it_was_asked_for() -> None:
    made = accountant(bounded())
    assert made.get_delta(made.get_epsilon(delta=DELTA), near=DELTA) == pytest.approx(
        DELTA, rel=1e-6
    )
    assert made.get_delta(0.9 * made.get_epsilon(delta=DELTA), near=DELTA) > DELTA


def test_one_extreme_record_leaves_nothing_reliable() -> None:
    distances = bounded()
    distances[7] = 100 * distances.max()
    made = accountant(distances)
    with pytest.raises(ValueError, match="reliable estimate"):
        made.cost(DELTA)
    assert made.get_delta(5.0, near=DELTA) == 1.0
    assert not bayes(accountant(distances, only=False).cost(DELTA)).reliable


def test_no_panel_of_a_bounded_population_understates_its_mean() -> None:
    """The order is chosen by the panel; the bound there holds for the population all the same."""
    distances = torch.linspace(0, 1, 1_000_001).double() ** 3 * 0.02
    for seed in range(20):
        drawn = torch.randint(len(distances), (M,), generator=torch.Generator().manual_seed(seed))
        made = accountant(distances[drawn], draws=2)
        order = torch.tensor([evidence_of(bayes(made.cost(DELTA))).order], dtype=torch.float64)
        truth = (order * (order + 1) * distances).exp().mean().log()
        assert float(made.bound("remove D‖D′", order).log_bound) > float(truth)


def test_the_hockey_stick_conversion_has_no_orders_to_choose_from() -> None:
    with pytest.raises(ValueError, match="conversion must be one of"):
        Accountant(only_reliable=True, conversion="hockey-stick")

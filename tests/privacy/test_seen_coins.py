"""Steps that a coin decides on and the observer sees it: a client's coin, shared by its records."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from bdpvi._ground.types import Scope
from bdpvi.bayesian.accounting.losses import OfRuns
from bdpvi.federated.rounds import Rounds
from bdpvi.privacy.conversions import EPSILONS, position
from bdpvi.privacy.cost import Bound
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.norms import NormCounts
from bdpvi.privacy.sampled_moments import subsampled_gaussian_cost
from bdpvi.privacy.worst_case import epsilon as epsilon_of

F64 = torch.float64


def steps(presence: float, rate: float = 1.0, count: int = 40, **options: Any) -> Any:
    norms = NormCounts(torch.arange(3), torch.full((3, 1), count), torch.ones(1), Scope.STATIC)
    settings: dict[str, Any] = {"noise_multiplier": 4.0, "rate": rate, "steps": count}
    return SampledGaussian(**(settings | {"presence": presence, "norms": norms} | options))


def worst_case(event: SampledGaussian, delta: float = 1e-5) -> Bound:
    result = epsilon_of([event], delta)
    assert result is not None
    return result


def largest_delta(event: SampledGaussian, epsilon: float) -> float:
    runs = OfRuns(((event, 1),))
    bounds = [runs.deltas(name, 1e-5).bound for name in event.records]
    return max(bound(epsilon) for bound in bounds if bound)


def gaussian_delta(epsilon: float, variance: float) -> float:
    """δ(ε) of a Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""
    if variance == 0:
        return 0.0
    mu = math.sqrt(variance)
    above, below = stats.norm.cdf(mu / 2 - epsilon / mu), stats.norm.cdf(-mu / 2 - epsilon / mu)
    return float(above - math.exp(epsilon) * below)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_what_the_coins_leave_is_a_binomial_number_of_steps(epsilon: float) -> None:
    """Each of the n rounds that a client takes part in is a Gaussian release, at rate 1."""
    epsilon = float(EPSILONS[position(epsilon)])
    n = np.arange(41)
    each = [gaussian_delta(epsilon, k / 16) for k in n]
    truth = float(stats.binom.pmf(n, 40, 0.3) @ each)
    found = largest_delta(steps(0.3), epsilon)
    assert truth <= found <= 1.002 * truth


def test_moments_are_those_of_a_binomial_number_of_steps() -> None:
    order = torch.tensor([1.0, 4.0, 16.0], dtype=F64)
    event = steps(0.3, rate=0.2)
    one = subsampled_gaussian_cost(1.0, 4.0, 0.2, order)
    n = torch.arange(41, dtype=F64)
    log_chance = torch.as_tensor(stats.binom.logpmf(n.numpy(), 40, 0.3))
    expected = torch.logsumexp(log_chance + one[:, None] * n, 1)
    for direction in event.records:
        found = event.cost(direction, order)[:, 0]
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(OfRuns(((event, 1),)).largest_cost(order), expected)


def test_the_product_of_both_rates_understates_what_a_record_pays() -> None:
    """A client sends 1/2 without the record and 1 with it, and nothing if its coin says so.

    The record is in the sum with probability q_c q_r, but the rest of its client's update shares
    the first coin.
    """
    client, record, size, epsilon = 0.1, 0.5, 0.5, float(EPSILONS[position(0.2)])

    def density(x: float, with_record: bool) -> float:
        took = stats.norm.pdf(x, 0.5)
        if with_record:
            took = (1 - record) * took + record * stats.norm.pdf(x, 0.5 + size)
        return float((1 - client) * stats.norm.pdf(x) + client * took)

    def gap(x: float) -> float:
        return max(density(x, True) - math.exp(epsilon) * density(x, False), 0.0)

    truth = integrate.quad(gap, -12, 14, points=[0.0, 1.0, 2.0, 3.0], limit=300)[0]
    rounds = Rounds(
        clients=9, size=1, clip=1.0, noise_multiplier=1.0, client_rate=client,
        record_rate=record, record_clip=size,
    )  # fmt: skip
    product = steps(1.0, rate=client * record, count=1, noise_multiplier=1 / size)
    assert truth > 50 * largest_delta(product, epsilon)
    assert truth <= largest_delta(rounds.event(1, "record"), epsilon)


def test_the_worst_case_is_of_the_direction_that_costs_most() -> None:
    """That a record is removed costs more than that it is added where it is sampled."""
    event = steps(0.3, rate=0.05, count=10, noise_multiplier=0.6)
    present, without = (OfRuns(((event, 1),)).deltas(name, 1e-5).bound for name in event.records)
    found = worst_case(event).epsilon
    assert present is not None
    assert without is not None
    assert without(found) < 0.8e-5 < present(found) <= 1e-5


@pytest.mark.parametrize("presence", [0.0, 1.5, math.nan])
def test_a_presence_is_a_probability(presence: float) -> None:
    with pytest.raises(ValueError, match="presence must lie in"):
        steps(presence)

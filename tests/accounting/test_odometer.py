"""Filters: guarantees over all paths from costs that follow the path."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_sampled_steps import DELTA, run, two_levels
from test_training_path import M, counterexample, true_moment

from bdpvi.accounting import estimators
from bdpvi.accounting.estimators import Estimate
from bdpvi.accounting.gaussian import equal_covariance
from bdpvi.accounting.individual import IndividualFilter
from bdpvi.accounting.odometer import Filter
from bdpvi.accounting.record_costs import subsampled_gaussian_cost
from bdpvi.accounting.worst_case import gaussian_epsilon, replace_one
from bdpvi.types import BudgetExceededError, Scope

F64 = torch.float64


def mean(log_values: torch.Tensor, failure_probability: float) -> Estimate:
    """The panel of the counterexample is all of μ, so its mean is the expectation."""
    found = estimators.student_t(log_values, failure_probability)
    return replace(found, log_bound=found.log_mean)


def example(p: float) -> Filter:
    return Filter(order=8, exponent=p, budget=30.0, steps=2, estimator=mean)


def test_the_counterexample_is_covered() -> None:
    """11.8 on the path < 18.3 in truth ≤ 19.0 by the odometer."""
    event = counterexample()
    found = example(1.02).cost(event)
    # Costs of 0.4²/2 and 0.6²/2 at order 8.18, between those at 8 and 9.
    halves = 0.82 * 72 / 2 + 0.18 * 90 / 2
    first, both = halves * 0.16 / 1.02, halves * 0.52 / 1.02
    weights = torch.tensor([51 * first] * (M - 1) + [51 * both], dtype=F64)
    exact = (float(weights.logsumexp(0)) - math.log(M)) / 51
    assert found == pytest.approx(exact, rel=1e-6)
    assert found == pytest.approx(19.0, abs=0.1)
    for p in (1.001, 1.02, 1.1, 1.5, 2.0, 4.0):
        assert example(p).cost(event) >= true_moment(8)


@pytest.mark.parametrize("p", [1.01, 1.2, 2.0, 5.0])
@pytest.mark.parametrize("order", [1, 4])
def test_the_claim_where_the_path_decides(order: int, p: float) -> None:
    """E e^{λL - Φ/p*} ≤ 1 by integration, in both directions: three records that step 1 moves by
    0.25σ and one that it moves by σ; step 2 can move that one only where step 1 came out high."""
    levels, shares, sizes = [0.25, 0.5, 1.0], (0.75, 0.25), (0.25, 1.0)
    options: dict[str, Any] = {"noise_multiplier": 1.0, "rate": 1.0, "scope": "path"}
    rule = replace(example(p), order=order)
    high = rule.cost(run([[1, 1, 0]] * 3 + [[0, 0, 2]], levels, **options))
    low = rule.cost(run([[2, 0, 0]] * 3 + [[1, 0, 1]], levels, **options))
    w = torch.linspace(-12, 20, 40001, dtype=F64)
    paid = torch.where(w > 0.5, high, low) * (1 - 1e-12)

    def total(sign: int) -> float:
        """With x′ at sign 1, where a step's loss is N(d²/2, d²); without it at -1, likewise."""
        moments = []
        for share, size in zip(shares, sizes, strict=True):
            second = torch.where(w > 0.5, 2 * 0.25 if size < 1 else 1.0, 0.25)
            centre = size if sign > 0 else 0.0
            density = (-(w - centre).square() / 2).exp() / math.sqrt(2 * math.pi)
            loss = sign * (size * w - size**2 / 2)
            exponent = order * loss + order * (order + 1) * second**2 / 2 - paid
            moments.append(share * float(torch.trapezoid(density * exponent.exp(), w)))
        return sum(moments)

    assert total(1) <= 1
    assert total(-1) <= 1


def test_the_limit_is_the_worst_case() -> None:
    event = two_levels(0.2)
    largest = event.steps * float(subsampled_gaussian_cost(1.0, 1.0, event.rate, 6))
    rule = Filter(order=6, exponent=1 + 1e-6, budget=1.0, steps=event.steps)
    assert rule.cost(event) == pytest.approx(largest, rel=1e-3)


def test_a_filter_refuses_before_the_budget_is_passed() -> None:
    rule = Filter(order=4, exponent=1.1, budget=0.02, steps=100)
    made = [run([[taken, 0]] * 200, [0.5, 1.0]) for taken in range(1, 100)]
    costs = [rule.cost(one) for one in made]
    assert costs == sorted(costs)
    last = sum(cost <= 0.02 for cost in costs) - 1
    within, beyond = made[last], made[last + 1]
    assert rule.check(within) == costs[last]
    with pytest.raises(BudgetExceededError, match=r"over budget=0\.02"):
        rule.check(beyond)
    spent = rule.spent(within, DELTA)
    assert spent.scope is Scope.FILTER
    assert spent.reliable
    # CKS of the budget at λ = 4 with β = δ - 100 γ.
    beta = DELTA - 100 * 1e-10
    epsilon = 0.02 / 4 + math.log(4 / 5) - (math.log(beta) + math.log(5)) / 4
    assert spent.worst_case is not None
    assert spent.epsilon == pytest.approx(min(epsilon, spent.worst_case.epsilon), rel=1e-12)
    with pytest.raises(BudgetExceededError, match="over budget"):
        rule.spent(beyond, DELTA)


def test_epsilon_of_a_filter_is_a_constant_of_its_settings() -> None:
    settings: dict[str, Any] = {"order": 8, "exponent": 1.05, "steps": 1000}
    rule = Filter(budget=0.1, **settings)
    light, heavy = (run([[50, 0]] * 200, [d, 1.0], noise_multiplier=4.0) for d in (0.1, 0.3))
    assert rule.spent(light, DELTA).epsilon == rule.spent(heavy, DELTA).epsilon
    least = [Filter(budget=b, **settings).spent(light, DELTA) for b in (1e3, 1e6)]
    assert least[0].epsilon == least[1].epsilon
    assert least[0].worst_case is not None
    assert least[0].epsilon == least[0].worst_case.epsilon


def test_an_odometer_adds_the_price_of_markov() -> None:
    rule, event = example(1.02), counterexample()
    found = rule.loss(event, 1e-3)
    assert found == pytest.approx((rule.cost(event) + math.log(1e3)) / 8, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": 2.5}, "order must be a whole number"),
        ({"exponent": 1.0}, "exponent must be finite and above 1, got 1.0"),
        ({"budget": 0.0}, "budget must be finite and positive, got 0.0"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"failure_probability": 0.0}, "failure_probability must lie strictly between"),
    ],
)
def test_bad_filters(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"order": 8, "exponent": 1.02, "budget": 1.0, "steps": 9}
    with pytest.raises(ValueError, match=message):
        Filter(**(good | change))


def test_bad_runs_of_a_filter() -> None:
    rule = Filter(order=8, exponent=1.02, budget=1.0, steps=9)
    with pytest.raises(ValueError, match="run has 10 steps, more than steps=9"):
        rule.check(run([[10]] * 3, [1.0]))
    pairs = run([[1, 0]] * 3, [1.0, 2.0], rate=1.0, relation="replace")
    with pytest.raises(ValueError, match="run has relation='replace'"):
        rule.check(pairs)


def test_records_are_dropped_at_their_own_budget() -> None:
    """A record at the clip takes part V z² times; one at a tenth of it a hundred times as often."""
    rule, own = IndividualFilter(noise_multiplier=8.0, budget=0.25), torch.zeros(3)
    norms, taken = torch.tensor([1.0, 0.5, 0.0]), torch.zeros(3)
    for _ in range(100):
        active, own = rule.step(own, norms)
        taken += active
        assert bool((own[~active] == 0.25).all())
    assert taken.tolist() == [16, 64, 100]
    _, own = rule.step(torch.full((1,), 0.24), torch.ones(1))
    assert not bool(rule.step(own, torch.full((1,), 1e-3))[0])  # it stays out


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_an_individual_filter_by_composing(epsilon: float) -> None:
    """Two steps, the size of the second chosen by an adversary from the first's outcome, against
    the exact δ by integration: at most that of the budget, and nearly that of a fixed size."""
    rule, z = IndividualFilter(noise_multiplier=2.0, budget=0.4), 2.0
    w = torch.linspace(-9, 9, 4001, dtype=F64)
    density = (-(w - 0.5).square() / 2).exp() / math.sqrt(2 * math.pi)
    loss = w / 2 - 0.125  # of the first step, at distance 1/z

    def delta_of(norms: torch.Tensor) -> float:
        first, own = rule.step(torch.zeros_like(w), torch.ones_like(w))
        assert bool(first.all())
        active, own = rule.step(own, norms)
        size = torch.where(active, norms / z, 0.0).square()
        return float(torch.trapezoid(density * equal_covariance(size, epsilon - loss), w))

    limit = float(equal_covariance(torch.tensor([rule.budget], dtype=F64), epsilon))
    room = z * math.sqrt(rule.budget - 0.25)
    fixed = delta_of(torch.full_like(w, room * (1 - 1e-12)))
    assert fixed == pytest.approx(limit, rel=1e-4)
    for threshold in (-1.0, 0.0, 0.5, 2.0):
        for high, low in ((room, 0.0), (1.0, room), (0.0, room * 0.999)):
            adapted = torch.where(w > threshold, high, low).double()
            assert delta_of(adapted) <= limit * (1 + 1e-4)
    found = rule.worst_case(1e-5)
    assert found.epsilon == pytest.approx(gaussian_epsilon(0.4, 1e-5), rel=1e-12)
    twice = replace_one(found)
    assert twice is not None
    assert twice.epsilon == pytest.approx(gaussian_epsilon(1.6, 1e-5), rel=1e-12)


@pytest.mark.parametrize(
    ("own", "norms", "message"),
    [
        (torch.zeros(3), torch.zeros(2), "norms has shape"),
        (torch.zeros(2), torch.tensor([0.5, 1.5]), r"norms must lie in \[0, 1\], got 1.5"),
        (torch.zeros(2), torch.tensor([0.5, math.nan]), r"norms must lie in \[0, 1\], got nan"),
        (torch.tensor([0.0, 7.0]), torch.zeros(2), r"own must lie in \[0, budget\], got 7.0"),
    ],
)
def test_bad_steps_of_an_individual_filter(
    own: torch.Tensor, norms: torch.Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        IndividualFilter(noise_multiplier=1.0, budget=1.0).step(own, norms)

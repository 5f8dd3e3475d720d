"""Conversions against published numbers, numerical integration and their own definitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bdpvi.privacy.conversions import (
    Orders,
    delta,
    epsilon,
    minimise_delta,
    minimise_epsilon,
    split_delta,
)

RULES = ["cks", "chernoff"]


def published(value: float) -> object:
    """1e-3 relative, or the last printed digit where that is coarser."""
    return pytest.approx(value, rel=1e-3, abs=5e-5)


def gaussian(variance: float) -> Callable[[Tensor], Tensor]:
    """The cost of a Gaussian mechanism with (distance/noise)² = variance."""
    return lambda order: order * (order + 1) * variance / 2


def exact_delta(variance: float, eps: float) -> float:
    """δ(ε) between two Gaussians, integrated numerically from its definition."""
    mean = math.sqrt(variance)

    def excess(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.npdf(x, mean, 1) - mpmath.exp(eps) * mpmath.npdf(x, 0, 1)

    crossing = eps / mean + mean / 2
    return float(mpmath.quad(excess, [crossing, crossing + 4, crossing + 16]))


@settings(max_examples=40, deadline=None)
@given(
    variances=st.lists(st.floats(1e-3, 2.0), min_size=1, max_size=4),
    exponent=st.floats(-8, -1),
)
def test_each_rule_covers_the_true_delta_of_a_known_population(
    variances: list[float], exponent: float
) -> None:
    beta = 10**exponent
    values = torch.tensor(variances, dtype=torch.float64)

    def cost(order: Tensor) -> Tensor:
        own = order[:, None] * (order[:, None] + 1) * values / 2
        return torch.logsumexp(own, dim=1) - math.log(len(values))

    cks = minimise_epsilon(cost, beta).value
    assert cks <= minimise_epsilon(cost, beta, rule="chernoff").value
    true = sum(exact_delta(variance, cks) for variance in variances) / len(variances)
    assert true <= beta * (1 + 1e-9)


def test_chernoff_bounds_the_tail_and_cks_the_hockey_stick_within_a_known_factor() -> None:
    # Independent: for L ~ N(v/2, v), Chernoff at its optimum is exp(−(ε−v/2)²/2v).
    variance, eps = 0.04, 0.9
    chernoff = minimise_delta(gaussian(variance), eps, rule="chernoff").value
    assert chernoff == pytest.approx(math.exp(-((eps - 0.02) ** 2) / 0.08), rel=1e-3)
    cks = minimise_delta(gaussian(variance), eps).value
    assert exact_delta(variance, eps) < cks < chernoff / 10


@pytest.mark.parametrize("rule", RULES)
@settings(deadline=None)
@given(cost=st.floats(0, 50), order=st.floats(0.1, 1e3), exponent=st.floats(-12, -1))
def test_delta_inverts_epsilon(rule: str, cost: float, order: float, exponent: float) -> None:
    beta = 10**exponent
    eps = epsilon(cost, order, beta, rule)
    back = float(delta(cost, order, eps, rule))
    if eps > 0:
        assert back == pytest.approx(beta, rel=1e-8)
    else:
        assert back <= beta * (1 + 1e-8)


@settings(deadline=None)
@given(cost=st.floats(0, 50), order=st.floats(0.1, 1e5), beta=st.floats(1e-12, 0.5))
def test_cks_formula_at_high_precision(cost: float, order: float, beta: float) -> None:
    with mpmath.workdps(50):
        alpha = mpmath.mpf(order) + 1
        value = (
            mpmath.mpf(cost) / (alpha - 1)
            + mpmath.log((alpha - 1) / alpha)
            - (mpmath.log(beta) + mpmath.log(alpha)) / (alpha - 1)
        )
    assert float(epsilon(cost, order, beta)) == pytest.approx(
        max(0.0, float(value)), rel=1e-11, abs=1e-13
    )


@settings(deadline=None)
@given(size=st.integers(1, 300), variance=st.floats(1e-4, 10), cut=st.floats(0.5, 400))
def test_search_misses_no_order_of_its_grid(size: int, variance: float, cut: float) -> None:
    orders = Orders(torch.arange(1, size + 1))

    def cost(order: Tensor) -> Tensor:
        return torch.where(order > cut, math.inf, gaussian(variance)(order))

    every = epsilon(cost(orders.values), orders.values, 1e-5)
    assert minimise_epsilon(cost, 1e-5, orders).value == float(every.min())


@pytest.mark.parametrize(
    "values", [[], [1.0, 1.0], [2.0, 1.0], [0.0, 1.0], [1.0, math.inf], [math.nan]]
)
def test_orders_must_ascend_from_above_zero(values: list[float]) -> None:
    with pytest.raises(ValueError, match="values must"):
        Orders(torch.tensor(values))


@settings(deadline=None)
@given(estimates=st.integers(1, 10_000), gamma=st.floats(0, 1e-9), total=st.floats(1e-4, 0.9))
def test_split_delta_adds_up(estimates: int, gamma: float, total: float) -> None:
    beta = split_delta(total, gamma, estimates)
    assert beta + estimates * gamma == pytest.approx(total, rel=1e-14)


def test_split_delta_refuses_when_nothing_is_left() -> None:
    with pytest.raises(ValueError, match=r"delta=1e-05 must exceed .* 100 \* 1e-07"):
        split_delta(1e-5, 1e-7, 100)
    with pytest.raises(ValueError, match="delta"):
        split_delta(math.nan, 1e-7, 100)
    with pytest.raises(ValueError, match="failure_probability"):
        split_delta(1e-5, math.nan, 100)
    with pytest.raises(ValueError, match="estimates"):
        split_delta(1e-5, 1e-15, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((math.nan, 1.0, 1e-5), "cost must be at least 0, got nan"),
        ((-0.1, 1.0, 1e-5), "cost must be at least 0, got -0.1"),
        ((0.1, 0.0, 1e-5), "order must be finite and positive, got 0.0"),
        ((0.1, math.nan, 1e-5), "order must .* got nan"),
        ((0.1, 1.0, 0.0), "delta must .* got 0.0"),
        ((0.1, 1.0, 1.0), "delta must .* got 1.0"),
        ((0.1, 1.0, math.nan), "delta must .* got nan"),
        ((0.1, 1.0, 1e-5, "rdp"), r"rule must be 'chernoff' or 'cks', got 'rdp'"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[float, float, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        epsilon(*arguments)

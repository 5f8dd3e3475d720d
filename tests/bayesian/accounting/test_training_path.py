"""Costs that were met on a training path: what they do not guarantee, and that they stay marked."""

from __future__ import annotations

import math

import pytest
import torch
from accounts import bayes, path_of, worst_of
from test_sampled_steps import DELTA, F64, accountant, run, two_levels
from torch import Tensor

from bdpvi.bayesian.accounting.losses import OfRuns
from bdpvi.privacy.conversions import EPSILONS, position
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian import equal_covariance

M, FIRST, SECOND = 1000, 0.4, 0.6


def counterexample() -> SampledGaussian:
    """1,000 possible records. Step 1 moves coordinate i by 0.4σ if record i is there; step 2 has
    sensitivity 0.6σ for the record whose coordinate is then largest, and none for the others."""
    counts = [[1, 1, 0]] * M
    counts[17] = [0, 1, 1]
    return run(
        counts, [1e-6, FIRST / SECOND, 1.0], noise_multiplier=1 / SECOND, rate=1.0, scope="path"
    )


def largest(x: Tensor) -> Tensor:
    """Return how likely coordinate i is the largest, given that it is x."""
    return torch.exp((M - 1) * torch.special.log_ndtr(x))


NODES = torch.linspace(-9, 14, 20001, dtype=F64)


def average(mean: float, values: Tensor) -> float:
    density = (-(NODES - mean).square() / 2).exp() / math.sqrt(2 * math.pi)
    return float(torch.trapezoid(density * values, NODES))


def true_moment(order: int) -> float:
    """log E e^{λL}: the first step tilts coordinate i to (1+λ)·0.4."""
    chosen = average(FIRST * (1 + order), largest(NODES))
    half = order * (order + 1) / 2
    return half * FIRST**2 + math.log1p(chosen * math.expm1(half * SECOND**2))


def true_delta(epsilon: float) -> float:
    """E (1 - e^{ε-L})₊ with L = 0.4x - 0.08, and N(0.18, 0.36) more where x is the largest."""
    rest = epsilon - (FIRST * NODES - FIRST**2 / 2)
    plain = (-torch.expm1(rest)).clamp(min=0)
    second = equal_covariance(torch.full_like(NODES, SECOND**2), rest)
    return average(FIRST, torch.lerp(plain, second, largest(NODES)))


def test_a_mean_over_records_on_a_path_is_no_guarantee() -> None:
    """Costs that were met on the way bound nothing: 11.8 on every path, where the truth is 18.3."""
    event, order = counterexample(), torch.tensor([8.0], dtype=F64)
    made = accountant(event, "cks")
    on_path = float(made.bound("add-or-remove D‖D′", order).log_mean)
    assert on_path == pytest.approx(11.8, abs=0.05)
    assert true_moment(8) == pytest.approx(18.3, abs=0.05)
    for conversion in ("cks", "hockey-stick"):
        spent = accountant(event, conversion).cost(1e-3)
        assert true_delta(worst_of(spent).epsilon) <= 1e-3
        assert "not a guarantee about the algorithm" in path_of(spent).meaning
        assert "not a guarantee about the algorithm" in str(spent)


def test_the_mean_delta_on_the_path_is_below_the_truth() -> None:
    """So a guarantee whose ε came from it would claim too little."""
    deltas = OfRuns([(counterexample(), 1)]).deltas("add-or-remove D‖D′", 1e-6)
    epsilon = float(EPSILONS[position(2.5)])
    assert float(deltas.at(epsilon).mean()) < true_delta(epsilon) / 10


def test_the_costs_of_a_path_stay_marked() -> None:
    event = two_levels(0.1, scope="path")
    made = accountant(event)
    spent = made.cost(DELTA)
    static = accountant(two_levels(0.1)).cost(DELTA)
    assert path_of(spent).epsilon == bayes(static).epsilon < worst_of(spent).epsilon
    assert static.path is None
    assert made.exposure(DELTA).on_path
    assert "not a guarantee" in str(made.exposure(DELTA))
    with pytest.raises(ValueError, match="ask for the worst case"):
        made.get_delta(1.0)

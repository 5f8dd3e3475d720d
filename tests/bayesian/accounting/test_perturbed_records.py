"""What objective perturbation costs single records, against exact pairs and known populations."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from perturbed_records import LEVELS, bayesian_epsilon, record_deltas
from scipy.special import expit, ndtr

from bdpvi.privacy.perturbed_objective import PerturbedObjective
from bdpvi.privacy.perturbed_objective import delta as delta_of
from bdpvi.privacy.worst_case import epsilon as worst_epsilon

DELTA = 1e-5
EVENT = PerturbedObjective(noise_multiplier=16.4, curvature=0.2, residual=1.0, hiding=6e-4)


def population(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return shares of the largest: norms of four standard normal features, cut."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.randn(count, 4, generator=generator, dtype=torch.float64).norm(dim=1) / 4
    return size.clamp(max=1), (size**2).clamp(max=1)


@pytest.mark.parametrize("length", [0.2, 0.6, 1.0])
def test_a_record_alone_costs_no_more(length: float) -> None:
    """Exact densities of one record of z = C · length on an empty table, and among others."""
    epsilon, sigma, ridge = 0.2, 16.4, 5.0
    own = record_deltas(EVENT, torch.tensor([length]), torch.tensor([length**2]))
    w = np.linspace(-40, 40, 160_001)
    for others in (0.0, 40.0):
        rest = ridge * w + others * length * expit(length * w)
        more = rest - length * expit(-length * w)
        p, q = (np.diff(ndtr(f / sigma)) for f in (more, rest))
        for e in (0.02, 0.1, epsilon):
            most = float(own.at(e)[0])
            assert np.maximum(p - math.exp(e) * q, 0).sum() <= most + 1e-12
            assert np.maximum(q - math.exp(e) * p, 0).sum() <= most + 1e-12


def test_records_are_rounded_up_to_few_levels() -> None:
    lengths, bends = population(5000, 0)
    own = record_deltas(EVENT, lengths, bends)
    assert own.counts is not None
    assert own.bound is not None
    assert int(own.counts.sum()) == 5000
    assert len(own.counts) < 2 * LEVELS
    mean = float((own.at(0.15) * own.counts).sum() / 5000)
    exact = sum(
        delta_of(
            [PerturbedObjective(noise_multiplier=16.4 / a, curvature=0.2 * b, hiding=6e-4)], 0.15
        )
        for a, b in zip(lengths[:200].tolist(), bends[:200].tolist(), strict=True)
    )
    some = record_deltas(EVENT, lengths[:200], bends[:200])
    assert some.counts is not None
    assert exact <= float((some.at(0.15) * some.counts).sum()) <= 1.3 * exact
    assert 0 < mean < own.bound(0.15)


def test_the_range_is_that_of_any_record_and_not_of_those_given() -> None:
    half = torch.full((1000,), 0.5)
    own = record_deltas(EVENT, half, half)
    assert own.bound is not None
    assert own.bound(0.15) == delta_of([EVENT], 0.15) > 10 * float(own.at(0.15).max())


def test_the_mean_over_a_population_is_within_delta() -> None:
    """Panels from a known population: at the ε that each gives the mean of all is below δ."""
    lengths, bends = population(200_000, 99)
    everybody = record_deltas(EVENT, lengths, bends)
    assert everybody.counts is not None
    worst = worst_epsilon([EVENT], DELTA)
    assert worst is not None
    for seed in range(2):
        found = bayesian_epsilon(EVENT, *population(30_000, seed), DELTA)
        assert found < 0.98 * worst.epsilon
        mean = float((everybody.at(found) * everybody.counts).sum() / 200_000)
        assert 0.3 * DELTA < mean <= DELTA


def test_a_population_of_the_worst_pays_the_worst_case() -> None:
    ones = torch.ones(1000)
    found = bayesian_epsilon(EVENT, ones, ones, DELTA)
    worst = worst_epsilon([EVENT], DELTA)
    assert worst is not None
    assert worst.epsilon <= found <= 1.006 * worst.epsilon


def test_several_draws_and_other_mechanisms_are_added_record_by_record() -> None:
    several = PerturbedObjective(noise_multiplier=30.0, curvature=0.05, residual=0.75, draws=3)
    own = record_deltas(several, torch.tensor([0.5]), torch.tensor([0.25]), variance=1e-4)
    one = PerturbedObjective(noise_multiplier=60.0, curvature=0.0125, residual=0.75, draws=3)
    assert float(own.at(0.1)[0]) == pytest.approx(delta_of([one], 0.1, 1e-4), rel=1e-12)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: record_deltas(EVENT, torch.tensor([1.1]), torch.ones(1)), "lengths"),
        (lambda: record_deltas(EVENT, torch.ones(1), torch.tensor([-0.1])), "bends"),
        (lambda: record_deltas(EVENT, torch.ones(2), torch.ones(1)), "bends"),
        (lambda: bayesian_epsilon(EVENT, torch.ones(9), torch.ones(9), 0.0), "delta"),
    ],
)
def test_bad_arguments(call: Callable[[], object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        call()

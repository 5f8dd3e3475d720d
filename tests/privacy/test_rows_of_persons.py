"""All rows of one person in one minimum: the bound against exact densities, row after row."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import trapezoid

from bdpvi.privacy import left
from bdpvi.privacy.book import Book
from bdpvi.privacy.event import for_unit
from bdpvi.privacy.events import SampledGaussian, Threshold
from bdpvi.privacy.groups import changes, row_by_row
from bdpvi.privacy.perturbed_objective import PerturbedObjective, calibrate, profile
from bdpvi.regression.objective_plan import Facts, plan

Floats = NDArray[np.float64]


def law(z: Floats, w: Floats, ridge: float, sigma: float, k: float) -> Floats:
    """Return the density of the exact minimum at w, one weight, for rows z = ± x."""
    slope, bend = ridge * w, np.full_like(w, ridge)
    for one, count in Counter(z.tolist()).items():
        p = 1 / (1 + np.exp(np.clip(one * w, -500, 500)))
        slope = slope - count * one * np.minimum(p, k)
        bend = bend + count * np.where(p < k, p * (1 - p) * one**2, 0.0)
    return np.asarray(np.exp(-((slope / sigma) ** 2) / 2) * bend / (sigma * math.sqrt(2 * math.pi)))


def delta(first: Floats, second: Floats, epsilon: float, w: Floats) -> float:
    return float(trapezoid(np.maximum(first - math.exp(epsilon) * second, 0.0), w))


def exact(z: Floats, person: Floats, event: PerturbedObjective, epsilon: float) -> float:
    """Return δ(ε) with and without all rows of a person, the larger of both orders; C = 1."""
    ridge, sigma, k = 1 / event.curvature, event.noise_multiplier, event.residual
    reach = (12 * sigma + abs(z).sum() + abs(person).sum()) / ridge
    w = np.linspace(-reach, reach, 100_001)
    whole, rest = law(np.append(z, person), w, ridge, sigma, k), law(z, w, ridge, sigma, k)
    assert trapezoid(rest, w) == pytest.approx(1, abs=1e-4)
    return max(delta(whole, rest, epsilon, w), delta(rest, whole, epsilon, w))


@pytest.mark.parametrize("k", [1.0, 0.6])
@pytest.mark.parametrize("rows", [2, 3])
def test_no_person_costs_more_than_the_ledger_says(rows: int, k: float) -> None:
    """Random tables and persons; all rows of a person are removed at once."""
    made = plan(Facts(columns=1, rows=100, together=rows), epsilon=1.0, delta=1e-5)
    event = replace(made.event, residual=k, hiding=0.0, rounding=0.0)
    event = calibrate(event, epsilon=1.0 / rows, delta=1e-5 / changes(1.0 / rows, rows))
    found = row_by_row([event], rows, 1e-5)
    assert found is not None
    assert found.epsilon == pytest.approx(1.0, rel=2e-4)
    rng, costs = np.random.default_rng(rows), []
    for _ in range(5):
        z = rng.uniform(-1, 1, rng.integers(0, 40))
        person = rng.choice([-1.0, -0.7, 0.5, 1.0], rows)
        costs += [exact(z, one, event, found.epsilon) for one in (person, np.ones(rows))]
    assert max(costs) <= 1e-5


def test_a_person_of_three_rows_costs_more_than_one_row_is_charged() -> None:
    """Rows almost without curvature drive every residual of the person to 1."""
    one = calibrate(
        PerturbedObjective(noise_multiplier=4.0, curvature=1.0), epsilon=1.0, delta=1e-5
    )
    three = calibrate(
        PerturbedObjective(noise_multiplier=12.0, curvature=1 / 3),
        epsilon=1 / 3,
        delta=1e-5 / changes(1 / 3, 3),
    )
    z, person = np.full(20_000, -0.003), np.ones(3)
    assert exact(z, person, one, 1.0) > 100 * 1e-5
    found = exact(z, person, three, 1.0)
    assert 0.9e-5 < found < 1e-5  # group privacy takes 0.3 % more noise than a Gaussian mechanism
    louder = replace(three, noise_multiplier=0.99 * three.noise_multiplier)
    assert exact(z, person, louder, 1.0) > 1e-5


@given(st.integers(2, 8), st.floats(0.1, 3.0), st.sampled_from([0.0, 0.1, 0.9]))
def test_rows_are_added_one_after_another(rows: int, epsilon: float, names: float) -> None:
    """P₀ ≤ e^ε P₁ + δ ≤ …, written out; what a threshold reveals counts once."""
    event = PerturbedObjective(noise_multiplier=4.0 * rows / epsilon, curvature=epsilon / rows)
    others = [Threshold(names * 1e-5)] if names else []
    found = row_by_row([event, *others], rows, 1e-5)
    assert found is not None
    total, each = 0.0, profile(found.epsilon / rows, event)
    for _ in range(rows):
        total = math.exp(found.epsilon / rows) * total + each
    assert total <= (1 - names) * 1e-5 * (1 + 1e-6)
    if found.epsilon:
        assert total == pytest.approx((1 - names) * 1e-5, rel=1e-6)
    assert (found.delta, found.distance) == (1e-5, None)


def test_a_ledger_of_persons_prices_everything_so_once_a_minimum_is_charged() -> None:
    book = Book("a", unit="who", rows=3)
    noise = SampledGaussian(noise_multiplier=30.0)
    minimum = PerturbedObjective(noise_multiplier=12.5, curvature=0.3)
    alone = left.together(book, 1e-5, {noise: 1})
    both = left.together(book, 1e-5, {minimum: 1, noise: 1})
    assert alone is not None
    assert both is not None
    assert alone.distance == pytest.approx(0.1)
    expected = row_by_row([noise, minimum], 3, 1e-5)
    assert expected is not None
    assert both.epsilon == expected.epsilon > alone.epsilon
    assert both.unit == book.whose
    one = left.together(replace(book, rows=1), 1e-5, Counter([minimum, noise]))
    assert one is not None
    assert both.epsilon > 3 * one.epsilon


def test_what_no_delta_covers_has_no_price() -> None:
    event = PerturbedObjective(noise_multiplier=0.01, curvature=1e4)
    assert row_by_row([event], 3, 1e-5) is None
    assert row_by_row([event, Threshold(1e-5)], 2, 1e-5) is None
    free = row_by_row([SampledGaussian(noise_multiplier=1e8)], 3, 1e-5)
    assert free is not None
    assert free.epsilon == 0


def test_no_event_stands_for_a_minimum_of_several_rows() -> None:
    with pytest.raises(ValueError, match="rows_per_unit=3: a minimum of a perturbed objective"):
        list(for_unit({PerturbedObjective(noise_multiplier=9.0, curvature=0.1): 1}, 3))

"""What is charged where settings follow from noisy outputs is above every plan that may be chosen.

The oracles know nothing of the library's bounds: the largest loss over residuals and the integral
of what falling adds by trying them on grids, exact densities of minima in one dimension, and of one
step on a sample by its closed form.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.special import ndtr
from scipy.stats import norm

from bdpvi.datasets.estimates import Purchase
from bdpvi.privacy.book import Book
from bdpvi.privacy.dominating import steps_within, within
from bdpvi.privacy.events import SampledGaussian, Threshold
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.privacy.perturbed_objective import PerturbedObjective, losses, reach
from bdpvi.privacy.worst_case import epsilon as epsilon_of
from bdpvi.regression.objective_plan import Facts, ObjectivePlan, plan
from bdpvi.releases.transaction import Before
from bdpvi.tables.encoded import EstimateConstants

Array = npt.NDArray[np.float64]
DELTA = 1e-5
ROWS = (10, 100, 300, 1000, 3000, 1e4, 1e5, 1e7)


def chosen(rows: float | None, epsilon: float, share: float, columns: int = 20) -> ObjectivePlan:
    """Return the plan for a noisy N, after a share of μ² was spent."""
    spent = share * largest_variance(epsilon, DELTA)
    return plan(Facts(columns=columns, rows=rows, sources=5), epsilon=epsilon, variance=spent)


def by_largest(one: PerturbedObjective, epsilon: float) -> float:
    """Return E(1 − e^{ε−Ψ})₊ for the largest loss, of exact logarithms at 200 residuals."""
    x = np.linspace(-9, 19, 4001)
    mu, r = 1 / one.noise_multiplier, np.linspace(0, one.residual, 201)[:, None]
    bend = np.log1p(r * (1 - r) * one.curvature)
    if one.residual == 1:  # a price: without a clip its loss has the tangent at 0
        bend = r * (1 - r) * one.curvature
    loss = (r * mu * x + (r * mu) ** 2 / 2 + bend).max(0)
    weight = norm.pdf(x) * (x[1] - x[0])
    return float(weight @ np.maximum(-np.expm1(np.minimum(epsilon - loss, 0)), 0))


def gaussian(mu: float, epsilon: Array | float) -> Array:
    tail = ndtr(-np.asarray(epsilon) / mu - mu / 2)
    return np.asarray(ndtr(mu / 2 - np.asarray(epsilon) / mu) - np.exp(epsilon) * tail)


def by_falling(one: PerturbedObjective, epsilon: float) -> float:
    """Return G(kμ, ε) + μ ∫ max_x [φ(α − x)(1 − x/β) − φ(α)]₊ dr, by trying x."""
    mu, k = 1 / one.noise_multiplier, one.residual
    r = k * np.exp(np.linspace(-7, 0, 801))
    peak = np.maximum(r, min(k, 0.5))
    j = one.curvature * peak * (1 - peak)
    alpha, beta = (epsilon - r**2 * mu**2 / 2) / (r * mu), np.maximum(j / (r * mu), 1e-300)
    x = np.linspace(0, 1, 201)[:, None] * np.minimum(beta, np.maximum(alpha, 0) + 9)
    gains = (norm.pdf(alpha - x) * (1 - x / beta) - norm.pdf(alpha)).max(0)
    return float(gaussian(k * mu, epsilon) + mu * trapezoid(np.maximum(gains, 0), r))


def oracle(one: PerturbedObjective, epsilon: float) -> float:
    found = by_largest(one, epsilon)
    return found if one.residual == 1 else min(found, by_falling(one, epsilon))


@pytest.mark.parametrize("share", [0.01, 0.2])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_each_plan_is_within_the_charge_at_every_epsilon(epsilon: float, share: float) -> None:
    """And touches it: with 1 % less noise, or a charge 1 % lower, it would be above."""
    for rows in (10, 300, 3000):
        made = chosen(rows, epsilon, share)
        grid = np.linspace(0, reach(made.event.loss), 20)
        charged = np.array([oracle(made.event, e) for e in grid])
        shares = np.array([oracle(made.actual_event, e) for e in grid]) / charged
        assert shares.max() <= 1 + 1e-4
        by_library = made.event.loss.delta(grid)
        assert by_library[:-3] == pytest.approx(charged[:-3], rel=2e-3)
        fine = np.linspace(0, grid[-1], 300)
        bound = made.actual_event.loss.delta(fine) / made.event.loss.delta(fine)
        assert 0.97 < bound.max() <= 1 + 1e-9  # lines leave out 3 % where δ is 1e-20
        less = replace(
            made.actual_event, noise_multiplier=0.99 * made.actual_event.noise_multiplier
        )
        assert max(oracle(less, e) / c for e, c in zip(grid, charged, strict=True)) > 1


def test_the_charge_follows_from_no_noisy_number() -> None:
    for epsilon, share in ((0.1, 0.2), (1.0, 0.01)):
        plans = [chosen(rows, epsilon, share, d) for rows in (None, *ROWS) for d in (1, 3000)]
        # But for the total variation of rounding, of which float64's δ has no part.
        assert len({replace(one.event, rounding=0.0) for one in plans}) == 1
        assert max(one.event.rounding for one in plans) < 1e-28
        assert len({one.actual_event for one in plans}) > 2
        assert all(one.events == (one.event,) for one in plans)
        assert len({replace(one.with_noise(9.0).event, rounding=0.0) for one in plans}) == 1


@cache
def law(price: PerturbedObjective) -> tuple[Array, Array, float]:
    found = losses([price])
    places = np.asarray(found.least + found.step * np.arange(len(found.masses)), dtype=np.float64)
    return places, found.masses, found.infinite


def charged_at(price: PerturbedObjective, epsilon: float) -> float:
    """Return δ of the loss that is put with others, at ε of any sign."""
    places, masses, infinite = law(price)
    return infinite + float(masses @ np.maximum(-np.expm1(np.minimum(epsilon - places, 0)), 0))


@given(
    st.sampled_from(ROWS),
    st.sampled_from([(0.1, 0.2), (1.0, 0.01), (4.0, 0.2)]),
    st.floats(-25, -0.5),
    st.lists(st.floats(-6, 6), min_size=1, max_size=4),
)
@settings(max_examples=20, deadline=None)
def test_no_minimum_of_any_plan_is_above_the_charge(
    rows: float, asked: tuple[float, float], start: float, turns: list[float]
) -> None:
    """Slopes along a record, exact: T(t) = t + μr(t), in both orders, at ε of both signs."""
    made = chosen(rows, *asked)
    one, t = made.actual_event, np.linspace(-10, 10, 2001)
    mu, k = 1 / one.noise_multiplier, one.residual
    r = np.full_like(t, min(1 - math.exp(start), k))
    for at in range(1, len(t)):
        bend = one.curvature * r[at - 1] * (1 - r[at - 1]) / mu
        full = np.searchsorted(np.sort(turns), t[at]) % 2
        r[at] = max(r[at - 1] - full * (t[1] - t[0]) * bend / (1 + mu * bend), 0)
    without = t + mu * r
    masses = [np.where(e[1:] < 0, np.diff(ndtr(e)), -np.diff(ndtr(-e))) for e in (t, without)]
    for epsilon in asked[0] * np.array([-2, -1, -0.5, -0.1, 0, 0.1, 0.5, 0.9, 1, 1.2, 1.5, 2]):
        most = charged_at(made.event, epsilon)
        for p, q in (masses, masses[::-1]):
            assert np.maximum(p - math.exp(epsilon) * q, 0).sum() <= most * (1 + 1e-3) + 1e-13


@pytest.mark.parametrize("share", [0.01, 0.2])
def test_a_number_of_records_that_chooses_the_worst_plan_costs_no_more(share: float) -> None:
    """E max_j δ_j(ε − l) over what was spent before; with a price for each it was above δ."""
    epsilon = 0.2
    spent = share * largest_variance(epsilon, DELTA)
    z = np.linspace(-6, 8, 281)
    weight, rest = norm.pdf(z) * 0.05, epsilon - spent / 2 - math.sqrt(spent) * z

    def all_of(events: list[PerturbedObjective]) -> float:
        def each(one: PerturbedObjective) -> Array:
            positive = one.loss.delta(np.maximum(rest, 0))
            x = np.exp(np.minimum(rest, 0))
            return np.asarray(1 - x * (1 - positive))

        return float(weight @ np.max([each(event) for event in events], 0))

    made = [chosen(rows, epsilon, share) for rows in ROWS]
    assert all_of([one.actual_event for one in made]) <= DELTA
    before = (SampledGaussian(noise_multiplier=spent**-0.5), made[0].event)
    found = epsilon_of(before, DELTA)
    assert found is not None
    assert 0.99 * epsilon < found.epsilon <= epsilon


def test_what_is_within_a_price_has_no_larger_curvature() -> None:
    price = PerturbedObjective(noise_multiplier=4.0, curvature=1.0, draws=3, hiding=0.01)
    one = within(price, 0.3, 0.6)
    assert (one.draws, one.hiding, one.curvature, one.residual) == (3, 0.01, 0.3, 0.6)
    assert 0.6 * 4 < one.noise_multiplier <= 4.0
    for curvature, residual in ((1.1, 1.0), (0.5, 0.5)):
        with pytest.raises(ValueError, match="above all"):
            within(replace(price, residual=residual), curvature, 0.5)


@pytest.mark.parametrize(("rate", "mu"), [(0.1, 0.27), (0.01, 0.5), (0.5, 1.5)])
def test_one_step_on_a_sample_is_within_a_gaussian_and_a_small_delta(
    rate: float, mu: float
) -> None:
    """By the closed form: (1 − q)N(0, 1) + qN(μ₁, 1) against N(0, 1), in both orders."""
    spare = 1e-6
    price = SampledGaussian(noise_multiplier=1 / mu)
    run = SampledGaussian(noise_multiplier=rate / mu, rate=rate)

    def shares(noise: float) -> Array:
        distance, found = 1 / noise, []
        for epsilon in np.linspace(-3, 6, 451):
            e = math.exp(epsilon)
            # The log ratio is above ε from here on, or everywhere.
            last = (e - 1 + rate) / rate
            x = math.log(last) / distance + distance / 2 if last > 0 else -math.inf
            add = (1 - rate - e) * ndtr(-x) + rate * ndtr(distance - x)
            last = (1 / e - 1 + rate) / rate
            x = math.log(last) / distance + distance / 2 if last > 0 else -math.inf
            remove = ndtr(x) * (1 - e * (1 - rate)) - e * rate * ndtr(x - distance)
            found.append(max(add, remove) / (float(gaussian(mu, epsilon)) + spare))
        return np.array(found)

    made = steps_within(run, price, spare)
    assert 0.98 < shares(made.noise_multiplier).max() <= 1 + 1e-9
    assert shares(0.97 * made.noise_multiplier).max() > 1


@pytest.mark.parametrize(("rate", "mu"), [(0.005, 0.27), (0.05, 0.27), (1.0, 0.27)])
def test_a_thousand_steps_are_within_it(rate: float, mu: float) -> None:
    price, spare = SampledGaussian(noise_multiplier=1 / mu), 5e-7
    run = SampledGaussian(noise_multiplier=rate * 1000**0.5 / mu, rate=rate, steps=1000)
    made = steps_within(run, price, spare)
    assert replace(made, noise_multiplier=run.noise_multiplier) == run
    for beta in (1e-3, 1e-5, 1e-6):
        found = epsilon_of((made,), beta)
        assert found is not None
        assert float(gaussian(mu, found.epsilon)) + spare >= 0.99 * beta


def test_a_price_of_constants_follows_from_no_noisy_kind() -> None:
    asked = Purchase.of(list("abct"), target="t", numeric=["c"])
    price = {"distance": 0.1, "delta": 1e-6, "rows": 1}
    found = []
    for kinds in (("number",) * 3, ("category", "category", "number"), ("category",) * 3):
        for hashed in (False, True):
            one = replace(asked, kinds=kinds, hashed=hashed)
            step = EstimateConstants(None, asked, one, price)  # type: ignore[arg-type]
            found.append(step.plan(Before(Book(""))).events)
    assert len(set(found)) == 1
    assert found[0] is not None
    assert Threshold(1e-6) in found[0]
    texts = Purchase.of(["a", "t"], target="t", categorical=["a"], hashed=True)
    step = EstimateConstants(None, texts, texts, price)  # type: ignore[arg-type]
    assert step.plan(Before(Book(""))).events == ()

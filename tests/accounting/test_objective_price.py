"""Objective perturbation's price against exact densities of minima, and against its definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from published import published_delta, published_renyi
from scipy.integrate import quad
from scipy.special import expit, ndtr
from scipy.stats import norm

from bdpvi.accounting import objective_perturbation as op
from bdpvi.accounting import worst_case
from bdpvi.accounting.events import PerturbedObjective, SampledGaussian
from bdpvi.accounting.gaussian import equal_covariance
from bdpvi.accounting.objective_perturbation import LAST, ObjectivePerturbationAccountant, delta
from bdpvi.accounting.worst_case import GaussianAccountant, calibrate
from bdpvi.dp.objective_perturbation import largest_curvature, largest_gradient

Array = npt.NDArray[np.float64]
EPSILONS = (0.0, 0.02, 0.1, 0.3, 0.7, 1.5, 3.0, 6.0)
stretches, distances = st.floats(0, 3), st.floats(0.02, 4)


def mean_over_normal(f: Callable[[float, float], float], fixed: float, at: list[float]) -> float:
    """Return E f(X, fixed), X standard normal, by quadrature between points where f has kinks."""
    cuts = sorted({-30.0, -12.0, 0.0, 12.0, 30.0, *(x for x in at if -12 < x < 12)})
    pieces = (
        quad(lambda x: f(x, fixed) * norm.pdf(x), low, high, epsabs=1e-15, epsrel=1e-12)[0]
        for low, high in pairwise(cuts)
    )
    return float(sum(pieces))


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.2])
@pytest.mark.parametrize("c", [0.0, 0.02, 0.6])
def test_delta_and_renyi_are_those_of_the_loss_that_the_proof_ends_with(
    c: float, mu: float
) -> None:
    def loss(x: float) -> float:
        return c + max(0.0, mu * x + mu**2 / 2)

    def positive(x: float, epsilon: float) -> float:
        return max(0.0, -math.expm1(epsilon - loss(x)))

    def power(x: float, order: float) -> float:
        return math.exp((order - 1) * loss(x))

    for epsilon in (0.0, c / 2, c, c + mu / 2, c + 2 * mu):
        cuts = [-mu / 2, (epsilon - c) / mu - mu / 2]
        expected = mean_over_normal(positive, epsilon, cuts)
        assert delta(epsilon, c, mu) == pytest.approx(expected, rel=1e-8)
    for order in (1.01, 2.0, 9.5):
        moment = mean_over_normal(power, order, [-mu / 2])
        divergence = math.log(moment) / (order - 1)
        assert op.renyi(order, c, mu) == pytest.approx(divergence, rel=1e-8)
        assert op.renyi(order, c, mu, 0.3) == pytest.approx(divergence + order * 0.045, rel=1e-8)


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.2])
@pytest.mark.parametrize("ratio", [0.0, 0.02, 0.4])
def test_published_bounds_are_those_of_their_loss(ratio: float, mu: float) -> None:
    c = -math.log1p(-ratio)

    def loss(x: float) -> float:
        return c + mu**2 / 2 + mu * abs(x)

    def positive(x: float, epsilon: float) -> float:
        return max(0.0, -math.expm1(epsilon - loss(x)))

    def power(x: float, order: float) -> float:
        return math.exp((order - 1) * loss(x))

    for epsilon in (0.0, c / 2, c + mu**2 / 2, c + mu, c + 3 * mu):
        cut = (epsilon - c - mu**2 / 2) / mu
        expected = mean_over_normal(positive, epsilon, [cut, -cut])
        assert published_delta(epsilon, ratio, mu) == pytest.approx(expected, rel=1e-8)
    for order in (1.01, 2.0, 9.5):
        moment = mean_over_normal(power, order, [])
        expected = math.log(moment) / (order - 1)
        assert published_renyi(order, ratio, mu) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("c", "mu", "last"), [(0.1, 0.3, 0.1), (0.02, 1.0, 0.5), (0.4, 0.1, 0.1)])
def test_the_last_noise_is_paid_for(c: float, mu: float, last: float) -> None:
    """The mean over the first loss of the second's exact δ stays below, by little where ν ≪ μ."""

    def second(epsilon: float) -> float:
        return float(
            ndtr(last / 2 - epsilon / last) - math.exp(epsilon) * ndtr(-last / 2 - epsilon / last)
        )

    def rest(x: float, epsilon: float) -> float:
        return second(epsilon - c - max(0.0, mu * x + mu**2 / 2))

    for epsilon in (0.0, c / 2, c, c + mu, c + 2 * mu):
        both = mean_over_normal(rest, epsilon, [-mu / 2])
        assert delta(epsilon, c, mu) < both <= delta(epsilon, c, mu, last) * (1 + 1e-9)
        assert delta(epsilon, c, mu, mu * LAST) < 1.02 * delta(epsilon, c, mu)


def cells(masses: tuple[Array, Array], epsilon: float) -> float:
    """Return δ(ε) of two distributions over cells: at most that of what the cells were made of."""
    one, other = masses
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


def minima(force: Array, more: Array, sigma: float) -> tuple[Array, Array]:
    """Return the masses of one-dimensional minima in cells, without and with one more record.

    Args:
        force: G at the cells' edges, without it: b = −G(θ̂), so masses are those of a normal.
        more: the record's derivative at the edges.
        sigma: of b.
    """
    return mass(force / sigma), mass((force + more) / sigma)


def mass(edges: Array) -> Array:
    """Return a standard normal's mass between rising edges, in the tail where it is small."""
    below, above = np.diff(ndtr(edges)), -np.diff(ndtr(-edges))
    return np.asarray(np.where(edges[1:] < 0, below, above))


def logistic(theta: Array, x: Array, y: Array, clip: float) -> Array:
    """Return the sum of the clipped likelihoods' derivatives, of the negative logarithm."""
    with np.errstate(divide="ignore"):
        slope = np.minimum(expit(-y * x * theta[:, None]), clip / np.abs(x))
    return np.asarray(-(slope * x * y).sum(1))


def test_no_record_of_a_clipped_likelihood_ever_costs_more() -> None:
    """4,000 comparisons in one dimension: random tables, clips, radii, ridges and noises."""
    random, worst = np.random.default_rng(0), 0.0
    for _ in range(250):
        radius, ratio, mu = np.exp(random.uniform([-1, -3, -2.5], [1.5, 3, 1]))
        clip = radius * random.uniform(0.05, 1.3)
        bound, curvature = largest_gradient(clip, radius), largest_curvature(clip, radius)
        ridge, sigma = curvature * ratio, bound / mu
        x = radius * random.uniform(-1, 1, (1, random.integers(1, 7)))
        x[0, 0] = radius * random.choice([-1, 1, 0.5])
        y = random.choice([-1.0, 1.0], x.shape)
        reach = (9 * sigma + x.size * bound) / ridge
        theta = np.linspace(-reach, reach, 4001)
        more = logistic(theta, x[:, :1], y[:, :1], clip)
        rest = ridge * theta + logistic(theta, x[:, 1:], y[:, 1:], clip)
        without, with_it = minima(rest, more, sigma)
        c = math.log1p(1 / ratio)
        for epsilon in EPSILONS:
            most = delta(epsilon, c, mu)
            added = cells((with_it, without), epsilon)
            removed = cells((without, with_it), epsilon)
            assert added <= most * (1 + 1e-9) + 1e-14
            assert removed <= delta(epsilon, 0.0, mu) * (1 + 1e-9) + 1e-14
            if most > 1e-12:
                worst = max(worst, added / most, removed / most)
    assert worst > 0.95


@pytest.mark.parametrize("mu", [0.1, 1.0])
@pytest.mark.parametrize("ratio", [0.2, 1.0, 5.0])
def test_one_sided_ramps_need_the_determinant_and_stay_within_it(ratio: float, mu: float) -> None:
    """A derivative that climbs from 0 to L as steeply as β allows, at any distance."""
    sigma, needed = 1 / mu, 0.0
    theta = np.linspace(-12 * sigma, 12 * sigma, 20001)
    for start in np.linspace(-4, 4, 41) * sigma:
        ramp = np.clip(ratio * (theta - start), 0, 1)
        without, with_it = minima(theta, ramp, sigma)
        for epsilon in (0.1 * mu, mu, 3 * mu, 5 * mu):
            added, removed = cells((with_it, without), epsilon), cells((without, with_it), epsilon)
            assert added <= delta(epsilon, math.log1p(ratio), mu) * (1 + 1e-9) + 1e-14
            assert removed <= delta(epsilon, 0.0, mu) * (1 + 1e-9) + 1e-14
            if added > 1e-12:
                needed = max(needed, added / delta(epsilon, 0.0, mu))
    if ratio > mu:  # without c the bound would be false, by far more than arithmetic explains
        assert needed > 1.05


def test_in_two_dimensions_the_loss_is_within_the_proofs() -> None:
    """Loss by determinants of whole Hessians, at minima found where they are, by their slope."""
    random = np.random.default_rng(1)
    radius, clip, ridge, sigma = 2.0, 0.6, 0.3, 1.5
    stretch = math.log1p(largest_curvature(clip, radius) / ridge)
    mu = clip / sigma
    for _ in range(200):
        x = random.normal(size=(random.integers(1, 6), 2))
        x *= np.minimum(1, radius / np.linalg.norm(x, axis=1, keepdims=True))
        x[0] *= radius / np.linalg.norm(x[0])
        y = random.choice([-1.0, 1.0], len(x))
        theta = random.normal(size=(50, 2)) * sigma / ridge  # every θ is the minimum for some b
        p = expit(-(theta @ (x * y[:, None]).T))
        most = clip / np.linalg.norm(x, axis=1)
        gradients = -(np.minimum(p, most) * y)[:, :, None] * x
        weights = np.where(p < most, p * (1 - p), 0.0)
        hessians = weights[:, :, None, None] * x[:, :, None] * x[:, None, :]
        both, rest = (
            (g.sum(1) + ridge * theta, h.sum(1) + ridge * np.eye(2))
            for g, h in ((gradients, hessians), (gradients[:, 1:], hessians[:, 1:]))
        )
        logs = [np.linalg.slogdet(h)[1] - (g**2).sum(1) / (2 * sigma**2) for g, h in (both, rest)]
        loss, u = logs[0] - logs[1], -y[0] * x[0] / radius
        with_it, without = -both[0] @ u / sigma, -rest[0] @ u / sigma
        assert (loss <= stretch + np.maximum(0, mu * with_it + mu**2 / 2) + 1e-9).all()
        assert (-loss <= np.maximum(0, -mu * without + mu**2 / 2) + 1e-9).all()


def test_in_two_dimensions_delta_by_quadrature() -> None:
    x, y = np.array([[2.0, 0.0], [0.5, 1.0], [-1.0, 0.4]]), np.array([-1.0, 1.0, 1.0])
    clip, ridge, sigma = 0.6, 0.5, 1.2
    side = np.linspace(-22, 22, 801)
    theta = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    p = expit(-(theta @ (x * y[:, None]).T))
    most = clip / np.linalg.norm(x, axis=1)
    slopes, weights = np.minimum(p, most) * y, np.where(p < most, p * (1 - p), 0.0)
    densities = []
    for records in (slice(0, 3), slice(1, 3)):
        force = ridge * theta - slopes[:, records] @ x[records]
        w, z = weights[:, records], x[records]
        a, b, d = (w @ (z[:, i] * z[:, j]) + ridge * (i == j) for i, j in ((0, 0), (0, 1), (1, 1)))
        normal = np.exp(-(force**2).sum(1) / (2 * sigma**2)) / (2 * math.pi * sigma**2)
        densities.append(normal * (a * d - b**2) * (side[1] - side[0]) ** 2)
    assert [one.sum() for one in densities] == pytest.approx([1, 1], abs=5e-3)
    c = math.log1p(largest_curvature(clip, 2.0) / ridge)
    for epsilon in (0.0, 0.1, 0.3, 0.6):
        added = cells((densities[0], densities[1]), epsilon)
        removed = cells((densities[1], densities[0]), epsilon)
        assert 0 < added <= delta(epsilon, c, clip / sigma) * 1.01
        assert 0 < removed <= delta(epsilon, 0.0, clip / sigma) * 1.01


@pytest.mark.parametrize(("clip", "radius"), [(0.5, 3.0), (0.5, 0.8), (2.0, 1.0), (1e9, 1.7)])
def test_constants_of_the_clipped_likelihood(clip: float, radius: float) -> None:
    r = np.linspace(0, radius, 1001)[1:, None]
    p = np.linspace(0, 1, 4001)[None]
    kept = np.where(p < np.minimum(1, clip / r), p * (1 - p) * r**2, 0.0)
    slopes = np.minimum(p, clip / r) * r
    assert largest_curvature(clip, radius) == pytest.approx(float(kept.max()), rel=1e-3)
    assert largest_curvature(clip, radius) >= float(kept.max())
    assert largest_gradient(clip, radius) == pytest.approx(float(slopes.max()), rel=1e-9)
    assert largest_curvature(None, radius) == radius**2 / 4


@given(stretches, distances, st.floats(0, 6), st.floats(1.001, 1.5))
def test_delta_falls_with_epsilon_and_grows_with_the_rest(
    c: float, mu: float, epsilon: float, factor: float
) -> None:
    here = delta(epsilon, c, mu)
    assert 0 <= here <= 1
    assert delta(epsilon * factor, c, mu) <= here * (1 + 1e-9)
    assert delta(epsilon, c * factor, mu) >= here * (1 - 1e-9)
    assert delta(epsilon, c, mu * factor) >= here * (1 - 1e-9)
    assert delta(epsilon, c, mu, mu / 10) >= here * (1 - 1e-9)
    if epsilon >= c:  # without a determinant: the Gaussian's
        assert here == pytest.approx(
            float(equal_covariance(torch.tensor([mu**2]).double(), epsilon - c)), rel=1e-6
        )


@given(st.floats(0, 0.95), distances, st.floats(0, 6), st.floats(1.01, 60))
def test_one_sign_never_costs_more_than_published(
    ratio: float, mu: float, epsilon: float, order: float
) -> None:
    c = math.log1p(ratio)
    assert delta(epsilon, c, mu) <= published_delta(epsilon, ratio, mu) * (1 + 1e-9)
    assert op.renyi(order, c, mu) <= published_renyi(order, ratio, mu) * (1 + 1e-9)


@given(st.floats(0.05, 8), st.floats(0.01, 50), st.floats(0.1, 2), st.floats(0.4, 500))
def test_epsilon_is_where_delta_is_met(
    curvature: float, ridge: float, share: float, noise: float
) -> None:
    accountant = ObjectivePerturbationAccountant(curvature, ridge, share)
    epsilon, c = (
        accountant.epsilon(noise, 1.0, 1, 1e-5),
        math.log1p(curvature / accountant.ridge_at(noise)),
    )
    assert delta(epsilon, c, 1 / noise, LAST / noise) <= 1e-5
    assert delta(epsilon * (1 - 1e-6), c, 1 / noise, LAST / noise) > 1e-5
    assert c <= share / noise * (1 + 1e-12)
    assert accountant.epsilon(1.01 * noise, 1.0, 1, 1e-5) < epsilon


def test_a_wide_ridge_leaves_the_gaussian_and_calibration_meets_its_target() -> None:
    noise = calibrate(
        ObjectivePerturbationAccountant(1.0, 1e9), epsilon=0.3, delta=1e-5, rate=1.0, steps=1
    )
    gaussian = calibrate(GaussianAccountant(), epsilon=0.3, delta=1e-5, rate=1.0, steps=1)
    assert noise == pytest.approx(gaussian, rel=0.006)
    fixed = ObjectivePerturbationAccountant(curvature=1.0, ridge=10.0)
    assert fixed.ridge_at(3.0) == 10.0
    with pytest.raises(ValueError, match=r"epsilon=0\.05 cannot be reached .* at least 0\.0953"):
        calibrate(fixed, epsilon=0.05, delta=1e-5, rate=1.0, steps=1)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: delta(-1.0, 0.1, 1.0), "epsilon"),
        (lambda: delta(1.0, -0.1, 1.0), "stretch"),
        (lambda: delta(1.0, 0.1, 0.0), "distance"),
        (lambda: delta(1.0, 0.1, 1.0, -1.0), "last"),
        (lambda: op.renyi(1.0, 0.1, 1.0), "order"),
        (lambda: published_delta(1.0, 1.0, 1.0), "ratio"),
        (lambda: published_renyi(2.0, -0.1, 1.0), "ratio"),
        (lambda: ObjectivePerturbationAccountant(0.0, 1.0), "curvature"),
        (lambda: ObjectivePerturbationAccountant(1.0, math.inf), "ridge"),
        (lambda: ObjectivePerturbationAccountant(1.0, 1.0, 0.0), "share"),
        (lambda: ObjectivePerturbationAccountant(1.0, 1.0).epsilon(1.0, 0.5, 1, 0.1), "rate"),
        (lambda: ObjectivePerturbationAccountant(1.0, 1.0).epsilon(1.0, 1.0, 2, 0.1), "steps"),
        (lambda: ObjectivePerturbationAccountant(1.0, 1.0).epsilon(0.0, 1.0, 1, 0.1), "noise"),
        (lambda: ObjectivePerturbationAccountant(1.0, 1.0).epsilon(1.0, 1.0, 1, 1.0), "delta"),
    ],
)
def test_bad_arguments(call: Callable[[], float], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        call()


@pytest.mark.parametrize(("c", "mu", "bought"), [(0.05, 0.25, 0.1), (0.2, 1.0, 0.6), (0.0, 0.2, 0)])
def test_with_bought_constants_it_costs_what_quadrature_says(
    c: float, mu: float, bought: float
) -> None:
    """E(1 − e^{ε − c − max(0, Z) − Y})₊ over Z and the constants' Y, each by Gauss and Hermite."""
    event = PerturbedObjective(noise_multiplier=1 / mu, stretch=c)
    constants = [SampledGaussian(noise_multiplier=1 / bought)] if bought else []
    found = worst_case.epsilon([event, *constants], 1e-5)
    assert found is not None
    z = np.linspace(-9, 9, 40_001)
    weights = np.exp(-(z**2) / 2)
    weights /= weights.sum()
    loss = c + np.maximum(0, mu * z + mu**2 / 2)
    if bought:
        loss = (loss[::40, None] + (bought * z + bought**2 / 2)[None, ::40]).ravel()
        coarse = weights[::40] / weights[::40].sum()
        weights = np.outer(coarse, coarse).ravel()
    delta = float(np.dot(weights, np.maximum(0, -np.expm1(found.epsilon - loss))))
    assert 0.4e-5 < delta <= 1.002e-5
    alone = worst_case.epsilon([event], 1e-5)
    assert alone is not None
    assert (alone.epsilon < found.epsilon) == bool(bought)


def test_several_minima_share_delta() -> None:
    one = PerturbedObjective(noise_multiplier=4.0, stretch=0.05, last=0.0025)
    half = worst_case.epsilon([one], 0.5e-5)
    twice = worst_case.epsilon([one, one], 1e-5)
    assert half is not None
    assert twice is not None
    assert twice.epsilon == pytest.approx(2 * half.epsilon, rel=1e-12)
    steps = SampledGaussian(noise_multiplier=2.0, rate=0.1, steps=10)
    both, alone = worst_case.epsilon([one, steps], 1e-5), worst_case.epsilon([steps], 0.5e-5)
    assert both is not None
    assert alone is not None
    assert both.epsilon == pytest.approx(half.epsilon + alone.epsilon, rel=1e-9)
    assert worst_case.epsilon([replace(one, rounding=1e-3)], 1e-5) is None

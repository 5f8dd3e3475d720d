"""Objective perturbation's δ against exact densities of minima, quadrature and mpmath.

In one dimension, in units of σ and along the record's z, the record moves the slope that belongs to
a minimum from t to T(t) = t + μ r(t), r the residual there: falling, with T′ at least
1/(1 + R r(1 − r)) by the determinant lemma, and 1 where r is clipped. t is standard normal with the
record, T(t) without it. In any dimension every pair of tables is a mixture over the other
coordinates of such pairs, so tests in one dimension with r free are complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import expit, ndtr
from scipy.stats import norm

from bdpvi.privacy import perturbed_objective as po
from bdpvi.privacy.perturbed_loss import MinimumLoss
from bdpvi.privacy.perturbed_objective import PerturbedObjective, calibrate, delta, profile

Array = npt.NDArray[np.float64]
DELTA = 1e-5


def gaussian(mu: float, epsilon: float) -> float:
    """Return G(μ, ε) to 30 digits."""
    with mpmath.workdps(40):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2))


def gaussian_distance(epsilon: float, at: float = DELTA) -> float:
    """Return the μ with G(μ, ε) = δ."""
    return float(brentq(lambda mu: gaussian(mu, epsilon) - at, 1e-4, 20.0, xtol=1e-14))


def event(mu: float, curvature: float, residual: float = 1.0, **more: Any) -> PerturbedObjective:
    return PerturbedObjective(
        noise_multiplier=1 / mu, curvature=curvature, residual=residual, **more
    )


def largest(epsilon: float, one: PerturbedObjective) -> float:
    """Return the bound by the largest loss alone."""
    return float(one.loss.of_largest(np.array([epsilon]))[0])


def largest_loss(x: Array, mu: float, curvature: float, k: float) -> Array:
    """Return the largest log ratio over the residual where a = μx, by trying residuals."""
    r = np.linspace(0, k, 501)[:, None]
    return np.asarray((r * mu * x + (r * mu) ** 2 / 2 + np.log1p(r * (1 - r) * curvature)).max(0))


def mass(edges: Array) -> Array:
    """Return a standard normal's mass between rising edges, in the tail where it is small."""
    below, above = np.diff(ndtr(edges)), -np.diff(ndtr(-edges))
    return np.asarray(np.where(edges[1:] < 0, below, above))


def cells(one: Array, other: Array, epsilon: float) -> float:
    """Return δ(ε) of two distributions over cells: at most that of what the cells were made of."""
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


def both(without: Array, with_it: Array, epsilon: float) -> tuple[float, float]:
    """Return δ(ε) of adding and of removing, from the slopes at the cells' edges, over σ."""
    p, q = mass(with_it), mass(without)
    return cells(p, q, epsilon), cells(q, p, epsilon)


def falling(t: Array, mu: float, curvature: float, start: npt.ArrayLike, pace: Array) -> Array:
    """Return residuals, (rows, len(t)), that fall by a share of the fastest there is.

    Args:
        t, mu, curvature: see the module.
        start: residuals at t[0], (rows,) or one; it is at most where they are clipped.
        pace: the shares, (rows, len(t)).
    """

    def fastest(r: Array) -> Array:
        bend = curvature * r * (1 - r)
        return np.asarray((t[1] - t[0]) * bend / (1 + bend) / mu)

    r = [np.broadcast_to(np.asarray(start, dtype=float), len(pace))]
    for share in pace.T[1:]:
        step = fastest(r[-1])
        step = np.minimum(step, fastest(r[-1] - share * step))  # at either end of the cell
        r.append(r[-1] - share * step)
    return np.stack(r, 1)


def worst(t: Array, mu: float, residuals: Array, epsilon: float) -> float:
    """Return the largest δ(ε) over residuals (rows, len(t)) and both directions."""
    return max(max(both(t + mu * r, t, epsilon)) for r in residuals)


@pytest.mark.parametrize("k", [1.0, 0.75, 0.5, 0.3])
@pytest.mark.parametrize(
    ("mu", "curvature"),
    [(0.3, 1.0), (0.3, 0.25), (0.02, 0.05), (1.5, 0.5), (0.05, 3.0), (0.8, 0.0)],
)
def test_the_profile_is_that_of_the_largest_loss(mu: float, curvature: float, k: float) -> None:
    """Equal from ``certain`` on, where no slack is left; below, a tangent is above the log."""
    one = event(mu, curvature, k)
    x = np.linspace(-9, 12, 21_001)
    loss, density = largest_loss(x, mu, curvature, k), norm.pdf(x) * (x[1] - x[0])
    for epsilon in (0.0, *(one.loss.top * np.array([0.1, 0.5, 0.9, 1.0, 1.2, 2.0])), 3 * mu):
        brute = float((density * np.maximum(-np.expm1(np.minimum(epsilon - loss, 0)), 0)).sum())
        here = largest(epsilon, one)
        most = 1 + (1e-4 if epsilon >= one.loss.top else 0.2 * max(1.0, curvature))
        assert brute * (1 - 1e-5) <= here <= brute * most + 1e-9


@pytest.mark.parametrize("k", [1.0, 0.75, 0.5])
@pytest.mark.parametrize("epsilon", [0.05, 0.2, 1.0, 3.0])
def test_from_the_floor_on_it_is_the_gaussians(epsilon: float, k: float) -> None:
    curvature = epsilon / k**2  # λ = k² max ω‖z‖²/ε
    c = math.log1p(k * (1 - k) * curvature)
    for mu in np.array([0.5, 1.0]) * gaussian_distance(epsilon) / k:
        one = event(mu, curvature, k)
        assert one.loss.top <= epsilon
        for beyond in (1.0, 1.1, 1.5):
            expected = gaussian(k * mu, beyond * epsilon - c)
            assert largest(beyond * epsilon, one) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("k", [1.0, 0.75])
def test_below_the_floor_by_mpmath(k: float) -> None:
    """The parabola's closed form, by the definition of Ψ in forty digits."""
    mu, curvature = 0.4, 1.3
    m, h = mu**2 / 2, k * (1 - k) * curvature
    c, slope = math.log1p(h), curvature / (1 + h)
    least, q = c - h / (1 + h), slope - m

    def loss(a: float) -> float:
        z = a + m
        if z >= (2 * k - 1) * q:
            return c + k * a + k**2 * m
        return least + ((z + q) ** 2 / (4 * q) if z > -q else 0.0)

    one = event(mu, curvature, k)
    for epsilon in (0.0, least / 2, 0.3 * one.loss.top, 0.99 * one.loss.top):
        inverse = 2 * math.sqrt(q * max(epsilon - least, 0.0)) - q - m
        cuts = [inverse / mu, ((2 * k - 1) * q - m) / mu, (-q - m) / mu]
        cuts = sorted([-12.0, 12.0, *(x for x in cuts if -12 < x < 12)])
        with mpmath.workdps(30):
            expected = mpmath.quad(
                lambda x, e=epsilon: (
                    max(0, 1 - mpmath.exp(min(0, e - loss(mu * float(x))))) * mpmath.npdf(x)
                ),
                cuts,
            )
        assert largest(epsilon, one) == pytest.approx(float(expected), rel=1e-8)


def test_no_pair_in_one_dimension_costs_more() -> None:
    """4,000 comparisons: k, R and μ at random, residuals that fall now and then at full pace."""
    random, closest = np.random.default_rng(0), 0.0
    t = np.linspace(-10, 10, 2001)
    for _ in range(40):
        k = float(random.choice([1.0, 1.0, 0.75, 0.5]))
        epsilon = float(np.exp(random.uniform(-3, 1.2)))
        curvature = epsilon * float(np.exp(random.uniform(-1.5, 1.5)))
        mu = gaussian_distance(epsilon) * float(np.exp(random.uniform(-0.5, 1)))
        ends = np.sort(random.normal(0, 3, (10, 6)))
        pace = np.stack([np.searchsorted(row, t) % 2 for row in ends]).astype(float)
        start = np.minimum(1 - np.exp(random.uniform(-25, -0.5, 10)), k)
        residuals = falling(t, mu, curvature, start, pace)
        for e in epsilon * np.array([0.0, 0.3, 0.7, 1.0, 1.5]):
            most = profile(e, event(mu, curvature, k))
            found = worst(t, mu, residuals, e)
            assert found <= most * (1 + 1e-9) + 1e-14
            closest = max(closest, found / most) if most > 1e-12 else closest
    assert closest > 0.99


def best_response(mu: float, curvature: float, k: float, epsilon: float, cells: int = 600) -> float:
    """Return δ(ε) of the residual that costs most of all that stay or fall at full pace in cells.

    By dynamic programming from the last cell to the first: what a residual is worth that has fallen
    for so many cells. Nothing is bounded: such a residual is possible, so no bound lies below.
    """
    t = np.linspace(-1, 8, cells + 1)
    r = falling(t, mu, curvature, [k], np.ones((1, cells + 1)))[0]

    def beyond(at: float, r: Array) -> Array:
        return np.asarray(ndtr(-at) - math.exp(epsilon) * ndtr(-at - mu * r))

    worth = np.maximum(beyond(t[-1], r), 0)
    for at, end in zip(t[-2::-1], t[:0:-1], strict=True):
        stays = np.maximum(beyond(at, r) - beyond(end, r), 0) + worth
        falls = np.maximum(beyond(at, r[:-1]) - beyond(end, r[1:]), 0) + worth[1:]
        worth = np.append(np.maximum(stays[:-1], falls), stays[-1])
    return float(worth[0])


@pytest.mark.parametrize("k", [0.9, 0.75, 0.5, 0.3])
@pytest.mark.parametrize("epsilon", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("floors", [0.5, 1.0, 2.0])
def test_the_costliest_clipped_residual_is_within_the_bound(
    epsilon: float, k: float, floors: float
) -> None:
    """The noise is right to 1 % at the floor's λ up to ε = 0.2, to 0.2 % at twice it."""
    curvature = epsilon / floors
    start = event(gaussian_distance(epsilon) / k, curvature, k)
    one = calibrate(start, epsilon=epsilon, delta=DELTA)
    found = best_response(1 / one.noise_multiplier, curvature, k, epsilon)
    least = {0.5: 0.2, 1.0: 0.75, 2.0: 0.95}[floors]
    assert least * DELTA < found <= DELTA
    if floors >= 1 and epsilon <= 0.2:
        louder = 1 / one.noise_multiplier * (1.01 if floors == 1 else 1.002)
        assert (
            best_response(louder, curvature, k, epsilon) > (0.99 if floors == 1 else 0.97) * DELTA
        )


@pytest.mark.parametrize("k", [0.75, 0.5])
def test_the_integral_over_residuals(k: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By quadrature and by trying every x; what cells round up goes as they get finer."""
    mu, curvature, epsilon = 0.5, 0.25, 0.3
    one = MinimumLoss(mu, curvature, k)

    def bound() -> float:
        return float(one.of_falling(np.array([epsilon]))[0]) - gaussian(k * mu, epsilon)

    def excess(r: float, exact: bool) -> float:
        """Return what is integrated; exactly with e^{rμx}, which the bound takes for 1 + rμx."""
        worst = max(r, 0.5)
        j = curvature * worst * (1 - worst)
        alpha = (epsilon - (r * mu) ** 2 / 2) / (r * mu)
        x = np.linspace(0, math.log1p(j) / (r * mu), 4001)
        bent = (np.expm1(r * mu * x) if exact else r * mu * x) / j
        return mu * max(0.0, float((norm.pdf(alpha - x) * (1 - bent) - norm.pdf(alpha)).max()))

    within, taken = (
        quad(excess, 1e-3, k, args=(exact,), limit=200, epsrel=1e-8)[0] for exact in (True, False)
    )
    assert within < taken < 1.1 * within
    assert taken < bound() < 1.15 * taken
    monkeypatch.setattr("bdpvi.privacy.perturbed_loss._CELLS", 200_000)
    assert taken * (1 - 1e-6) < bound() < 1.004 * taken


def pinned(epsilon: float, mu: float, floor: float) -> tuple[Array, Array]:
    """Return slopes at cells' edges without and with one record of x = 1, y = 1.

    The others are 10⁵ records that pull the other way, so weak that they hardly bend anything.
    """
    ridge, sigma, x = floor / epsilon, 1 / mu, 1e-5
    pull = 16 + 9 * sigma / ridge
    count = 2 * pull * ridge / x
    w = np.linspace(-pull - 12 * sigma / ridge, -pull + 12 * sigma / ridge, 60_001)
    rest = ridge * w + count * x * expit(x * w)
    return rest / sigma, (rest - expit(-w)) / sigma


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 1.0, 3.0])
def test_a_table_attains_it(epsilon: float) -> None:
    mu = gaussian_distance(epsilon)
    assert profile(epsilon, event(mu, epsilon)) == pytest.approx(DELTA, rel=1e-9)
    added, removed = both(*pinned(epsilon, mu, 1.0), epsilon)
    assert max(added, removed) == pytest.approx(DELTA, rel=2e-5)
    assert max(added, removed) <= DELTA * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 1.0])
def test_a_quarter_of_the_floor_is_not_enough(epsilon: float) -> None:
    """The same noise with λ a quarter of max ω‖z‖²/ε: a record costs ten times δ."""
    mu, t = gaussian_distance(epsilon), np.linspace(-8, 10, 3601)
    starts, places = 1 - np.exp(np.linspace(-16, -1, 31)), np.linspace(-1, 4, 11)
    start, place = (a.ravel() for a in np.meshgrid(starts, places))
    residuals = falling(t, mu, 4 * epsilon, start, t > place[:, None])
    found = worst(t, mu, residuals, epsilon)
    assert 10 * DELTA < found <= profile(epsilon, event(mu, 4 * epsilon))


def test_a_residual_at_the_released_weights_guarantees_nothing() -> None:
    """One record of ‖z‖ = 1.5C alone: at w = 0 its residual is ½, and it costs as if it were 1."""
    epsilon, clip = 0.05, 1.0
    mu, z = gaussian_distance(epsilon), 1.5
    weight = clip / z
    ridge, sigma = weight * z**2 / epsilon, clip / mu
    w = np.linspace(-12 * sigma / ridge, 12 * sigma / ridge, 200_001)
    without = ridge * w / sigma
    removed = both(without, without - weight * z * expit(-z * w) / sigma, epsilon)[1]
    assert removed == pytest.approx(0.997 * DELTA, rel=1e-3)
    assert gaussian(mu / 2, epsilon) < 1e-9
    assert removed <= profile(epsilon, event(mu, epsilon))


@pytest.mark.parametrize("k", [1.0, 0.75])
def test_in_two_dimensions_by_quadrature(k: float) -> None:
    """Densities by whole Hessians, where forty records hold the first one's residual high."""
    z = np.array([[1.2, -0.5], [0.5, 1.0], [-1.0, 0.4], [0.24, -0.1]])
    sign, ridge, sigma = np.array([-1.0, 1.0, 1.0, 1.0]), 1.0, 2.0
    times = np.array([1, 1, 1, 40])
    side = np.linspace(-17, 21, 1201)
    w = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    p = expit(-(w @ (z * sign[:, None]).T))
    slopes, bends = times * np.minimum(p, k) * sign, times * np.where(p < k, p * (1 - p), 0.0)
    densities = []
    for records in (slice(0, 4), slice(1, 4)):
        force = ridge * w - slopes[:, records] @ z[records]
        v, x = bends[:, records], z[records]
        a, b, d = (v @ (x[:, i] * x[:, j]) + ridge * (i == j) for i, j in ((0, 0), (0, 1), (1, 1)))
        normal = np.exp(-(force**2).sum(1) / (2 * sigma**2)) / (2 * math.pi * sigma**2)
        densities.append(normal * (a * d - b**2) * (side[1] - side[0]) ** 2)
    assert [density.sum() for density in densities] == pytest.approx([1, 1], abs=2e-3)
    length = float(np.linalg.norm(z[0]))
    one = event(length / sigma, length**2 / ridge, k)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        most = profile(epsilon, one) * 1.001
        one_way, other_way = densities
        found = (cells(one_way, other_way, epsilon), cells(other_way, one_way, epsilon))
        assert max(found) <= most
        assert max(found) > 0.2 * most or epsilon == 2


def with_gaussian(one: PerturbedObjective, variance: float, epsilon: float) -> float:
    """Return E G(√variance, ε − Ψ) by quadrature, Ψ's law from its δ: −d/de of e^{−e}δ′(e)."""
    mu, k = 1 / one.noise_multiplier, one.residual
    m, h = mu**2 / 2, k * (1 - k) * one.curvature
    c, q = math.log1p(h), max(one.curvature / (1 + h) - m, 0.0)
    least = c - h / (1 + h)

    def loss(z: float) -> float:
        if z >= (2 * k - 1) * q:
            return c + k * z - k * (1 - k) * m
        return least + ((z + q) ** 2 / (4 * q) if z > -q else 0.0)

    def inner(x: float) -> float:
        root = math.sqrt(variance)
        a = root / 2 - (epsilon - loss(mu * x + m)) / root
        gap = epsilon - loss(mu * x + m)
        return float((ndtr(a) - math.exp(gap) * ndtr(a - root)) * norm.pdf(x))

    cuts = sorted({-10.0, 13.0, *np.arange(-9.0, 13.0), ((2 * k - 1) * q - m) / mu, (-q - m) / mu})
    cuts = [x for x in cuts if -10 <= x <= 13]
    parts = (quad(inner, a, b, epsabs=1e-16, epsrel=1e-10, limit=200)[0] for a, b in pairwise(cuts))
    return float(sum(parts))


@pytest.mark.parametrize("k", [1.0, 0.75, 0.5])
@pytest.mark.parametrize("epsilon", [0.05, 1.0])
def test_with_constants_before_it(epsilon: float, k: float) -> None:
    for share in (0.2, 0.02, 1e-4):
        mu = gaussian_distance(epsilon) * math.sqrt(1 - share)
        one, variance = event(mu, epsilon / 2, k), share * gaussian_distance(epsilon) ** 2
        for at in (0.0, 0.5 * epsilon, epsilon, 1.2 * epsilon):
            found = delta([one], at, variance)
            if k == 1:
                exact = with_gaussian(one, variance, at)
                assert exact * (1 - 1e-9) <= found <= exact * 1.0005 + 1e-15
            else:  # the mean, over the constants' loss, of what this one adds
                y = np.linspace(-8, 9, 341)
                weight = norm.pdf(y) * (y[1] - y[0])
                rest = at - variance / 2 - math.sqrt(variance) * y
                mean = float(weight @ below(rest, one))
                assert mean * 0.98 <= found <= mean * 1.004 + 1e-13


def test_what_the_constants_and_the_search_cost() -> None:
    """A fifth of μ² for constants costs 1 % more noise at the floor; ν = μ/100 costs nothing."""
    for epsilon, most in ((0.05, 1.014), (1.0, 1.011)):
        whole = gaussian_distance(epsilon)
        one = event(whole * math.sqrt(0.8), epsilon)
        found = calibrate(one, epsilon=epsilon, delta=DELTA, variance=0.2 * whole**2)
        assert most - 0.003 < found.noise_multiplier / one.noise_multiplier < most
        hidden = event(whole, epsilon, hiding=0.01 * whole)
        exact = with_gaussian(hidden, hidden.variance, epsilon)
        assert exact == pytest.approx(gaussian(whole * math.sqrt(1.0001), epsilon), rel=2e-6)
        assert exact <= delta([hidden], epsilon) <= exact * 1.0005
        assert 1.0005 * DELTA < exact < 1.001 * DELTA


@pytest.mark.parametrize("curvature", [0.1, 0.5])
def test_several_draws_by_quadrature(curvature: float) -> None:
    """Two draws and one of another kind: the second's and third's δ at what the first leaves."""
    mu, k = 0.25, 0.75
    one, other = event(mu, curvature, draws=2), event(0.4, 0.2, k)
    alone = event(mu, curvature)
    m, q = mu**2 / 2, curvature - mu**2 / 2
    x = np.linspace(-9, 12, 1401)
    z = mu * x + m
    loss = np.where(z >= q, z, np.where(z > -q, (z + q) ** 2 / (4 * q), 0.0))
    weight = norm.pdf(x) * (x[1] - x[0])
    loss, weight = loss[weight > 1e-13], weight[weight > 1e-13]
    for epsilon in (0.1, 0.8):
        twice = float(weight @ below(epsilon - loss, alone))
        assert twice * (1 - 1e-5) <= delta([one], epsilon) <= twice * 1.001
        thrice = [delta([alone] * 3, epsilon), delta([event(mu, curvature, draws=3)], epsilon)]
        assert thrice[1] == pytest.approx(thrice[0], rel=5e-4)
        assert thrice[0] > 1.02 * twice
        mixed = float(weight @ below(epsilon - loss, other))
        # Of one minimum's two bounds the lattice takes the convex minorant: a little less.
        assert mixed * 0.99 <= delta([alone, other], epsilon) <= mixed * 1.002


def below(epsilon: Array, one: PerturbedObjective) -> Array:
    """Return δ at ε of any sign; below 0 no loss is left out."""
    negative = np.minimum(epsilon, 0.0)
    positive = one.loss.delta(np.maximum(epsilon, 0.0))
    return np.asarray(-np.expm1(negative) + np.exp(negative) * positive)


def test_releases_in_one_dimension_together_cost_no_more() -> None:
    """Exact pairs, twice and with a Gaussian mechanism: sums of losses of all cells."""
    random = np.random.default_rng(2)
    for k in (1.0, 0.75):
        mu, curvature, t = 0.3, 0.6, np.linspace(-7, 8, 601)
        ends = np.sort(random.normal(0, 2, (6, 6)))
        pace = np.stack([np.searchsorted(row, t) % 2 for row in ends]).astype(float)
        start = np.minimum(1 - np.exp(random.uniform(-9, -0.5, 6)), k)
        residuals = falling(t, mu, curvature, start, pace)
        shift = np.linspace(-7, 8, 801)
        for r, s in zip(residuals, residuals[::-1], strict=True):
            (p, q), (u, v) = ((mass(t), mass(t + mu * one)) for one in (r, s))
            g, b = mass(shift), mass(shift + 0.2)
            pairs = [
                (event(mu, curvature, k, draws=2), 0.0, np.outer(p, u), np.outer(q, v)),
                (event(mu, curvature, k), 0.04, np.outer(p, g), np.outer(q, b)),
                (event(mu, curvature, k), 0.04, np.outer(q, b), np.outer(p, g)),
            ]
            for one, variance, with_it, without in pairs:
                for epsilon in (0.2, 0.7, 1.2):
                    found = cells(with_it, without, epsilon)
                    assert found <= delta([one], epsilon, variance) * (1 + 1e-9) + 1e-14


@pytest.mark.parametrize("draws", [1, 2, 16])
def test_calibration_meets_its_target(draws: int) -> None:
    start = event(1.0, 0.2 / draws, draws=draws, hiding=0.01)
    found = calibrate(start, epsilon=0.2, delta=DELTA, variance=1e-4)
    assert found.hiding * found.noise_multiplier == pytest.approx(0.01)
    assert 0.99998 * DELTA < delta([found], 0.2, 1e-4) <= DELTA
    assert 0.2 * (1 - 1e-5) < po.epsilon([found], DELTA, 1e-4) <= 0.2 * (1 + 1e-10)
    ideal = math.sqrt(draws / (gaussian_distance(0.2) ** 2 - 1e-4))
    assert 1 <= found.noise_multiplier / ideal < (1.02 if draws < 3 else 1.25)


def test_noise_beside_the_published_bound() -> None:
    """57.8, 16.3, 3.73 times C, where Redberg, Koskela and Wang's bound takes 85.0, 23.8, 5.39."""
    for epsilon, published in ((0.05, 85.0), (0.2, 23.8), (1.0, 5.39)):
        found = calibrate(event(1.0, epsilon), epsilon=epsilon, delta=DELTA)
        assert found.noise_multiplier * gaussian_distance(epsilon) == pytest.approx(1, rel=1e-6)
        assert 1.44 < published / found.noise_multiplier < 1.48


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: event(-1.0, 1.0), "noise_multiplier"),
        (lambda: event(1.0, -1.0), "curvature"),
        (lambda: event(1.0, 1.0, 1.5), "residual"),
        (lambda: event(1.0, 1.0, draws=0), "draws"),
        (lambda: event(1.0, 1.0, hiding=math.nan), "hiding"),
        (lambda: event(1.0, 1.0, rounding=-1.0), "rounding"),
        (lambda: delta([event(1.0, 1.0)], -1.0), "epsilon"),
        (lambda: delta([event(1.0, 1.0)], 1.0, -1.0), "variance"),
        (lambda: po.epsilon([event(1.0, 1.0)], 1.0), "delta"),
        (lambda: calibrate(event(1.0, 9.0), epsilon=0.1, delta=DELTA), "raise the ridge"),
    ],
)
def test_bad_arguments(call: Callable[[], object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        call()


def test_extremes_have_an_answer() -> None:
    assert profile(1.0, event(1.0, 1e9)) == pytest.approx(1.0)
    assert delta([event(1.0, 1e9)], 1.0, 0.01) == pytest.approx(1.0)
    assert delta([event(1e-7, 1e-7)], 1e-7, 1e-16) < 0.5
    assert 0 < po.epsilon([event(30.0, 1e3)], DELTA, 0.01) < 1300
    assert po.epsilon([event(60.0, 1.0)], DELTA) == math.inf


@pytest.mark.parametrize("residual", [0.5, 0.6, 1.0])
def test_what_no_noise_takes_away_is_the_loss_at_the_middle(residual: float) -> None:
    for curvature in (0.3, 1.0, 4.0):
        one = event(1e-7, curvature, residual)
        middle = one.loss.at_zero
        assert largest(middle * 1.001, one) < 1e-12
        assert largest(middle * 0.999, one) > 1e-5

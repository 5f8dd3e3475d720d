"""The factor of a minimum: its equation by quadrature and simulation, and on real minima."""

import math
import re

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm, t
from torch import Tensor

import bdpvi
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.noise.keys import Key
from bdpvi.regression.calibration_slope import (
    LOGS,
    Group,
    calibration_of,
    changed,
    equations,
    groups_of,
)
from bdpvi.regression.few_columns import variance_of
from bdpvi.regression.objective_plan import Facts, ObjectivePlan, plan
from bdpvi.regression.perturbed_objective import perturbed_minima


def settings(
    columns: int = 20, rows: float | None = 1_000, epsilon: float = 1.0, **facts: object
) -> ObjectivePlan:
    known = Facts(columns=columns, rows=rows, **facts)  # type: ignore[arg-type]
    return plan(known, epsilon=epsilon)


def table(rows: int, columns: int, spread: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return independent features, targets and the truth; logits have deviation ``spread``."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(columns, generator=generator, dtype=torch.float64)
    truth *= spread / truth.norm()
    x = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    chance = torch.rand(rows, generator=generator, dtype=torch.float64)
    return x, (chance < torch.sigmoid(x @ truth)).double(), truth


def integrals(
    one: ObjectivePlan, j: float, spread: float, c: float, i: float
) -> tuple[float, float, float, float, float]:
    """Return means of curvature, squared residual, logit times residual, residual and chance."""
    k = one.actual_event.residual

    def of(value: float, u: float, part: int) -> float:
        p, t = 1 / (1 + math.exp(-j - u)), 1 / (1 + math.exp(-i - c * u))
        if part == 4:
            return t * norm.pdf(value)
        total = 0.0
        for chance, r in ((t, 1 - p), (1 - t, -p)):
            cut = math.copysign(min(abs(r), k), r)
            total += chance * (p * (1 - p) * (abs(r) < k), cut**2, u * cut, cut)[part]
        return total * norm.pdf(value)

    breaks = (
        [(z - j) / spread for z in (math.log(k / (1 - k)), math.log((1 - k) / k))] if k < 1 else []
    )
    found = [
        quad(lambda z, n=n: of(z, spread * z, n), -6, 6, points=breaks or None, limit=200)[0]
        for n in range(5)
    ]
    return found[0], found[1], found[2], found[3], found[4]


@pytest.mark.parametrize(("epsilon", "rows"), [(1.0, 10_000), (0.2, 1_000)])
@pytest.mark.parametrize(("c", "i"), [(0.6, 0.2), (1.0, -1.0), (1.7, 0.5)])
def test_equations_are_those_of_quadrature(epsilon: float, rows: float, c: float, i: float) -> None:
    one = settings(rows=rows, epsilon=epsilon, centre=-0.3)
    w = torch.linspace(-0.5, 0.6, 21, dtype=torch.float64)
    size, j = float((w[:-1] ** 2).sum()), float(w[-1])
    v = 1 - 2 * (2 * norm.pdf(2) - 3 * norm.sf(2))  # of a normal number that is cut at ±2
    assert variance_of(one) == pytest.approx(v, rel=1e-3)
    ratio = one.clip / math.sqrt(24)
    omega = min(1, ratio, one.bend * ratio**2)
    curve, square, pull, score, chance = integrals(one, j, math.sqrt(v * size), c, i)
    quantile = (np.arange(32) + 0.5) / 32
    axes = -np.log(1 - quantile) / np.mean(-np.log(1 - quantile))
    slope = one.sigma**2 + rows * omega**2 * v * square * axes
    whole = rows * omega * v * curve * axes + one.ridge
    expected = one.ridge * size - 20 * np.mean(slope / whole) - rows * omega * pull
    noise = slope / whole**2
    signal = max(0, size - 20 * noise.mean())
    of_noise = 20 * np.mean(2 * noise**2) + 4 * noise.mean() * signal
    spread = one.ridge * math.sqrt(of_noise + (0.07 * size) ** 2)
    right = torch.tensor([i, i])
    r, s, rate = equations(one, j, groups_of(one, w), torch.tensor([c, c]), right)
    assert float(r[1]) * spread == pytest.approx(expected, abs=3e-3 * one.ridge * size)
    held = one.ridge * (j + 0.3) / 4
    own = math.sqrt(one.sigma**2 / 4 + rows * omega**2 * square + (0.15 * held) ** 2)
    assert float(s[0]) == pytest.approx((held - rows * omega * score) / own, rel=4e-3)
    assert float(rate[0]) == pytest.approx(chance, rel=1e-3)
    rough = equations(one, j, groups_of(one, w), torch.tensor([c]), right[:1], every=5)
    near = [float(r[0]), float(s[0]), chance]
    assert [float(each) for each in rough] == pytest.approx(near, rel=0.01, abs=0.02)


def test_trace_and_deviation_are_those_of_simulated_noise() -> None:
    """Stein's identity: noise · w has the mean of the sum, where w = a + noise/(h e + λ)."""
    one = settings()
    axes, v, size, count = groups_of(one, torch.full((21,), 0.4).double())[0].axes, 0.9, 9.0, 32
    group, right = Group(count, v, size, axes), torch.ones(1)
    curve, square, pull, _, _ = integrals(one, 0.0, math.sqrt(v * size), 1.0, 0.0)
    ratio = one.clip / math.sqrt(24)
    omega = min(1, ratio, one.bend * ratio**2)
    slope = torch.sqrt(one.sigma**2 + 1_000 * omega**2 * v * square * axes)
    whole = 1_000 * omega * v * curve * axes + one.ridge
    signal = math.sqrt((size - float((slope / whole).square().sum())) / count)
    generator = torch.Generator().manual_seed(0)
    noise = slope * torch.randn(100_000, count, generator=generator, dtype=torch.float64)
    w = signal + noise / whole
    trace, lengths = float((noise * w).sum(1).mean()), one.ridge * (w**2).sum(1)
    assert float(lengths.mean()) == pytest.approx(one.ridge * size, rel=5e-3)
    spread = math.hypot(float(lengths.std()), 0.07 * one.ridge * size)
    r, _, _ = equations(one, 0.0, [group], right, 0 * right)
    expected = one.ridge * size - trace - 1_000 * omega * pull
    assert float(r) * spread == pytest.approx(expected, abs=8e-3 * abs(trace))


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, 3.0])
def test_calibration_is_that_of_a_brute_force_likelihood(epsilon: float) -> None:
    one = settings(epsilon=epsilon, centre=-0.5)
    logs, values = np.linspace(-2, 1.6, 145), np.linspace(-4, 4, 201)
    cs, rights = (torch.tensor(each) for each in np.meshgrid(np.exp(logs), values))
    half = np.where(logs > 0, 3 * norm.pdf(logs, scale=0.8), norm.pdf(logs, scale=0.4))
    prior = 0.1 * half / half.sum()
    prior[np.abs(logs).argmin()] += 0.9
    for length in (0.2, 0.5):
        w = length * torch.sin(torch.arange(21).double())
        groups = groups_of(one, w)
        r, s, rate = (each.numpy() for each in equations(one, float(w[-1]), groups, cs, rights, 5))
        law = t.pdf(values + 0.5, 2, scale=0.35)[:, None]
        likely = np.exp(-(r**2 + s**2) / 2) * prior * law
        likely /= likely.sum()
        factor, more = calibration_of(one, w)
        assert factor == pytest.approx(math.exp((likely.sum(0) * logs).sum()), rel=0.02)
        u = factor * math.sqrt(variance_of(one) * float((w[:-1] ** 2).sum()))
        found = float(w[-1]) + more
        mean = quad(lambda z, u=u, i=found: norm.pdf(z) / (1 + math.exp(-i - u * z)), -8, 8)[0]
        assert mean == pytest.approx((likely * rate).sum(), abs=3e-3)
    assert float(LOGS[40]) == pytest.approx(0, abs=1e-12)


def test_a_rare_class_has_its_intercept_though_the_ridge_holds_it() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2_000, 10, generator=generator, dtype=torch.float64)
    y = (torch.rand(2_000, generator=generator, dtype=torch.float64) < 0.03).double()
    one = settings(columns=10, rows=2_000, epsilon=0.1)
    rates = []
    for seed in range(5):
        minimum = perturbed_minima(one, x, y, Key.of_seed(seed))[0]
        w = changed(one, minimum, *calibration_of(one, minimum))
        of = [torch.sigmoid(x.clamp(-2, 2) @ each[:-1] + each[-1]).mean() for each in (minimum, w)]
        rates.append([float(each) for each in of])
    before, after = np.mean(rates, 0)
    assert before > 1.4 * after
    assert after < 0.1


def test_many_rows_need_no_change_and_without_an_intercept_there_is_none() -> None:
    x, y, _ = table(100_000, 5, 1.0)
    one = settings(columns=5, rows=100_000)
    minimum = perturbed_minima(one, x, y, Key.of_seed(0))[0]
    factor, more = calibration_of(one, minimum)
    assert factor == pytest.approx(1, abs=0.03)
    assert abs(more) <= 0.01
    w = torch.linspace(-0.5, 0.6, 21, dtype=torch.float64)
    assert calibration_of(settings(rows=None), w) == (1.0, 0.0)
    without = settings(intercept=False)
    factor, nothing = calibration_of(without, w[:-1])
    assert nothing == 0.0
    assert torch.equal(changed(without, w[:-1], factor, nothing), factor * w[:-1])


def test_groups_have_the_variance_of_their_columns() -> None:
    w = torch.arange(12, dtype=torch.float64)
    one = settings(columns=11, sources=5)
    numbers, other = groups_of(one, w, (0, 2))
    assert numbers[:3] == (2, variance_of(one), 4.0)
    assert other.features == 9
    assert other.variance == pytest.approx(variance_of(one) / 3)
    assert other.size == 385.0 - 4.0
    assert [float(each.axes.mean()) for each in (numbers, other)] == pytest.approx([1, 1])
    level = 0.5 + (torch.arange(32).double() + 0.5) / 32 * 3  # of 3 levels each
    assert torch.allclose(other.axes / other.axes[0], (level[0] / level) ** 2, rtol=1e-9)
    (alone,) = groups_of(settings(columns=11), w)
    assert alone[:3] == (11, variance_of(one), 385.0)
    none, every = groups_of(one, w)
    assert none.features == 0
    assert (every.features, every.size) == (11, 385.0)
    assert every.variance == pytest.approx(variance_of(one) * 5 / 11)


def test_release_has_the_factor_and_its_receipt_says_it() -> None:
    x, y, _ = table(2_000, 30, 6.0)
    model = BayesianLogisticRegression.unweighted(intercept=True)
    route = bdpvi.regression.ObjectivePerturbation(rows=2_000)
    data, one, key = bdpvi.Dataset(x, y), settings(rows=2_000, columns=30), Key.of_seed(1)
    drawn = route.adapt(model, data, None).draw(model, data, one, key)
    minimum = perturbed_minima(one, data.x, data.y, key)[0]
    factor, more = calibration_of(one, minimum)
    said = f"Weights, but the intercept's, were multiplied by {factor:g} after noise was added"
    assert more != 0
    assert drawn.words == f"{said}. The intercept was moved by {more:g} after noise was added"
    w = drawn.latents["w"][0]
    assert torch.equal(w[:-1], (factor * minimum[:-1]).to(w))
    assert w[-1] == minimum[-1] + more
    release = bdpvi.fit_private(model, data, epsilon=1.0, route=route)
    assert re.search(r"were multiplied by [12]\.?\d* after noise was added", release.receipt.about)
    assert release.receipt.worst_case is not None
    assert release.receipt.worst_case.epsilon == 1.0

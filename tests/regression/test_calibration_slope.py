"""The factor of a minimum: its equation by quadrature and simulation, and on real minima."""

import math
import re

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor

import bdpvi
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.noise.keys import Key
from bdpvi.regression.calibration_slope import (
    LOGS,
    SAME,
    WIDTH,
    Group,
    equation,
    groups_of,
    slope_of,
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


def integrals(one: ObjectivePlan, i: float, spread: float, c: float) -> tuple[float, float, float]:
    """Return expectations of curvature, squared residual and logit times residual, by quad."""
    k = one.actual_event.residual

    def of(value: float, u: float, part: int) -> float:
        p, t = 1 / (1 + math.exp(-i - u)), 1 / (1 + math.exp(-i - c * u))
        total = 0.0
        for chance, r in ((t, 1 - p), (1 - t, -p)):
            each = (p * (1 - p) * (abs(r) < k), min(abs(r), k) ** 2, u * math.copysign(1, r))
            total += chance * (each[part] * (min(abs(r), k) if part == 2 else 1.0))
        return total * norm.pdf(value)

    breaks = (
        [(z - i) / spread for z in (math.log(k / (1 - k)), math.log((1 - k) / k))] if k < 1 else []
    )
    found = [
        quad(lambda z, n=n: of(z, spread * z, n), -6, 6, points=breaks or None, limit=200)[0]
        for n in range(3)
    ]
    return found[0], found[1], found[2]


@pytest.mark.parametrize(("epsilon", "rows"), [(1.0, 10_000), (0.2, 1_000)])
@pytest.mark.parametrize("c", [0.6, 1.0, 1.7])
def test_equation_is_that_of_quadrature(epsilon: float, rows: float, c: float) -> None:
    one = settings(rows=rows, epsilon=epsilon)
    w = torch.linspace(-0.5, 0.6, 21, dtype=torch.float64)
    size, i = float((w[:-1] ** 2).sum()), float(w[-1])
    v = 1 - 2 * (2 * norm.pdf(2) - 3 * norm.sf(2))  # of a normal number that is cut at ±2
    assert variance_of(one) == pytest.approx(v, rel=1e-3)
    ratio = one.clip / math.sqrt(24)
    omega = min(1, ratio, one.bend * ratio**2)
    curve, square, pull = integrals(one, i, math.sqrt(v * size), c)
    quantile = (np.arange(32) + 0.5) / 32
    axes = -np.log(1 - quantile) / np.mean(-np.log(1 - quantile))
    slope = one.sigma**2 + rows * omega**2 * v * square * axes
    whole = rows * omega * v * curve * axes + one.ridge
    expected = one.ridge * size - 20 * np.mean(slope / whole) - rows * omega * pull
    noise = slope / whole**2
    signal = max(0, size - 20 * noise.mean())
    spread = one.ridge * math.sqrt(20 * np.mean(2 * noise**2) + 4 * noise.mean() * signal)
    rest, deviation = equation(one, i, groups_of(one, w), torch.tensor([c, c]))
    scale = one.ridge * size
    assert float(rest[1]) == pytest.approx(expected, abs=3e-3 * scale)
    assert float(deviation[0]) == pytest.approx(spread, rel=5e-3)


def test_trace_and_deviation_are_those_of_simulated_noise() -> None:
    """Stein's identity: noise · w has the mean of the sum, where w = a + noise/(h e + λ)."""
    one = settings()
    axes, v, size, count = groups_of(one, torch.full((21,), 0.4).double())[0].axes, 0.9, 9.0, 32
    group, right = Group(count, v, size, axes), torch.ones(())
    curve, square, pull = integrals(one, 0.0, math.sqrt(v * size), 1.0)
    ratio = one.clip / math.sqrt(24)
    omega = min(1, ratio, one.bend * ratio**2)
    slope = torch.sqrt(one.sigma**2 + 1_000 * omega**2 * v * square * axes)
    whole = 1_000 * omega * v * curve * axes + one.ridge
    signal = math.sqrt((size - float((slope / whole).square().sum())) / count)
    generator = torch.Generator().manual_seed(0)
    noise = slope * torch.randn(100_000, count, generator=generator, dtype=torch.float64)
    w = signal + noise / whole
    rest, deviation = equation(one, 0.0, [group], right)
    trace = one.ridge * size - float(rest) - 1_000 * omega * pull
    assert float((noise * w).sum(1).mean()) == pytest.approx(trace, rel=5e-3)
    lengths = one.ridge * (w**2).sum(1)
    assert float(lengths.mean()) == pytest.approx(one.ridge * size, rel=5e-3)
    assert float(lengths.std()) == pytest.approx(float(deviation), rel=8e-3)


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, 3.0])
def test_factor_is_that_of_a_brute_force_likelihood(epsilon: float) -> None:
    one = settings(epsilon=epsilon)
    for length in (0.2, 0.5):
        w = length * torch.sin(torch.arange(21).double())
        groups = groups_of(one, w)

        def weight(log: float) -> float:
            rest, deviation = equation(one, float(w[-1]), groups, torch.tensor(math.exp(log)))  # noqa: B023
            return float(torch.exp(-((rest / deviation) ** 2) / 2))

        logs = np.linspace(-2, 1.6, 1801)
        likely = np.array([weight(log) for log in logs])
        prior = norm.pdf(logs, scale=0.4)
        prior *= 0.2 / prior.sum()
        top, whole = (logs * prior * likely).sum(), (prior * likely).sum() + 0.8 * weight(0.0)
        assert slope_of(one, w) == pytest.approx(math.exp(top / whole), abs=0.015)
    assert (SAME, WIDTH) == (0.8, 0.4)
    assert float(LOGS[40]) == pytest.approx(0, abs=1e-12)


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
    factor = slope_of(one, minimum)
    said = f"Weights, but the intercept's, were multiplied by {factor:g} after noise was added"
    assert drawn.words == said
    w = drawn.latents["w"][0]
    assert torch.equal(w[:-1], (factor * minimum[:-1]).to(w))
    assert w[-1] == minimum[-1].to(w)
    release = bdpvi.fit_private(model, data, epsilon=1.0, route=route)
    assert re.search(r"were multiplied by [12]\.\d+ after noise was added", release.receipt.about)
    assert release.receipt.worst_case is not None
    assert release.receipt.worst_case.epsilon == 1.0

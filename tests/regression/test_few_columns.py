"""Weights of few columns: the posterior by quadrature, the law of the noise by simulation."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor

import bdpvi
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.noise.keys import Key
from bdpvi.regression.few_columns import (
    EVIDENCE,
    SHARES,
    WIDTHS,
    Slab,
    noise_of,
    of_few_columns,
    slab_of,
    without_noise,
)
from bdpvi.regression.objective_plan import Facts, ObjectivePlan, plan
from bdpvi.regression.perturbed_objective import perturbed_minima

ROWS, COLUMNS = 2_000, 60


def table(matter: int, seed: int = 0, columns: int = COLUMNS) -> tuple[Tensor, Tensor, Tensor]:
    """Return independent features, targets and the truth; the intercept is −½."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(columns, generator=generator, dtype=torch.float64)
    if matter < columns:
        truth = torch.where(torch.arange(columns) < matter, truth.sign(), 0.0)
    truth *= 1.5 / truth.norm()
    x = torch.randn(ROWS, columns, generator=generator, dtype=torch.float64)
    chance = torch.sigmoid(x @ truth - 0.5)
    y = torch.rand(ROWS, generator=generator, dtype=torch.float64) < chance
    return x, y.double(), truth


def settings(epsilon: float = 1.0, **facts: object) -> ObjectivePlan:
    known = Facts(**{"columns": COLUMNS, "rows": ROWS, **facts})  # type: ignore[arg-type]
    return plan(known, epsilon=epsilon)


@pytest.mark.parametrize("score", [0.0, 0.7, -2.5, 4.0, 9.0])
def test_posterior_mean_is_that_of_quadrature(score: float) -> None:
    slab = Slab(share=0.05, width=4.0, evidence=9.0)

    def joint(theta: float) -> float:
        return float(slab.share * norm.pdf(theta, 0, slab.width) * norm.pdf(score, theta))

    top, whole = (
        quad(lambda t, p=power: t**p * joint(t), -40, 40, points=[0, score], epsabs=1e-14)[0]
        for power in (1, 0)
    )
    expected = top / (whole + (1 - slab.share) * norm.pdf(score))
    found = without_noise(torch.tensor([score], dtype=torch.float64), slab)
    assert float(found) == pytest.approx(expected, rel=1e-8, abs=1e-12)


def test_slab_has_the_largest_likelihood() -> None:
    generator = np.random.default_rng(0)
    scores = np.concatenate([generator.normal(size=90), 5 * generator.normal(size=10)])
    found = slab_of(torch.from_numpy(scores), 3.1)

    def likelihood(share: float, width: float) -> float:
        slab = share * norm.pdf(scores, scale=math.hypot(1, width))
        return float(np.log(slab + (1 - share) * norm.pdf(scores)).sum())

    each = {(share, width): likelihood(share, width) for share in SHARES for width in WIDTHS}
    wide = {pair: one for pair, one in each.items() if 1 + pair[1] ** 2 > 3.1**2}
    best = max(wide, key=lambda pair: wide[pair])
    normal = norm.logpdf(scores, scale=max(1.0, math.sqrt((scores**2).mean()))).sum()
    without = max(normal, *(one for pair, one in each.items() if pair not in wide))
    assert without > normal
    assert found[:2] == best
    assert found.evidence == pytest.approx(each[best] - without, rel=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "facts", "weights"),
    [
        (1.0, {}, (1.0, 1.0)),
        (0.05, {"columns": 300}, (1.0, 1.0)),
        (1.0, {"rows": 1e6, "columns": 4}, (0.5, 1.0)),
        (0.2, {"intercept": False}, (1.0, 1.0)),
    ],
)
def test_expectations_are_those_of_simulated_rows(
    epsilon: float, facts: dict[str, object], weights: tuple[float, float]
) -> None:
    one = replace(settings(epsilon, **facts), class_weights=weights)
    d, n = one.facts.columns, one.facts.rows
    assert n is not None
    w = torch.linspace(-0.4, 0.5, one.facts.weights, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    size = (400_000,)
    cut = torch.randn(size, generator=generator, dtype=torch.float64).clamp(-one.limit, one.limit)
    v = float(cut.var())
    logits = torch.randn(size, generator=generator, dtype=torch.float64)
    logits = logits * float(w[:d].norm()) * math.sqrt(v) + (w[-1] if one.facts.intercept else 0)
    p = torch.sigmoid(logits)
    r = (p - (torch.rand(size, generator=generator, dtype=torch.float64) < p).double()).abs()
    length = math.sqrt(one.facts.squared)
    omega = min(1, one.clip / length, 1.5 * (one.clip / length) ** 2) * sum(weights) / 2
    h = n * omega * v * float(torch.where(r < one.actual_event.residual, r * (1 - r), 0.0).mean())
    score = n * omega**2 * v * float(r.clamp(max=one.actual_event.residual).square().mean())
    intercept = float(w[-1]) if one.facts.intercept else 0.0
    found = noise_of(one, intercept, w[:d])
    assert found.kept == pytest.approx(h / (h + one.ridge), rel=0.01)
    expected = math.sqrt(one.sigma**2 + score) / (h + one.ridge)
    assert found.deviation == pytest.approx(expected, rel=0.01)


def test_noise_is_that_of_minima() -> None:
    """Weights of columns that do not matter are as wide as their law says, within a tenth.

    Of others a little more is kept than a, which holds for small weights.
    """
    one, ratios, kept = settings(), [], []
    for seed in range(20):
        x, y, truth = table(3, seed)
        w = perturbed_minima(one, x, y, Key.of_seed(seed))[0]
        found = noise_of(one, float(w[-1]), w[:-1])
        ratios.append(float(w[3:-1].square().mean().sqrt()) / found.deviation)
        kept.append((found.kept, float((w[:3] / truth[:3]).mean())))
    assert sum(ratios) / 20 == pytest.approx(1.0, abs=0.1)
    low, measured = (sum(column) / 20 for column in zip(*kept, strict=True))
    assert 1.0 < measured / low < 1.3


def test_few_columns_are_found_and_many_are_left_alone() -> None:
    one = settings()
    for seed in range(5):
        x, y, truth = table(3, seed)
        w = perturbed_minima(one, x, y, Key.of_seed(seed))[0]
        found = of_few_columns(one, w)
        assert found is not None
        assert found[-1] == w[-1]
        assert float((found[:-1] - truth).norm()) < 0.6 * float((w[:-1] - truth).norm())
        x, y, _ = table(COLUMNS, seed)
        assert of_few_columns(one, perturbed_minima(one, x, y, Key.of_seed(seed))[0]) is None


def test_release_has_the_shrunk_weights_and_its_receipt_says_so() -> None:
    x, y, _ = table(3)
    model = BayesianLogisticRegression.unweighted(intercept=True)
    route = bdpvi.regression.ObjectivePerturbation(rows=ROWS)
    sentence = "Few columns stand out from the noise: weights of numbers were shrunk after"
    data = bdpvi.Dataset(x, y)
    release = bdpvi.fit_private(model, data, epsilon=1.0, route=route)
    assert sentence in release.receipt.about
    assert release.receipt.worst_case is not None
    assert release.receipt.worst_case.epsilon == 1.0
    x, y, _ = table(COLUMNS)
    dense = bdpvi.fit_private(model, bdpvi.Dataset(x, y), epsilon=1.0, route=route)
    assert sentence not in dense.receipt.about

    suited = route.adapt(model, data, None)
    one, key = settings(), Key.of_seed(1)
    drawn = suited.draw(model, data, one, key)
    minimum = perturbed_minima(one, data.x, data.y, key)[0]
    expected = of_few_columns(one, minimum)
    assert expected is not None
    assert torch.equal(drawn.latents["w"][0], expected.to(data.x))


def test_columns_of_zeros_do_not_look_like_few_that_matter() -> None:
    """Noise in the weight of a column that is always 0 is as wide as σ/λ."""
    one, wide = settings(epsilon=5.0), []
    for seed in range(4):
        x, y, _ = table(COLUMNS, seed)
        x[:, :8] = 0.0
        y = y[torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))]
        w = perturbed_minima(one, x, y, Key.of_seed(seed))[0]
        noise = noise_of(one, float(w[-1]), w[:-1])
        wide.append(float(w[:8].square().mean().sqrt()) / noise.widest)
        assert slab_of(w[:-1] / noise.deviation, 1.0).evidence > EVIDENCE
        assert of_few_columns(one, w) is None
    assert sum(wide) / 4 == pytest.approx(1.0, abs=0.3)


def test_only_weights_of_numbers_are_shrunk() -> None:
    one = settings()
    x, y, _ = table(3)
    w = perturbed_minima(one, x, y, Key.of_seed(0))[0]
    found = of_few_columns(one, w, range(40))
    assert found is not None
    assert torch.equal(found[40:], w[40:])
    assert bool((found[:40] != w[:40]).all())
    assert of_few_columns(settings(sources=20), w) is None
    assert of_few_columns(one, w, ()) is None


def test_numbers_beyond_the_features_are_refused_before_a_charge() -> None:
    x, y, _ = table(3)
    ledger = bdpvi.Ledger()
    model = BayesianLogisticRegression.unweighted(intercept=True)
    route = bdpvi.regression.ObjectivePerturbation(rows=ROWS, numbers=(0, COLUMNS))
    with pytest.raises(ValueError, match="numbers has 60, but the last of 60 features"):
        bdpvi.fit_private(model, bdpvi.Dataset(x, y), epsilon=1.0, route=route, ledger=ledger)
    assert not ledger.entries()
    with pytest.raises(ValueError, match="numbers"):
        bdpvi.regression.ObjectivePerturbation(numbers=(-1,))

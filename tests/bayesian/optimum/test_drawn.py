"""The optimum over fixed base draws, against searches from scratch and sums record by record."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import bdpvi
from bdpvi import BayesianMultinomialRegression, Dataset, guides
from bdpvi.bayesian import Add, FixedDraws, Remove
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.optimum.drawn import DrawnElbo, base_draws
from bdpvi.guides import FullRank, GaussianGuide, MeanField

GUIDES = [MeanField, FullRank]
MODEL = BayesianMultinomialRegression.bounded(classes=3)
WEAK = BayesianMultinomialRegression.bounded(classes=3, prior_scale=1.0)


def table(rows: int, seed: int = 0) -> Dataset:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=g).double()
    return Dataset(x, torch.randint(3, (rows,), generator=g).double())


def drawn(model: BayesianMultinomialRegression, kind: type[GaussianGuide]) -> DrawnElbo:
    guide = kind(model, noise_scale=0.1)
    guide.setup(torch.zeros(1, 2).double(), torch.zeros(1).double())
    return DrawnElbo(model, guide, model.precision(3), 2)


def optimum(elbo: DrawnElbo, data: Dataset, near: float) -> tuple[Tensor, Tensor]:
    eye = torch.eye(9).double()
    start = elbo.packed(0 * eye[0], elbo.precision**-0.5 * eye)
    return elbo.minimum(data.x, data.y, start, near)[:2]


def distance(here: tuple[Tensor, Tensor], there: tuple[Tensor, Tensor]) -> float:
    """Return ‖Δ(μ, L)‖."""
    return math.hypot(*(float((a - b).norm()) for a, b in zip(here, there, strict=True)))


@pytest.mark.parametrize("d", [1, 5])
def test_base_draws_have_mean_0_and_the_covariance_1(d: int) -> None:
    z = base_draws(d, 3)
    assert torch.allclose(z.mean(0), torch.zeros(d).double(), atol=1e-15)
    assert torch.allclose(z.T @ z / len(z), torch.eye(d).double(), atol=1e-13)


@pytest.mark.parametrize("kind", GUIDES)
def test_the_value_is_the_sum_over_draws_and_records(kind: type[GaussianGuide]) -> None:
    elbo, data = drawn(WEAK, kind), table(7)
    g = torch.Generator().manual_seed(1)
    mean, root = torch.randn(9, generator=g).double(), torch.rand(9, 9, generator=g).double()
    root = torch.diag(root.diagonal()) if kind is MeanField else root.tril()
    design = torch.cat([data.x.clamp(-2, 2), torch.full((7, 1), 2.0).double()], 1)
    total = 0.0
    for z in elbo.draws:
        logits = design @ (mean + root @ z).view(3, 3)
        for row, own, target in zip(design, logits, data.y.long(), strict=True):
            weight = min(1.0, WEAK.weighted_norm(3) / float(row.norm()))
            total -= weight * float(own.log_softmax(0)[target]) / len(elbo.draws)
    total += 0.5 * float(mean.square().sum() + root.square().sum())
    total -= float(torch.linalg.slogdet(root).logabsdet)
    assert float(elbo.both(mean, root, data.x, data.y)[0]) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("kind", GUIDES)
def test_blocks_of_records_add_up(
    kind: type[GaussianGuide], monkeypatch: pytest.MonkeyPatch
) -> None:
    elbo, data = drawn(WEAK, kind), table(7)
    mean, root = torch.ones(9).double(), torch.eye(9).double()
    value, pull = elbo.both(mean, root, data.x, data.y)
    monkeypatch.setattr("bdpvi.bayesian.optimum.drawn._PREDICTED", 3 * len(elbo.draws))
    blocks = elbo.both(mean, root, data.x, data.y)
    assert float(blocks[0]) == pytest.approx(float(value), rel=1e-13)
    assert distance(blocks[1], pull) <= 1e-12 * distance(pull, (0 * mean, 0 * root))


@pytest.mark.parametrize("kind", GUIDES)
def test_norms_are_those_of_each_record_alone(kind: type[GaussianGuide]) -> None:
    elbo, data = drawn(WEAK, kind), table(6)
    mean, root = optimum(elbo, data, 1e-4)
    found = elbo.norms(data.x, data.y, mean, root)
    every = elbo.both(mean, root, data.x, data.y)[1]
    for i in range(6):
        rest = data.without(i)
        less = elbo.both(mean, root, rest.x, rest.y)[1]
        assert float(found[i]) == pytest.approx(distance(every, less), rel=1e-9)
    assert bool((found <= WEAK.score_bound(3) * (1 + 1e-12)).all())


@pytest.mark.parametrize("kind", GUIDES)
@pytest.mark.parametrize("model", [MODEL, WEAK])
def test_no_record_moves_the_optimum_farther_than_the_bounds(
    kind: type[GaussianGuide], model: BayesianMultinomialRegression
) -> None:
    """Long, short and ordinary rows, added to tables of 0 and 4 records."""
    elbo, ratios = drawn(model, kind), []
    allowed = model.score_bound(3) / model.precision(3)
    near = 2e-8 * allowed
    long = torch.tensor([[0.0, 0.0], [1e6, -1e6], [0.3, 0.1]]).double()
    for rows in (0, 4):
        data = table(rows)
        here = optimum(elbo, data, near)
        for x in long:
            for y in (0.0, 2.0):
                one = Dataset(x[None], torch.tensor([y]).double())
                more = Dataset(torch.cat([data.x, one.x]), torch.cat([data.y, one.y]))
                there = optimum(elbo, more, near)
                moved = distance(here, there)
                ratios.append(moved / allowed)
                for at in (here, there):  # the record is added to one, removed from the other
                    own = float(elbo.norms(one.x, one.y, *at)) / elbo.precision
                    assert moved <= own * (1 + 1e-6) + 2 * near
    assert max(ratios) <= 1 + 1e-7  # two searches, each within 2e-8
    assert max(ratios) > (0.5 if model is MODEL else 0.2)


@pytest.mark.parametrize("kind", GUIDES)
def test_panels_bound_every_neighbour(kind: type[GaussianGuide]) -> None:
    data, elbo = table(30), drawn(MODEL, kind)
    fit = bdpvi.fit(MODEL, kind(MODEL, noise_scale=0.1), data, progress=False)
    allowed = MODEL.score_bound(3) / MODEL.precision(3)
    here = optimum(elbo, data, 1e-8)
    for i in range(0, 30, 6):
        there = optimum(elbo, data.without(i), 1e-8)
        claimed = float(fit.panels[0].pairs.b2[i].sum().sqrt()) * 0.1
        assert float((here[0] - there[0]).norm()) <= claimed <= allowed * 1.003
    assert fit.panels[0].largest == pytest.approx((1.002 * allowed / 0.1) ** 2, rel=1e-9)


def test_the_mean_over_fresh_records_is_within_a_certificate() -> None:
    data, delta = table(300, 5), 1e-2
    fresh = replace(table(300, 6), ids=torch.arange(1000, 1300))
    guide = MeanField(MODEL, noise_scale=MODEL.score_bound(3) / MODEL.precision(3) / 4)

    def panels(kind: Any) -> Any:
        return bdpvi.fit(MODEL, guide, data, neighbours=FixedDraws(kind), progress=False).panels

    found = Account([GuideDraws(panels(Remove()))]).cost(delta).bayesian
    assert found is not None
    assert found.certified
    own = panels(Add(fresh))[0].pairs.hockey_stick(found.epsilon)
    assert float((own.mean() - delta) / (own.std() / len(own) ** 0.5)) <= 3


@pytest.mark.parametrize("rows", [0, 1, 40])
def test_releases_have_a_worst_case_whatever_the_table(rows: int) -> None:
    fit = bdpvi.fit(MODEL, FullRank(MODEL, noise_scale=0.1), table(rows), progress=False)
    release = bdpvi.release(fit, epsilon=1.0, delta=1e-5)
    assert release.receipt.bound.kind.value == "worst-case DP"
    assert release.receipt.bound.epsilon <= 1


def test_other_models_and_guides_are_refused() -> None:
    def fitted(model: Any, guide: Any) -> object:
        return bdpvi.fit(model, guide, table(9), neighbours=FixedDraws(), progress=False)

    free = BayesianMultinomialRegression(classes=3)
    for model, guide in (
        (free, MeanField(free, noise_scale=0.1)),
        (MODEL, MeanField(MODEL)),
        (MODEL, guides.LowRank(MODEL, rank=1, noise_scale=0.1)),
    ):
        with pytest.raises(ValueError, match=r"FixedDraws\(\) is for .* use Coupled\(\)"):
            fitted(model, guide)
    with pytest.raises(ValueError, match=r"rate=0\.5 must be 1: the optimum is for all records"):
        bdpvi.fit(
            MODEL,
            MeanField(MODEL, noise_scale=0.1),
            table(9),
            training=bdpvi.Training(rate=0.5),
            progress=False,
        )


def test_a_search_that_does_not_arrive_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bdpvi.bayesian.optimum.drawn._ROUNDS", 3)
    with pytest.raises(FloatingPointError, match="more than the 1e-30 that its sensitivity"):
        optimum(drawn(MODEL, MeanField), table(3), 1e-30)

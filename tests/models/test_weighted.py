"""Weights of records, the usual model, in every route: against slow, independent computations."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence
from torch.nn.functional import logsigmoid

import bdpvi
from bdpvi import BayesianLogisticRegression, Dataset, Optimum
from bdpvi._ground.isolation import isolated
from bdpvi.bayesian import Add, Remove
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs, summarise
from bdpvi.bayesian.inference.svi import Problem, default_optimiser
from bdpvi.bayesian.neighbours.row_gradients import LogisticGradient, Step, TracedGradient
from bdpvi.bayesian.neighbours.rows import row_gradient
from bdpvi.bayesian.optimum.displacements import Terms
from bdpvi.bayesian.optimum.elbo import Objective, start
from bdpvi.bayesian.optimum.expansion import Expansion
from bdpvi.bayesian.optimum.newton import climb
from bdpvi.bayesian.optimum.search import search
from bdpvi.bayesian.optimum.weighted import Weighted
from bdpvi.bench.methods.scores import Clip, RecordScores, euclidean
from bdpvi.guides import FullRank, GaussianGuide, MeanField
from bdpvi.models.misfits import MisfitError
from bdpvi.models.traces import log_likelihood
from bdpvi.noise.batches import BatchPlan

GUIDES = [MeanField, FullRank]
MODEL = BayesianLogisticRegression(intercept_mean=-1.0)
CLIPPED = BayesianLogisticRegression(clip=0.5, prior_scale=0.3, intercept=True, intercept_mean=-2.0)
MEAN = torch.tensor([0.0, 0.0, 0.0, -0.5]).double()
"""Of the prior: half the intercept's, as its column is 2."""
C, PRECISION = math.sqrt(3 + 4) / 2, 4 * math.sqrt(3 + 4) / 2 * 2 * math.sqrt(3 + 1)
"""Of three features: ½√(d + 4), and 4C times the length of (2, 2, 2, 2)."""
ORDERS = torch.tensor([1.5, 4.0, 16.0], dtype=torch.float64)


def wide(records: int = 40, seed: int = 0) -> Dataset:
    """Return records of three features, some of them far out."""
    generator = torch.Generator().manual_seed(seed)
    x = 1.5 * torch.randn(records, 3, generator=generator, dtype=torch.float64)
    chance = torch.sigmoid(0.5 + x @ torch.tensor([1.0, -0.7, 0.3]).double())
    return Dataset(x, torch.bernoulli(chance, generator=generator))


def rows(data: Dataset) -> tuple[Tensor, Tensor]:
    """Return z and its weight ω, written out."""
    z = torch.cat([data.x.clamp(-2, 2), torch.full((len(data), 1), 2.0).double()], 1)
    return z, (C / z.square().sum(1).sqrt()).clamp(max=1)


def negative_elbo(loc: Tensor, factor: Tensor, data: Dataset) -> Tensor:
    """Return −ELBO of N(loc, factor factorᵀ), each record's part by a sum over 1,001 logits."""
    nodes = torch.linspace(-9, 9, 1001, dtype=torch.float64)
    masses = (-(nodes**2) / 2).exp()
    z, weight = rows(data)
    logits = z @ loc + (z @ factor).norm(dim=1) * nodes[:, None]
    each = masses @ logsigmoid((2 * data.y - 1) * logits) / masses.sum()
    prior = MultivariateNormal(MEAN, torch.eye(4).double() / PRECISION)
    divergence: Tensor = kl_divergence(MultivariateNormal(loc, scale_tril=factor), prior)
    return divergence - weight @ each


def argmax(data: Dataset, guide: type[GaussianGuide]) -> MultivariateNormal:
    """Return the guide at the largest ELBO, by a general optimiser from the prior."""
    loc, raw = torch.zeros(4).double(), torch.zeros(4, 4).double()
    optim = torch.optim.LBFGS(
        [loc.requires_grad_(), raw.requires_grad_()],
        max_iter=500,
        tolerance_grad=1e-11,
        tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )

    def factor() -> Tensor:
        below = 0 if guide is MeanField else raw.tril(-1)
        return (torch.diag(raw.diagonal().exp()) + below) / math.sqrt(PRECISION)

    def loss() -> Tensor:
        optim.zero_grad()
        value = negative_elbo(loc, factor(), data)
        value.backward()
        return value

    optim.step(loss)
    return MultivariateNormal(loc.detach(), scale_tril=factor().detach())


@cache
def fitted(guide: Any, noise_scale: float | None = None) -> bdpvi.Fit:
    made = guide(MODEL, noise_scale=noise_scale)
    more = replace(wide(5, seed=1), ids=torch.arange(100, 105))
    route = Optimum(Remove(), Add(more), precision=1e-8)
    return bdpvi.fit(MODEL, made, wide(), neighbours=route, progress=False)


def covariance(posterior: Any) -> Tensor:
    found: Tensor = posterior.variance.diag() if posterior.variance.ndim else posterior
    return getattr(posterior, "covariance_matrix", found)


@pytest.mark.parametrize("guide", GUIDES)
def test_the_fit_is_the_largest_weighted_elbo(guide: type[GaussianGuide]) -> None:
    found, best = fitted(guide).posterior, argmax(wide(), guide)
    torch.testing.assert_close(found.mean, best.mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(covariance(found), best.covariance_matrix, rtol=0, atol=1e-8)


def neighbours() -> list[tuple[str, int, Dataset]]:
    """Return some neighbours: which panel has them, at which place, and their records."""
    data, more = wide(), wide(5, seed=1)
    furthest = int(rows(data)[0].norm(dim=1).argmax())
    found = [("remove", i, data.without(i)) for i in (0, 7, furthest)]
    one = more.select(torch.tensor([3]))
    return [*found, ("add", 3, Dataset(torch.cat([data.x, one.x]), torch.cat([data.y, one.y])))]


def divergences(pairs: GaussianPairs) -> Tensor:
    return torch.cat([pairs.renyi(ORDERS), pairs.reverse().renyi(ORDERS)])


@pytest.mark.parametrize("guide", GUIDES)
def test_panels_are_what_fits_to_the_neighbours_say(guide: type[GaussianGuide]) -> None:
    panels = {panel.kind: panel for panel in fitted(guide).panels}
    public = {panel.kind: panel for panel in fitted(guide, 1.0).panels}
    whole = argmax(wide(), guide)
    for kind, place, data in neighbours():
        there = argmax(data, guide)
        exact = summarise(whole, MultivariateNormal(there.mean[None], there.covariance_matrix))
        found = panels[kind].pairs.select(torch.tensor([place]))
        torch.testing.assert_close(divergences(found), divergences(exact), rtol=1e-3, atol=1e-10)
        moved = float((there.mean - whole.mean).square().sum())
        assert float(public[kind].pairs.b2[place]) == pytest.approx(moved, rel=1e-5)


@pytest.mark.parametrize("guide", GUIDES)
def test_series_integrals_done_anew_and_searches_agree(guide: type[GaussianGuide]) -> None:
    records = Weighted.of(MODEL, wide())
    point = climb(start(Objective(records, PRECISION, guide is MeanField)), 1e-12)[-1]
    expansion = Expansion(point, 1e-12)
    terms = expansion.terms(records)
    a, s = torch.linspace(-0.3, 0.3, 40).double(), torch.linspace(0.1, -0.1, 40).double()
    series = terms.changes(a, s, 15, torch.empty(0, dtype=torch.long))
    for one, other in zip(series, terms.changes(a, s, 15, torch.arange(40)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    moves = Optimum(precision=1e-9).moves(expansion, records, -1.0)
    for i in (0, 7):
        found = search(expansion, records.select(slice(i, i + 1)), -1.0, "")
        torch.testing.assert_close(found.m[:, 0], moves.m[:, i], rtol=0, atol=1e-8)
        torch.testing.assert_close(found.y[:, 0], moves.y[:, i], rtol=0, atol=1e-8)
    joined = Terms.joined([terms.select(slice(0, 9)), terms.select(slice(9, 40))])
    assert torch.equal(joined.weight, rows(wide())[1])


@pytest.mark.parametrize("noise_scale", [None, 1.0])
def test_a_table_on_disk_has_the_same_fit_and_panel(
    noise_scale: float | None, tmp_path: Path
) -> None:
    data = wide()
    frame = pd.DataFrame(data.x.numpy(), columns=list("abc")).assign(y=data.y.numpy())
    frame.to_parquet(tmp_path / "table.parquet")
    table = bdpvi.Table.of(tmp_path / "table.parquet").numbers("y")
    guide = FullRank(MODEL, noise_scale=noise_scale)
    streamed = bdpvi.fit(MODEL, guide, table, progress=False)
    whole = fitted(FullRank, noise_scale)
    torch.testing.assert_close(streamed.posterior.mean, whole.posterior.mean, rtol=0, atol=1e-7)
    found, expected = streamed.panels[0], whole.panels[0]
    if noise_scale is None:
        torch.testing.assert_close(
            found.pairs.renyi(ORDERS), expected.pairs.renyi(ORDERS), rtol=1e-3, atol=1e-10
        )
    assert found.largest == expected.largest


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("model", [MODEL, CLIPPED])
def test_gradients_of_coupled_rows_are_those_of_the_traced_model(
    model: BayesianLogisticRegression, guide: type[GaussianGuide]
) -> None:
    data = wide()
    problem = Problem(model, guide(model), data, BatchPlan(steps=3, rate=0.4), default_optimiser(3))
    problem.guide.setup(data.x, data.y)
    generator = torch.Generator().manual_seed(0)
    free = {
        name: torch.randn((40, *value.shape), generator=generator, dtype=value.dtype)
        for name, value in problem.guide.initial(data.x).items()
    }
    closed, results = row_gradient(problem), []
    assert type(closed) is LogisticGradient
    with isolated(data.x), pyro.validation_enabled(False):
        for gradient in (closed, TracedGradient(problem)):
            seen, noise = gradient.see(data), torch.Generator().manual_seed(5)
            out = {name: torch.empty_like(value) for name, value in free.items()}
            gradient(free, Step(seen, torch.ones(40).double(), seen, noise), out)
            results.append(out)
    for name, value in results[1].items():
        torch.testing.assert_close(results[0][name], value, rtol=0, atol=1e-9)


def test_log_likelihoods_and_scores_have_the_weight_once() -> None:
    data, w = wide(), torch.randn(2, 4, generator=torch.Generator().manual_seed(2)).double()
    z, weight = rows(data)
    expected = weight * logsigmoid((2 * data.y - 1) * (z @ w[0]))
    torch.testing.assert_close(log_likelihood(MODEL, {"w": w[0]}, data.x, data.y), expected)
    closed = RecordScores(MODEL, data)
    torch.testing.assert_close(closed.prior(w), -PRECISION * (w - MEAN))
    for clip in (None, Clip(0.2, euclidean)):
        for at, found in zip(w, closed.likelihood(w, None, clip), strict=True):
            each = each_score(MODEL, at, data)
            if clip is not None:
                each = each * (clip.bound / each.norm(dim=1, keepdim=True)).clamp(max=1)
            torch.testing.assert_close(found, each.sum(0), rtol=1e-5, atol=1e-5)


def each_score(model: BayesianLogisticRegression, w: Tensor, data: Dataset) -> Tensor:
    """Return every record's score, (N, d), by autograd."""

    def one(x: Tensor, y: Tensor) -> Tensor:
        def value(w: Tensor) -> Tensor:
            return log_likelihood(model, {"w": w}, x[None], y[None]).sum()

        slope: Tensor = torch.func.grad(value)(w)
        return slope

    with pyro.validation_enabled(False):
        result: Tensor = torch.vmap(one)(data.x, data.y)
    return result


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        BayesianLogisticRegression(weight_norm=0.1, intercept=False),
        BayesianLogisticRegression(prior_scale=1.0, limit=9.0, correlation=0.9, intercept_mean=-3),
    ],
)
def test_no_score_is_longer_than_its_bound(model: BayesianLogisticRegression) -> None:
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * 3).double()
    x = torch.cat([signs * size for size in (1e-9, 0.3, 2.0, 1e9)])
    data = Dataset(x.repeat(2, 1), torch.arange(2).repeat_interleave(len(x)).double())
    size = model.design(x).shape[1]
    most, w = 0.0, 30 * torch.randn(20, size, generator=torch.Generator().manual_seed(0)).double()
    for one in w:
        most = max(most, float(each_score(model, one, data).norm(dim=1).max()))
    bound = model.score_bound(size)
    assert 0.999 * bound < most <= bound * (1 + 1e-12)


def test_the_mean_score_is_0_at_the_truth_and_a_clipped_one_is_not() -> None:
    count = 200_000
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.randn(count, 2, generator=generator, dtype=torch.float64) + 0.5
    truth = torch.tensor([1.5, -1.0, 0.4]).double()
    chance = torch.sigmoid(MODEL.design(x) @ truth)
    data = Dataset(x, torch.bernoulli(chance, generator=generator))

    def in_errors(model: BayesianLogisticRegression, truth: Tensor) -> float:
        """Return the largest mean of a coordinate in standard errors of the simulation."""
        found = each_score(model, truth, data)
        return float((found.mean(0) / found.std(0)).abs().max()) * math.sqrt(count)

    assert in_errors(MODEL, truth) < 4.5  # exceeded by chance once in 50,000
    clipped = BayesianLogisticRegression(clip=0.5, limit=2.0, intercept=True)
    assert in_errors(clipped, truth * torch.tensor([1, 1, 2])) > 20


@pytest.mark.parametrize("guide", GUIDES)
def test_public_noise_has_a_worst_case_that_no_record_exceeds(guide: type[GaussianGuide]) -> None:
    assert Optimum.bounds(MODEL, guide(MODEL, noise_scale=1.0))
    assert not Optimum.bounds(MODEL.plain, guide(MODEL, noise_scale=1.0))
    for panel in fitted(guide, 1.0).panels:
        assert panel.largest == pytest.approx((C / PRECISION * (1 + 2e-5)) ** 2)
        assert panel.largest is not None
        assert float(panel.pairs.b2.max()) <= panel.largest
    corner = torch.full((1, 3), 9.0).double()
    few = Dataset(corner.repeat(3, 1), torch.tensor([0.0, 1.0, 1.0]).double())
    rare = bdpvi.fit(MODEL, guide(MODEL, noise_scale=1.0), few, progress=False)
    assert 0.01 < float(rare.panels[0].pairs.b2.max()) / (C / PRECISION) ** 2 <= 1 + 5e-5
    assert bdpvi.release(rare, epsilon=1.0).receipt.worst_case is not None


def test_the_intercept_is_the_last_weight_times_its_column() -> None:
    guide = MeanField(MODEL, noise_scale=1.0)
    fit = bdpvi.fit(MODEL, guide, wide(), progress=False)
    release = bdpvi.release(fit, 25, epsilon=5.0)
    found = release.summary().coefficients[-1]
    assert found.name == "intercept"
    assert found.mean == pytest.approx(2 * float(release.samples[:, -1].mean()))
    at_zero = torch.logit(release.predict_draws(torch.zeros(1, 3)))[:, 0]
    assert found.mean == pytest.approx(float(at_zero.mean()), rel=1e-4)


@pytest.mark.parametrize(
    "route",
    [
        bdpvi.regression.ObjectivePerturbation(rows=1000),
        bdpvi.regression.NoisyScores(rows=1000, least=0),
        bdpvi.DPVI(rows=1000, steps=5),
    ],
)
def test_routes_that_bound_records_themselves_take_no_weights(route: Any) -> None:
    data = wide(1000)
    release = bdpvi.fit_private(MODEL, data, epsilon=2.0, route=route)
    plain = BayesianLogisticRegression.unweighted(intercept=True, limit=2.0, intercept_mean=-1.0)
    assert release.model == MODEL.plain == plain
    w, x = release.latents["w"].double(), data.x[:5]
    ones = torch.cat([x.clamp(-2, 2), torch.ones(5, 1).double()], 1)
    mean = torch.sigmoid(w @ ones.T)
    torch.testing.assert_close(release.predict_draws(x).double(), mean, rtol=1e-5, atol=1e-6)


def test_a_model_of_ones_own_may_weigh_each_record_by_its_own_row() -> None:
    def weighing(by: Any) -> Any:
        def model(x: Tensor, y: Tensor | None = None) -> None:
            w = pyro.sample("w", dist.Normal(x.new_zeros(3), 1.0).to_event(1))
            with pyro.plate("records", len(x)), pyro.poutine.scale(scale=by(x.norm(dim=1))):
                pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

        return model

    own = weighing(lambda length: 1 / (1 + length))
    bdpvi.check(own, MeanField(own), wide())
    together = weighing(lambda length: length / length.sum())
    with pytest.raises(MisfitError, match="'y' depends on other records"):
        bdpvi.check(together, MeanField(together), wide())

"""The optimum of Poisson, negative binomial and linear regressions with bounded scores.

ELBOs are compared with a grid over the weights and the Pyro model's own
log-likelihood, and displacements by single records with searches from scratch.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

import bdpvi
from bdpvi import (
    BayesianLinearRegression,
    BayesianMultinomialRegression,
    BayesianNegativeBinomialRegression,
    BayesianPoissonRegression,
    Dataset,
    Optimum,
    guides,
)
from bdpvi.bayesian import Add, Remove
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.optimum.elbo import Objective, Point, start
from bdpvi.bayesian.optimum.newton import climb
from bdpvi.bayesian.optimum.sensitivity import largest
from bdpvi.bayesian.optimum.weighted import Weighted
from bdpvi.guides import FullRank, GaussianGuide, MeanField
from bdpvi.models.traces import log_likelihood

float64 = torch.float64
GUIDES = [FullRank, MeanField]
MODELS: dict[str, Any] = {
    "poisson": BayesianPoissonRegression.bounded(largest=4),
    "free poisson": BayesianPoissonRegression.bounded(largest=4, prior_scale=1.0),
    "negative binomial": BayesianNegativeBinomialRegression.bounded(largest=4, dispersion=0.5),
    "linear": BayesianLinearRegression.bounded(largest=4.0, middle=1.0, error_scale=0.5),
}


def table(name: str, rows: int, seed: int = 0) -> Dataset:
    """Return records of two features with targets of the model."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=g).double()
    a = 0.5 * x[:, 0] - 0.3 * x[:, 1]
    noise = torch.randn(rows, generator=g).double()
    y = a + 1 + noise if name == "linear" else torch.poisson(a.exp(), generator=g)
    return Dataset(x, y)


def objective(name: str, data: Dataset, guide: type[GaussianGuide]) -> Objective:
    model = MODELS[name]
    last = -float(model.departure(torch.zeros(3).double())[-1])
    return Objective(Weighted.of(model, data), model.precision(3), guide is MeanField, last)


def optimum(name: str, data: Dataset, guide: type[GaussianGuide]) -> Point:
    return climb(start(objective(name, data, guide)), 1e-12)[-1]


# --- the ELBO -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_elbo_agrees_with_the_pyro_model_on_a_grid(name: str) -> None:
    """Differences of ELBOs at two guides, from log-likelihoods at a grid of weights."""
    model, data = MODELS[name], table(name, 12)
    rule = hermegauss(24)
    node, weight = (torch.from_numpy(a) for a in rule)
    grid = torch.cartesian_prod(node, node, node)
    mass = torch.cartesian_prod(weight, weight, weight).prod(1) / (2 * math.pi) ** 1.5
    prior = model.priors(data.x)["w"]
    target = objective(name, data, FullRank)
    here = climb(start(target), 1e-10)[-1]

    def elbo(point: Point) -> float:
        root = torch.linalg.cholesky(point.root @ point.root.T)
        w = point.mean + grid @ root.T

        def one(w: Tensor) -> Tensor:
            return log_likelihood(model, {"w": w}, data.x, data.y).sum()

        guide = MultivariateNormal(point.mean, scale_tril=root)
        own = MultivariateNormal(prior.mean.double(), torch.eye(3).double() * prior.sd**2)
        return float(mass @ torch.vmap(one)(w) - kl_divergence(guide, own))

    there = target.at(here.mean + 0.2, here.metric * 1.7)
    assert here.value - there.value == pytest.approx(elbo(here) - elbo(there), rel=1e-4)
    assert here.value > there.value


# --- displacements --------------------------------------------------------------------------------


def adverse(name: str, seed: int) -> Dataset:
    """Return records that move fits far: short and long rows, targets at and beyond both ends."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 2, generator=g).double() * torch.tensor([0.0, 0.1, 1, 3, 30, 1e6])[:, None]
    low = -9.0 if name == "linear" else 0.0
    return Dataset(x, torch.tensor([9.0, low, 9.0, low, 9.0, low]).double())


def distance(here: Point, there: Point) -> float:
    """Return ‖Δ(μ, L)‖, L the Cholesky factor or the scales."""
    return math.hypot(
        float((here.mean - there.mean).norm()), float((here.scale - there.scale).norm())
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("guide", GUIDES)
def test_no_record_moves_the_optimum_farther_than_the_bound(
    name: str, guide: type[GaussianGuide]
) -> None:
    model, ratios = MODELS[name], []
    allowed = model.score_bound(3) / model.precision(3)
    for seed, rows in enumerate((0, 1, 30)):
        some, records = table(name, rows, seed), adverse(name, seed)
        base = Dataset(torch.cat([some.x, records.x[2:4]]), torch.cat([some.y, records.y[2:4]]))
        base = base if seed else some
        here = optimum(name, base, guide)
        for i in range(6):  # records added; each is removed on the way back
            x, y = records.x[i : i + 1], records.y[i : i + 1]
            larger = Dataset(torch.cat([base.x, x]), torch.cat([base.y, y]))
            ratios.append(distance(here, optimum(name, larger, guide)) / allowed)
    assert max(ratios) <= 1 + 1e-9
    # A prediction of 0 has half of the largest score, or less where the prior is weak.
    sharp = {"negative binomial": 0.45, "free poisson": 0.2}
    assert max(ratios) > sharp.get(name, 0.7)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("guide", GUIDES)
def test_neighbours_equal_searches_from_scratch(name: str, guide: type[GaussianGuide]) -> None:
    """Two records have equal features and other targets."""
    data, model = table(name, 40), MODELS[name]
    x, y = data.x.clone(), data.y.clone()
    x[1], y[0], y[1] = x[0], 0.0, 4.0
    data = Dataset(x, y)
    fit = bdpvi.fit(model, guide(model, noise_scale=0.5), data, progress=False)
    here = optimum(name, data, guide)
    assert torch.allclose(fit.parameters["loc"], here.mean, atol=1e-9)
    for i in (0, 1, 7):
        there = optimum(name, data.without(i), guide)
        exact = float((here.mean - there.mean).norm()) / 0.5
        assert float(fit.panels[0].pairs.b2[i].sum().sqrt()) == pytest.approx(exact, rel=1e-4)
    most = largest(model, fit.guide, 3)
    assert most == pytest.approx((model.score_bound(3) / model.precision(3) / 0.5) ** 2, rel=1e-4)
    assert fit.panels[0].largest == most


# --- guarantees -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_mean_over_fresh_records_is_within_a_certificate(name: str) -> None:
    model, data, delta = MODELS[name], table(name, 300, 5), 1e-2
    fresh = table(name, 300, 1005)
    fresh = replace(fresh, ids=fresh.ids + 10_000)
    guide = MeanField(model, noise_scale=model.score_bound(3) / model.precision(3) / 4)

    def panels(kind: Remove | Add) -> Any:
        return bdpvi.fit(model, guide, data, neighbours=Optimum(kind), progress=False).panels

    found = Account([GuideDraws(panels(Remove()))]).cost(delta).bayesian
    assert found is not None
    assert found.certified
    pairs = panels(Add(fresh))[0].pairs
    for own in (pairs.hockey_stick(found.epsilon), pairs.reverse().hockey_stick(found.epsilon)):
        assert float((own.mean() - delta) / (own.std() / len(own) ** 0.5)) <= 3


@pytest.mark.parametrize("name", MODELS)
def test_a_release_has_a_worst_case(name: str) -> None:
    model = MODELS[name]
    fit = bdpvi.fit(model, FullRank(model, noise_scale=0.1), table(name, 60), progress=False)
    release = bdpvi.release(fit, epsilon=1.0, delta=1e-5)
    assert release.receipt.bound.kind.value == "worst-case DP"
    assert release.receipt.bound.epsilon <= 1


def test_models_and_guides_without_a_bound_are_refused() -> None:
    data = table("poisson", 20)

    def fitted(model: Any, guide: Any) -> object:
        return bdpvi.fit(model, guide, data, neighbours=Optimum(), progress=False)

    free = BayesianPoissonRegression(largest=4)
    with pytest.raises(ValueError, match=r"made by its bounded\(\); use Coupled"):
        fitted(free, MeanField(free))
    classes = BayesianMultinomialRegression.bounded(classes=9)
    with pytest.raises(ValueError, match=r"made by its bounded\(\); use Coupled"):
        fitted(classes, MeanField(classes))
    model = MODELS["poisson"]
    with pytest.raises(ValueError, match="Optimum takes full-rank and mean-field"):
        fitted(model, guides.LowRank(model, rank=1))

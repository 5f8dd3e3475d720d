"""A prior mean of the intercept, wherever the prior has a part, against slow and general ways."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from simulated import logistic_data
from torch import Tensor

import bdpvi
from bdpvi import BayesianLogisticRegression, Dataset, Optimum
from bdpvi.bayesian import Remove
from bdpvi.guides import FullRank, GaussianGuide, MeanField
from bdpvi.tables import setup

GUIDES = [MeanField, FullRank]
MODEL = BayesianLogisticRegression(clip=0.5, prior_scale=0.3, intercept=True, intercept_mean=-2.0)


def rare(records: int = 60) -> Dataset:
    """Return records of which few are of class 1."""
    data = logistic_data(records, 3)
    chance = torch.sigmoid(data.x[:, 0] - 2)
    generator = torch.Generator().manual_seed(1)
    return replace(data, y=torch.bernoulli(chance, generator=generator))


def fitted(data: Dataset, guide: type[GaussianGuide], records: int | None = None) -> bdpvi.Fit:
    made = guide(MODEL, noise_scale=1.0)
    return bdpvi.fit(MODEL, made, data, neighbours=Optimum(Remove(records)), progress=False)


def negative_elbo(loc: Tensor, factor: Tensor, data: Dataset) -> Tensor:
    """Return −ELBO of N(loc, factor factorᵀ), each record's part by a sum over 4,001 logits."""
    nodes = torch.linspace(
        -9, 9, 4001, dtype=torch.float64
    )  # fine enough for the likelihood's kink
    weights = (-(nodes**2) / 2).exp()
    design = torch.cat([data.x, torch.ones(len(data), 1).double()], 1)
    spread = (design @ factor).norm(dim=1)
    logits = design @ loc + spread * nodes[:, None]
    signed = (2 * data.y - 1) * logits
    bound = (0.5 / design.norm(dim=1)).clamp(max=1)
    knee = torch.log1p(-bound) - bound.log()
    terms = torch.nn.functional.logsigmoid(torch.maximum(signed, knee))
    terms = terms + bound * (signed - knee).clamp(max=0)
    likelihood: Tensor = (weights[:, None] * terms).sum() / weights.sum()
    posterior = torch.distributions.MultivariateNormal(loc, scale_tril=factor)
    mean = torch.tensor([0.0, 0.0, 0.0, -2.0]).double()
    prior = torch.distributions.MultivariateNormal(mean, 0.09 * torch.eye(4).double())
    divergence: Tensor = torch.distributions.kl_divergence(posterior, prior)
    return divergence - likelihood


@pytest.mark.parametrize("guide", GUIDES)
def test_the_elbo_is_flat_at_the_optimum(guide: type[GaussianGuide]) -> None:
    data = rare()
    posterior: Any = fitted(data, guide, 3).posterior
    loc = posterior.mean.clone().requires_grad_()
    wide = torch.diag(posterior.variance) if guide is MeanField else posterior.covariance_matrix
    factor = torch.linalg.cholesky(wide).clone().requires_grad_()
    slope, bend = torch.autograd.grad(negative_elbo(loc, factor, data), (loc, factor))
    bend = bend.diagonal() if guide is MeanField else bend.tril()
    assert float(slope.norm()) < 1e-4
    assert float(bend.norm()) < 1e-4


@pytest.mark.parametrize("guide", GUIDES)
def test_neighbours_are_fits_without_the_record(guide: type[GaussianGuide]) -> None:
    data = rare()
    whole = fitted(data, guide)
    (panel,) = whole.panels
    for record in (0, 5, 59):
        moved = fitted(data.without(record), guide, 3).posterior.mean - whole.posterior.mean
        found = float(panel.pairs.b2[record].sum())
        assert found == pytest.approx(float(moved.square().sum()), rel=1e-4)
        assert math.sqrt(found) <= 0.5 * 0.3**2


def test_a_base_rate_of_ones_own_is_taken_as_its_logit() -> None:
    for made in (setup.logistic(0.05), setup.posterior(0.05)):
        assert made.intercept_mean == pytest.approx(math.log(0.05 / 0.95))
    assert replace(setup.logistic(0.05), intercept_mean=0.0) == setup.logistic()
    with pytest.raises(ValueError, match="base_rate must"):
        setup.logistic(1.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [({"intercept_mean": -2.0}, "needs intercept=True"), ({"intercept_mean": math.nan}, "finite")],
)
def test_bad_means(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"intercept_mean.*{words}"):
        BayesianLogisticRegression.unweighted(**given)

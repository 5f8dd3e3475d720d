"""Objective perturbation: its minimum, its noise, what one record can do, its price."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from simulated import logistic_data, single
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from bdpvi import BayesianLogisticRegression, Dataset
from bdpvi._runtime.secure import sum_rounding, sum_step
from bdpvi.accounting.objective_perturbation import LAST
from bdpvi.accounting.worst_case import calibrate
from bdpvi.datasets import load_abalone
from bdpvi.dp import objective_perturbation as module
from bdpvi.dp.mechanism import deviation_for
from bdpvi.dp.noise import Run, Stream
from bdpvi.dp.objective_perturbation import (
    Objective,
    ObjectivePerturbationSettings,
    objective_perturbation_runs,
)
from bdpvi.recipes.metrics import accuracy
from bdpvi.types import ADD_OR_REMOVE, WorstCase

objective_perturbation = single(objective_perturbation_runs)
MODEL = BayesianLogisticRegression(clip=0.5, prior_scale=0.7, intercept=True)


def forces(model: BayesianLogisticRegression, data: Dataset, radius: float, w: Tensor) -> Tensor:
    """Return the gradient of the negative log-likelihood by autograd, rows shortened one by one."""
    z = w.clone().requires_grad_()
    total = z.new_zeros(())
    for x, y in zip(data.x, data.y, strict=True):
        row = torch.cat([x, torch.ones(1).double()]) if model.intercept else x
        row = row * min(1.0, radius / float(row.norm()))
        signed = (2 * y - 1) * (row @ z)
        bound = min(1.0, model.clip / float(row.norm())) if model.clip else 1.0
        if float(torch.sigmoid(-signed.detach())) > bound:
            total = total - bound * signed
        else:
            total = total - torch.nn.functional.logsigmoid(signed)
    return torch.autograd.grad(total, z)[0]


def test_without_noise_it_is_the_mode(data: Dataset) -> None:
    model = BayesianLogisticRegression(prior_scale=2.0)
    settings = ObjectivePerturbationSettings(radius=100.0)
    outcome = objective_perturbation(model, data, noise_multiplier=0.0, settings=settings)
    assert outcome.price is None
    reference = LogisticRegression(C=4.0, fit_intercept=False, tol=1e-12, max_iter=1000)
    reference.fit(data.x.numpy(), data.y.numpy())
    np.testing.assert_allclose(outcome.latents["w"][0].numpy(), reference.coef_[0], rtol=1e-6)


@pytest.mark.parametrize("clip", [0.5, None])
def test_its_gradient_is_the_slope_that_was_drawn(data: Dataset, clip: float | None) -> None:
    model = replace(MODEL, clip=clip)
    settings = ObjectivePerturbationSettings(radius=1.5, share=0.3)
    outcome = objective_perturbation(model, data, noise_multiplier=6.0, settings=settings, seed=4)
    bound = 0.5 if clip else 1.5
    curvature = 0.5 if clip else 1.5**2 / 4
    ridge = max(0.7**-2, curvature / math.expm1(0.3 / 6.0))
    stream = Stream(4, 1, 1.0)
    slope = sum_step(deviation_for(6.0, bound, 4)) * stream.noise.whole(4)
    error = 1e-9 * 6.0 * bound + math.sqrt(4) / 2 * sum_step(6.0 * bound)
    deviation = deviation_for(6.0 / LAST, 2 * error / ridge, 4)
    hiding = sum_step(deviation) * stream.noise.whole(4)
    w = outcome.latents["w"][0] - hiding
    left = forces(model, data, 1.5, w) + ridge * w + slope
    assert float(left.norm()) < 1e-9 * 6.0 * bound
    assert float(hiding.norm()) > 0


def test_every_search_ends_at_its_tolerance() -> None:
    """Wild tables, slopes far stronger than all records, and clips that put all at their kink."""
    generator = torch.Generator().manual_seed(0)
    for scale, clip, ridge in ((1e-3, 0.1, 1e-3), (1.0, None, 1e-2), (30.0, 0.05, 1.0)):
        data = logistic_data(200, 3)
        data = replace(data, x=scale * data.x, y=torch.ones(200).double())
        model = BayesianLogisticRegression(clip=clip)
        objective = Objective(model, data, 5.0)
        slope = torch.randn(70, 3, generator=generator, dtype=torch.float64)
        slope *= torch.logspace(-3, 4, 70, dtype=torch.float64)[:, None]
        ridges, end = (slope.new_full((70,), value) for value in (ridge, 1e-9))
        w = objective.minima(ridges, slope, end)
        left = objective.gradient(w) + ridge * w + slope
        assert float(torch.linalg.vector_norm(left, dim=1).max()) <= 1e-9
        torch.testing.assert_close(
            objective.minima(ridges[:1], slope[:1], end[:1]), w[:1], rtol=0, atol=1e-9 / ridge
        )


def test_what_cannot_be_reached_is_an_error(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ObjectivePerturbationSettings(tolerance=1e-30)
    with pytest.raises(FloatingPointError, match="tolerance"):
        objective_perturbation(MODEL, data, noise_multiplier=1.0, settings=settings)
    monkeypatch.setattr(module, "_MOST", 1)
    with pytest.raises(FloatingPointError, match="not reached in 1 steps"):
        objective_perturbation(MODEL, data, noise_multiplier=1.0)


def test_the_slope_has_the_promised_variance(data: Dataset) -> None:
    settings = ObjectivePerturbationSettings(radius=1.5)
    runs = [Run(noise_multiplier=3.0, seed=seed) for seed in range(1500)]
    outcomes = objective_perturbation_runs(MODEL, data, runs=runs, settings=settings)
    w = torch.cat([outcome.latents["w"] for outcome in outcomes])
    ridge = settings.accountant(MODEL).ridge_at(3.0)
    standard = (Objective(MODEL, data, 1.5).gradient(w) + ridge * w) / (3.0 * 0.5)
    low, high = chi2.interval(1 - 1e-6, standard.numel())
    assert low < float(standard.square().sum()) < high


@pytest.mark.parametrize("far", [0.0, 1.0, 1e6])
def test_no_record_moves_the_mode_further_than_its_gradient(data: Dataset, far: float) -> None:
    """By strong convexity at most L/λ, however far out the record lies and whatever its target."""
    settings = ObjectivePerturbationSettings(radius=1.5)
    ridge = settings.accountant(MODEL).ridge_at(9.0)

    def mode(records: Dataset) -> Tensor:
        return objective_perturbation(
            MODEL, records, noise_multiplier=9.0, settings=settings, seed=1
        ).latents["w"]

    for target in (0.0, 1.0):
        x = torch.cat([data.x, far * torch.ones(1, 3).double()])
        more = Dataset(x, torch.cat([data.y, torch.tensor([target]).double()]))
        moved = float((mode(more) - mode(data)).norm())
        assert 0 < moved <= 0.5 / ridge * (1 + 1e-6)


def test_runs_side_by_side_are_as_alone(data: Dataset) -> None:
    runs = [Run(noise_multiplier=s, seed=seed) for s, seed in ((0.5, 1), (2.0, 1), (2.0, 5))]
    for run, outcome in zip(runs, objective_perturbation_runs(MODEL, data, runs=runs), strict=True):
        alone = objective_perturbation(
            MODEL, data, noise_multiplier=run.noise_multiplier, seed=run.seed
        )
        assert outcome.price == alone.price
        torch.testing.assert_close(outcome.latents["w"], alone.latents["w"], rtol=0, atol=1e-8)


def test_same_seed_same_result_and_secret_runs_differ(data: Dataset) -> None:
    def one(seed: int | None) -> Tensor:
        return objective_perturbation(MODEL, data, noise_multiplier=9.0, seed=seed).latents["w"]

    assert torch.equal(one(3), one(3))
    assert not torch.equal(one(3), one(4))
    assert not torch.equal(one(None), one(None))


def test_price_and_type_of_the_result(data: Dataset) -> None:
    settings = ObjectivePerturbationSettings()
    accountant = settings.accountant(MODEL)
    noise = calibrate(accountant, epsilon=0.5, delta=1e-5, rate=1.0, steps=1)
    single_precision = data.to("cpu", torch.float32)
    outcome = objective_perturbation(MODEL, single_precision, noise_multiplier=noise)
    assert outcome.latents["w"].dtype == torch.float32
    assert isinstance(outcome.price, WorstCase)
    assert 0.4975 <= outcome.price.epsilon <= 0.5
    assert outcome.price == WorstCase(
        outcome.price.epsilon,
        1e-5,
        "objective perturbation",
        ADD_OR_REMOVE,
        rounding=sum_rounding(2 * len(outcome.latents["w"][0])),
    )


@pytest.mark.parametrize("name", ["radius", "share", "tolerance"])
def test_bad_settings(name: str) -> None:
    for value in (0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match=name):
            ObjectivePerturbationSettings(**{name: value})


def test_bad_records(data: Dataset) -> None:
    with pytest.raises(ValueError, match="y must be 0 or 1"):
        objective_perturbation(MODEL, replace(data, y=2 * data.y), noise_multiplier=1.0)


def test_abalone_is_learnt(uci: Path) -> None:
    split = load_abalone(uci)
    model = BayesianLogisticRegression(clip=1.0, prior_scale=0.5, limit=2.0, correlation=0.5)
    settings = ObjectivePerturbationSettings(radius=2.0, share=1.0)
    noise = calibrate(settings.accountant(model), epsilon=1.0, delta=1e-5, rate=1.0, steps=1)
    runs = [Run(noise_multiplier=noise, seed=seed) for seed in range(10)]
    outcomes = objective_perturbation_runs(model, split.train, runs=runs, settings=settings)
    mean = sum(accuracy(model, outcome.latents, split.train) for outcome in outcomes) / len(runs)
    assert mean > 0.77

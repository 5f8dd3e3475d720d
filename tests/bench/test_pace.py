"""Baselines whose step size and clip follow from public facts: their noise, and what they keep."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pyro
import pytest
import torch
from pyro.optim import SGD
from simulated import logistic_data

from bdpvi import BayesianLogisticRegression, Dataset
from bdpvi.bench.hyperparameters import load
from bdpvi.bench.methods import METHODS
from bdpvi.bench.methods.ascent import AscentSettings, noisy_ascent
from bdpvi.bench.methods.pace import pace
from bdpvi.bench.methods.runs import Run, Streams
from bdpvi.bench.methods.variational import DPVISettings, train
from bdpvi.bench.methods.without_privacy import LogisticRegression
from bdpvi.bench.tuning import base_rate_score
from bdpvi.datasets.dataset import Split
from bdpvi.models.predictions import predictive_means
from bdpvi.privacy.sampled_steps import GaussianAccountant
from bdpvi.tables.metrics import OBJECTIVES

BASELINES = ("dp-gd", "dpvi-pld", "dp-sgld-pld")


def test_noise_that_training_adds_is_that_of_the_rule() -> None:
    # Features of 0 have no score and the prior is wide: the weights are the noise alone, Lν.
    weights, rows, steps, z = 40, 1000, 20, 300.0
    made: dict[str, Any] = pace(weights, rows, noise_multiplier=z, steps=steps, rate=1.0)
    data = Dataset(torch.zeros(rows, weights).double(), torch.zeros(rows).double())
    settings = AscentSettings(steps=steps, draws=1, **made)
    runs = [Run(noise_multiplier=z, seed=seed) for seed in range(600)]
    model = BayesianLogisticRegression.unweighted(prior_scale=1e6)
    outcomes = noisy_ascent(
        model, data, runs=runs, settings=settings, accountant=GaussianAccountant()
    )
    w = torch.cat([outcome.latents["w"] for outcome in outcomes])
    clip = 0.6 * math.sqrt(weights)
    nu = clip * z / (rows * math.sqrt(steps))
    way = 1 / (1 / 30 + nu**2 * weights / 0.2)
    of_intercept = 1 / (1 / 30 + 3 * nu**2 / 0.2)
    # 39 · 600 normals: a standard error of 0.5 %; 600: one of 3 %.
    assert float(w[:, :-1].square().mean().sqrt()) == pytest.approx(way * nu, rel=0.015)
    assert float(w[:, -1].square().mean().sqrt()) == pytest.approx(of_intercept * nu, rel=0.09)


def test_the_pace_falls_with_the_noise_and_follows_from_the_order_of_n_alone() -> None:
    facts: dict[str, Any] = {"steps": 20, "rate": 1.0}
    paces = [pace(21, 1000, noise_multiplier=z, **facts)["step_size"] for z in (1, 10, 100, 1000)]
    assert paces == sorted(paces, reverse=True)
    assert paces[-1] < 1e-2 * paces[0]
    one, same = (pace(21, n, noise_multiplier=50.0, **facts)["step_size"] / n for n in (4000, 6900))
    assert one == pytest.approx(same, rel=1e-12)


def test_a_neighbouring_table_has_the_same_step() -> None:
    data = logistic_data(401, 3)
    for name in BASELINES:
        prepared: Any = [
            METHODS[name]().prepare(some, 1e-5) for some in (data, data.select(torch.arange(400)))
        ]
        if name == "dpvi-pld":
            rates = [p.settings(30.0).optim.pt_optim_args["lr"] for p in prepared]
        else:  # per record: the step over the number of training records
            rates = [
                p.settings(30.0).step_size / n for p, n in zip(prepared, (401, 400), strict=True)
            ]
        assert rates[0] == pytest.approx(rates[1], rel=1e-12)


def test_the_last_parameters_go_as_many_times_as_far() -> None:
    data = logistic_data(200, 3)
    model = BayesianLogisticRegression.unweighted(intercept=True)
    runs = [Run(noise_multiplier=1.0, seed=0)]
    moved = []
    for last in (1.0, 5.0):
        settings = DPVISettings(steps=1, rate=1.0, optim=SGD({"lr": 1e-4}), last=last)
        streams = Streams(runs, data, steps=1, rate=1.0)
        moved.append(train(model, data, streams, settings).loc[0])
    torch.testing.assert_close(moved[1][:-1], moved[0][:-1])
    torch.testing.assert_close(moved[1][-1], 5 * moved[0][-1])


@pytest.mark.parametrize("name", BASELINES)
def test_defaults_are_above_the_base_rate_and_rise_with_epsilon(name: str) -> None:
    pyro.set_rng_seed(0)
    data = logistic_data(5000, 10)
    shifted = replace(data, y=(data.y.bool() & (torch.arange(5000) % 2 == 0)).double())  # a quarter
    split = Split(shifted.select(torch.arange(3000)), shifted.select(torch.arange(3000, 5000)))
    method = load("no table of the file").methods[name]
    assert method == METHODS[name]()
    assert method.steps >= 8  # type: ignore[attr-defined]
    prepared, found = method.prepare(split.train, 1e-5), []
    for epsilon in (0.2, 1.0, 5.0):
        outcomes = prepared.outcomes([prepared.calibrate(epsilon)] * 3, range(3))
        scores = [
            OBJECTIVES["log-score"].of(
                predictive_means(method.model, o.latents, split.test.x).mean(0)[None], split.test.y
            )
            for o in outcomes
        ]
        found.append(float(torch.stack(scores).mean()))
    assert found[0] > base_rate_score(split, OBJECTIVES["log-score"])
    assert found[0] < found[1] < found[2] + 0.002


def test_logistic_regression_is_at_its_optimum() -> None:
    data = logistic_data(500, 4)
    model = BayesianLogisticRegression.unweighted(intercept=True, prior_scale=2.0)
    w = LogisticRegression(model=model).prepare(data, 1e-5).latents["w"][0]
    design = model.design(data.x)
    gradient = design.T @ (data.y - torch.sigmoid(design @ w)) - w / 4
    assert float(gradient.norm()) < 1e-3
    with pytest.raises(ValueError, match="one class"):
        LogisticRegression().prepare(replace(data, y=torch.zeros(500).double()), 1e-5)

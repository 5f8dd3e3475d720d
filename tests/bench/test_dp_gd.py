"""Gradient descent: its optimum, its steps written out, its price."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from accounts import worst_of
from scipy.stats import chi2
from simulated import logistic_data, single
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from bdpvi import BayesianLogisticRegression, Dataset
from bdpvi.bench.methods.descent import DPGDSettings, dp_gd_runs
from bdpvi.bench.methods.runs import Run, Stream
from bdpvi.bench.methods.scores import Batch, Clip, ClosedScores, TracedScores, euclidean
from bdpvi.datasets.abalone import load_abalone
from bdpvi.noise.secure import sum_step
from bdpvi.privacy.sampled_steps import GaussianAccountant, calibrate
from bdpvi.releases.noisy_sum import deviation_for
from bdpvi.tables.metrics import accuracy

dp_gd = single(dp_gd_runs)


def same_model(x: Tensor, y: Tensor | None = None) -> None:
    """Logistic regression as any user would write it."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(()), 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def test_without_noise_and_clipping_it_finds_the_maximum(data: Dataset) -> None:
    settings = DPGDSettings(steps=2000, clip=1e6, step_size=2.0, tail=0.0)
    outcome = dp_gd(
        BayesianLogisticRegression.unweighted(prior_scale=2.0),
        data,
        noise_multiplier=0.0,
        settings=settings,
    )
    assert outcome.cost is None
    reference = LogisticRegression(C=4.0, fit_intercept=False, tol=1e-12, max_iter=1000)
    reference.fit(data.x.numpy(), data.y.numpy())
    np.testing.assert_allclose(outcome.latents["w"][0].numpy(), reference.coef_[0], rtol=1e-6)


@pytest.mark.parametrize("tail", [0.0, 0.5, 1.0])
def test_every_step_written_out(data: Dataset, tail: float) -> None:
    settings = DPGDSettings(steps=6, clip=0.5, step_size=0.8, tail=tail)
    model = BayesianLogisticRegression.unweighted(prior_scale=0.7)
    outcome = dp_gd(model, data, noise_multiplier=1.5, settings=settings, seed=4)
    stream = Stream(4, 6, 1.0)
    x, y = data.x.numpy(), data.y.numpy()
    w, iterates = np.zeros(3), []
    step = sum_step(deviation_for(1.5, 0.5, 3))
    for _ in range(6):
        total = np.zeros(3)
        for record, label in zip(x, y, strict=True):
            score = (label - 1 / (1 + math.exp(-record @ w))) * record
            total = total + score * min(1.0, 0.5 * (1 - 2**-20) / float(np.linalg.norm(score)))
        total = step * (np.round(total / step) + stream.noise.whole(3).numpy())
        w = w + 0.8 / len(x) * (total - w / 0.49)
        iterates.append(w)
    kept = {0.0: 1, 0.5: 3, 1.0: 6}[tail]
    np.testing.assert_allclose(
        outcome.latents["w"][0].numpy(), np.mean(iterates[-kept:], axis=0), rtol=1e-10
    )


def test_a_traced_model_gives_the_same_as_the_closed_form(data: Dataset) -> None:
    settings = DPGDSettings(steps=10, clip=0.5)
    closed = dp_gd(
        BayesianLogisticRegression.unweighted(),
        data,
        noise_multiplier=1.0,
        settings=settings,
        seed=1,
    )
    traced = dp_gd(same_model, data, noise_multiplier=1.0, settings=settings, seed=1)
    torch.testing.assert_close(traced.latents["w"], closed.latents["w"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", [BayesianLogisticRegression.unweighted(), same_model])
def test_runs_side_by_side_are_as_alone(model: Any, data: Dataset) -> None:
    runs = [Run(noise_multiplier=s, seed=seed) for s, seed in ((0.5, 1), (2.0, 1), (2.0, 5))]
    settings = DPGDSettings(steps=10)
    for run, outcome in zip(
        runs, dp_gd_runs(model, data, runs=runs, settings=settings), strict=True
    ):
        alone = dp_gd(
            model, data, noise_multiplier=run.noise_multiplier, settings=settings, seed=run.seed
        )
        assert outcome.cost == alone.cost
        torch.testing.assert_close(outcome.latents["w"], alone.latents["w"], rtol=1e-9, atol=1e-9)


def test_what_the_guarantee_takes_for_public_is_the_step_not_the_number_of_records() -> None:
    """A record of zeros, whose score is 0, changes nothing as long as η stays what it was."""
    data = logistic_data(60, 3)
    fewer = data.without(59)
    more = Dataset(torch.cat([fewer.x, torch.zeros(1, 3).double()]), data.y)

    def last(records: Dataset, step_size: float) -> torch.Tensor:
        settings = DPGDSettings(steps=5, step_size=step_size)
        outcome = dp_gd(
            BayesianLogisticRegression.unweighted(),
            records,
            noise_multiplier=1.0,
            settings=settings,
            seed=0,
        )
        return outcome.latents["w"]

    # Five contractions, each with a sum of 60 scores of norm 1, and few roundings beside it.
    rounding = 5 * 2.0**-53 * (60 + 8) * 60 / 64
    torch.testing.assert_close(last(more, 60 / 64), last(fewer, 59 / 64), rtol=0, atol=rounding)
    assert float((last(more, 60 / 64) - last(fewer, 60 / 64)).abs().max()) > 1e-4


def test_same_seed_same_result_and_secret_runs_differ(data: Dataset) -> None:
    def one(seed: int | None) -> Tensor:
        return dp_gd(
            BayesianLogisticRegression.unweighted(), data, noise_multiplier=9.0, seed=seed
        ).latents["w"]

    assert torch.equal(one(3), one(3))
    assert not torch.equal(one(3), one(4))
    assert not torch.equal(one(None), one(None))


def test_noise_of_one_step_has_the_promised_variance(data: Dataset) -> None:
    settings = DPGDSettings(steps=1, clip=0.4, step_size=0.9, tail=0.0)
    runs = [Run(noise_multiplier=3.0, seed=seed) for seed in range(1500)]
    outcomes = dp_gd_runs(
        BayesianLogisticRegression.unweighted(), data, runs=runs, settings=settings
    )
    quiet = dp_gd(
        BayesianLogisticRegression.unweighted(), data, noise_multiplier=0.0, settings=settings
    )
    moved = torch.cat([outcome.latents["w"] for outcome in outcomes]) - quiet.latents["w"]
    standard = moved / (0.9 / 60 * 3.0 * 0.4)
    low, high = chi2.interval(1 - 1e-6, standard.numel())
    assert low < float(standard.square().sum()) < high


def test_price_is_exact_gaussian_dp(data: Dataset) -> None:
    settings = DPGDSettings(steps=50)
    sigma = calibrate(GaussianAccountant(), epsilon=0.5, delta=1e-5, rate=1.0, steps=50)
    cost = dp_gd(
        BayesianLogisticRegression.unweighted(), data, noise_multiplier=sigma, settings=settings
    ).cost
    assert cost is not None
    price = worst_of(cost)
    assert 0.495 < price.epsilon <= 0.5
    assert (price.delta, price.by) == (1e-5, "Gaussian DP")


@pytest.mark.parametrize("name", ["steps", "clip", "step_size"])
def test_bad_settings(name: str) -> None:
    for value in (0, -1):
        with pytest.raises(ValueError, match=name):
            DPGDSettings(**{name: value})


def test_bad_tail_and_divergence() -> None:
    for tail in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="tail"):
            DPGDSettings(tail=tail)
    with pytest.raises(FloatingPointError, match="step_size"):
        dp_gd(
            BayesianLogisticRegression.unweighted(),
            logistic_data(10, 2),
            noise_multiplier=1.0,
            settings=DPGDSettings(step_size=1e200),
        )


def test_abalone_is_learnt(uci: Path) -> None:
    split = load_abalone(uci)
    model = BayesianLogisticRegression.unweighted()
    sigma = calibrate(GaussianAccountant(), epsilon=1.0, delta=1e-5, rate=1.0, steps=100)
    runs = [Run(noise_multiplier=sigma, seed=seed) for seed in range(10)]
    outcomes = dp_gd_runs(
        model, split.train, runs=runs, settings=DPGDSettings(clip=0.5, step_size=4.0)
    )
    mean = sum(accuracy(model, outcome.latents, split.test) for outcome in outcomes) / len(runs)
    assert mean > 0.75


@pytest.mark.parametrize("kind", [ClosedScores, TracedScores])
def test_no_rounding_makes_a_score_longer_than_the_clip(
    kind: type[ClosedScores | TracedScores],
) -> None:
    made, clip = logistic_data(100, 7), 0.7
    data = Dataset(1e3 * made.x, made.y)
    records = kind(BayesianLogisticRegression.unweighted(), data)
    w, longest = torch.zeros(1, 7, dtype=torch.float64), Fraction(0)
    for record in range(len(data)):
        batch = Batch(torch.tensor([[record]]), torch.ones(1, 1, dtype=torch.float64))
        with pyro.validation_enabled(False):
            (score,) = records.likelihood(w, batch, Clip(clip, euclidean)).tolist()
        longest = max(longest, sum((Fraction(one) ** 2 for one in score), Fraction(0)))
    assert (1 - 1e-5) * clip**2 < longest <= Fraction(clip) ** 2


def test_noise_on_sums_in_single_precision_is_refused_and_the_remedy_works(data: Dataset) -> None:
    model, rough = BayesianLogisticRegression.unweighted(), Dataset(data.x.float(), data.y.float())
    with pytest.raises(ValueError, match=r"data is of torch.float32, .*: Dataset\(x.double"):
        dp_gd(model, rough, noise_multiplier=1.0)
    fine = Dataset(rough.x.double(), rough.y.double())
    cost = dp_gd(model, fine, noise_multiplier=50.0).cost
    assert cost is not None
    assert worst_of(cost).epsilon > 0

"""Langevin dynamics: its constant by hand, its noise, its stationary distribution."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from accounts import worst_of
from scipy.stats import chi2
from simulated import logistic_data, single
from torch import Tensor

from bdpvi import BayesianLogisticRegression, Dataset
from bdpvi.bench.methods.runs import Run
from bdpvi.bench.methods.sgld import DPSGLDSettings, SGLDAccountant, dp_sgld_runs, gradient_variance
from bdpvi.noise.batches import BatchPlan
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant, calibrate
from bdpvi.releases.noisy_sum import deviation_for

MODEL = BayesianLogisticRegression.unweighted()
dp_sgld = single(dp_sgld_runs)


def test_constant_by_hand() -> None:
    # N = 1000, b = 50, T = 20 passes, L = 2, ε = 1/2, δ = 1e-5:
    # 128 · 1000 · 20 · 4 / (50 / 4) = 819,200; log(5 · 1000 · 20 / (2 · 50 · 1e-5)) = log 1e8
    # = 18.420681; log 2e5 = 12.206073.
    by_hand = 819_200 * 18.420681 * 12.206073
    assert by_hand == pytest.approx(1.8419e8, rel=1e-4)
    ours = gradient_variance(0.5, delta=1e-5, steps=1000 * 20 // 50, clip=2.0)
    assert ours == pytest.approx(by_hand, rel=1e-6)


def test_original_calibration_inverts_the_constant() -> None:
    rate, steps, clip = 0.05, 400, 2.0
    sigma = calibrate(SGLDAccountant(), epsilon=0.5, delta=1e-5, rate=rate, steps=steps)
    exact = rate * math.sqrt(gradient_variance(0.5, delta=1e-5, steps=steps, clip=clip)) / clip
    assert exact <= sigma <= 1.006 * exact
    assert PrivacyLossAccountant().epsilon(sigma, rate, steps, 1e-5) < 0.1  # what it really costs


def test_original_calibration_promises_nothing_beyond_its_condition() -> None:
    # T = 0.1 passes, b/N = 0.01: ε² may be at most 32 T b/N log(2/δ) = 0.3906.
    accountant = SGLDAccountant()
    top = math.sqrt(32 * 0.1 * 0.01 * math.log(2e5))
    per_sigma = accountant.epsilon(1e3, 0.01, 10, 1e-5) * 1e3
    assert accountant.epsilon(per_sigma / (0.999 * top), 0.01, 10, 1e-5) == pytest.approx(
        0.999 * top
    )
    assert accountant.epsilon(per_sigma / (1.001 * top), 0.01, 10, 1e-5) == math.inf


def first_step(sigma: float, seeds: range, data: Dataset, settings: DPSGLDSettings) -> Tensor:
    runs = [Run(noise_multiplier=sigma, seed=seed) for seed in seeds]
    outcomes = dp_sgld_runs(MODEL, data, runs=runs, settings=settings)
    return torch.cat([outcome.latents["w"] for outcome in outcomes])


def test_noise_is_the_larger_of_langevins_and_privacys(data: Dataset) -> None:
    settings = DPSGLDSettings(
        steps=1, rate=1.0, clip=0.5, step_size=0.6, burn_in=0.0, draws=1
    )  # fmt: skip
    eta, seeds = 0.6 / len(data), range(1000)
    quiet, same, loud, louder = (
        first_step(s, seeds, data, settings) for s in (0.0, 1.0, 90.0, 180.0)
    )
    # K = (Lσ/q)²: Langevin's noise is larger up to σ = 1/(0.5 √η) = 20.
    assert torch.equal(quiet, same)
    louder_by = deviation_for(180.0, 0.5, 3) - deviation_for(90.0, 0.5, 3)
    assert louder_by == pytest.approx(0.5 * 90.0, rel=1e-6)
    standard = (louder - loud) / (eta * louder_by)
    low, high = chi2.interval(1 - 1e-6, standard.numel())
    assert low < float(standard.square().sum()) < high
    langevin = eta * deviation_for(1 / (0.5 * math.sqrt(eta)), 0.5, 3)
    assert langevin == pytest.approx(math.sqrt(eta), rel=1e-6)
    drift = (quiet - standard * langevin).mean(0)
    torch.testing.assert_close(quiet, drift + standard * langevin, rtol=1e-9, atol=1e-9)
    slope = (data.y - 0.5).unsqueeze(1) * data.x
    norm = slope.norm(dim=1, keepdim=True)
    expected = eta * (slope * (0.5 * (1 - 2**-20) / norm).clamp(max=1)).sum(0)
    torch.testing.assert_close(drift, expected, rtol=1e-9, atol=1e-9)


def test_price_counts_langevins_noise(data: Dataset) -> None:
    settings = DPSGLDSettings(steps=100, rate=0.2, clip=0.5, step_size=0.1, draws=50)
    langevin = 0.2 / 0.5 * math.sqrt(len(data) / 0.1)
    for sigma in (0.0, 1.0, 20.0):
        cost = dp_sgld(MODEL, data, noise_multiplier=sigma, settings=settings, seed=0).cost
        assert cost is not None
        price = worst_of(cost)
        expected = PrivacyLossAccountant().epsilon(max(sigma, langevin), 0.2, 100, 1e-5)
        assert price.epsilon == pytest.approx(expected, rel=1e-9)
    langevins = dp_sgld(
        MODEL, data, noise_multiplier=20.0, settings=settings, accountant=SGLDAccountant()
    ).cost
    assert langevins is not None
    original = worst_of(langevins)
    assert original.by == "Wang, Fienberg and Smola (2015)"
    variance = gradient_variance(original.epsilon, delta=1e-5, steps=100, clip=0.5)
    assert math.sqrt(variance) == pytest.approx(0.5 * 20.0 / 0.2, rel=1e-9)


def test_stationary_distribution() -> None:
    """Noise N(0, η) beside drift η∇log p, as published: the posterior at temperature 1/2."""

    def mean_of(x: Tensor, y: Tensor | None = None) -> None:
        mu = pyro.sample("mu", dist.Normal(x.new_zeros(()), 1.0))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(mu.expand(len(x)), 1.0), obs=y)

    y = torch.linspace(-1, 2, 9, dtype=torch.float64)
    data = Dataset(torch.zeros(9, 1, dtype=torch.float64), y)
    settings = DPSGLDSettings(
        steps=150, rate=1.0, clip=1e6, step_size=0.02 * 9, burn_in=0.0, draws=1
    )  # fmt: skip
    runs = [Run(noise_multiplier=0.0, seed=seed) for seed in range(800)]
    outcomes = dp_sgld_runs(mean_of, data, runs=runs, settings=settings)
    last = torch.cat([outcome.latents["mu"] for outcome in outcomes])
    precision, step = 10.0, 0.02
    # An AR(1) process: w ← (1 − ηΛ)w + …, with its discretisation written out.
    variance = step / (1 - (1 - step * precision) ** 2)
    assert variance == pytest.approx(0.5 / precision, rel=0.12)
    assert float(last.mean()) == pytest.approx(
        float(y.sum()) / precision, abs=5 * (variance / 800) ** 0.5
    )
    low, high = chi2.interval(1 - 1e-6, 799)
    assert low < float(last.var()) * 799 / variance < high


@pytest.mark.parametrize("decay", [0.0, 0.4])
def test_runs_side_by_side_are_as_alone(decay: float, data: Dataset) -> None:
    runs = [Run(noise_multiplier=s, seed=seed) for s, seed in ((0.5, 1), (2.0, 1), (2.0, 5))]
    settings = DPSGLDSettings(steps=20, rate=0.2, draws=7, decay=decay)
    together = dp_sgld_runs(MODEL, data, runs=runs, settings=settings)
    for run, outcome in zip(runs, together, strict=True):
        alone = dp_sgld(
            MODEL, data, noise_multiplier=run.noise_multiplier, settings=settings, seed=run.seed
        )
        assert outcome.cost == alone.cost
        assert outcome.latents["w"].shape == (7, 3)
        torch.testing.assert_close(outcome.latents["w"], alone.latents["w"], rtol=1e-9, atol=1e-9)


def test_what_the_guarantee_takes_for_public_is_the_step_not_the_number_of_records() -> None:
    """A record that no batch has changes nothing, as long as η stays what it was."""
    data, plan = logistic_data(60, 3), BatchPlan(steps=5, rate=0.1, seed=0)
    seen = torch.stack([plan.batch(step, data.ids) for step in range(plan.steps)]).any(0)
    fewer = data.without(int((~seen).nonzero()[0]))

    def last(records: Dataset, step_size: float) -> Tensor:
        settings = DPSGLDSettings(steps=5, rate=0.1, draws=1, step_size=step_size)
        return dp_sgld(MODEL, records, noise_multiplier=9.0, settings=settings, seed=0).latents["w"]

    assert torch.equal(last(data, 60 / 64), last(fewer, 59 / 64))
    assert not torch.equal(last(data, 60 / 64), last(fewer, 60 / 64))


def test_same_seed_same_result_and_empty_batches(data: Dataset) -> None:
    def one(seed: int | None, rate: float) -> Tensor:
        settings = DPSGLDSettings(steps=20, rate=rate, draws=3)
        return dp_sgld(MODEL, data, noise_multiplier=1.0, settings=settings, seed=seed).latents["w"]

    assert torch.equal(one(3, 0.1), one(3, 0.1))
    assert not torch.equal(one(3, 0.1), one(4, 0.1))
    assert not torch.equal(one(None, 0.1), one(None, 0.1))
    assert bool(one(1, 1e-9).isfinite().all())


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"steps": 0}, "steps"),
        ({"rate": 0.0}, "rate"),
        ({"clip": math.nan}, "clip"),
        ({"step_size": 0.0}, "step_size"),
        ({"decay": -1.0}, "decay"),
        ({"burn_in": 1.0}, "burn_in"),
        ({"burn_in": math.nan}, "burn_in"),
        ({"steps": 10, "draws": 6}, "draws=6 is more than the 5"),
    ],
)
def test_bad_settings(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        DPSGLDSettings(**settings)


def test_divergence_is_an_error() -> None:
    with pytest.raises(FloatingPointError, match="step_size"):
        dp_sgld(
            MODEL,
            logistic_data(10, 2),
            noise_multiplier=1.0,
            settings=DPSGLDSettings(step_size=1e200),
        )

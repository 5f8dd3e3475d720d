"""Noisy ascent: its optimum, its steps written out, its noise, its price, its stationary law."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from accounts import worst_of
from scipy.stats import chi2
from simulated import logistic_data, single
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from bdpvi import BayesianLogisticRegression, Dataset
from bdpvi.bench.methods.ascent import (
    AscentSettings,
    SGLDAccountant,
    gradient_variance,
    noisy_ascent,
)
from bdpvi.bench.methods.dp_gd import DPGD, DPSGLDLosses, DPSGLDOriginal
from bdpvi.bench.methods.runs import Run, Stream
from bdpvi.bench.methods.scores import Batch, Clip, RecordScores, euclidean
from bdpvi.noise.batches import BatchPlan
from bdpvi.noise.secure import sum_step
from bdpvi.privacy.sampled_steps import GaussianAccountant, PrivacyLossAccountant, calibrate
from bdpvi.releases.noisy_sum import deviation_for

MODEL = BayesianLogisticRegression.unweighted()
LOSSES = PrivacyLossAccountant()
LANGEVIN: dict[str, Any] = {"steps": 1000, "rate": 0.05, "step_size": 0.1, "langevin": True}
several = partial(noisy_ascent, accountant=LOSSES)
ascent = single(several)


def test_without_noise_and_clipping_it_finds_the_maximum(data: Dataset) -> None:
    settings = AscentSettings(steps=2000, clip=1e6, step_size=2.0, draws=1)
    model = BayesianLogisticRegression.unweighted(prior_scale=2.0)
    outcome = ascent(model, data, noise_multiplier=0.0, settings=settings)
    assert outcome.cost is None
    reference = LogisticRegression(C=4.0, fit_intercept=False, tol=1e-12, max_iter=1000)
    reference.fit(data.x.numpy(), data.y.numpy())
    np.testing.assert_allclose(outcome.latents["w"][0].numpy(), reference.coef_[0], rtol=1e-6)


@pytest.mark.parametrize("tail", [0.0, 0.5, 1.0])
def test_every_step_written_out(data: Dataset, tail: float) -> None:
    model = BayesianLogisticRegression.unweighted(prior_scale=0.7)
    method = DPGD(model=model, steps=6, clip=0.5, step_size=0.8, tail=tail)
    prepared = method.prepare(data, 1e-5)
    (outcome,) = prepared.outcomes([1.5], [4])
    stream = Stream(4, 6, 1.0)
    x, y = data.x.numpy(), data.y.numpy()
    w, iterates = np.zeros(3), []
    step = sum_step(deviation_for(1.5, 0.5, 3))
    for _ in range(6):
        total = np.zeros(3)
        for record, label in zip(x, y, strict=True):
            score = (label - 1 / (1 + math.exp(-record @ w))) * record
            total = total + score * min(1.0, 0.5 * (1 - 2**-20) / float(np.linalg.norm(score)))
        total = step * (np.round(total / step) + stream.noise.take(3).numpy())
        w = w + 0.8 / len(x) * (total - w / 0.49)
        iterates.append(w)
    kept = {0.0: 1, 0.5: 3, 1.0: 6}[tail]
    np.testing.assert_allclose(
        outcome.latents["w"][0].numpy(), np.mean(iterates[-kept:], axis=0), rtol=1e-10
    )


def test_what_the_guarantee_takes_for_public_is_the_step_not_the_number_of_records() -> None:
    """A record that no batch has, or whose score is 0, changes nothing if η stays what it was."""
    data, plan = logistic_data(60, 3), BatchPlan(steps=5, rate=0.1, seed=0)
    seen = torch.stack([plan.batch(step, data.ids) for step in range(plan.steps)]).any(0)
    fewer = data.without(int((~seen).nonzero()[0]))

    def last(records: Dataset, step_size: float, **given: Any) -> Tensor:
        settings = AscentSettings(steps=5, step_size=step_size, **given)
        return ascent(MODEL, records, noise_multiplier=9.0, settings=settings, seed=0).latents["w"]

    batches = {"rate": 0.1, "langevin": True}
    assert torch.equal(last(data, 60 / 64, **batches), last(fewer, 59 / 64, **batches))
    assert not torch.equal(last(data, 60 / 64, **batches), last(fewer, 60 / 64, **batches))
    fewer = data.without(59)
    more = Dataset(torch.cat([fewer.x, torch.zeros(1, 3).double()]), data.y)
    # Five contractions, each with a sum of 60 scores of norm 1, and few roundings beside it.
    rounding = 5 * 2.0**-53 * (60 + 8) * 60 / 64
    torch.testing.assert_close(last(more, 60 / 64), last(fewer, 59 / 64), rtol=0, atol=rounding)
    assert float((last(more, 60 / 64) - last(fewer, 60 / 64)).abs().max()) > 1e-4


def test_noise_of_one_step_has_the_promised_variance(data: Dataset) -> None:
    settings = AscentSettings(steps=1, clip=0.4, step_size=0.9)
    runs = [Run(noise_multiplier=3.0, seed=seed) for seed in range(1500)]
    outcomes = several(MODEL, data, runs=runs, settings=settings)
    quiet = ascent(MODEL, data, noise_multiplier=0.0, settings=settings)
    moved = torch.cat([outcome.latents["w"] for outcome in outcomes]) - quiet.latents["w"]
    standard = moved / (0.9 / 60 * 3.0 * 0.4)
    low, high = chi2.interval(1 - 1e-6, standard.numel())
    assert low < float(standard.square().sum()) < high


def test_price_is_exact_gaussian_dp(data: Dataset) -> None:
    prepared = DPGD(steps=50).prepare(data, 1e-5)
    (outcome,) = prepared.outcomes([prepared.calibrate(0.5)], [0])
    assert outcome.cost is not None
    price = worst_of(outcome.cost)
    assert 0.495 < price.epsilon <= 0.5
    assert (price.delta, price.by) == (1e-5, "Gaussian DP")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"steps": 0}, "steps"),
        ({"rate": 0.0}, "rate"),
        ({"clip": math.nan}, "clip"),
        ({"step_size": -1.0}, "step_size"),
        ({"last": 0.0}, "last"),
        ({"decay": -1.0}, "decay"),
        ({"first": 5, "draws": 6}, "draws=6 is more than the 5"),
    ],
)
def test_bad_settings(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        AscentSettings(**{"steps": 10, **settings})


def test_bad_fractions_and_divergence() -> None:
    for tail in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="tail"):
            DPGD(tail=tail)
    for burn_in in (1.0, math.nan):
        with pytest.raises(ValueError, match="burn_in"):
            DPSGLDLosses(burn_in=burn_in)
    for settings in (AscentSettings(steps=100, step_size=1e200),
                     AscentSettings(**LANGEVIN | {"step_size": 1e200})):  # fmt: skip
        with pytest.raises(FloatingPointError, match="step_size"):
            ascent(MODEL, logistic_data(10, 2), noise_multiplier=1.0, settings=settings)


def test_no_rounding_makes_a_score_longer_than_the_clip() -> None:
    made, clip = logistic_data(100, 7), 0.7
    data = Dataset(1e3 * made.x, made.y)
    records = RecordScores(MODEL, data)
    w, longest = torch.zeros(1, 7, dtype=torch.float64), Fraction(0)
    for record in range(len(data)):
        batch = Batch(torch.tensor([[record]]), torch.ones(1, 1, dtype=torch.float64))
        (score,) = records.likelihood(w, batch, Clip(clip, euclidean)).tolist()
        longest = max(longest, sum((Fraction(one) ** 2 for one in score), Fraction(0)))
    assert (1 - 1e-5) * clip**2 < longest <= Fraction(clip) ** 2


def test_noise_on_sums_in_single_precision_is_refused_and_the_remedy_works(data: Dataset) -> None:
    rough, settings = Dataset(data.x.float(), data.y.float()), AscentSettings(steps=10)
    with pytest.raises(ValueError, match=r"data is of torch.float32, .*: Dataset\(x.double"):
        ascent(MODEL, rough, noise_multiplier=1.0, settings=settings)
    fine = Dataset(rough.x.double(), rough.y.double())
    cost = ascent(MODEL, fine, noise_multiplier=50.0, settings=settings).cost
    assert cost is not None
    assert worst_of(cost).epsilon > 0


# --- Langevin dynamics ----------------------------------------------------------------------------


def test_constant_by_hand() -> None:
    # N = 1000, b = 50, T = 20 passes, L = 2, ε = 1/2, δ = 1e-5:
    # 128 · 1000 · 20 · 4 / (50 / 4) = 819,200; log(5 · 1000 · 20 / (2 · 50 · 1e-5)) = log 1e8
    # = 18.420681; log 2e5 = 12.206073.
    by_hand = 819_200 * 18.420681 * 12.206073
    ours = gradient_variance(0.5, delta=1e-5, steps=1000 * 20 // 50, clip=2.0)
    assert ours == pytest.approx(by_hand, rel=1e-6)


def test_original_calibration_inverts_the_constant_and_promises_nothing_beyond_its_condition() -> (
    None
):
    rate, steps, clip = 0.05, 400, 2.0
    sigma = calibrate(SGLDAccountant(), epsilon=0.5, delta=1e-5, rate=rate, steps=steps)
    exact = rate * math.sqrt(gradient_variance(0.5, delta=1e-5, steps=steps, clip=clip)) / clip
    assert exact <= sigma <= 1.006 * exact
    assert LOSSES.epsilon(sigma, rate, steps, 1e-5) < 0.1  # what it really costs
    # T = 0.1 passes, b/N = 0.01: ε² may be at most 32 T b/N log(2/δ) = 0.3906.
    accountant = SGLDAccountant()
    top = math.sqrt(32 * 0.1 * 0.01 * math.log(2e5))
    per_sigma = accountant.epsilon(1e3, 0.01, 10, 1e-5) * 1e3
    found = accountant.epsilon(per_sigma / (0.999 * top), 0.01, 10, 1e-5)
    assert found == pytest.approx(0.999 * top)
    assert accountant.epsilon(per_sigma / (1.001 * top), 0.01, 10, 1e-5) == math.inf


def test_noise_is_the_larger_of_langevins_and_privacys(data: Dataset) -> None:
    settings = AscentSettings(steps=1, clip=0.5, step_size=0.6, langevin=True)
    eta, seeds = 0.6 / len(data), range(1000)

    def first_step(sigma: float) -> Tensor:
        runs = [Run(noise_multiplier=sigma, seed=seed) for seed in seeds]
        outcomes = several(MODEL, data, runs=runs, settings=settings)
        return torch.cat([outcome.latents["w"] for outcome in outcomes])

    quiet, same, loud, louder = map(first_step, (0.0, 1.0, 90.0, 180.0))
    # K = (Cσ/q)²: Langevin's noise is larger up to σ = 1/(0.5 √η) = 20.
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
    given: dict[str, Any] = {"steps": 100, "rate": 0.2, "clip": 0.5, "step_size": 0.1, "draws": 25}
    langevin = 0.2 / 0.5 * math.sqrt(len(data) / 0.1)
    prepared = DPSGLDLosses(model=MODEL, **given).prepare(data, 1e-5)
    for sigma in (0.0, 1.0, 20.0):
        (outcome,) = prepared.outcomes([sigma], [0])
        assert outcome.cost is not None
        expected = LOSSES.epsilon(max(sigma, langevin), 0.2, 100, 1e-5)
        assert worst_of(outcome.cost).epsilon == pytest.approx(expected, rel=1e-9)
    (outcome,) = DPSGLDOriginal(model=MODEL, **given).prepare(data, 1e-5).outcomes([20.0], [0])
    assert outcome.cost is not None
    original = worst_of(outcome.cost)
    assert original.by == "Wang, Fienberg and Smola (2015)"
    variance = gradient_variance(original.epsilon, delta=1e-5, steps=100, clip=0.5)
    assert math.sqrt(variance) == pytest.approx(0.5 * 20.0 / 0.2, rel=1e-9)


def test_gaussian_dp_is_not_less_than_what_losses_say(data: Dataset) -> None:
    run = [Run(noise_multiplier=20.0, seed=0)]
    settings = AscentSettings(steps=20)
    exact, by_losses = (
        noisy_ascent(MODEL, data, runs=run, settings=settings, accountant=one)[0].cost
        for one in (GaussianAccountant(), LOSSES)
    )
    assert exact is not None
    assert by_losses is not None
    assert worst_of(exact).epsilon == pytest.approx(worst_of(by_losses).epsilon, rel=1e-3)

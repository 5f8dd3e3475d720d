"""The rule against what it predicts: how often Student's t misses, by two kinds of sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from studies.estimators import known_population
from studies.populations import Population, gaussian_square, lognormal, uniform, weibull
from studies.tilting import miss_rate
from torch import Tensor

from bdpvi.bayesian.accounting.estimators import MeanEstimate, student_t
from bdpvi.bayesian.accounting.reliability import predicted_miss_rate, reliable, why


def _simulated(
    population: Population, m: int, gamma: float, repeats: int
) -> tuple[MeanEstimate, Tensor]:
    rng = np.random.default_rng(0)
    log_values = torch.tensor(population.log_value(rng.standard_normal((repeats, m))))
    estimate = student_t(log_values, gamma)
    return estimate, estimate.log_bound < population.log_mean


@pytest.mark.parametrize("population", [weibull(1.0), weibull(2.0), gaussian_square(0.001)])
def test_prediction_is_the_miss_rate_where_records_are_many(population: Population) -> None:
    m, gamma = 400, 1e-2
    _, missed = _simulated(population, m, gamma, repeats=20_000)
    rate = float(missed.double().mean())
    y = np.exp(population.log_value(stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000)))
    # Without the standard error, since this is the population's own skewness.
    skewness = torch.tensor(stats.skew(y) - math.sqrt(6 / m))
    error = math.sqrt(rate / 20_000)
    assert float(predicted_miss_rate(skewness, m, gamma)) == pytest.approx(rate, abs=4 * error)


@pytest.mark.parametrize("gamma", [1e-6, 1e-10, 1e-15])
def test_prediction_is_no_smaller_than_the_miss_rate_far_out(gamma: float) -> None:
    m = 2000
    found = miss_rate(weibull(1.0), m, gamma, 1000, np.random.default_rng(0))
    predicted = float(predicted_miss_rate(torch.tensor(2.0 - math.sqrt(6 / m)), m, gamma))
    assert found.rate - 4 * found.standard_error < predicted < 10 * found.rate


def test_tilted_sampling_agrees_with_plain_sampling() -> None:
    for population in (gaussian_square(0.3), lognormal(1.0), uniform()):
        _, missed = _simulated(population, 64, 1e-2, repeats=40_000)
        rate = float(missed.double().mean())
        tilted = miss_rate(population, 64, 1e-2, 4000, np.random.default_rng(1))
        error = math.hypot(math.sqrt(rate / 40_000), tilted.standard_error)
        assert tilted.rate == pytest.approx(rate, abs=4 * error)


def test_known_failure_of_student_t_is_found_and_called_unreliable() -> None:
    population = gaussian_square(0.3)
    found = miss_rate(population, 256, 1e-6, 2000, np.random.default_rng(0))
    assert 0.010 < found.rate < 0.015
    estimate, missed = _simulated(population, 256, 1e-6, repeats=5000)
    assert int(missed.sum()) > 20
    assert not reliable(estimate, 1e-6).any()


def test_light_tails_and_many_records_are_reliable() -> None:
    log_values = torch.tensor(uniform().log_value(np.random.default_rng(0).standard_normal(1000)))
    for scale in (1e-6, 1.0):  # at tiny costs y is almost 1 for everyone
        assert reliable(student_t(scale * log_values, 1e-15), 1e-15)
    assert not reliable(student_t(log_values[:30], 1e-15), 1e-15)


def test_one_record_that_decides_is_unreliable_however_small_its_cost() -> None:
    log_values = 1e-6 * torch.rand(600, dtype=torch.float64)
    log_values[0] = 1e-4
    estimate = student_t(log_values, 1e-6)
    assert not reliable(estimate, 1e-6)


def test_prediction_grows_with_skewness_and_falls_with_records() -> None:
    skewness = torch.linspace(-5, 50, 100)
    rates = predicted_miss_rate(skewness, 500, 1e-8)
    assert bool((rates.diff() >= 0).all())
    assert float(rates[0]) == pytest.approx(1e-8)
    assert float(rates[-1]) == 1
    by_size = [float(predicted_miss_rate(torch.tensor(1.0), m, 1e-8)) for m in (50, 500, 5000)]
    assert by_size == sorted(by_size, reverse=True)


def test_equal_and_infinite_values_are_unreliable_and_known_populations_are_not() -> None:
    log_values = torch.tensor([[0.5] * 400, [*([0.0] * 399), math.inf]])
    assert reliable(student_t(log_values, 0.1), 0.1).tolist() == [False, False]
    assert reliable(known_population(log_values), 0.1).tolist() == [True, True]


def test_few_records_are_unreliable_however_symmetric() -> None:
    assert not reliable(student_t(torch.linspace(-1, 1, 29), 0.4), 0.4)
    assert reliable(student_t(torch.linspace(-1, 1, 30).exp().log1p(), 0.4), 0.4)


def test_tolerated_rate_can_be_set() -> None:
    log_values = torch.tensor(np.random.default_rng(0).exponential(size=4000)).log1p()
    estimate = student_t(log_values, 1e-15)
    assert not reliable(estimate, 1e-15)
    assert reliable(estimate, 1e-15, tolerated=1e-10)
    with pytest.raises(ValueError, match=r"tolerated.*1\.5"):
        reliable(estimate, 1e-15, tolerated=1.5)


def test_why_says_what_decides() -> None:
    ramp = torch.linspace(0, 1, 2000)
    assert "within" in why(student_t(ramp, 1e-6), 1e-6)
    assert "over" in why(student_t(ramp[:40], 1e-6), 1e-6)
    assert "fewer than the 30" in why(student_t(ramp[:20], 1e-6), 1e-6)
    assert "infinite" in why(student_t(torch.tensor([0.0, 1.0, math.inf]), 0.1), 0.1)
    assert "same value" in why(student_t(torch.zeros(9), 0.1), 0.1)
    assert "any distribution" in why(known_population(ramp), 0.1)
    with pytest.raises(ValueError, match=r"estimate.*\(2,\)"):
        why(student_t(torch.rand(2, 9), 0.1), 0.1)


@pytest.mark.parametrize(("m", "gamma"), [(2, 0.1), (10, 0.0), (10, math.nan)])
def test_bad_input_is_named(m: int, gamma: float) -> None:
    with pytest.raises(ValueError, match=r"sample_size|failure_probability"):
        predicted_miss_rate(torch.tensor(1.0), m, gamma)

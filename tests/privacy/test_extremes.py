"""Numbers far out: a right value, +∞ or an error that says why; never NaN, never below the truth.

mpmath computes the same to as many digits as cancel.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from simulated import guided, logistic_data

import bdpvi
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.privacy import worst_case
from bdpvi.privacy.event import Event
from bdpvi.privacy.events import SampledGaussian, Threshold
from bdpvi.privacy.gaussian import equal_covariance
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.privacy.perturbed_objective import PerturbedObjective
from bdpvi.regression import NoisyScores, ObjectivePerturbation

SIGMAS = (1e-8, 1e-4, 0.02, 1.0, 10.0, 1e4, 1e8)
EPSILONS = (1e-6, 1e-3, 0.1, 1.0, 100.0, 1e3)
DELTAS = (1e-300, 1e-100, 1e-20, 1e-5, 0.5)
SEEN = mpmath.mpf("1e-300")
"""Smaller δ need not be told from 0."""


def exact(variance: float, epsilon: float) -> mpmath.mpf:
    """Return δ(ε) of a Gaussian mechanism of μ² = variance, by its definition."""
    mu = math.sqrt(variance)
    far = min(abs(mu / 2 - epsilon / mu), 60.0)
    with mpmath.workdps(60 + int(far**2 / 4 + min(epsilon, 1e4) / 2)):
        root = mpmath.sqrt(mpmath.mpf(variance))
        a = root / 2 - mpmath.mpf(epsilon) / root
        return mpmath.ncdf(a) - mpmath.exp(epsilon) * mpmath.ncdf(a - root)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_delta_of_a_gaussian(sigma: float) -> None:
    variance = torch.tensor([sigma**-2], dtype=torch.float64)
    for epsilon in EPSILONS:
        found, true = float(equal_covariance(variance, epsilon)), exact(sigma**-2, epsilon)
        assert 0 <= found <= 1
        if true > SEEN:
            assert found == pytest.approx(float(true), rel=1e-9)


@pytest.mark.parametrize("sigma", [1e-4, 1e-7, 1e-8, 1e-9, 1e-12, 1e-50, 1e-150])
def test_a_large_epsilon_of_a_gaussian(sigma: float) -> None:
    """By the tail of the normal loss, of which ε takes e^ε Φ(−μ/2 − ε/μ), φ(t)/(μ + t) at most."""
    for delta in (1e-100, 1e-20, 1e-5, 0.4):
        with mpmath.workdps(60):
            mu = mpmath.sqrt(mpmath.mpf(sigma**-2))
            found = mpmath.mpf(gaussian_epsilon(sigma**-2, delta))

            def less(t: mpmath.mpf, share: int) -> mpmath.mpf:
                taken = mpmath.npdf(t) / (mu + t) * share  # noqa: B023
                return mpmath.log(mpmath.ncdf(-t) - taken) - mpmath.log(delta)  # noqa: B023

            start = math.sqrt(-2 * math.log(delta)) - 0.3
            most, least = (mpmath.findroot(lambda t: less(t, n), start) for n in (0, 1))  # noqa: B023
            most, least = (mu * (t + mu / 2) for t in (most, least))
            assert least <= found <= most * (1 + mpmath.mpf("1e-10"))


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("sigma", [1e-101, 1e-160, 1e-300])
def test_hardly_any_noise_is_no_error(sigma: float, rate: float) -> None:
    for delta in (1e-5, 0.7):
        run = SampledGaussian(noise_multiplier=sigma, rate=rate)
        assert epsilon_or_inf([run], delta) > 1e200


def epsilon_or_inf(events: list[Event], delta: float) -> float:
    found = worst_case.epsilon(events, delta)
    return math.inf if found is None else found.epsilon


@pytest.mark.parametrize("sigma", [1e-8, 0.02, 1.0, pytest.param(1e8, marks=pytest.mark.whole)])
@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.5])
def test_minima_and_thresholds_never_give_nan(sigma: float, delta: float) -> None:
    for curvature, residual in itertools.product((0.0, 1.0), (1.0, 0.5, 1e-6)):
        minimum = PerturbedObjective(noise_multiplier=sigma, curvature=curvature, residual=residual)
        alone = epsilon_or_inf([minimum], delta)
        more = epsilon_or_inf([minimum, Threshold(delta / 2)], delta)
        assert 0 <= alone <= more * (1 + 1e-9)
        if curvature == 0 and 0 < alone < 1e4:  # a Gaussian mechanism of distance k/σ
            assert exact((residual / sigma) ** 2, alone) <= delta * (1 + 1e-9)


@pytest.mark.parametrize("sigma", [1e-8, 0.02, 1.0])
def test_sampled_steps_never_give_less_than_all_records_of_one_do(sigma: float) -> None:
    """Steps at rate q cost at most those at rate 1, and one step at least q of one, in δ."""
    rate = 0.01
    for delta in (1e-20, 1e-5, 0.5):
        found = epsilon_or_inf([SampledGaussian(noise_multiplier=sigma, rate=rate)], delta)
        assert found >= 0
        if math.isfinite(found):
            inner = math.log1p(math.expm1(found) / rate) if found < 500 else found - math.log(rate)
            assert rate * exact(sigma**-2, inner) <= delta * (1 + 1e-9)


@pytest.mark.parametrize("dimension", [1, 20])
def test_pairs_of_many_dimensions(dimension: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for spread, far in itertools.product((0.0, 1e-12, 1.0, 20.0), (0.0, 1e-16, 1.0)):
        r = (spread * torch.randn(2, dimension, generator=generator, dtype=torch.float64)).exp()
        b2 = far * torch.rand(2, dimension, generator=generator, dtype=torch.float64)
        pairs = GaussianPairs(r, b2)
        for order in (0.1, 1.0, 64.0, 1e6):
            assert bool((pairs.renyi(order) >= -1e-12).all())  # refuses NaN too
        found = pairs.hockey_stick(1.0)
        assert bool(((found >= 0) & (found <= 1 + 1e-12)).all())


@pytest.mark.parametrize("records", [0, 1, 2, 3])
def test_tables_of_hardly_anybody(records: int) -> None:
    """Released numbers are finite, or the refusal is an error that says why."""
    some = logistic_data(4, 2)
    model = bdpvi.BayesianLogisticRegression.unweighted(limit=2.0, intercept=True)

    def table() -> bdpvi.Dataset:
        return bdpvi.Dataset(some.x[:records], some.y[:records])

    def route(**given: Any) -> torch.Tensor:
        return bdpvi.fit_private(model, table(), epsilon=1.0, **given).samples

    def guide() -> torch.Tensor:
        fitted = guided(table(), neighbours=bdpvi.Optimum(bdpvi.bayesian.Remove(0)))
        return bdpvi.release(fitted, epsilon=1.0).samples

    routes: list[Callable[[], torch.Tensor]] = [
        lambda: route(route=ObjectivePerturbation(rows=100)),
        lambda: route(route=NoisyScores(rows=100, least=0.0)),
        guide,
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in routes:
            assert bool(one().isfinite().all())


@pytest.mark.parametrize("sigma", SIGMAS)
def test_epsilon_of_a_gaussian(sigma: float) -> None:
    for delta in DELTAS:
        found = gaussian_epsilon(sigma**-2, delta)
        if found == 0:
            assert exact(sigma**-2, 1e-30) <= delta
        elif found < 300:  # beyond that mpmath takes long
            assert exact(sigma**-2, found) <= delta * (1 + 1e-9)
            assert exact(sigma**-2, found * (1 - 1e-6)) > delta

"""Worst-case ε: against published values, mpmath and closed forms; calibration."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from published import RenyiAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bench.methods.moments import MomentsAccountant
from bdpvi.privacy import worst_case
from bdpvi.privacy.event import Event
from bdpvi.privacy.events import ExponentialMechanism, SampledGaussian, Threshold
from bdpvi.privacy.gaussian_dp import gaussian_distance
from bdpvi.privacy.loss_distribution import deltas_together, loss_interval
from bdpvi.privacy.sampled_steps import (
    GaussianAccountant,
    PrivacyLossAccountant,
    WorstCaseAccountant,
    calibrate,
    guarantee,
)

# rate, σ: ε of the moments accountant, of Rényi DP at α = 2 … 100, of privacy loss distributions
# at a grid of 1e-4; δ = 1e-3, 2000 steps.
PUBLISHED = {
    (0.001, 0.4): (7.9415, 6.5552, 4.4515),
    (0.001, 0.8): (1.0222, 0.5916, 0.1853),
    (0.001, 1.2): (0.4037, 0.1861, 0.0754),
    (0.001, 1.6): (0.2256, 0.0892, 0.0462),
    (0.001, 2.0): (0.1459, 0.0520, 0.0326),
    (0.01, 2.0): (0.9358, 0.6642, 0.5679),
    (0.01, 4.0): (0.4331, 0.2766, 0.2319),
    (0.01, 6.0): (0.2837, 0.1691, 0.1398),
    (0.01, 8.0): (0.2113, 0.1194, 0.0974),
    (0.01, 10.0): (0.1683, 0.0909, 0.0734),
}
HALF_A_DIGIT = 5e-5


@pytest.mark.parametrize(("rate", "sigma"), PUBLISHED)
def test_published_values(rate: float, sigma: float) -> None:
    moments, renyi, privacy_loss = PUBLISHED[rate, sigma]
    arguments = (sigma, rate, 2000, 1e-3)
    assert MomentsAccountant().epsilon(*arguments) == pytest.approx(moments, rel=1e-3)
    orders = tuple(float(alpha) for alpha in range(2, 101))
    assert RenyiAccountant(orders).epsilon(*arguments) == pytest.approx(renyi, rel=1e-3)
    assert RenyiAccountant().epsilon(*arguments) <= renyi + HALF_A_DIGIT
    # A finer grid may only come out below the published value, by what that one's rounding cost.
    ours = PrivacyLossAccountant().epsilon(*arguments)
    assert 0.995 * privacy_loss - HALF_A_DIGIT < ours < 1.001 * privacy_loss + HALF_A_DIGIT


def one_step(sigma: float, rate: float, delta: float) -> float:
    """Return ε of one Poisson-sampled Gaussian release, the larger of both directions."""

    def gaussian(epsilon: float) -> float:
        if epsilon == math.inf:
            return 0.0
        a = epsilon * sigma
        return float(norm.sf(a - 0.5 / sigma) - math.exp(epsilon) * norm.sf(a + 0.5 / sigma))

    def remove(epsilon: float) -> float:
        return rate * gaussian(math.log1p(math.expm1(epsilon) / rate))

    def add(epsilon: float) -> float:
        kept = 1 - math.exp(epsilon) * (1 - rate)  # p − e^ε((1−q)p + qp′) = kept·p − q e^ε p′
        return kept * gaussian(math.log(rate * math.exp(epsilon) / kept)) if kept > 0 else 0.0

    return max(brentq(lambda e, f=f: f(e) - delta, 1e-9, 30) for f in (remove, add))


@pytest.mark.parametrize("sigma", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_privacy_loss_of_one_step_against_its_closed_form(sigma: float, rate: float) -> None:
    exact = one_step(sigma, rate, 1e-5)
    ours = PrivacyLossAccountant().epsilon(sigma, rate, 1, 1e-5)
    assert exact * (1 - 1e-9) <= ours <= exact * 1.002


@pytest.mark.parametrize(
    ("accountant", "rate", "epsilon"),
    [
        (MomentsAccountant(), 0.01, 0.2),
        (MomentsAccountant(), 0.01, 5.0),
        (RenyiAccountant(), 0.05, 0.02),
        (RenyiAccountant(), 0.05, 1.0),
        (PrivacyLossAccountant(), 0.005, 0.01),
        (PrivacyLossAccountant(), 0.005, 1.0),
        (GaussianAccountant(), 1.0, 0.01),
        (GaussianAccountant(), 1.0, 8.0),
    ],
)
def test_calibration_lands_just_below(
    accountant: WorstCaseAccountant, rate: float, epsilon: float
) -> None:
    sigma = calibrate(accountant, epsilon=epsilon, delta=1e-5, rate=rate, steps=500)
    assert 0.99 * epsilon < accountant.epsilon(sigma, rate, 500, 1e-5) <= epsilon


def test_moments_accountant_cannot_reach_below_its_floor() -> None:
    with pytest.raises(ValueError, match=r"epsilon=0.1 cannot be reached .* at least 0.1163"):
        calibrate(MomentsAccountant(), epsilon=0.1, delta=1e-5, rate=0.01, steps=1000)
    more = MomentsAccountant(largest_order=512)
    sigma = calibrate(more, epsilon=0.1, delta=1e-5, rate=0.01, steps=1000)
    assert 0.099 < more.epsilon(sigma, 0.01, 1000, 1e-5) <= 0.1


def test_bad_targets() -> None:
    with pytest.raises(ValueError, match=r"rate must be 1 .* got 0\.5"):
        GaussianAccountant().epsilon(1.0, 0.5, 1, 1e-5)
    with pytest.raises(ValueError, match="epsilon"):
        calibrate(GaussianAccountant(), epsilon=math.nan, delta=1e-5, rate=1.0, steps=1)
    with pytest.raises(ValueError, match="largest_order"):
        MomentsAccountant(0)
    with pytest.raises(ValueError, match="noise_multiplier"):
        guarantee(GaussianAccountant(), math.nan, 1.0, 1, 1e-5)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Dong, Roth and Su (2022), Corollary 2.13, by scipy."""
    return float(
        norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    )


def epsilon_of(*events: Event, delta: float = 1e-5) -> float:
    found = worst_case.epsilon(events, delta)
    assert found is not None
    assert found.delta == delta
    return found.epsilon


def draws(largest: float | None = 0.04, count: int = 1, **options: object) -> GuideDraws:
    pairs = GaussianPairs(torch.ones(3, 1), torch.full((3, 1), 0.01))
    panel = Panel("remove", torch.arange(3), pairs, largest)
    return GuideDraws((panel,), count, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", [1e-3, 0.1, 1.0, 3.0, 10.0])
def test_a_gaussian_gives_away_more_than_any_loss_in_an_interval(loss: float) -> None:
    """Two outcomes with losses t and t − η are the worst there are, at any 0 ≤ t ≤ η."""
    distance = math.sqrt(ExponentialMechanism(loss).squared_distance)
    t = np.linspace(0, loss, 20_001)
    chance = np.expm1(loss - t) / np.expm1(loss) * np.exp(t)  # of the first: E_Q e^L = 1
    for epsilon in np.linspace(0, 0.999 * loss, 40):
        truth = float((chance * -np.expm1(np.minimum(epsilon - t, 0))).max())
        assert truth <= gaussian_delta(distance, epsilon) * (1 + 1e-12)
    most = gaussian_delta(0.99 * distance, 0.0)
    assert loss > 0.2 or float((chance * -np.expm1(np.minimum(-t, 0))).max()) > most


def test_thresholds_and_rounding_are_paid_out_of_delta() -> None:
    noisy = SampledGaussian(noise_multiplier=3.0, steps=4)
    assert epsilon_of(noisy, Threshold(4e-6), Threshold(1e-6)) == epsilon_of(noisy, delta=5e-6)
    theta = 1e-7
    rounded = epsilon_of(SampledGaussian(noise_multiplier=3.0, steps=4, rounding=theta))
    paid = (1 + math.exp(math.ceil(4 * rounded) / 4)) * theta
    assert rounded == epsilon_of(noisy, delta=1e-5 - paid)
    sampled = SampledGaussian(noise_multiplier=1.0, rate=0.01, steps=200, rounding=theta)
    exact = PrivacyLossAccountant().epsilon(1.0, 0.01, 200, 1e-5 - (1 + math.e) * theta)
    assert epsilon_of(sampled) == exact < 1.0
    assert worst_case.epsilon([noisy, Threshold(1e-5)], 1e-5) is None
    assert worst_case.epsilon([draws(rounding=1e-5)], 1e-5) is None


def test_with_a_threshold_a_total_is_no_gaussian_mechanism() -> None:
    """A group's ε by distance would leave out what a threshold adds for each of its records."""
    noisy = SampledGaussian(noise_multiplier=3.0, steps=4)
    alone = worst_case.epsilon([noisy], 5e-6)
    both = worst_case.epsilon([noisy, Threshold(5e-6)], 1e-5)
    assert alone is not None
    assert both is not None
    assert alone.epsilon == both.epsilon
    assert alone.distance == pytest.approx(2 / 3)
    assert both.distance is None


def test_sampled_and_plain_sums_compose_as_dp_accounting_says() -> None:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    events: list[Event] = [
        SampledGaussian(noise_multiplier=1.0, rate=0.01, steps=300),
        SampledGaussian(noise_multiplier=8.0, steps=4),
        draws(),
    ]
    one = from_gaussian_mechanism(1.0, sampling_prob=0.01).self_compose(300)
    both = one.compose(from_gaussian_mechanism((4 / 64 + 0.04) ** -0.5))
    assert epsilon_of(*events) == pytest.approx(both.get_epsilon_for_delta(1e-5), rel=0.01)
    # The same at a coin that always says yes, by the other way of composing.
    coin = SampledGaussian(noise_multiplier=1.0, rate=0.01, steps=300, presence=1 - 1e-12)
    assert epsilon_of(coin, *events[1:]) == pytest.approx(epsilon_of(*events), rel=0.01)


def test_what_nothing_bounds_has_no_worst_case() -> None:
    assert worst_case.epsilon([draws(), draws(None)], 1e-5) is None


def test_events_for_other_neighbours_do_not_add_up() -> None:
    client = SampledGaussian(noise_multiplier=1.0, unit="client")
    with pytest.raises(ValueError, match="different neighbours: add or remove one client, add or"):
        worst_case.epsilon([client, draws()], 1e-5)
    replaced = SampledGaussian(noise_multiplier=4.0, relation="replace")  # type: ignore[arg-type]
    found = worst_case.epsilon([replaced], 1e-5)
    assert found is not None
    assert found.neighbours == "replace one record"
    assert gaussian_delta(2 / 4.0, found.epsilon) == pytest.approx(1e-5, rel=1e-9)


@pytest.mark.parametrize(
    "runs",
    [
        [SampledGaussian(noise_multiplier=1.1, rate=0.01, steps=10)],
        [
            SampledGaussian(noise_multiplier=3.0, rate=0.05, steps=100),
            SampledGaussian(noise_multiplier=0.7, rate=0.002, steps=5),
        ],
        [SampledGaussian(noise_multiplier=300.0, rate=0.01, steps=10)],  # too fine to be looked up
    ],
)
def test_looked_up_deltas_are_those_that_dp_accounting_computes_one_by_one(
    runs: list[SampledGaussian],
) -> None:
    interval = min(map(loss_interval, runs))
    accountant = PLDAccountant(value_discretization_interval=interval)
    for run in runs:
        accountant.compose(
            PoissonSampledDpEvent(run.rate, GaussianDpEvent(run.noise_multiplier)), run.steps
        )
    found, random = deltas_together(runs), np.random.default_rng(0)
    for low, high in ((-3.0, 3.0), (-1.0, 8.0), (-9.0, -2.0)):  # each beyond the one before
        epsilons = random.uniform(low, high, 12)
        wanted = [accountant.get_delta(float(epsilon)) for epsilon in epsilons]
        np.testing.assert_allclose(found(epsilons), wanted, rtol=1e-8, atol=1e-14)
    far = found(np.array([300.0, 720.0]))
    assert far[0] == far[1] >= 0


@pytest.mark.parametrize("delta", [1e-300, 1e-30, 1e-5, 0.3])
@pytest.mark.parametrize("epsilon", [1e-4, 0.1, 1.0, 50.0, 999.0])
def test_a_distance_spends_all_of_epsilon_and_no_more(epsilon: float, delta: float) -> None:
    """By Balle and Wang 2018, Theorem 8, in 60 digits."""
    with mpmath.workdps(60):
        mu = mpmath.mpf(gaussian_distance(epsilon, delta))
        near, far = (mpmath.ncdf(-epsilon / mu + side * mu / 2) for side in (1, -1))
        left = mpmath.log(delta / (near - mpmath.exp(epsilon) * far))
        assert 0 <= left < 1e-6

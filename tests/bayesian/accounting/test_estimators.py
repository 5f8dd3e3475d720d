"""Estimators against SciPy, mpmath and exact enumeration of what they promise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from studies.estimators import empirical_bernstein, known_population
from torch import Tensor

from bdpvi.bayesian.accounting.betting import betting
from bdpvi.bayesian.accounting.estimators import Estimator, MeanEstimate, student_t
from bdpvi.bayesian.accounting.quantiles import certified_rank, quantile_certificate

GENERATOR = np.random.default_rng(0)


def bernstein(log_values: Tensor, failure_probability: float) -> MeanEstimate:
    return empirical_bernstein(
        log_values, failure_probability, log_values.amax(-1) + 1, log_lower=-math.inf
    )


def bets(log_values: Tensor, failure_probability: float) -> MeanEstimate:
    return betting(log_values, failure_probability, log_values.amax(-1) + 1, log_lower=-math.inf)


ESTIMATORS: list[Estimator] = [student_t, bernstein, bets, known_population]
every_estimator = pytest.mark.parametrize(
    "estimator", ESTIMATORS, ids=["t", "bernstein", "bets", "known"]
)
samples = st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=40).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


@pytest.mark.parametrize("gamma", [0.3, 0.05, 1e-3, 1e-9])
def test_student_t_is_scipys_one_sided_interval(gamma: float) -> None:
    values = GENERATOR.lognormal(size=(3, 50))
    estimate = student_t(torch.as_tensor(np.log(values)), gamma)
    for row, bound in zip(values, estimate.log_bound.exp().tolist(), strict=True):
        interval = stats.ttest_1samp(row, 0, alternative="less").confidence_interval(1 - gamma)
        assert bound == pytest.approx(interval.high, rel=1e-6 if gamma < 1e-6 else 1e-9)


@pytest.mark.parametrize(("m", "gamma"), [(3, 1e-15), (256, 1e-15), (10_000, 1e-15), (40, 1e-40)])
def test_student_t_keeps_its_failure_probability_far_below_rounding(m: int, gamma: float) -> None:
    values = torch.linspace(1.0, 2.0, m, dtype=torch.float64)
    bound = float(student_t(values.log(), gamma).log_bound.exp())
    quantile = (bound - float(values.mean())) / float(values.std()) * math.sqrt(m)
    with mpmath.workdps(30):
        df = mpmath.mpf(m - 1)
        # The tail of t beyond x is half an incomplete beta function of df/(df + x²).
        tail = mpmath.betainc(df / 2, 0.5, 0, df / (df + quantile**2), regularized=True) / 2
    assert float(tail) == pytest.approx(gamma, rel=1e-6)


def exactly(log_values: Tensor, gamma: float) -> float:
    """The same bound in arithmetic with 60 digits and no range to leave."""
    m = len(log_values)
    with mpmath.workdps(60):
        y = [mpmath.exp(mpmath.mpf(value)) for value in log_values.tolist()]
        mean = mpmath.fsum(y) / m
        sd = mpmath.sqrt(mpmath.fsum((v - mean) ** 2 for v in y) / m)
        t = mpmath.mpf(float(stats.t.isf(gamma, m - 1)))
        return float(mpmath.log(mean + t * sd / mpmath.sqrt(m - 1)))


@pytest.mark.parametrize("scale", [1e-13, 1e-6, 1.0, 30.0, 1e4, 1e6])
def test_student_t_neither_overflows_nor_loses_small_costs(scale: float) -> None:
    log_values = scale * torch.as_tensor(GENERATOR.uniform(size=64))
    estimate = student_t(log_values, 1e-6)
    assert float(estimate.log_bound) == pytest.approx(exactly(log_values, 1e-6), rel=1e-12)


def test_student_t_misses_as_often_as_it_says_where_tails_are_light() -> None:
    gamma, repeats = 0.05, 5000
    log_values = torch.as_tensor(GENERATOR.normal(10.0, 0.1, size=(repeats, 30))).log()
    misses = float((student_t(log_values, gamma).log_bound < math.log(10.0)).double().mean())
    assert misses == pytest.approx(gamma, abs=4 * math.sqrt(gamma / repeats))


def bernstein_by_hand(values: Tensor, gamma: float, lower: float, upper: float) -> float:
    y = (values.numpy() - lower) / (upper - lower)  # the theorem is stated on [0, 1]
    n, log_term = len(y), math.log(2 / gamma)
    variance = sum((a - b) ** 2 for a in y for b in y) / (2 * n * (n - 1))
    z = y.mean() + math.sqrt(2 * variance * log_term / n) + 7 * log_term / (3 * (n - 1))
    return float(lower + (upper - lower) * z)


@pytest.mark.parametrize(("lower", "upper"), [(1.0, 3.0), (0.0, 3.0), (1.0, 1.0001)])
def test_empirical_bernstein_is_the_theorem(lower: float, upper: float) -> None:
    values = torch.as_tensor(GENERATOR.uniform(lower, upper, size=60))
    log_lower = math.log(lower) if lower else -math.inf
    estimate = empirical_bernstein(values.log(), 1e-4, math.log(upper), log_lower)
    by_hand = bernstein_by_hand(values, 1e-4, lower, upper)
    assert float(estimate.log_bound) == pytest.approx(math.log(by_hand), rel=1e-9)


@pytest.mark.parametrize("bound", [empirical_bernstein, betting])
@pytest.mark.parametrize("gamma", [0.2, 1e-2, 1e-6])
def test_known_ranges_never_miss_more_often_than_they_say(
    bound: Callable[..., MeanEstimate], gamma: float
) -> None:
    # Exactly, for values at the two ends of the range: the number at the top is binomial.
    m, lower, upper = 100, 1.0, 4.0
    counts = np.arange(m + 1)
    top = torch.arange(m) < torch.arange(m + 1)[:, None]
    log_values = torch.log(lower + (upper - lower) * top.double())
    bounds = bound(log_values, gamma, math.log(upper)).log_bound.exp().numpy()
    for p in np.concatenate([np.logspace(-8, -1, 50), np.linspace(0.1, 1, 50)]):
        truth = lower + (upper - lower) * p
        assert stats.binom.pmf(counts, m, p)[bounds < truth - 1e-12].sum() <= gamma


def wealth(values: Tensor, mean: float, upper: float) -> float:
    """What bets on a mean come to, one value after another, in arithmetic with 50 digits."""
    with mpmath.workdps(50):
        total, shares = mpmath.mpf(0), len(values).bit_length() + 1
        for k in range(shares):
            bet = mpmath.mpf(1)
            for value in values.tolist():
                room = (upper - mpmath.mpf(value)) / (upper - mpmath.mpf(mean))
                bet *= 1 - mpmath.mpf(2) ** -k + mpmath.mpf(2) ** -k * room
            total += bet / ((k + 1) * (k + 2))
        return float(total + mpmath.mpf(1) / (shares + 1))


@pytest.mark.parametrize("scale", [0.5, 1e-3, 1e-9])
@pytest.mark.parametrize("gamma", [0.3, 1e-3, 1e-10])
def test_betting_stops_where_the_wealth_is_one_over_gamma(scale: float, gamma: float) -> None:
    values = scale * torch.as_tensor(GENERATOR.uniform(size=80) ** 3)
    mean = float(betting(values.log(), gamma, math.log(2), -math.inf).log_bound.exp())
    assert wealth(values, mean, 2.0) == pytest.approx(1 / gamma, rel=1e-4)
    above = 1 + betting((1 + values).log(), gamma, math.log(3)).log_bound.expm1()
    assert float(above) == pytest.approx(1 + mean, rel=1e-7)


def test_a_fair_bet_keeps_its_wealth_on_average() -> None:
    # Over all samples of 6 from {0, 0.3, 1}: what Markov's inequality rests on.
    chances, values = np.array([0.7, 0.2, 0.1]), np.array([0.0, 0.3, 1.0])
    mean = float(chances @ values)
    expected = 0.0
    for picked in itertools.product(range(3), repeat=6):
        sample = torch.as_tensor(values[list(picked)])
        expected += float(np.prod(chances[list(picked)])) * wealth(sample, mean, 1.0)
    assert expected == pytest.approx(1, abs=1e-12)


@settings(deadline=None)
@given(samples, st.floats(1e-12, 0.9))
def test_betting_is_monotone(log_values: Tensor, gamma: float) -> None:
    log_values = log_values.clamp(-50, 0)
    bound = betting(log_values, gamma, 0.0, -math.inf).log_bound
    assert bound <= 1e-9
    raised = (log_values + 0.1).clamp(max=0)
    assert betting(raised, gamma, 0.0, -math.inf).log_bound >= bound - 1e-8
    assert betting(log_values, gamma / 2, 0.0, -math.inf).log_bound >= bound - 1e-8


def test_betting_where_all_values_are_the_largest() -> None:
    assert float(betting(torch.zeros(5), 1e-3, 0.0, -math.inf).log_bound) == 0


@every_estimator
@settings(deadline=None)
@given(log_values=samples, shift=st.floats(-1e3, 1e3))
def test_laws(estimator: Estimator, log_values: Tensor, shift: float) -> None:
    estimate = estimator(log_values, 1e-3)
    assert estimate.log_bound >= estimate.log_mean
    assert estimate.log_mean <= log_values.max() + 1e-9
    shuffled = estimator(log_values.flip(0), 1e-3)
    # Betting stops where its mean is within 1e-9 of the root, which either may be.
    torch.testing.assert_close(shuffled.log_bound, estimate.log_bound, rtol=1e-9, atol=2e-9)
    shifted = estimator(log_values + shift, 1e-3)
    # Adding to values near 1e6 rounds them by 1e-10 each.
    torch.testing.assert_close(shifted.log_bound, estimate.log_bound + shift, rtol=1e-8, atol=1e-8)


@every_estimator
def test_leading_dimensions_are_estimated_apart(estimator: Estimator) -> None:
    log_values = torch.as_tensor(GENERATOR.normal(size=(2, 3, 30)))
    estimate = estimator(log_values, 0.01)
    for i in range(2):
        for j in range(3):
            alone = estimator(log_values[i, j], 0.01)
            for name in ("log_bound", "log_mean", "constant", "skewness"):
                torch.testing.assert_close(getattr(estimate, name)[i, j], getattr(alone, name))
    assert estimate.sample_size == 30


def test_smaller_failure_probability_raises_the_bound() -> None:
    log_values = torch.as_tensor(GENERATOR.normal(size=30))
    for estimator in (student_t, bernstein):
        bounds = [float(estimator(log_values, 10.0**-n).log_bound) for n in range(1, 20)]
        assert bounds == sorted(bounds)
        assert len(set(bounds)) == len(bounds)


def test_an_infinite_value_makes_the_bound_infinite() -> None:
    log_values = torch.tensor([[0.0, 1.0, math.inf] * 10, [0.0, 1.0, 2.0] * 10])
    for estimator in (student_t, known_population):
        estimate = estimator(log_values, 1e-3)
        assert estimate.log_bound.isinf().tolist() == [True, False]
        assert estimate.log_mean.isinf().tolist() == [True, False]
        assert float(estimate.skewness[0]) == math.inf


def test_no_spread_is_reported() -> None:
    log_values = torch.tensor([[0.3] * 50, [0.3] * 49 + [0.4], [-math.inf] * 50])
    estimate = student_t(log_values.double(), 1e-9)
    assert estimate.constant.tolist() == [True, False, True]
    assert float(estimate.log_bound[0]) == float(log_values[0, 0])
    assert float(estimate.log_bound[2]) == -math.inf


TINY = [5e-324, 1e-308, 1e-300, 1e-200]


@pytest.mark.parametrize("gamma", TINY)
@pytest.mark.parametrize("m", [3, 11, 50, 2000])
def test_the_smallest_failure_probabilities_leave_bounds(m: int, gamma: float) -> None:
    values = torch.linspace(0, 1, m, dtype=torch.float64)
    usual = 1e-150
    for estimate in (
        student_t,
        lambda v, g: empirical_bernstein(v, g, log_upper=1.0),
        lambda v, g: betting(v, g, log_upper=1.0),
    ):
        assert float(estimate(values, gamma).log_bound) >= float(estimate(values, usual).log_bound)
    assert float(student_t(torch.ones(m), gamma).log_bound) == pytest.approx(1)
    assert certified_rank(m, gamma, 0.5) >= certified_rank(m, usual, 0.5)


@settings(max_examples=20, deadline=None)
@given(m=st.integers(5, 400), fraction=st.floats(0.05, 0.95), gamma=st.floats(1e-9, 0.3))
@example(m=39_073, fraction=0.9, gamma=1e-15)
@example(m=39_073, fraction=0.9991, gamma=1e-15)
@example(m=5, fraction=0.63, gamma=0.1)
def test_quantile_certificate_is_the_first_rank_that_holds(
    m: int, fraction: float, gamma: float
) -> None:
    value = float(quantile_certificate(torch.arange(float(m)), gamma, fraction))
    failing = stats.binom.sf(np.arange(m), m, fraction)  # of rank 1 … m
    holds = np.flatnonzero(failing <= gamma * (1 + 1e-9))
    assert value == (holds[0] if len(holds) else math.inf)


def test_quantile_certificate_covers_a_distribution_with_atoms_and_no_mean() -> None:
    gamma, fraction, repeats = 0.05, 0.9, 4000
    sample = torch.as_tensor(np.round(np.abs(GENERATOR.standard_cauchy(size=(repeats, 120)))))
    certificate = quantile_certificate(sample, gamma, fraction).numpy()
    covered = 2 * stats.cauchy.cdf(certificate + 0.5) - 1
    assert (covered < fraction).mean() <= gamma + 4 * math.sqrt(gamma / repeats)
    assert torch.equal(
        quantile_certificate(sample, gamma, fraction),
        quantile_certificate(sample.flip(-1), gamma, fraction),
    )


def bad(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: student_t(bad([0.0, 1.0]), 0.1), "log_values must have at least 3 records"),
        (lambda: student_t(bad([0.0, 1.0, math.nan]), 0.1), "log_values must not be NaN"),
        (lambda: student_t(bad([0.0, 1.0, 2.0]), 0.0), "failure_probability .* got 0.0"),
        (lambda: student_t(bad([0.0, 1.0, 2.0]), math.nan), "failure_probability .* got nan"),
        (lambda: student_t(torch.tensor(1.0), 0.1), "log_values"),
        (lambda: known_population(bad([])), "log_values must have at least 1"),
        (lambda: known_population(bad([math.nan])), "log_values must not be NaN"),
        (lambda: betting(bad([0.1]), 0.1, 1.0), "log_values must have at least 2"),
        (lambda: betting(bad([0.1, 0.2]), 1.0, 1.0), "failure_probability .* got 1.0"),
        (lambda: empirical_bernstein(bad([0.1]), 0.1, 1.0), "log_values must have at least 2"),
        (lambda: empirical_bernstein(bad([0.1, 1.1]), 0.1, 1.0), r"log_values must lie .* got 1.1"),
        (lambda: empirical_bernstein(bad([-0.1, 1]), 0.1, 1.0), r"log_values must lie .* got -0.1"),
        (lambda: empirical_bernstein(bad([0.1, math.nan]), 0.1, 1.0), "log_values must not be NaN"),
        (lambda: empirical_bernstein(bad([0.1, 0.2]), 0.1, math.nan), "log_upper .* got nan"),
        (lambda: quantile_certificate(bad([math.nan, 1]), 0.1, 0.5), "values must not be NaN"),
        (lambda: quantile_certificate(bad([0, 1]), 0.1, 1.0), "fraction .* got 1.0"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_skewness_is_that_of_scipy_at_any_scale() -> None:
    values = GENERATOR.weibull(0.7, size=(3, 50))
    expected = stats.skew(values, axis=1)
    for scale in (1.0, 1e-9):
        estimate = student_t(torch.log1p(torch.tensor(scale * values)), 0.01)
        assert estimate.skewness.numpy() == pytest.approx(expected, rel=1e-5)
    huge = student_t(torch.tensor(values).log() + 1e6, 0.01)
    assert huge.skewness.numpy() == pytest.approx(expected, rel=1e-6)


def test_skewness_is_infinite_where_there_is_none() -> None:
    log_values = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 2.0, math.inf]])
    assert student_t(log_values, 0.01).skewness.tolist() == [math.inf, math.inf]

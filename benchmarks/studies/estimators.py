"""Bounds on a mean that the library does not use, for comparison."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.bayesian.accounting.estimators import MeanEstimate, SampleMoments, within


def empirical_bernstein(
    log_values: Tensor,
    failure_probability: float,
    log_upper: Tensor | float,
    log_lower: float = 0.0,
) -> MeanEstimate:
    """Bound the mean of values with a known range, whatever their distribution.

    Maurer and Pontil (2009), Theorem 4, for y between e^log_lower and e^log_upper, R apart:
    E y ≤ M + √(2 V log(2/γ)/m) + 7 R log(2/γ)/(3(m−1)), V the (1/(m−1)) variance.

    Args:
        log_values: log y, (..., m).
        failure_probability: γ, in (0, 1).
        log_upper: a bound on log y over the whole population, known before the sample was seen;
            over the leading dimensions.
        log_lower: the same from below. 0 suits costs, since y = exp(λD) ≥ 1; −inf suits
            any y ≥ 0.

    Raises:
        ValueError: if m < 2, a value is NaN or out of its range, or γ is.

    >>> estimate = empirical_bernstein(torch.full((1000,), 0.1), 1e-3, log_upper=0.2)
    >>> round(float(estimate.log_bound), 5)
    0.10355
    """
    sample, log_range = within(log_values, log_upper, log_lower)
    gamma = validate.probability("failure_probability", failure_probability)
    chances = math.log(2) - math.log(gamma)
    log_margin = torch.logaddexp(
        sample.log_sd + math.log(math.sqrt(2 * chances / (sample.size - 1))),
        log_range + math.log(7 * chances / (3 * (sample.size - 1))),
    )
    return sample.estimate(sample.above_mean(log_margin), distribution_free=True)


def known_population(log_values: Tensor, failure_probability: float = 0.0) -> MeanEstimate:
    """Return the plain mean as the bound, for records that *are* the whole population.

    Nothing is estimated, so the result is certain and uses no γ, whatever
    ``failure_probability`` is.

    Raises:
        ValueError: if there is no record or a value is NaN.

    >>> float(known_population(torch.tensor([0.0, 0.0, 0.0])).log_bound)
    0.0
    """
    sample = SampleMoments.of(log_values, least=1)
    return sample.estimate(sample.log_mean, distribution_free=True)

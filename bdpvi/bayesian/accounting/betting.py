"""A bound on the mean of values with a known range, by betting against every larger mean.

Bet a fraction c of the wealth on an asset that returns v/ν, where v ≥ 0 has the mean ν. The bet is
fair: the wealth Π(1 − c + c vᵢ/ν) after m values is 1 in expectation, and by Markov's inequality it
exceeds 1/γ with probability at most γ. A ν at which it does exceed 1/γ is therefore rejected as too
small to be the mean. Here v is the distance below the largest value.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.bayesian.accounting.estimators import MeanEstimate, within
from bdpvi.privacy.solve import brent

_PRECISION = 1e-9


def betting(
    log_values: Tensor,
    failure_probability: float,
    log_upper: Tensor | float,
    log_lower: float = 0.0,
    counts: Tensor | None = None,
) -> MeanEstimate:
    """Bound the mean of values with a known range, whatever their distribution.

    The wealth is spread over the fractions c = 1, ½, ¼, … with weights 1/2, 1/6, 1/12, …, fixed
    before the sample was seen: it is still 1 in expectation, and does not depend on the order of
    the values (Waudby-Smith and Ramdas, JRSS B 86, 2024, section 4; mixed as in Orabona and Jun,
    IEEE Trans. Inf. Theory 70, 2024). Where values are far below the range R the bound is about
    M + R log(2/γ)/m, against 7/3 of that by Maurer and Pontil (2009, Theorem 4); elsewhere it is
    mostly smaller as well.

    Args:
        log_values: log y, (..., m).
        failure_probability: γ, in (0, 1).
        log_upper: a bound on log y over the whole population, known before the sample was seen;
            over the leading dimensions.
        log_lower: the same from below. 0 suits costs, since y = exp(λD) ≥ 1; −inf suits any y ≥ 0.
        counts: how many records each value stands for, (m,) int64; None is one each.

    Raises:
        ValueError: if m < 2, a value is NaN or out of its range, or γ is.

    >>> estimate = betting(torch.full((1000,), 0.1), 1e-3, log_upper=0.2)
    >>> round(float(estimate.log_bound), 5)
    0.1008
    """
    sample, log_range = within(log_values, log_upper, log_lower, counts)
    gamma = validate.probability("failure_probability", failure_probability)
    fraction = _fraction(torch.as_tensor(log_values, dtype=torch.float64), log_range, log_lower)
    often = fraction.new_ones(fraction.shape[-1]) if counts is None else counts.to(fraction)
    rows = fraction.reshape(-1, len(often))
    means = [_largest_mean(row, often, -math.log(gamma)) for row in rows]
    log_mean = torch.tensor(means, dtype=torch.float64).log().reshape(fraction.shape[:-1])
    lower = torch.full_like(log_range, log_lower)
    log_bound = torch.logaddexp(lower, log_range + log_mean.to(log_range.device))
    return sample.estimate(torch.maximum(log_bound, sample.log_mean), distribution_free=True)


def _fraction(log_values: Tensor, log_range: Tensor, log_lower: float) -> Tensor:
    """Return the position of every value in its range, from 0 to 1, (..., m)."""
    scale = log_range[..., None]
    if log_lower == -math.inf:
        fraction = torch.exp(log_values - scale)
    else:  # the difference of close values must not be rounded away
        fraction = torch.expm1(log_values - log_lower) * torch.exp(log_lower - scale)
    return fraction.clamp(0, 1)


def _largest_mean(fraction: Tensor, counts: Tensor, log_odds: float) -> float:
    """Return the least mean that the bets reject, for values (m,) in [0, 1]."""
    size = float(counts.sum())

    def excess(mean: float) -> float:
        return _log_wealth(fraction, counts, mean) - log_odds

    low = float(fraction @ counts) / size
    high = low + (1 - low) * min(0.5, log_odds / size)
    while high < 1 and excess(high) < 0:
        low, high = high, high + (1 - high) / 2
    if not high < 1:
        return 1.0
    mean = brent(excess, low, high, rtol=_PRECISION)
    while mean < high and excess(mean) < 0:  # approach the root from above
        mean = min(high, mean * (1 + _PRECISION))
    return mean


def _log_wealth(fraction: Tensor, counts: Tensor, mean: float) -> float:
    """Return the log of the wealth after values (m,) in [0, 1], under the hypothesis ``mean``."""
    count = int(counts.sum()).bit_length() + 1
    k = torch.arange(count, dtype=torch.float64, device=fraction.device)
    gains = torch.log1p(0.5 ** k[:, None] * ((mean - fraction) / (1 - mean))) @ counts
    # The weight of smaller fractions is not bet.
    weights = torch.cat([1 / ((k + 1) * (k + 2)), 1 / (k[-1:] + 2)])
    gains = torch.cat([gains, gains.new_zeros(1)])
    return float(torch.logsumexp(gains + weights.log(), 0))

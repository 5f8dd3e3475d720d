"""The piecewise exponential law of times to an event: likelihood, survival curve, mean.

With public cuts c₁ < … < c_J and c₀ = 0 the hazard of a record with features x is
λ(t) = exp(h_j + xᵀβ) for c_{j−1} < t ≤ c_j. A record with an event at t has the likelihood
λ(t)S(t), one that is censored then S(t) = exp(−Σ_j λ_j e_j), e_j = min(t, c_j) − c_{j−1} where that
is positive. So it is that of Poisson counts of events in each interval with the exposures e_j
(Friedman, "Piecewise Exponential Models for Survival Data with Covariates", Annals of Statistics,
1982), but all intervals of a record are one term, with one gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def exposures(times: Tensor, cuts: Sequence[float]) -> Tensor:
    """Return how long each interval between cuts lasts until each time, (..., J).

    >>> exposures(torch.tensor([0.5, 3.0, 9.0]), (1.0, 2.0, 5.0))
    tensor([[0.5000, 0.0000, 0.0000],
            [1.0000, 1.0000, 1.0000],
            [1.0000, 1.0000, 3.0000]])
    """
    ends = times.new_tensor(cuts)
    starts = times.new_tensor((0.0, *cuts[:-1]))
    return torch.minimum((times.unsqueeze(-1) - starts).clamp(min=0), ends - starts)


def log_likelihood(log_hazards: Tensor, y: Tensor, cuts: Sequence[float]) -> Tensor:
    """Return the log-likelihood of times, (N,), those of censored records with a minus sign.

    Args:
        log_hazards: in each interval, (N, J).
        y: within the horizon, (N,).
        cuts: the ends of the intervals.
    """
    times = y.abs()
    at_risk = exposures(times, cuts)
    starts = times.new_tensor((0.0, *cuts[:-1]))
    here = (times.unsqueeze(-1) > starts) & (times.unsqueeze(-1) <= times.new_tensor(cuts))
    events = (y > 0).unsqueeze(-1) & here
    return (torch.where(events, log_hazards, 0.0) - log_hazards.exp() * at_risk).sum(-1)


def survival(log_hazards: Tensor, times: Tensor, cuts: Sequence[float]) -> Tensor:
    """Return S(t) at each of T times, (N, T), for log hazards, (N, J).

    >>> survival(torch.tensor([[0.0, 1.0]]), torch.tensor([1.0, 2.0]), (1.0, 3.0)).log()
    tensor([[-1.0000, -3.7183]])
    """
    return (-log_hazards.exp() @ exposures(times, cuts).mT).exp()


def restricted_mean(log_hazards: Tensor, cuts: Sequence[float]) -> Tensor:
    """Return the mean time to the event or to the last cut, whichever is first, (N,).

    It is ∫₀ᴴ S(t) dt = Σ_j S(c_{j−1}) (1 − e^{−λ_j(c_j − c_{j−1})})/λ_j.

    >>> restricted_mean(torch.tensor([[0.0, 0.0]]), (1.0, 50.0))
    tensor([1.])
    """
    starts = log_hazards.new_tensor((0.0, *cuts[:-1]))
    rates, widths = log_hazards.exp(), log_hazards.new_tensor(cuts) - starts
    each = -torch.expm1(-rates * widths) / rates
    return (survival(log_hazards, starts, cuts) * each).sum(-1).clamp(max=cuts[-1])

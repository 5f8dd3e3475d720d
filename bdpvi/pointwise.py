"""ε from every record's own δ: the hockey-stick conversion, which goes by no order."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bdpvi import conversions
from bdpvi.composition import Estimator
from bdpvi.estimators import Estimate
from bdpvi.hockey_stick import hockey_stick_bound

LogMgf = Callable[[Tensor, Tensor | slice], Tensor]
"""From s (J,) or (J, n) and the positions of n records to log E exp(s L), (J, n)."""

EPSILONS = torch.logspace(-6, 3, 4097, dtype=torch.float64)
"""The ε that an answer may take, fixed beforehand; neighbours differ by 0.5 %."""

_SCREEN = torch.logspace(-1, 5, 33, dtype=torch.float64)
_NEGLIGIBLE = 1e-4


def smallest_epsilon(
    delta_of: Callable[[float], Tensor], beta: float, estimator: Estimator
) -> tuple[float, Estimate]:
    """Return the smallest ε of :data:`EPSILONS` with E_x′ δ_x′(ε) ≤ β, and the estimate there.

    δ_x′(ε) = sup_S P(S) − e^ε Q(S) of each record is what Bayesian DP (Triastcyn & Faltings 2020,
    Definition 15) takes the mean of, so no moment bound is spent. Every ε of the grid counts as an
    estimate used, since the answer could have been any.

    Args:
        delta_of: from ε to δ_x′(ε) of every record, (m,).
        beta: what the mean may be.
        estimator: bounds the mean from the log of δ per record.

    Returns:
        ε, +inf where the largest of the grid is too small; and the estimate.
    """

    def estimate(index: int) -> Estimate:
        delta = delta_of(float(EPSILONS[index]))
        return estimator(delta.clamp(min=torch.finfo(delta.dtype).tiny).log().unsqueeze(0))

    low, high = -1, len(EPSILONS) - 1
    best = estimate(high)
    if not float(best.log_bound) <= math.log(beta):
        return math.inf, best
    while high - low > 1:
        middle = (low + high) // 2
        tried = estimate(middle)
        if float(tried.log_bound) <= math.log(beta):
            high, best = middle, tried
        else:
            low = middle
    return float(EPSILONS[high]), best


def certified_delta(log_mgf: LogMgf, beta: float) -> Callable[[float], Tensor]:
    """Return a certified upper bound on δ_x′ as a function of ε, from moment generating functions.

    A record's moment bound (:func:`bdpvi.conversions.delta`) is kept where it is negligible beside
    ``beta``; the others are inverted exactly (:mod:`bdpvi.hockey_stick`).

    Args:
        log_mgf: log E exp(s L) of all releases together.
        beta: the mean of δ that is looked for.
    """
    moments = log_mgf(_SCREEN, slice(None))

    def delta_of(epsilon: float) -> Tensor:
        delta = conversions.delta(moments, _SCREEN[:, None], epsilon).amin(0)
        exposed = (delta > _NEGLIGIBLE * beta).nonzero()[:, 0]
        if len(exposed):
            exact = hockey_stick_bound(
                lambda rows: lambda s: log_mgf(s, exposed[rows]), len(exposed), epsilon
            )
            delta[exposed] = torch.minimum(delta[exposed], exact)
        return delta

    return delta_of

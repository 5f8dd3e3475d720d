"""ε from every record's own δ: the hockey-stick conversion, which goes by no order."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bdpvi import conversions
from bdpvi.composition import Estimator
from bdpvi.estimators import Estimate
from bdpvi.hockey_stick import Contour, contour_for, hockey_stick_from_log_mgf

LogMgf = Callable[[Tensor], Tensor]
"""From s (J,) or (J, n) to log E exp(s L) of n records, (J, n)."""

EPSILONS = torch.logspace(-6, 3, 4097, dtype=torch.float64)
"""The ε that an answer may take, fixed beforehand; neighbours differ by 0.5 %."""

_SCREEN = torch.logspace(-1, 5, 97, dtype=torch.float64)
_NEGLIGIBLE = 1e-4
_NODES, _SMOOTHING = 128, 0.0015
_REACH = 1.2
_BLOCK = 1 << 19


def smallest_epsilon(
    delta_of: Callable[[float], Tensor],
    beta: float,
    estimator: Estimator,
    bound_of: Callable[[float], Tensor] | None = None,
) -> tuple[float, Estimate]:
    """Return the smallest ε of :data:`EPSILONS` with E_x′ δ_x′(ε) ≤ β, and the estimate there.

    δ_x′(ε) = sup_S P(S) − e^ε Q(S) of each record is what Bayesian DP (Triastcyn & Faltings 2020,
    Definition 15) takes the mean of, so no moment bound is spent. Every ε of the grid counts as an
    estimate used, since the answer could have been any.

    Args:
        delta_of: from ε to δ_x′(ε) of every record, (m,).
        beta: what the mean may be.
        estimator: bounds the mean from the log of δ per record.
        bound_of: a quicker upper bound on ``delta_of``, to start from.

    Returns:
        ε, +inf where the largest of the grid is too small; and the estimate.
    """

    def estimate(of: Callable[[float], Tensor], index: int) -> Estimate:
        delta = of(float(EPSILONS[index]))
        return estimator(delta.clamp(min=torch.finfo(delta.dtype).tiny).log().unsqueeze(0))

    def suffices(of: Callable[[float], Tensor], index: int) -> bool:
        return float(estimate(of, index).log_bound) <= math.log(beta)

    def smallest(of: Callable[[float], Tensor], low: int, high: int) -> int:
        """Return the least index in (low, high] that suffices, given that high does."""
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if suffices(of, middle) else (middle, high)
        return high

    last = len(EPSILONS) - 1
    start = bound_of or delta_of
    if not suffices(start, last):
        return math.inf, estimate(start, last)
    best = smallest(start, -1, last)
    if bound_of is not None:
        stride, low = 16, best
        while low > -1 and suffices(delta_of, low):  # down in growing strides, then in between
            best, low, stride = low, max(low - stride, -1), 2 * stride
        best = smallest(delta_of, low, best)
    return float(EPSILONS[best]), estimate(delta_of, best)


def moment_delta(log_mgf: LogMgf) -> Callable[[float], Tensor]:
    """Return a bound on δ_x′ as a function of ε: :func:`bdpvi.conversions.delta` at its best λ."""
    moments = log_mgf(_SCREEN)
    return lambda epsilon: conversions.delta(moments, _SCREEN[:, None], epsilon).amin(0)


def certified_delta(
    log_mgf_of: Callable[[Tensor], LogMgf], bound_of: Callable[[float], Tensor], beta: float
) -> Callable[[float], Tensor]:
    """Return a certified upper bound on δ_x′ as a function of ε, tight for exposed records.

    A record keeps its moment bound where that is negligible beside ``beta``; the others are
    inverted (:mod:`bdpvi.hockey_stick`). The inversion holds at every ε and is tight near the one
    its contour was made for, so nearby ε share a contour.

    Args:
        log_mgf_of: from positions of records to log E exp(s L) of all releases together.
        bound_of: the moment bound, :func:`moment_delta`.
        beta: the mean of δ that is looked for.
    """
    blocks: list[tuple[Tensor, Contour, Tensor]] = []
    made_for = math.nan

    def prepare(epsilon: float) -> None:
        nonlocal made_for
        # Exposed at any ε that this contour will serve.
        exposed = (bound_of(epsilon / _REACH) > _NEGLIGIBLE * beta).nonzero()[:, 0]
        blocks.clear()
        for rows in exposed.split(_BLOCK // _NODES):
            log_mgf = log_mgf_of(rows)
            contour = contour_for(log_mgf, epsilon, _NODES, _SMOOTHING)
            blocks.append((rows, contour, log_mgf(contour.s)))
        made_for = epsilon

    def delta_of(epsilon: float) -> Tensor:
        delta = bound_of(epsilon)
        if not made_for / _REACH <= epsilon <= made_for * _REACH:
            prepare(epsilon)
        for rows, contour, values in blocks:
            exact = hockey_stick_from_log_mgf(values, contour, epsilon)
            delta[rows] = torch.minimum(delta[rows], exact)
        return delta

    return delta_of

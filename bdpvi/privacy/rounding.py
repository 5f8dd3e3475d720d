"""The part of δ for samples that differ slightly from the exact ones that ε was computed for."""

from __future__ import annotations

import math
from collections.abc import Callable


def cap(epsilon: float) -> float:
    """Return the ε for the price of rounding: ``epsilon`` rounded up to a quarter, at least 1.

    A step function, so that a search for ε at a δ can fix the price before ε is known.
    """
    return max(1.0, math.ceil(4 * epsilon) / 4) if math.isfinite(epsilon) else math.inf


def rounding_delta(rounding: float, epsilon: float) -> float:
    """Return the δ that rounding adds at ε: (1 + e^c) θ with c = :func:`cap` (ε) ≥ ε.

    If samples are within θ of exact ones in total variation, for D and for D′,
    Pr[S | D] ≤ Pr[exact | D] + θ ≤ e^ε Pr[exact | D′] + δ + θ ≤ e^ε Pr[S | D′] + δ + (1 + e^ε) θ.

    >>> rounding_delta(1e-9, 0.3) == (1 + math.exp(1.0)) * 1e-9
    True
    """
    return (1 + math.exp(min(cap(epsilon), _HIGHEST))) * rounding if rounding else 0.0


_HIGHEST = 700.0
"""At this ε the price of any rounding exceeds δ = 1."""


def after_rounding(solve: Callable[[float], float], delta: float, rounding: float) -> float:
    """Return ε at ``delta`` of outputs within θ = ``rounding`` of exact ones.

    Args:
        solve: maps δ to ε of exact outputs.
        delta: δ, including the price of rounding, see :func:`rounding_delta`.
        rounding: θ.

    Returns:
        +inf if rounding uses up δ.
    """
    epsilon = 0.0
    while (rest := delta - rounding_delta(rounding, epsilon)) > 0:
        within = cap(epsilon)
        epsilon = solve(rest)
        if epsilon <= within or not rounding:
            return epsilon
    return math.inf

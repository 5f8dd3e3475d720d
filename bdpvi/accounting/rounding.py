"""What δ pays where samples are not quite the exact ones that ε was computed for."""

from __future__ import annotations

import math
from collections.abc import Callable


def cap(epsilon: float) -> float:
    """Return the ε that rounding is priced at: the next quarter from ``epsilon`` on, at least 1.

    A step function, so that whoever looks for ε at a δ can fix the price before ε is known.
    """
    return max(1.0, math.ceil(4 * epsilon) / 4) if math.isfinite(epsilon) else math.inf


def rounding_delta(rounding: float, epsilon: float) -> float:
    """Return what rounding adds to δ at ε: (1 + e^c) θ with c = :func:`cap` (ε) ≥ ε.

    With samples within θ of exact ones in total variation, for D and for D′,
    Pr[S | D] ≤ Pr[exact | D] + θ ≤ e^ε Pr[exact | D′] + δ + θ ≤ e^ε Pr[S | D′] + δ + (1 + e^ε) θ.

    >>> rounding_delta(1e-9, 0.3) == (1 + math.exp(1.0)) * 1e-9
    True
    """
    return (1 + math.exp(min(cap(epsilon), _HIGHEST))) * rounding if rounding else 0.0


_HIGHEST = 700.0
"""Here the price of any rounding exceeds δ = 1."""


def after_rounding(solve: Callable[[float], float], delta: float, rounding: float) -> float:
    """Return ε at ``delta`` of outputs that are within θ = ``rounding`` of exact ones.

    Args:
        solve: from δ to ε of exact outputs.
        delta: δ, which pays for the rounding, see :func:`rounding_delta`.
        rounding: θ.

    Returns:
        +inf where rounding leaves nothing of δ.
    """
    epsilon = 0.0
    while (rest := delta - rounding_delta(rounding, epsilon)) > 0:
        within = cap(epsilon)
        epsilon = solve(rest)
        if epsilon <= within or not rounding:
            return epsilon
    return math.inf

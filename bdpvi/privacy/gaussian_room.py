"""The noise of a Gaussian mechanism at a given (ε, δ)."""

from __future__ import annotations

from bdpvi._ground import validate
from bdpvi.privacy.rounding import rounding_delta
from bdpvi.privacy.solve import root
from bdpvi.privacy.worst_case import gaussian_epsilon


def gaussian_distance(epsilon: float, delta: float, rounding: float = 0.0) -> float:
    """Return the largest μ at which a Gaussian mechanism costs at most ε at ``delta``.

    Args:
        epsilon: ε > 0.
        delta: δ.
        rounding: θ, see :func:`bdpvi.privacy.rounding.rounding_delta`.

    Raises:
        ValueError: if rounding uses up δ.

    >>> from bdpvi.privacy.worst_case import gaussian_guarantee
    >>> mu = gaussian_distance(1.0, 1e-5)
    >>> round(mu, 4), round(gaussian_guarantee(mu**2, 1e-5).epsilon, 9)
    (0.2681, 1.0)
    """
    validate.epsilon(epsilon)
    rest = validate.probability("delta", delta) - rounding_delta(rounding, epsilon)
    if not rest > 0:
        raise ValueError(f"delta={delta!r} is too small: rounding alone costs {delta - rest:.2g}")
    # ε grows with μ, and the tails bound it from both sides.
    most = root(lambda mu: gaussian_epsilon(mu**2, rest) - epsilon, 1e-9, 2 * epsilon + 40)
    return most * (1 - 1e-11)

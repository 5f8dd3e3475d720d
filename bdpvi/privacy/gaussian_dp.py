"""Guarantees of a Gaussian mechanism, and the distance that an ε allows."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from scipy.special import ndtri

from bdpvi._ground import validate
from bdpvi._ground.host import on_host
from bdpvi.privacy.cost import Bound, Kind
from bdpvi.privacy.gaussian import GAUSSIAN, equal_covariance, largest_variance
from bdpvi.privacy.rounding import after_rounding, rounding_delta
from bdpvi.privacy.solve import root

_LARGE = 1e16
"""From this μ² on the bound by the loss's tail has 15 digits, and rounding hides the root."""


@lru_cache(maxsize=4096)
@on_host
def gaussian_epsilon(variance: float, delta: float) -> float:
    """Return ε at ``delta`` of a Gaussian mechanism: the root of ``equal_covariance``.

    Args:
        variance: variance of the privacy loss, μ², positive, may be +inf.
        delta: δ in (0, 1).

    Returns:
        ε, rounded up by a relative 1e-11.
    """
    if variance > _LARGE:  # where the loss's Gaussian tail, Pr[L > ε] ≥ δ(ε), is δ
        return variance * (0.5 - float(ndtri(delta)) / math.sqrt(variance)) * (1 + 1e-11)
    v = torch.tensor([validate.positive("variance", variance)], dtype=torch.float64)

    def excess(epsilon: float) -> float:
        return float(equal_covariance(v, epsilon)) - delta

    if excess(0.0) <= 0:
        return 0.0
    # Beyond this ε even the tail is below δ.
    top = variance / 2 + math.sqrt(variance * -2 * math.log(delta))
    return root(excess, 0.0, top) * (1 + 1e-11)  # rounded up


@on_host
def gaussian_guarantee(variance: float, delta: float, rounding: float = 0.0) -> Bound | None:
    """Return the guarantee of a Gaussian mechanism whose outputs are within ``rounding`` of exact.

    Args:
        variance: μ², of the privacy loss.
        delta: δ.
        rounding: θ, see :func:`rounding_delta`.

    Returns:
        None if rounding uses up δ.

    >>> round(gaussian_guarantee(0.25, 1e-5, rounding=1e-9).epsilon, 4)
    1.9932
    """
    epsilon = after_rounding(lambda rest: gaussian_epsilon(variance, rest), delta, rounding)
    if not math.isfinite(epsilon):
        return None
    distance, name = math.sqrt(variance), GAUSSIAN
    return worst(epsilon, delta, name, distance=distance, rounding=rounding)


def worst(epsilon: float, delta: float, by: str, **more: Any) -> Bound:
    """Return a worst-case bound."""
    return Bound(kind=Kind.WORST_CASE, epsilon=epsilon, delta=delta, by=by, **more)


def gaussian_distance(epsilon: float, delta: float, rounding: float = 0.0) -> float:
    """Return the largest μ at which a Gaussian mechanism costs at most ε at ``delta``.

    Args:
        epsilon: ε > 0.
        delta: δ.
        rounding: θ, see :func:`bdpvi.privacy.rounding.rounding_delta`.

    Raises:
        ValueError: if rounding uses up δ.

    >>> mu = gaussian_distance(1.0, 1e-5)
    >>> round(mu, 4), round(gaussian_guarantee(mu**2, 1e-5).epsilon, 9)
    (0.2681, 1.0)
    """
    validate.epsilon(epsilon)
    rest = validate.probability("delta", delta) - rounding_delta(rounding, epsilon)
    if not rest > 0:
        raise ValueError(f"delta={delta!r} is too small: rounding alone costs {delta - rest:.2g}")
    return math.sqrt(largest_variance(epsilon, rest)) * (1 - 3e-11)  # rounded down

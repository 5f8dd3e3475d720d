"""The worst case of what is bought from a table, and of a release after it: Gaussian mechanisms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from bdpvi._runtime import validate
from bdpvi.accounting.ledger import Bought
from bdpvi.accounting.solve import root
from bdpvi.accounting.worst_case import gaussian_epsilon, gaussian_guarantee, rounding_delta
from bdpvi.types import WorstCase


def gaussian_distance(epsilon: float, delta: float, rounding: float = 0.0) -> float:
    """Return the largest μ at which a Gaussian mechanism costs at most ε at ``delta``.

    Args:
        epsilon: ε > 0.
        delta: δ.
        rounding: θ, see :func:`rounding_delta`.

    Raises:
        ValueError: if rounding leaves nothing of δ.

    >>> mu = gaussian_distance(1.0, 1e-5)
    >>> round(mu, 4), round(gaussian_guarantee(mu**2, 1e-5).epsilon, 9)
    (0.2681, 1.0)
    """
    validate.positive("epsilon", epsilon)
    rest = validate.probability("delta", delta) - rounding_delta(rounding, epsilon)
    if not rest > 0:
        raise ValueError(f"delta={delta!r} is too small: rounding alone costs {delta - rest:.2g}")
    # ε grows with μ, and the tails bound it from both sides.
    most = root(lambda mu: gaussian_epsilon(mu**2, rest) - epsilon, 1e-9, 2 * epsilon + 40)
    return most * (1 - 1e-11)


def with_bought(guarantee: WorstCase, bought: Sequence[Bought], delta: float) -> WorstCase | None:
    """Return the guarantee of a release together with what was bought before it.

    Gaussian mechanisms compose to one of variance Σ μ², also where later ones depend on what the
    earlier ones gave (Dong, Roth and Su 2022, Corollary 2). A δ besides adds up.

    Args:
        guarantee: of the release alone, at any δ, with its distance.
        bought: what was bought.
        delta: δ of all together.

    Returns:
        None where the distance is not known, or nothing is left of δ.

    >>> one = gaussian_guarantee(0.04, 1e-5)
    >>> total = with_bought(one, [Bought(0.1, 1e-6)], 1e-5)
    >>> round(total.epsilon, 9) == round(gaussian_guarantee(0.05, 0.9e-5).epsilon, 9), total.delta
    (True, 1e-05)
    """
    rest = delta - math.fsum(one.delta for one in bought)
    if guarantee.distance is None or rest <= 0:
        return None
    variance = math.fsum([guarantee.distance**2, *(one.distance**2 for one in bought)])
    if variance == 0:
        return replace(guarantee, delta=delta)
    rounding = math.fsum([guarantee.rounding, *(one.rounding for one in bought)])
    total = gaussian_guarantee(variance, rest, rounding)
    return None if total is None else replace(total, delta=delta)

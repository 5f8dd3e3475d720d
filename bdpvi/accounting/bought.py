"""The worst case of all that was released about the people of one table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from bdpvi._runtime import validate
from bdpvi.accounting.events import SampledGaussian, Threshold
from bdpvi.accounting.ledger import Bought, Charge, Line, Steps, Unit
from bdpvi.accounting.solve import root
from bdpvi.accounting.worst_case import (
    epsilon,
    gaussian_epsilon,
    rounding_delta,
)
from bdpvi.types import WorstCase


def gaussian_distance(epsilon: float, delta: float, rounding: float = 0.0) -> float:
    """Return the largest μ at which a Gaussian mechanism costs at most ε at ``delta``.

    Args:
        epsilon: ε > 0.
        delta: δ.
        rounding: θ, see :func:`rounding_delta`.

    Raises:
        ValueError: if rounding leaves nothing of δ.

    >>> from bdpvi.accounting.worst_case import gaussian_guarantee
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


def together(lines: Sequence[Line], delta: float, unit: Unit = Unit()) -> WorstCase | None:  # noqa: B008
    """Return the worst case of everything that a ledger holds.

    By :func:`bdpvi.accounting.worst_case.epsilon`. A μ-Gaussian mechanism is kμ-Gaussian for k rows
    of one person (Dong, Roth and Su 2022, Theorem 2.14).

    Args:
        lines: in any order.
        delta: δ of all together.
        unit: what is protected.

    Returns:
        None where nothing bounds what one of the lines gives away, nothing is left of δ, or k > 1
        rows meet a line that is priced for one alone.

    >>> from bdpvi.accounting.worst_case import gaussian_guarantee
    >>> total = together([Charge(1, 5.0, distance=0.2), Bought(0.1, 1e-6)], 1e-5)
    >>> round(total.epsilon, 9) == round(gaussian_guarantee(0.05, 0.9e-5).epsilon, 9), total.delta
    (True, 1e-05)
    """
    events: list[SampledGaussian | Threshold] = []
    for line in lines:
        if isinstance(line, Steps):
            if unit.rows > 1:
                return None
            z, q, n, theta = line.noise_multiplier, line.rate, line.steps, line.rounding
            events.append(SampledGaussian(noise_multiplier=z, rate=q, steps=n, rounding=theta))
        elif isinstance(line, Charge | Bought):
            if line.distance is None or (isinstance(line, Charge) and line.from_data):
                return None
            if distance := unit.rows * line.distance:
                one = SampledGaussian(noise_multiplier=1 / distance, rounding=line.rounding)
                events.append(one)
            if isinstance(line, Bought) and line.delta:
                if unit.rows > 1:
                    return None
                events.append(Threshold(line.delta))
    found = epsilon(events, delta)
    if found is None or unit == Unit():
        return found
    return replace(found, relation=unit_relation(unit))


def folded(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Return fewer lines that cost the same, for a search that adds one to them many times.

    >>> from bdpvi.accounting.ledger import Charge
    >>> folded([Charge(1, 1.0, distance=0.3), Charge(4, 1.0, distance=0.4)])
    (Bought(distance=0.5, delta=0.0, rounding=0.0),)
    """
    spent = [line for line in lines if isinstance(line, Charge | Bought)]
    if any(isinstance(line, Charge) and line.distance is None for line in spent):
        return tuple(lines)
    rest = tuple(line for line in lines if isinstance(line, Steps))
    if not spent:
        return rest
    whole = Bought(
        math.sqrt(math.fsum((line.distance or 0.0) ** 2 for line in spent)),
        math.fsum(line.delta for line in spent if isinstance(line, Bought)),
        math.fsum(line.rounding for line in spent),
    )
    return (whole, *rest)


def unit_relation(unit: Unit) -> str:
    """Return what neighbouring tables differ by, in words."""
    rows = "its row" if unit.rows == 1 else f"its rows, at most {unit.rows}"
    return f"add or remove one {unit.name} with {rows}"

"""The temperature of the public grid for a target ε."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

from bdpvi._ground import validate
from bdpvi.privacy.cost import Bound, Cost

OCTAVE = 8
"""Temperatures per factor of 2 of the grid."""
GRID = range(-30 * OCTAVE, 40 * OCTAVE + 1)
"""Searched grid indices: temperatures from 1e-9 to 1e12."""
WARMER = 15
"""Number of temperatures tried for a reliable cost: up to 128 times the first."""


def on_grid(place: int) -> float:
    """Return a temperature of the grid.

    >>> on_grid(0), on_grid(8)
    (1.0, 2.0)
    """
    return float(2.0 ** (place / OCTAVE))


HOTTEST = on_grid(GRID[-1])


def bayesian(cost: Cost) -> Bound:
    """Return the Bayesian bound of draws from a fit with a panel."""
    assert cost.bayesian is not None
    return cost.bayesian


def coldest(price: Callable[[float], Bound], epsilon: float) -> float:
    """Return the lowest temperature of the public grid that costs at most ``epsilon``.

    It bisects the grid's 561 indices with at most ten evaluations of ``price``; if that is cached,
    searches for several ε share the first few.

    Args:
        price: maps a temperature to the cost of a release there, which falls with the temperature,
            down to a floor; a ValueError counts as infinite.
        epsilon: target; eight temperatures per octave meet it within 4.5 %, as ε falls with the
            root of the temperature, or slower.

    Raises:
        ValueError: if even the highest temperature costs more; the message gives the floor.

    >>> from types import SimpleNamespace
    >>> coldest(lambda tau: SimpleNamespace(epsilon=0.1 + 1 / tau), 0.35)
    4.0
    """
    validate.epsilon(epsilon)

    def cost(temperature: float) -> float:
        try:
            return price(temperature).epsilon
        except ValueError:
            return math.inf

    if not cost(HOTTEST) <= epsilon:
        raise ValueError(
            f"epsilon={epsilon:g} cannot be reached: the covariances cost {cost(HOTTEST):.4g} at "
            "any temperature"
        )
    index = bisect_left(GRID, True, key=lambda index: cost(on_grid(index)) <= epsilon)
    return on_grid(GRID[index])


def reliable_from(price: Callable[[float], Bound], temperature: float) -> float:
    """Return the first temperature, from this one up, with a reliable cost; this one if none has.

    Each is √2 times the previous one. At a higher temperature a release costs less, and the means,
    which make records' costs unequal, matter less, so the first is found by bisection.

    >>> from types import SimpleNamespace
    >>> round(reliable_from(lambda tau: SimpleNamespace(reliable=tau > 3), 1.0), 6)
    4.0
    >>> reliable_from(lambda tau: SimpleNamespace(reliable=False), 1.0)
    1.0
    """
    if price(temperature).reliable:
        return temperature
    hotter = [temperature * 2 ** (step / 2) for step in range(1, WARMER)]
    index = bisect_left(hotter, True, key=lambda tau: bool(price(tau).reliable))
    return hotter[index] if index < len(hotter) else temperature

"""Roots of monotone functions, and the first point at which they are low enough."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from typing import Any

_RANGE = 700.0
"""Logarithms are clamped to ± this: brentq accepts no infinity."""
_PRECISION = 1e-12
"""Relative precision of the argument where the function jumps over the accepted range."""


def brent(f: Callable[[float], float], low: float, high: float, **options: Any) -> float:
    """Return a root by Brent's method, as :func:`scipy.optimize.brentq` does."""
    from scipy.optimize import brentq  # takes a while to load

    return float(brentq(f, low, high, **options))


def smallest(
    falling: Callable[[float], float],
    target: float,
    guess: float,
    *,
    slack: float,
    most: float = 1e9,
) -> float:
    """Return an x at which ``falling`` is at most ``target``, but by no more than ``slack``.

    Brackets the root from ``guess`` by doubling steps, then applies Brent's method to logarithms,
    where a power law is a straight line. Any value within the slack ends the search.

    Args:
        falling: maps x > 0 to a value of at least 0, or +inf; not increasing in x.
        target: positive.
        guess: start of the search, positive.
        slack: fraction of the target, in (0, 1), by which the value may be below it. If the
            function jumps across that range, the answer is the position of the jump.
        most: the search gives up after an x above this.

    Raises:
        ArithmeticError: if no x up to about ``most`` suffices; its argument is the value there.

    >>> round(smallest(lambda x: 100 / x**2, target=1.0, guess=1.0, slack=1e-6), 4)
    10.0
    """
    falling = cache(falling)  # the ends of a bracket and the root are asked again

    def excess(log_x: float) -> float:
        """Return log(falling/target) + slack/2, or 0 if the value is accepted."""
        value = falling(math.exp(log_x)) / target
        if 1 - slack <= value <= 1:
            return 0.0
        log = math.log(value) if 0 < value < math.inf else math.copysign(_RANGE, value - 1)
        # Above the target it stays positive, below the accepted range negative.
        return min(max(log, -_RANGE), _RANGE) - math.log1p(-slack / 2)

    low = high = math.log(guess)
    below = above = excess(low)
    step = math.log(2)
    while above > 0:
        if high > math.log(most):
            raise ArithmeticError(falling(math.exp(high)))
        low, high = high, high + step
        above, step = excess(high), 2 * step
    while below < 0:
        high, low = low, low - step
        below, step = excess(low), 2 * step
    if low == high:
        return math.exp(low)
    root = brent(excess, low, high, xtol=_PRECISION, rtol=_PRECISION)
    while falling(math.exp(root)) > target:
        root = min(high, root + 2 * _PRECISION * max(1.0, abs(root)))
    return math.exp(root)


def first(falling: Callable[[int], float], level: float, low: int, high: int) -> int:
    """Return the least index strictly between low and high where ``falling`` is at most ``level``.

    If there is none, the largest index between them.

    >>> first(lambda index: 10 - index, level=6.5, low=0, high=100)
    4
    """
    between = range(low + 1, high - 1)
    return low + 1 + bisect_left(between, -level, key=lambda index: -falling(index))


def root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return the root between two numbers, to 1e-12 of itself on either side.

    Args:
        rising: a monotone function, with opposite signs at ``low`` and ``high``.

    >>> round(root(lambda x: x**2 - 2, 0.0, 2.0), 9)
    1.414213562
    """
    return brent(rising, low, high, xtol=1e-300, rtol=_PRECISION)

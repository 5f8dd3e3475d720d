"""Roots of functions that rise or fall, and the first place where they are low enough."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

from scipy.optimize import brentq

_RANGE = 700.0
"""Logarithms beyond ± this count as this: brentq takes no infinity."""
_PRECISION = 1e-12
"""Relative precision of the argument, where the function jumps over all that is wanted."""


def smallest(
    falling: Callable[[float], float],
    target: float,
    guess: float,
    *,
    slack: float,
    most: float = 1e9,
) -> float:
    """Return the x at which ``falling`` is at most ``target``, and not below it by more than slack.

    Brackets the root from ``guess`` by steps that double, then Brent's method on the logarithms of
    both, in which a power law is a straight line; any value within the slack ends the search.

    Args:
        falling: from x > 0 to a value of at least 0, or +inf; not rising with x.
        target: positive.
        guess: where the search starts, positive.
        slack: fraction of the target, in (0, 1), that the value may lie below it. Where the
            function jumps across that range the answer is where it jumps.
        most: largest x from which a larger one is still tried.

    Raises:
        ArithmeticError: if no x up to about ``most`` suffices; its argument is the value there.

    >>> round(smallest(lambda x: 100 / x**2, target=1.0, guess=1.0, slack=1e-6), 4)
    10.0
    """

    def excess(log_x: float) -> float:
        """Return log(falling/target) + slack/2, but 0 where the value is accepted."""
        value = falling(math.exp(log_x)) / target
        if 1 - slack <= value <= 1:
            return 0.0
        log = math.log(value) if 0 < value < math.inf else math.copysign(_RANGE, value - 1)
        # Above the target it stays above 0, below the accepted values below 0.
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
    root = float(brentq(excess, low, high, xtol=_PRECISION, rtol=_PRECISION))
    while falling(math.exp(root)) > target:
        root = min(high, root + 2 * _PRECISION * max(1.0, abs(root)))
    return math.exp(root)


def first(falling: Callable[[int], float], level: float, low: int, high: int) -> int:
    """Return the least index strictly between low and high where ``falling`` is at most ``level``.

    The largest of them where it is nowhere.

    >>> first(lambda index: 10 - index, level=6.5, low=0, high=100)
    4
    """
    between = range(low + 1, high - 1)
    return low + 1 + bisect_left(between, -level, key=lambda index: -falling(index))


def root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return the root between two numbers, to 1e-12 of itself on either side.

    Args:
        rising: or falling; of another sign at ``low`` than at ``high``.

    >>> round(root(lambda x: x**2 - 2, 0.0, 2.0), 9)
    1.414213562
    """
    return float(brentq(rising, low, high, xtol=1e-300, rtol=_PRECISION))

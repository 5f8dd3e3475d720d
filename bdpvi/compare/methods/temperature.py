"""The temperature that costs a wanted ε, found in few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable

from bdpvi import _validate
from bdpvi.types import Spent

COLDEST, HOTTEST = 1e-9, 1e12
_LANDING, _NEAR = 0.01, 0.005
_WARMER = 15
"""How many temperatures are tried for a reliable price: up to 128 times the first."""
_LEAST, _STRIDE, _MOST = 0.02, math.log(4), math.log(64)


class TemperatureSearch:
    """Inverts a price that falls with the temperature, down to a floor.

    Args:
        price: from a temperature to what a release there costs; a ValueError counts as an
            infinite price.
        excess: from a temperature and ε to a number that falls with both and is 0 where the price
            is ε: the logarithm of the δ that ε costs over the one that is paid for, say, where that
            is quicker to have than the price. By default the logarithm of the price over ε.

    >>> from types import SimpleNamespace
    >>> search = TemperatureSearch(lambda tau: SimpleNamespace(epsilon=0.1 + 1 / tau))
    >>> 0.99 * 0.3 <= 0.1 + 1 / search.solve(0.3) <= 0.3
    True
    """

    def __init__(
        self,
        price: Callable[[float], Spent],
        excess: Callable[[float, float], float] | None = None,
    ) -> None:
        self.price = price
        self.excess = excess or self._log_ratio
        self._answers: list[tuple[float, float]] = []  # logarithms of ε and temperature
        self._slope = 0.0  # of the excess by the logarithm of temperature, at the last answer

    def solve(self, epsilon: float) -> float:
        """Return a temperature that costs at most ``epsilon``, and at least 0.99 of it.

        At the coldest, 1e-9, it may cost less.

        Raises:
            ValueError: if even the hottest costs more; the message gives the floor.
        """
        _validate.positive("epsilon", epsilon)
        reached = any(answer <= math.log(epsilon) for answer, _ in self._answers)
        if not reached and not self.excess(HOTTEST, epsilon) <= 0:
            raise ValueError(
                f"epsilon={epsilon:g} cannot be reached: what the covariances give away costs "
                f"{self._cost(HOTTEST):.4g} at any temperature"
            )
        known, tolerance = self._bracket(epsilon), _NEAR
        for attempt in range(200):
            low, high = _around(known)
            if low is None or high is None or high - low < 1e-9:
                break
            if known[high] >= -tolerance:
                if self._cost(math.exp(high)) >= (1 - _LANDING) * epsilon:
                    break
                tolerance /= 4
            share = 0.5 if attempt % 4 == 3 else _crossing(known, low, high, -tolerance / 2)
            self._look(known, low + share * (high - low), epsilon)
        found = _around(known)[1]
        assert found is not None
        while self._cost(math.exp(found)) > epsilon and found < math.log(HOTTEST):
            found += 1e-3  # the excess said otherwise, by a rounding
        self._answers.append((math.log(epsilon), found))
        if len(known) > 1:
            self._slope = _line(known, 0.0)[1]
        return math.exp(found)

    def _bracket(self, epsilon: float) -> dict[float, float]:
        """Return the excess at log temperatures, of which one is hot enough, and one not if any."""
        known: dict[float, float] = {}
        self._look(known, self._start(math.log(epsilon)), epsilon)
        while True:
            low, high = _around(known)
            if high is None:
                assert low is not None
                self._look(known, low + self._stride(known, low), epsilon)
            elif low is None and high > math.log(COLDEST):
                self._look(known, high - self._stride(known, high), epsilon)
            else:
                return known

    def _start(self, log_epsilon: float) -> float:
        """Return where earlier answers lead to: ε falls with a power of temperature, about ½."""
        if not self._answers:
            return 0.0
        (before, at_before), (last, at_last) = self._answers[-2:][0], self._answers[-1]
        power = (at_last - at_before) / (last - before) if last != before else -2.0
        return at_last + power * (log_epsilon - last)

    def _stride(self, known: dict[float, float], place: float) -> float:
        """Return how far to go on from ``place`` to find the other sign: beyond the crossing."""
        if len(known) > 1:
            crossing, slope = _line(known, 0.0)
        elif self._slope < 0:
            crossing, slope = place - known[place] / self._slope, self._slope
        else:
            return _STRIDE
        useful = -math.inf < slope < 0 and math.isfinite(crossing)
        return min(1.2 * abs(crossing - place) + _LEAST, _MOST) if useful else _MOST

    def _look(self, known: dict[float, float], place: float, epsilon: float) -> None:
        place = min(max(place, math.log(COLDEST)), math.log(HOTTEST))
        known[place] = self.excess(math.exp(place), epsilon)

    def _log_ratio(self, temperature: float, epsilon: float) -> float:
        cost = self._cost(temperature)
        return math.log(cost / epsilon) if cost > 0 else -math.inf

    def _cost(self, temperature: float) -> float:
        try:
            return self.price(temperature).epsilon
        except ValueError:
            return math.inf


def reliable_from(price: Callable[[float], Spent], temperature: float) -> float:
    """Return the first temperature from this one on whose price is reliable; this one if none is.

    Each is √2 times the one before. A hotter release costs less, and the means that decide how
    unequal the records' costs are count less in it.

    >>> from types import SimpleNamespace
    >>> round(reliable_from(lambda tau: SimpleNamespace(reliable=tau > 3), 1.0), 6)
    4.0
    >>> reliable_from(lambda tau: SimpleNamespace(reliable=False), 1.0)
    1.0
    """
    hotter = (temperature * 2 ** (step / 2) for step in range(_WARMER))
    return next((tau for tau in hotter if price(tau).reliable), temperature)


def _around(known: dict[float, float]) -> tuple[float | None, float | None]:
    """Return the hottest place that is too cold and the coldest that is hot enough."""
    low = max((t for t, excess in known.items() if excess > 0), default=None)
    high = min((t for t, excess in known.items() if excess <= 0), default=None)
    return low, high


def _crossing(known: dict[float, float], low: float, high: float, aim: float) -> float:
    """Return at which share of the way between the two the excess is expected to be ``aim``."""
    place, slope = _line(known, aim)
    share = (place - low) / (high - low) if slope < 0 else 0.5
    return min(max(share, 0.02), 0.98) if 0 < share < 1 else 0.5


def _line(known: dict[float, float], aim: float) -> tuple[float, float]:
    """Return where the line through the two places nearest to ``aim`` gets there, and its slope."""
    (s, at_s), (t, at_t) = sorted(known.items(), key=lambda item: abs(item[1] - aim))[:2]
    slope = (at_t - at_s) / (t - s)
    return (s + (aim - at_s) / slope if slope else s), slope

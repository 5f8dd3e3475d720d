"""The temperature that costs a wanted ε, found in few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable

from bdpvi import _validate
from bdpvi.types import Spent

COLDEST, HOTTEST = 1e-9, 1e12
_LANDING = 0.005
_STRIDE = math.log(4)


class TemperatureSearch:
    """Inverts a price that falls with the temperature, down to a floor.

    Every evaluation is kept, so that later targets start from a bracket.

    Args:
        price: from a temperature to what a release there costs; a ValueError counts as an
            infinite price.

    >>> from types import SimpleNamespace
    >>> search = TemperatureSearch(lambda tau: SimpleNamespace(epsilon=0.1 + 1 / tau))
    >>> 0.995 * 0.3 <= 0.1 + 1 / search.solve(0.3) <= 0.3
    True
    """

    def __init__(self, price: Callable[[float], Spent]) -> None:
        self.price = price
        self._known: dict[float, float] = {}

    def solve(self, epsilon: float) -> float:
        """Return a temperature that costs at most ``epsilon``, and at least 0.995 of it.

        At the coldest, 1e-9, it may cost less.

        Raises:
            ValueError: if even the hottest costs more; the message gives the floor.
        """
        _validate.positive("epsilon", epsilon)
        floor = self._epsilon(math.log(HOTTEST))
        if not floor <= epsilon:
            raise ValueError(
                f"epsilon={epsilon:g} cannot be reached: what the covariances give away costs "
                f"{floor:.4g} at any temperature"
            )
        low, high = self._bracket(epsilon)
        if low is None:
            return math.exp(high)
        for attempt in range(200):
            if self._epsilon(high) >= (1 - _LANDING) * epsilon or high - low < 1e-9:
                break
            middle = low + (high - low) * self._share(low, high, epsilon, attempt)
            low, high = (low, middle) if self._epsilon(middle) <= epsilon else (middle, high)
        return math.exp(high)

    def _bracket(self, epsilon: float) -> tuple[float | None, float]:
        """Return logarithms of temperatures: one too cold, if there is one, and one hot enough."""
        cold, log_temperature = math.log(COLDEST), 0.0
        while self._epsilon(log_temperature) > epsilon:
            log_temperature += _STRIDE
        while log_temperature > cold and self._epsilon(log_temperature) <= epsilon:
            log_temperature = max(cold, log_temperature - _STRIDE)
        self._epsilon(log_temperature)
        high = min(t for t, cost in self._known.items() if cost <= epsilon)
        low = max((t for t, cost in self._known.items() if cost > epsilon), default=None)
        return low, high

    def _share(self, low: float, high: float, epsilon: float, attempt: int) -> float:
        """Return where between the two ε is expected: on a straight line between logarithms."""
        above, below = self._known[low], self._known[high]
        if attempt % 3 == 2 or not 0 < below < above < math.inf:
            return 0.5
        aim = math.log((1 - _LANDING / 2) * epsilon)
        share = (math.log(above) - aim) / (math.log(above) - math.log(below))
        return min(max(share, 0.05), 0.95)

    def _epsilon(self, log_temperature: float) -> float:
        if log_temperature not in self._known:
            try:
                cost = self.price(math.exp(log_temperature)).epsilon
            except ValueError:
                cost = math.inf
            self._known[log_temperature] = cost
        return self._known[log_temperature]

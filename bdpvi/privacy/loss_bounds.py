"""Distributions on a lattice that bound privacy losses from above, and their sums.

A release's δ(ε) is convex in e^ε. So if upper bounds hold at a lattice's points, their largest
convex minorant is an upper bound everywhere. It is piecewise linear, hence the E(1 − e^{ε−L})₊ of a
law on the lattice (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022). No quadrature error makes
δ too small, neither one release's nor that of several, whose δ is a mean of one release's δ at
other ε. L need not be a log ratio of two densities; its δ only has to bound the release's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

Array = NDArray[np.float64]
Deltas = Callable[[Array], Array]
"""Maps ε, of any sign, to δ."""

MOST = 2**17
"""The most points of a lattice."""
_DIRECT = 2**26
_NOTHING = 1e-20


@dataclass(frozen=True)
class LatticeLoss:
    """Masses at ``least`` + j · ``step``, and the rest at ∞."""

    least: float
    step: float
    masses: Array
    infinite: float = 0.0

    @classmethod
    def of(cls, deltas: Deltas, least: float, last: float, step: float) -> LatticeLoss:
        """Return the law with the largest δ that is at most ``deltas`` at the lattice's points.

        Args:
            deltas: at most 1.
            least, last: the lattice begins at ``least`` and may end at ``last``: the mass beyond it
                is δ there.
            step: step of the lattice.

        >>> bound = LatticeLoss.of(lambda e: np.maximum(-np.expm1(e - 1), 0), 0.0, 2.0, 0.5)
        >>> bound.masses.round(12).tolist(), bound.infinite
        ([0.0, 0.0, 1.0, 0.0, 0.0], 0.0)
        """
        from scipy.optimize import isotonic_regression  # takes a while to load

        count = min(math.ceil(max(last - least, 0.0) / step), MOST) + 1
        delta = deltas(np.asarray(least + step * np.arange(count), dtype=np.float64))
        delta = np.minimum.accumulate(delta)
        # In x = e^{ε − least}, starting with δ = 1 at x = 0. The minorant's slopes do not decrease.
        x = np.concatenate([[0.0], np.exp(step * np.arange(count))])
        widths = np.diff(x)
        slopes = isotonic_regression(np.diff(delta, prepend=1.0) / widths, weights=widths).x
        masses = x[1:] * np.diff(slopes, append=0.0)
        return cls(least, step, np.maximum(masses, 0.0), float(delta[-1]))

    def together(self, other: LatticeLoss) -> LatticeLoss:
        """Return the law of the sum; tails of 1e-20 and the transforms' error move to ∞."""
        masses, lost = _convolved(self.masses, other.masses)
        tail = np.cumsum(masses[::-1])[::-1]
        kept = max(int(np.searchsorted(-tail, -_NOTHING)), 1)
        lost += float(tail[kept]) if kept < len(tail) else 0.0
        least = self.least + other.least
        return LatticeLoss(least, self.step, masses[:kept], self.infinite + other.infinite + lost)

    def repeated(self, count: int) -> LatticeLoss:
        """Return the law of the sum of ``count`` independent losses."""
        if count == 1:
            return self
        half = self.repeated(count // 2)
        both = half.together(half)
        return both.together(self) if count % 2 else both

    def delta(self, epsilon: float, others: Deltas) -> float:
        """Return E(1 − e^{ε−L−Y})₊, where ``others`` is the δ of an independent Y."""
        places = self.least + self.step * np.arange(len(self.masses), dtype=np.float64)
        of_each = others(np.asarray(epsilon - places))
        return min(1.0, self.infinite + float(np.dot(self.masses, of_each)))


def _convolved(one: Array, other: Array) -> tuple[Array, float]:
    """Return the convolution, and a bound on the total by which its values may be too small."""
    if len(one) * len(other) < _DIRECT:
        return np.convolve(one, other), 0.0
    number = len(one) + len(other) - 1
    size = next_fast_len(number, True)
    masses = np.maximum(irfft(rfft(one, size) * rfft(other, size), size)[:number], 0.0)
    norms = math.sqrt(float(np.dot(one, one)) * float(np.dot(other, other)))
    return masses, 2.0**-50 * math.log2(number) * number * norms

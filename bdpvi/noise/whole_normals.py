"""Integers with a rounded normal law, from a secret key: the noise of every private sum.

**Law.** A draw is X = K₀ + b K₁ + … + b^(L−1) K_{L−1}. Each K comes from a table of the discrete
normal law D(s₀)(k) ∝ exp(−k²/2s₀²), truncated beyond ± T: one of 2ᵝ equally likely numbers selects
it, β = 128. Sixteen bits suffice for 19 of 20 draws; the others take 48 more, and those that are
then still within 2⁻⁶⁴ of a border of the table another 64. Nothing here is computed in floating
point, so there are no arithmetic errors: X is within θ₁ = :meth:`Law.total_variation` of a normal
number of standard deviation s, rounded to the nearest integer, where s² = S² − 1/12 and
S = s₀ √(1 + b² + … + b^2(L−1)).

**Proof.** (1) *NormalTable.* 2T probabilities are rounded down to multiples of 2^−β, and that of 0
gets the rest: this moves less than (2T + 1)/2ᵝ in total. Truncation omits at most 2Φ(−T/s₀): the
sum beyond T is below the integral, and the whole sum above s₀√2π, by Poisson summation. (2) *Sums
of discrete normals* (Peikert 2010; Micciancio and Walter 2017). For K ~ D(s₀) and Y ~ D(σ), σ ≥ s₀,
completing the square gives

    P(K + bY = m) ∝ exp(−m²/2(s₀² + b²σ²)) Σ_y exp(−(y − cm)²/2τ²),  τ² = s₀²σ²/(s₀² + b²σ²),

for some c. By Poisson summation the inner sum is τ√2π (1 + e_m), |e_m| ≤ 2.1 x for
x = exp(−2π²τ²) ≤ 0.04, and τ² ≥ s₀²/(1 + b²). So the law is that of D(√(s₀² + b²σ²)) times
factors between (1 − 2.1x)/(1 + 2.1x) and its inverse, and within 2.1x/(1 − 2.1x) ≤ 2.3x of it in
total variation. This is used L − 1 times, from K_{L−1} down. (3) *Discrete and rounded.* D(S)(m) is
the density of N(0, S²) at m, up to a factor within 3 exp(−2π²S²) of 1. That density is the mean
of φ_s(m − G) over G ~ N(0, 1/12), φ_s being the density of N(0, s²); the rounded normal's
probability is the mean of φ_s(m − U) over U uniform on ± ½. G and U have the same moments up to the
third, so by Taylor's formula the two differ by at most (E G⁴ + E U⁴)/24 = 0.00139 times a mean of
|φ_s⁗| near m, and a sum of |φ_s⁗| over points a unit apart is at most ∫|φ_s⁗| + ∫|φ_s⁽⁵⁾|, which
is at most √24 s⁻⁴ + √120 s⁻⁵ by the mean squares of Hermite's polynomials. Half of the sum of
differences is the total variation.

As for all cryptographic noise, the assumption is that the stream of bits, AES-256 in counter mode,
cannot be distinguished from uniform bits.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property, lru_cache, partial
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor

from bdpvi._ground.host import HOST
from bdpvi.noise.keys import Key
from bdpvi.noise.keystream import Keystream


@dataclass(frozen=True)
class Law:
    """The parameters of a draw's law, which is within θ₁ of the law in the module.

    Attributes:
        spread: s₀.
        base: b.
        levels: L.
        cut: T.
        bits: β.

    >>> law = Law()
    >>> f"{law.deviation:.4e} {law.total_variation(1):.1e}"
    '8.5900e+09 5.3e-34'
    """

    spread: int = 512
    base: int = 256
    levels: int = 4
    cut: int = 6400
    bits: int = 128

    @cached_property
    def deviation(self) -> float:
        """S, which at the default settings is s up to 2⁻⁶⁹ of it."""
        return self.spread * math.sqrt(sum(self.base ** (2 * i) for i in range(self.levels)))

    def total_variation(self, draws: int) -> float:
        """Bound the total variation between draws and rounded normal numbers: their number × θ₁."""
        table = (2 * self.cut + 1) * 2.0**-self.bits + 2 * float(ndtr(-self.cut / self.spread))
        added = 2.3 * math.exp(-2 * math.pi**2 * self.spread**2 / (1 + self.base**2))
        s = math.sqrt(self.deviation**2 - 1 / 12)
        rounded = 0.0007 * (math.sqrt(24) * s**-4 + math.sqrt(120) * s**-5)
        rounded += 3 * math.exp(-2 * math.pi**2 * s**2)
        return draws * (self.levels * table + (self.levels - 1) * added + rounded)

    def borders(self) -> list[int]:
        """Return the table: 2ᵝ times the probabilities of values below −T, below 1 − T, …, T.

        More than 128 bits would need more digits.
        """
        context = Context(prec=80)
        ratio = context.exp(context.divide(Decimal(-1), Decimal(2 * self.spread**2)))
        square, weight = context.multiply(ratio, ratio), Decimal(1 << 200)
        weights = []
        for _ in range(self.cut + 1):
            weights.append(int(weight))
            weight, ratio = context.multiply(weight, ratio), context.multiply(ratio, square)
        total = weights[0] + 2 * sum(weights[1:])
        tail = [(one << self.bits) // total for one in weights[1:]]
        middle = (1 << self.bits) - 2 * sum(tail)
        return [0, *accumulate([*reversed(tail), middle, *tail[:-1]])]


class NormalTable:
    """Maps uniform bits to numbers between −T and T.

    Args:
        law: a law with 128 bits.
    """

    def __init__(self, law: Law) -> None:
        self._borders, self.cut = law.borders(), law.cut
        self.high = np.array([border >> 64 for border in self._borders], dtype=np.uint64)
        short, every = np.array([border >> 112 for border in self._borders]), np.arange(1 << 16)
        exact = [border >> 112 for border in self._borders if not border & ((1 << 112) - 1)]
        first = np.searchsorted(short, every) + np.bincount(exact, minlength=1 << 16) - 1
        last = np.searchsorted(short, every, "right") - 1
        self.guide = np.where(first == last, first - law.cut, OPEN).astype(np.int16)
        self._first = first.astype(np.int32)
        self._one = last - first == 1

    def by_16_bits(self, short: NDArray[np.uint16]) -> NDArray[np.int16]:
        """Return the numbers that 16 bits determine, and OPEN for the others."""
        return self.guide.take(short)

    def by_128_bits(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.int16]:
        """Return the numbers for 64 high and 64 low bits each."""
        short = (high >> np.uint64(48)).astype(np.intp)
        index = self._first[short]  # then one step: most have a single border behind them
        index += self.high[index + 1] <= high
        several = ~self._one[short]
        index[several] = np.searchsorted(self.high, high[several], side="right") - 1
        for at in np.flatnonzero(self.high[index] == high):  # a border is within 2⁻⁶⁴
            index[at] = self._index((int(high[at]) << 64) | int(low[at]))
        return np.asarray(index - self.cut, dtype=np.int16)

    def _index(self, uniform: int) -> int:
        return bisect_right(self._borders, uniform) - 1


class TableOn:
    """A :class:`NormalTable` on a device. Integers are signed, as torch's are.

    Args:
        numbers: the table.
        device: where.
    """

    def __init__(self, numbers: NormalTable, device: torch.device) -> None:
        self._numbers = numbers
        high = (numbers.high ^ np.uint64(1 << 63)).view(np.int64)
        self._high = torch.from_numpy(high).to(device)
        self._guide = torch.from_numpy(np.roll(numbers.guide, 1 << 15)).to(device)  # from −2¹⁵ on

    def by_16_bits(self, short: Tensor) -> Tensor:
        """Return the numbers that 16 bits determine, and OPEN for the others, int16."""
        return self._guide.index_select(0, short.int() + (1 << 15))

    def by_128_bits(self, high: Tensor, low: Tensor) -> Tensor:
        """Return the numbers for 64 high and 64 low bits each, int16."""
        ordered = high ^ -(1 << 63)  # signed numbers in the order of unsigned ones
        index = torch.searchsorted(self._high, ordered, right=True) - 1
        result = (index - self._numbers.cut).short()
        close = (self._high[index] == ordered).nonzero()[:, 0]
        if len(close):
            bits = (one[close].cpu().numpy().view(np.uint64) for one in (high, low))
            result[close] = torch.from_numpy(self._numbers.by_128_bits(*bits)).to(result)
        return result


OPEN = -(1 << 15)
"""A value outside the table."""
LAW = Law()
table = lru_cache(maxsize=1)(NormalTable)
_table_on = lru_cache(maxsize=1)(lambda device: TableOn(table(LAW), device))
BLOCK = 1 << 18
"""The most numbers to draw at a time."""
_AHEAD = 1 << 12
_NOTHING = torch.empty(0, dtype=torch.float64, device=HOST)


WORDS = 2 * LAW.levels
"""Words of 64 uniform bits for each draw of :func:`of_words`."""


def of_words(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return draws from the bits of many keys, (N,), each from :data:`WORDS` words, (N, WORDS).

    >>> drawn = of_words(Key.of_seed(0).words(1000 * WORDS).reshape(1000, WORDS))
    >>> 0.9 < float(drawn.std()) / LAW.deviation < 1.1
    True
    """
    made = np.zeros(len(words), dtype=np.int64)
    for high, low in zip(words.T[::2], words.T[1::2], strict=True):
        made = made * LAW.base + table(LAW).by_128_bits(high, low)
    return made


class WholeNormals:
    """The consecutive draws of one key: the same calls give the same numbers, on any device.

    Args:
        key: secret, for these draws only.

    >>> numbers = WholeNormals(Key.of_seed(0)).take(1000)
    >>> bool((numbers == numbers.round()).all()), 0.9 < float(numbers.std()) / LAW.deviation < 1.1
    (True, True)
    """

    def __init__(self, key: Key) -> None:
        self._stream = Keystream(key.child("whole normals").secret)
        self._left = _NOTHING
        self._ahead = 0

    def take(self, count: int, device: torch.device = HOST) -> Tensor:
        """Return the next ``count`` numbers, (count,) float64, which holds them exactly.

        Args:
            count: how many.
            device: where to draw them: many numbers are then not copied from the host, but few are
                waited for.
        """
        lacking = count - len(self._left)
        if lacking > 0:
            lacking = max(lacking, self._ahead)
            self._ahead = min(_AHEAD, self._ahead + lacking)  # small draws come in series
            parts = (min(BLOCK, lacking - at) for at in range(0, lacking, BLOCK))
            make = self._make if device.type == "cpu" else partial(self._make_on, device)
            left = [self._left.to(device)] if len(self._left) else []
            made = [*left, *map(make, parts)]
            self._left = torch.cat(made) if len(made) > 1 else made[0]
        taken, self._left = self._left[:count], self._left[count:]
        return taken.to(device)

    def _make(self, count: int) -> Tensor:
        made = self._level(count).astype(np.float64)
        for _ in range(LAW.levels - 1):
            made *= LAW.base
            made += self._level(count)
        return torch.from_numpy(made)

    def _make_on(self, device: torch.device, count: int) -> Tensor:
        made = self._level_on(device, count).double()
        for _ in range(LAW.levels - 1):
            made.mul_(LAW.base).add_(self._level_on(device, count))
        return made

    def _level(self, count: int) -> NDArray[np.int16]:
        short = self._words(2, count)
        drawn = table(LAW).by_16_bits(short)
        (rest,) = np.nonzero(drawn == OPEN)
        if len(rest):
            high = self._words(8, len(rest)) >> np.uint64(16)
            high |= short[rest].astype(np.uint64) << np.uint64(48)
            drawn[rest] = table(LAW).by_128_bits(high, self._words(8, len(rest)))
        return drawn

    def _words(self, size: int, count: int) -> NDArray[np.unsignedinteger]:
        """Return integers of ``size`` uniform bytes."""
        return np.frombuffer(self._stream.take(size * count), dtype=f"<u{size}")

    def _level_on(self, device: torch.device, count: int) -> Tensor:
        """Do :meth:`_level` on a device."""
        short = self._stream.take_on(device, 2 * count).view(torch.int16)
        drawn = _table_on(device).by_16_bits(short)
        rest = (drawn == OPEN).nonzero()[:, 0]
        if len(rest):
            bits = (self._stream.take_on(device, 8 * len(rest)) for _ in range(2))
            high, low = (bit.view(torch.int64) for bit in bits)
            high = high >> 16 & ((1 << 48) - 1) | short[rest].long() << 48
            drawn[rest] = _table_on(device).by_128_bits(high, low)
        return drawn

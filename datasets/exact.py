"""Exact samplers for private preprocessing: medians, means and noisy counts."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.noise.whole_normals import LAW, WORDS, of_words

Floats = NDArray[np.float64]
Ranks = NDArray[np.int32] | NDArray[np.int64]
PRICE = 1.59576
"""c/μ for a quantile of distance μ; see :func:`median_of`."""
ATOM = 2**36
"""Weight of the candidate 0, in float32 numbers: many columns are 0 for most people. Or of another:
of what is not 0, many columns have 1."""
ROUNDING = 2.0**-120
"""Total variation distance between a sampled quantile and an exact one."""
COARSE = 16
"""A coarse rank is a rank over 2¹⁶: a float32 number without its last 16 bits."""
_HIGHEST = int(np.float32(3.4028234e38).view(np.int32))
_MERGE = 2**16
_UNITS = 2**4
"""Numbers are summed in units of 1 over this, so that noise of whole numbers can be added."""
_BITS = 256
_DROPPED = 220
"""Candidates with weight below 2⁻²²⁰ of the largest are left out: there are at most 2⁴⁰, of at most
2³⁷ numbers each, so their total share is below 2⁻¹⁴⁰."""


def keys(values: Floats) -> NDArray[np.int32]:
    """Return the rank of each number among all finite float32 numbers; 0 has rank 0.

    >>> keys(np.array([-1e300, 0.0, 1.0])).tolist()
    [-2139095039, 0, 1065353216]
    """
    with np.errstate(over="ignore"):
        bits = values.astype(np.float32).view(np.int32)
    ranks = np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))
    return np.clip(ranks, -_HIGHEST, _HIGHEST, out=ranks)


def value_at(place: int) -> float:
    """Return the float32 number with a given rank.

    >>> value_at(1065353216), value_at(-1065353216)
    (1.0, -1.0)
    """
    return math.copysign(float(np.int32(abs(place)).view(np.float32)), place)


@dataclass(frozen=True, eq=False)
class Tally:
    """How often each rank occurs among n numbers: sums of tallies are those of all the numbers.

    Attributes:
        ranks: (m,) int64; after :meth:`merged` sorted, each once.
        counts: (m,) int64.
        below: how many of the numbers are left out below.
        number: n.
        once: how many of the first ranks are distinct, as a sum merges its ranks now and then only.
    """

    ranks: NDArray[np.int64]
    counts: NDArray[np.int64]
    below: int
    number: int
    once: int

    @classmethod
    def of(cls, ranks: Ranks, window: tuple[int, int] | None = None) -> Tally:
        """Return the tally of ranks in a window, by default of all; the others are only counted.

        >>> tally = Tally.of(np.array([5, 3, 5, 9]), (4, 8))
        >>> tally.ranks.tolist(), tally.counts.tolist(), tally.below, tally.number
        ([5], [2], 1, 4)
        """
        inside, below = ranks, 0
        if window is not None:
            below = int(np.count_nonzero(ranks < window[0]))
            inside = ranks[(ranks >= window[0]) & (ranks <= window[1])]
        found, counts = np.unique(inside, return_counts=True)
        distinct = found.astype(np.int64)
        return cls(distinct, counts.astype(np.int64), below, len(ranks), len(distinct))

    @classmethod
    def of_coarse(cls, ranks: Ranks) -> Tally:
        """Return the tally of the cells of 2¹⁶ ranks in which ranks lie: it is small.

        >>> Tally.of_coarse(np.array([-1, 1, 70_000])).ranks.tolist()
        [-1, 0, 1]
        """
        least = -_HIGHEST - 1 >> COARSE
        counts = np.bincount((ranks >> COARSE) - least)
        there = np.flatnonzero(counts)
        return cls(there + least, counts[there], 0, len(ranks), len(there))

    def __add__(self, other: Tally) -> Tally:
        both = Tally(
            np.concatenate([self.ranks, other.ranks]),
            np.concatenate([self.counts, other.counts]),
            self.below + other.below,
            self.number + other.number,
            self.once,
        )
        return both.merged() if len(both.ranks) > 2 * self.once + _MERGE else both

    def merged(self) -> Tally:
        """Return the tally with each rank once, in order."""
        if self.once == len(self.ranks):
            return self
        ranks, at = np.unique(self.ranks, return_inverse=True)
        counts = np.zeros(len(ranks), dtype=np.int64)
        np.add.at(counts, at, self.counts)
        return Tally(ranks, counts, self.below, self.number, len(ranks))

    @property
    def ends(self) -> NDArray[np.int64]:
        """How many of the numbers lie before each rank, and after the last, (m + 1,)."""
        return self.below + np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    def window(self, distance: float) -> tuple[int, int]:
        """Return the first and the last rank that a median of this distance can depend on.

        The tally is one :meth:`of_coarse` ranks. Candidates whose place in order is farther from
        the middle than the nearest end of a coarse cell by more than the reach of
        :func:`median_of` have no chance.
        """
        cells = self.merged()
        ends = cells.ends
        middle = np.abs(2 * ends - self.number)
        far = int(middle.min()) + _reach(falloff(distance))
        there = (2 * ends[:-1] <= self.number + far) & (2 * ends[1:] >= self.number - far)
        kept = cells.ranks[there]
        if not len(kept):
            return 0, 0
        return int(kept[0]) << COARSE, ((int(kept[-1]) + 1) << COARSE) - 1


def candidates(
    tally: Tally, *, positive: bool, atom: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the bounds of the intervals between distinct numbers, and their weights.

    An interval's weight is its number of float32 numbers, plus :data:`ATOM` if it contains the rank
    ``atom``.
    """
    lowest = 0 if positive else -_HIGHEST
    edges = np.concatenate([[lowest], tally.ranks, [_HIGHEST + 1]]).astype(np.int64)
    width = np.diff(edges)
    width[(edges[:-1] <= atom) & (edges[1:] > atom)] += ATOM
    return edges, width


def falloff(distance: float) -> float:
    """Return t = e^(−c/2), rounded up to a float, for a quantile of distance μ."""
    return math.nextafter(math.exp(-PRICE * distance / 2), 1.0)


def _reach(t: float) -> int:
    """Return the difference of ranks beyond which weights are left out."""
    return math.ceil(_DROPPED / -math.log2(t)) if t > 0 else 0


def median_of(
    tally: Tally, distance: float, key: Key, *, positive: bool = False, atom: int = 0
) -> float:
    """Return a private median: the exponential mechanism over all float32 numbers.

    A number z with i of the n values below it has probability proportional to e^(−c|i − n/2|).
    Adding or removing a value moves |i − n/2| by exactly ½ for every z, so log-probabilities move
    within an interval of length c (a mechanism of bounded range c). This is dominated by a Gaussian
    mechanism of distance μ ≥ 0.62666 c (Dong, Durfee and Rogers 2020: the worst case has two
    outcomes, and √(2π)/4 = 0.62666 is the limit for small c). Here c = 1.59576 μ.

    Weights are integers, so that rounding leaks nothing: t^k, with t = e^(−c/2) rounded to a float,
    in 256 bits. The weight left out or cut off is below :data:`ROUNDING` of the total.

    Args:
        tally: the ranks of n finite numbers, or of those in a :meth:`Tally.window`.
        distance: the cost μ > 0.
        key: key of this draw only.
        positive: whether to restrict candidates to numbers from 0.
        atom: the rank of the candidate that has the weight :data:`ATOM` more.

    >>> median_of(Tally.of(keys(np.arange(1000.0))), 1e3, Key.of_seed(0)) // 1
    499.0
    """
    tally = tally.merged()
    edges, width = candidates(tally, positive=positive, atom=atom)
    ranks = np.abs(2 * tally.ends - tally.number)
    there = np.flatnonzero(width > 0)
    least = int(ranks[there].min())
    t = falloff(distance)
    reach = _reach(t)
    there = there[ranks[there] - least <= reach]
    most = int(ranks[there].max()) - least
    each = _powers(t, min(reach, 2 ** most.bit_length()))[ranks[there] - least]
    weights = each * width[there].astype(object)
    ends = np.add.accumulate(weights)
    place = _below(ends[-1], key)
    which = bisect_right(ends, place)
    inside = (place - (ends[which] - weights[which])) // each[which]
    i = int(there[which])
    low, high = int(edges[i]), int(edges[i + 1])
    return value_at(low + inside if inside < high - low else atom)


@lru_cache(maxsize=4)
def _powers(t: float, most: int) -> NDArray[np.object_]:
    """Return t^k for k = 0 … most, in units of 2⁻²⁵⁶; each has an error below k units.

    They are cached: all columns of a table, and all tables at one distance, have the same t.
    """
    numerator, denominator = t.as_integer_ratio()
    found = [1 << _BITS]
    for _ in range(most):
        found.append(found[-1] * numerator // denominator)
    return np.array(found, dtype=object)


def _below(bound: int, key: Key) -> int:
    """Return a uniform whole number below ``bound``, exactly, by rejection."""
    bits = bound.bit_length()
    words = -(-bits // 64)
    for turn in itertools.count():
        drawn = int.from_bytes(key.child("below", turn).words(words).tobytes(), "little")
        if (result := drawn >> (64 * words - bits)) < bound:
            return result
    raise AssertionError


def means_of(
    sums: NDArray[np.int64], reach: float, distance: float, key: Key
) -> tuple[float, float]:
    """Return private means of z and |z|, for numbers z clipped at ± ``reach``.

    Gaussian noise is added to the three sums of :func:`part_sums`. It is the noise of counts,
    because the sums are integers.

    Args:
        sums: those of the numbers, which may be infinite.
        reach: an even number.
        distance: the cost μ > 0.
        key: key of this draw only.

    >>> sums = part_sums(np.array([-0.5, 1.5, 1e300]), 2.0)
    >>> [round(one, 2) for one in means_of(sums, 2.0, 1e6, Key.of_seed(0))]
    [1.0, 1.33]
    """
    noise = count_noise(3, means_deviation(reach, distance), key)
    above, below, half = sums + noise
    number = max(2 * half / reach, _UNITS)
    mean, spread = (above - below) / number, (above + below) / number
    return float(np.clip(mean, -reach, reach)), float(np.clip(spread, 0.0, reach))


def part_sums(values: Floats, reach: float) -> NDArray[np.int64]:
    """Return the sums of positive parts, of negative parts, and of reach/2 for each number.

    They are integers in units of 2⁻⁴, so the order of addition does not matter. Adding or removing
    a number changes one of the first two by at most ``reach``, and the third by half of that.

    >>> part_sums(np.array([-0.5, 1.5, math.inf]), 2.0) / 16
    array([3.5, 0.5, 3. ])
    """
    units = np.rint(np.clip(values, -reach, reach) * _UNITS).astype(np.int64)
    half = round(reach / 2 * _UNITS)
    above, below = np.maximum(units, 0).sum(), -np.minimum(units, 0).sum()
    return np.array([above, below, len(units) * half])


def means_deviation(reach: float, distance: float) -> float:
    """Return the noise's standard deviation for each of :func:`part_sums`: √(5/4) ``reach``/μ."""
    return math.sqrt(1.25) * reach * _UNITS / distance


def count_noise(number: int, deviation: float, key: Key) -> Floats:
    """Return whole numbers to add to counts: :func:`bdpvi.noise.secure.count_noise`."""
    return _of_words(key.words(number * WORDS), deviation)


def count_noise_of(keys: Iterable[Key], deviation: float) -> Floats:
    """Return the first value of :func:`count_noise` for each key.

    >>> both = [Key.of_seed(0), Key.of_seed(1)]
    >>> bool(count_noise_of(both, 5.0)[1] == count_noise(1, 5.0, both[1])[0])
    True
    """
    words = [key.words(WORDS) for key in keys]
    return _of_words(np.array(words, dtype=np.uint64), deviation)


def _of_words(words: NDArray[np.uint64], deviation: float) -> Floats:
    whole = of_words(words.reshape(-1, WORDS))
    return secure.in_counts(whole, deviation).astype(np.float64)


def count_rounding(deviation: float, number: int = 1) -> float:
    """Bound the total variation distance between the noise of counts and rounded exact noise.

    Args:
        deviation: standard deviation of the noise.
        number: number of counts.

    Raises:
        ValueError: if the noise is too large to represent.
    """
    secure.whole_parts(deviation)
    return secure.sum_rounding(number)


def threshold(deviation: float, delta: float, rows: int = 1) -> float:
    """Return the noisy count above which a name is published.

    A name contributed by one person only has the count 1, and 1 plus noise exceeds the threshold
    with probability at most δ (a stability-based histogram; Korolova et al. 2009, Wilson et al.
    2020). A person with k rows contributes up to k names, with counts up to k: each gets δ/k.

    With m the parts of :func:`bdpvi.noise.secure.whole_parts`, the noise is rounded from a standard
    deviation of s/m, slightly above ``deviation``, to units of 1/m and then to integers.

    >>> from scipy.stats import norm
    >>> float(norm.sf((threshold(32.0, 1e-6) - 1.5) / 32.0)) <= 1e-6
    True
    """
    parts = secure.whole_parts(deviation)
    given, half = LAW.deviation / parts, (1 + 1 / parts) / 2
    return rows + half - given * float(ndtri(delta / rows))

"""Exact samplers for what is bought from a table: medians, means and noisy counts."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from bdpvi._runtime import secure
from bdpvi._runtime.keys import Key

Floats = NDArray[np.float64]
PRICE = 1.59576
"""c of a quantile of distance μ is this times μ; see :func:`median`."""
ATOM = 2**36
"""Weight of the candidate 0, in float32 numbers: many columns are 0 for most of the people."""
ROUNDING = 2.0**-120
"""Total variation between a sampled quantile and an exact one."""
_HIGHEST = int(np.float32(3.4028234e38).view(np.int32))
_UNITS = 2**4
"""Parts of 1 in which numbers are added up; of finer ones the noise is less exact."""
_BITS = 256
_DROPPED = 220
"""Candidates whose weight is below 2⁻²²⁰ of the largest are left out: 2³⁷ numbers wide at most and
at most 2⁴⁰ of them, they have a share below 2⁻¹⁴⁰."""


def keys(values: Floats) -> NDArray[np.int64]:
    """Return the place of each number among all finite float32, in order; 0 has the place 0.

    >>> keys(np.array([-1e300, 0.0, 1.0])).tolist()
    [-2139095039, 0, 1065353216]
    """
    near = np.clip(values, -3.4028234e38, 3.4028234e38).astype(np.float32)
    bits = near.view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


def value_at(place: int) -> float:
    """Return the float32 number at a place.

    >>> value_at(1065353216), value_at(-1065353216)
    (1.0, -1.0)
    """
    return math.copysign(float(np.int32(abs(place)).view(np.float32)), place)


def candidates(values: Floats, *, positive: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the bounds of the n + 1 intervals between sorted values, and their weights.

    An interval's weight is its number of float32, and :data:`ATOM` more where it holds 0.
    """
    lowest = 0 if positive else -_HIGHEST
    edges = np.concatenate([[lowest], np.sort(keys(values)), [_HIGHEST + 1]]).astype(np.int64)
    width = np.diff(edges)
    width[(edges[:-1] <= 0) & (edges[1:] > 0)] += ATOM
    return edges, width


def falloff(distance: float) -> float:
    """Return t = e^(−c/2), rounded up to a float, for a quantile of distance μ."""
    return math.nextafter(math.exp(-PRICE * distance / 2), 1.0)


def median(values: Floats, distance: float, key: Key, *, positive: bool = False) -> float:
    """Return a private median: the exponential mechanism over all float32 numbers.

    A number z, with i of the n values below it, has a chance in proportion to e^(−c|i − n/2|). One
    value more or less moves |i − n/2| by exactly ½ for every z, so log-chances move within an
    interval of length c (a mechanism of bounded range c), which is no worse than a Gaussian one of
    distance μ ≥ 0.62666 c (Dong, Durfee and Rogers 2020: the worst case has two outcomes, and
    √(2π)/4 = 0.62666 is their limit for small c). Here c = 1.59576 μ.

    Chances are whole numbers, so that no rounding can tell anything: t^k, with t = e^(−c/2) a float
    as it is, in 256 bits, and what is left out or cut off is below :data:`ROUNDING` of all.

    Args:
        values: n finite numbers; none is answered too.
        distance: μ > 0, what is paid.
        key: of this draw alone.
        positive: whether candidates are 0 and above only.

    >>> median(np.arange(1000.0), 1e3, Key.of_seed(0)) // 1
    499.0
    """
    edges, width = candidates(values, positive=positive)
    ranks = np.abs(2 * np.arange(len(width)) - len(values))
    there = np.flatnonzero(width > 0)
    least = int(ranks[there].min())
    t = falloff(distance)
    reach = math.ceil(_DROPPED / -math.log2(t)) if t > 0 else 0
    there = there[ranks[there] - least <= reach]
    most = int(ranks[there].max()) - least
    powers = _powers(t, min(reach, 2 ** most.bit_length()))
    weights = [
        int(width[i]) * powers[rank - least]
        for i, rank in zip(there.tolist(), ranks[there].tolist(), strict=True)
    ]
    ends = list(itertools.accumulate(weights))
    place = _below(ends[-1], key)
    which = bisect_right(ends, place)
    inside = (place - (ends[which] - weights[which])) // powers[int(ranks[there[which]]) - least]
    i = int(there[which])
    low, high = int(edges[i]), int(edges[i + 1])
    return value_at(low + inside) if inside < high - low else 0.0


@lru_cache(maxsize=4)
def _powers(t: float, most: int) -> tuple[int, ...]:
    """Return t^k for k = 0 … most, in units of 2⁻²⁵⁶; each is off by less than k units.

    All columns of a table have the same t, and so have all tables of one price: they are kept.
    """
    numerator, denominator = t.as_integer_ratio()
    found = [1 << _BITS]
    for _ in range(most):
        found.append(found[-1] * numerator // denominator)
    return tuple(found)


def _below(bound: int, key: Key) -> int:
    """Return a uniform whole number below ``bound``, exactly, by rejection."""
    bits = bound.bit_length()
    words = -(-bits // 64)
    for turn in itertools.count():
        drawn = int.from_bytes(key.child("below", turn).words(words).tobytes(), "little")
        if (found := drawn >> (64 * words - bits)) < bound:
            return found
    raise AssertionError


def means(values: Floats, reach: float, distance: float, key: Key) -> tuple[float, float]:
    """Return private means of z and |z|, for numbers z that are cut off at ± ``reach``.

    Gaussian noise is added to three sums, :func:`part_sums`. It is that of counts, as they are
    whole.

    Args:
        values: numbers, also infinite ones; none is answered too.
        reach: an even number.
        distance: μ > 0, what is paid.
        key: of this draw alone.

    >>> [round(one, 2) for one in means(np.array([-0.5, 1.5, 1e300]), 2.0, 1e6, Key.of_seed(0))]
    [1.0, 1.33]
    """
    noise = count_noise(3, means_deviation(reach, distance), key)
    above, below, half = part_sums(values, reach) + noise
    number = max(2 * half / reach, _UNITS)
    mean, spread = (above - below) / number, (above + below) / number
    return float(np.clip(mean, -reach, reach)), float(np.clip(spread, 0.0, reach))


def part_sums(values: Floats, reach: float) -> NDArray[np.int64]:
    """Return the sums of positive parts, of negative parts, and of reach/2 for each number.

    They are in units of 2⁻⁴ and whole, so nothing depends on the order of adding. One number more
    or less changes one of the first two by at most ``reach``, and the third by half of that.

    >>> part_sums(np.array([-0.5, 1.5, math.inf]), 2.0) / 16
    array([3.5, 0.5, 3. ])
    """
    units = np.rint(np.clip(values, -reach, reach) * _UNITS).astype(np.int64)
    half = round(reach / 2 * _UNITS)
    return np.array([units[units > 0].sum(), -units[units < 0].sum(), len(units) * half])


def means_deviation(reach: float, distance: float) -> float:
    """Return the noise of each of :func:`part_sums`: √(5/4) of ``reach``, over μ."""
    return math.sqrt(1.25) * reach * _UNITS / distance


def count_noise(number: int, deviation: float, key: Key) -> Floats:
    """Return Gaussian noise for counts: on a grid that whole numbers lie on, so adding is exact."""
    step = count_step(deviation)
    normal = secure.standard_normal((number,), key).numpy()
    return np.asarray(np.round(normal * deviation / step) * step)


def count_step(deviation: float) -> float:
    """Return the grid's step: a power of two, at most 1 and at most 2⁻⁵ of the deviation."""
    return min(1.0, secure.Lattice.beside(deviation).step)


def count_rounding(deviation: float) -> float:
    """Bound the total variation between the noise of a count and an exact Gaussian, rounded alike.

    The count itself has no part in it, as whole numbers are on the grid.
    """
    import torch

    one = torch.full((1,), deviation, dtype=torch.float64)
    lattice = secure.Lattice(count_step(deviation))
    return secure.total_variation(lattice, torch.zeros_like(one), one, dense=False)


def threshold(deviation: float, delta: float, rows: int = 1) -> float:
    """Return the noisy count above which a name is published.

    A name that one person alone brings has the count 1, and 1 plus noise is above T with a chance
    of at most δ (a stability-based histogram; Korolova et al. 2009, Wilson et al. 2020). A person
    with k rows brings up to k names, of count k at most: each has a chance of δ/k.

    >>> from scipy.stats import norm
    >>> float(norm.sf((threshold(32.0, 1e-6) - 1.5) / 32.0)) <= 1e-6
    True
    """
    return rows + count_step(deviation) / 2 + deviation * float(norm.isf(delta / rows))

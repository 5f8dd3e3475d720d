"""Means, deviations, quantiles and shares of noisy counts, with intervals.

Every interval is for the rows' population, with values clamped to the column's bounds: its
variance is that of the privacy noise, plus that of sampling rows, plus an allowance for what cells
of a grid hide. A cell's numbers are taken for spread evenly about its middle. Its true mean is
allowed a uniform error over the middle half of the cell, w²/48 for width w, independent between
cells; a tilt of the density that moves the mean so far moves the cell's distribution function by
√3/2 s(1 − s) at share s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bdpvi.datasets import grid
from bdpvi.datasets.types import ColumnType
from bdpvi.synthesis.counts import Floats
from bdpvi.synthesis.least_squares import CodeCounts
from bdpvi.synthesis.margins import projected

Interval = tuple[float, float, float]
"""A value and the ends of its interval; the value is NaN where noise hides it."""
QUARTILES = {"lower quartile": 0.25, "median": 0.5, "upper quartile": 0.75}
SEEN = 4.0
"""Fewer rows than this many standard deviations of their noise have no statistics."""
_INSIDE = 5
"""Points at which the distribution function is followed inside a cell, with both ends."""


@dataclass(frozen=True, eq=False)
class Shares:
    """Shares of some codes among themselves.

    Attributes:
        values: p, (codes,).
        noise: their covariance by privacy noise.
        sample: the nearest probabilities, which give the variance of sampling.
        rows: n, the rows that sampling counts: a person's k rows count as one.
        blocks: as in :class:`~bdpvi.synthesis.least_squares.CodeCounts`.
    """

    values: Floats
    noise: Floats
    sample: Floats
    rows: float
    blocks: grid.Codes

    @classmethod
    def of(cls, found: CodeCounts, codes: grid.Codes, rows_per_unit: int) -> Shares | None:
        """Return the shares among these codes, by the delta method; None if noise hides them."""
        counts, noise = found.counts[codes], found.noise[np.ix_(codes, codes)]
        total = float(counts.sum())
        if not total > max(SEEN * math.sqrt(noise.sum()), 1.0):
            return None
        shares = counts / total
        slope = (np.eye(len(codes)) - shares[:, None]) / total
        noise = slope @ noise @ slope.T
        sample = projected(shares)
        return cls(shares, noise, sample, total / rows_per_unit, found.blocks[codes])

    def variance(self, values: Floats) -> float:
        """Return the variance of the mean of a value for each code, by noise and sampling."""
        mean = float(self.sample @ values)
        sampling = float(self.sample @ (values - mean) ** 2) / self.rows
        return float(values @ self.noise @ values) + sampling


def share(found: Shares | None, at: int, z: float) -> Interval:
    """Return the share of one code, its interval by the score test of a binomial share with noise.

    Its ends solve (p̂ − p)² = z²(p(1 − p)/n + v) for p, v the variance of the noise (Wilson 1927
    for v = 0). Of a code that was counted with others it reaches from 0 to the end of all of them.

    >>> one = Shares(np.array([0.5, 0.5]), np.zeros((2, 2)), np.full(2, 0.5), 100.0, np.arange(2))
    >>> [round(value, 4) for value in share(one, 0, 1.959964)]
    [0.5, 0.4038, 0.5962]
    """
    if found is None:
        return math.nan, 0.0, 1.0
    together = np.flatnonzero(found.blocks == found.blocks[at])
    noise = float(found.noise[np.ix_(together, together)].sum())
    seen, by = float(found.values[together].sum()), z**2 / found.rows
    middle = (seen + by / 2) / (1 + by)
    inside = middle**2 - (seen**2 - z**2 * noise) / (1 + by)
    half = math.sqrt(max(inside, 0.0))
    low = middle - half if len(together) == 1 else 0.0
    found_at = (float(found.values[at]), low, middle + half)
    value, low, high = (min(max(one, 0.0), 1.0) for one in found_at)
    return value, low, high


def of_numbers(
    column: ColumnType, found: CodeCounts, rows_per_unit: int, z: float
) -> Iterator[tuple[str, Interval]]:
    """Yield mean, standard deviation and quartiles of a column of numbers, by name.

    Args:
        column: with bounds.
        found: its counts.
        rows_per_unit: k, the most rows of a person, whose sampling variance is at most k times
            that of independent rows.
        z: half the width of the intervals, in standard deviations.
    """
    low, high = column.bounds or (0.0, 0.0)
    some = Shares.of(found, np.arange(grid.cells(column)), rows_per_unit)
    if some is None:
        yield "mean", (math.nan, low, high)
        yield "sd", (math.nan, 0.0, (high - low) / 2)
        yield from ((name, (math.nan, low, high)) for name in QUARTILES)
        return
    yield from zip(("mean", "sd"), mean_and_sd(column, some, z), strict=True)
    function = distribution(column, some)
    for name, level in QUARTILES.items():
        value, least, most = quantile(*function, level, some.rows, z)
        if column.integer:
            value, least, most = float(round(value)), math.floor(least), math.ceil(most)
        yield name, (value, least, most)


def cells_of(column: ColumnType) -> tuple[Floats, Floats, Floats]:
    """Return the least and the largest value of each cell of a grid, and the variance inside.

    The variance is that of a uniform distribution, w²/12, of m whole numbers (m² − 1)/12; 0 in a
    single point.
    """
    ends = grid.edges(column)
    assert ends is not None
    first = np.asarray(ends[:-1], dtype=np.float64)
    last = np.asarray(ends[1:] - (1.0 if column.integer else 0.0), dtype=np.float64)
    if column.integer:
        return first, last, ((last - first + 1) ** 2 - 1) / 12
    wide = last - first > 2 * np.spacing(first)
    last = np.where(wide, last, first)
    return first, last, (last - first) ** 2 / 12


def mean_and_sd(column: ColumnType, some: Shares, z: float) -> tuple[Interval, Interval]:
    """Return mean and standard deviation of numbers in cells of a grid.

    The mean is Σ p m, m the middles. The variance is Σ p (m² − s²) − mean² + Var(mean), s² that of
    a uniform cell: numbers with a smooth density have less variance than their cells' middles by
    s² (Sheppard 1898), and the squared mean has Var(mean) too much. The interval of the variance
    is symmetric below, for noise that exceeds it, and above in its logarithm, as samples of skewed
    columns need, unless its error is large.
    """
    low, high = column.bounds or (0.0, 0.0)
    first, last, inside = cells_of(column)
    middle = (first + last) / 2
    mean = float(some.values @ middle)
    heavy, width, centre = _blocks(some, first, last)
    error = some.variance(middle)
    squares = (middle - mean) ** 2 - inside
    variance = float(some.values @ squares) + error
    hidden = float((heavy**2 * width**2).sum()) / 48
    half = z * math.sqrt(error + hidden)
    of_mean = (min(max(one, low), high) for one in (mean, mean - half, mean + half))
    moved = 4 * (centre - mean) ** 2 * width**2 / 48 + (width**2 / 12) ** 2
    error = some.variance(squares) + float((heavy**2 * moved).sum())
    sd = math.sqrt(max(variance, 0.0))
    half = z * math.sqrt(error)
    ends = (math.sqrt(max(variance - half, 0.0)), math.sqrt(max(variance, 0.0) + half))
    if sd and math.sqrt(error) < variance:
        ends = (ends[0], sd * math.exp(half / variance / 2))
    of_sd = (min(one, (high - low) / 2) for one in (sd, *ends))
    return tuple(of_mean), tuple(of_sd)  # type: ignore[return-value]


def _blocks(some: Shares, first: Floats, last: Floats) -> tuple[Floats, Floats, Floats]:
    """Return each block's probability, its width and the middle."""
    _, blocks = np.unique(some.blocks, return_inverse=True)
    starts: Floats = np.full(blocks.max() + 1, math.inf)
    ends: Floats = -starts
    np.minimum.at(starts, blocks, first)
    np.maximum.at(ends, blocks, last)
    heavy: Floats = np.bincount(blocks, weights=some.sample).astype(np.float64)
    return heavy, ends - starts, (starts + ends) / 2


def distribution(column: ColumnType, some: Shares) -> tuple[Floats, Floats, Floats]:
    """Return the distribution function: points, its values there, and their variance.

    The points do not decrease: a single number has two, for the jump. The variance is that of the
    noise and of the shape inside blocks; sampling is further variance.
    """
    first, last, _ = cells_of(column)
    wide = np.where(last > first, _INSIDE, 2)
    cell = np.repeat(np.arange(len(first)), wide)
    part = np.concatenate([np.linspace(0, 1, one) for one in wide])
    points = first[cell] + part * (last - first)[cell]
    below = np.arange(len(first)) < cell[:, None]
    reach = below + part[:, None] * (np.arange(len(first)) == cell[:, None])
    values = reach @ some.values
    noise = np.einsum("ij,ij->i", reach @ some.noise, reach)
    same = some.blocks == some.blocks[cell][:, None]
    heavy = (same * some.sample).sum(1)
    inside = (same * reach) @ some.sample / np.maximum(heavy, 1e-12)
    single = _blocks(some, first, last)[1][np.unique(some.blocks, return_inverse=True)[1]] == 0
    shape = np.where(single[cell], 0.0, heavy * inside * (1 - inside))
    return points, values, noise + 3 / 4 * shape**2


def quantile(
    points: Floats, values: Floats, variance: Floats, level: float, rows: float, z: float
) -> Interval:
    """Return a quantile, with the interval of all numbers that a test does not reject.

    A number is rejected as the quantile if the distribution function there differs from the level
    q by more than z standard errors, with sampling variance q(1 − q)/n (Woodruff 1952).
    """
    half = z * np.sqrt(np.maximum(variance, 0.0) + level * (1 - level) / rows)
    rising = np.maximum.accumulate(values)
    value = _crossing(points, rising, level)
    low = _crossing(points, np.maximum.accumulate(values + half), level)
    falling = np.minimum.accumulate((values - half)[::-1])
    high = -_crossing(-points[::-1], -falling, -level)
    return value, min(low, value), max(high, value)


def _crossing(points: Floats, rising: Floats, level: float) -> float:
    """Return the first point at which a rising function has the level."""
    at = int(np.searchsorted(rising, level))
    if at in (0, len(points)):
        return float(points[min(at, len(points) - 1)])
    inside = (level - rising[at - 1]) / (rising[at] - rising[at - 1])
    return float(points[at - 1] + inside * (points[at] - points[at - 1]))

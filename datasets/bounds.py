"""Private estimates of bounds and levels, for columns missing from a schema.

The header and options decide what is estimated. Nothing is refused because of the rows. Costs are
distances μ of Gaussian mechanisms, and a δ for the names of levels, with the shares of
:mod:`bdpvi.datasets.estimates`. All noise is integer-valued, added to counts exactly.

A numeric column has three queries: whether its numbers are whole; their counts in a public grid
with three cells per decade; and their counts in finer cells over the range found with the first
grid. Adding or removing a number moves one cell of each grid by 1. The rest is post-processing:
cells that do not exceed the noise count as empty, and 0.5 % of the other numbers lie beyond each
bound. Bounds are ends of cells, so they are round numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri

from bdpvi.datasets import exact
from bdpvi.datasets.cells import Columns, read_cell
from bdpvi.datasets.estimates import CATEGORY, NUMBER, UNDECLARED, excess, name_counts
from bdpvi.datasets.grid import OTHER, Codes
from bdpvi.datasets.records import Records
from bdpvi.datasets.types import ESTIMATED, MOST_LEVELS, ColumnType
from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.noise.whole_normals import WholeNormals

QUANTILE = 0.005
"""Share of the numbers that may lie beyond each bound."""
FRACTIONS = 3
"""A column is whole if it has at least this many nonzero whole numbers for each other number."""
NOTHING = {
    NUMBER: ColumnType(low=0.0, high=0.0, origin=ESTIMATED),
    CATEGORY: ColumnType(levels=(OTHER,), origin=ESTIMATED),
}
"""The type of a column in which no cell or name exceeds the noise."""
SOURCE = "private bounds and levels, by noisy counts"
_QUERIES = 3
_EMPTY = 1e-4
"""Probability that any of a grid's empty cells counts as occupied."""
_FINER, _FEWEST, _FULL = 50, 4, 8.0
"""Most and fewest cells of the finer grid; a cell's mean count in standard deviations of noise."""
_TAIL = 3.0
"""Bounds cut off up to this many deviations of the tail count's noise, or a share QUANTILE."""
_TINY = math.ulp(0.0)
_SIZES = [float(f"{digit}e{power}") for power in range(-9, 15) for digit in (1, 2, 5)] + [1e15]
_ROUGH = np.array([*(-size for size in reversed(_SIZES)), 0.0, _TINY, *_SIZES])
"""Ends of the first grid's cells; 0 has its own cell."""


def queries(kinds: Mapping[str, str]) -> int:
    """Return the number of equal parts of μ²; a column of undeclared kind counts as numeric.

    >>> queries({"age": "number", "sex": "category", "dose": "undeclared"})
    7
    """
    return sum(1 if kind == CATEGORY else _QUERIES for kind in kinds.values())


def rounding(kinds: Mapping[str, str], rows: int = 1) -> float:
    """Bound the total variation distance of all noise here from exact noise, in advance.

    For names, only the noise of one unit's names matters: other names have the same counts, and so
    the same distribution, without the unit.

    Args:
        kinds: kinds of the columns, if they are declared.
        rows: largest number of rows of a unit.
    """
    return secure.sum_rounding(len(kinds) * (2 + len(_ROUGH) + _FINER + 2 + rows))


def check(kinds: Mapping[str, str], distance: float) -> None:
    """Raise ValueError if the noise at this distance is too large to represent."""
    secure.whole_parts(FRACTIONS * math.sqrt(queries(kinds)) / distance)


def kinds_of(
    table: Records[Columns], kinds: Mapping[str, str], *, distance: float, key: Key
) -> dict[str, str]:
    """Estimate undeclared kinds privately, in equal parts of μ², and return all kinds.

    A column is numeric if the noisy count of its numbers exceeds that of its other cells.

    Args:
        table: cells of the records.
        kinds: kinds of the columns.
        distance: the cost μ.
        key: key of this call only.
    """
    result, noise = dict(kinds), WholeNormals(key)
    unknown = [name for name, kind in kinds.items() if kind == UNDECLARED]
    more = table.sum(excess, tuple(unknown))
    drawn = secure.count_noise((len(unknown),), math.sqrt(len(unknown)) / distance, noise)
    for name, one in zip(unknown, drawn.tolist(), strict=True):
        result[name] = NUMBER if more[name] + one > 0 else CATEGORY
    return result


def estimate(
    table: Records[Columns],
    kinds: Mapping[str, str],
    *,
    distance: float,
    delta: float,
    key: Key,
    rows: int = 1,
    types: Mapping[str, ColumnType] | None = None,
) -> dict[str, ColumnType]:
    """Estimate bounds and levels privately, in equal parts of μ², by two passes.

    Args:
        table: cells of the records.
        kinds: kinds of the columns to estimate: numbers or categories.
        distance, delta, key, rows, types: as for :func:`bdpvi.datasets.estimates.estimate`.

    Returns:
        The types, with these bounds and levels.

    >>> from bdpvi.datasets.cells import read_columns
    >>> from bdpvi.datasets.records import Held
    >>> import pandas as pd
    >>> people = pd.DataFrame({"age": [*range(18, 88)] * 40, "sex": ["F", "M"] * 1400})
    >>> kinds = {"age": "number", "sex": "category"}
    >>> table = Held(read_columns(people))
    >>> made = estimate(table, kinds, distance=1.0, delta=1e-6, key=Key.of_seed(0))
    >>> made["age"].bounds, made["age"].whole, made["sex"].levels
    ((18.0, 87.0), True, ('F', 'M'))
    """
    each = distance / math.sqrt(queries(kinds))
    named = tuple(name for name, kind in kinds.items() if kind == CATEGORY)
    numbers = tuple(name for name in kinds if name not in named)
    names, rough = table.sum(_first, named, numbers)
    ranges = {
        name: _Range.of(*rough[name], 1 / each, WholeNormals(key.child("number", name)))
        for name in numbers
    }
    grids = {name: one.grid for name, one in ranges.items() if one.grid is not None}
    finer = table.sum(_second, grids) if grids else {}
    made = {}
    for name in kinds:
        type_ = (types or {}).get(name, ColumnType())
        if name in ranges:
            made[name] = _between(type_, ranges[name].type_with_bounds(finer.get(name)))
        else:
            key_of_it = key.child("levels", name)
            levels = _levels(names[name], 1 / each, delta / len(named), key_of_it, rows, type_)
            made[name] = _with_levels(type_, levels or (OTHER,))
    return made


def _with_levels(type: ColumnType, levels: tuple[str, ...]) -> ColumnType:
    """Return a declared type with the levels that were found."""
    spellings = {one: more for one, more in type.spellings.items() if one in levels}
    return replace(type, levels=levels, spellings=spellings, origin=ESTIMATED)


def _between(type: ColumnType, found: ColumnType) -> ColumnType:
    """Return a declared type with the bounds that were found; no outcome is refused."""
    low, high = found.bounds or (0.0, 0.0)
    whole = found.whole
    if type.integer:
        low, high, whole = float(math.floor(low)), float(math.ceil(high)), False
    elif type.step is not None:
        whole = whole and float(type.step).is_integer()
    return replace(type, low=low, high=high, whole=whole, origin=ESTIMATED)


def _first(
    table: Columns, named: Sequence[str], numbers: Sequence[str]
) -> tuple[dict[str, dict[str, int]], dict[str, tuple[int, Codes]]]:
    """Return the counts of names, and of numbers the score and the counts in the first grid."""
    finite = {name: _finite(table, name) for name in numbers}
    rough = {name: (score(one), _histogram(one, _ROUGH)) for name, one in finite.items()}
    return name_counts(table, named), rough


def _second(table: Columns, grids: Mapping[str, exact.Floats]) -> dict[str, Codes]:
    """Return the counts in the finer grids."""
    return {name: _histogram(_finite(table, name), edges) for name, edges in grids.items()}


def _finite(table: Columns, name: str) -> exact.Floats:
    numbers = table[name].numbers
    return np.asarray(numbers[np.isfinite(numbers)])


def _levels(
    found: Mapping[str, int],
    deviation: float,
    delta: float,
    key: Key,
    rows: int,
    type: ColumnType | None = None,
) -> tuple[str, ...]:
    """Return the most frequent names with a noisy count above the threshold, sorted."""
    names = sorted(found)
    exactly = np.array([found[one] for one in names], dtype=np.int64)
    counts = _noisy(exactly, deviation, WholeNormals(key))
    kept = np.flatnonzero(counts > exact.threshold(deviation, delta, rows))
    readable = [
        (counts[at], names[at]) for at in kept if read_cell(names[at], type)[1] == names[at]
    ]  # without truncated names
    return tuple(sorted(name for _, name in sorted(readable, reverse=True)[:MOST_LEVELS]))


@dataclass(frozen=True, eq=False)
class _Range:
    """The range of a column's numbers by the first grid.

    Attributes:
        whole: whether they are whole.
        number: their noisy number; 0 if no cell exceeds the noise.
        low, high: ends of the first grid's cells.
        deviation, noise: the noise of counts.
        grid: ends of the finer grid's cells, if there are enough numbers for one.
    """

    whole: bool
    number: float
    low: float
    high: float
    deviation: float
    noise: WholeNormals
    grid: exact.Floats | None = None

    @classmethod
    def of(cls, score: int, rough: Codes, deviation: float, noise: WholeNormals) -> _Range:
        """Return the range, given the exact score and counts in the first grid."""
        whole = score + int(secure.count_noise((1,), FRACTIONS * deviation, noise)) >= 0
        counts = _noisy(rough, deviation, noise)
        counts = np.where(counts >= -deviation * ndtri(_EMPTY / len(counts)), counts, 0)
        number = float(counts.sum())
        if not number:
            return cls(whole, 0.0, 0.0, 0.0, deviation, noise)
        low, high = _ends(_ROUGH, counts, np.full(len(counts), QUANTILE * number))
        made = cls(whole, number, low, high, deviation, noise)
        cells = min(_FINER, int(number / (_FULL * deviation)))
        if cells >= _FEWEST and high - low > _SIZES[0]:
            return replace(made, grid=_grid(low, high, cells, whole))
        return made

    def type_with_bounds(self, finer: Codes | None) -> ColumnType:
        """Return the bounds, given the exact counts in the finer grid if there is one."""
        low, high = self.low, self.high
        if not self.number:
            return NOTHING[NUMBER]
        if self.grid is not None:
            assert finer is not None
            counts = _noisy(finer, self.deviation, self.noise)
            tails = _TAIL * self.deviation * np.sqrt(np.arange(1, len(counts) + 1))
            low, high = _ends(self.grid, counts, np.maximum(QUANTILE * self.number, tails))
        if self.whole:  # cells exclude their upper ends
            low = math.ceil(low)
            high = max(low, math.ceil(high) - 1)
        return replace(NOTHING[NUMBER], low=float(low), high=float(high), whole=self.whole)


def score(values: exact.Floats) -> int:
    """Return the count of nonzero whole numbers, minus :data:`FRACTIONS` times other numbers.

    Its sensitivity to one number is :data:`FRACTIONS`.

    >>> score(np.array([0.0, 2.0, 3.0, 0.5]))
    -1
    """
    there = values[values != 0]
    return len(there) - (1 + FRACTIONS) * int((there != np.round(there)).sum())


def _histogram(values: exact.Floats, edges: exact.Floats) -> Codes:
    """Return the counts of the cells; the outermost cells include values beyond them."""
    places = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return np.bincount(places, minlength=len(edges) - 1)


def _noisy(counts: Codes, deviation: float, noise: WholeNormals) -> exact.Floats:
    """Return counts with noise."""
    added = secure.count_noise(counts.shape, deviation, noise).numpy()
    return np.asarray(counts + added, dtype=np.float64)


def _ends(edges: exact.Floats, counts: exact.Floats, least: exact.Floats) -> tuple[float, float]:
    """Return the outer ends of the first cells, from each side, where the counts exceed ``least``.

    Args:
        edges: ends of all cells.
        counts: counts of the cells, in total more than ``least``.
        least: limit on the cumulative count, by the number of cells added from either side.
    """
    low, high = (int((np.cumsum(some) > least).argmax()) for some in (counts, counts[::-1]))
    low, high = min(low, len(counts) - 1 - high), max(low, len(counts) - 1 - high)
    first, last = (
        0.0 if abs(one) <= _TINY else float(one) for one in (edges[low], edges[high + 1])
    )
    return first, last


def _grid(low: float, high: float, cells: int, whole: bool) -> exact.Floats:
    """Return the ends of at most ``cells`` + 2 cells, at multiples of a round number."""
    widths = (one for one in _SIZES if one >= (1.0 if whole else 0.0))
    width = next(one for one in widths if one * cells >= high - low or one == _SIZES[-1])
    ends = range(math.floor(low / width), math.ceil(high / width) + 1)
    return np.array([float(f"{end * width:.12g}") for end in ends])

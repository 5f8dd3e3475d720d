"""Bounds and levels bought from a table, for the columns that a schema leaves out.

What is bought follows from the header and from options. Nothing is refused because of the rows.
Prices are distances μ of Gaussian mechanisms, and a δ for the names of levels, with the shares of
:mod:`bdpvi.datasets.bought`. All noise is whole numbers, added to counts exactly.

Of a column of numbers three things are bought: whether they are whole; how many there are in each
cell of a public grid with three cells a decade; and how many in each of some finer cells between
the ends of what the first grid shows. One number more or less moves one cell of a grid by 1. All
else is post-processing: cells that do not stand out of the noise count as empty, the bounds are
those between which all but 0.5 % of the others lie on either side, and as ends of cells they are
round numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.stats import norm

from bdpvi._runtime import secure
from bdpvi._runtime.keys import Key
from bdpvi._runtime.whole_normals import LAW, WholeNormals
from bdpvi.datasets import exact
from bdpvi.datasets.bought import CATEGORY, NUMBER, UNDECLARED
from bdpvi.datasets.cells import Cells, Columns, read_cell
from bdpvi.datasets.schema import MOST_LEVELS, OTHER, Domain

QUANTILE = 0.005
"""Share of the numbers that may lie beyond either bound."""
FRACTIONS = 3
"""Numbers are whole if those that are not are fewer than one for so many others but 0."""
NOTHING = {
    NUMBER: Domain(low=0.0, high=0.0, bought=True),
    CATEGORY: Domain(levels=(OTHER,), bought=True),
}
"""What a column holds where no cell and no name stands out of the noise."""
SOURCE = "private bounds and levels, by noisy counts"
_QUERIES = 3
_EMPTY = 1e-4
"""Chance that one of a grid's empty cells is taken for one that is not."""
_FINER, _FEWEST, _FULL = 50, 4, 8.0
"""Most and fewest cells of the finer grid, and deviations of noise that one has on average."""
_TAIL = 3.0
"""What lies beyond a bound is at most so many deviations of its noise, or a share of QUANTILE."""
_TINY = math.ulp(0.0)
_SIZES = [float(f"{digit}e{power}") for power in range(-9, 15) for digit in (1, 2, 5)] + [1e15]
_ROUGH = np.array([*(-size for size in reversed(_SIZES)), 0.0, _TINY, *_SIZES])
"""Ends of the first grid's cells; 0 has one of its own."""


def queries(kinds: Mapping[str, str]) -> int:
    """Return the parts that μ² is divided into; a column of an undeclared kind counts as numbers.

    >>> queries({"age": "number", "sex": "category", "dose": "undeclared"})
    7
    """
    return sum(1 if kind == CATEGORY else _QUERIES for kind in kinds.values())


def rounding(kinds: Mapping[str, str], rows: int = 1) -> float:
    """Bound the total variation of all noise here from exact noise, before anything is drawn.

    Of the noise of names only that of those that one unit has can tell anything: others have the
    same counts and the same law without it.

    Args:
        kinds: of the columns, if they are declared.
        rows: that one unit has at most.
    """
    return secure.sum_rounding(len(kinds) * (2 + len(_ROUGH) + _FINER + 2 + rows))


def check(kinds: Mapping[str, str], distance: float) -> None:
    """Raise ValueError if there is more noise at this price than there is room for."""
    secure.whole_parts(FRACTIONS * math.sqrt(queries(kinds)) / distance)


def kinds_of(
    table: Columns, kinds: Mapping[str, str], *, distance: float, key: Key
) -> dict[str, str]:
    """Buy the kinds that are not declared, in equal parts of μ², and return all kinds.

    A column is a number if the noisy count of its numbers is above that of its other cells.

    Args:
        table: cells of the records.
        kinds: of the columns.
        distance: μ that is paid.
        key: of this purchase alone.
    """
    found, noise = dict(kinds), WholeNormals(key)
    unknown = [name for name, kind in kinds.items() if kind == UNDECLARED]
    drawn = secure.count_noise((len(unknown),), math.sqrt(len(unknown)) / distance, noise)
    for name, one in zip(unknown, drawn.tolist(), strict=True):
        numbers = int(np.isfinite(table[name].numbers).sum())
        others = int((~table[name].blank).sum()) - numbers
        found[name] = NUMBER if numbers - others + one > 0 else CATEGORY
    return found


def buy(
    table: Columns,
    kinds: Mapping[str, str],
    *,
    distance: float,
    delta: float,
    key: Key,
    rows: int = 1,
) -> dict[str, Domain]:
    """Buy bounds and levels, in equal parts of μ².

    Args:
        table: cells of the records.
        kinds: of the columns to buy: numbers or categories.
        distance, delta, key, rows: as of :func:`bdpvi.datasets.bought.buy`.

    >>> from bdpvi.datasets.cells import read_columns
    >>> import pandas as pd
    >>> people = pd.DataFrame({"age": [*range(18, 88)] * 40, "sex": ["F", "M"] * 1400})
    >>> kinds = {"age": "number", "sex": "category"}
    >>> made = buy(read_columns(people), kinds, distance=1.0, delta=1e-6, key=Key.of_seed(0))
    >>> made["age"].bounds, made["age"].integer, made["sex"].levels
    ((18.0, 87.0), True, ('F', 'M'))
    """
    each = distance / math.sqrt(queries(kinds))
    named = sum(kind == CATEGORY for kind in kinds.values())
    made = {}
    for name, kind in kinds.items():
        if kind == CATEGORY:
            levels = _levels(table[name], 1 / each, delta / named, key.child("levels", name), rows)
            made[name] = Domain(levels=levels, bought=True) if levels else NOTHING[CATEGORY]
        else:
            made[name] = _numbers(table[name].numbers, 1 / each, key.child("number", name))
    return made


def _levels(cells: Cells, deviation: float, delta: float, key: Key, rows: int) -> tuple[str, ...]:
    """Return the names whose noisy count is above the threshold, the most frequent, sorted."""
    exactly = np.bincount(cells.codes[~cells.blank], minlength=len(cells.names))
    there = np.flatnonzero(exactly)
    counts = exactly[there] + secure.count_noise(there.shape, deviation, WholeNormals(key)).numpy()
    # Noise is a little more than asked for, and the threshold is for finer steps than 1.
    given = LAW.deviation / secure.whole_parts(deviation)
    kept = counts > exact.threshold(given, delta, rows) + 0.5
    names = [(count, cells.names[at]) for count, at in zip(counts[kept], there[kept], strict=True)]
    readable = [one for one in names if read_cell(one[1])[1] == one[1]]  # not if it was cut off
    return tuple(sorted(name for _, name in sorted(readable, reverse=True)[:MOST_LEVELS]))


def _numbers(values: exact.Floats, deviation: float, key: Key) -> Domain:
    """Return the domain of numbers; what is none is not finite."""
    values, noise = values[np.isfinite(values)], WholeNormals(key)
    whole = score(values) + int(secure.count_noise((1,), FRACTIONS * deviation, noise)) >= 0
    counts = _counted(values, _ROUGH, deviation, noise)
    counts = np.where(counts >= deviation * norm.isf(_EMPTY / len(counts)), counts, 0)
    number = float(counts.sum())
    if not number:
        return NOTHING[NUMBER]
    least = np.full(len(counts), QUANTILE * number)
    low, high = _ends(_ROUGH, counts, least)
    cells = min(_FINER, int(number / (_FULL * deviation)))
    if cells >= _FEWEST and high - low > _SIZES[0]:
        edges = _grid(low, high, cells, whole)
        counts = _counted(values, edges, deviation, noise)
        tails = _TAIL * deviation * np.sqrt(np.arange(1, len(counts) + 1))
        low, high = _ends(edges, counts, np.maximum(QUANTILE * number, tails))
    if whole:  # cells do not hold their upper ends
        low = math.ceil(low)
        high = max(low, math.ceil(high) - 1)
    return Domain(low=float(low), high=float(high), integer=whole, bought=True)


def score(values: exact.Floats) -> int:
    """Return the whole numbers but 0, less :data:`FRACTIONS` times the others.

    A number moves it by that at most.

    >>> score(np.array([0.0, 2.0, 3.0, 0.5]))
    -1
    """
    there = values[values != 0]
    return len(there) - (1 + FRACTIONS) * int((there != np.round(there)).sum())


def _counted(
    values: exact.Floats, edges: exact.Floats, deviation: float, noise: WholeNormals
) -> exact.Floats:
    """Return the noisy counts of the cells; the outermost have what lies beyond."""
    places = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    counts = np.bincount(places, minlength=len(edges) - 1)
    counts = counts + secure.count_noise(counts.shape, deviation, noise).numpy()
    return np.asarray(counts, dtype=np.float64)


def _ends(edges: exact.Floats, counts: exact.Floats, least: exact.Floats) -> tuple[float, float]:
    """Return the ends of the first and the last cell up to which there are more than ``least``.

    Args:
        edges: of all cells.
        counts: of the cells, together more than that.
        least: by the number of cells, from either side.
    """
    low, high = (int((np.cumsum(some) > least).argmax()) for some in (counts, counts[::-1]))
    low, high = min(low, len(counts) - 1 - high), max(low, len(counts) - 1 - high)
    first, last = (
        0.0 if abs(one) <= _TINY else float(one) for one in (edges[low], edges[high + 1])
    )
    return first, last


def _grid(low: float, high: float, cells: int, whole: bool) -> exact.Floats:
    """Return the ends of at most so many cells, and two, at multiples of a round number."""
    widths = (one for one in _SIZES if one >= (1.0 if whole else 0.0))
    width = next(one for one in widths if one * cells >= high - low or one == _SIZES[-1])
    ends = range(math.floor(low / width), math.ceil(high / width) + 1)
    return np.array([float(f"{end * width:.12g}") for end in ends])

"""Private centres and scales of numeric columns, by passes over the records.

Of a table in blocks a median needs two passes: how many numbers lie in coarse cells, and the
numbers near the middle (:class:`bdpvi.datasets.exact.Tally`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bdpvi.datasets import exact
from bdpvi.datasets.cells import Cells, Columns
from bdpvi.datasets.columns import Column, Numeric
from bdpvi.datasets.records import Held, Records
from bdpvi.noise.keys import Key

MAD = 1.4826
"""Standard deviation of a Gaussian over its median absolute deviation, 1/Φ⁻¹(¾)."""
HALF_NORMAL = 1.2533
"""Standard deviation of a Gaussian over its mean absolute deviation, √(π/2)."""
REACH = 4.0
"""For means, values are clipped at this many scales from the median."""
_LEAST, _LEAST_FLAT = 0.3372, 0.01
"""Lower bounds on the mean of |z|: half a Gaussian's median |z|; 1 % nonzero values."""


def scales(
    table: Records[Columns], names: Sequence[str], each: float, reserve: float, key: Key
) -> dict[str, Column]:
    """Return centre and scale of numeric columns.

    Args:
        table: cells of the records.
        names: the columns.
        each: the cost μ of one query.
        reserve: queries of columns that are nearly constant.
        key: see :func:`estimate`.
    """
    rough: dict[str, tuple[float, float]] = {}
    medians = _medians(table, {name: From(name) for name in names}, each, key, "centre")
    away = {name: From(name, centre) for name, centre in medians.items()}
    for name, scale in _medians(table, away, each, key, "scale").items():
        rough[name] = (medians[name], MAD * scale)
    flat = [name for name, (_, scale) in rough.items() if not scale]
    if flat:
        paid = each * math.sqrt(reserve / len(flat))
        some = {name: replace(away[name], nonzero=True) for name in flat}
        for name, scale in _medians(table, some, paid, key, "flat").items():
            rough[name] = (rough[name][0], scale or 1.0)
    made: dict[str, Column] = {}
    sums = table.sum(_part_sums, rough) if rough else {}
    for name, (centre, scale) in rough.items():
        mean, spread = exact.means_of(sums[name], REACH, each, key.child("means", name))
        if name in flat:  # z is mostly 0, otherwise about ±1, so that z² has the mean of |z|
            spread = math.sqrt(max(spread, _LEAST_FLAT))
        else:
            spread = HALF_NORMAL * max(spread, _LEAST)
        made[name] = Numeric(name, centre + scale * mean, scale * spread)
    return made


@dataclass(frozen=True)
class From:
    """The numbers of a column, or their distances from a centre.

    Attributes:
        name: the column.
        centre: the centre.
        nonzero: whether numbers at the centre are left out.
    """

    name: str
    centre: float | None = None
    nonzero: bool = False

    def ranks(self, table: Columns) -> NDArray[np.int64]:
        """Return the ranks of the numbers, in any order."""
        values = _numbers(table[self.name])
        if self.centre is not None:
            values = np.abs(values - self.centre)
        return exact.keys(values[values != 0] if self.nonzero else values)


def _medians(
    table: Records[Columns], asked: Mapping[str, From], distance: float, key: Key, step: str
) -> dict[str, float]:
    """Return a private median of each column, for the cost μ each."""
    if isinstance(table, Held):  # column by column: of each the ranks of all numbers are in memory
        tallies = (table.sum(_tallies, {name: one}, {})[name] for name, one in asked.items())
    else:
        rough = table.sum(_coarse, dict(asked)) if asked else {}
        windows = {name: one.window(distance) for name, one in rough.items()}
        found = table.sum(_tallies, dict(asked), windows) if asked else {}
        tallies = (found[name] for name in asked)
    return {
        name: exact.median_of(
            one, distance, key.child(step, name), positive=asked[name].centre is not None
        )
        for name, one in zip(asked, tallies, strict=True)
    }


def _coarse(table: Columns, asked: Mapping[str, From]) -> dict[str, exact.Tally]:
    return {name: exact.Tally.of(exact.coarse(one.ranks(table))) for name, one in asked.items()}


def _tallies(
    table: Columns, asked: Mapping[str, From], windows: Mapping[str, tuple[int, int]]
) -> dict[str, exact.Tally]:
    return {
        name: exact.Tally.of(one.ranks(table), windows.get(name)) for name, one in asked.items()
    }


def _part_sums(
    table: Columns, rough: Mapping[str, tuple[float, float]]
) -> dict[str, NDArray[np.int64]]:
    """Return the sums for the means of each column, by its centre and scale."""
    found = {}
    for name, (centre, scale) in rough.items():
        with np.errstate(over="ignore"):
            found[name] = exact.part_sums((_numbers(table[name]) - centre) / scale, REACH)
    return found


def _numbers(cells: Cells) -> exact.Floats:
    return np.asarray(cells.numbers[np.isfinite(cells.numbers)])

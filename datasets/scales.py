"""Private centres and scales of numeric columns, by passes over the records.

A median needs two passes: how many numbers lie in coarse cells, and the
numbers near the middle (:class:`bdpvi.datasets.exact.Tally`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bdpvi.datasets import exact
from bdpvi.datasets.cells import Cells, Columns
from bdpvi.datasets.columns import Column, Numeric
from bdpvi.datasets.records import Records
from bdpvi.noise.keys import Key

MAD = 1.4826
"""Standard deviation of a Gaussian over its median absolute deviation, 1/Φ⁻¹(¾)."""
HALF_NORMAL = 1.2533
"""Standard deviation of a Gaussian over its mean absolute deviation, √(π/2)."""
REACH = 4.0
"""For means, values are clipped at this many scales from the median."""
_ONE = int(exact.keys(np.array([1.0]))[0])
"""The rank of 1."""
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
    medians = _medians(table, dict.fromkeys(names), each, key, "centre")
    for name, scale in _medians(table, medians, each, key, "scale").items():
        rough[name] = (medians[name], MAD * scale)
    flat = [name for name, (_, scale) in rough.items() if not scale]
    if flat:
        paid = each * math.sqrt(reserve / len(flat))
        some = {name: medians[name] for name in flat}
        for name, scale in _medians(table, some, paid, key, "flat", True).items():
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


Centres = Mapping[str, float | None]
"""By column the centre from which its numbers' distances are taken; None for the numbers."""


def _medians(
    table: Records[Columns],
    centres: Centres,
    distance: float,
    key: Key,
    step: str,
    nonzero: bool = False,
) -> dict[str, float]:
    """Return a private median of each column, for the cost μ each.

    With ``nonzero`` it is that of numbers other than 0, most of which may be the same, as in a
    column of 0 and 1. Each is then two halves, the second one rank higher, so that a candidate
    equal to it has half of it below, and half the distance pays for whole numbers. A candidate that
    has as many below as above is far likelier than those beside it, and 1 has a weight of its own.
    """
    distance /= 2 if nonzero else 1
    tallies: Iterable[dict[str, exact.Tally]]
    if table.in_memory:  # column by column, so that the ranks of one are in memory
        each = ({name: centre} for name, centre in centres.items())
        tallies = (table.sum(_tallies, one, nonzero, distance) for one in each)
    else:
        rough = table.sum(_tallies, centres, nonzero, None) if centres else {}
        windows = {name: one.window(distance) for name, one in rough.items()}
        tallies = [table.sum(_tallies, centres, nonzero, windows)] if centres else []
    atom = _ONE if nonzero else 0
    return {
        name: exact.median_of(
            one, distance, key.child(step, name), positive=centres[name] is not None, atom=atom
        )
        for some in tallies
        for name, one in some.items()
    }


def _tallies(
    table: Columns,
    centres: Centres,
    nonzero: bool,
    windows: Mapping[str, tuple[int, int]] | float | None,
) -> dict[str, exact.Tally]:
    """Return the tally of each column's ranks in its window; without windows of coarse ranks.

    All the numbers have a window by themselves, by the distance of a median.
    """
    result = {}
    for name, centre in centres.items():
        values = _numbers(table[name])
        if centre is not None:
            values = np.abs(values - centre)
        ranks = exact.keys(values[values != 0] if nonzero else values)
        ranks = np.concatenate([ranks, ranks + 1]) if nonzero else ranks
        if windows is None:
            result[name] = exact.Tally.of_coarse(ranks)
        elif isinstance(windows, float):
            window = exact.Tally.of_coarse(ranks).window(windows)
            result[name] = exact.Tally.of(ranks, window)
        else:
            result[name] = exact.Tally.of(ranks, windows[name])
    return result


def _part_sums(
    table: Columns, rough: Mapping[str, tuple[float, float]]
) -> dict[str, NDArray[np.int64]]:
    """Return the sums for the means of each column, by its centre and scale."""
    result = {}
    for name, (centre, scale) in rough.items():
        with np.errstate(over="ignore"):
            result[name] = exact.part_sums((_numbers(table[name]) - centre) / scale, REACH)
    return result


def _numbers(cells: Cells) -> exact.Floats:
    there = np.isfinite(cells.numbers)
    return np.asarray(cells.numbers if there.all() else cells.numbers[there])

"""Table 1 of a study: counts, shares, means, deviations and quartiles, by group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import pandas as pd
from scipy.special import ndtri

from bdpvi._ground import validate
from bdpvi._ground.outputs import one_line, visible
from bdpvi.datasets import grid
from bdpvi.datasets.schema import Schema
from bdpvi.datasets.types import ColumnType
from bdpvi.score.reading import TIMES
from bdpvi.synthesis import moments
from bdpvi.synthesis.content import TableReceipt
from bdpvi.synthesis.counts import NoisyCounts
from bdpvi.synthesis.least_squares import CodeCounts, group_sizes, of_column, of_groups, rows
from bdpvi.synthesis.moments import QUARTILES, SEEN, Interval, Shares
from bdpvi.synthesis.synthetic import Synthetic

ALL = "all"
"""Heads the column of all rows."""
_ABOUT = (
    "{level:g} % intervals in brackets. Those of counts are for privacy noise alone, all others "
    "for privacy noise and sampling; those of numbers also for the width of the cells they were "
    "counted in. Numbers are clamped to their bounds. Groups are estimated by themselves and need "
    "not add up to all rows."
)


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """One number of a Table 1.

    Attributes:
        column: name of the column; "" for the number of rows.
        group: name of the group, or "all".
        level: name of the level; "" for statistics of numbers.
        name: "count", "share", "mean", "sd", "lower quartile", "median", "upper quartile" or
            "missing", a share of all rows; shares of levels are of the rows that are not blank.
        value: in units of the column, a share between 0 and 1; dates are days, times seconds, from
            the column's first. NaN where noise hides it.
        low, high: ends of the interval.
    """

    column: str
    group: str
    level: str
    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, eq=False)
class TableOne:
    """A Table 1; ``str`` prints it, notebooks show it. See :func:`bdpvi.describe`.

    Attributes:
        statistics: all numbers.
        groups: names of the groups, "all" first.
        level: coverage of the intervals.
        counts: the noisy counts behind them; ``counts.save(path)`` writes these.
    """

    statistics: tuple[Statistic, ...] = field(repr=False)
    groups: tuple[str, ...]
    level: float
    counts: Synthetic = field(repr=False)

    @property
    def receipt(self) -> TableReceipt:
        """The guarantee."""
        return self.counts.receipt

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each statistic: column, group, level, name, value, low, high."""
        return pd.DataFrame([asdict(one) for one in self.statistics])

    def to_html(self) -> str:
        """Return the table as HTML, with text escaped."""
        return visible(f"{self._layout().to_html(border=0)}\n<p>{self._about}</p>\n")

    _repr_html_ = to_html

    def __str__(self) -> str:
        return f"{self._layout().to_string()}\n{self._about}"

    @property
    def _about(self) -> str:
        return _ABOUT.format(level=100 * self.level)

    def _layout(self) -> pd.DataFrame:
        """Return the printed cells: a line for each level or statistic, a column for each group.

        Shares of blanks and unlisted levels are printed if they are beyond noise in some group.
        """
        columns = self.counts.schema.columns
        lines: dict[tuple[str, str, str], list[Statistic]] = {}
        for one in self.statistics:
            key = (one.column, one.level, "" if one.level else one.name)
            if key == (one.column, "", "count") and one.column:
                continue  # the number of values
            lines.setdefault(key, []).append(one)
        cells, index = [], []
        for (column, level, name), some in lines.items():
            listed = level in (columns[column].names or ()) if level else name != "missing"
            if listed or any(one.low > 0 for one in some if one.name != "count"):
                index.append((one_line(column), one_line(level or name) if column else "rows"))
                cells.append(
                    [
                        "; ".join(_cell(one, columns) for one in some if one.group == group)
                        for group in self.groups
                    ]
                )
        heads = pd.Index([one_line(group) for group in self.groups])
        return pd.DataFrame(cells, index=pd.MultiIndex.from_tuples(index), columns=heads)


def _cell(one: Statistic, columns: Mapping[str, ColumnType]) -> str:
    """Return a statistic as it is printed, in the column's own words."""
    if one.name in ("share", "missing"):
        return _printed((100 * one.value, 100 * one.low, 100 * one.high)).replace(" (", " % (")
    column = columns.get(one.column)
    if column is None or one.level or one.name in ("count", "sd"):
        return _printed((one.value, one.low, one.high), whole=one.name == "count")
    dated = column if column.kind in TIMES else None
    whole = column.integer and one.name in QUARTILES
    return _printed((one.value, one.low, one.high), dated, whole)


def _printed(found: Interval, column: ColumnType | None = None, whole: bool = False) -> str:
    """Return a value with its interval, to the digit that the interval's width justifies.

    >>> _printed((54.1234, 53.6, 54.7)), _printed((math.nan, 0.0, 9.0))
    ('54.1 (53.6, 54.7)', 'hidden by noise')
    """
    value, low, high = found
    if math.isnan(value):
        return "hidden by noise"
    if column is not None:
        return "{} ({}, {})".format(*(written(column, one) for one in found))
    width = high - low
    if 0 < width < 1e-6 or width > 1e12:
        return f"{value:.4g} ({low:.4g}, {high:.4g})"
    places = min(max(1 - math.floor(math.log10(width)), 0), 9) if width and not whole else 0
    return f"{value:,.{places}f} ({low:,.{places}f}, {high:,.{places}f})"


def written(column: ColumnType, value: float) -> str:
    """Return a number as the column has it."""
    if column.step or column.kind in TIMES:
        one = grid.written(column, np.array([value])).iloc[0]
        return str(one.date() if hasattr(one, "date") and column.kind == "date" else one)
    return f"{value:.0f}" if column.integer else f"{value:.6g}"


def table_one(made: Synthetic, by: str | None = None, level: float = 0.95) -> TableOne:
    """Return the Table 1 of released counts, at no price.

    Args:
        made: the counts.
        by: a column of levels, for a column of the table for each; counted with the others.
        level: coverage of the intervals.

    Raises:
        ValueError: naming the argument that is out of range.
    """
    validate.probability("level", level)
    columns, noisy = made.schema.columns, made.counts
    names = list(columns)
    z, k = float(ndtri((1 + level) / 2)), made.settings.rows_per_unit
    found = [Statistic(column="", group=ALL, level="", name="count", **_ends(rows(noisy), z))]
    groups: dict[str, int] = {}
    if by is not None:
        _check_groups(by, made.schema, noisy)
        sizes = zip(*group_sizes(noisy, names.index(by)), strict=True)
        labels = _labels(columns[by], noisy.bins[names.index(by)])
        for at, (label, size) in enumerate(zip(labels, sizes, strict=True)):
            if size[0] > SEEN * math.sqrt(size[1]):
                groups[label] = at
                one = Statistic(column="", group=label, level="", name="count", **_ends(size, z))
                found.append(one)
    for at, (name, column) in enumerate(columns.items()):
        if name == by:
            continue
        estimates: dict[str, CodeCounts] = {ALL: of_column(noisy, at)}
        if by is not None:
            each = of_groups(noisy, at, names.index(by), grid.shares(column))
            estimates |= {label: each[place] for label, place in groups.items()}
        for group, counted in estimates.items():
            for listed, what, (value, low, high) in _of_column(column, counted, k, z):
                found.append(
                    Statistic(
                        column=name,
                        group=group,
                        level=listed,
                        name=what,
                        value=value,
                        low=low,
                        high=high,
                    )
                )
    return TableOne(statistics=tuple(found), groups=(ALL, *groups), level=level, counts=made)


def _ends(counted: tuple[float, float], z: float) -> dict[str, float]:
    """Return a number of rows, given with its variance, and the interval for its noise."""
    value, half = max(counted[0], 0.0), z * math.sqrt(counted[1])
    return {"value": value, "low": max(value - half, 0.0), "high": value + half}


def _check_groups(by: str, schema: Schema, noisy: NoisyCounts) -> None:
    """Refuse a column that makes no groups, or was not counted with the others."""
    validate.columns("by", [by], list(schema.columns))
    if schema.columns[by].bounds is not None:
        raise ValueError(f"by={by!r} is a column of numbers; groups need a column of levels")
    at = list(schema.columns).index(by)
    others = [one for one in range(len(schema.columns)) if one != at]
    if not all((min(at, one), max(at, one)) in noisy.joint for one in others):
        raise ValueError(
            f"by={by!r} was not counted with the other columns; counts for a Table 1 have the "
            "groups they were made with"
        )


def _labels(column: ColumnType, bins: grid.Codes) -> Sequence[str]:
    """Return the names of bins of levels; blanks and unknown values are named where alone."""
    names, cells = np.array([*(column.names or ()), "blank", grid.OTHER]), grid.cells(column)
    each = [np.flatnonzero(bins == one) for one in range(int(bins.max()) + 1)]
    return [", ".join(names[one[one < cells] if one[0] < cells else one]) for one in each]


def _of_column(
    column: ColumnType, found: CodeCounts, rows_per_unit: int, z: float
) -> Iterator[tuple[str, str, Interval]]:
    """Yield the statistics of a column: level, name, value with interval."""
    cells = grid.cells(column)
    every = np.arange(cells + 2)
    present = every[:cells] if column.bounds is not None else np.delete(every, cells)
    yield "", "count", _counted(found, present, z)
    if column.bounds is not None:
        for name, one in moments.of_numbers(column, found, rows_per_unit, z):
            yield "", name, one
    else:
        some = Shares.of(found, present, rows_per_unit)
        levels = column.names or ()
        rest = grid.OTHER if grid.OTHER not in levels else "not listed"
        for at, name in enumerate((*levels, rest)):
            yield name, "count", _counted(found, present[[at]], z)
            yield name, "share", moments.share(some, at, z)
    yield "", "missing", _missing(found, present, rows_per_unit, z)


def _counted(found: CodeCounts, codes: grid.Codes, z: float) -> Interval:
    """Return the number of rows with these codes, and the interval for its noise.

    Of codes that were counted with others it reaches from 0 to the end of all of them.
    """
    together = np.flatnonzero(np.isin(found.blocks, found.blocks[codes]))
    noise = float(found.noise[np.ix_(together, together)].sum())
    one = _ends((float(found.counts[together].sum()), noise), z)
    if len(together) == len(codes):
        return one["value"], one["low"], one["high"]
    return max(float(found.counts[codes].sum()), 0.0), 0.0, one["high"]


def _missing(found: CodeCounts, present: grid.Codes, rows_per_unit: int, z: float) -> Interval:
    """Return the share of rows without a value."""
    parts = np.zeros((2, len(found.counts)))
    parts[0, present] = 1.0
    parts[1] = 1.0 - parts[0]
    mixed = np.isin(found.blocks[present], np.delete(found.blocks, present)).any()
    blocks = np.arange(2) * (not mixed)
    both = CodeCounts(parts @ found.counts, parts @ found.noise @ parts.T, blocks)
    return moments.share(Shares.of(both, np.arange(2), rows_per_unit), 1, z)

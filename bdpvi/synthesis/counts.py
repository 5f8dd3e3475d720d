"""The mechanism: noisy counts of every column, then of all pairs of columns and of named groups.

Adding or removing any row moves one cell of each table by 1, so tables with noise of standard
deviations σ_t are one Gaussian mechanism of distance μ, μ² = Σ 1/σ_t², even if later tables depend
on the results of earlier ones (Dong, Roth and Su 2022, Corollary 2). Merging cells of the pairs by
the columns' noisy counts is post-processing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bdpvi._ground import validate
from bdpvi.datasets import grid
from bdpvi.datasets.grid import Codes
from bdpvi.datasets.records import Records
from bdpvi.datasets.schema import Schema
from bdpvi.datasets.types import ColumnType
from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.noise.whole_normals import WholeNormals
from bdpvi.privacy.book import ROW

Floats = NDArray[np.float64]
Group = tuple[int, ...]
"""Indices of columns that are counted together."""
GROUPS = 0.25
"""Share of the named groups, if any, in the part of μ² that is not for single columns."""
RARE = 4.0
"""Cells with fewer rows than this many standard deviations of their noise are merged."""
ABSENT = 0.75
"""Blanks and unknown values get their own bin above this multiple of the limit. Most columns have
none, and three deviations exceed all 26 such noisy counts of 13 columns in 28 of 29 runs."""
BINS = 20
"""Intended number of bins of a numeric column, if it has enough rows."""
ALONE, NUMBERS, PARTS = 0.4, 3.0, 8
"""Without pairs: the share of μ² for single columns; how many times as much each column of numbers
gets of the rest as one of levels; bins of a column of numbers, by rows and by its range."""
_MOST_CELLS = 2**24
_MOST_GROUP = 4
_MOST_PARENTS, _MOST_KEPT = 8, 2**20


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Which tables are counted, how they share the budget, and how the network is built from them.

    Attributes:
        one_way: share of μ² for single columns.
        label: share of the pairs with the target in the budget for pairs.
        parents: largest number of parents of a column, not counting the target.
        cells: largest number of cells of a table in the network.
        also: groups of three or four columns to count together as well.
        pairs: whether all pairs are counted. If not, each column is counted with the target only,
            and without a target numbers are counted in bins too, for :func:`bdpvi.describe`. No
            rows can be made of such counts, and ``one_way`` and ``label`` do not apply.
        unit: the column that identifies persons, to protect all rows of a person; by default ε is
            for single rows.
        rows_per_unit: k, largest number of rows used for each person, chosen by secret coins; of a
            table in blocks the first ones.
        categorical, numeric: columns missing from the schema whose kind is public; the kinds of
            other missing columns are estimated privately.

    Raises:
        ValueError: naming the argument that is out of range.
    """

    one_way: float = 0.1
    label: float = 0.6
    parents: int = 2
    cells: int = 2**17
    also: tuple[tuple[str, ...], ...] = ()
    unit: str = ROW
    rows_per_unit: int = 1
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    pairs: bool = field(default=True, metadata={"absent": True})

    def __post_init__(self) -> None:
        validate.probability("one_way", self.one_way)
        validate.probability("label", self.label)
        validate.at_most("parents", validate.positive_int("parents", self.parents), _MOST_PARENTS)
        validate.at_most("cells", validate.positive_int("cells", self.cells), _MOST_KEPT)
        validate.positive_int("rows_per_unit", self.rows_per_unit)
        if self.rows_per_unit > 1 and self.unit == ROW:
            raise ValueError(
                f"rows_per_unit={self.rows_per_unit} needs unit=, the column that names persons"
            )
        if both := sorted({*self.categorical} & {*self.numeric}):
            raise ValueError(f"numeric has {both[0]!r}, which is categorical too")
        if self.also and not self.pairs:
            raise ValueError(f"also={self.also} needs pairs=True; leave it out")
        for group in self.also:
            if not 3 <= len(set(group)) == len(group) <= _MOST_GROUP:
                raise ValueError(f"also has {group}: a group is three or four different columns")

    @property
    def door(self) -> str:
        """The call that makes such counts."""
        return "synthesize" if self.pairs else "describe"

    def groups(self, schema: Schema) -> tuple[Group, ...]:
        """Return the named groups, as column indices.

        Raises:
            ValueError: if a name is not a column, or a group could have more than 2²⁴ cells.
        """
        names, sizes = list(schema.columns), [*map(grid.size, schema.columns.values())]
        found = []
        for group in self.also:
            if unknown := [name for name in group if name not in names]:
                raise ValueError(f"also names {unknown[0]!r}, which is not a column of the schema")
            places = tuple(sorted(names.index(name) for name in group))
            if (cells := math.prod(sizes[at] for at in places)) > _MOST_CELLS:
                raise ValueError(
                    f"also has {group}, which can have {cells} cells; 2**24 at most: leave a "
                    "column out, or declare it in the schema with fewer levels"
                )
            found.append(places)
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, eq=False)
class MeasurementPlan:
    """Which tables are counted, and with how much noise, from public facts alone.

    Attributes:
        sizes: number of codes of every column.
        grids: whether each column's codes are ordered, like codes of numbers.
        target: index of the target; None for no target.
        one_way: standard deviation of the noise for single columns.
        joint: standard deviation of the noise for each pair and group.
        breaks: codes at which a bin of each column must begin; None where all pairs are counted.
    """

    sizes: tuple[int, ...]
    grids: tuple[bool, ...]
    target: int | None
    one_way: float
    joint: Mapping[Group, float]
    breaks: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        for deviation in (self.one_way, *self.joint.values()):
            secure.whole_parts(deviation)  # refuses noise too large to represent

    @classmethod
    def of(
        cls, schema: Schema, target: int | None, distance: float, settings: Counts
    ) -> MeasurementPlan:
        """Return the plan that costs exactly ``distance``, μ.

        >>> from bdpvi.datasets import ColumnType
        >>> three = Schema({name: ColumnType(levels=("0", "1")) for name in "abc"}, "coins")
        >>> plan = MeasurementPlan.of(three, 0, 0.5, Counts())
        >>> round(3 / plan.one_way**2 + sum(1 / one**2 for one in plan.joint.values()), 12)
        0.25
        """
        columns = list(schema.columns.values())
        if settings.pairs:
            groups = settings.groups(schema)
            breaks, kinds = None, _all_pairs(len(columns), target, groups, settings)
        else:
            breaks, kinds = tuple(map(_eighths, columns)), _each_alone(columns, target)
        one_way = settings.one_way if settings.pairs else ALONE
        one_way = one_way if any(tables for _, tables in kinds) else 1.0
        joint = {
            table: math.sqrt(len(tables) / (share * (1 - one_way))) / distance
            for share, tables in kinds
            for table in tables
        }
        return cls(
            tuple(map(grid.size, columns)),
            tuple(column.bounds is not None for column in columns),
            target,
            math.sqrt(len(columns) / one_way) / distance,
            joint,
            breaks,
        )

    @property
    def rounding(self) -> float:
        """Total variation distance from exact Gaussian noise, whichever cells are merged."""
        cells = sum(self.sizes) + sum(
            math.prod(self.sizes[at] for at in table) for table in self.joint
        )
        return secure.sum_rounding(cells)

    def bins(self, single: Sequence[Codes]) -> tuple[Codes, ...]:
        """Return the bin of each column's codes, by their noisy counts."""
        records = float(np.mean([table.sum() for table in single]))
        enough, breaks = RARE * self.one_way, self.breaks or [()] * len(single)
        least, number = (enough, BINS) if self.breaks is None else (-math.inf, PARTS)
        full = max(records / number, enough)
        return tuple(
            merged(table, grid, least, full, some)
            for table, grid, some in zip(single, self.grids, breaks, strict=True)
        )


def _all_pairs(
    columns: int, target: int | None, groups: Sequence[Group], settings: Counts
) -> list[tuple[float, Sequence[Group]]]:
    """Return pairs with the target, other pairs, and named groups, with their shares of μ²."""
    pairs = list(itertools.combinations(range(columns), 2))
    kinds: list[tuple[float, Sequence[Group]]] = [
        (settings.label, [pair for pair in pairs if target in pair]),
        (1 - settings.label, [pair for pair in pairs if target not in pair]),
    ]
    total = sum(share for share, tables in kinds if tables)
    rest = 1 - GROUPS * bool(groups)
    return [
        *((rest * share / total if total else 0.0, some) for share, some in kinds),
        (GROUPS, groups),
    ]


def _each_alone(
    columns: Sequence[ColumnType], target: int | None
) -> list[tuple[float, Sequence[Group]]]:
    """Return tables of columns of numbers, and of levels, alone or with the target, with shares."""
    found: dict[bool, list[Group]] = {True: [], False: []}
    for at, column in enumerate(columns):
        if target is not None and at != target:
            found[column.bounds is not None].append((min(at, target), max(at, target)))
        elif target is None and column.bounds is not None:
            found[True].append((at,))
    weights = {kind: len(some) * (NUMBERS if kind else 1.0) for kind, some in found.items()}
    return [(weights[kind] / sum(weights.values()), some) for kind, some in found.items() if some]


def _eighths(column: ColumnType) -> tuple[int, ...]:
    """Return the cells of a grid at which another eighth of its range begins.

    >>> _eighths(ColumnType(kind="integer", low=0, high=15))
    (2, 4, 6, 8, 10, 12, 14)
    """
    ends = grid.edges(column)
    if ends is None:
        return ()
    low, high = column.bounds or (0.0, 0.0)
    at = np.searchsorted(ends[:-1], np.linspace(low, high, PARTS + 1)[1:-1])
    return tuple(sorted({*at.tolist()} - {0, len(ends) - 1}))


@dataclass(frozen=True, eq=False)
class NoisyCounts:
    """The released counts; everything else is computed from them.

    Attributes:
        single: noisy counts of every column's codes, int64.
        bins: for every column, the bin of each code after merging.
        joint: noisy counts of bins, by column indices.
        deviation: standard deviation of the noise in ``single``.
        deviations: standard deviation of the noise in each table of ``joint``.
    """

    single: tuple[Codes, ...]
    bins: tuple[Codes, ...]
    joint: Mapping[Group, Codes]
    deviation: float
    deviations: Mapping[Group, float]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of bins of every column."""
        return tuple(int(one.max()) + 1 for one in self.bins)

    @cached_property
    def records(self) -> float:
        """Estimated number of rows, at least 1: the inverse-variance mean of the tables' totals."""
        tables = [(one, self.deviation) for one in self.single]
        tables += [(table, self.deviations[at]) for at, table in self.joint.items()]
        weights = [1 / (deviation**2 * table.size) for table, deviation in tables]
        totals = [float(table.sum()) for table, _ in tables]
        return max(float(np.average(totals, weights=weights)), 1.0)

    def raised(self, by: int) -> NoisyCounts:
        """Return the counts with a number added to each."""
        joint = {at: table + by for at, table in self.joint.items()}
        return replace(self, single=tuple(one + by for one in self.single), joint=joint)

    def binned(self, at: int) -> Floats:
        """Return the noisy counts of a column's bins, summed from its codes."""
        bins, weights = self.bins[at], self.single[at].astype(np.float64)
        return np.asarray(np.bincount(bins, weights=weights, minlength=self.sizes[at]))


def count_columns(codes: Codes, sizes: Sequence[int]) -> tuple[Codes, ...]:
    """Return the exact counts of every column's codes, given those of the rows, (n, d)."""
    return tuple(cells_of(codes[:, [at]], (size,)) for at, size in enumerate(sizes))


def count(
    codes: Records[Codes],
    plan: MeasurementPlan,
    key: Key,
    exact: Sequence[Codes] | None = None,
) -> NoisyCounts:
    """Count with noise. The draw must be charged before.

    Args:
        codes: codes of the rows, (N, d).
        plan: the tables and their noise.
        key: secret key of this release only.
        exact: the sum of :func:`count_columns`, by default by a pass of its own.
    """
    noise = WholeNormals(key.child("counts"))
    exact = codes.sum(count_columns, plan.sizes) if exact is None else exact
    single = tuple(_noisy(one, plan.one_way, noise) for one in exact)
    bins = plan.bins(single)
    together = codes.sum(_count_together, bins, tuple(plan.joint)) if plan.joint else {}
    joint = {
        table: _noisy(together[table], deviation, noise) for table, deviation in plan.joint.items()
    }
    return NoisyCounts(single, bins, joint, plan.one_way, plan.joint)


def _count_together(
    codes: Codes, bins: Sequence[Codes], tables: Sequence[Group]
) -> dict[Group, Codes]:
    """Return the exact counts of the bins of columns that are counted together."""
    sizes, coarse = [int(one.max()) + 1 for one in bins], in_bins(codes, bins)
    return {table: cells_of(coarse[:, table], tuple(sizes[at] for at in table)) for table in tables}


def in_bins(codes: Codes, bins: Sequence[Codes]) -> Codes:
    """Return the bins of rows of codes, (n, d)."""
    return np.stack([one[codes[:, at]] for at, one in enumerate(bins)], axis=1)


def cells_of(codes: Codes, shape: tuple[int, ...]) -> Codes:
    """Return how often each cell of a table occurs among codes, (n, columns of the table)."""
    places = np.ravel_multi_index(tuple(codes.T), shape)
    return np.bincount(places, minlength=math.prod(shape)).reshape(shape)


def _noisy(exact: Codes, deviation: float, noise: WholeNormals) -> Codes:
    added = secure.count_noise(exact.shape, deviation, noise).numpy()
    return np.asarray(exact + added, dtype=np.int64)


def merged(
    noisy: Codes, grid: bool, least: float, full: float, breaks: Sequence[int] = ()
) -> Codes:
    """Return the bin of each code after merging.

    Neighbouring cells of a grid are merged until the bin holds ``full`` rows; a cell with that many
    rows is its own bin. Levels with fewer than ``least`` rows share one bin. Blanks and unknown
    values, the last two codes, join it unless they have :data:`ABSENT` times ``least`` rows; if it
    does not exist they join the largest bin, from which they are never drawn.

    Args:
        noisy: counts of codes.
        grid: whether codes are ordered.
        least: fewest rows of a bin.
        full: rows of a numeric bin.
        breaks: cells of a grid at which a bin begins however few rows the last one has.

    >>> merged(np.array([50, 3, 4, 5, 60, 1, 0]), True, 10.0, 40.0).tolist()
    [0, 1, 1, 1, 2, 2, 2]
    """
    cells = len(noisy) - 2
    bins = np.zeros(len(noisy), dtype=np.int64)
    if grid:
        at, mass = 0, 0.0
        for cell in range(cells):
            begun = cell > 0 and bins[cell - 1] == at
            alone = noisy[cell] >= full and mass >= least  # the cell gets its own bin
            if begun and (alone or cell in breaks):
                at, mass = at + 1, 0.0
            bins[cell], mass = at, mass + noisy[cell]
            if mass >= full and cell < cells - 1:
                at, mass = at + 1, 0.0
        if mass < least and at:
            bins[:cells][bins[:cells] == at] = at - 1
        number, rare = int(bins[:cells].max()) + 1, -1
    else:
        kept = noisy[:cells] >= least
        number, rare = int(kept.sum()), -1
        bins[:cells][kept] = np.arange(number)
        if not kept.all():
            bins[:cells][~kept], rare = number, number
            number += 1
    mass_of = np.bincount(bins[:cells], weights=noisy[:cells], minlength=number)
    for code in (cells, cells + 1):
        if noisy[code] >= ABSENT * least:
            bins[code], number = number, number + 1
        else:
            bins[code] = rare if rare >= 0 else int(mass_of.argmax())
    return bins

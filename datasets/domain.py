"""The possible values of one column, and the grid of codes they define.

A domain gives every cell of any table a code, so that neighbouring tables have the same codes and
no row is ever refused: values out of range are clamped, unreadable values and unknown levels become
:data:`OTHER`, and a blank is a separate level.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bdpvi._ground.outputs import several
from bdpvi.datasets.cells import places_of, read_cell, read_cells
from bdpvi.datasets.types import ANY, BOOLEAN, TIMES, UNUSED, ColumnType

Codes = NDArray[np.int64]
OTHER = "other"
"""Name of unknown levels in rows; among numbers they are blanks."""
MOST_LEVELS = 1000
_MOST_VALUES, _UNIFORM, _A_DECADE, _DECADES = 256, 64, 6, 4
_MOST_CLAMPED = 0.05
_OTHER_SPELLING = re.compile(r"[+-]?(0\d+\.?\d*|[\d.]+[eE][+-]?\d+)|\+\d.*")
"""Numbers that are not in their usual spelling, such as codes may have."""


@dataclass(frozen=True)
class Unfit:
    """How many of a column's cells do not fit its domain, for the owner only; their sum is too.

    Attributes:
        cells: number of all cells.
        clamped: numbers out of range.
        unread: cells that are no number.
        unknown: cells that are no level.
        first: the first unknown level by the alphabet, "" if there is none.

    >>> str(Unfit(50, clamped=1) + Unfit(10, clamped=3))
    '4 values out of range and clamped, more than 5 %: are the bounds right?'
    """

    cells: int
    clamped: int = 0
    unread: int = 0
    unknown: int = 0
    first: str = ""

    def __add__(self, other: Unfit) -> Unfit:
        names = [one.first for one in (self, other) if one.unknown]
        return Unfit(
            self.cells + other.cells,
            self.clamped + other.clamped,
            self.unread + other.unread,
            self.unknown + other.unknown,
            min(names, default=""),
        )

    def __str__(self) -> str:
        many = ", more than 5 %: are the bounds right?" * (
            self.clamped > _MOST_CLAMPED * self.cells
        )
        said = {
            f"out of range and clamped{many}": self.clamped,
            "no number": self.unread,
            f"no level, such as {self.first!r}": self.unknown,
        }
        return "; ".join(f"{several(n, 'value')} {what}" for what, n in said.items() if n)


@dataclass(frozen=True, kw_only=True)
class Domain:
    """The possible values of one column: either levels, or numbers between two bounds.

    Codes are indices of levels or of the grid's cells, then one for blanks and one for
    :data:`OTHER`.

    Attributes:
        levels: names, in any spelling that a table may have; 1 and 1.0 are the same.
        low, high: bounds, both possible values.
        integer: whether numbers are whole.
        from_data: whether any of these were read from the rows, and so are not public.
        bought: whether they were estimated privately for a release; only its ε covers them.
        type: the declared type of the column, by which cells are read and values are written.

    Raises:
        ValueError: naming the field at fault.

    >>> Domain(low=0, high=110, integer=True).size, Domain(levels=("F", "M")).size
    (113, 4)
    """

    levels: tuple[str, ...] | None = None
    low: float | None = None
    high: float | None = None
    integer: bool = False
    from_data: bool = False
    bought: bool = False
    type: ColumnType | None = field(default=None, metadata={"absent": None})

    def __post_init__(self) -> None:
        bounds = self.bounds
        if self.type is not None:
            self._check_type(self.type)
        if (self.levels is None) == (bounds is None) or (self.low is None) != (self.high is None):
            raise ValueError(
                f"give levels, or low and high, got levels={self.levels}, low={self.low}, "
                f"high={self.high}"
            )
        if bounds is not None:
            if not -math.inf < bounds[0] <= bounds[1] < math.inf:
                raise ValueError(f"low={self.low} must be at most high={self.high}, both finite")
            if self.integer and not all(float(one).is_integer() for one in bounds):
                raise ValueError(
                    f"low={self.low} and high={self.high} must be whole numbers, as integer=True"
                )
            return
        assert self.levels is not None
        if self.integer or not 1 <= len(self.levels) <= MOST_LEVELS:
            raise ValueError(
                f"levels must be 1 to {MOST_LEVELS} names and no integers, got {len(self.levels)}"
            )
        if len({*self._places.values()}) != len(self.levels):
            raise ValueError(
                f"levels must differ and not be blank, got {self.levels!r:.200}; a declared kind, "
                "such as category, takes them as written"
            )

    def _check_type(self, type: ColumnType) -> None:
        for name, given, here in (
            ("levels", type.names, self.levels),
            ("low", type.low, self.low),
            ("high", type.high, self.high),
        ):
            if given not in (None, here):
                raise ValueError(f"type has {name}={given!r:.80}, and the domain {here!r:.80}")
        if type.kind in UNUSED:
            raise ValueError(f"kind={type.kind} has no levels or bounds: it is left out")
        if type.kind != ANY and (self.levels is None) != (type.numeric):
            raise ValueError(f"kind={type.kind} goes with {'bounds' if type.numeric else 'levels'}")

    @classmethod
    def of_type(cls, type: ColumnType, *, from_data: bool = False) -> Domain | None:
        """Return the domain that a type declares, None if it has neither levels nor bounds.

        >>> Domain.of_type(ColumnType(kind="boolean")).levels
        ('False', 'True')
        """
        if type.names is None and type.low is None:
            return None
        return cls(
            levels=type.names,
            low=type.low,
            high=type.high,
            integer=type.whole,
            from_data=from_data,
            type=type,
        )

    def of(self, type: ColumnType | None) -> Domain:
        """Return the domain with a declared type, whose numbers are whole if the type says so."""
        if type is None:
            return self
        if self.bounds is None or not type.whole:
            fine = type.step is not None and not float(type.step).is_integer()
            return replace(self, type=type, integer=self.integer and not fine)
        low, high = math.floor(self.bounds[0]), math.ceil(self.bounds[1])
        return replace(self, type=type, low=float(low), high=float(high), integer=True)

    @cached_property
    def reading(self) -> ColumnType | None:
        """The type by which cells are read, None where they are guessed.

        Without a declared type it is that of names if levels differ in their spelling only, such as
        7 and 007: guessed as numbers they would be one.
        """
        if self.type is not None or self.levels is None:
            return self.type
        labels = [read_cell(one)[1] for one in self.levels]
        lossy = [one for one in self.levels if _OTHER_SPELLING.fullmatch(one.strip())]
        if not lossy or len({*labels}) == len(labels) or not all(labels):
            return None
        return ColumnType(kind="category", levels=self.levels)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Both bounds; None for levels."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @cached_property
    def _places(self) -> dict[str, int]:
        return places_of(self.levels or (), self.reading)

    @cached_property
    def edges(self) -> NDArray[np.float64] | None:
        """Left ends of the grid's cells and the end of the last cell; None for levels.

        Up to 256 whole numbers have one cell each. Other ranges have 64 cells of equal width, and
        six cells per decade from the bound nearest to 0, or on both sides of 0 if the bounds
        straddle it; the bounds and 0 have their own cells.
        """
        if self.bounds is None:
            return None
        low, high = self.bounds
        if self.integer and high - low < _MOST_VALUES:
            return np.arange(low, high + 2)
        span = high - low
        decades = max(_DECADES, math.log10(span)) if self.integer and span else _DECADES
        away = span * 10.0 ** -(np.arange(1, round(_A_DECADE * decades) + 1) / _A_DECADE)
        if low < 0 < high:
            finer = np.concatenate([-away, away])
        else:
            finer = low + away if abs(low) <= abs(high) else high - away
        inside = np.concatenate([np.linspace(low, high, _UNIFORM + 1), finer])
        inside = np.ceil(inside) if self.integer else inside
        alone = [at for at in (low, 0.0, high) if low <= at <= high]
        past = [at + 1.0 if self.integer else math.nextafter(at, math.inf) for at in alone]
        inside = inside[(inside >= low) & (inside <= high)]
        return np.unique(np.concatenate([inside, alone, past]))

    @property
    def cells(self) -> int:
        """Number of levels, or of cells of the grid."""
        return len(self.levels) if self.edges is None else len(self.edges) - 1  # type: ignore[arg-type]

    @property
    def size(self) -> int:
        """Number of codes, including those for blanks and :data:`OTHER`."""
        return self.cells + 2

    @property
    def shares(self) -> NDArray[np.float64]:
        """Default share of each code: equal shares, so that small numbers are more likely.

        Single points among numbers that are not whole, and the last two codes, have share 0.
        """
        wide = np.ones(self.cells)
        if self.edges is not None and not self.integer:
            wide = (np.diff(self.edges) > 2 * np.spacing(self.edges[:-1])).astype(np.float64)
        wide = wide if wide.any() else np.ones(self.cells)
        return np.concatenate([wide / wide.sum(), [0.0, 0.0]])

    def encode(self, values: pd.Series[Any]) -> tuple[Codes, Unfit]:
        """Return the codes of values, (N,), and how many are invalid, for the owner only."""
        if values.dtype.kind in "iuf" and self.edges is not None and self.type is None:
            numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
            blank, numbers = np.isnan(numbers), np.where(np.isfinite(numbers), numbers, np.nan)
        else:
            found = read_cells(values, self.reading)
            numbers, blank = found.numbers, found.blank
        if self.edges is None:
            places = np.array([self._places.get(n, self.cells + 1) for n in found.names] + [0])
            codes = np.where(blank, self.cells, places[found.codes]).astype(np.int64)
            unseen = sorted({found.names[c] for c in found.codes[codes == self.cells + 1]})
            count = int((codes == self.cells + 1).sum())
            return codes, Unfit(len(codes), unknown=count, first=unseen[0] if count else "")
        low, high = self.bounds or (0.0, 0.0)
        near = np.clip(np.nan_to_num(numbers), low, high)
        near = np.round(near) if self.integer else near
        codes = np.searchsorted(self.edges, near, side="right") - 1
        codes = np.where(np.isnan(numbers), self.cells + 1, codes)
        codes = np.where(blank, self.cells, codes).astype(np.int64)
        clamped = int(((numbers < low) | (numbers > high)).sum())
        return codes, Unfit(len(codes), clamped, unread=int((codes == self.cells + 1).sum()))

    def decode(self, codes: Codes, random: np.random.Generator) -> pd.Series[Any]:
        """Return values for codes: levels in the schema's spelling, numbers uniform in cells."""
        if self.edges is None:
            levels = self.levels or ()
            if {*levels} <= {*BOOLEAN} and (self.type is None or self.type.levels is None):
                truth = np.array([*(one == BOOLEAN[1] for one in levels), None, None], object)
                known = bool((codes < self.cells).all())
                return pd.Series(truth[codes], dtype="bool" if known else "boolean")
            names = np.array([*levels, None, OTHER], dtype=object)
            return pd.Series(names[codes], dtype=object)
        inside = np.minimum(codes, self.cells - 1)
        low, high = self.edges[inside], self.edges[inside + 1]
        values = low + random.random(len(codes)) * (high - low)
        values = np.minimum(values, np.nextafter(high, -math.inf))  # rounding may reach the end
        values = np.floor(values) if self.integer else values
        values = np.clip(values, *(self.bounds or (0.0, 0.0)))
        gone = codes >= self.cells
        if self.type is not None and (self.type.step or self.type.kind in TIMES):
            found = self.type.written(np.where(gone, np.nan, values), *(self.bounds or (0.0, 0.0)))
            return found.astype(np.int64) if self.integer and _numbers(found) else found
        if self.integer and not gone.any():
            return pd.Series(values.astype(np.int64))
        return pd.Series(np.where(gone, np.nan, values))


def _numbers(values: pd.Series[Any]) -> bool:
    return bool(values.dtype.kind == "f" and values.notna().all())

"""The codes of a column's possible values: its levels, or the cells of a public grid.

They give every cell of any table a code, so that neighbouring tables have the same codes and no row
is ever refused: values out of range are clamped, unreadable values and unknown levels become
:data:`OTHER`, and a blank is a separate level. Codes are indices of levels or of the grid's cells,
then one for blanks and one for :data:`OTHER`.
"""

from __future__ import annotations

import math
from datetime import date, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bdpvi._ground.outputs import several
from bdpvi.datasets.cells import places_of, read_cells
from bdpvi.datasets.types import ColumnType
from bdpvi.score.reading import ANY, BOOLEAN, TIMES

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]
OTHER = "other"
"""Name of unknown levels in rows; among numbers they are blanks."""
_MOST_VALUES, _UNIFORM, _A_DECADE, _DECADES = 256, 64, 6, 4
_MOST_CLAMPED = 0.05


Unfit = dict[str, Any]
"""How many cells of a column do not fit its type, for the owner only: ``cells``, all of them;
``clamped``, numbers out of range; ``unread``, no numbers; ``unknown``, no levels, by the first."""


def words_of_unfit(unfit: Unfit) -> str:
    """Return how many cells do not fit, in words.

    >>> words_of_unfit({"cells": 60, "clamped": 4})
    '4 values out of range and clamped, more than 5 %: are the bounds right?'
    """
    clamped, unknown = unfit.get("clamped", 0), unfit.get("unknown", {})
    many = ", more than 5 %: are the bounds right?" * (clamped > _MOST_CLAMPED * unfit["cells"])
    each = {
        f"out of range and clamped{many}": clamped,
        "no number": unfit.get("unread", 0),
        f"no level, such as {min(unknown, default='')!r}": sum(unknown.values()),
    }
    return "; ".join(f"{several(n, 'value')} {what}" for what, n in each.items() if n)


@lru_cache
def _places(column: ColumnType) -> dict[str, int]:
    return places_of(column.names or (), column.reading)


@lru_cache
def edges(column: ColumnType) -> Floats | None:
    """Return left ends of the grid's cells and the end of the last cell; None for levels.

    Up to 256 whole numbers have one cell each. Other ranges have 64 cells of equal width, and six
    cells per decade from the bound nearest to 0, or on both sides of 0 if the bounds straddle it;
    the bounds and 0 have their own cells.
    """
    if column.bounds is None:
        return None
    low, high = column.bounds
    if column.integer and high - low < _MOST_VALUES:
        return np.arange(low, high + 2)
    span = high - low
    decades = max(_DECADES, math.log10(span)) if column.integer and span else _DECADES
    away = span * 10.0 ** -(np.arange(1, round(_A_DECADE * decades) + 1) / _A_DECADE)
    if low < 0 < high:
        finer = np.concatenate([-away, away])
    else:
        finer = low + away if abs(low) <= abs(high) else high - away
    inside = np.concatenate([np.linspace(low, high, _UNIFORM + 1), finer])
    inside = np.ceil(inside) if column.integer else inside
    alone = [at for at in (low, 0.0, high) if low <= at <= high]
    past = [at + 1.0 if column.integer else math.nextafter(at, math.inf) for at in alone]
    inside = inside[(inside >= low) & (inside <= high)]
    return np.unique(np.concatenate([inside, alone, past]))


def cells(column: ColumnType) -> int:
    """Return the number of levels, or of cells of the grid."""
    ends = edges(column)
    return len(column.names or ()) if ends is None else len(ends) - 1


def size(column: ColumnType) -> int:
    """Return the number of codes, including those for blanks and :data:`OTHER`.

    >>> size(ColumnType(kind="integer", low=0, high=110)), size(ColumnType(levels=("F", "M")))
    (113, 4)
    """
    return cells(column) + 2


def shares(column: ColumnType) -> Floats:
    """Return the default share of each code: equal shares, so that small numbers are more likely.

    Single points among numbers that are not whole, and the last two codes, have share 0.
    """
    wide, ends = np.ones(cells(column)), edges(column)
    if ends is not None and not column.integer:
        wide = (np.diff(ends) > 2 * np.spacing(ends[:-1])).astype(np.float64)
    wide = wide if wide.any() else np.ones(len(wide))
    return np.concatenate([wide / wide.sum(), [0.0, 0.0]])


def encode(column: ColumnType, values: pd.Series[Any]) -> tuple[Codes, Unfit]:
    """Return the codes of values, (N,), and how many are invalid, for the owner only."""
    ends, last = edges(column), cells(column)
    found = read_cells(values, column.reading)
    numbers, blank = found.numbers, found.blank
    if ends is None:
        at = _places(column)
        places = np.array([at.get(n, last + 1) for n in found.names] + [0])
        codes = np.where(blank, last, places[found.codes]).astype(np.int64)
        unseen = sorted({found.names[c] for c in found.codes[codes == last + 1]})
        count = int((codes == last + 1).sum())
        return codes, {"cells": len(codes), "unknown": {unseen[0]: count} if count else {}}
    low, high = column.bounds or (0.0, 0.0)
    near = np.clip(np.nan_to_num(numbers), low, high)
    near = np.round(near) if column.integer else near
    codes = np.searchsorted(ends, near, side="right") - 1
    codes = np.where(np.isnan(numbers), last + 1, codes)
    codes = np.where(blank, last, codes).astype(np.int64)
    clamped = int(((numbers < low) | (numbers > high)).sum())
    unread = int((codes == last + 1).sum())
    return codes, {"cells": len(codes), "clamped": clamped, "unread": unread}


def decode(column: ColumnType, codes: Codes, random: np.random.Generator) -> pd.Series[Any]:
    """Return values for codes: levels in the schema's spelling, numbers uniform in cells."""
    ends, last = edges(column), cells(column)
    if ends is None:
        levels = column.names or ()
        if {*levels} <= {*BOOLEAN} and column.kind in ("boolean", ANY):
            truth = np.array([*(level == BOOLEAN[1] for level in levels), None, None], object)
            known = bool((codes < last).all())
            return pd.Series(truth[codes], dtype="bool" if known else "boolean")
        names = np.array([*levels, None, OTHER], dtype=object)
        return pd.Series(names[codes], dtype=object)
    inside = np.minimum(codes, last - 1)
    low, high = ends[inside], ends[inside + 1]
    values = low + random.random(len(codes)) * (high - low)
    values = np.minimum(values, np.nextafter(high, -math.inf))  # rounding may reach the end
    values = np.floor(values) if column.integer else values
    values = np.clip(values, *(column.bounds or (0.0, 0.0)))
    gone = codes >= last
    if column.step or column.kind in TIMES:
        made = written(column, np.where(gone, np.nan, values))
        return made.astype(np.int64) if column.integer and _numbers(made) else made
    if column.integer and not gone.any():
        return pd.Series(values.astype(np.int64))
    return pd.Series(np.where(gone, np.nan, values))


def _numbers(values: pd.Series[Any]) -> bool:
    return bool(values.dtype.kind == "f" and values.notna().all())


def written(column: ColumnType, numbers: Floats) -> pd.Series[Any]:
    """Return released numbers, (N,), NaN for a blank, as what the column held.

    Args:
        column: the column's type.
        numbers: the numbers, between its bounds.

    >>> written(ColumnType(kind="number", step=0.01, low=0, high=9), np.array([1.2345])).tolist()
    [1.23]
    >>> day = ColumnType(kind="date", date_format="%d.%m.%Y")
    >>> written(day, np.array([0.0, np.nan])).tolist()
    ['01.01.1970', None]
    """
    if column.kind == "datetime":
        at = pd.to_datetime(pd.Series(np.round(numbers)), unit="s", origin=column.since, utc=True)
        at = at.dt.tz_convert(column.zone or "UTC")
        return at if column.date_format is None else at.dt.strftime(column.date_format)
    if column.kind == "date":
        first = date.fromisoformat(column.since)
        days = [None if math.isnan(n) else _later(first, round(n)) for n in numbers.tolist()]
        if column.date_format is None:
            return pd.Series(pd.to_datetime(pd.Series(days, dtype=object)))
        texts = [None if day is None else day.strftime(column.date_format) for day in days]
        return pd.Series(texts, dtype=object)
    if column.step is None:
        return pd.Series(numbers)
    low, high = column.bounds or (-math.inf, math.inf)
    steps = np.round(numbers / column.step)
    least, most = np.ceil(low / column.step - 1e-9), np.floor(high / column.step + 1e-9)
    steps = np.clip(steps, least, most) if least <= most else steps
    exponent = Decimal(repr(float(column.step))).normalize().as_tuple().exponent
    return pd.Series(np.round(steps * column.step, max(0, -int(exponent))))


def _later(first: date, days: int) -> date:
    """Return the day so much later, or the first or last that the calendar has."""
    try:
        return first + timedelta(days=days)
    except OverflowError:
        return date.max if days > 0 else date.min

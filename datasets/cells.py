"""Cells of a raw table, each read by itself: the value of one never depends on the others.

A pandas column type does depend on all cells: one stray string turns all numbers into strings.
Private estimates and releases with a worst-case guarantee must not depend on it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

BLANK = frozenset(
    {"", "na", "n/a", "#n/a", "#na", "<na>", "nan", "-nan", "null", "none", "nat", "?", "-", "."}
)
"""Strings, in lower case, that mean a missing value."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_LONGEST = 200
"""Largest length of a category's name."""


class Cells(NamedTuple):
    """A column's cells.

    Attributes:
        numbers: (N,) float64, NaN where a cell is not a finite number.
        names: distinct labels, sorted; 1 and 1.0 have the same label.
        codes: (N,) each cell's index in ``names``, -1 for a blank.
    """

    numbers: NDArray[np.float64]
    names: tuple[str, ...]
    codes: NDArray[np.int64]

    @property
    def blank(self) -> NDArray[np.bool_]:
        """Mask of the blank cells, (N,)."""
        return self.codes < 0

    def select(self, rows: NDArray[Any]) -> Cells:
        """Return some of the cells."""
        return self._replace(numbers=self.numbers[rows], codes=self.codes[rows])


Columns = Mapping[str, Cells]
"""A table's columns."""


def read_cell(value: object, declared: Collection[str] = frozenset()) -> tuple[float, str, bool]:
    """Return a cell's number, its label and whether it is blank.

    Args:
        value: the cell's value.
        declared: strings that are values although they look like blanks.

    >>> read_cell(" 1.50 "), read_cell(7), read_cell("M"), read_cell("n/a")
    ((1.5, '1.5', False), (7.0, '7', False), (nan, 'M', False), (nan, '', True))
    """
    if isinstance(value, bool | np.bool_):
        return math.nan, str(bool(value)), False
    if isinstance(value, int | float | np.number):
        try:
            number = float(value)
        except (OverflowError, TypeError):
            number = math.inf
        if math.isnan(number):
            return math.nan, "", True
        return (number, _spelt(number), False) if math.isfinite(number) else (math.nan, "∞", False)
    text = "" if _nothing(value) else str(value).strip()
    if text.lower() in BLANK and text not in declared:
        return math.nan, "", True
    if _NUMBER.fullmatch(text) and math.isfinite(number := float(text)):
        return number, _spelt(number), False
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text[:_LONGEST])
    return math.nan, shown, False


def _nothing(value: object) -> bool:
    """Whether a value is None or one of pandas' missing values."""
    if isinstance(value, str):  # most cells: these need no pandas
        return False
    import pandas as pd

    return value is None or value is pd.NA or value is pd.NaT


def _spelt(number: float) -> str:
    if number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    return repr(number)


def read_cells(values: pd.Series[Any], declared: Collection[str] = frozenset()) -> Cells:
    """Read a column; ``declared`` as for :func:`read_cell`.

    >>> import pandas as pd
    >>> cells = read_cells(pd.Series(["1", "1.0", "", "x"], name="a"))
    >>> cells.names, cells.codes.tolist()
    (('1', 'x'), [0, 0, -1, 1])
    """
    import pandas as pd

    if pd.api.types.infer_dtype(values, skipna=False) == "string":  # read each spelling once
        at, texts = pd.factorize(values, use_na_sentinel=False)
        if len(texts) < len(values):
            return read_cells(pd.Series(texts, dtype=object), declared).select(at)
    kept: dict[tuple[type, Any], tuple[float, str, bool]] = {}
    found = []
    for value in values.tolist():
        try:
            key = (type(value), value)
            one = kept.get(key)
            if one is None:
                one = kept[key] = read_cell(value, declared)
        except TypeError:  # lists and dictionaries are not hashable
            one = read_cell(str(value), declared)
        found.append(one)
    names = tuple(sorted({label for _, label, blank in found if not blank}))
    places = {name: place for place, name in enumerate(names)}
    codes = [-1 if blank else places[label] for _, label, blank in found]
    numbers = np.array([one[0] for one in found], dtype=np.float64)
    return Cells(numbers, names, np.array(codes, dtype=np.int64))


def read_columns(frame: pd.DataFrame) -> Columns:
    """Read a table whose column names are strings."""
    return {str(name): read_cells(frame[name]) for name in frame}

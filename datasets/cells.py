"""Cells of a raw table, each read by itself: the value of one never depends on the others.

A pandas column type does depend on all cells: one stray string turns all numbers into strings.
Private estimates and releases with a worst-case guarantee must not depend on it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

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
_MANY = 256
"""So many different texts may be the numbers of a column, which are then read at once."""


class Reads(Protocol):
    """A declared way to read the cells of a column: :class:`bdpvi.datasets.types.ColumnType`."""

    @property
    def plain(self) -> bool:
        """Whether a finite number is itself and NaN a blank, but for ``whole``."""

    @property
    def whole(self) -> bool:
        """Whether a number that is not whole is a blank."""

    def read(self, value: object) -> tuple[float, str, bool]:
        """Return a cell's number, its label and whether it is blank."""


class Cells:
    """A column's cells.

    Args:
        numbers: (N,) float64, NaN where a cell is not a finite number.
        names: distinct labels, sorted; 1 and 1.0 have the same label unless a type was declared. By
            default those of the numbers: then no other cell has a label.
        codes: (N,) each cell's index in ``names``, -1 for a blank.
        type: the declared type by which they were read, if any.
    """

    def __init__(
        self,
        numbers: NDArray[np.float64],
        names: tuple[str, ...] | None = None,
        codes: NDArray[np.int64] | None = None,
        type: Any = None,
    ) -> None:
        self.numbers, self.type = numbers, type
        self._given = None if names is None or codes is None else (names, codes)

    @cached_property
    def _labelled(self) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        return _labels(self.numbers) if self._given is None else self._given

    @property
    def names(self) -> tuple[str, ...]:
        """The distinct labels."""
        return self._labelled[0]

    @property
    def codes(self) -> NDArray[np.int64]:
        """Each cell's index in the labels, (N,)."""
        return self._labelled[1]

    @property
    def blank(self) -> NDArray[np.bool_]:
        """Mask of the blank cells, (N,)."""
        return np.isnan(self.numbers) if self._given is None else self._given[1] < 0

    def select(self, rows: NDArray[Any]) -> Cells:
        """Return some of the cells."""
        if self._given is None:
            return Cells(self.numbers[rows], type=self.type)
        return Cells(self.numbers[rows], self.names, self.codes[rows], self.type)

    def __len__(self) -> int:
        return len(self.numbers)


def _labels(numbers: NDArray[np.float64]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the distinct labels of numbers, sorted, and each number's index, -1 for a NaN."""
    good = ~np.isnan(numbers)
    distinct, at = np.unique(numbers[good], return_inverse=True)
    each = [spelt(one) for one in distinct.tolist()]
    order = sorted(range(len(each)), key=each.__getitem__)
    rank = np.empty(len(each), dtype=np.int64)
    rank[order] = np.arange(len(each))
    codes = np.full(len(numbers), -1, dtype=np.int64)
    codes[good] = rank[at]
    return tuple(each[one] for one in order), codes


Columns = Mapping[str, Cells]
"""A table's columns."""


def read_cell(
    value: object, type: Reads | None = None, *, declared: Collection[str] = frozenset()
) -> tuple[float, str, bool]:
    """Return a cell's number, its label and whether it is blank.

    Args:
        value: the cell's value.
        type: the column's declared type, which alone decides; without one the cell is guessed.
        declared: strings that are values although they look like blanks, if there is no type.

    >>> read_cell(" 1.50 "), read_cell(7), read_cell("M"), read_cell("n/a")
    ((1.5, '1.5', False), (7.0, '7', False), (nan, 'M', False), (nan, '', True))
    """
    if type is not None:
        return type.read(value)
    if isinstance(value, bool | np.bool_):
        return math.nan, str(bool(value)), False
    if isinstance(value, int | float | np.number):
        try:
            number = float(value)
        except (OverflowError, TypeError):
            number = math.inf
        if math.isnan(number):
            return math.nan, "", True
        return (number, spelt(number), False) if math.isfinite(number) else (math.nan, "∞", False)
    text = text_of(value)
    if text.lower() in BLANK and text not in declared:
        return math.nan, "", True
    if _NUMBER.fullmatch(text) and math.isfinite(number := float(text)):
        return number, spelt(number), False
    return math.nan, shown(text), False


def text_of(value: object) -> str:
    """Return a cell as text, without blanks around it; "" for None and pandas' NA."""
    if isinstance(value, str):  # most cells: these need no pandas
        return value.strip()
    import pandas as pd

    return "" if value is None or value is pd.NA or value is pd.NaT else str(value).strip()


def shown(text: str) -> str:
    """Return the label of a text: at most 200 printable characters."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text[:_LONGEST])


def spelt(number: float) -> str:
    """Return the shortest spelling of a finite number.

    >>> spelt(7.0), spelt(0.5)
    ('7', '0.5')
    """
    if number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    return repr(number)


def read_cells(
    values: pd.Series[Any],
    type: Reads | None = None,
    *,
    declared: Collection[str] = frozenset(),
) -> Cells:
    """Read a column; ``type`` and ``declared`` as for :func:`read_cell`.

    >>> import pandas as pd
    >>> cells = read_cells(pd.Series(["1", "1.0", "", "x"], name="a"))
    >>> cells.names, cells.codes.tolist()
    (('1', 'x'), [0, 0, -1, 1])
    """
    import pandas as pd

    if (whole := _numeric(values, type)) is not None:
        return Cells(whole, type=type)
    if pd.api.types.infer_dtype(values, skipna=False) == "string":  # read each spelling once
        at, texts = pd.factorize(values, use_na_sentinel=False)
        if type is None and len(texts) > _MANY and (whole := _numbers_in(texts)) is not None:
            return Cells(whole[at])
        if len(texts) < len(values):
            found = read_cells(pd.Series(texts, dtype=object), type, declared=declared)
            return found.select(at)
    kept: dict[tuple[Any, Any], tuple[float, str, bool]] = {}
    each: list[tuple[float, str, bool]] = []
    for value in values.tolist():
        try:
            key = (value.__class__, value)
            one = kept.get(key)
            if one is None:
                one = kept[key] = read_cell(value, type, declared=declared)
        except TypeError:  # lists and dictionaries are not hashable
            one = read_cell(str(value), type, declared=declared)
        each.append(one)
    names = tuple(sorted({label for _, label, blank in each if not blank}))
    places = {name: place for place, name in enumerate(names)}
    codes = [-1 if blank else places[label] for _, label, blank in each]
    numbers = np.array([one[0] for one in each], dtype=np.float64)
    return Cells(numbers, names, np.array(codes, dtype=np.int64), type)


def _numeric(values: pd.Series[Any], type: Reads | None) -> NDArray[np.float64] | None:
    """Return a numeric column as :func:`read_cell` reads it, at once; None if it is none."""
    kind = values.dtype
    plain = isinstance(kind, np.dtype) and kind.kind in "iuf" and kind.itemsize <= 8
    if not plain or not (type is None or type.plain):
        return None
    numbers = np.array(values.to_numpy(), dtype=np.float64)
    if type is not None and type.whole:
        numbers[np.rint(numbers) != numbers] = np.nan
    return None if np.isinf(numbers).any() else numbers


def _numbers_in(values: Any) -> NDArray[np.float64] | None:
    """Return texts that are all finite numbers or empty as such; None if another one is there.

    Arrow's numbers are a part of those of :func:`read_cell`, with the same values.
    """
    try:
        import pyarrow
        from pyarrow import compute
    except ImportError:
        return None
    try:
        texts = pyarrow.array(values, type=pyarrow.large_string())
        filled = compute.if_else(compute.equal(texts, ""), None, texts)
        found = compute.cast(filled, pyarrow.float64())
    except (pyarrow.ArrowException, UnicodeEncodeError):
        return None
    numbers = found.to_numpy(zero_copy_only=False)
    lost = np.count_nonzero(~np.isfinite(numbers)) != found.null_count
    return None if lost else np.asarray(numbers, dtype=np.float64)


class LazyColumns(Mapping[str, Cells]):
    """A table's columns, each read when it is asked for, by its declared type if it has one."""

    def __init__(self, frame: pd.DataFrame, types: Mapping[str, Reads], drop: str) -> None:
        self._frame, self._types = frame, types
        self._names = [str(name) for name in frame if name != drop]
        self._read: dict[str, Cells] = {}

    def __getitem__(self, name: str) -> Cells:
        if name not in self._read:
            self._read[name] = read_cells(self._frame[name], self._types.get(name))
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read_columns(frame: pd.DataFrame, types: Mapping[str, Reads] | None = None) -> Columns:
    """Read a table whose column names are strings, columns of a declared type by it."""
    given = types or {}
    return {str(name): read_cells(frame[name], given.get(str(name))) for name in frame}

"""Cells of a raw table: how one is read depends on it and on its column's declaration alone.

:func:`read_cell` is the law for one cell, :func:`read_array` the same for an Arrow array. The type
of a pandas column depends on all cells; private estimates and releases must not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bdpvi.score.reading import ANY, BLANK, NUMBERS, OK, UNFIT, UNKNOWN, CellType
from bdpvi.score.reading import places_of as places_of
from bdpvi.score.reading import read_cell as read_cell
from bdpvi.score.spelling import BEYOND, SPACE, group, pattern, spell

if TYPE_CHECKING:
    import pandas as pd

_ANY = CellType()
_MASKED = ("IntegerArray", "FloatingArray", "BooleanArray")
_MANY = 1000
"""So many texts are read at once where they are numbers."""


class Cells:
    """A column's cells.

    Args:
        numbers: (N,) float64, NaN where a cell is not a finite number.
        names: distinct labels, sorted; 1 and 1.0 have the same label unless a type was declared. By
            default those in ``source``.
        codes: (N,) each cell's index in ``names``, -1 for a blank.
        type: the declared type by which they were read, if any.
        status: (N,) of each cell; by default blank if it has no label or, without names, no number.
        source: the Arrow array, (N,), whose labels are found when they are asked for; by default
            the numbers.
    """

    def __init__(
        self,
        numbers: NDArray[np.float64],
        names: tuple[str, ...] | None = None,
        codes: NDArray[np.int64] | None = None,
        type: Any = None,
        status: NDArray[np.uint8] | None = None,
        source: Any = None,
    ) -> None:
        self.numbers, self.type = numbers, type
        self._given = None if names is None or codes is None else (names, codes)
        self._status, self._source = status, source

    @cached_property
    def _labels_and_codes(self) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        if self._given is not None:
            return self._given
        import pyarrow

        source = pyarrow.array(self.numbers) if self._source is None else self._source
        found = _one_by_one(source, self.type or _ANY)
        return found.names, found.codes

    @property
    def names(self) -> tuple[str, ...]:
        """The distinct labels."""
        return self._labels_and_codes[0]

    @property
    def codes(self) -> NDArray[np.int64]:
        """Each cell's index in the labels, (N,)."""
        return self._labels_and_codes[1]

    @property
    def _unread(self) -> NDArray[np.bool_]:
        return np.isnan(self.numbers) if self._given is None else self._given[1] < 0

    @cached_property
    def status(self) -> NDArray[np.uint8]:
        """Whether each cell is OK, BLANK, UNFIT or UNKNOWN, (N,)."""
        return self._unread.astype(np.uint8) if self._status is None else self._status

    @property
    def blank(self) -> NDArray[np.bool_]:
        """Mask of the cells without a value: blank, or not of the declared type, (N,)."""
        return self._unread if self._status is None else np.isin(self._status, (BLANK, UNFIT))

    def count(self, status: int) -> int:
        """Return how many cells have a status. For the owner only."""
        return int(np.count_nonzero(self.status == status))

    @property
    def counts(self) -> dict[str, int]:
        """How many cells have each label, of those that occur."""
        found = np.bincount(self.codes[~self.blank], minlength=len(self.names)).tolist()
        return {name: count for name, count in zip(self.names, found, strict=True) if count}

    def select(self, rows: NDArray[Any] | slice) -> Cells:
        """Return some of the cells."""
        status = None if self._status is None else self._status[rows]
        if self._given is not None:
            names, codes = self._given
            return Cells(self.numbers[rows], names, codes[rows], self.type, status)
        source = self._source
        if source is not None:
            whole = isinstance(rows, slice)
            source = source[rows] if whole else source.take(np.arange(len(source))[rows])
        return Cells(self.numbers[rows], None, None, self.type, status, source)

    def __len__(self) -> int:
        return len(self.numbers)


Columns = Mapping[str, Cells]
"""A table's columns."""


def read_cells(
    values: pd.Series[Any],
    type: CellType | None = None,
    *,
    declared: Collection[str] = frozenset(),
) -> Cells:
    """Read a column; ``type`` and ``declared`` as for :func:`read_cell`.

    >>> import pandas as pd
    >>> cells = read_cells(pd.Series(["1", "1.0", "", "x"], name="a"))
    >>> cells.names, cells.codes.tolist(), cells.count(BLANK)
    (('1', 'x'), [0, 0, -1, 1], 1)
    """
    return read_array(array_of(values), type, declared=declared)


def read_array(
    array: Any, type: CellType | None = None, *, declared: Collection[str] = frozenset()
) -> Cells:
    """Read an Arrow array, each cell as :func:`read_cell` reads it."""
    from pyarrow import types

    chosen, result = type or _ANY, None
    if chosen.kind in ("number", "integer", ANY):
        if types.is_integer(array.type) or str(array.type) in ("float", "double"):
            numbers = np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.float64)
            result = _of_numbers(numbers, array, chosen)
        elif _is_text(array.type) and not (declared or chosen.symbol):
            result = _of_texts(array, chosen)
    result = result or _one_by_one(array, chosen, declared)
    result.type = type
    return result


def array_of(values: pd.Series[Any]) -> Any:
    """Return a column as an Arrow array; cells of several types as their canonical text."""
    import pandas as pd
    import pyarrow

    kind = values.dtype
    if isinstance(kind, pd.CategoricalDtype):
        codes = values.cat.codes.to_numpy()
        levels = array_of(pd.Series(kind.categories))
        return pyarrow.DictionaryArray.from_arrays(pyarrow.array(codes, mask=codes < 0), levels)
    try:
        if isinstance(kind, np.dtype) and kind.kind in "biufMm":
            return pyarrow.array(values.to_numpy())
        if isinstance(kind, np.dtype) and kind.kind == "O":
            cells = values.to_numpy()
            if {*map(type, cells)} - {type(None)} in ({int}, {float}):
                return pyarrow.array(cells)
            return pyarrow.array(cells, pyarrow.large_string(), from_pandas=True)
        known = isinstance(kind, pd.StringDtype | pd.ArrowDtype | pd.DatetimeTZDtype)
        if known or type(values.array).__name__ in _MASKED:
            return _whole(pyarrow.array(values.array))
    except (pyarrow.ArrowException, UnicodeError, TypeError, ValueError, OverflowError):
        pass  # cells that one type of Arrow cannot hold
    return pyarrow.array([spell(one) for one in values.tolist()], pyarrow.large_string())


def _whole(array: Any) -> Any:
    """Return an array in one piece, without an extension's type, and texts of one type."""
    import pyarrow

    if isinstance(array, pyarrow.ChunkedArray):
        one = array.num_chunks == 1
        array = array.chunk(0) if one else array.unify_dictionaries().combine_chunks()
    if isinstance(array, pyarrow.ExtensionArray):
        array = array.storage
    return array


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string")


def spell_array(array: Any) -> Any:
    """Return the canonical texts of an Arrow array, each as :func:`spell` gives it."""
    import pyarrow

    texts, at = coded(array)
    return texts.take(pyarrow.array(at, mask=at < 0))


def coded(array: Any) -> tuple[Any, NDArray[np.integer[Any]]]:
    """Return some canonical texts, an Arrow array, and each cell's index there, -1 for a null.

    Arrow's arrays have one type, so equal cells have one text, which is spelt once.
    """
    import pyarrow
    from pyarrow import compute

    array = _whole(array)
    try:
        found = array.dictionary_encode()
    except pyarrow.ArrowException:  # nested cells, and the rarer types
        found = pyarrow.array(list(map(spell, _cells(array))), pyarrow.large_string())
        found = found.dictionary_encode()
    at, levels = found.indices, found.dictionary
    if at.null_count:
        at = compute.fill_null(at.cast(pyarrow.int64()), -1)
    if not _is_text(levels.type):
        levels = pyarrow.array(list(map(spell, _cells(levels))), pyarrow.large_string())
    elif levels.type != pyarrow.large_string():
        levels = levels.cast(pyarrow.large_string())
    return compute.utf8_trim(levels, SPACE), at.to_numpy()


def _cells(array: Any) -> list[Any]:
    def one(scalar: Any) -> object:
        try:
            return scalar.as_py()
        except (ValueError, OverflowError):
            return BEYOND

    try:
        return array.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError):
        return list(map(one, array))


def _one_by_one(array: Any, chosen: CellType, declared: Collection[str] = frozenset()) -> Cells:
    """Read each text of an array once, and at last a blank, for the index -1."""
    texts, at = coded(array)
    each = [chosen.of_text(one, declared) for one in (*texts.to_pylist(), None)]
    names = tuple(sorted({label for _, label, status in each if status in (OK, UNKNOWN)}))
    places = {name: place for place, name in enumerate(names)} | {"": -1}
    codes = np.array([places[one[1]] for one in each], dtype=np.int64)[at]
    numbers = np.array([one[0] for one in each])
    numbers = np.full(len(at), np.nan) if np.isnan(numbers).all() else numbers[at]
    plain = all(one[2] in (OK, BLANK) for one in each)
    status = None if plain else np.array([one[2] for one in each], dtype=np.uint8)[at]
    return Cells(numbers, names, codes, status=status)


def _of_numbers(numbers: NDArray[np.float64], source: Any, chosen: CellType) -> Cells | None:
    """Return the cells of typed numbers, NaN for a blank; None if one has to be spelt."""
    import pyarrow

    codes, status = chosen.codes, None
    whole = pyarrow.types.is_integer(source.type)
    if any(abs(code) >= 2.0**53 for code in codes) or not (whole or not np.isinf(numbers).any()):
        return None
    odd = np.rint(numbers) != numbers if chosen.kind == "integer" else np.zeros(1, dtype=bool)
    if codes or odd.any():  # so is NaN
        status = np.where(np.isnan(numbers), BLANK, np.where(odd, UNFIT, OK)).astype(np.uint8)
        status[np.isin(numbers, codes)] = BLANK
        numbers = np.where(status == OK, numbers, np.nan)  # the given ones may be the owner's
    return Cells(numbers, status=status, source=source)


def _of_texts(array: Any, chosen: CellType) -> Cells | None:
    """Read those of many texts that are numbers at once; None if few differ."""
    from pyarrow import compute

    some = array.take(np.arange(0, len(array), len(array) // 200 + 1))
    if len(array) < _MANY or 2 * compute.count_distinct(some).as_py() < len(some):
        return None
    numbers = numbers_of(array, *chosen.signs)
    rest = np.flatnonzero(~np.isfinite(numbers))
    numbers[rest] = np.nan
    result = _of_numbers(numbers, array, chosen)
    if result is not None and len(rest):
        others = _one_by_one(array.take(rest), chosen)
        numbers, status = result.numbers, result.status.copy()
        numbers[rest], status[rest] = others.numbers, others.status
        return Cells(numbers, status=status, source=array)
    return result


def numbers_of(array: Any, decimal: str, thousands: str) -> NDArray[np.float64]:
    """Return the numbers that an Arrow array's texts are, NaN where one is none, (N,)."""
    import pyarrow
    from pyarrow import compute

    fits = compute.match_substring_regex(array, rf"\A(?:{pattern(decimal, thousands).pattern})\z")
    plain = compute.if_else(fits, array, None)
    if thousands:
        plain = compute.replace_substring_regex(plain, group(thousands), "")
    if decimal != ".":
        plain = compute.replace_substring(plain, decimal, ".")
    if compute.any(compute.starts_with(plain, "+")).as_py():
        plain = compute.utf8_ltrim(plain, "+")
    return np.array(compute.cast(plain, pyarrow.float64()).to_numpy(zero_copy_only=False))


class LazyColumns(Mapping[str, Cells]):
    """A table's columns, each read when it is asked for, by its declared type if it has one."""

    def __init__(self, frame: pd.DataFrame, types: Mapping[str, CellType], drop: str) -> None:
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


def read_columns(frame: pd.DataFrame, types: Mapping[str, CellType] | None = None) -> Columns:
    """Read a table whose column names are strings, columns of a declared type by it."""
    given = types or {}
    return {str(name): read_cells(frame[name], given.get(str(name))) for name in frame}


def series_of(values: pd.Series[Any], type: CellType | None) -> pd.Series[Any]:
    """Return a column as its type reads it: numbers, or names with None for a blank.

    >>> import pandas as pd
    >>> series_of(pd.Series(["1,5", "?"]), CellType(kind="number", decimal=",")).tolist()
    [1.5, nan]
    """
    import pandas as pd

    if type is None:
        return values
    cells = read_cells(values, type)
    given: dict[str, Any] = {"index": values.index, "name": values.name}
    unread = np.isnan(cells.numbers) & ~cells.blank
    if type.kind in NUMBERS or (type.kind == ANY and not unread.any()):
        return pd.Series(cells.numbers, dtype=np.float64, **given)
    names = np.array([*cells.names, None], dtype=object)
    return pd.Series(names[cells.codes], dtype=object, **given)

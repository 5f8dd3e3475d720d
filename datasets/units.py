"""Limits the number of rows used for each person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi._ground.types import Unit, tell_owner
from bdpvi.datasets.cells import read_cell
from bdpvi.datasets.items import by_index, of_arrow
from bdpvi.datasets.origin import declarations
from bdpvi.datasets.records import NAMELESS, People
from bdpvi.datasets.types import ColumnType
from bdpvi.score.spelling import BLANKS, EXACT, INEXACT, printable_label, spell

ONE_ROW = "one row each"
"""The declaration that no person has several rows."""


def check_dtype(frame: pd.DataFrame, unit: str) -> None:
    """Refuse a column of persons with decimal points, by its dtype alone: no row is read.

    Only a guess from the rows makes identifiers such numbers, and one row would then change those
    of others: from 2⁵³ on, several become one.

    Raises:
        ValueError: naming the column and remedies.

    >>> check_dtype(pd.DataFrame({"who": pd.Series([7, None], dtype="Int64")}), "who")
    """
    for dtype in frame.dtypes[frame.columns == unit]:
        if dtype.kind in "fc":
            raise ValueError(
                f"unit={unit!r} has dtype {dtype}, which names nobody exactly: read the column as "
                f"text, such as by pandas.read_csv(..., dtype={{{unit!r}: str}}), or make it whole "
                f"numbers by astype({{{unit!r}: 'Int64'}})"
            )


def without_unit(header: Sequence[str], unit: str) -> list[str]:
    """Return a header without the column that identifies persons.

    Raises:
        ValueError: unless there is exactly one such column.
    """
    validate.columns("unit", [unit], header)
    return [name for name in header if name != unit]


def persons_of(values: pd.Series[Any], type: ColumnType | None = None) -> pd.Series[Any]:
    """Return the person of every row, (N,), as text; "" for nobody.

    A text is compared as written, but for blanks around it: "007", "7" and "7.0" are three persons.
    Numbers are compared exactly: 7 and 7.0 are one. With a declared type the cell's label counts,
    so that an integer 007 is 7.

    ε is for all rows of one name, and neither mistake is safe for a person. One with s spellings
    counts as s persons and has up to sε. Two persons under one name share the most rows of one:
    without the one, rows of the other may take their places, and either has up to 2ε. So nothing is
    guessed from a text's looks; where one person is spelt in several ways, a type says so.

    Args:
        values: the column that identifies persons.
        type: its declared type.

    >>> persons_of(pd.Series(["007", "7", " 7", "7.0", "?"])).tolist()
    ['007', '7', '7', '7.0', '']
    >>> persons_of(pd.Series([7, 7.0, None, 10**16 + 1], dtype=object)).tolist()
    ['7', '7', '', '10000000000000001']
    """
    return values.astype(object).map(lambda value: _person(value, type))  # or floats, in pandas 2


def _person(value: object, type: ColumnType | None) -> str:
    text = spell(value) or ""
    written = text if isinstance(value, str) else text.lstrip(EXACT + INEXACT)
    if type is None:
        return "" if written.lower() in BLANKS else written
    label = read_cell(value, type)[1]
    return (
        written if label and printable_label(written) != written else label
    )  # merged if not printable


def at_most(
    frame: pd.DataFrame, unit: str, rows: int, tell: bool = True, type: ColumnType | None = None
) -> pd.DataFrame:
    """Return the first ``rows`` rows of every person; rows without a person are left out.

    The choice for one person does not depend on others. The owner is told how many are left out.

    Args:
        frame: a table with strings as column names.
        unit: the column that identifies persons.
        rows: largest number of rows kept for each.
        tell: whether to tell the owner.
        type: declared type of the column; see :func:`persons_of`.

    Raises:
        ValueError: unless there is exactly one such column.

    >>> frame = pd.DataFrame({"who": ["ada", "bob", "ada", None], "age": [1, 2, 3, 4]})
    >>> at_most(frame, "who", 1)["age"].tolist()
    [1, 2]
    """
    validate.positive_int("rows_per_unit", rows)
    without_unit(list(frame.columns), unit)
    check_dtype(frame, unit)
    kept = _first(persons_of(frame[unit], type), rows)
    if tell:
        _tell(int((~kept).sum()), unit, rows)
    return frame[kept.to_numpy()]


def _first(names: pd.Series[str], rows: int) -> pd.Series[bool]:
    """Return which rows are among the first ``rows`` of their person, (N,)."""
    return (names != "") & (names.groupby(names).cumcount() < rows)


def _tell(count: int, unit: str, rows: int) -> None:
    """Tell the owner how many rows :func:`at_most` leaves out."""
    why = f"no person, or one with more than {several(rows, 'row')} (unit={unit!r})"
    tell_owner(count, "row", why, stacklevel=4)


Persons = tuple[list[NDArray[np.uint64]], int]
"""Hashes of the persons of parts of a table, once for each part; and the number of rows that are
not used. A sum is those of both."""


@dataclass(frozen=True)
class RowLimit:
    """The rows that are used of a table in which persons have several: the first ones of each.

    Attributes:
        unit: the column that identifies persons.
        rows: largest number of rows kept for each.
        type: declared type of the column; see :func:`persons_of`.
    """

    unit: str
    rows: int
    type: ColumnType | None = None

    def of(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return these rows of a table, without the column; no other rows may be theirs."""
        kept = at_most(frame, self.unit, self.rows, tell=False, type=self.type)
        return kept.drop(columns=self.unit)

    def check(self, persons: Persons) -> None:
        """Refuse a table of which two blocks would each keep rows of one person.

        The owner is told how many rows are left out.

        Raises:
            ValueError: naming the unit. It is for the owner: it says something of the rows.
        """
        hashes, left_out = persons
        ordered = np.sort(np.concatenate(hashes))
        if (ordered[1:] == ordered[:-1]).any():
            raise ValueError(
                f"unit={self.unit!r}: rows of one person lie in several blocks; "
                f"`bdpvi partition TABLE --by {self.unit} --out FOLDER` writes a table in which "
                "they do not"
            )
        _tell(left_out, self.unit, self.rows)

    def persons(self, frame: pd.DataFrame) -> Persons:
        """Return the persons in some rows.

        Raises:
            ValueError: as :func:`check_dtype` does.
        """
        check_dtype(frame, self.unit)
        names = persons_of(frame[self.unit], self.type)
        left_out = len(names) - int(_first(names, self.rows).sum())
        return [np.unique(hashes_of(names[names != ""]))], left_out


def hashes_of(persons: pd.Series[Any]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of every person's text, (N,); equal hashes of two persons are unlikely.

    Among 10⁸ persons two have one with a probability of 0.03 %.

    >>> hashes_of(pd.Series(["ada", "bob", "ada"])).tolist()
    [3276265932727556709, 16374657433658891730, 3276265932727556709]
    """
    names = persons.to_numpy(dtype=object)
    return np.asarray(pd.util.hash_array(names, categorize=False), dtype=np.uint64)


def of_people(data: Any, unit: Any, rows: int = 1) -> tuple[Any, People | None, dict[str, str]]:
    """Return the first rows of each person of records as callers give them.

    Args:
        data: a mapping or a frame, a tuple of what has a row for each record, or records by index.
        unit: a :class:`~bdpvi._ground.types.Unit`, or the persons, one for each row, or the name of
            their column in a mapping or a frame, where they are then no longer.
        rows: the most rows of a person, unless ``unit`` says it.

    Returns:
        The records, their people, None without persons, and what is declared.

    Raises:
        ValueError: if there is no such column, or there are more or fewer persons than rows, or
            what names them names nobody exactly.

    >>> visits = {"x": torch.arange(4.0), "who": ["ada", "bob", "ada", None]}
    >>> found, people, _ = of_people(visits, "who")
    >>> found["x"].tolist(), people.unit, people.rows_per_unit
    ([0.0, 1.0], 'who', 1)
    """
    if isinstance(unit, Unit) and rows != 1:
        raise ValueError(f"rows_per_unit={rows}: unit says it already: {unit.rows}")
    asked = unit if isinstance(unit, Unit) else Unit("" if unit is None else unit, rows)
    if asked.other_people:
        raise ValueError("unit: other_people=True is for tables with accounts; leave it out")
    if asked.one_row:
        return data, None, declarations(persons=ONE_ROW)
    data, persons = _persons_given(data, asked.column)
    name = str(persons.name or NAMELESS)
    name = NAMELESS if name == "row" else name  # which stands for single rows in a ledger
    validate.same_length("unit", persons, "data", range(_length(data)))
    kept = np.array(at_most(persons.to_frame(name), name, asked.rows).index)
    return _rows(data, kept), People(unit=name, rows_per_unit=asked.rows), {}


def _persons_given(data: Any, unit: Any) -> tuple[Any, pd.Series[Any]]:
    """Return records without the persons' column, and the persons, (N,)."""
    if isinstance(unit, str):
        data, unit = _without(data, unit)
    values = of_arrow(unit)
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    shape = np.shape(values)
    if len(shape) != 1:
        raise ValueError(f"unit must have the person of each row, (N,), got the shape {shape}")
    return data, pd.Series(values).reset_index(drop=True)


def _without(data: Any, name: str) -> tuple[Any, Any]:
    """Return records without a column, and the column."""
    if isinstance(data, tuple):
        parts = [of_arrow(one) for one in data]
        for at, one in enumerate(parts):
            if name in _columns(one):
                parts[at], found = _without(one, name)
                return tuple(parts), found
    else:
        data = of_arrow(data)
    validate.columns("unit", [name], [*_columns(data)])
    if hasattr(data, "iloc"):
        return data.drop(columns=name), data[name]
    found = pd.Series(np.asarray(data[name]), name=name)
    return {key: one for key, one in data.items() if key != name}, found


def _columns(data: Any) -> Sequence[str]:
    return [*data] if isinstance(data, Mapping) or hasattr(data, "columns") else []


def _length(data: Any) -> int:
    """Return the number of records as callers give them."""
    if isinstance(data, Mapping | tuple):
        parts = data.values() if isinstance(data, Mapping) else data
        return len(next(iter(parts)))
    return len(data)


def _rows(data: Any, kept: NDArray[Any]) -> Any:
    """Return the records at these positions."""
    if isinstance(data, Mapping):
        return {name: _rows(one, kept) for name, one in data.items()}
    if isinstance(data, tuple):
        return tuple(_rows(one, kept) for one in data)
    data = of_arrow(data)
    if data is None or hasattr(data, "iloc"):
        return data if data is None else data.iloc[kept]
    if isinstance(data, Tensor):
        return data[torch.from_numpy(kept).to(data.device)]
    if hasattr(data, "select"):  # a Dataset
        return data.select(torch.from_numpy(kept))
    if by_index(data):
        return torch.utils.data.Subset(data, kept.tolist())
    return np.asarray(data)[kept]

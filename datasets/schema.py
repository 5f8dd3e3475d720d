"""A schema: public bounds, levels and types of a table's columns, and the codes they define.

A schema is fixed before the rows are seen; see :mod:`bdpvi.datasets.grid`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bdpvi._ground import schema, store
from bdpvi.datasets.cells import read_cells
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.grid import Codes, Unfit, decode, encode
from bdpvi.datasets.measuring import MOST_CATEGORIES, called_identifier, objection
from bdpvi.datasets.types import (
    ANY,
    BOOLEAN,
    DTYPE,
    ESTIMATED,
    MOST_LEVELS,
    ROWS,
    TIMES,
    UNUSED,
    ColumnType,
)

_CODE, _TRUTH = ColumnType(kind="code"), ColumnType(kind="boolean")
_NAMES = ColumnType(kind="category")


@dataclass(frozen=True)
class Schema:
    """The types of a table's columns, all public, in the order of writing.

    Attributes:
        columns: types by name; those with levels or bounds need no private estimates.
        source: where the bounds and levels come from, in words.
        left_out: columns of the table not in the schema, each with the reason, for the owner.

    Raises:
        ValueError: if there is no column, a name is blank, or a column is also left out.

    >>> people = Schema({"age": ColumnType(kind="integer", low=0, high=110)}, "Questionnaire 2021")
    >>> people.marked
    ()
    """

    columns: Mapping[str, ColumnType]
    source: str
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError("columns must have at least one entry")
        for name in self.columns:
            if name != name.strip() or not name:
                raise ValueError(f"columns has the name {name!r}: blank, or with blanks around it")
        if both := sorted({*self.columns} & {*self.left_out}):
            raise ValueError(f"left_out has {both[0]!r}, which is among the columns too")

    @property
    def bounded(self) -> dict[str, ColumnType]:
        """The columns with levels or bounds."""
        return {name: one for name, one in self.columns.items() if one.bounded}

    @property
    def read_by(self) -> dict[str, ColumnType]:
        """The types by which cells are read, of the columns in which they are not guessed."""
        found = {name: one.reading for name, one in self.columns.items()}
        return {name: one for name, one in found.items() if one is not None}

    @property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """The kinds of columns, in words: those declared by types, and those by dtypes."""
        found: dict[str, tuple[str, ...]] = {"types": (), "dtypes": ()}
        for name, one in self.columns.items():
            if one.kind != ANY:
                found["dtypes" if one.origin == DTYPE else "types"] += (f"{name} ({one.kind})",)
        return found

    def of_header(self, header: Sequence[str]) -> dict[str, ColumnType]:
        """Return the types of a table's columns; only identifiers and text may be gone from it.

        Raises:
            ValueError: naming a column of the schema that the table lacks.
        """
        for name, one in self.read_by.items():
            if one.kind not in (*UNUSED, ANY) and name not in header:
                raise ValueError(
                    f"types: its column {name!r} must be in the table once, there are 0"
                )
        return self.read_by

    def of_unit(self, unit: str) -> tuple[ColumnType | None, Schema | None]:
        """Return the declared type of the column of persons, and the schema without it."""
        type = self.columns.get(unit)
        columns = {name: one for name, one in self.columns.items() if name != unit}
        rest = replace(self, columns=columns) if columns else None
        return None if type is None or type.kind == ANY else type, rest

    @property
    def marked(self) -> tuple[str, ...]:
        """Columns whose levels or bounds were read from the rows."""
        return tuple(name for name, one in self.bounded.items() if one.origin == ROWS)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Schema:
        """Read a JSON file such as {"source": "…", "columns": {"age": {"low": 0, "high": 110}}}.

        An entry has the fields of :class:`ColumnType`, such as {"kind": "code"} or {"kind":
        "number", "decimal": ",", "step": 0.01, "low": 0, "high": 1000}; bounds of dates may be
        days. The short form of :func:`bdpvi.datasets.constants_of` is accepted too:
        {"source": "…", "age": [0, 110], "sex": ["F", "M"]}. So is the file of a synthetic table,
        by whose schema the files of its rows are read.

        Raises:
            ValueError: naming the file and the field that is missing, unknown or wrong.
            OSError: if it cannot be read.
        """
        try:
            content = schema.parsed(store.read_shared(Path(path)))
            released = "receipt" in content and isinstance(content.get("schema"), Mapping)
            given = of_today(content["schema"] if released else content)
            found = schema.from_json(cls, given, partial=True)
            return found.of_rows() if released else found
        except ValueError as error:
            raise ValueError(f"{path} is not a schema: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file that :meth:`load` reads.

        Raises:
            ValueError: if the path exists.
        """
        if not store.nothing_at(Path(path)):
            raise ValueError(f"path={str(path)!r} exists already; choose another")
        store.write(Path(path), store.json_text(schema.to_json(self), indent=1).encode())

    def of_rows(self) -> Schema:
        """Return the schema that reads a file of rows that :meth:`decode` made: 1.5 is not 1,5."""
        columns = {
            name: replace(one, decimal=None, thousands=None, missing={}, blank=None)
            if one.bounds is not None
            else one
            for name, one in self.columns.items()
        }
        return replace(self, columns=columns)

    def check(self, header: Sequence[str]) -> None:
        """Raise ValueError unless a table with this header has every column exactly once."""
        for name in self.columns:
            if (found := header.count(name)) != 1:
                raise ValueError(
                    f"schema: its column {name!r} must be in the table once, there are {found}"
                )

    def encode(self, frame: pd.DataFrame) -> tuple[Codes, dict[str, Unfit]]:
        """Return the codes of a table, (N, d), and by column how many values are invalid.

        Raises:
            ValueError: because of the header only: a column is missing, repeated or unknown.
        """
        names = [str(name).strip() for name in frame.columns]
        self.check(names)
        columns = self.bounded
        if more := [name for name in names if name not in columns]:
            raise ValueError(
                f"schema lacks the columns {more}: declare them there, or drop them from the table"
            )
        codes, unfit = np.empty((len(frame), len(columns)), dtype=np.int64), {}
        for at, (name, one) in enumerate(columns.items()):
            codes[:, at], unfit[name] = encode(one, frame.iloc[:, names.index(name)])
        return codes, unfit

    def decode(self, codes: Codes, random: np.random.Generator) -> pd.DataFrame:
        """Return a table with the values of codes, (N, d)."""
        pairs = enumerate(self.columns.items())
        return pd.DataFrame({name: decode(one, codes[:, at], random) for at, (name, one) in pairs})


def measured(
    frame: pd.DataFrame,
    source: str,
    levels: Sequence[str] = (),
    file: FileFormat | None = None,
) -> Schema:
    """Return a draft from a table: observed bounds and levels, marked as read from the rows.

    Identifiers, dates and free text are left out, by the rules of
    :func:`bdpvi.datasets.measuring.objection`.

    Args:
        frame: the table.
        source: source of the schema, in words.
        levels: columns whose values are names, even if they are numeric or numerous; those of text
            with leading zeros are codes.
        file: how the file was written, from which the table is, as text.

    Raises:
        ValueError: if no column remains.

    >>> people = pd.DataFrame({"age": [18, 93], "sex": ["F", "M"], "born": ["1.2.99", "3.4.01"]})
    >>> draft = measured(people, "draft")
    >>> draft.columns["age"].high, draft.columns["sex"].levels, draft.marked
    (100.0, ('F', 'M'), ('age', 'sex'))
    >>> draft.left_out
    {'born': "column 'born' is dates; make them numbers, such as days or years (here '1.2.99')"}
    """
    columns, left_out = {}, {}
    for name in map(str, frame):
        drafted = _drafted(frame[name], name in levels, file or FileFormat())
        if isinstance(drafted, str):
            left_out[name] = drafted
        else:
            columns[name] = drafted
    if not columns:
        raise ValueError("no column is left for a schema: " + "; ".join(left_out.values()))
    return Schema(columns, source, left_out)


def _drafted(values: pd.Series[Any], named: bool, file: FileFormat) -> ColumnType | str:
    """Return a column's observed type, or why it is left out."""
    name = str(values.name)
    if (born := _dates(values, file)) is not None:
        return born
    guess = None if file.plain else ColumnType().in_file(*file.signs)
    cells = read_cells(values, guess)
    there = cells.numbers[np.isfinite(cells.numbers)]
    number = not named and 2 * len(there) > (~cells.blank).sum()
    written = _NAMES if named else None
    if (named or number) and _coded(values):
        written = _CODE
    if written is not None:
        number, cells = False, read_cells(values, written)
    whole = bool((there == np.round(there)).all())
    if number:
        small = whole and np.abs(there).max() < 2**53
        seen = pd.Series(there.astype(np.int64) if small else there, name=name)
    else:
        texts = np.array(cells.names, dtype=object)[cells.codes[~cells.blank]]
        seen = pd.Series(texts, name=name, dtype=object)
    if found := objection(seen, written is not None, MOST_LEVELS if named else MOST_CATEGORIES):
        return found.reason
    if called_identifier(name) and not named:
        return f"column {name!r} is called an identifier"
    if number:
        low, high = 0.0 - _outwards(-there.min()), _outwards(there.max())
        return replace(_numbers(there, whole, guess), low=low, high=high, origin=ROWS)
    kind = _TRUTH if {*cells.names} == {*BOOLEAN} else written or ColumnType()
    return replace(kind, levels=cells.names or ("yes",), origin=ROWS)


def _dates(values: pd.Series[Any], file: FileFormat) -> ColumnType | None:
    """Return the observed days of a column, if a date format was given and most are dates."""
    if not file.date_format:
        return None
    kind = ColumnType(kind="date", date_format=file.date_format)
    cells = read_cells(values, kind)
    days = cells.numbers[~cells.blank]
    if 2 * len(days) <= (~read_cells(values).blank).sum() or not len(days):
        return None
    low, high = float(days.min()), float(days.max())
    return replace(kind, low=low, high=high, origin=ROWS)


def _coded(values: pd.Series[Any]) -> bool:
    """Return whether text has numbers with leading zeros, as codes do."""
    return bool(values.astype(str).str.strip().str.fullmatch(r"0\d+").any())


def _numbers(numbers: NDArray[np.float64], whole: bool, guess: ColumnType | None) -> ColumnType:
    """Return the kind of a column of numbers, with the unit of its last digit if that is short."""
    digits = next((n for n in range(1, 4) if (np.round(numbers, n) == numbers).all()), None)
    if guess is None and (whole or digits is None):
        return ColumnType(whole=whole)
    step = None if whole or digits is None else float(f"1e-{digits}")
    return replace(guess or ColumnType(), kind="integer" if whole else "number", step=step)


def _in_file(name: str, type: ColumnType, file: FileFormat) -> ColumnType:
    """Return a column's type with the file's signs."""
    try:
        return type.in_file(*file.signs)
    except ValueError as error:
        raise ValueError(f"types: column {name!r}: {error}") from error


def in_file(schema: Schema | None, header: Sequence[str], file: FileFormat) -> Schema | None:
    """Return the types of a file's columns: declared ones, with the file's signs and date format.

    Columns without a type are numbers or names, whichever a cell is by these signs, unless numbers
    are written in the usual way.
    """
    given = {} if schema is None else schema.columns
    columns = {name: _in_file(name, one, file) for name, one in given.items()}
    out = {} if schema is None else schema.left_out
    if not file.plain:
        guess = ColumnType().in_file(*file.signs)
        others = [name.strip() for name in header if name.strip() not in (*columns, *out)]
        columns |= {name: guess for name in others if name}
    return Schema(columns, "" if schema is None else schema.source, out) if columns else None


def of_today(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a schema's file with entries in the long form of this version.

    Earlier versions had types inside of levels and bounds, and beside the columns.
    """
    given = dict(content)
    if not isinstance(given.get("columns"), Mapping):
        source = given.pop("source", None)
        given = {"columns": given} | ({} if source is None else {"source": source})
    types = given.pop("types", {})
    if not isinstance(types, Mapping) or {*types} & {*given["columns"]}:
        raise ValueError(f"types must be of other columns, got {types!r:.80}")
    columns = {**given["columns"], **types}
    return given | {"columns": {name: _entry(name, one) for name, one in columns.items()}}


def type_of(given: Any, name: str) -> ColumnType:
    """Return the type that a column's entry in a file describes.

    >>> type_of({"kind": "date", "low": "1970-01-02", "high": "1970-02-01"}, "born").high
    31.0
    >>> type_of({"low": 0, "high": 9, "integer": True, "from_data": True}, "age").origin
    'rows'
    """
    return schema.from_json(ColumnType, _entry(name, given), f"columns.{name}")


def _entry(name: str, given: Any) -> Any:
    """Return a column's entry in the long form."""
    if isinstance(given, list):
        if len(given) == 2 and all(type(one) in (int, float) for one in given):
            given = {"low": given[0], "high": given[1]}
        else:
            given = {"levels": [str(one) if isinstance(one, bool) else one for one in given]}
    if not isinstance(given, Mapping):
        return given
    found = {key: one for key, one in given.items() if one is not None}
    if isinstance(found.get("type"), Mapping):
        found = {**found.pop("type"), **found}
    found = {"kind": ANY} | found
    whole = found.pop("integer", False)
    if whole and found["kind"] not in ("integer", "date"):
        found["whole"] = whole
    for mark, origin in (("bought", ESTIMATED), ("from_data", ROWS)):
        if found.pop(mark, False):
            found["origin"] = origin
    for bound in ("low", "high"):
        if found["kind"] in TIMES and isinstance(found.get(bound), str):
            parts = {one: found[one] for one in ("kind", "since", "zone") if one in found}
            kind = schema.from_json(ColumnType, parts, f"columns.{name}")
            one, _, status = kind.of_text(found[bound])
            if status:
                raise ValueError(f"columns.{name}: {bound}={found[bound]!r} must be a day")
            found[bound] = one
    return found


def _outwards(bound: float) -> float:
    """Return a bound rounded away from 0 to one significant digit; 0 stays 0."""
    if bound == 0:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(abs(bound)))
    unit = unit if unit >= 1 else 1 / 10.0 ** -math.floor(math.log10(abs(bound)))
    return math.ceil(bound / unit) * unit

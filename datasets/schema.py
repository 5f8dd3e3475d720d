"""A schema: public bounds, levels and types of a table's columns, and the codes they define.

A schema is fixed before the rows are seen; see :mod:`bdpvi.datasets.grid`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bdpvi._ground import schema, store
from bdpvi.datasets.columns import with_text_names
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.grid import Codes, Unfit, decode, encode
from bdpvi.datasets.types import DTYPE, ESTIMATED, ROWS, ColumnType
from bdpvi.score.reading import ANY, TIMES, UNUSED
from bdpvi.score.spelling import spell

DTYPES = "levels declared by the data frame's dtypes"
"""Source of a schema; a dtype is public, and no row is read."""


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
    >>> people.from_rows
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
        result: dict[str, tuple[str, ...]] = {"types": (), "dtypes": ()}
        for name, one in self.columns.items():
            if one.kind != ANY:
                result["dtypes" if one.origin == DTYPE else "types"] += (f"{name} ({one.kind})",)
        return result

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
    def from_rows(self) -> tuple[str, ...]:
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
            return of_content(schema.parsed(store.read_shared(Path(path))))
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


def of_content(content: Mapping[str, Any]) -> Schema:
    """Return the schema in the content of a file, as :meth:`Schema.load` does."""
    released = "receipt" in content and isinstance(content.get("schema"), Mapping)
    given = of_today(content["schema"] if released else content)
    found = schema.from_json(Schema, given, partial=True)
    return found.of_rows() if released else found


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
    result = {key: one for key, one in given.items() if one is not None}
    if isinstance(result.get("type"), Mapping):
        result = {**result.pop("type"), **result}
    result = {"kind": ANY} | result
    whole = result.pop("integer", False)
    if whole and result["kind"] not in ("integer", "date"):
        result["whole"] = whole
    for mark, origin in (("bought", ESTIMATED), ("from_data", ROWS)):
        if result.pop(mark, False):
            result["origin"] = origin
    for bound in ("low", "high"):
        if result["kind"] in TIMES and isinstance(result.get(bound), str):
            parts = {one: result[one] for one in ("kind", "since", "zone") if one in result}
            kind = schema.from_json(ColumnType, parts, f"columns.{name}")
            one, _, status = kind.of_text(result[bound])
            if status:
                raise ValueError(f"columns.{name}: {bound}={result[bound]!r} must be a day")
            result[bound] = one
    return result


def declared_by(frame: pd.DataFrame, types: Schema | None = None) -> Schema | None:
    """Return the types of a data frame's columns; None if all are numbers without a type.

    A category has the levels of its dtype, a Boolean those of every Boolean. A number has no type.

    Args:
        frame: the table; only its header and dtypes are read.
        types: declared types of some columns, which precede the dtypes.

    Raises:
        ValueError: naming a column of another dtype without a declared type, or of invalid levels.

    >>> sexes = pd.Series(["F", None], dtype=pd.CategoricalDtype(["F", "M"]))
    >>> declared_by(pd.DataFrame({"age": [1, 2], "sex": sexes})).columns["sex"].levels
    ('F', 'M')
    """
    named = with_text_names(frame)
    known = {} if types is None else types.columns
    if types is not None:
        types.of_header(list(named.columns))
    found = {
        name: one
        for name, dtype in zip(map(str, named.columns), named.dtypes, strict=True)
        if name not in known and (one := _type(name, dtype)) is not None
    }
    if types is None:
        return Schema(found, DTYPES) if found else None
    if not found:
        return types
    return Schema({**known, **found}, f"{types.source}; {DTYPES}")


def _type(name: str, dtype: Any) -> ColumnType | None:
    """Return the levels that a dtype declares; None for numbers."""
    if isinstance(dtype, pd.CategoricalDtype):
        levels = tuple(map(_level, dtype.categories))
        try:
            kind = "ordered" if dtype.ordered else "category"
            return ColumnType(kind=kind, levels=levels, origin=DTYPE)
        except ValueError as error:
            raise ValueError(f"column {name!r}, of dtype category: {error}") from error
    if pd.api.types.is_bool_dtype(dtype):
        return ColumnType(kind="boolean", origin=DTYPE)
    if pd.api.types.is_numeric_dtype(dtype) and dtype.kind != "c":
        return None
    raise ValueError(
        f"column {name!r} has dtype {dtype}, which declares no levels, and reading them from the "
        "rows would tell about the rows. Declare public levels by types=, or, of a pandas frame, "
        f"by X.astype({{{name!r}: pd.CategoricalDtype([...])}}), or make it a number by "
        f"X.astype({{{name!r}: float}})"
    )


def _level(value: object) -> str:
    name = ColumnType(kind="category", blank=())  # a number has its shortest spelling
    return value.strip() if isinstance(value, str) else name.of_text(spell(value))[1]

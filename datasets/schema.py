"""A schema: public bounds, levels and types of a table's columns, and the codes they define.

A schema is fixed before the rows are seen; see :mod:`bdpvi.datasets.domain`.
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
from bdpvi.datasets.domain import Codes as Codes
from bdpvi.datasets.domain import Domain as Domain
from bdpvi.datasets.domain import Unfit as Unfit
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.types import ANY, TIMES, UNUSED, ColumnType


@dataclass(frozen=True)
class Schema:
    """The domains of a table's columns, all public, in the order of writing.

    Attributes:
        columns: domains by name.
        source: where the bounds and levels come from, in words.
        left_out: columns of the table not in the schema, each with the reason, for the owner.
        types: types of columns whose bounds or levels are not declared; one that declares them
            makes a domain among the columns.

    Raises:
        ValueError: if there is no column, a name is blank, or a column is also left out.

    >>> people = Schema({"age": Domain(low=0, high=110, integer=True)}, "Questionnaire 2021")
    >>> people.marked
    ()
    """

    columns: Mapping[str, Domain]
    source: str
    left_out: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, ColumnType] = field(default_factory=dict, metadata={"absent": {}})

    def __post_init__(self) -> None:
        if not self.columns and not self.types:
            raise ValueError("columns must have at least one entry")
        if both := sorted({*self.columns} & {*self.types}):
            raise ValueError(f"types has {both[0]!r}, which is among the columns too")
        for name in (*self.columns, *self.types):
            if name != name.strip() or not name:
                raise ValueError(f"columns has the name {name!r}: blank, or with blanks around it")
        if both := sorted({*self.columns, *self.types} & {*self.left_out}):
            raise ValueError(f"left_out has {both[0]!r}, which is among the columns too")
        made = {name: Domain.of_type(one) for name, one in self.types.items()}
        declared = {name: one for name, one in made.items() if one is not None}
        if declared:
            types = {name: one for name, one in self.types.items() if name not in declared}
            object.__setattr__(self, "columns", {**self.columns, **declared})
            object.__setattr__(self, "types", types)

    @property
    def read_by(self) -> dict[str, ColumnType]:
        """The declared types of all columns that have one."""
        of_domains = {name: one.type for name, one in self.columns.items()}
        found = {**of_domains, **self.types}
        return {name: one for name, one in found.items() if one is not None}

    @property
    def kinds(self) -> tuple[str, ...]:
        """The declared kinds of columns, in words."""
        kinds = {name: one.kind for name, one in self.read_by.items()}
        return tuple(f"{name} ({kind})" for name, kind in kinds.items() if kind != ANY)

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
        type = self.read_by.get(unit)
        columns = {name: one for name, one in self.columns.items() if name != unit}
        types = {name: one for name, one in self.types.items() if name != unit}
        rest = replace(self, columns=columns, types=types) if columns or types else None
        return None if type is None or type.kind == ANY else type, rest

    @property
    def marked(self) -> tuple[str, ...]:
        """Columns whose domain was read from the rows."""
        return tuple(name for name, one in self.columns.items() if one.from_data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Schema:
        """Read a JSON file such as {"source": "…", "columns": {"age": {"low": 0, "high": 110}}}.

        An entry with a ``kind`` has the fields of :class:`ColumnType`, such as {"kind": "code"} or
        {"kind": "number", "decimal": ",", "step": 0.01, "low": 0, "high": 1000}; bounds of dates
        may be days. The short form of :func:`bdpvi.datasets.constants_of` is accepted too:
        {"source": "…", "age": [0, 110], "sex": ["F", "M"]}.

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
        store.write(Path(path), store.json_text(_flat(self), indent=1).encode())

    def check(self, header: Sequence[str]) -> None:
        """Raise ValueError unless a table with this header has every column exactly once."""
        for name in (*self.columns, *self.types):
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
        if more := [name for name in names if name not in self.columns]:
            raise ValueError(
                f"schema lacks the columns {more}: declare them there, or drop them from the table"
            )
        codes, unfit = np.empty((len(frame), len(self.columns)), dtype=np.int64), {}
        for at, (name, domain) in enumerate(self.columns.items()):
            codes[:, at], unfit[name] = domain.encode(frame.iloc[:, names.index(name)])
        return codes, unfit

    def decode(self, codes: Codes, random: np.random.Generator) -> pd.DataFrame:
        """Return a table with the values of codes, (N, d)."""
        pairs = enumerate(self.columns.items())
        return pd.DataFrame({name: one.decode(codes[:, at], random) for at, (name, one) in pairs})


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
    columns: dict[str, Domain] = {}
    types: dict[str, ColumnType] = {}
    if schema is not None:
        for name, one in schema.columns.items():
            columns[name] = replace(one, type=one.type and _in_file(name, one.type, file))
        types = {name: _in_file(name, one, file) for name, one in schema.types.items()}
    if not file.plain:
        guess = ColumnType(kind=ANY).in_file(*file.signs)
        columns = {name: one if one.type else one.of(guess) for name, one in columns.items()}
        types = {name: guess for name in header if name and name not in columns} | types
    if not columns and not types:
        return None
    out = {} if schema is None else schema.left_out
    types = {name.strip(): one for name, one in types.items() if name.strip() not in out}
    return Schema(columns, "" if schema is None else schema.source, out, types)


def of_content(content: Mapping[str, Any]) -> Schema:
    """Return the schema in the content of a file, as :meth:`Schema.load` does."""
    return schema.from_json(Schema, _long(content), partial=True)


def _long(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a schema's file with short entries expanded."""
    given = dict(content)
    if not isinstance(given.get("columns"), Mapping):
        source = given.pop("source", None)
        given = {"columns": given} | ({} if source is None else {"source": source})
    types, columns = dict(given.get("types", {})), {}
    for name, one in given["columns"].items():
        entry = _entry(name, one)
        if isinstance(entry, ColumnType):
            types[name] = schema.to_json(entry)
        else:
            columns[name] = entry
    return given | {"columns": columns} | ({"types": types} if types else {})


def _entry(name: str, given: Any) -> Any:
    """Return a column's entry in the long form; a type if it has neither levels nor bounds."""
    if isinstance(given, list):
        if len(given) == 2 and all(type(one) in (int, float) for one in given):
            return {"low": given[0], "high": given[1]}
        return {"levels": [str(one) if isinstance(one, bool) else one for one in given]}
    if not isinstance(given, Mapping) or "kind" not in given:
        return given
    marks = {key: one for key, one in given.items() if key in ("from_data", "bought")}
    kind = type_of({key: one for key, one in given.items() if key not in marks}, name)
    domain = Domain.of_type(kind)
    if domain is None and marks.get("from_data"):
        raise ValueError(
            f"columns.{name} is marked from_data, as read from the rows: write what is known "
            "without them, and delete the mark"
        )
    return kind if domain is None else schema.to_json(domain) | marks


def type_of(given: Mapping[str, Any], name: str) -> ColumnType:
    """Return the type that a column's entry in a file describes.

    >>> type_of({"kind": "date", "low": "1970-01-02", "high": "1970-02-01"}, "born").high
    31.0
    """
    values, since = dict(given), given.get("since", ColumnType.since)
    for bound in ("low", "high"):
        if given.get("kind") in TIMES and isinstance(given.get(bound), str):
            kind = ColumnType(kind=given["kind"], since=since, zone=given.get("zone"))
            one, _, status = kind.of_text(given[bound])
            if status:
                raise ValueError(f"columns.{name}: {bound}={given[bound]!r} must be a day")
            values[bound] = one
    return schema.from_json(ColumnType, values, f"columns.{name}", partial=True)


def _flat(made: Schema) -> dict[str, Any]:
    """Return a schema for people to edit: each column is one entry, which has its type."""
    content = schema.to_json(made)
    content["columns"] = {
        name: one
        if "type" not in one
        else one["type"]
        | {key: one[key] for key in ("from_data", "bought")}
        | {key: one[key] for key in ("levels", "low", "high") if one[key] is not None}
        for name, one in content["columns"].items()
    } | content.pop("types", {})
    return content  # type: ignore[no-any-return]

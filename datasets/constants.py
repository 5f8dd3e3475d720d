"""Public preprocessing bounds or scales from a JSON file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bdpvi._ground.store import read_shared
from bdpvi.datasets.columns import Column, Numeric, OneHot, label
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.origin import Origin
from bdpvi.datasets.schema import Schema, type_of
from bdpvi.datasets.types import ESTIMATED, ROWS, ColumnType

Made = tuple[Column, Origin]
"""A column and where its constants are from."""
_MARKED = (
    "column {name!r} is marked as read from the rows: write public bounds or levels there, and "
    '"origin": "declared"'
)


def read_constants(path: str | os.PathLike[str]) -> Encoding:
    """Read public constants from a JSON file, in a form of :func:`constants_of`.

    Args:
        path: the file, UTF-8.

    Raises:
        ValueError: naming the file, if it is not JSON or not constants.
        OSError: if it cannot be opened.
    """
    try:
        return constants_of(json.loads(read_shared(Path(path)).decode("utf-8-sig")))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"constants={str(path)!r}: {error}") from error


def constants_of(values: Mapping[str, Any]) -> Encoding:
    """Return the encoding that constants describe, in one of three forms.

    The short form has one entry for each column and a ``source``::

        {"source": "Census 2021, table 4",
         "age": [0, 100],
         "income": {"mean": 31000, "sd": 18000},
         "sex": ["F", "M"]}

    Two numbers are a public lower and upper bound. The column's mean and standard deviation are
    then those of the uniform distribution between them, (low + high)/2 and (high - low)/√12, so
    that the bounds become ±√3. Values beyond are not clipped. Strings (or Booleans) are categories,
    one 0/1 feature each. The long form is that of :meth:`Encoding.to_dict`, which also supports
    ``missing``, ``unknown`` and ordinal columns. The file of a :class:`~bdpvi.datasets.Schema` is
    accepted too, if nothing in it is marked as read from the rows. Private estimates in it count as
    coming from another release.

    Args:
        values: the constants; ``source`` is published with every release and states where they come
            from. Without ``origin`` in the long form they are declared public.

    Raises:
        ValueError: naming an invalid entry or a missing ``source``.

    >>> encoding = constants_of({"source": "By law.", "age": [18, 67], "sex": ["F", "M"]})
    >>> encoding.feature_names, encoding.columns[0].mean
    (('age', 'sex=F', 'sex=M'), 42.5)
    """
    if not isinstance(values, dict):
        raise ValueError(f"constants must be a JSON object, got {values!r:.80}")
    source = values.get("source")
    if not (isinstance(source, str) and source.strip()):
        raise ValueError(f"source must say where the constants come from, got {source!r:.80}")
    columns = values.get("columns")
    if isinstance(columns, list) and any(isinstance(column, dict) for column in columns):
        return Encoding.from_dict(values)
    if isinstance(columns, dict):
        values = {**columns, "source": source}
    entries = {name.strip(): entry for name, entry in values.items() if name != "source"}
    return _encoding((_entry(name, one) for name, one in entries.items()), source)


def _encoding(made: Iterable[Made], source: str) -> Encoding:
    columns, origins = zip(*made, strict=True) if (made := list(made)) else ((), (Origin.PUBLIC,))
    return Encoding(columns, source).of(origins)


def constants_in(types: Schema) -> Encoding | None:
    """Return the encoding that the bounds and levels of a schema describe; None without any.

    Raises:
        ValueError: naming a column whose bounds or levels are marked as read from the rows.

    >>> age = ColumnType(low=18, high=67)
    >>> constants_in(Schema({"age": age}, "By law.")).columns[0].mean
    42.5
    """
    given = types.bounded
    if not given:
        return None
    return _encoding((_of_type(name, one) for name, one in given.items()), types.source)


def _of_type(name: str, type: ColumnType) -> Made:
    if type.origin == ROWS:
        raise ValueError(_MARKED.format(name=name))
    origin = Origin.FROM_ANOTHER_RELEASE if type.origin == ESTIMATED else Origin.PUBLIC
    if type.names is not None:
        return OneHot(name, type.names, type=type.reading), origin
    if type.bounds is None:
        raise ValueError(
            f"column {name!r} has a kind and neither levels nor low and high: add them, or give "
            "the file as types (--table)"
        )
    return _between(name, *type.bounds, type.reading), origin


def _between(name: str, low: float, high: float, type: ColumnType | None = None) -> Numeric:
    if not low < high:
        raise ValueError(f"column {name!r}: bounds must be [low, high], got [{low:g}, {high:g}]")
    return Numeric(name, (low + high) / 2, (high - low) / math.sqrt(12), type=type)


def _entry(name: str, entry: Any) -> Made:
    match entry:
        case {"mean": mean, "sd": sd} if len(entry) == 2:
            return Numeric(name, _number(name, mean), _number(name, sd)), Origin.PUBLIC
        case dict() if {"kind", "low", "high", "levels"} & {*entry}:
            return _of_type(name, type_of(entry, name))
        case [low, high] if _is_number(low) and _is_number(high):
            return _between(name, _number(name, low), _number(name, high)), Origin.PUBLIC
        case []:
            raise ValueError(f"column {name!r} must have at least one category, got []")
        case list() if all(isinstance(value, str | bool) for value in entry):
            return OneHot(name, tuple(map(label, entry))), Origin.PUBLIC
    raise ValueError(
        f'column {name!r} must be [low, high], {{"mean": …, "sd": …}} or a list of texts, '
        f"got {entry!r:.80}"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(name: str, value: object) -> float:
    if not _is_number(value):
        raise ValueError(f"column {name!r}: mean and sd must be numbers, got {value!r:.80}")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise ValueError(f"column {name!r}: {value!r:.40}… is too large for a number") from None

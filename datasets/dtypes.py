"""What a data frame's dtypes declare about its columns. A dtype is public; no row is read."""

from __future__ import annotations

from typing import Any

import pandas as pd

from bdpvi.datasets.encoding import with_text_names
from bdpvi.datasets.schema import Schema
from bdpvi.datasets.spelling import spell
from bdpvi.datasets.types import DTYPE, ColumnType

SOURCE = "levels declared by the data frame's dtypes"
_NAME = ColumnType(kind="category", blank=())
"""Reads a level that is no text: a number in its shortest spelling."""


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
        return Schema(found, SOURCE) if found else None
    if not found:
        return types
    return Schema({**known, **found}, f"{types.source}; {SOURCE}")


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
    return value.strip() if isinstance(value, str) else _NAME.of_text(spell(value))[1]

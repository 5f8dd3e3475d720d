"""Tables in memory: of any object that gives rows as Arrow does, and of queries."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bdpvi._ground.types import tell_owner
from bdpvi.datasets.digests import DIGEST
from bdpvi.datasets.lines import names_of

if TYPE_CHECKING:
    from pyarrow import Table

ROWS = 1 << 14
"""Most rows of a block that are worked on at once: their features fit in a processor's cache."""
LEFT_OUT = "left out"
"""Attribute of a block's rows: the number of lines that cannot be split."""


def sliced(made: pd.DataFrame, odd: int = 0, digest: int = 0) -> Iterator[pd.DataFrame]:
    """Yield rows, at most :data:`ROWS` at a time.

    Args:
        made: the rows.
        odd: the number of lines left out among them, which the first part bears.
        digest: of what was read, also borne by the first part; 0 if its file is watched.
    """
    for start in range(0, max(len(made), 1), ROWS):
        part = made.iloc[start : start + ROWS]
        part.attrs |= {LEFT_OUT: 0 if start else odd, DIGEST: 0 if start else digest}
        yield part


def cleaned(table: Table) -> Table:
    """Return a table with bytes as text, each cell by itself."""
    import pyarrow as pa

    kinds = pa.types
    for at, one in enumerate(table.schema):
        coded = kinds.is_dictionary(one.type)
        inner = one.type.value_type if coded else one.type
        if (
            kinds.is_binary(inner) or kinds.is_large_binary(inner)
            or kinds.is_fixed_size_binary(inner) or str(inner) == "binary_view"
        ):  # fmt: skip
            column = table.column(at).cast(inner) if coded else table.column(at)
            try:
                texts = column.cast(pa.binary()).cast(pa.string())
            except pa.ArrowInvalid:  # the bytes of some cells are no text
                each = column.to_pylist()
                words = (None if c is None else c.decode(errors="backslashreplace") for c in each)
                texts = pa.chunked_array([pa.array(words, pa.string())])
            table = table.set_column(at, one.name, texts)
    return table


def frame_of(table: Table) -> pd.DataFrame:
    """Return a table as a frame; a column's type stays one of whole numbers, or of Booleans."""
    import pyarrow as pa

    given = {"ignore_metadata": True, "use_threads": False}
    for at, one in enumerate(table.schema):
        kind: Any = one.type
        if pa.types.is_dictionary(kind) and not pa.types.is_signed_integer(kind.index_type):
            coded = pa.dictionary(pa.int64(), kind.value_type, kind.ordered)  # PyArrow before 23
            table = table.set_column(at, one.name, table.column(at).cast(coded))
    try:
        made: pd.DataFrame = table.to_pandas(**given)
    except ValueError:  # categories that are blank, or twice the same
        made = pa.table({name: _plain(table[name]) for name in table.column_names}).to_pandas(
            **given
        )
    for at, column in enumerate(table.columns):
        kind = column.type
        exact: Any = None
        if column.null_count and pa.types.is_integer(kind):
            exact = pd.Int64Dtype() if pa.types.is_signed_integer(kind) else pd.UInt64Dtype()
        elif column.null_count and pa.types.is_boolean(kind):
            exact = pd.BooleanDtype()
        elif pa.types.is_decimal(kind):
            exact = pd.ArrowDtype(kind)
        if exact is not None:
            made.isetitem(at, column.to_pandas(types_mapper={kind: exact}.get))
    return made


def _plain(column: Any) -> Any:
    """Return a column of Arrow without its dictionaries."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        return column
    each = [chunk.dictionary.take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(each, column.type.value_type)


def in_memory(table: Any) -> Any:
    """Return the rows of an object in memory as a frame; others are returned as they are.

    Args:
        table: a frame of Polars, a relation of DuckDB, a table or stream of pyarrow, or anything
            else with ``__arrow_c_stream__``; a pair of a query and a connection of DB-API,
            SQLAlchemy or DuckDB, or a cursor; an array or a tensor (N, d); a mapping of columns; a
            list or an iterator of rows, each a mapping or a sequence. Of a list the names, or the
            number of values, that most rows have are public, columns without names are x0, x1, …;
            rows of another length are left out, and the index has the others' places.

    Warns:
        PrivacyUtilityWarning: with the number of rows that are left out. For the owner only.

    Raises:
        ValueError: if it gives its rows once, and has begun or has none left; or a name occurs
            twice, or the query fails.

    >>> in_memory([{"age": 40, "sick": "no"}, {"age": 50}]).to_dict("list")
    {'age': [40, 50], 'sick': ['no', None]}
    """
    if isinstance(table, pd.DataFrame):
        return table
    if isinstance(table, tuple) and len(table) == 2 and isinstance(table[0], str):
        return in_memory(_query(*table))
    if type(table).__name__ == "LazyFrame":
        table = table.collect()
    if hasattr(table, "__arrow_c_stream__"):
        import pyarrow as pa

        found = pa.table(table)
        if not hasattr(table, "__len__"):
            _once(found)
        found.validate(full=True)
        return frame_of(cleaned(found).rename_columns(names_of(found.column_names)))
    if hasattr(table, "fetchall"):
        return _once(_fetch_rows(table), begun=bool(getattr(table, "rownumber", 0)))
    if hasattr(table, "__next__"):
        begun = inspect.isgenerator(table) and inspect.getgeneratorstate(table) != "GEN_CREATED"
        return _of_rows(_once([] if begun else [*table], begun))
    if isinstance(table := _on_host(table), np.ndarray):
        return _of_array(table)
    if isinstance(table, Mapping):
        return pd.DataFrame({name: column(one) for name, one in table.items()})
    return _of_rows(table) if isinstance(table, list) else table


def rows_of(value: Any) -> bool:
    """Return whether a value is a list or a tuple of rows: of mappings or sequences, not of cells.

    >>> rows_of([[1.0], [2.0]]), rows_of(["a", None]), rows_of([[1.0], 2.0, [3.0]])
    (True, False, True)
    """
    return isinstance(value, list | tuple) and _usual_form(value) is not None


def _once(rows: Any, begun: bool = False) -> Any:
    """Return rows that can be read once, unless they were."""
    if begun or not len(rows):
        raise ValueError(
            "table: it gives no rows, or not all; a stream gives them once, so open it again"
        )
    return rows


def _on_host(value: Any) -> Any:
    """Return a tensor as an array, anything else as it is."""
    if not hasattr(value, "detach"):
        return value
    value = value.detach().cpu()
    return (value.double() if value.is_floating_point() else value).numpy()


def column(values: Any) -> Any:
    """Return a column of which each cell stays what it is."""
    stream = hasattr(values, "__arrow_c_stream__")
    if not isinstance(values, pd.Series) and (stream or hasattr(values, "__arrow_c_array__")):
        import pyarrow as pa

        made = pa.chunked_array(values) if stream else pa.array(values)
        return frame_of(cleaned(pa.table({"": made}))).iloc[:, 0]
    values = _on_host(values)
    return values if hasattr(values, "dtype") else _cells(values)


def _cells(values: Any) -> pd.Series[Any]:
    held = np.empty(len(values), dtype=object)
    for at, one in enumerate(values):
        held[at] = one
    return pd.Series(held, dtype=object)


def _of_array(array: Any) -> pd.DataFrame:
    if array.dtype.names is None and array.ndim != 2:
        raise ValueError(f"table must have shape (records, columns), got {array.shape}")
    names = array.dtype.names or [f"x{at}" for at in range(array.shape[1])]
    if array.dtype.kind not in "OV":
        return pd.DataFrame(array, columns=names)
    columns = array.T if array.dtype.names is None else [array[name] for name in names]
    cells = [one if one.dtype.kind != "O" else _cells(one) for one in columns]
    return pd.DataFrame(dict(zip(names, cells, strict=True)))


def _of_rows(rows: Sequence[Any]) -> pd.DataFrame:
    """Return rows as a frame of their cells, with the names that most rows have."""
    form = _usual_form(rows)
    if form is None:
        what = type(rows[0]).__name__ if rows else "no row"
        raise ValueError(
            f"table: its rows must be mappings or sequences of values, got {what}; of a file give "
            "the path, and of a table without rows a data frame"
        )
    if isinstance(form, int):
        names: list[Any] = [f"x{at}" for at in range(form)]
        at = [place for place, one in enumerate(rows) if _form(one) == form]
        some = [rows[place] for place in at]
        kept = [one.tolist() if hasattr(one, "tolist") else list(one) for one in some]
    else:
        orders = Counter(tuple(row) for row in rows if _form(row) == form)
        names = list(orders.most_common(1)[0][0])
        at = [place for place, one in enumerate(rows) if isinstance(one, Mapping)]
        kept = [[rows[place].get(name) for name in names] for place in at]
    tell_owner(len(rows) - len(kept), "row", "it has not as many values as most, or is no row")
    columns = {number: _cells([one[number] for one in kept]) for number in range(len(names))}
    return pd.DataFrame(columns).set_axis(names_of(names), axis=1).set_axis(at, axis=0)


def _usual_form(rows: Sequence[Any]) -> frozenset[Any] | int | None:
    return next((one for one, _ in Counter(map(_form, rows)).most_common(1)), None)


def _form(row: Any) -> frozenset[Any] | int | None:
    """Return a row's names, or the number of its values; None for what is no row."""
    if isinstance(row, Mapping):
        return frozenset(row)
    whole = isinstance(row, str | bytes) or hasattr(row, "columns") or getattr(row, "ndim", 1) != 1
    return None if whole or not hasattr(row, "__getitem__") else len(row)


def _fetch_rows(cursor: Any) -> pd.DataFrame:
    """Return the rows that a cursor gives: cells as the database gives them."""
    names = cursor.keys() if hasattr(cursor, "keys") else [one[0] for one in cursor.description]
    rows = [tuple(one) for one in cursor.fetchall()]
    return pd.DataFrame(rows, columns=names_of(names), dtype=object)


def _query(words: str, connection: Any) -> Any:
    """Return the rows of a query."""
    try:
        if type(connection).__module__.partition(".")[0] in ("duckdb", "_duckdb"):
            return connection.sql(words)
        if hasattr(connection, "raw_connection"):  # an engine of SQLAlchemy
            connection = connection.raw_connection()
        elif hasattr(connection, "exec_driver_sql"):  # its connection
            connection = connection.connection
        cursor = connection.cursor()
        cursor.execute(words)
        return _fetch_rows(cursor)
    except Exception as error:  # databases raise anything
        raise ValueError(f"table: the query {words!r:.200} fails: {error}") from error

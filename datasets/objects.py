"""Tables in memory: of any object that gives rows as Arrow does, and of queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

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
            or kinds.is_fixed_size_binary(inner) or inner == pa.binary_view()
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
    """Return a table as a frame; whole numbers beside blanks stay exact."""
    import pyarrow as pa

    made: pd.DataFrame = table.to_pandas(ignore_metadata=True, use_threads=False)
    for at, column in enumerate(table.columns):
        if column.null_count and pa.types.is_integer(column.type):
            signed = pa.types.is_signed_integer(column.type)
            exact = {column.type: pd.Int64Dtype() if signed else pd.UInt64Dtype()}
            made.isetitem(at, column.to_pandas(types_mapper=exact.get))
    return made


def in_memory(table: Any) -> Any:
    """Return the rows of an object that gives them as Arrow does, once, or by a query.

    Args:
        table: a frame of Polars, a relation of DuckDB, a table or stream of pyarrow, or anything
            else with ``__arrow_c_stream__``; or a pair of a query and a connection of DB-API,
            SQLAlchemy or DuckDB. Others are returned as they are.

    Raises:
        ValueError: if it has no rows left, a name occurs twice, or the query fails.
    """
    if isinstance(table, pd.DataFrame):
        return table
    if isinstance(table, tuple) and len(table) == 2 and isinstance(table[0], str):
        table = _query(*table)
    if type(table).__name__ == "LazyFrame":
        table = table.collect()
    if not hasattr(table, "__arrow_c_stream__") or isinstance(table, pd.DataFrame):
        return table
    import pyarrow as pa

    found = pa.table(table)
    if not len(found) and not hasattr(table, "__len__"):
        raise ValueError("table: it gives no rows; a stream gives them once, so open it again")
    found.validate(full=True)
    return frame_of(cleaned(found).rename_columns(names_of(found.column_names)))


def _query(words: str, connection: Any) -> Any:
    """Return the rows of a query: cells as the database gives them."""
    try:
        if type(connection).__module__.partition(".")[0] in ("duckdb", "_duckdb"):
            return connection.sql(words)
        if hasattr(connection, "raw_connection"):  # an engine of SQLAlchemy
            connection = connection.raw_connection()
        elif hasattr(connection, "exec_driver_sql"):  # its connection
            connection = connection.connection
        cursor = connection.cursor()
        cursor.execute(words)
        names = names_of(one[0] for one in cursor.description)
        rows = [tuple(one) for one in cursor.fetchall()]
    except Exception as error:  # databases raise anything
        raise ValueError(f"table: the query {words!r:.200} fails: {error}") from error
    return pd.DataFrame(rows, columns=names, dtype=object)

"""Tables from files: CSV and Parquet."""

from __future__ import annotations

import csv
import importlib.util
import os
from pathlib import Path
from typing import Any

import pandas as pd

_PARQUET = (".parquet", ".pq")
_SEPARATORS = (",", ";", "\t", "|")
_BY_NAME = {"tab": "\t", "\\t": "\t"}


def read_table(
    path: str | os.PathLike[str], *, separator: str = ",", text: bool = False, least: int = 1
) -> pd.DataFrame:
    """Read a CSV file with a header line, UTF-8, or a Parquet file (``.parquet``, ``.pq``).

    Args:
        path: the file.
        separator: the character between the values of a CSV file; a tab may be written ``"tab"``.
        text: return the values of a CSV file as they are written, a blank as an empty text.
        least: fewest rows that are taken.

    Raises:
        ValueError: naming the file, and the line where there is one: an empty file, a header
            without rows, a name that occurs twice, a line with more or fewer values than the
            header (a file cut short ends in one, unless the cut falls into a last value), a quote
            that is never closed, bytes that are not text, another separator; a Parquet file that
            cannot be read, or pyarrow is not installed.
        OSError: if the file cannot be opened.
    """
    if Path(path).suffix.lower() in _PARQUET:
        return _parquet(path, least)
    separator = _BY_NAME.get(separator, separator)
    if len(separator) != 1 or separator in "\"'\r\n ":
        raise ValueError(f"separator must be one character such as , or ; got {separator!r}")
    values: dict[str, Any] = {"dtype": str, "keep_default_na": False} if text else {}
    try:
        with open(path, encoding="utf-8-sig", newline="") as lines:
            rows = csv.reader(lines, skipinitialspace=True, strict=True, delimiter=separator)
            _check_shape(rows, str(path), separator, least)
        frame: pd.DataFrame = pd.read_csv(
            path,
            encoding="utf-8-sig",
            skipinitialspace=True,
            low_memory=False,
            sep=separator,
            compression=None,  # pandas would go by the name
            **values,
        )
    except (UnicodeDecodeError, csv.Error, pd.errors.ParserError, OverflowError) as error:
        raise ValueError(f"{path} is not a readable CSV file: {error}") from error
    return frame


def read_header(path: str | os.PathLike[str], *, separator: str = ",") -> list[str]:
    """Return the column names of a CSV or Parquet file, and read no row.

    Raises:
        ValueError: if it has none.
        OSError: if the file cannot be opened.
    """
    if Path(path).suffix.lower() in _PARQUET:
        from pyarrow import ArrowException, parquet

        try:
            return list(parquet.read_schema(path).names)
        except (ArrowException, OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a readable Parquet file: {error}") from error
    with open(path, encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(
            lines, skipinitialspace=True, delimiter=_BY_NAME.get(separator, separator)
        )
        header = [name.strip() for name in next(rows, [])]
    if not header:
        raise ValueError(f"{path} is empty")
    return header


def _parquet(path: str | os.PathLike[str], least: int) -> pd.DataFrame:
    if importlib.util.find_spec("pyarrow") is None:
        raise ValueError(
            f"{path} is a Parquet file, which needs pyarrow: pip install 'bdpvi[stream]'"
        )
    with open(path, "rb"):
        pass  # an OSError, as for a CSV file
    try:
        frame = pd.read_parquet(path, engine="pyarrow")
    except Exception as error:  # a damaged file can raise anything in pyarrow or pandas
        raise ValueError(f"{path} is not a readable Parquet file: {error}") from error
    if len(frame) < least:
        raise ValueError(f"{path} has no rows")
    return frame


def _check_shape(rows: Any, path: str, separator: str, least: int) -> None:
    header = [name.strip() for name in next(rows, [])]
    if not header:
        raise ValueError(f"{path} is empty")
    others = [s for s in _SEPARATORS if s in header[0]]
    if len(header) == 1 and others:
        name = "tab" if others[0] == "\t" else others[0]
        raise ValueError(
            f"{path}: the header has no {separator!r} but {others[0]!r}; "
            f"try separator={name!r} (--separator {name!r})"
        )
    for name in header:
        if header.count(name) > 1:
            raise ValueError(f"{path}: the column name {name!r} occurs more than once")
    count = 0
    for row in rows:
        if row and len(row) != len(header):
            raise ValueError(
                f"{path}, line {rows.line_num}: {len(row)} values for {len(header)} columns"
            )
        count += bool(row)
    if count < least:
        raise ValueError(f"{path} has a header but no rows")

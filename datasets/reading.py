"""Tables from files: CSV and Parquet.

In CSV a record is one physical line, so that no line affects another: an unclosed quote in one
record must not swallow the records below. A line that cannot be split is left out alone.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bdpvi._ground.outputs import several
from bdpvi._ground.types import tell_owner
from bdpvi.datasets.cells import read_cells
from bdpvi.datasets.formats import Bytes, FileFormat, in_charset

_PARQUET = (".parquet", ".pq")
_SEPARATORS = (",", ";", "\t", "|")
_BY_NAME = {"tab": "\t", "\\t": "\t"}
_BETWEEN = "\x1f"
"""Separates split values; inside a cell it becomes a replacement character."""
_ODD = str.maketrans({_BETWEEN: "\ufffd", "\0": "\ufffd", "\r": " "})
_CHUNK = 1 << 20
"""Number of bytes read at once."""


def read_table(
    path: str | os.PathLike[str],
    *,
    text: bool = False,
    least: int = 1,
    written: Collection[str] = (),
    **file: Any,
) -> pd.DataFrame:
    """Read a CSV file with a header line, or a Parquet file (``.parquet``, ``.pq``).

    Args:
        path: the file.
        text: return the values of a CSV file as written, a blank as an empty string.
        least: fewest rows accepted.
        written: columns whose values are returned as written, without ``text`` too.
        file: fields of :class:`FileFormat`; ``separator=";"`` reads a file with semicolons. The
            signs of numbers matter without ``text`` only.

    Warns:
        PrivacyUtilityWarning: about lines that are left out because they have more or fewer values
            than the header, or an unclosed quote. For the owner only.

    Raises:
        ValueError: naming the file: an empty file, a header without rows, a repeated name, a header
            that is not of the character set or has an unclosed quote, another separator; a Parquet
            file that cannot be read, or a missing pyarrow.
        OSError: if the file cannot be opened.
    """
    given = FileFormat(**file)
    if Path(path).suffix.lower() in _PARQUET:
        return _parquet(path, least, written)
    _separator(given.separator)  # refused before the file is opened
    with open(path, "rb") as opened:
        frame, odd = read_opened(opened, str(path), given, text=text, written=written)
    if len(frame) < least:
        raise ValueError(f"{path} has a header but no rows")
    values = several(frame.shape[1], "value")
    tell_owner(odd, "line", f"not {values}, or a quote that is not closed, in {path}")
    return frame


def read_opened(
    opened: Bytes,
    path: str,
    given: FileFormat,
    *,
    text: bool,
    written: Collection[str] = (),
) -> tuple[pd.DataFrame, int]:
    """Return the rows of an opened CSV file, and the number of lines that are left out.

    Args:
        opened: the file, or its header line and some of the others.
        path: its name, for errors.
        given: how it is written.
        text, written: as for :func:`read_table`.
    """
    separator = _separator(given.separator)
    blocks = _blocks(in_charset(opened, given.charset))
    header = _header(next(blocks)[0], path, separator)
    split = _split_across if given.multiline else _split
    found, odd = split(chain.from_iterable(blocks), separator, len(header))
    frame = _frame(found, header, text, given)
    as_is = [name for name in header if name in written and not text]
    if as_is:
        texts = _frame(found, header, True, given)
        frame = frame.assign(**{name: texts[name] for name in as_is})
    return frame, odd


def read_header(path: str | os.PathLike[str], **file: Any) -> list[str]:
    """Return the column names of a CSV or Parquet file without reading any row.

    Args:
        path: the file.
        file: fields of :class:`FileFormat`.

    Raises:
        ValueError: if it has no header.
        OSError: if the file cannot be opened.
    """
    if Path(path).suffix.lower() in _PARQUET:
        from pyarrow import ArrowException, parquet

        try:
            return list(parquet.read_schema(path).names)
        except (ArrowException, OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a readable Parquet file: {error}") from error
    given = FileFormat(**file)
    with open(path, "rb") as opened:
        first = next(_blocks(in_charset(opened, given.charset)))[0]
    return _names(first, str(path), _separator(given.separator))


def read_numbers(
    path: str | os.PathLike[str], columns: Sequence[str]
) -> Iterator[tuple[NDArray[np.float64], int]]:
    """Iterate over a CSV file's numbers block by block, each line and each cell read by itself.

    Args:
        path: the file, with comma-separated values. Needs pyarrow.
        columns: names in the header.

    Yields:
        The values of some lines, (n, d), NaN or infinite where a cell is not a finite number; and
        the number of lines left out among them, by the rules of :func:`read_table`.
    """
    with open(path, "rb") as file:
        blocks = _blocks(file)
        header = _header(next(blocks)[0], str(path), ",")
        places = [header.index(name) for name in columns]
        for lines in blocks:
            found, odd = _split(lines, ",", len(header))
            yield _numbers(found, places, len(header)), odd


def _separator(separator: str) -> str:
    found = _BY_NAME.get(separator, separator)
    if len(found) != 1 or found in "\"'\r\n " or found == _BETWEEN:
        raise ValueError(f"separator must be one character such as , or ; got {found!r}")
    return found


def _blocks(file: Bytes) -> Iterator[list[str]]:
    """Yield the first line, then the others block by block; bytes that are not UTF-8 are replaced.

    All lines end like the first: a lone carriage return in a row does not end it.
    """
    rest = _more(file)
    while b"\n" not in rest and b"\r" not in rest and (more := _more(file)):
        rest += more
    rest = rest.replace(b"\r\n", b"\n")
    old = b"\r" in rest.partition(b"\n")[0]  # of an old Macintosh
    head, _, rest = (rest.replace(b"\r", b"\n") if old else rest).partition(b"\n")
    yield [head.decode("utf-8-sig", errors="surrogateescape")]
    held = [rest]
    while more := _more(file):
        more = more.replace(b"\r\n", b"\n")
        whole, ended, rest = (more.replace(b"\r", b"\n") if old else more).rpartition(b"\n")
        if ended:
            yield _lines(b"".join([*held, whole]))
            held = []
        held.append(rest)
    if last := b"".join(held):
        yield _lines(last)


def _lines(content: bytes) -> list[str]:
    return content.decode(errors="replace").translate(_ODD).split("\n")


def _more(file: Bytes) -> bytes:
    """Return the next block of bytes, which never splits a line ending."""
    found = file.read(_CHUNK)
    while found.endswith(b"\r") and (more := file.read(1)):
        found += more
    return found


def _parquet(
    path: str | os.PathLike[str], least: int, written: Collection[str] = ()
) -> pd.DataFrame:
    """Return the rows; whole numbers beside blanks stay exact in columns of ``written``."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ValueError(
            f"{path} is a Parquet file, which needs pyarrow: pip install 'bdpvi[stream]'"
        )
    with open(path, "rb"):
        pass  # an OSError, as for a CSV file
    try:
        from pyarrow import parquet

        table = parquet.read_table(path)
        table.validate(full=True)  # texts that are not UTF-8 would fail later, and otherwise
        frame: pd.DataFrame = table.to_pandas()
        there = frame.columns
        rounded = [name for name in written if name in there and frame[name].dtype.kind == "f"]
        for name, exact in _whole_numbers(path, rounded).items():
            frame[name] = pd.Series(exact, index=frame.index, dtype=object)
    except Exception as error:  # a damaged file can raise anything in pyarrow or pandas
        raise ValueError(f"{path} is not a readable Parquet file: {error}") from error
    if len(frame) < least:
        raise ValueError(f"{path} has no rows")
    return frame


def _whole_numbers(path: str | os.PathLike[str], names: list[str]) -> dict[str, list[int | None]]:
    """Return those of these columns that are whole numbers; pandas rounds them beside blanks."""
    if not names:
        return {}
    from pyarrow import parquet, types

    table = parquet.read_table(path, columns=names)
    whole = [one.name for one in table.schema if types.is_integer(one.type)]
    return {name: table[name].to_pylist() for name in whole}


def _names(line: str, path: str, separator: str) -> list[str]:
    """Return the names in a header line."""
    try:
        line.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{path} is not a readable CSV file: its header is not UTF-8; name its character set, "
            "such as latin-1 or utf-16 (--charset)"
        ) from error
    if "\0" in line:
        raise ValueError(
            f"{path} is not a readable CSV file: its header has a NUL; is its character set "
            "utf-16 (--charset)?"
        )
    found = _values(line, separator)
    if found is None:
        raise ValueError(
            f"{path} is not a readable CSV file: its first line, the header, has a quote that is "
            "not closed"
        )
    if not line.strip(" "):
        raise ValueError(f"{path} is empty, or its first line, the header, is blank")
    return [name.strip() for name in found]


def _header(line: str, path: str, separator: str) -> list[str]:
    """Return the names in a header line, which must be distinct."""
    header = _names(line, path, separator)
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
    return [name or f"Unnamed: {place}" for place, name in enumerate(header)]


def _values(line: str, separator: str) -> list[str] | None:
    """Return the values of a line, None if a quote is not closed.

    >>> _values('1, "a ""b"", c"', ","), _values('5,"oops,1', ",")
    (['1', 'a "b", c'], None)
    """
    rows = csv.reader([line], skipinitialspace=True, strict=True, delimiter=separator)
    try:
        return next(rows)
    except csv.Error:
        return None


def _split(lines: Iterable[str], separator: str, width: int) -> tuple[list[str], int]:
    """Return lines of ``width`` values, joined by :data:`_BETWEEN`, and the number of other lines.

    >>> _split(["1,2", "", "3", "4, x", '"5,6",7'], ",", 2)
    (['1\\x1f2', '4\\x1f x', '5,6\\x1f7'], 1)
    """
    found, odd = [], 0
    for line in lines:
        if '"' not in line:
            if line.count(separator) == width - 1 and (width > 1 or line.strip(" ")):
                found.append(line.replace(separator, _BETWEEN))
            else:
                odd += bool(line.strip(" "))
            continue
        values = _values(line, separator)
        if values is not None and len(values) == width:
            found.append(_BETWEEN.join(values))
        else:
            odd += 1
    return found, odd


def _split_across(lines: Iterable[str], separator: str, width: int) -> tuple[list[str], int]:
    """Do :func:`_split` for records whose quotes may span several lines."""
    ended = (f"{line}\n" for line in lines)
    found, odd = [], 0
    for values in _records(csv.reader(ended, skipinitialspace=True, delimiter=separator)):
        if values is not None and len(values) == width:
            found.append(_BETWEEN.join(values).replace("\n", " "))
        else:
            odd += values is None or bool("".join(values).strip(" "))
    return found, odd


def _records(rows: Iterator[list[str]]) -> Iterator[list[str] | None]:
    while True:
        try:
            yield next(rows)
        except csv.Error:
            yield None
        except StopIteration:
            return


def _frame(lines: list[str], header: list[str], text: bool, file: FileFormat) -> pd.DataFrame:
    """Return the table of split lines; pandas parses the values without quoting rules."""
    given: dict[str, Any] = {
        "sep": _BETWEEN,
        "header": None,
        "names": header,
        "index_col": False,
        "quoting": csv.QUOTE_NONE,
        "lineterminator": "\n",
        "skip_blank_lines": False,
        "skipinitialspace": True,
        "low_memory": False,
    }
    if not lines:
        return pd.DataFrame({name: pd.Series([], dtype=object) for name in header})
    content = "\n".join(lines) + "\n"
    if not text:
        signs = {"decimal": file.decimal, "thousands": file.thousands or None}
        try:
            return pd.read_csv(io.StringIO(content), **(given | signs))  # type: ignore[no-any-return]
        except (pd.errors.ParserError, OverflowError):
            pass  # a number that pandas cannot hold: all values are then strings
    frame: pd.DataFrame = pd.read_csv(
        io.StringIO(content), dtype=str, keep_default_na=False, **given
    )
    return frame


def _numbers(lines: list[str], places: Sequence[int], width: int) -> NDArray[np.float64]:
    """Return the numbers in the given columns of split lines, (n, d)."""
    try:
        return np.column_stack(_cells(lines, places, width, "float64"))
    except ValueError:  # a cell is not a number: read its column cell by cell
        if len(places) > 1:
            return np.hstack([_numbers(lines, [one], width) for one in places])
    (texts,) = _cells(lines, places, width, "string")
    return read_cells(pd.Series(texts, dtype=object)).numbers[:, None]


def _cells(lines: list[str], places: Sequence[int], width: int, kind: str) -> list[NDArray[Any]]:
    """Return the given columns, all of one of pyarrow's types.

    Raises:
        ValueError: if a cell has another type.
    """
    import pyarrow
    from pyarrow import csv as reader

    content = ("\n".join(lines) + "\n" * bool(lines)).encode()
    names = [str(place) for place in range(width)]
    chosen = [names[place] for place in places]
    if not lines:
        return [np.empty(0) for _ in chosen]
    found = reader.read_csv(
        pyarrow.BufferReader(content),
        reader.ReadOptions(column_names=names, block_size=len(content) + 1, use_threads=False),
        reader.ParseOptions(delimiter=_BETWEEN, quote_char=False, ignore_empty_lines=False),
        reader.ConvertOptions(
            include_columns=chosen,
            column_types=dict.fromkeys(chosen, pyarrow.type_for_alias(kind)),
        ),
    )
    return [found.column(name).to_numpy() for name in chosen]

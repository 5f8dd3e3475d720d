"""Tables of text: CSV, by pyarrow on whole lines.

A record is one physical line, so that no line affects another: an unclosed quote in one record must
not swallow the records below. A line that cannot be split is left out alone. pyarrow's own reader
does not keep this: an open quote takes the next lines, and a lone carriage return makes two records
of one. So it is given lines whose quotes are closed, without carriage returns.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bdpvi._ground.outputs import GUARDED
from bdpvi.datasets.columns import with_text_names
from bdpvi.datasets.digests import of_bytes
from bdpvi.datasets.formats import CHARSETS, FileFormat
from bdpvi.datasets.stored import Reader, Stored, unpacked

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyarrow import Table

CHUNK = 1 << 21
"""Number of bytes that are parsed at once."""
_SEPARATORS = (",", ";", "\t", "|")
_BY_NAME = {"tab": "\t", "\\t": "\t"}
_BETWEEN = "\x1f"
"""Separates values where pandas guesses; in a cell it becomes a replacement character."""
_GUARDED = re.compile(rf"\A'({GUARDED})")
"""A text that :func:`bdpvi._ground.outputs.cell` keeps from being a formula."""


@dataclass(frozen=True)
class Text(Reader):
    """A file of text. Its places are ranges of bytes, with the lines that begin there.

    Attributes:
        format: how it is written.
        old: whether lone carriage returns end its lines, as on an old Macintosh.
    """

    format: FileFormat
    old: bool = False

    @classmethod
    def of(cls, file: Stored, kind: str, format: FileFormat) -> Text:
        """Open a file; only its header is read.

        Raises:
            ValueError: naming the file, if its header cannot be read.
        """
        separator_of(format.separator)
        made = cls(file, kind, (), format)
        with file.open() as opened:
            head: bytes = _content(opened, made).readline()
        ended = head.removesuffix(b"\n").removesuffix(b"\r")
        first, old = ended.partition(b"\r")[0], b"\r" in ended
        charset = "utf-8-sig" if format.charset == "utf-16" else CHARSETS[format.charset]
        errors = "surrogateescape" if charset == "utf-8-sig" else "replace"
        line = first.decode(charset, errors)
        format = by_suffix(file.path, line, format)
        names = _header(line, file.path, separator_of(format.separator))
        return cls(file, kind, tuple(names), format, old)

    @property
    def whole(self) -> bool:
        """Whether the file is one block."""
        wide = self.format.multiline or self.format.charset == "utf-16"
        return wide or self.old or self.kind != "text"

    def places(self, size: int) -> list[tuple[int, int]]:
        """Return ranges of so many bytes."""
        end = self.file.size
        step = max(end, 1) if self.whole else size
        return [(at, min(at + step, end)) for at in range(0, max(end, 1), step)]

    def words(self, place: tuple[int, int]) -> str:
        """Return a place in words."""
        return "bytes {} to {}".format(*place)

    def rows(self, place: tuple[int, int]) -> Iterator[tuple[Table, int, int]]:
        """Yield columns of text, the number of lines left out, and the digest of their bytes."""
        none = True
        for content in self._chunks(*place):
            none = False
            yield *parsed(content, self.names, self.format), of_bytes(content)
        self.file.check()
        if none:
            yield *parsed(b"", self.names, self.format), 0

    def _chunks(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the lines that begin in a range, without the header; all of a whole file."""
        with self.file.open() as opened:
            stream = _content(opened, self)
            at = max(start - 1, 0)
            if at:
                stream.seek(at)
            at += len(stream.readline())  # the header, or the end of a line that began before
            while self.whole or at < stop:
                size = CHUNK if self.whole else min(CHUNK, stop - at)
                content: bytes = stream.read(-1 if self.format.multiline else size)
                if not content:
                    return
                if not content.endswith(b"\n"):
                    content += stream.readline()
                at += len(content)
                yield content


def _content(opened: Any, text: Text) -> Any:
    """Return the bytes of a file as a stream whose lines end with a line feed."""
    stream = unpacked(opened, text.kind)
    if not text.old and text.format.charset != "utf-16":
        return stream
    content: bytes = stream.read()
    if text.format.charset == "utf-16":
        content = content.decode("utf-16", "replace").encode(errors="replace")
    if text.old:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return io.BytesIO(content)


def by_suffix(path: str, header: str, format: FileFormat) -> FileFormat:
    """Return the format of a file that its name says has tabs, if its header has some.

    >>> by_suffix("a.tsv.gz", "age\\tsick", FileFormat()).separator
    'tab'
    """
    tabs = ".tsv" in [one.lower() for one in Path(path).suffixes[-2:]] and "\t" in header
    return replace(format, separator="tab") if tabs and format.separator == "," else format


def separator_of(separator: str) -> str:
    """Return the character between values.

    Raises:
        ValueError: if it is none.
    """
    result = _BY_NAME.get(separator, separator)
    if len(result) != 1 or result in "\"'\r\n " or result == _BETWEEN:
        raise ValueError(f"separator must be one character such as , or ; got {result!r}")
    return result


def _header(line: str, path: str, separator: str) -> list[str]:
    """Return the names in a header line, which must be distinct."""
    try:
        line.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{path} is not a readable CSV file: its header is not UTF-8; name its character set, "
            "such as latin-1 or utf-16 (charset=; `bdpvi table` finds it)"
        ) from error
    if "\0" in line:
        raise ValueError(
            f"{path} is not a readable CSV file: its header has a NUL; is its character set "
            "utf-16 (charset=; `bdpvi table` finds it)?"
        )
    header = _values(line, separator)
    if header is None:
        raise ValueError(
            f"{path} is not a readable CSV file: its first line, the header, has a quote that is "
            "not closed"
        )
    if not line.strip(" "):
        raise ValueError(f"{path} is empty, or its first line, the header, is blank")
    header = [_GUARDED.sub(r"\1", name).strip() for name in header]
    others = [s for s in _SEPARATORS if s in header[0]]
    if len(header) == 1 and others:
        name = "tab" if others[0] == "\t" else others[0]
        raise ValueError(
            f"{path}: the header has no {separator!r} but {others[0]!r}; "
            f"try separator={name!r} (`bdpvi table` finds it)"
        )
    try:
        return names_of(header)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def names_of(names: Any) -> list[str]:
    """Return the names of columns as text, printable and distinct.

    Raises:
        ValueError: if one occurs twice.
    """
    shown = [str(one).strip() or f"Unnamed: {at}" for at, one in enumerate(names)]
    return list(with_text_names(pd.DataFrame(columns=shown)).columns)


def _values(line: str, separator: str) -> list[str] | None:
    """Return the values of a line, None if a quote is not closed.

    >>> _values('1, "a ""b"", c"', ","), _values('5,"oops,1', ",")
    (['1', 'a "b", c'], None)
    """
    rows = csv.reader([line], skipinitialspace=True, strict=True, delimiter=separator)
    try:
        return next(rows, [])
    except csv.Error:
        return None


def parsed(content: bytes, names: Sequence[str], format: FileFormat) -> tuple[Table, int]:
    r"""Return whole lines as columns of text, and the number of lines left out.

    >>> found, odd = parsed(b'1,2\n\n3\n4, x\n"5,6",7\n"8,9\n', ["a", "b"], FileFormat())
    >>> found.to_pydict(), odd
    ({'a': ['1', '4', '5,6'], 'b': ['2', 'x', '7']}, 2)
    """
    import pyarrow as pa
    from pyarrow import compute

    separator, odd = separator_of(format.separator), 0
    charset = format.charset if format.charset in ("latin-1", "cp1252") else "utf-8"
    if not content.isascii():
        content = content.decode(charset, "replace").encode()
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b" ")
    for sign in (b"\0", _BETWEEN.encode()):
        content = content.replace(sign, "\ufffd".encode())
    if format.multiline:
        columns, odd = _across(content.decode(), separator, len(names))
    else:
        if len(names) == 1 or not separator.isascii():
            content = re.sub(rb"(?m)^ +$", b"", content)
        if b'"' in content or not separator.isascii():
            content, odd = _close_lines(content, separator)
        columns, more = _columns(content, separator if separator.isascii() else ",", len(names))
        odd += more
    for at, column in enumerate(columns):
        if compute.any(compute.starts_with(column, " ")).as_py():
            columns[at] = column = compute.utf8_ltrim(column, " ")
        if compute.any(compute.starts_with(column, "'")).as_py():
            columns[at] = compute.replace_substring_regex(column, _GUARDED.pattern, r"\1")
    return pa.Table.from_arrays(columns, list(names)), odd


def _columns(content: bytes, separator: str, width: int) -> tuple[list[Any], int]:
    """Return the values of lines whose quotes are closed, and the number of lines left out."""
    import pyarrow as pa
    from pyarrow import csv as reader

    odd = 0
    if re.fullmatch(rb"\n*", content):
        return [pa.array([], pa.string())] * width, odd

    def skip_line(line: Any) -> str:
        nonlocal odd
        odd += bool(line.text.strip(" "))
        return "skip"

    names = [str(place) for place in range(width)]
    found = reader.read_csv(
        pa.BufferReader(content),
        reader.ReadOptions(column_names=names, block_size=len(content) + 1, use_threads=False),
        reader.ParseOptions(delimiter=separator, invalid_row_handler=skip_line),
        reader.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=False,
            check_utf8=False,
        ),
    )
    return found.columns, odd


def _close_lines(content: bytes, separator: str) -> tuple[bytes, int]:
    """Return the lines whose quotes are closed, in order, and the number of the others.

    A line is as pyarrow reads it if its quotes alternately begin and end a value, where two
    together within a value are one; other lines are read one by one, and quoted anew.
    """
    content = content if content.endswith(b"\n") else content + b"\n"
    signs = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(signs == ord("\n"))
    bad = _unclear(signs, ends, separator) if separator.isascii() else range(len(ends))
    pieces, at, odd = [], 0, 0
    for one in bad:
        start, stop = int(ends[one - 1]) + 1 if one else 0, int(ends[one])
        pieces.append(content[at:start])
        at = stop
        values = _values(content[start:stop].decode(), separator)
        if values is None:
            odd += 1
            continue
        quoted = (f'"{value.replace(chr(34), chr(34) * 2)}"' for value in values)
        pieces.append((separator if separator.isascii() else ",").join(quoted).encode())
    return b"".join([*pieces, content[at:]]), odd


def _unclear(signs: NDArray[np.uint8], ends: NDArray[np.int64], separator: str) -> list[int]:
    """Return the numbers of lines whose quotes do not alternate, or that may be too long."""
    quotes = np.flatnonzero(signs == ord('"'))
    line = np.searchsorted(ends, quotes)
    first = np.flatnonzero(np.diff(line, prepend=-1))
    count = np.diff(first, append=len(quotes))
    opens = (np.arange(len(quotes)) - np.repeat(first, count)) % 2 == 0
    beside = signs[np.where(opens, quotes - 1, quotes + 1)]
    good = np.isin(beside, [ord(separator), ord("\n"), ord('"')]) | (opens & (quotes == 0))
    long = np.diff(ends, prepend=-1)[line[first]] > csv.field_size_limit()
    return sorted({*line[~good].tolist(), *line[first[(count % 2 == 1) | long]].tolist()})


def _across(content: str, separator: str, width: int) -> tuple[list[Any], int]:
    """Do :func:`_columns` for records whose quotes may span several lines."""
    import pyarrow as pa

    lines = (f"{line}\n" for line in content.removesuffix("\n").split("\n"))
    rows, odd = [], 0
    for values in _records(csv.reader(lines, skipinitialspace=True, delimiter=separator)):
        if values is not None and len(values) == width:
            rows.append([value.replace("\n", " ") for value in values])
        else:
            odd += values is None or bool("".join(values).strip(" "))
    columns = zip(*rows, strict=True) if rows else [()] * width
    return [pa.array(column, pa.string()) for column in columns], odd


def _records(rows: Iterator[list[str]]) -> Iterator[list[str] | None]:
    while True:
        try:
            yield next(rows)
        except csv.Error:
            yield None
        except StopIteration:
            return


def guessed(found: Table, format: FileFormat) -> pd.DataFrame:
    """Return columns of text as pandas guesses them, by the signs of numbers."""
    from pyarrow import compute

    if not len(found):
        return pd.DataFrame({name: pd.Series([], dtype=object) for name in found.column_names})
    lines = compute.binary_join_element_wise(*found.columns, _BETWEEN).to_pylist()
    try:
        guess: pd.DataFrame = pd.read_csv(
            io.StringIO("\n".join(lines) + "\n"),
            sep=_BETWEEN,
            header=None,
            names=found.column_names,
            index_col=False,
            quoting=csv.QUOTE_NONE,
            lineterminator="\n",
            skip_blank_lines=False,
            low_memory=False,
            decimal=format.decimal,
            thousands=format.thousands or None,
        )
    except (pd.errors.ParserError, OverflowError):  # a number that pandas cannot hold
        guess = found.to_pandas(use_threads=False)
    return guess

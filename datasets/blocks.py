"""Tables in blocks: files larger than memory, folders and globs of them, and Dask data frames.

A block is a row group of a Parquet file, a range of bytes of a CSV file, or a partition of a Dask
data frame. It is read whenever a sum needs it (:mod:`bdpvi.datasets.records`).
"""

from __future__ import annotations

import glob
import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from bdpvi.datasets import digests
from bdpvi.datasets.digests import DIGEST
from bdpvi.datasets.encoding import with_text_names
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.reading import read_opened
from bdpvi.datasets.records import Block, Spread

_PARQUET, _CSV = (".parquet", ".pq"), (".csv",)
BYTES = 1 << 23
"""Size of a CSV file's blocks."""
ROWS = 1 << 14
"""Most rows of a block that are worked on at once: their features fit in a processor's cache."""
LEFT_OUT = "left out"
"""Attribute of a block's rows: the number of lines that cannot be split."""
ODD = "too few or too many values, or a quote that is not closed"
"""Why a line is left out."""
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Stored:
    """A file, local or at a URL, as it was when the table was opened.

    Attributes:
        path: its path or URL.
        size: its size in bytes.
        stamp: changes with its content: a time, or what its store says.
    """

    path: str
    size: int
    stamp: str

    @classmethod
    def of(cls, path: str) -> Stored:
        """Return the file as it is now.

        Raises:
            OSError: if it cannot be opened.
        """
        if "://" in path:
            files, inner = _store(path)
            return cls(path, int(files.size(inner)), str(files.ukey(inner)))
        found = os.stat(path)
        return cls(path, found.st_size, str(found.st_mtime_ns))

    def open(self) -> Any:
        """Return the opened file.

        Raises:
            ValueError: if it has changed.
        """
        self.check()
        return _store(self.path)[0].open(self.path) if "://" in self.path else open(self.path, "rb")

    def check(self) -> None:
        """Raise ValueError if it has changed."""
        if Stored.of(self.path) != self:
            raise ValueError("the file has changed since the table was opened")


@dataclass(frozen=True)
class Lines:
    """The lines of a CSV file that begin in a range of bytes.

    Attributes:
        file: the file.
        start, stop: the range, whole files with ``start`` 0 and the file's size.
        head: the first line as it is written, with its end.
        format: how the file is written.
        header: the names of all columns, in the order of the table.
    """

    file: Stored
    start: int
    stop: int
    head: bytes
    format: FileFormat
    header: tuple[str, ...]

    @property
    def name(self) -> str:
        """The block in words."""
        return f"{self.file.path}, bytes {self.start} to {self.stop}"

    def read(self) -> Iterator[pd.DataFrame]:
        """Yield the rows as text, at most :data:`ROWS` at a time."""
        with self.file.open() as opened:
            content = _range(opened, self)
        self.file.check()
        made, odd = read_opened(io.BytesIO(content), self.file.path, self.format, text=True)
        made = with_text_names(made)[list(self.header)]
        first = {LEFT_OUT: odd, DIGEST: digests.of_bytes(content)}
        for start in range(0, max(len(made), 1), ROWS):
            part = made.iloc[start : start + ROWS]
            part.attrs |= {LEFT_OUT: 0, DIGEST: 0} if start else first
            yield part


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file.

    Attributes:
        file: the file.
        group: number of the row group; None for a file without any, which has no rows.
        header: the names of all columns, in the order of the table.
    """

    file: Stored
    group: int | None
    header: tuple[str, ...]

    @property
    def name(self) -> str:
        """The block in words."""
        return f"{self.file.path}, row group {self.group}"

    def read(self) -> Iterator[pd.DataFrame]:
        """Yield the rows, at most :data:`ROWS` at a time."""
        begin = 0
        for batch in self.batches():
            made = with_text_names(batch.to_pandas(use_threads=False))[list(self.header)]
            end = begin + len(made)
            part = made.set_axis(pd.RangeIndex(begin, end))
            part.attrs[DIGEST] = 0
            yield part
            begin = end
        self.file.check()

    def batches(self) -> Iterator[Any]:
        """Yield the rows as record batches of pyarrow, at least one, which may be empty."""
        from pyarrow import RecordBatch, parquet

        with self.file.open() as opened, parquet.ParquetFile(opened, pre_buffer=False) as file:
            none = True
            groups = [] if self.group is None else [self.group]
            for batch in file.iter_batches(ROWS, row_groups=groups, use_threads=False):
                none = False
                batch.validate(full=True)  # texts are UTF-8
                yield batch
            if none:
                yield RecordBatch.from_pylist([], schema=file.schema_arrow)


@dataclass(frozen=True)
class Partition:
    """A partition of a Dask data frame.

    Attributes:
        number: its number.
        rows: the delayed rows.
    """

    number: int
    rows: Any = field(repr=False)

    @property
    def name(self) -> str:
        """The block in words."""
        return f"partition {self.number}"

    def read(self) -> Iterator[pd.DataFrame]:
        """Yield the rows, at most :data:`ROWS` at a time."""
        made = with_text_names(self.rows.compute(scheduler="synchronous"))
        found = digests.of_rows(made)
        for start in range(0, max(len(made), 1), ROWS):
            part = made.iloc[start : start + ROWS]
            part.attrs[DIGEST] = 0 if start else found
            yield part


@dataclass(frozen=True)
class Range:
    """Some bytes of a file."""

    file: Stored
    start: int
    stop: int

    @property
    def name(self) -> str:
        """The range in words."""
        return f"{self.file.path}, bytes {self.start} to {self.stop}"

    def read(self) -> Iterator[bytes]:
        """Yield the bytes."""
        with self.file.open() as opened:
            opened.seek(self.start)
            yield opened.read(self.stop - self.start)


@dataclass(frozen=True)
class Blocks:
    """A table in blocks; :func:`bdpvi.private` takes it, or its path.

    Attributes:
        path: where it is, "" for a Dask data frame.
        header: the names of its columns.
        parts: its blocks.
        file: how its files are written; of Parquet files only the signs of numbers in text matter.
        seen: by block, a digest of its rows: every pass must read those of the first.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, row in (("a.csv", "1,yes"), ("b.csv", "2,no")):
    ...         _ = (Path(folder) / name).write_text(f"age,sick\\n{row}\\n")
    ...     table = Blocks.of(folder)
    ...     table.header, len(table.parts), table.records().sum(len)
    (('age', 'sick'), 2, 2)
    """

    path: str
    header: tuple[str, ...]
    parts: tuple[Block, ...] = field(repr=False)
    file: FileFormat = field(default_factory=FileFormat)
    seen: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, table: Any, file: FileFormat | None = None, size: int = BYTES) -> Blocks:
        """Return the blocks of a table.

        Args:
            table: a CSV or Parquet file, a folder or glob of files of one kind, each a path or a
                URL of :mod:`fsspec`; or a Dask data frame.
            file: how CSV files are written.
            size: size of a CSV file's blocks in bytes. A file is one block if values may span
                lines, or if it is of UTF-16.

        Raises:
            ValueError: if there are no such files, or their headers differ.
        """
        if is_dask(table):
            parts = tuple(Partition(*one) for one in enumerate(table.to_delayed()))
            header = with_text_names(table._meta).columns
            return cls("", tuple(header), parts)
        path, file = os.fspath(table), file or FileFormat()
        names = files_of(path)
        if Path(names[0]).suffix.lower() in _PARQUET:
            return _of_parquet(path, [_stored(name) for name in names], file)
        return _of_csv(path, [_stored(name) for name in names], file, size)

    def records(self, executor: Executor | None = None, **shown: Any) -> Spread[pd.DataFrame]:
        """Return the rows, to be summed; ``shown`` as for :class:`~bdpvi.datasets.records.Spread`.

        Args:
            executor: the workers; None for this process.
            shown: how progress is shown.
        """
        return Spread(self.parts, executor=executor, seen=self.seen, **shown)

    def fingerprint(self, executor: Executor | None = None) -> str:
        """Return a SHA-256 digest of the table, by one pass. Not for publication."""
        digest = hashlib.sha256(repr(self.header).encode())
        stored = (part.file for part in self.parts if isinstance(part, Lines | RowGroup))
        files = dict.fromkeys(stored)
        ranges = [
            Range(one, start, min(start + BYTES, one.size))
            for one in files
            for start in range(0, one.size, BYTES)
        ]
        rows = self.records(executor)
        for one in (Spread(ranges, executor=executor) if ranges else rows).each(_digest):
            digest.update(one.encode())
        return digest.hexdigest()


def is_dask(table: object) -> bool:
    """Return whether a table is a Dask data frame; Dask is not imported."""
    return hasattr(table, "to_delayed") and hasattr(table, "_meta")


def in_blocks(table: object) -> bool:
    """Return whether a table is one in blocks, and no single file.

    >>> in_blocks("patients/*.csv"), in_blocks("s3://patients/2024.parquet"), in_blocks("a.csv")
    (True, True, False)
    """
    if isinstance(table, str | os.PathLike):
        path = os.fspath(table)
        return not os.path.isfile(path) and (
            "://" in path or os.path.isdir(path) or glob.has_magic(path)
        )
    return isinstance(table, Blocks) or is_dask(table)


def files_of(path: str) -> list[str]:
    """Return the files of a table in order: itself, those in a folder, or those of a glob.

    Raises:
        ValueError: if there are none, or they are of several kinds.
    """
    kinds = _PARQUET + _CSV
    if "://" in path:
        files, inner = _store(path)
        found = files.glob(inner) if glob.has_magic(inner) else [inner]
        if len(found) == 1 and files.isdir(found[0]):
            found = files.ls(found[0], detail=False)
        names = [files.unstrip_protocol(one) for one in found]
    elif os.path.isdir(path):
        names = [entry.path for entry in os.scandir(path) if entry.is_file()]
    else:
        names = [path] if os.path.isfile(path) else glob.glob(path)
    if len(names) > 1 or os.path.isdir(path):
        names = [one for one in names if Path(one).suffix.lower() in kinds]
        names = sorted(one for one in names if not Path(one).name.startswith((".", "_")))
    if not names:
        raise ValueError(f"{path!r} is neither a file nor a folder or glob of {', '.join(kinds)}")
    if len({Path(one).suffix.lower() in _PARQUET for one in names}) > 1:
        raise ValueError(f"{path!r} has both Parquet and CSV files; name one kind, such as *.csv")
    return names


def _store(path: str) -> tuple[Any, str]:
    """Return the store of a URL and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ValueError(f"{path!r} is a URL, which needs: pip install 'bdpvi[dask]'") from error
    files, inner = url_to_fs(path)
    return files, str(inner)


def _stored(name: str) -> Stored:
    try:
        return Stored.of(name)
    except OSError as error:
        raise ValueError(f"{name} cannot be opened: {error}") from error


def _same(header: Sequence[str], first: Sequence[str], path: str, other: str) -> None:
    """Refuse a file whose columns are not those of the first."""
    for names, more, lacking in ((header, first, other), (first, header, path)):
        if extra := [name for name in names if name not in more]:
            raise ValueError(
                f"{path} has other columns than {other}: {extra[0]!r} is not in {lacking}"
            )


def _of_parquet(path: str, files: list[Stored], file: FileFormat) -> Blocks:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(
            f"{path} is in Parquet files, which need pyarrow: pip install 'bdpvi[stream]'"
        ) from error
    parts: list[Block] = []
    header: tuple[str, ...] = ()
    for one in files:
        try:
            with one.open() as opened, parquet.ParquetFile(opened) as found:
                names = with_text_names(found.schema_arrow.empty_table().to_pandas()).columns
                groups = found.num_row_groups
        except Exception as error:  # a damaged file can raise anything in pyarrow or pandas
            raise ValueError(f"{one.path} is not a readable Parquet file: {error}") from error
        header = header or tuple(names)
        _same(tuple(names), header, one.path, files[0].path)
        parts += [RowGroup(one, group, header) for group in range(groups)]
    return Blocks(path, header, tuple(parts or [RowGroup(files[0], None, header)]), file)


def _of_csv(path: str, files: list[Stored], file: FileFormat, size: int) -> Blocks:
    parts: list[Block] = []
    header: tuple[str, ...] = ()
    for one in files:
        with one.open() as opened:
            head = opened.readline()
            # A lone carriage return ends the lines of old files; UTF-16 has no bytes for line ends.
            whole = file.multiline or file.charset == "utf-16" or b"\r" in head[:-2]
            shown = head + opened.read() if whole else head
        made = read_opened(io.BytesIO(shown), one.path, file, text=True)[0]
        names = with_text_names(made).columns
        header = header or tuple(names)
        _same(tuple(names), header, one.path, files[0].path)
        step = max(one.size, 1) if whole else size
        parts += [
            Lines(one, start, min(start + step, one.size), head, file, header)
            for start in range(0, max(one.size, 1), step)
        ]
    return Blocks(path, header, tuple(parts), file)


def _range(opened: Any, lines: Lines) -> bytes:
    """Return the header line and the lines that begin in a range."""
    begin = max(lines.start - 1, 0)
    opened.seek(begin)
    content: bytes = opened.read(lines.stop - begin)
    while not content.endswith(b"\n") and (more := opened.readline(_CHUNK)):
        content += more
    if lines.start == 0:
        return content
    return lines.head + content.partition(b"\n")[2]


def _digest(part: Any) -> str:
    """Return the digest of bytes, or of rows."""
    content = part if isinstance(part, bytes) else part.to_csv().encode("utf-8", "replace")
    return hashlib.sha256(content).hexdigest()

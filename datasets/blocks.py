"""Tables in blocks: files larger than memory, folders and globs of them, and Dask data frames.

A block is a part of the table (:mod:`bdpvi.datasets.openers`), such as a row group of a Parquet
file, a range of bytes of a CSV file, or a partition of a Dask data frame. It is read whenever a sum
needs it (:mod:`bdpvi.datasets.records`).
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bdpvi.datasets.encoding import with_text_names
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.objects import LEFT_OUT as LEFT_OUT
from bdpvi.datasets.objects import in_memory
from bdpvi.datasets.openers import BYTES as BYTES
from bdpvi.datasets.openers import MANY, Partition, of_files
from bdpvi.datasets.records import Block, Spread
from bdpvi.datasets.stored import Stored

if TYPE_CHECKING:
    import pandas as pd

ODD = "too few or too many values, or a quote that is not closed"
"""Why a line is left out."""


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
    >>> from pathlib import Path
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
            table: a file, or a folder or glob of files of one kind, each a path or a URL of
                :mod:`fsspec`; a Dask data frame; or a table in memory, of pandas,
                Polars, DuckDB or pyarrow, or a query with its connection.
            file: how files of text are written.
            size: size of the blocks of a file of text in bytes. It is one block if values may span
                lines, if it is compressed, or if it is of UTF-16.

        Raises:
            ValueError: if there are no such files, or their headers differ.
        """
        if isinstance(table, str | os.PathLike):
            path, file = os.fspath(table), file or FileFormat()
            header, parts = of_files(path, file, size)
            return cls(path, tuple(header), tuple(parts), file)
        if is_dask(table):
            names, rows = with_text_names(table._meta).columns, table.to_delayed()
        else:
            table = in_memory(table)
            names = with_text_names(table).columns
            rows = [table.iloc[at : at + MANY] for at in range(0, max(len(table), 1), MANY)]
        return cls("", tuple(names), tuple(Partition(*one) for one in enumerate(rows)))

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
        files = dict.fromkeys(part.file for part in self.parts if hasattr(part, "file"))
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


def _digest(part: Any) -> str:
    """Return the digest of bytes, or of rows."""
    content = part if isinstance(part, bytes) else part.to_csv().encode("utf-8", "replace")
    return hashlib.sha256(content).hexdigest()

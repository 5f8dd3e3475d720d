"""One table, whoever brings it: files, folders and globs of them, data frames, queries, lists.

Its parts (:mod:`bdpvi.datasets.openers`) are row groups of a Parquet file, ranges of bytes of a CSV
file, or rows in memory. Each is read whenever a sum needs it (:mod:`bdpvi.datasets.records`).
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import pandas as pd

from bdpvi._ground.outputs import several
from bdpvi._ground.types import tell_owner
from bdpvi.datasets.cells import read_cells
from bdpvi.datasets.columns import with_text_names
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.lines import guessed, separator_of
from bdpvi.datasets.objects import LEFT_OUT as LEFT_OUT
from bdpvi.datasets.objects import frame_of, in_memory
from bdpvi.datasets.openers import BYTES as BYTES
from bdpvi.datasets.openers import GROUPED, MANY, Partition, of_files
from bdpvi.datasets.records import Part, Spread
from bdpvi.datasets.schema import Schema
from bdpvi.datasets.stored import KINDS, TEXT, Stored

if TYPE_CHECKING:  # torch takes long to load
    from torch import Tensor

    from bdpvi.datasets.dataset import BlockData

ODD = "too few or too many values, or a quote that is not closed"
"""Why a line is left out."""
MOST = 200_000
"""Most rows that are looked at in memory."""


@dataclass(frozen=True)
class Table:
    """A table, read in blocks; :func:`bdpvi.private` and :func:`bdpvi.synthesize` take it.

    Attributes:
        path: where it is, "" for a table in memory.
        header: the names of its columns.
        parts: its blocks.
        file: how its files are written; of Parquet files only the signs of numbers in text matter.
        schema: declared types of its columns, where a call is given none.
        seen: by block, a digest of its rows: every pass must read those of the first.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, row in (("a.csv", "1,yes"), ("b.csv", "2,no")):
    ...         _ = (Path(folder) / name).write_text(f"age,sick\\n{row}\\n")
    ...     table = Table.of(folder)
    ...     table.header, len(table.parts), table.records().sum(len)
    (('age', 'sick'), 2, 2)
    """

    path: str
    header: tuple[str, ...] = field(repr=False)
    parts: tuple[Part, ...] = field(repr=False)
    file: FileFormat = field(default_factory=FileFormat)
    schema: Schema | None = field(default=None, repr=False)
    seen: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        table: Any,
        schema: Schema | None = None,
        file: FileFormat | None = None,
        *,
        size: int = BYTES,
    ) -> Table:
        """Return a table; of a file only the header is read.

        Args:
            table: a file, or a folder or glob of files of one kind, each a path or a URL of
                :mod:`fsspec`: CSV, Parquet, Feather, ORC, Excel, SPSS, SAS or Stata, told by
                content, then by name; text may be compressed (gzip, bzip2, zstd, or a zip archive
                of one file). Or a data frame of Dask, or a torch ``Dataset``; or anything that
                :func:`bdpvi.datasets.objects.in_memory` takes: frames, queries, arrays, lists. What
                gives its rows once is read here, into memory.
            schema: declared types of its columns.
            file: how files of text are written. A ``.tsv`` file whose header has tabs needs none.
            size: size of the blocks of a file of text in bytes. It is one block if values may span
                lines, if it is compressed, or if it is of UTF-16.

        Raises:
            ValueError: naming what cannot be read; or if headers of files differ.
        """
        if isinstance(table, Table):
            return table if schema is None else replace(table, schema=schema)
        if is_path(table):
            path, file = os.fspath(table), file or FileFormat()
            separator_of(file.separator)  # refused before a file is opened
            header, parts = of_files(path, file, size)
            return cls(path, header, tuple(parts), file, schema)
        from bdpvi.datasets.items import Items, by_index

        rows: Any
        if is_dask(table):
            names, rows = list(with_text_names(table._meta).columns), table.to_delayed()
        elif isinstance(table := in_memory(table), pd.DataFrame):
            names = list(with_text_names(table).columns)
            rows = [table.iloc[at : at + MANY] for at in range(0, max(len(table), 1), MANY)]
        elif by_index(table):
            items = Items.of(table)
            names, rows = list(items.header), items.blocks
        else:
            raise ValueError(
                f"table: {type(table).__name__} is none of a path, a data frame, a query with its "
                "connection, an array, or a list of rows"
            )
        return cls(
            "", tuple(names), tuple(Partition(*one) for one in enumerate(rows)), schema=schema
        )

    def records(self, executor: Executor | None = None, **shown: Any) -> Spread[pd.DataFrame]:
        """Return the rows, to be summed; ``shown`` as for :class:`~bdpvi.datasets.records.Spread`.

        Args:
            executor: the workers; None for this process.
            shown: how progress is shown.
        """
        return Spread(self.parts, executor=executor, seen=self.seen, **shown)

    def fingerprint(self) -> str:
        """Return a SHA-256 digest of the table, by one pass. Not for publication."""
        digest = hashlib.sha256(repr(self.header).encode())
        files = dict.fromkeys(part.file for part in self.parts if hasattr(part, "file"))
        for content in _contents([*files]) if files else self.records().rows():
            if not isinstance(content, bytes):
                content = content.to_csv().encode("utf-8", "replace")
            digest.update(hashlib.sha256(content).hexdigest().encode())
        return digest.hexdigest()

    def first(self, most: int | None = None) -> tuple[pd.DataFrame, bool, int]:
        """Return the first rows, those of CSV files as text; no more blocks are read.

        Args:
            most: how many; by default :data:`MOST`.

        Returns:
            The rows, whether the table has no others, and the number of lines of their blocks that
            are left out, as :data:`ODD` says.

        Raises:
            ValueError: naming a block that cannot be read.

        >>> table = Table.of([{"age": 40}, {"age": 50}, {"age": 60}])
        >>> table.first(2)[0]["age"].tolist(), table.first(2)[1:]
        ([40, 50], (False, 0))
        """
        most = MOST if most is None else most
        parts: list[pd.DataFrame] = []
        rows = 0
        for one in self.records().rows():
            parts.append(one)
            rows += len(one)
            if rows > most:
                break
        odd = sum(int(part.attrs.get(LEFT_OUT, 0)) for part in parts)
        plain = [part.copy(deep=False) for part in parts if len(part)] or parts[:1]
        for one in plain:
            one.attrs = {}
        frame = pd.concat(plain, ignore_index=True)
        return frame.head(most), rows <= most, odd

    def frame(
        self, *, text: bool = False, least: int = 1, written: Collection[str] = ()
    ) -> pd.DataFrame:
        """Return all rows, in memory.

        Args:
            text: return the values of text as written, a blank as an empty string; otherwise
                columns of text have the types that pandas guesses, by the file's signs of numbers.
            least: fewest rows accepted.
            written: columns whose values are returned as written, without ``text`` too.

        Warns:
            PrivacyUtilityWarning: about lines that are left out because they have more or fewer
                values than the header, or an unclosed quote. For the owner only.

        Raises:
            ValueError: naming the file: it cannot be read, or has a header without rows.
        """
        named = [one for one in self.header if one in written]
        try:
            frame, odd = _whole(self.parts, text, self.file, named)
        except Exception as error:  # a damaged file can raise anything
            what = KINDS[getattr(self.parts[0], "kind", "text")].words
            raise ValueError(f"{self.path} is not a readable {what}: {error}") from error
        if len(frame) < least:
            raise ValueError(f"{self.path or 'table'} has a header but no rows")
        values = several(len(self.header), "value")
        tell_owner(odd, "line", f"not {values}, or a quote that is not closed, in {self.path}")
        return frame

    def numbers(
        self,
        target: str,
        features: Sequence[str] | None = None,
        *,
        name: str | None = None,
        preprocessing: Mapping[str, Any] | None = None,
    ) -> BlockData:
        """Return the records of columns that are numbers already, for :func:`bdpvi.fit`.

        A record with a line that cannot be split, a value that is not a finite number, or a target
        other than 0 and 1 is left out by itself. One pass counts them; every further pass reads the
        blocks anew, so the table need not fit in memory.

        Args:
            target: name of the column of targets, 0 or 1.
            features: names of the columns of features; by default all others.
            name: the data's name in reports; by default the name of the file or folder.
            preprocessing: public constants used to make the columns, see
                :class:`~bdpvi.datasets.dataset.Dataset`.

        Warns:
            PrivacyUtilityWarning: with the number of records that are left out. For the owner only.

        Raises:
            ValueError: naming a column that the table lacks.

        >>> table = Table.of([{"age": 0.5, "sick": 0}, {"age": -1, "sick": 1}])
        >>> data = table.numbers("sick")
        >>> len(data), data.feature_names, data.parts.sum(lambda part: part[0].sum().item())
        (2, ('age',), -0.5)
        """
        from bdpvi.datasets.dataset import BlockData, People

        names = [n for n in self.header if n != target] if features is None else list(features)
        for argument, one in [("target", target), *(("features", one) for one in names)]:
            if one not in self.header:
                raise ValueError(
                    f"{argument}: {one!r} is not a column of {self.path or 'the table'}, "
                    f"which has {list(self.header)}"
                )
        if target in names or not names:
            raise ValueError(f"features={names} must name columns but the target")
        rows, columns = self.records(), (*names, target)
        left_out, kept = rows.sum(_count_records, columns)
        why = (
            "a line cannot be split, a value is not a finite number, or a target is neither 0 nor 1"
        )
        tell_owner(left_out, "record", why)
        known = os.path.basename(os.path.normpath(self.path)) if self.path else "data"
        return BlockData(
            rows.map(_numbers, columns), kept, tuple(names), name or known,
            dict(preprocessing or {}), People(),
        )  # fmt: skip


def is_path(table: object) -> TypeGuard[str | os.PathLike[str]]:
    """Return whether a table is a path, or a glob or a URL."""
    return isinstance(table, str | os.PathLike)


def is_dask(table: object) -> bool:
    """Return whether a table is a Dask data frame; Dask is not imported."""
    return hasattr(table, "to_delayed") and hasattr(table, "_meta")


def in_blocks(table: object) -> bool:
    """Return whether a table is one in blocks, and no single file.

    >>> in_blocks("patients/*.csv"), in_blocks("s3://patients/2024.parquet"), in_blocks("a.csv")
    (True, True, False)
    """
    if is_path(table):
        path = os.fspath(table)
        return not os.path.isfile(path) and (
            "://" in path or os.path.isdir(path) or glob.has_magic(path)
        )
    from bdpvi.datasets.items import by_index

    return isinstance(table, Table) or is_dask(table) or by_index(table)


def _contents(files: Sequence[Stored]) -> Iterator[bytes]:
    """Yield the bytes of files, a few at a time."""
    for file in files:
        try:
            with file.open() as opened:
                while content := opened.read(BYTES):
                    yield content
        except Exception as error:
            raise ValueError(f"{file.path}: {error}") from error


def _whole(
    parts: Sequence[Any], text: bool, file: FileFormat, written: list[str]
) -> tuple[pd.DataFrame, int]:
    """Return all rows, and the number of lines left out."""
    import pyarrow as pa

    kind = getattr(parts[0], "kind", "")
    if kind not in (*TEXT, *GROUPED):
        frame = pd.concat([one for part in parts for one in part.read()], ignore_index=True)
        return (frame if text else frame.infer_objects()), 0
    tables = [one for part in parts for one in part.tables()]
    table, odd = pa.concat_tables([rows for rows, _ in tables]), sum(odd for _, odd in tables)
    if text or kind in GROUPED:
        return frame_of(table), odd
    frame = guessed(table, file)
    return frame.assign(**frame_of(table.select(written))), odd


def _numbers(frame: pd.DataFrame, columns: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return features (n, d) and targets (n,) of the records that can be used."""
    import torch

    values = np.column_stack([read_cells(frame[name]).numbers for name in columns])
    target = values[:, -1]
    good = np.isfinite(values).all(1) & ((target == 0) | (target == 1))
    found = torch.from_numpy(values[good])
    return found[:, :-1], found[:, -1]


def _count_records(frame: pd.DataFrame, columns: Sequence[str]) -> tuple[int, int]:
    """Return the number of records that cannot be used, and of those that can."""
    kept = len(_numbers(frame, columns)[1])
    return len(frame) - kept + int(frame.attrs.get(LEFT_OUT, 0)), kept

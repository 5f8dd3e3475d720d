"""From a source to its parts: one opener for each format.

A part is a row group, a range of bytes, a sheet or some rows: what a worker can read by itself, as
pandas frames. Opening a source reads its header alone, unless it gives its rows only once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from bdpvi.datasets import objects
from bdpvi.datasets.columns import with_text_names
from bdpvi.datasets.digests import of_bytes, of_rows
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.lines import Text, chunks, names_of, parsed
from bdpvi.datasets.objects import cleaned, frame_of, sliced
from bdpvi.datasets.records import Part
from bdpvi.datasets.sheets import READERS, Observations, Sheet
from bdpvi.datasets.stored import NAMES, TEXT, Stored, files_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table
    from pyarrow import Schema as Columns

BYTES = 1 << 23
"""Size of a CSV file's blocks."""
MANY = 1 << 16
"""Rows of a part of a source in memory, or of a statistics file."""
_INDEX = re.compile(r"__index_level_\d+__")


class _Arrow:
    """A part that is read as tables of pyarrow."""

    header: tuple[str, ...]

    def tables(self) -> Iterator[tuple[Table, int, int]]:
        """Yield rows, the number of lines left out, and the digest of what was read."""
        raise NotImplementedError

    def read(self) -> Iterator[pd.DataFrame]:
        """Yield the rows, at most :data:`.objects.ROWS` at a time."""
        begin = 0
        for table, odd, digest in self.tables():
            for at in range(0, max(len(table), 1), objects.ROWS):
                made = frame_of(table.slice(at, objects.ROWS).select(self.header))
                made.index = pd.RangeIndex(begin, begin + len(made))
                begin += len(made)
                yield from sliced(made, 0 if at else odd, 0 if at else digest)


@dataclass(frozen=True)
class Lines(_Arrow):
    """The lines of a file of text that begin in a range of bytes.

    Attributes:
        text: the file.
        start, stop: the range, whole files with ``start`` 0 and the file's size.
        header: the names of all columns, in the order of the table.
    """

    text: Text
    start: int
    stop: int
    header: tuple[str, ...]

    @property
    def file(self) -> Stored:
        """The file."""
        return self.text.file

    @property
    def name(self) -> str:
        """The block in words."""
        return f"{self.file.path}, bytes {self.start} to {self.stop}"

    def tables(self) -> Iterator[tuple[Table, int, int]]:
        """Yield columns of text, the number of lines left out, and the digest of their bytes."""
        none = True
        for content in chunks(self.text, self.start, self.stop):
            none = False
            yield *parsed(content, self.text.names, self.text.format), of_bytes(content)
        self.file.check()
        if none:
            yield *parsed(b"", self.text.names, self.text.format), 0


@dataclass(frozen=True)
class RowGroup(_Arrow):
    """A row group of a Parquet file, a batch of a Feather file, or a stripe of an ORC file.

    Attributes:
        file: the file.
        kind: its format.
        group: number of the row group; None for a file without any, which has no rows.
        header: the names of all columns, in the order of the table.
    """

    file: Stored
    kind: str
    group: int | None
    header: tuple[str, ...]

    @property
    def name(self) -> str:
        """The block in words."""
        return f"{self.file.path}, row group {self.group}"

    def tables(self) -> Iterator[tuple[Table, int, int]]:
        """Yield the rows, in at least one table; the file is watched, so they need no digest."""
        with self.file.open() as opened:
            found = Groups.of(opened, self.kind)
            none = True
            for table in () if self.group is None else found.tables(self.group):
                none = False
                yield table, 0, 0
            if none:
                yield found.empty, 0, 0
        self.file.check()

    def columns(self) -> Columns:
        """Return names and types of the file's columns."""
        with self.file.open() as opened:
            return Groups.of(opened, self.kind).empty.schema


@dataclass(frozen=True)
class Groups:
    """An opened Parquet, Feather or ORC file.

    Attributes:
        kind: its format.
        file: pyarrow's reader.
        schema: all that it stores.
        keep: the places of its columns: those without a name are a data frame's row numbers.
        ranges: name, start and step of whole numbers that pandas stores as a formula: consecutive
            ids that were set as an index.
    """

    kind: str
    file: Any
    schema: Columns
    keep: tuple[int, ...]
    ranges: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, opened: Any, kind: str) -> Groups:
        """Return an opened file."""
        file: Any
        if kind == "parquet":
            from pyarrow import parquet

            file = parquet.ParquetFile(opened, pre_buffer=False)
        elif kind == "feather":
            from pyarrow import ipc

            file = ipc.open_file(opened)
        else:
            from pyarrow import orc

            file = orc.ORCFile(opened)
        schema = file.schema_arrow if kind == "parquet" else file.schema
        keep = tuple(at for at, name in enumerate(schema.names) if not _INDEX.fullmatch(name))
        noted = json.loads((schema.metadata or {}).get(b"pandas", b"{}")).get("index_columns", ())
        formulas = [one for one in noted if isinstance(one, dict) and one.get("name") is not None]
        ranges = tuple((str(one["name"]), one["start"], one["step"]) for one in formulas)
        return cls(kind, file, schema, keep, ranges)

    @property
    def groups(self) -> int:
        """The number of row groups."""
        names = {"parquet": "num_row_groups", "feather": "num_record_batches", "orc": "nstripes"}
        return int(getattr(self.file, names[self.kind]))

    @property
    def empty(self) -> Table:
        """The columns without rows."""
        return self._whole(self.schema.empty_table(), 0)

    def tables(self, group: int) -> Iterator[Table]:
        """Yield the rows of a row group."""
        from pyarrow import Table

        earlier = range(group) if self.ranges else ()
        at = sum(len(batch) for one in earlier for batch in self._batches(one))
        for batch in self._batches(group):
            batch.validate(full=True)  # texts are UTF-8
            yield self._whole(Table.from_batches([batch]), at)
            at += len(batch)

    def _batches(self, group: int) -> Iterator[RecordBatch]:
        if self.kind == "parquet":
            yield from self.file.iter_batches(objects.ROWS, row_groups=[group], use_threads=False)
        else:
            yield (self.file.get_batch if self.kind == "feather" else self.file.read_stripe)(group)

    @cached_property
    def _names(self) -> list[str]:
        """The printable names of its columns."""
        names = [self.schema.names[at] for at in self.keep]
        return names_of([*names, *(name for name, _, _ in self.ranges)])

    def _whole(self, table: Table, at: int) -> Table:
        """Return rows from number ``at`` on with all columns, by their printable names."""
        import pyarrow as pa

        made = cleaned(table.select(self.keep))
        for name, start, step in self.ranges:
            numbers = range(start + step * at, start + step * (at + len(table)), step)
            made = made.append_column(name, pa.array(numbers, pa.int64()))
        noted = None if self.ranges else self.schema.metadata  # ranges are of other rows
        return made.rename_columns(self._names).replace_schema_metadata(noted)


@dataclass(frozen=True)
class Partition:
    """A partition of a Dask data frame, or some rows in memory.

    Attributes:
        number: its number.
        rows: the rows, delayed or not.
    """

    number: int
    rows: Any = field(repr=False)

    @property
    def name(self) -> str:
        """The block in words."""
        return f"partition {self.number}"

    def read(self) -> Iterator[pd.DataFrame]:
        """Yield the rows, at most :data:`.objects.ROWS` at a time."""
        made = self.rows
        if hasattr(made, "compute"):
            made = made.compute(scheduler="synchronous")
        made = with_text_names(made)
        yield from sliced(made, digest=of_rows(made))


Opened = tuple[list[str], Callable[[tuple[str, ...]], list[Any]]]


def opened(file: Stored, kind: str, format: FileFormat, size: int = BYTES) -> Opened:
    """Return the names of a file's columns, and what makes its parts with a table's header.

    Raises:
        ValueError: naming the file: it cannot be read, or needs a package.
        OSError: if it cannot be opened.
    """
    try:
        return _OPENERS[kind](file, kind, format, size)
    except Exception as error:  # a damaged file can raise anything
        if str(error).startswith(file.path) or (kind == "text" and isinstance(error, OSError)):
            raise
        raise ValueError(f"{file.path} is not a readable {NAMES[kind]}: {error}") from error


def _text(file: Stored, kind: str, format: FileFormat, size: int) -> Opened:
    text = Text.of(file, kind, format)
    step = max(file.size, 1) if text.whole else size
    cuts = range(0, max(file.size, 1), step)

    def parts(header: tuple[str, ...]) -> list[Any]:
        return [Lines(text, at, min(at + step, file.size), header) for at in cuts]

    return list(text.names), parts


def _groups(file: Stored, kind: str, format: FileFormat, size: int) -> Opened:
    with file.open() as found:
        groups = Groups.of(found, kind)
        names, numbers = groups.empty.column_names, range(groups.groups)
    return names, lambda header: [RowGroup(file, kind, at, header) for at in numbers or [None]]


def _sheet(file: Stored, kind: str, format: FileFormat, size: int) -> Opened:
    names = Sheet(file, format.sheet, ()).cells(most=1)[0]
    return names, lambda header: [Sheet(file, format.sheet, header)]


def _statistics(file: Stored, kind: str, format: FileFormat, size: int) -> Opened:
    frame, said = Observations(file, kind, 0, 0, ()).found(metadataonly=True)
    cuts = range(0, max(said.number_rows or 1, 1), MANY)
    rows = MANY if len(cuts) > 1 else 0
    return list(frame.columns), lambda header: [
        Observations(file, kind, at, rows, header) for at in cuts
    ]


_OPENERS: dict[str, Callable[[Stored, str, FileFormat, int], Opened]] = {
    **dict.fromkeys(TEXT, _text),
    **dict.fromkeys(("parquet", "feather", "orc"), _groups),
    "excel": _sheet,
    **dict.fromkeys(READERS, _statistics),
}


def of_files(path: str, format: FileFormat, size: int) -> tuple[list[str], list[Part]]:
    """Return the header and the parts of a file, or of a folder or glob of files of one kind."""
    files = [_stored(name) for name in files_of(path)]
    kinds = sorted({NAMES[kind].split()[0] for _, kind in files}, reverse=True)
    if len(kinds) > 1:
        raise ValueError(
            f"{path!r} has both {' and '.join(kinds)} files; name one kind, such as *.csv"
        )
    header: list[str] = []
    parts: list[Part] = []
    for file, kind in files:
        names, make = opened(file, kind, format, size)
        header = header or names
        _same(names, header, file.path, files[0][0].path)
        some = make(tuple(header))
        many = len(files) > 1 and isinstance(some[0], RowGroup) and some[0].group is None
        parts += [] if many else some
    return header, parts or make(tuple(header))


def _stored(name: str) -> tuple[Stored, str]:
    try:
        file = Stored.of(name)
        return file, file.kind()
    except OSError as error:
        raise ValueError(f"{name} cannot be opened: {error}") from error


def _same(header: Sequence[str], first: Sequence[str], path: str, other: str) -> None:
    """Refuse a file whose columns are not those of the first."""
    for names, more, lacking in ((header, first, other), (first, header, path)):
        if extra := [name for name in names if name not in more]:
            raise ValueError(
                f"{path} has other columns than {other}: {extra[0]!r} is not in {lacking}"
            )

"""From a file to its blocks: one reader for each format.

A block is a row group, a range of bytes, a sheet or some rows: what a worker can read by itself, as
pandas frames. Opening a source reads its header alone, unless it gives its rows only once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pandas as pd

from bdpvi.datasets import objects
from bdpvi.datasets.cells import array_of, spell_array
from bdpvi.datasets.columns import with_text_names
from bdpvi.datasets.digests import of_rows
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.lines import names_of
from bdpvi.datasets.objects import cleaned, frame_of, sliced
from bdpvi.datasets.records import Part
from bdpvi.datasets.stored import KINDS, Reader, Stored, files_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table
    from pyarrow import Schema as Columns

BYTES = 1 << 23
"""Size of a CSV file's blocks."""
MANY = 1 << 16
"""Rows of a block in memory."""
_INDEX = re.compile(r"__index_level_\d+__")
_GROUPS = {"parquet": "num_row_groups", "feather": "num_record_batches", "orc": "nstripes"}
"""The attribute of pyarrow's readers with the number of row groups, by kind of file."""
GROUPED = tuple(_GROUPS)


@dataclass(frozen=True)
class Block:
    """The rows at a place of a file.

    Attributes:
        reader: of the file.
        place: where.
        header: the names of all columns, in the order of the table.
    """

    reader: Reader
    place: Any
    header: tuple[str, ...]

    @property
    def file(self) -> Stored:
        """The file."""
        return self.reader.file

    @property
    def kind(self) -> str:
        """The file's format."""
        return self.reader.kind

    @property
    def name(self) -> str:
        """The block in words."""
        return f"{self.file.path}, {self.reader.words(self.place)}"

    def read(self) -> Iterator[pd.DataFrame]:
        """Yield the rows, at most :data:`.objects.ROWS` at a time."""
        begin = 0
        for rows, odd, digest in self.reader.rows(self.place):
            for at in range(0, max(len(rows), 1), objects.ROWS):
                if isinstance(rows, pd.DataFrame):
                    made = rows.iloc[at : at + objects.ROWS][list(self.header)]
                else:
                    made = frame_of(rows.slice(at, objects.ROWS).select(self.header))
                made.index = pd.RangeIndex(begin, begin + len(made))
                begin += len(made)
                yield from sliced(made, 0 if at else odd, 0 if at else digest)

    def tables(self) -> Iterator[tuple[Table, int]]:
        """Yield the rows as tables of pyarrow, and the number of lines left out."""
        for rows, odd, _ in self.reader.rows(self.place):
            yield (spelt(rows) if isinstance(rows, pd.DataFrame) else rows).select(self.header), odd


def spelt(frame: pd.DataFrame) -> Table:
    """Return rows as a table of pyarrow: the text of each cell."""
    import pyarrow as pa

    texts = [spell_array(array_of(frame.iloc[:, at])) for at in range(frame.shape[1])]
    return pa.Table.from_arrays(texts, list(frame.columns))


@dataclass(frozen=True)
class Grouped(Reader):
    """A Parquet, Feather or ORC file. Its places are its row groups, batches or stripes.

    Attributes:
        groups: the number of places.
        stored: names and types of all that it stores.
    """

    groups: int
    stored: Columns

    @classmethod
    def of(cls, file: Stored, kind: str, format: FileFormat) -> Grouped:
        """Open a file; no row is read."""
        with file.open() as opened:
            found = _arrow_reader(opened, kind)
            stored = found.schema_arrow if kind == "parquet" else found.schema
            made = cls(file, kind, (), int(getattr(found, _GROUPS[kind])), stored)
        names = [stored.names[at] for at in made._column_places]
        shown = names_of([*names, *(name for name, _, _ in made._ranges)])
        return replace(made, names=tuple(shown))

    @cached_property
    def _column_places(self) -> list[int]:
        """The places of its columns: those without a name are a data frame's row numbers."""
        return [at for at, name in enumerate(self.stored.names) if not _INDEX.fullmatch(name)]

    @cached_property
    def _ranges(self) -> list[tuple[str, int, int]]:
        """Name, start and step of whole numbers that pandas stores as a formula: consecutive ids
        that were set as an index."""
        noted = json.loads((self.stored.metadata or {}).get(b"pandas", b"{}"))
        formulas = [one for one in noted.get("index_columns", ()) if isinstance(one, dict)]
        named = [formula for formula in formulas if formula.get("name") is not None]
        return [(str(one["name"]), one["start"], one["step"]) for one in named]

    @property
    def columns(self) -> Columns:
        """Names and types of its columns."""
        return self._whole(self.stored.empty_table(), 0).schema

    def places(self, size: int) -> Sequence[int | None]:
        """Return the numbers of row groups; None for a file without any."""
        return range(self.groups) or [None]

    def words(self, place: int | None) -> str:
        """Return a place in words."""
        return f"row group {place}"

    def rows(self, place: int | None) -> Iterator[tuple[Table, int, int]]:
        """Yield the rows; the file is watched, so they need no digest."""
        from pyarrow import Table

        none = True
        with self.file.open() as opened:
            found = _arrow_reader(opened, self.kind)
            earlier = range(place or 0) if self._ranges else ()
            at = sum(len(batch) for one in earlier for batch in self._batches(found, one))
            for batch in () if place is None else self._batches(found, place):
                none = False
                batch.validate(full=True)  # texts are UTF-8
                yield self._whole(Table.from_batches([batch]), at), 0, 0
                at += len(batch)
        if none:
            yield self._whole(self.stored.empty_table(), 0), 0, 0
        self.file.check()

    def _batches(self, found: Any, group: int) -> Iterator[RecordBatch]:
        if self.kind == "parquet":
            yield from found.iter_batches(objects.ROWS, row_groups=[group], use_threads=False)
        else:
            yield (found.get_batch if self.kind == "feather" else found.read_stripe)(group)

    def _whole(self, table: Table, at: int) -> Table:
        """Return rows from number ``at`` on with all columns, by their printable names."""
        import pyarrow as pa

        made = cleaned(table.select(self._column_places))
        for name, start, step in self._ranges:
            numbers = range(start + step * at, start + step * (at + len(table)), step)
            made = made.append_column(name, pa.array(numbers, pa.int64()))
        noted = None if self._ranges else self.stored.metadata  # ranges are of other rows
        return made.rename_columns(self.names).replace_schema_metadata(noted)


def _arrow_reader(opened: Any, kind: str) -> Any:
    """Return pyarrow's reader of an opened file."""
    if kind == "parquet":
        from pyarrow import parquet

        return parquet.ParquetFile(opened, pre_buffer=False)
    if kind == "feather":
        from pyarrow import ipc

        return ipc.open_file(opened)
    from pyarrow import orc

    return orc.ORCFile(opened)


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

    def tables(self) -> Iterator[tuple[Table, int]]:
        """Do :meth:`Block.tables`."""
        yield from ((spelt(rows), 0) for rows in self.read())


def open_reader(file: Stored, kind: str, format: FileFormat) -> Reader:
    """Return the reader of a file.

    Raises:
        ValueError: naming the file: it cannot be read, or needs a package.
        OSError: if it cannot be opened.
    """
    try:
        module, name = KINDS[kind].reader.split(".")
        reader: type[Reader] = getattr(import_module(f"bdpvi.datasets.{module}"), name)
        return reader.of(file, kind, format)
    except Exception as error:  # a damaged file can raise anything
        if str(error).startswith(file.path) or (kind == "text" and isinstance(error, OSError)):
            raise
        raise ValueError(f"{file.path} is not a readable {KINDS[kind].words}: {error}") from error


def of_files(path: str, format: FileFormat, size: int) -> tuple[tuple[str, ...], list[Part]]:
    """Return the header and the blocks of a file, or of a folder or glob of files of one kind."""
    files = [_open_stored(name) for name in files_of(path)]
    kinds = sorted({KINDS[kind].words.split()[0] for _, kind in files}, reverse=True)
    if len(kinds) > 1:
        raise ValueError(
            f"{path!r} has both {' and '.join(kinds)} files; name one kind, such as *.csv"
        )
    header: tuple[str, ...] = ()
    parts: list[Part] = []
    for file, kind in files:
        reader = open_reader(file, kind, format)
        header = header or reader.names
        _same(reader.names, header, file.path, files[0][0].path)
        parts += [Block(reader, place, header) for place in reader.places(size)]
    filled = [part for part in parts if getattr(part, "place", None) is not None]
    return header, filled or parts[-1:]


def _open_stored(name: str) -> tuple[Stored, str]:
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

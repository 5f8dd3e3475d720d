"""A table written anew, out of memory, so that all rows of a person lie in one block.

Rows go to one of 64 files by six bits of a hash of their person; a file with more rows than a block
has is split by the next six bits, and small ones are joined. A few blocks are in memory at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bdpvi._ground import progress as shown
from bdpvi._ground import store, validate
from bdpvi._ground.types import tell_owner
from bdpvi.datasets import objects
from bdpvi.datasets.encoding import with_text_names
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.openers import GROUPED
from bdpvi.datasets.schema import Schema, in_file
from bdpvi.datasets.table import ODD, Table
from bdpvi.datasets.units import hashes_of, persons_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyarrow import Schema as Columns

    from bdpvi._ground.progress import Track
    from bdpvi.datasets.types import ColumnType

_BITS = 6
_JOINED = 1 << 25
"""Bytes of rows that are sorted into files at once."""
_ANYWHERE = np.uint64(0x9E3779B97F4A7C15)
"""Spreads rows without a person evenly: the golden ratio times 2⁶⁴ (Knuth, vol. 3, 6.4)."""


def partition(
    table: str | os.PathLike[str] | Table,
    *,
    by: str,
    out: str | os.PathLike[str],
    types: Schema | None = None,
    file: FileFormat | None = None,
    progress: bool = True,
) -> Table:
    """Write a table as Parquet files of one block each, with all rows of a person in one file.

    :func:`bdpvi.private` takes such a folder with ``unit=``. It holds the same rows, each person's
    in the same order; cells of a CSV file stay text, as they are written, and those of data frames
    and of files of other programs become the text by which all releases read them. It is as secret
    as the table, so only its owner can read it; its releases belong in the ledger of the table.
    Needs room on disk for another two copies of the table.

    Args:
        table: what :meth:`bdpvi.Table.of` takes.
        by: the column that identifies persons, as ``unit`` of the release.
        out: the new folder; it appears when all files are written.
        types: declared types of columns, as for the release: that of ``by`` decides which spellings
            are one person.
        file: how CSV files are written.
        progress: whether to show progress bars.

    Returns:
        The written table.

    Warns:
        PrivacyUtilityWarning: with the number of lines that cannot be split. For the owner.

    Raises:
        ValueError: if there is no such column, a person has more rows than a block may have
            (:data:`bdpvi.datasets.objects.ROWS`), ``out`` exists, or the types of files differ.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     source, out = Path(folder) / "visits.csv", Path(folder) / "visits"
    ...     _ = source.write_text("who,age\\nada,20\\nbob,31\\nada,21\\n")
    ...     table = partition(source, by="who", out=out, progress=False)
    ...     len(table.parts), table.records().sum(len)
    (1, 3)
    """
    found = Table.of(table, file=file)
    validate.columns("by", [by], found.header)
    columns = _columns(found)
    types = in_file(types or found.schema, list(found.header), found.file)
    work = _Work(by, None if types is None else types.of_unit(by)[0], columns)
    path, track = Path(out), shown.bar if progress else shown.silent
    with (
        store.new_folder(path.parent),
        store.claimed_folder(path) as temporary,
        TemporaryDirectory(dir=temporary, prefix=".") as folder,
    ):
        work.write(track(found.parts, "read"), Path(folder), temporary, track)
    return Table.of(path, file=found.file)


def _columns(table: Table) -> Columns:
    """Return names and types of a table's columns, which are text but for files of Arrow's."""
    import pyarrow as pa

    blocks: list[Any] = [part for part in table.parts if getattr(part, "kind", "") in GROUPED]
    files = {block.file: block.reader for block in blocks}
    if not files:
        return pa.schema([(name, pa.string()) for name in table.header])
    found: list[Columns] = []
    for file, one in files.items():
        found.append(one.columns)
        try:
            pa.unify_schemas([found[0], found[-1]], promote_options="permissive")
        except pa.ArrowException as error:
            other = next(iter(files)).path
            raise ValueError(f"{file.path} has other types than {other}: {error}") from error
    return pa.unify_schemas(found, promote_options="permissive").with_metadata(found[0].metadata)


@dataclass(frozen=True)
class _Bucket:
    """Rows in a file, each with the hash of its person in the last column.

    Attributes:
        file: the file.
        rows: their number.
        least, most: the smallest and the largest hash.
    """

    file: Path
    rows: int
    least: int
    most: int

    def batches(self) -> Iterator[RecordBatch]:
        """Yield the rows."""
        from pyarrow import ipc

        with ipc.open_stream(self.file) as stream:
            yield from stream


@dataclass(frozen=True)
class _Work:
    """A table that is written anew.

    Attributes:
        by: the column that identifies persons.
        type: its declared type.
        columns: names and types of all columns.
    """

    by: str
    type: ColumnType | None
    columns: Columns

    def write(self, parts: Iterable[Any], folder: Path, out: Path, track: Track[_Bucket]) -> None:
        """Write the rows of the parts to files in ``out``; ``folder`` is for others meanwhile."""
        buckets = _fill_buckets(_rebatch(self._with_hashes(parts)), folder, "b", 64 - _BITS)
        leaves = (leaf for one in track(buckets, "write") for leaf in self._leaves(one, _BITS))
        number = 0
        for number, group in enumerate(_grouped(leaves), 1):
            self._write_group(group, out / f"{number:06d}.parquet")
        if not number:
            self._write_group([], out / "000001.parquet")

    def _with_hashes(self, parts: Iterable[Any]) -> Iterator[RecordBatch]:
        """Yield the rows with the hashes of their persons; tell the owner of lines left out."""
        import pyarrow as pa

        left_out = place = 0
        for part in parts:
            for rows, odd in part.tables():
                left_out += odd
                made = rows.select(self.columns.names).cast(self.columns)
                hashes = pa.array(self._hashes(made, place))
                place += len(made)
                yield from made.append_column("", hashes).combine_chunks().to_batches()
        tell_owner(left_out, "line", ODD)

    def _hashes(self, rows: Any, place: int) -> NDArray[np.uint64]:
        """Return the hash of each row's person, (N,); rows without one are spread evenly."""
        named = with_text_names(pd.DataFrame(columns=rows.column_names)).columns
        at = list(named).index(self.by)
        whole = {"integer_object_nulls": True, "ignore_metadata": True}
        persons = persons_of(rows.select([at]).to_pandas(**whole).iloc[:, 0], self.type)
        spread = np.arange(place, place + len(persons), dtype=np.uint64) * _ANYWHERE
        return np.where(persons.to_numpy(dtype=object) == "", spread, hashes_of(persons))

    def _leaves(self, bucket: _Bucket, used: int) -> Iterator[_Bucket]:
        """Yield buckets of at most a block's rows, in order of their hashes.

        Args:
            bucket: its rows.
            used: number of bits by which they were split.
        """
        if bucket.rows <= objects.ROWS:
            yield bucket
            return
        if bucket.least == bucket.most:
            raise ValueError(
                f"by={self.by!r}: a person has more than {objects.ROWS} rows, which no block "
                "holds; leave out those beyond the rows_per_unit of the release"
            )
        name, shift = f"{bucket.file.name}-", max(64 - used - _BITS, 0)
        within = _fill_buckets(_rebatch(bucket.batches()), bucket.file.parent, name, shift)
        bucket.file.unlink()
        for one in within:
            yield from self._leaves(one, used + _BITS)

    def _write_group(self, group: Sequence[_Bucket], file: Path) -> None:
        """Write the rows of some buckets as one row group, and remove the buckets."""
        import pyarrow as pa
        from pyarrow import parquet

        rows = self.columns.empty_table()
        if group:
            batches = [batch for one in group for batch in one.batches()]
            rows = pa.Table.from_batches(batches).combine_chunks()
            rows = rows.remove_column(rows.num_columns - 1).cast(self.columns)
        parquet.write_table(rows, file, row_group_size=max(len(rows), 1))
        store.sync(file)
        for one in group:
            one.file.unlink()


def _rebatch(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
    """Yield the same rows in batches of about :data:`_JOINED` bytes."""
    import pyarrow as pa

    held: list[RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _JOINED:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held, size = [], 0
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()


def _fill_buckets(
    batches: Iterable[RecordBatch], folder: Path, name: str, shift: int
) -> list[_Bucket]:
    """Return the rows in buckets by the bits of their hashes from ``shift`` on, in their order."""
    from pyarrow import ipc

    made: dict[int, _Bucket] = {}
    writers: dict[int, Any] = {}
    with ExitStack() as stack:
        for batch in batches:
            hashes = batch.column(batch.num_columns - 1).to_numpy()
            places = (hashes >> np.uint64(shift)) & np.uint64((1 << _BITS) - 1)
            order = np.argsort(places, kind="stable")
            batch, places, hashes = batch.take(order), places[order], hashes[order]
            starts = np.flatnonzero(np.diff(places, prepend=np.uint64(1 << _BITS))).tolist()
            for start, stop in zip(starts, [*starts[1:], len(places)], strict=True):
                at, some = int(places[start]), hashes[start:stop]
                file = folder / f"{name}{at:02d}"
                if at not in made:
                    writers[at] = stack.enter_context(ipc.new_stream(file, batch.schema))
                    made[at] = _Bucket(file, 0, int(some[0]), int(some[0]))
                writers[at].write_batch(batch.slice(start, stop - start))
                made[at] = _Bucket(
                    file,
                    made[at].rows + stop - start,
                    min(made[at].least, int(some.min())),
                    max(made[at].most, int(some.max())),
                )
    return [made[at] for at in sorted(made)]


def _grouped(leaves: Iterable[_Bucket]) -> Iterator[list[_Bucket]]:
    """Yield neighbours that have at most a block's rows together."""
    group: list[_Bucket] = []
    for leaf in leaves:
        if group and sum(one.rows for one in group) + leaf.rows > objects.ROWS:
            yield group
            group = []
        group.append(leaf)
    if group:
        yield group

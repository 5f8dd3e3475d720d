"""Tables on disk, Parquet or CSV, read in blocks of rows by pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi._runtime.progress import Track, silent
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.neighbours.optimum.elbo import Records, Repeated

T = TypeVar("T")

FORMATS = {".parquet": "parquet", ".csv": "csv"}
ROWS = 1 << 14


class Table:
    """The records of a Parquet or CSV file, or of a folder of such files in the order of names.

    A source for :class:`bdpvi.neighbours.optimum.elbo.Objective`: no more than a few blocks are in
    memory.

    Args:
        path: a file, or a folder of files of one format.
        target: name of the column of targets, 0 or 1.
        features: names of the columns of features; by default all others.
        rows: of a block; the last one of a pass may be shorter.
        track: shows the progress of every pass, block by block.

    Attributes:
        features: the names.

    Raises:
        ValueError: if there is no such file or column, or a column does not hold numbers.
    """

    def __init__(
        self,
        path: str | Path,
        target: str,
        features: Sequence[str] | None = None,
        *,
        rows: int = ROWS,
        track: Track[Any] = silent,
    ) -> None:
        self.path, self.target, self.track = Path(path), target, track
        self.rows = validate.positive_int("rows", rows)
        self.files, kind = _files(self.path)
        self._arrow, dataset = _pyarrow()
        files = [str(file) for file in self.files]
        try:
            names = dataset.dataset(files, format=kind).schema
            chosen = [n for n in names.names if n != target] if features is None else features
            self.features = tuple(chosen)
            for argument, name in (("target", target), *(("features", f) for f in self.features)):
                if name not in names.names:
                    raise ValueError(
                        f"{argument}: {name!r} is not a column of {self.path}, which has "
                        f"{names.names}"
                    )
            if target in self.features or not self.features:
                raise ValueError(f"features={list(self.features)} must name columns but the target")
            if kind == "csv":
                numbers = {name: self._arrow.float64() for name in (*self.features, target)}
                from pyarrow import csv

                options = csv.ConvertOptions(column_types=numbers)
                self._data = dataset.dataset(
                    files, format=dataset.CsvFileFormat(convert_options=options)
                )
            else:
                # With its default a scan keeps all that it has read of a file.
                options = dataset.ParquetFragmentScanOptions(pre_buffer=False)
                self._data = dataset.dataset(
                    files, format=dataset.ParquetFileFormat(default_fragment_scan_options=options)
                )
        except self._arrow.ArrowException as error:
            raise ValueError(f"path={str(self.path)!r} cannot be read: {error}") from error
        for name in (*self.features, target):
            type_ = self._data.schema.field(name).type
            kinds = self._arrow.types
            if not (kinds.is_floating(type_) or kinds.is_integer(type_) or kinds.is_boolean(type_)):
                raise ValueError(f"column {name!r} of {self.path} has type {type_}, not numbers")
        self.count, self.ones = self._counts()

    def __len__(self) -> int:
        return self.count

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.count // self.rows)

    def fingerprint(self) -> list[list[object]]:
        """Return name, size and time of change of every file."""
        stats = ((file.name, file.stat()) for file in self.files)
        return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]

    def read(self, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over features (n, d) and targets (n,) of the blocks from number ``first``.

        Raises:
            ValueError: if a value is not finite or a target neither 0 nor 1.
        """
        row = first * self.rows
        for table in self._scan((*self.features, self.target), row):
            values = torch.from_numpy(table)
            x, y = values[:, :-1], values[:, -1]
            if not bool(x.isfinite().all()):
                i, j = (~x.isfinite()).nonzero()[0].tolist()
                raise ValueError(
                    f"features: column {self.features[j]!r} of {self.path} has a value that is not "
                    f"finite: {x[i, j].item()} in row {row + i}"
                )
            self._check_target(y, row)
            yield x, y
            row += len(y)

    def _check_target(self, y: Tensor, row: int) -> None:
        wrong = ((y != 0) & (y != 1)).nonzero()
        if len(wrong):
            i = int(wrong[0])
            raise ValueError(
                f"target: column {self.target!r} of {self.path} must be 0 or 1, got {y[i].item()} "
                f"in row {row + i}"
            )

    def _counts(self) -> tuple[int, int]:
        """Return the number of records and of those in class 1."""
        count = ones = 0
        for table in self._scan((self.target,), 0):
            y = torch.from_numpy(table)[:, 0]
            self._check_target(y, count)
            count, ones = count + len(y), ones + int(y.sum())
        if count < 3:
            raise ValueError(f"{self.path} has {count} records; at least 3 are needed")
        for value, size in ((0, count - ones), (1, ones)):
            if size < 2:
                raise ValueError(
                    f"target: column {self.target!r} of {self.path} has class {value} {size} times;"
                    " without a record there would be one class only, or there is already"
                )
        return count, ones

    def _scan(self, columns: Sequence[str], skip: int) -> Iterator[NDArray[np.float64]]:
        """Iterate over blocks of rows, all but the last of the same size."""
        parts: list[NDArray[np.float64]] = []
        held = 0
        scanner = self._data.scanner(
            columns=list(columns), batch_size=self.rows, batch_readahead=4, fragment_readahead=1
        )
        try:
            for batch in scanner.to_batches():
                drop = min(skip, batch.num_rows)
                skip -= drop
                if drop == batch.num_rows:
                    continue
                batch = batch.slice(drop)
                wanted = [batch.column(i) for i in range(len(columns))]
                arrays = [c.cast(self._arrow.float64()).to_numpy(False) for c in wanted]
                parts.append(np.stack(arrays, 1))
                held += batch.num_rows
                while held >= self.rows:
                    table = np.concatenate(parts)
                    yield table[: self.rows]
                    parts, held = [table[self.rows :]], held - self.rows
        except self._arrow.ArrowException as error:
            raise ValueError(f"path={str(self.path)!r} cannot be read: {error}") from error
        if held:
            yield np.concatenate(parts)


class ModelTable:
    """A table as a model sees it: the source of an objective."""

    def __init__(self, table: Table, model: BayesianLogisticRegression) -> None:
        self.table, self.model, self._passes = table, model, 0

    def __len__(self) -> int:
        return len(self.table)

    def read(self, first: int = 0) -> Iterator[Records]:
        """Iterate over the blocks from number ``first``."""
        for x, y in self.table.read(first):
            yield Records.seen(self.model, x, y)

    def each(self, make: Callable[[Records], T]) -> Iterable[T]:
        """Return what ``make`` makes of every block; each time it is iterated over is a pass."""
        return Repeated(lambda: self._pass(make))

    def _pass(self, make: Callable[[Records], T]) -> Iterator[T]:
        self._passes += 1
        turns = self.table.track(range(self.table.blocks), f"pass {self._passes}")
        for _, records in zip(turns, self.read(), strict=False):
            yield make(records)


def _files(path: Path) -> tuple[list[Path], str]:
    files = sorted(f for f in path.iterdir() if f.suffix in FORMATS) if path.is_dir() else [path]
    kinds = {file.suffix for file in files}
    if not files or not all(file.is_file() for file in files):
        raise ValueError(f"path={str(path)!r} is no file, and no folder of {sorted(FORMATS)} files")
    if len(kinds) > 1 or not kinds <= set(FORMATS):
        raise ValueError(
            f"path={str(path)!r} has files of types {sorted(kinds)}; one of {sorted(FORMATS)} is "
            "needed"
        )
    return files, FORMATS[kinds.pop()]


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.dataset
    except ImportError as error:
        raise ImportError('tables on disk need pyarrow: pip install "bdpvi[stream]"') from error
    return pyarrow, pyarrow.dataset

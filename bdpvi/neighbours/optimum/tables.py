"""Tables on disk, Parquet or CSV, read in blocks of rows by pyarrow."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi._runtime.progress import Track
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.neighbours.optimum.elbo import Records, Repeated
from bdpvi.types import Dataset, People

T = TypeVar("T")

FORMATS = {".parquet": "parquet", ".csv": "csv"}
ROWS = 1 << 14
_FIRST, _CHUNK = 8, 1 << 20


class Table:
    """The records of a Parquet or CSV file, or of a folder of such files in the order of names.

    What :func:`bdpvi.fit` takes instead of a :class:`~bdpvi.types.Dataset` where the records do not
    fit in memory: it passes over the files, and holds no more than a few blocks. Needs pyarrow.

    Args:
        path: a file, or a folder of files of one format.
        target: name of the column of targets, 0 or 1.
        features: names of the columns of features; by default all others.
        rows: of a block; the last one of a pass may be shorter.
        name: what reports call the data; by default the name of the file or folder.
        preprocessing: public constants that the columns were made with, see
            :class:`~bdpvi.types.Dataset`.

    Attributes:
        feature_names: the names, in order.
        name, preprocessing: as given.
        people: whose records these are; with ``ledger`` as of :class:`~bdpvi.types.Dataset`.

    Raises:
        ValueError: if there is no such file or column, or a column does not hold numbers.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "patients.csv"
    ...     _ = file.write_text("age,weight,sick\\n0.5,1,0\\n-1,0.25,1\\n")
    ...     table = Table(file, target="sick")
    ...     len(table), table.feature_names, table.first().x.tolist()
    (2, ('age', 'weight'), [[0.5, 1.0], [-1.0, 0.25]])
    """

    def __init__(
        self,
        path: str | Path,
        target: str,
        features: Sequence[str] | None = None,
        *,
        rows: int = ROWS,
        name: str | None = None,
        preprocessing: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self.target = Path(path), target
        self.rows = validate.positive_int("rows", rows)
        self.name = self.path.name if name is None else name
        self.preprocessing = dict(preprocessing or {})
        self.people = People()
        self.device, self.dtype = torch.device("cpu"), torch.float64
        self._files, kind = _files(self.path)
        self._stats = self._now()
        self._arrow, dataset = _pyarrow()
        files = [str(file) for file in self._files]
        try:
            names = dataset.dataset(files, format=kind).schema.names
            chosen = [n for n in names if n != target] if features is None else features
            self.feature_names = tuple(chosen)
            self._check_names(names)
            self._data = dataset.dataset(files, format=self._format(dataset, kind))
            self._check_types()
            self._count = int(self._data.count_rows())
        except self._arrow.ArrowException as error:
            raise ValueError(f"path={str(self.path)!r} cannot be read: {error}") from error

    def __len__(self) -> int:
        return self._count

    @property
    def ledger(self) -> Any:
        """The :class:`bdpvi.accounting.ledger.Ledger` of everything that is spent on the table."""
        return self.people.ledger

    @property
    def blocks(self) -> int:
        """The number of blocks, at least 1."""
        return max(1, -(-self._count // self.rows))

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float64) -> Table:
        """Return the same table, whose blocks are read to ``device`` as ``dtype``."""
        other = copy.copy(self)
        other.device, other.dtype = torch.device(device), dtype
        return other

    def fingerprint(self) -> str:
        """Return a SHA-256 digest of columns and files, byte by byte. Not for publication."""
        digest = hashlib.sha256(repr((self.target, self.feature_names)).encode())
        for path, (size, _) in zip(self._files, self._stats, strict=True):
            digest.update(f"{size} ".encode())
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
        self._check_files()
        return digest.hexdigest()

    def first(self) -> Dataset:
        """Return the first few records; their ids are the numbers of their rows."""
        x, y = next(self.read())
        return Dataset(
            x[:_FIRST], y[:_FIRST], feature_names=self.feature_names, name=self.name,
            preprocessing=self.preprocessing,
        )  # fmt: skip

    def read(self, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over features (n, d) and targets (n,) of the blocks from number ``first``.

        Raises:
            ValueError: if a value is not finite, a target neither 0 nor 1, or a file has changed.
        """
        row = first * self.rows
        self._check_files()
        for table in self._scan(row):
            values = torch.from_numpy(table).to(self.device, self.dtype)
            x, y = values[:, :-1], values[:, -1]
            if not bool(x.isfinite().all()):
                i, j = (~x.isfinite()).nonzero()[0].tolist()
                raise ValueError(
                    f"features: column {self.feature_names[j]!r} of {self.path} has a value that "
                    f"is not finite: {x[i, j].item()} in row {row + i}"
                )
            wrong = ((y != 0) & (y != 1)).nonzero()
            if len(wrong):
                i = int(wrong[0])
                raise ValueError(
                    f"target: column {self.target!r} of {self.path} must be 0 or 1, got "
                    f"{y[i].item()} in row {row + i}"
                )
            yield x, y
            row += len(y)

    def _scan(self, skip: int) -> Iterator[NDArray[np.float64]]:
        """Iterate over blocks of rows, all but the last of the same size; of no rows one block."""
        columns = [*self.feature_names, self.target]
        parts: list[NDArray[np.float64]] = []
        held = 0
        scanner = self._data.scanner(
            columns=columns, batch_size=self.rows, batch_readahead=4, fragment_readahead=1
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
        if not self._count:
            yield np.empty((0, len(columns)))

    def _format(self, dataset: Any, kind: str) -> Any:
        if kind == "csv":
            from pyarrow import csv

            numbers = dict.fromkeys((*self.feature_names, self.target), self._arrow.float64())
            return dataset.CsvFileFormat(convert_options=csv.ConvertOptions(column_types=numbers))
        # With its default a scan keeps all that it has read of a file.
        options = dataset.ParquetFragmentScanOptions(pre_buffer=False)
        return dataset.ParquetFileFormat(default_fragment_scan_options=options)

    def _check_names(self, names: Sequence[str]) -> None:
        asked = [("target", self.target), *(("features", f) for f in self.feature_names)]
        for argument, name in asked:
            if name not in names:
                raise ValueError(
                    f"{argument}: {name!r} is not a column of {self.path}, which has {names}"
                )
        if self.target in self.feature_names or not self.feature_names:
            raise ValueError(
                f"features={list(self.feature_names)} must name columns but the target"
            )

    def _check_types(self) -> None:
        kinds = self._arrow.types
        for name in (*self.feature_names, self.target):
            type_ = self._data.schema.field(name).type
            if not (kinds.is_floating(type_) or kinds.is_integer(type_) or kinds.is_boolean(type_)):
                raise ValueError(f"column {name!r} of {self.path} has type {type_}, not numbers")

    def _now(self) -> list[tuple[int, int]]:
        return [(stat.st_size, stat.st_mtime_ns) for stat in (file.stat() for file in self._files)]

    def _check_files(self) -> None:
        if self._now() != self._stats:
            raise ValueError(
                f"path={str(self.path)!r}: a file has changed since the table was opened, so its "
                "passes would see different records; open it again and fit again"
            )


class ModelTable:
    """A table as a model sees it: a source for :class:`bdpvi.neighbours.optimum.elbo.Objective`.

    Args:
        table: the records.
        model: what sees them.
        track: shows the progress of every pass, block by block.
    """

    def __init__(self, table: Table, model: BayesianLogisticRegression, track: Track[Any]) -> None:
        self.table, self.model, self.track, self._passes = table, model, track, 0

    def __len__(self) -> int:
        return len(self.table)

    @property
    def columns(self) -> int:
        """The number of the model's variables."""
        return self.model.design(torch.zeros(1, len(self.table.feature_names))).shape[1]

    def read(self, first: int = 0) -> Iterator[Records]:
        """Iterate over the blocks from number ``first``."""
        for x, y in self.table.read(first):
            yield Records.seen(self.model, x.double(), y.double())

    def each(self, make: Callable[[Records], T]) -> Iterable[T]:
        """Return what ``make`` makes of every block; each time it is iterated over is a pass."""
        return Repeated(lambda: self._pass(make))

    def _pass(self, make: Callable[[Records], T]) -> Iterator[T]:
        self._passes += 1
        turns = self.track(range(self.table.blocks), f"pass {self._passes}")
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

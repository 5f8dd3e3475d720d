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

from bdpvi._ground import validate
from bdpvi._ground.progress import Track
from bdpvi._ground.types import tell_owner
from bdpvi.bayesian.optimum.elbo import Records, Repeated
from bdpvi.datasets.dataset import Dataset, People
from bdpvi.models.logistic import BayesianLogisticRegression

T = TypeVar("T")

FORMATS = {".parquet": "parquet", ".csv": "csv"}
ROWS = 1 << 14
_FIRST, _CHUNK = 8, 1 << 20


class Table:
    """The records of a Parquet or CSV file, or of a folder of such files in the order of names.

    :func:`bdpvi.fit` accepts it instead of a :class:`~bdpvi.datasets.dataset.Dataset` if the
    records do not fit in memory: it passes over the files, and holds only a few blocks. Needs
    pyarrow.

    In CSV a record is one physical line. A record with a line that cannot be split, a value that is
    not a finite number, or a target other than 0 and 1 is left out by itself: no record affects
    whether others are read. The first pass, when the table is opened, counts them.

    Args:
        path: a file, or a folder of files of one format.
        target: name of the column of targets, 0 or 1.
        features: names of the columns of features; by default all others.
        rows: rows per block; the last block of a pass may be shorter.
        name: the data's name in reports; by default the name of the file or folder.
        preprocessing: public constants used to make the columns, see
            :class:`~bdpvi.datasets.dataset.Dataset`.

    Attributes:
        feature_names: the names, in order.
        name, preprocessing: as given.
        people: whose records these are; it and ``ledger`` are as in
            :class:`~bdpvi.datasets.dataset.Dataset`.

    Warns:
        PrivacyUtilityWarning: with the number of records that are left out. For the owner only.

    Raises:
        ValueError: if there is no such file or column, or a column of a Parquet file is not
            numeric.

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
        self._csv = kind == "csv"
        self._stats = self._now()
        import pyarrow
        from pyarrow import parquet

        self._arrow, self._parquet = pyarrow, parquet
        names = self._names(self._files[0])
        self.feature_names = tuple(
            [n for n in names if n != target] if features is None else features
        )
        for file in self._files:
            self._check_names(self._names(file), file)
        self._count_records()

    def __len__(self) -> int:
        return self._count

    @property
    def ledger(self) -> Any:
        """The :class:`bdpvi.privacy.ledger.Ledger` of all charges for the table."""
        return self.people.of(self.some)

    def some(self) -> tuple[Tensor, Tensor]:
        """Return records by which the table is known again: the first few."""
        found = self.first()
        return found.x, found.y

    @property
    def blocks(self) -> int:
        """The number of blocks, at least 1."""
        return max(1, -(-self._count // self.rows))

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float64) -> Table:
        """Return the same table with blocks read to ``device`` as ``dtype``."""
        other = copy.copy(self)
        other.device, other.dtype = torch.device(device), dtype
        if dtype != self.dtype:  # more numbers may be too large
            other._count_records()
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
        """Return the first few records; their ids are their row numbers."""
        x, y = next(self.read())
        return Dataset(
            x[:_FIRST], y[:_FIRST], feature_names=self.feature_names, name=self.name,
            preprocessing=self.preprocessing,
        )  # fmt: skip

    def read(self, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over features (n, d) and targets (n,) of the blocks from number ``first``.

        Raises:
            ValueError: if a file has changed.
        """
        self._check_files()
        for table in self._scan(first * self.rows):
            values = torch.from_numpy(table).to(self.device, self.dtype)
            yield values[:, :-1], values[:, -1]

    def _scan(self, skip: int) -> Iterator[NDArray[np.float64]]:
        """Iterate over blocks of records, all but the last of equal size; at least one block."""
        parts: list[NDArray[np.float64]] = []
        held = 0
        for good, _ in self._batches():
            drop = min(skip, len(good))
            skip -= drop
            parts.append(good[drop:])
            held += len(good) - drop
            while held >= self.rows:
                table = np.concatenate(parts)
                yield table[: self.rows]
                parts, held = [table[self.rows :]], held - self.rows
        if held:
            yield np.concatenate(parts)
        if not self._count:
            yield np.empty((0, len(self.feature_names) + 1))

    def _batches(self) -> Iterator[tuple[NDArray[np.float64], int]]:
        """Iterate over records, (n, d + 1), with the number of records left out."""
        for values, odd in self._csv_rows() if self._csv else self._parquet_rows():
            numbers, targets = values.to(self.dtype), values[:, -1]
            good = numbers.isfinite().all(dim=1) & ((targets == 0) | (targets == 1))
            yield values[good].numpy(), odd + int((~good).sum())

    def _csv_rows(self) -> Iterator[tuple[Tensor, int]]:
        from bdpvi.datasets.reading import read_numbers

        for file in self._files:
            for values, odd in read_numbers(file, [*self.feature_names, self.target]):
                yield torch.from_numpy(values), odd

    def _parquet_rows(self) -> Iterator[tuple[Tensor, int]]:
        columns, double = [*self.feature_names, self.target], self._arrow.float64()
        for path in self._files:
            try:
                # By default a reader keeps everything it has read from a file.
                with self._parquet.ParquetFile(path, pre_buffer=False) as file:
                    for batch in file.iter_batches(self.rows, columns=columns):
                        wanted = (batch.column(name).cast(double, safe=False) for name in columns)
                        arrays = [one.to_numpy(zero_copy_only=False) for one in wanted]
                        yield torch.from_numpy(np.stack(arrays, 1)), 0
            except self._arrow.ArrowException as error:
                raise ValueError(f"path={str(path)!r} cannot be read: {error}") from error

    def _count_records(self) -> None:
        self._count = left_out = 0
        for good, odd in self._batches():
            self._count += len(good)
            left_out += odd
        why = (
            "a line cannot be split, a value is not a finite number, or a target is neither 0 nor 1"
        )
        tell_owner(left_out, "record", why, 3)

    def _names(self, file: Path) -> list[str]:
        """Return the names of a file's columns."""
        from bdpvi.datasets.reading import read_header  # late: it needs pandas

        names = read_header(file)  # refuses what is no table
        return names if self._csv else list(self._parquet.read_schema(file).names)

    def _check_names(self, names: Sequence[str], file: Path) -> None:
        asked = [("target", self.target), *(("features", f) for f in self.feature_names)]
        for argument, name in asked:
            if name not in names:
                raise ValueError(
                    f"{argument}: {name!r} is not a column of {file}, which has {names}"
                )
        if self.target in self.feature_names or not self.feature_names:
            raise ValueError(
                f"features={list(self.feature_names)} must name columns but the target"
            )
        if self._csv:
            return
        schema, kinds = self._parquet.read_schema(file), self._arrow.types
        for name in (*self.feature_names, self.target):
            type_ = schema.field(name).type
            if not (kinds.is_floating(type_) or kinds.is_integer(type_) or kinds.is_boolean(type_)):
                raise ValueError(f"column {name!r} of {file} has type {type_}, not numbers")

    def _now(self) -> list[tuple[int, int]]:
        return [(stat.st_size, stat.st_mtime_ns) for stat in (file.stat() for file in self._files)]

    def _check_files(self) -> None:
        if self._now() != self._stats:
            raise ValueError(
                f"path={str(self.path)!r}: a file has changed since the table was opened, so its "
                "passes would see different records; open it again and fit again"
            )


class ModelTable:
    """A table transformed by a model, as :class:`bdpvi.bayesian.optimum.elbo.Objective`'s source.

    Args:
        table: the records.
        model: the model.
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
        """Return the results of ``make`` for all blocks; each iteration over them is a pass."""
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
        raise ValueError(
            f"path={str(path)!r} is neither a file nor a folder of {sorted(FORMATS)} files"
        )
    if len(kinds) > 1 or not kinds <= set(FORMATS):
        raise ValueError(
            f"path={str(path)!r} has files of types {sorted(kinds)}; one of {sorted(FORMATS)} is "
            "needed"
        )
    return files, FORMATS[kinds.pop()]

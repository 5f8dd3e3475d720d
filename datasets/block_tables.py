"""Encoded records of tables in blocks, by public preprocessing."""

from __future__ import annotations

import warnings
from concurrent.futures import Executor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.progress import bar
from bdpvi._ground.types import tell_owner
from bdpvi.datasets.dataset import BlockData, People
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.schema import in_file
from bdpvi.datasets.table import Table
from bdpvi.datasets.tables import dataset_from_frame
from bdpvi.datasets.units import RowLimit, without_unit


def from_blocks(
    table: Any,
    target: str,
    *,
    unit: str | None = None,
    rows_per_unit: int = 1,
    executor: Executor | None = None,
    file: FileFormat | None = None,
    progress: bool = True,
    **options: Any,
) -> BlockData:
    """Return the records of a table that need not fit in memory, for :func:`bdpvi.fit`.

    Each row is encoded by public preprocessing whenever a sum over the records needs it, so nothing
    but a few blocks is in memory. The first pass counts the records.

    Args:
        table: what :meth:`bdpvi.datasets.table.Table.of` takes: a file, a folder or glob of
            files of one kind, a URL, a data frame; or its blocks.
        target: the yes/no column.
        unit: the column that identifies persons, if a guarantee is to be about all rows of one, who
            must lie in one block, as :func:`~bdpvi.datasets.partition` writes them.
        rows_per_unit: largest number of rows used for each person, the first ones.
        executor: workers that read the blocks: a :class:`concurrent.futures.ProcessPoolExecutor`,
            or Dask's ``client.get_executor()``. Without them this process does. Results are the
            same to the bit for any number of workers.
        file: how CSV files are written; its fields may be given instead, as ``separator=";"``.
        progress: whether to show a bar for every pass.
        options: fields of :class:`~bdpvi.datasets.measuring.TableOptions`; ``constants`` and
            ``positive`` are required.

    Warns:
        PrivacyUtilityWarning: with the number of rows that are left out. For the owner.

    Raises:
        ValueError: naming an option or a column, or the block that cannot be read; or if rows of
            one person lie in two blocks, which is for the owner.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from bdpvi.datasets import constants_of
    >>> public = constants_of({"source": "By law.", "age": [18, 80]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, rows in (("a", "20,yes\\n49,no"), ("b", "80,yes")):
    ...         _ = (Path(folder) / f"{name}.csv").write_text(f"age,sick\\n{rows}\\n")
    ...     data = from_blocks(folder, "sick", positive="yes", constants=public, progress=False)
    ...     len(data), data.parts.sum(lambda part: part[1].sum().item())
    (3, 2.0)
    """
    given = {one.name: options.pop(one.name) for one in fields(FileFormat) if one.name in options}
    file = replace(file or FileFormat(), **given)
    if options.get("constants") is None:
        raise ValueError(
            "constants: a table in blocks is encoded by public preprocessing; give an Encoding, as "
            "constants_of makes one"
        )
    blocks = Table.of(table, file=file)
    if (types := options.get("types") or blocks.schema) is not None:
        options["types"] = in_file(types, list(blocks.header), file)
    options = {"name": Path(blocks.path).stem or "data", **options}
    header, people, limit = list(blocks.header), People(), None
    if unit is not None:
        if unit in (target, *(column.name for column in options["constants"].columns)):
            raise ValueError(f"unit={unit!r} names persons, and is the target or in constants too")
        header = without_unit(header, unit)
        types = options.get("types")
        type_, options["types"] = (None, None) if types is None else types.of_unit(unit)
        limit = RowLimit(unit, validate.positive_int("rows_per_unit", rows_per_unit), type_)
        people = People(unit=unit, rows_per_unit=rows_per_unit)
    none = pd.DataFrame({name: pd.Series(dtype=object) for name in header})
    empty = dataset_from_frame(none, target, **options)
    rows = blocks.records(executor, track=bar if progress else None, what="pass")
    if limit is not None:
        limit.check(rows.sum(limit.persons))
        rows = rows.map(limit.of)
    left_out, kept = rows.sum(_count_rows, target, options)
    tell_owner(left_out, "record", "a blank, an unknown value, or a number that is not finite")
    return BlockData(
        rows.map(_encoded, target, options),
        kept,
        empty.feature_names,
        empty.name,
        empty.preprocessing,
        people,
    )


def _encoded(frame: pd.DataFrame, target: str, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return features (n, d) and targets (n,) of the rows that can be used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the owner was told once for all blocks
        data = dataset_from_frame(frame, target, **options)
    return data.x, data.y


def _count_rows(frame: pd.DataFrame, target: str, options: dict[str, Any]) -> tuple[int, int]:
    """Return the number of rows that cannot be used, and of those that can."""
    kept = len(_encoded(frame, target, options)[0])
    return len(frame) - kept, kept

"""Tables from files of any kind (:mod:`bdpvi.datasets.openers`), all rows in memory."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bdpvi._ground.outputs import several
from bdpvi._ground.types import tell_owner
from bdpvi.datasets.cells import read_cells
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.lines import guessed, separator_of
from bdpvi.datasets.objects import frame_of
from bdpvi.datasets.openers import Lines, RowGroup, opened
from bdpvi.datasets.stored import NAMES, Stored


def read_table(
    path: str | os.PathLike[str],
    *,
    text: bool = False,
    least: int = 1,
    written: Collection[str] = (),
    **file: Any,
) -> pd.DataFrame:
    """Read a file with a header: CSV, Parquet, Feather, ORC, Excel, SPSS, SAS or Stata.

    Args:
        path: the file; text may be compressed (gzip, bzip2, zstd, or a zip archive of one file).
        text: return the values of text as written, a blank as an empty string.
        least: fewest rows accepted.
        written: columns whose values are returned as written, without ``text`` too.
        file: fields of :class:`FileFormat`; ``separator=";"`` reads a file with semicolons. The
            signs of numbers matter without ``text`` only.

    Warns:
        PrivacyUtilityWarning: about lines that are left out because they have more or fewer values
            than the header, or an unclosed quote. For the owner only.

    Raises:
        ValueError: naming the file: an empty file, a header without rows, a repeated name, a header
            that is not of the character set or has an unclosed quote, another separator; a file
            that is no table, cannot be read, or needs a package.
        OSError: if the file cannot be opened.
    """
    given = FileFormat(**file)
    separator_of(given.separator)  # refused before the file is opened
    kind, header, parts = _opened(path, given)
    try:
        frame, odd = _whole(parts, text, given, [one for one in header if one in written])
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(f"{path} is not a readable {NAMES[kind]}: {error}") from error
    if len(frame) < least:
        raise ValueError(f"{path} has a header but no rows")
    values = several(len(header), "value")
    tell_owner(odd, "line", f"not {values}, or a quote that is not closed, in {path}")
    return frame


def read_header(path: str | os.PathLike[str], **file: Any) -> list[str]:
    """Return the column names of a file without reading any row.

    Args:
        path: the file, as for :func:`read_table`.
        file: fields of :class:`FileFormat`.

    Raises:
        ValueError: if it has no header.
        OSError: if the file cannot be opened.
    """
    return _opened(path, FileFormat(**file))[1]


def read_numbers(
    path: str | os.PathLike[str], columns: Sequence[str]
) -> Iterator[tuple[NDArray[np.float64], int]]:
    """Iterate over a CSV file's numbers block by block, each line and each cell read by itself.

    Args:
        path: the file, with comma-separated values.
        columns: names in the header.

    Yields:
        The values of some lines, (n, d), NaN or infinite where a cell is not a finite number; and
        the number of lines left out among them, by the rules of :func:`read_table`.
    """
    for part in _opened(path, FileFormat())[2]:
        for table, odd, _ in part.tables():
            found = table.select(list(columns)).to_pandas(use_threads=False)
            yield np.column_stack([read_cells(found[name]).numbers for name in columns]), odd


def _opened(path: str | os.PathLike[str], given: FileFormat) -> tuple[str, list[str], list[Any]]:
    """Return what a file is, its header and its parts."""
    file = Stored.of(os.fspath(path))
    kind = file.kind()
    names, parts = opened(file, kind, given)
    return kind, names, parts(tuple(names))


def _whole(
    parts: list[Any], text: bool, given: FileFormat, written: list[str]
) -> tuple[pd.DataFrame, int]:
    """Return all rows, and the number of lines left out."""
    import pyarrow as pa

    if not isinstance(parts[0], Lines | RowGroup):
        frame = pd.concat([one for part in parts for one in part.read()], ignore_index=True)
        return (frame if text else frame.infer_objects()), 0
    found = [one for part in parts for one in part.tables()]
    table = pa.concat_tables([one for one, _, _ in found])
    odd = sum(count for _, count, _ in found)
    if text or isinstance(parts[0], RowGroup):
        return frame_of(table), odd
    frame = guessed(table, given)
    return frame.assign(**frame_of(table.select(written))), odd

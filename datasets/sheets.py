"""Files of other programs: Excel workbooks, and those of SPSS, SAS and Stata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pandas as pd

from bdpvi._ground.outputs import several
from bdpvi.datasets.lines import names_of
from bdpvi.datasets.objects import sliced
from bdpvi.datasets.stored import NAMES, Stored

READERS = {
    "sav": "read_sav",
    "por": "read_por",
    "dta": "read_dta",
    "sas7bdat": "read_sas7bdat",
    "xpt": "read_xport",
}
"""Readers of statistics files, by kind."""


@dataclass(frozen=True)
class Sheet:
    """A sheet of a workbook; a row without any cell is none.

    Attributes:
        file: the workbook.
        sheet: its name; "" for the only one.
        header: the names of all columns, in the order of the table.
    """

    file: Stored
    sheet: str
    header: tuple[str, ...]
    kind = "excel"

    @property
    def name(self) -> str:
        """The block in words."""
        return f"{self.file.path}, a sheet"

    def cells(self, most: int | None = None) -> tuple[list[str], list[list[Any]]]:
        """Return the names of the columns, and the rows; an empty cell is None.

        Args:
            most: the number of lines that are read, with that of the names.
        """
        reader = _needed("python_calamine", self.file.path, "excel")
        with self.file.open() as opened:
            book = reader.CalamineWorkbook.from_filelike(opened)
            sheet = book.get_sheet_by_name(self._chosen(book.sheet_names))
            rows = [
                [None if one == "" else one for one in row] for row in sheet.to_python(nrows=most)
            ]
        self.file.check()
        if not rows:
            raise ValueError("its sheet is empty")
        filled = [row for row in rows[1:] if any(cell is not None for cell in row)]
        return names_of(map(_title, rows[0])), filled

    def _chosen(self, names: list[str]) -> str:
        """Return the name of the sheet that is read."""
        if self.sheet in names or (not self.sheet and len(names) == 1):
            return self.sheet or names[0]
        why = f"sheet={self.sheet!r} is none of them" if self.sheet else "none was chosen"
        raise ValueError(
            f"it has {several(len(names), 'sheet')}, {', '.join(map(repr, names))}, and {why}: "
            f"choose one (bdpvi table FILE --sheet {names[0]!r})"
        )

    def read(self) -> Iterator[pd.DataFrame]:
        """Yield the rows, at most :data:`ROWS` at a time."""
        names, rows = self.cells()
        yield from sliced(pd.DataFrame(rows, columns=names, dtype=object)[list(self.header)])


def _title(cell: object) -> str:
    """Return the name in a cell of a header."""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return "" if cell is None else str(cell)


@dataclass(frozen=True)
class Observations:
    """Some rows of an SPSS, SAS or Stata file: of a value with a label, the label.

    Attributes:
        file: the file.
        kind: its format.
        start: number of the first row.
        rows: how many; 0 for all others.
        header: the names of all columns, in the order of the table.
    """

    file: Stored
    kind: str
    start: int
    rows: int
    header: tuple[str, ...]

    @property
    def name(self) -> str:
        """The block in words."""
        return f"{self.file.path}, rows from {self.start} on"

    def found(self, **given: Any) -> tuple[pd.DataFrame, Any]:
        """Return the rows and what the file says of them."""
        reader = _needed("pyreadstat", self.file.path, "stats")
        if "://" in self.file.path:
            raise ValueError("it is read from a local file only; copy it")
        self.file.check()
        read = getattr(reader, READERS[self.kind])
        frame, said = read(self.file.path, **given)
        self.file.check()
        return frame.set_axis(names_of(frame.columns), axis=1), said

    def read(self) -> Iterator[pd.DataFrame]:
        """Yield the rows, at most :data:`ROWS` at a time."""
        given: dict[str, Any] = {"row_offset": self.start, "row_limit": self.rows}
        if self.kind in ("sav", "por", "dta"):  # SAS keeps its labels in another file
            given |= {"apply_value_formats": True, "formats_as_category": False}
        yield from sliced(self.found(**given)[0][list(self.header)])


def labels_of(path: str) -> dict[str, tuple[Mapping[str, str], tuple[str, ...]]]:
    """Return what an SPSS, SAS or Stata file itself says of its columns.

    Returns:
        By column the label of each code, and the codes or labels that stand for no value.
    """
    file = Stored.of(path)
    if "://" in path or (kind := file.kind()) not in READERS:
        return {}
    frame, said = Observations(file, kind, 0, 0, ()).found(metadataonly=True)
    names = dict(zip(said.column_names, frame.columns, strict=True))
    found: dict[str, tuple[Mapping[str, str], tuple[str, ...]]] = {}
    for name, labels in said.variable_value_labels.items():
        texts: Mapping[str, str] = {
            _title(code): str(label).strip() for code, label in labels.items()
        }
        found[names[name]] = texts, ()
    for name, ranges in (getattr(said, "missing_ranges", None) or {}).items():
        texts = found.get(names[name], ({}, ()))[0]
        single = [_title(one["lo"]) for one in ranges if one["lo"] == one["hi"]]
        found[names[name]] = texts, tuple(single)
    return found


def _needed(module: str, path: str, extra: str) -> Any:
    """Return an optional package.

    Raises:
        ValueError: naming what the file is and how to install the package.
    """
    try:
        return import_module(module)
    except ImportError as error:
        what = NAMES[Stored.of(path).kind()]
        raise ValueError(f"{path}: {what}: pip install 'bdpvi[{extra}]'") from error

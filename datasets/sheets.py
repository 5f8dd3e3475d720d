"""Files of other programs: Excel workbooks, and those of SPSS, SAS and Stata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import pandas as pd

from bdpvi._ground.outputs import several
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.lines import names_of
from bdpvi.datasets.stored import KINDS, Reader, Stored

MANY = 1 << 16
"""Rows of a block of a statistics file."""


@dataclass(frozen=True)
class Sheet(Reader):
    """A sheet of a workbook; a row without any cell is none.

    Attributes:
        sheet: the sheet's name; "" for the only one.
    """

    sheet: str

    @classmethod
    def of(cls, file: Stored, kind: str, format: FileFormat) -> Sheet:
        """Open a workbook; only the header is read."""
        made = cls(file, kind, (), format.sheet)
        return replace(made, names=tuple(made._cells(most=1)[0]))

    def places(self, size: int) -> list[str]:
        """Return one place, the sheet."""
        return [self.sheet]

    def words(self, place: str) -> str:
        """Return a place in words."""
        return "a sheet"

    def rows(self, place: str) -> Iterator[tuple[pd.DataFrame, int, int]]:
        """Yield the rows; an empty cell is None."""
        names, rows = self._cells()
        yield pd.DataFrame(rows, columns=names, dtype=object), 0, 0

    def _cells(self, most: int | None = None) -> tuple[list[str], list[list[Any]]]:
        """Return the names of the columns, and the rows of at most so many lines."""
        reader = _import_optional("python_calamine", self.file.path, "excel")
        with self.file.open() as opened:
            book = reader.CalamineWorkbook.from_filelike(opened)
            sheet = book.get_sheet_by_name(self._sheet_name(book.sheet_names))
            rows = [
                [None if one == "" else one for one in row] for row in sheet.to_python(nrows=most)
            ]
        self.file.check()
        if not rows:
            raise ValueError("its sheet is empty")
        filled = [row for row in rows[1:] if any(cell is not None for cell in row)]
        return names_of(map(_title, rows[0])), filled

    def _sheet_name(self, names: list[str]) -> str:
        """Return the name of the sheet that is read."""
        if self.sheet in names or (not self.sheet and len(names) == 1):
            return self.sheet or names[0]
        why = f"sheet={self.sheet!r} is none of them" if self.sheet else "none was chosen"
        raise ValueError(
            f"it has {several(len(names), 'sheet')}, {', '.join(map(repr, names))}, and {why}: "
            f"choose one (bdpvi table FILE --sheet {names[0]!r})"
        )


def _title(cell: object) -> str:
    """Return the name in a cell of a header."""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return "" if cell is None else str(cell)


@dataclass(frozen=True)
class Observations(Reader):
    """An SPSS, SAS or Stata file: of a value with a label, the label. Its places are rows.

    Attributes:
        number: how many rows it has, as it says.
    """

    number: int

    @classmethod
    def of(cls, file: Stored, kind: str, format: FileFormat) -> Observations:
        """Open a file; no row is read."""
        frame, about = _read_statistics(file, kind, metadataonly=True)
        return cls(file, kind, tuple(frame.columns), about.number_rows or 1)

    def places(self, size: int) -> list[tuple[int, int]]:
        """Return first rows and how many, 0 for all."""
        cuts = range(0, self.number, MANY)
        return [(at, MANY if len(cuts) > 1 else 0) for at in cuts]

    def words(self, place: tuple[int, int]) -> str:
        """Return a place in words."""
        return f"rows from {place[0]} on"

    def rows(self, place: tuple[int, int]) -> Iterator[tuple[pd.DataFrame, int, int]]:
        """Yield the rows."""
        given: dict[str, Any] = {"row_offset": place[0], "row_limit": place[1]}
        if self.kind in ("sav", "por", "dta"):  # SAS keeps its labels in another file
            given |= {"apply_value_formats": True, "formats_as_category": False}
        yield _read_statistics(self.file, self.kind, **given)[0], 0, 0


def _read_statistics(file: Stored, kind: str, **given: Any) -> tuple[pd.DataFrame, Any]:
    """Return rows of a statistics file, and what it says of them."""
    reader = _import_optional("pyreadstat", file.path, "stats")
    if "://" in file.path:
        raise ValueError("it is read from a local file only; copy it")
    file.check()
    read = getattr(reader, "read_xport" if kind == "xpt" else f"read_{kind}")
    frame, about = read(file.path, **given)
    file.check()
    return frame.set_axis(names_of(frame.columns), axis=1), about


def labels_of(path: str) -> dict[str, tuple[Mapping[str, str], tuple[str, ...]]]:
    """Return what an SPSS, SAS or Stata file itself says of its columns.

    Returns:
        By column the label of each code, and the codes or labels that stand for no value.
    """
    file = Stored.of(path)
    if "://" in path or KINDS[kind := file.kind()].reader != "sheets.Observations":
        return {}
    frame, about = _read_statistics(file, kind, metadataonly=True)
    names = dict(zip(about.column_names, frame.columns, strict=True))
    result: dict[str, tuple[Mapping[str, str], tuple[str, ...]]] = {}
    for name, labels in about.variable_value_labels.items():
        texts: Mapping[str, str] = {
            _title(code): str(label).strip() for code, label in labels.items()
        }
        result[names[name]] = texts, ()
    for name, ranges in (getattr(about, "missing_ranges", None) or {}).items():
        texts = result.get(names[name], ({}, ()))[0]
        single = [_title(one["lo"]) for one in ranges if one["lo"] == one["hi"]]
        result[names[name]] = texts, tuple(single)
    return result


def _import_optional(module: str, path: str, extra: str) -> Any:
    """Return an optional package.

    Raises:
        ValueError: naming what the file is and how to install the package.
    """
    try:
        return import_module(module)
    except ImportError as error:
        what = KINDS[Stored.of(path).kind()].words
        raise ValueError(f"{path}: {what}: pip install 'bdpvi[{extra}]'") from error

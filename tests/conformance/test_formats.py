"""Every format of files keeps the same promises, whichever reader it has."""

from __future__ import annotations

import bz2
import gzip
import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from bdpvi.datasets.cells import read_cell
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.guess import seems
from bdpvi.datasets.table import Table

FRAME = pd.DataFrame({"KG": [70.5, np.nan, -1.0], "SEX": ["F", "M", "F"]})
CELLS = ["70.5", None, "-1", "F", "M", "F"]
Write = Callable[[pd.DataFrame, Path], Any]


def packed(pack: Callable[[bytes], bytes]) -> Write:
    return lambda frame, path: path.write_bytes(pack(frame.to_csv(index=False).encode()))


def zipped(content: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a.csv", content)
    return made.getvalue()


def workbook(frame: pd.DataFrame, path: Path) -> None:
    pytest.importorskip("openpyxl")
    pytest.importorskip("python_calamine")
    with path.open("wb") as file:
        frame.to_excel(file, index=False)


def program(name: str) -> Write:
    def write(frame: pd.DataFrame, path: Path) -> None:
        getattr(pytest.importorskip("pyreadstat"), f"write_{name}")(frame, str(path))

    return write


FORMATS: dict[str, tuple[str, Write]] = {
    "CSV": ("csv", packed(bytes)),
    "gzip": ("csv.gz", packed(gzip.compress)),
    "bzip2": ("csv.bz2", packed(bz2.compress)),
    "zip": ("csv.zip", packed(zipped)),
    "zstd": ("csv.zst", packed(lambda one: pa.compress(one, "zstd", asbytes=True))),
    "Parquet": ("parquet", lambda frame, path: frame.to_parquet(path)),
    "Feather": ("feather", lambda frame, path: frame.to_feather(path)),
    "ORC": ("orc", lambda frame, path: frame.to_orc(path)),
    "Excel": ("xlsx", workbook),
    "SPSS": ("sav", program("sav")),
    "Stata": ("dta", program("dta")),
    "SAS": ("xpt", program("xport")),
    "SPSS, portable": ("por", program("por")),
}
PROGRAMS = ("SPSS", "Stata", "SAS", "SPSS, portable")
"""Formats whose own libraries read local files alone, and notice less damage."""


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def written(format: str, folder: Path, frame: pd.DataFrame = FRAME, name: str = "a") -> Path:
    suffix, write = FORMATS[format]
    write(frame, folder / f"{name}.{suffix}")
    return folder / f"{name}.{suffix}"


def cells_of(frame: pd.DataFrame) -> list[str | None]:
    each = (read_cell(value) for name in frame for value in frame[name].tolist())
    return [None if blank else label for _, label, blank in each]


def test_what_is_read_is_what_was_written(format: str, tmp_path: Path) -> None:
    path = written(format, tmp_path)
    paths = [path]
    if format != "SPSS, portable":  # others are told by what they hold
        paths += [Path(shutil.copy(path, tmp_path / name)) for name in ("plain", "b.csv")]
    for one in paths:
        table = Table.of(one)
        assert table.header == ("KG", "SEX")
        assert cells_of(table.frame(text=True)) == CELLS
        assert cells_of(pd.concat(list(table.records().rows()))) == CELLS
        assert seems(one, FileFormat()) == FileFormat()


def test_files_of_a_folder_are_one_table_and_of_one_format(format: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "ab":
        path = written(format, folder, name=name)
    some = f"{folder}/*.{path.name.partition('.')[2]}"
    for one in (folder, some, *([] if format in PROGRAMS else [f"file://{folder}/*"])):
        assert Table.of(one).records().sum(len) == 6
    other = "Parquet" if format != "Parquet" else "CSV"
    written(other, folder, name="c")
    with pytest.raises(ValueError, match=r"both .* files; name one kind"):
        Table.of(folder)


def test_a_file_that_changes_while_it_is_read_is_refused_by_name(
    format: str, tmp_path: Path
) -> None:
    table = Table.of(written(format, tmp_path))
    path = written(format, tmp_path, pd.concat([FRAME] * 200, ignore_index=True))
    for use in (lambda: table.records().sum(len), table.fingerprint):
        with pytest.raises(ValueError, match=rf"{path.name}.*: the file has changed"):
            use()
    path.unlink()
    with pytest.raises(ValueError, match=path.name):
        table.records().sum(len)


def test_a_header_without_rows_is_a_table_of_nobody(format: str, tmp_path: Path) -> None:
    if format in PROGRAMS:
        pytest.skip("their writers need rows")
    try:
        path = written(format, tmp_path, FRAME[:0])
    except NotImplementedError:
        pytest.skip("this pyarrow writes no such file without rows")
    table = Table.of(path)
    assert table.header == ("KG", "SEX")
    assert table.records().sum(len) == 0
    with pytest.raises(ValueError, match="has a header but no rows"):
        table.frame()


def test_a_damaged_file_is_refused_by_name(format: str, tmp_path: Path) -> None:
    if format in ("CSV", *PROGRAMS):
        pytest.skip("a part of it is a file too")
    path = written(format, tmp_path, pd.concat([FRAME] * 50, ignore_index=True))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=path.name):
        Table.of(path).frame()

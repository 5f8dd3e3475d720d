"""Tables of any kind are read alike: what a file holds decides, and no cell changes on the way."""

from __future__ import annotations

import io
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdpvi._ground.outputs import csv_text
from bdpvi.datasets import sheets
from bdpvi.datasets.cells import read_cell
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.lines import parsed
from bdpvi.datasets.objects import in_memory
from bdpvi.datasets.table import Table

LONG = 2**62 + 1
FRAME = pd.DataFrame(
    {
        "id": pd.array([LONG, None, 3], dtype="Int64"),
        "kg": [70.5, np.nan, -1.0],
        "sex": ["F", "M", None],
    }
)
TEXT = b"id,kg,sex\n4611686018427387905,70.5,F\n,,M\n3,-1.0,\n"


def cells_of(frame: pd.DataFrame) -> list[list[Any]]:
    """Return what each cell says, digits as they are and a blank as None."""
    found: list[str | None] = []
    for value in (one for name in frame for one in frame[name].tolist()):
        _, label, blank = read_cell(value)
        found.append(None if blank else str(value) if str(value).isdigit() else label)
    return [list(frame), found]


def workbook(path: Path, rows: list[list[object]]) -> None:
    """Write an Excel workbook of one sheet."""
    book = pytest.importorskip("openpyxl").Workbook()
    for row in rows:
        book.active.append(row)
    with path.open("wb") as file:
        book.save(file)


def test_a_wrong_kind_of_file_is_refused_by_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    for content, words in {
        b"%PDF-1.7\n": "a PDF document",
        b"SQLite format 3\0": "an SQLite database",
        b"\xfd7zXZ\0": "an xz archive; unpack it",
        b"\x89PNG\r\n": "an image",
    }.items():
        path.write_bytes(content + b"more")
        for use in (Table.of, lambda one: Table.of(one).frame()):
            with pytest.raises(ValueError, match=rf"a\.csv is {words}"):
                use(path)
    several = io.BytesIO()
    with zipfile.ZipFile(several, "w") as archive:
        archive.writestr("a.csv", TEXT)
        archive.writestr("b.csv", TEXT)
    path.write_bytes(several.getvalue())
    with pytest.raises(ValueError, match=r"a\.csv .*: an archive of 2 files; unpack it"):
        Table.of(path).frame()
    (tmp_path / "a.xlsx").write_text("age,sick\n1,yes\n")
    with pytest.raises(ValueError, match=r"a\.xlsx is not a readable Excel workbook"):
        Table.of(tmp_path / "a.xlsx").frame()

    def none(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(sheets, "import_module", none)
    workbook(tmp_path / "a.xlsx", [["age"], [1]])
    (tmp_path / "a.dta").write_bytes(b"<stata_dta>")
    for name, words in {
        "a.xlsx": r"Excel workbook: pip install 'bdpvi\[excel\]'",
        "a.dta": r"Stata file: pip install 'bdpvi\[stats\]'",
    }.items():
        with pytest.raises(ValueError, match=words):
            Table.of(tmp_path / name).frame()


def test_the_first_sheet_of_a_workbook_is_a_table(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    path = tmp_path / "a.xlsx"
    rows: list[list[object]] = [["age", 2024, " sex "], [40.5, 1, "F"], [None, None, None]]
    workbook(path, [*rows, [None, 7, "x"]])
    found = Table.of(path).frame(text=True)
    assert cells_of(found) == [["age", "2024", "sex"], ["40.5", None, "1", "7", "F", "x"]]
    assert Table.of(path).frame().dtypes.map(lambda one: one.kind).tolist()[:2] == ["f", "f"]
    assert Table.of(path).records().sum(len) == 2


@pytest.mark.parametrize("kind", ["sav", "dta"])
def test_codes_of_statistics_programs_are_their_labels(kind: str, tmp_path: Path) -> None:
    pyreadstat = pytest.importorskip("pyreadstat")
    frame, path = pd.DataFrame({"SEX": [1.0, 2.0, 1.0]}), tmp_path / f"a.{kind}"
    labels = {"SEX": {1: "F", 2: "M"}}
    getattr(pyreadstat, f"write_{kind}")(frame, str(path), variable_value_labels=labels)
    assert cells_of(Table.of(path).frame(text=True)) == [["SEX"], ["F", "M", "F"]]


def test_a_sas_file_is_read_by_its_own_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only SAS writes its own files: here its reader reads others, in blocks as ours asks it."""
    pyreadstat = pytest.importorskip("pyreadstat")
    frame = pd.DataFrame({"KG": np.arange(5.0), "SEX": [*"FMFMF"]})
    pyreadstat.write_xport(frame, str(tmp_path / "b.xpt"))
    path, read = tmp_path / "a.sas7bdat", pyreadstat.read_xport
    path.write_bytes(bytes(1000))
    with pytest.raises(ValueError, match=r"a\.sas7bdat is not a readable SAS file"):
        Table.of(path)
    asked: list[str] = []

    def reader(name: str, **given: Any) -> Any:
        asked.append(name)
        return read(str(tmp_path / "b.xpt"), **given)

    monkeypatch.setattr(pyreadstat, "read_sas7bdat", reader)
    assert cells_of(Table.of(path).frame(text=True)) == cells_of(frame)
    monkeypatch.setattr(sheets, "MANY", 2)
    assert Table.of(path).records().sum(len) == 5
    assert {*asked} == {str(path)}


def test_columns_that_pandas_calls_an_index_are_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    frame = pd.DataFrame({"age": [40, 50, 60, 70], "sick": ["no", "yes"] * 2})
    for ids in ([7, 7, 9, 2], [10, 12, 14, 16]):  # the latter are a formula in the file
        frame.set_index(pd.Index(ids, name="pid")).to_parquet(path, row_group_size=3)
        found = Table.of(path).frame()
        assert found["pid"].tolist() == ids
        rows = pd.concat([one for part in Table.of(path).parts for one in part.read()])
        assert rows["pid"].tolist() == ids
        assert Table.of(path).header == (*found,) == (*rows,) == ("age", "sick", "pid")
    frame.set_axis([3, 1, 2, 0]).to_parquet(path)
    assert Table.of(path).header == (*Table.of(path).frame(),) == ("age", "sick")


def test_bytes_are_text_each_cell_by_itself(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    for cells, words in (
        ([b"yes", b"no", None], ["yes", "no", None]),
        ([b"yes", b"\xff", None], ["yes", "\\xff", None]),
    ):
        column = pa.array(cells, pa.binary())
        table = pa.table({"a": column, "b": column.dictionary_encode()})
        parquet.write_table(table, tmp_path / "a.parquet")
        found = Table.of(tmp_path / "a.parquet").frame().astype(object)
        for name in "ab":
            assert found[name].where(found[name].notna(), None).tolist() == words


@given(st.lists(st.text("'=+-@a1 ＝", min_size=1, max_size=5), min_size=1, max_size=8))
def test_what_is_written_is_read_back(texts: list[str]) -> None:
    frame = pd.DataFrame({"a": texts, "b": 1}, dtype=object)
    content = csv_text(frame).partition("\n")[2].encode()
    found, odd = parsed(content, ["a", "b"], FileFormat())
    assert odd == 0
    assert [text.strip(" ") for text in texts] == [one.strip(" ") for one in found["a"].to_pylist()]


def test_objects_in_memory_are_tables() -> None:
    import pyarrow as pa

    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    arrow = pa.table(
        {
            "id": pa.array([LONG, None, 3]),
            "kg": pa.array([70.5, None, -1.0]),
            "sex": pa.array(["F", "M", None]),
        }
    )
    frame = polars.from_arrow(arrow)
    connection = duckdb.connect()
    connection.register("t", arrow)
    streams = [arrow, frame, frame.lazy(), connection.sql("select * from t"), arrow.to_reader()]
    for one in [*streams, ("select * from t", connection)]:
        assert cells_of(in_memory(one)) == cells_of(FRAME)
    for one in [arrow, frame]:
        assert Table.of(one).records().sum(len) == 3
    coded = pa.DictionaryArray.from_arrays([0, 1, 2, None], ["F", "F", None])
    assert cells_of(in_memory(pa.table({"sex": coded}))) == [["sex"], ["F", "F", None, None]]
    once = arrow.to_reader()
    assert len(in_memory(once)) == 3
    with pytest.raises(ValueError, match="a stream gives them once, so open it again"):
        in_memory(once)


def test_a_query_is_a_table() -> None:
    alchemy = pytest.importorskip("sqlalchemy")
    engine = alchemy.create_engine("sqlite://")
    with sqlite3.connect(":memory:") as plain, engine.connect() as other:
        for one in (plain, other.connection):
            one.execute("create table t (id integer, kg real, sex text)")
            rows = [(LONG, 70.5, "F"), (None, None, "M"), (3, -1.0, None)]
            one.executemany("insert into t values (?, ?, ?)", rows)
        for source in (plain, other, engine):
            found = in_memory(("select * from t", source))
            assert cells_of(found) == cells_of(FRAME)
        with pytest.raises(ValueError, match="the query 'select x' fails: no such column"):
            in_memory(("select x", plain))
    plain.close()
    engine.dispose()

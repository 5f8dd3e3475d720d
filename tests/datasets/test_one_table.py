"""One table, whoever brings it; and sources that give their rows once."""

from __future__ import annotations

import sqlite3
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

import bdpvi
from bdpvi import BayesianLogisticRegression, Ledger, PrivacyUtilityWarning, Table, guides
from bdpvi.datasets import Schema, constants_of, from_blocks, partition
from bdpvi.datasets.cells import read_cells
from bdpvi.datasets.formats import FileFormat
from bdpvi.sklearn import PrivateLogisticRegression
from bdpvi.tables.predictions import Predictions

ROWS = 400
PUBLIC = constants_of({"source": "By law.", "age": [18, 98]})
FRAME = pd.DataFrame(
    {
        "age": np.random.default_rng(0).integers(18, 99, ROWS),
        "sick": np.where(np.arange(ROWS) % 3, "no", "yes"),
    }
)
RECORDS = FRAME.to_dict("records")


class Endless(IterableDataset[Any]):
    """A torch stream."""

    def __iter__(self) -> Iterator[Any]:
        return iter(RECORDS)


def cursor() -> sqlite3.Cursor:
    connection = sqlite3.connect(":memory:")
    FRAME.to_sql("t", connection, index=False)
    return connection.execute("select * from t")


ONCE: dict[str, Callable[[], Any]] = {
    "generator": lambda: (row for row in RECORDS),
    "cursor": cursor,
    "reader": lambda: pa.Table.from_pandas(FRAME).to_reader(),
    "chunks": lambda: iter([FRAME[:200], FRAME[200:]]),
    "torch": Endless,
}
"""Sources that give their rows once."""


def released() -> bdpvi.Release:
    return flat.private(
        FRAME, target="sick", positive="yes", constants=PUBLIC, epsilon=1, delta=1e-5,
        one_row_per_person=True, progress=False,
    )  # fmt: skip


def private(source: Any, ledger: Ledger) -> None:
    flat.private(
        source, target="sick", positive="yes", constants=PUBLIC, epsilon=0.1, delta=1e-5,
        one_row_per_person=True, progress=False, ledger=ledger,
    )  # fmt: skip


def synthesize(source: Any, ledger: Ledger) -> None:
    flat.synthesize(
        source, target="sick", epsilon=0.1, delta=1e-5, one_row_per_person=True, ledger=ledger,
        progress=False,
    )  # fmt: skip


MODEL = BayesianLogisticRegression(clip=0.5)


def fit(source: Any, ledger: Ledger) -> None:
    bdpvi.fit(MODEL, guides.FullRank(MODEL), source, ledger=ledger, progress=False)


def fit_private(source: Any, ledger: Ledger) -> None:
    bdpvi.fit_private(
        BayesianLogisticRegression.unweighted(limit=2.0), source, epsilon=1, ledger=ledger
    )


def blocks(source: Any, ledger: Ledger) -> None:
    data = from_blocks(source, "sick", positive="yes", constants=PUBLIC, progress=False)
    assert len(data) == ROWS
    assert data.parts.sum(lambda part: len(part[0])) == ROWS


def predict(source: Any, ledger: Ledger) -> None:
    assert len(Predictions.of(released(), source, progress=False).frame()) == ROWS


def looked(source: Any, ledger: Ledger) -> None:
    assert flat.look(source, target="sick", one_row_per_person=True).rows == ROWS


def cut(source: Any, ledger: Ledger) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = partition(source, by="age", out=Path(folder) / "out", progress=False)
        assert made.records().sum(len) == ROWS


def estimator(source: Any, ledger: Ledger) -> None:
    PrivateLogisticRegression(epsilon=0.1).fit(source, np.arange(ROWS) % 2)


def table(source: Any, ledger: Ledger) -> None:
    made = Table.of(source)
    assert [made.records().sum(len) for _ in range(2)] == [ROWS] * 2
    assert made.fingerprint() == Table.of(RECORDS).fingerprint()


DOORS = (private, synthesize, fit, fit_private, blocks, predict, looked, cut, estimator, table)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ONCE)
def test_rows_that_are_given_once_are_read_once_or_refused(
    name: str, door: Callable[[Any, Ledger], None]
) -> None:
    source, ledger = ONCE[name](), Ledger()
    try:  # either it takes all rows, or it refuses
        door(source, ledger)
    except (ValueError, TypeError):
        assert not ledger.book().entries
        assert door not in (private, synthesize, table) or name in ("chunks", "torch")
    spent = len(ledger.book().entries)
    with suppress(StopIteration, TypeError):
        next(source)
    with pytest.raises((ValueError, TypeError)):
        door(source, ledger)
    assert len(ledger.book().entries) == spent


@pytest.mark.parametrize("name", ["generator", "reader", "cursor"])
def test_what_has_no_rows_left_is_refused_by_name(name: str) -> None:
    source = ONCE[name]()
    assert Table.of(source).records().sum(len) == ROWS
    with pytest.raises(ValueError, match="a stream gives them once, so open it again"):
        Table.of(source)


def test_names_have_the_order_of_most_rows() -> None:
    rows = [{"sick": "no", "age": 7}, *RECORDS[1:]]
    found = Table.of(rows).first()[0]
    assert [*found] == ["age", "sick"]
    assert found.iloc[0].tolist() == [7, "no"]


def test_a_generator_that_has_begun_is_refused() -> None:
    source = ONCE["generator"]()
    next(source)
    with pytest.raises(ValueError, match="no rows, or not all"):
        Table.of(source)


def cells(table: Any) -> list[list[Any]]:
    """Return numbers and labels of the cells of each column."""
    frame = Table.of(table).first()[0]
    found = [read_cells(frame[name]) for name in frame.columns]
    return [
        [np.nan_to_num(one.numbers, nan=-1).tolist(), one.names, one.codes.tolist()]
        for one in found
    ]


def test_rows_in_python_are_read_as_those_of_a_file(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "a.csv", index=False)
    right = cells(tmp_path / "a.csv")
    for one in (
        FRAME, RECORDS, {"age": FRAME["age"].tolist(), "sick": [*FRAME["sick"]]},
        FRAME.to_records(index=False), cursor(),
    ):  # fmt: skip
        assert cells(one) == right
        assert Table.of(one).header == ("age", "sick") if not hasattr(one, "fetchall") else True
    rows = FRAME.to_numpy()
    for other in (rows, rows.tolist(), [*map(tuple, rows)], iter(rows.tolist())):
        assert cells(other) == right
    assert Table.of(rows.tolist()).header == ("x0", "x1")


def test_an_odd_row_of_a_list_is_left_out_alone() -> None:
    for odd in ([1], [1, 2, 3], None, "ab", 7, {"x0": 1}, np.zeros((2, 2)), {1, 2}):
        for at in (0, 3):
            rows: list[Any] = [[one, one] for one in range(5)]
            rows[at] = odd
            with pytest.warns(PrivacyUtilityWarning, match="owner only: 1 row left out"):
                found = Table.of(rows).first()[0]
            assert found["x0"].tolist() == [one for one in range(5) if one != at]
    rows = [{"a": 1, "b": 2}] * 3
    found = Table.of([{"c": 1}, *rows, {"b": 2}]).first()[0]
    assert found["a"].isna().tolist() == [True, False, False, False, True]
    with pytest.raises(ValueError, match="of a file give the path"):
        Table.of(["age,sick", "1,no"])


def test_tensors_and_torch_datasets_are_tables() -> None:
    x, y = torch.arange(6000.0).view(3000, 2), torch.arange(3000) % 2
    for one in (torch.cat([x, y[:, None]], 1), TensorDataset(x, y)):
        found = Table.of(one)
        assert found.records().sum(len) == 3000
        assert found.first(2)[0].to_numpy().tolist() == [[0, 1, 0], [2, 3, 1]]
    assert Table.of(TensorDataset(x, y)).header == ("x0", "x1", "y")
    data = Table.of(TensorDataset(x, y)).numbers("y")
    assert torch.equal(torch.cat([part for part, _ in data.parts.rows()]), x.double())
    with pytest.raises(ValueError, match="tuples of 3 tensors"):
        Table.of(TensorDataset(x, y, y))
    with pytest.raises(ValueError, match=r"\(records, columns\), got \(3000,\)"):
        Table.of(y)
    with pytest.raises(ValueError, match="table: int is none of a path"):
        Table.of(7)


def test_a_schema_that_comes_with_a_table_reads_it(tmp_path: Path) -> None:
    schema = Schema.load(_schema(tmp_path))
    FRAME.assign(age=FRAME["age"].map("{},0".format)).to_csv(
        tmp_path / "a.csv", index=False, sep=";"
    )
    table = Table.of(tmp_path / "a.csv", schema, FileFormat(separator=";", decimal=","))
    assert Table.of(table) is table
    for use in (
        lambda: private(table, Ledger()),
        lambda: flat.synthesize(
            table, epsilon=1, one_row_per_person=True, ledger=Ledger(), progress=False
        ),
        lambda: partition(table, by="age", out=tmp_path / "out", progress=False),
    ):
        use()


def _schema(folder: Path) -> Path:
    path = folder / "schema.json"
    path.write_text(
        '{"source": "By law.", "columns": {"age": {"kind": "number", "low": 18, "high": 98}, '
        '"sick": {"kind": "category", "levels": ["no", "yes"]}}}'
    )
    return path


@pytest.mark.parametrize("suffix", [".tsv", ".TSV", ".tsv.gz"])
def test_a_tsv_file_has_tabs_by_its_name_unless_its_header_has_none(
    suffix: str, tmp_path: Path
) -> None:
    FRAME.to_csv(tmp_path / f"a{suffix}", sep="\t", index=False, compression="infer")
    FRAME.to_csv(tmp_path / f"b{suffix}", index=False, compression="infer")
    for name in "ab":
        found = Table.of(tmp_path / f"{name}{suffix}")
        assert found.header == ("age", "sick")
        assert cells(found) == cells(FRAME)
        assert not flat.look(tmp_path / f"{name}{suffix}", one_row_per_person=True).file.differences
    FRAME.to_csv(tmp_path / "c.csv", sep="\t", index=False)
    with pytest.raises(ValueError, match="separator="):
        Table.of(tmp_path / "c.csv")


def test_half_a_character_of_utf_16_changes_no_other_line(tmp_path: Path) -> None:
    lines = ["age,sick", *(f"{n},no" for n in range(9))]
    for half in (b"\x00\xd8", b"\x00\xdc"):
        content = (
            "\n".join(lines).encode("utf-16-le").replace("4,no".encode("utf-16-le"), b"4\0" + half)
        )
        (tmp_path / "a.csv").write_bytes(b"\xff\xfe" + content + b"\n\0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = Table.of(tmp_path / "a.csv", file=FileFormat(charset="utf-16")).first()[0]
        assert found["age"].tolist() == [f"{n}" for n in range(9) if n != 4]


@pytest.mark.parametrize("kind", ["dta", "frame", "list"])
def test_any_table_can_be_cut_by_persons(kind: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"who": [f"p{n // 2}" for n in range(40)], "kg": 70.5 + np.arange(40)})
    table: Any = frame
    if kind == "dta":
        pytest.importorskip("pyreadstat")
        table = tmp_path / "a.dta"
        frame.to_stata(table, write_index=False)
    elif kind == "list":
        table = [*frame.to_dict("records")[:-1], {"who": "p19", "kg": "n/a"}]
    made = partition(table, by="who", out=tmp_path / "out", progress=False)

    def read(rows: pd.DataFrame) -> Counter[tuple[Any, ...]]:
        who, kg = (read_cells(rows[name]) for name in ("who", "kg"))
        return Counter(
            zip([who.names[at] for at in who.codes], np.nan_to_num(kg.numbers, nan=-1), strict=True)
        )

    assert read(made.first()[0]) == read(Table.of(table).first()[0])
    assert made.records().sum(len) == 40

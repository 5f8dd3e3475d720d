"""A guarantee for persons of a table in blocks is that of the same table in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from test_cli import run

import bdpvi
from bdpvi import Ledger, Release
from bdpvi.datasets import Schema, partition
from bdpvi.datasets.table import Table
from bdpvi.datasets.types import ColumnType
from bdpvi.privacy.book import ROW

PERSONS: dict[str, Any] = {"unit": "patient", "rows_per_unit": 2}
OWNER = "ignore:for the owner only"


def visits() -> pd.DataFrame:
    """Return up to nine rows of each of a thousand persons, in no order."""
    random = np.random.default_rng(5)
    rows = 4_000
    age = random.normal(50, 12, rows)
    sick = np.where(random.random(rows) < 1 / (1 + np.exp((50 - age) / 8)), "yes", "no")
    names = [f"p{one:03d}" for one in random.integers(0, 1_000, rows)]
    frame = pd.DataFrame({"patient": names, "age": age, "sick": sick})
    frame["sex"] = random.choice(["F", "M"], rows)
    frame.loc[3, "patient"] = ""
    frame.loc[5, "sick"] = ""
    return frame


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_keys: None) -> Path:
    """Return a folder with a table, and the same in blocks of at most 900 rows; keys are known."""
    monkeypatch.setattr("bdpvi.datasets.objects.ROWS", 900)
    visits().to_csv(tmp_path / "visits.csv", index=False)
    partition(tmp_path / "visits.csv", by="patient", out=tmp_path / "parts", progress=False)
    return tmp_path


def private(table: Any, **more: Any) -> Release:
    given: dict[str, Any] = {"epsilon": 3.0, "target": "sick", "positive": "yes"}
    return flat.private(table, progress=False, **{**given, **PERSONS, **more})


MODELS: dict[str, dict[str, Any]] = {
    "prediction": {},
    "intervals": {"intervals": True},
    "linear": {
        "model": bdpvi.BayesianLinearRegression.of_bounds(0, 100),
        "target": "age",
        "positive": None,
    },
}


@pytest.mark.filterwarnings(OWNER)
@pytest.mark.parametrize("name", MODELS)
def test_the_release_is_that_of_the_table_in_memory(name: str, folder: Path) -> None:
    """Sums differ by their order alone; an optimum is found to its own tolerance."""
    books, more = (Ledger(), Ledger()), MODELS[name]
    whole = private(folder / "visits.csv", ledger=books[0], **more)
    found = private(folder / "parts", ledger=books[1], **more)
    assert len(Table.of(folder / "parts").parts) >= 5
    torch.testing.assert_close(found.samples, whole.samples, rtol=1e-9, atol=1e-9 if more else 1e-8)
    assert found.preprocessing["encoding"] == whole.preprocessing["encoding"]
    assert found.receipt == whole.receipt
    one, two = (book.book() for book in books)
    assert (one.unit, one.rows) == (two.unit, two.rows) == ("patient", 2)
    assert [charge.events for charge in one.entries] == [charge.events for charge in two.entries]


@pytest.mark.filterwarnings(OWNER)
@pytest.mark.parametrize("table", ["split", "row groups", "csv", "long"])
def test_a_person_in_two_parts_is_refused_uncharged(table: str, folder: Path) -> None:
    """In two files, two row groups of one, two ranges of bytes, and two reads of one row group."""
    path, frame = folder / "other", visits()
    path.mkdir()
    if table == "split":
        partition(folder / "visits.csv", by="patient", out=path / "in", progress=False)
        path = path / "in"
        pd.DataFrame([["p004", "50.5", "no", "F"]], columns=list(frame)).to_parquet(
            path / "a.parquet"
        )
    elif table == "csv":
        frame[:60].to_csv(path / "a.csv", index=False)
        frame[60:120].to_csv(path / "b.csv", index=False)
    else:
        sorted_ = frame.sort_values("patient")
        groups = 890 if table == "row groups" else len(frame)
        sorted_.to_parquet(path / "a.parquet", index=False, row_group_size=groups)
    with pytest.raises(ValueError, match=r"several blocks; `bdpvi partition TABLE --by patient "):
        private(path, out=folder / "out")
    assert not list(folder.rglob("*.ledger.jsonl"))
    assert not list(folder.glob("out*"))


@pytest.mark.filterwarnings(OWNER)
def test_rows_beyond_those_of_a_person_are_counted_once(folder: Path) -> None:
    frame = visits()
    named = frame[frame["patient"] != ""]
    kept = named.groupby("patient").head(2)
    with pytest.warns(UserWarning, match="for the owner only") as said:
        private(folder / "parts", ledger=Ledger())
    words = [str(one.message) for one in said if "person" in str(one.message)]
    assert words == [
        f"for the owner only: {len(frame) - len(kept)} rows left out: no person, or one with "
        "more than 2 rows (unit='patient')"
    ]


@pytest.mark.filterwarnings(OWNER)
def test_a_type_says_which_spellings_are_one_person(folder: Path) -> None:
    """As texts 7 and 007 are two persons and may lie apart; as integers they may not."""
    types = Schema({"patient": ColumnType(kind="integer")}, "Form 7")
    frame = visits()
    numbers = [str(one) for one in np.arange(len(frame)) // 4]
    frame["patient"] = [one.zfill(5) if n % 4 > 1 else one for n, one in enumerate(numbers)]
    (folder / "spelt").mkdir()
    for spelt in (0, 1):
        some = frame[(np.arange(len(frame)) % 4 > 1) == bool(spelt)]
        for start in range(0, len(some), 900):
            part = some[start : start + 900]
            part.to_parquet(folder / "spelt" / f"{spelt}{start}.parquet", index=False)
    private(folder / "spelt", ledger=Ledger())
    with pytest.raises(ValueError, match="rows of one person lie in several blocks"):
        private(folder / "spelt", ledger=Ledger(), types=types)
    partition(folder / "spelt", by="patient", out=folder / "ints", types=types, progress=False)
    release = private(folder / "ints", ledger=Ledger(), types=types)
    assert release.receipt.worst_case is not None


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.int64(), "rows of one person lie in several blocks"),
        (pa.float64(), "has dtype (float64|double), which names nobody exactly"),
    ],
)
def test_numbers_name_persons_exactly_or_not_at_all(
    kind: pa.DataType, said: str, folder: Path
) -> None:
    """As a whole number 2**60 + 1 is one person, beside a blank too; as a float it is several."""
    (folder / "big").mkdir()
    sick = pa.array(["yes", "no"] * 2)
    big = 2**60 + 1 if pa.types.is_integer(kind) else 2.0**60
    who = pa.array([big, 2, big, None], type=kind)
    table = pa.table({"patient": who, "age": [1.0, 2, 3, 4], "sick": sick})
    parquet.write_table(table, folder / "big" / "a.parquet", row_group_size=2)
    with pytest.raises(ValueError, match=said):
        private(folder / "big")
    assert not list(folder.rglob("*.ledger.jsonl"))


def test_a_column_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match="unit='who' must be a column of the table once"):
        private(folder / "parts", unit="who")
    assert not list(folder.rglob("*.ledger.jsonl"))


@pytest.mark.filterwarnings(OWNER)
def test_work_for_other_rows_of_a_person_is_not_gone_on_with(folder: Path) -> None:
    private(folder / "parts", out=folder / "out", ledger=folder / "a.jsonl")
    with pytest.raises(ValueError, match="with another table"):
        private(folder / "parts", out=folder / "out", rows_per_unit=3, ledger=folder / "b.jsonl")


@pytest.mark.filterwarnings(OWNER)
def test_the_command_protects_persons_of_a_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: tuple[object, ...] = (
        "--data", folder / "parts", "--target", "sick", "--positive", "yes", "--epsilon", 3,
        "--unit", "patient", "--rows-per-unit", 2, "--quiet",
    )  # fmt: skip
    assert run("private", *given, "--out", folder / "out", "--workers", 2) == 0
    assert "at most 2, of one person ('patient')" in capsys.readouterr().out
    book = Ledger.at(folder / "parts.ledger.jsonl").book()
    assert (book.unit, book.rows) == ("patient", 2)
    assert book.unit != ROW

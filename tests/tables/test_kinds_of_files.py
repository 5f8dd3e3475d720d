"""Files and objects of any kind are tables for a release, and are refused by what they are."""

from __future__ import annotations

import bz2
import gzip
import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

import bdpvi
from bdpvi.datasets import constants_of
from bdpvi.tables import Predictions

ROWS = 3000
PUBLIC = {"source": "By law.", "age": [10, 90]}


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.normal(50, 12, ROWS).round(1)
    sex = rng.choice(["F", "M"], ROWS)
    sick = np.where(rng.random(ROWS) < 1 / (1 + np.exp((50 - age) / 6)), "yes", "no")
    return pd.DataFrame({"age": age, "sex": sex, "sick": sick})


def release(source: Any, **more: Any) -> Any:
    given = {"target": "sick", "positive": "yes", "epsilon": 5.0, "expected_rows": ROWS}
    ledger = more.pop("ledger", None) or bdpvi.Ledger()
    return flat.private(source, ledger=ledger, progress=False, **{**given, **more})


def test_an_index_of_a_parquet_file_is_a_column(tmp_path: Path) -> None:
    frame = table()
    frame.set_index("age").to_parquet(tmp_path / "index.parquet")
    frame.to_parquet(tmp_path / "plain.parquet", index=False)
    persons = frame.assign(pid=np.repeat(np.arange(ROWS // 3), 3)).set_index("pid")
    persons.to_parquet(tmp_path / "pid.parquet")
    one = release(tmp_path / "index.parquet", one_row_per_person=True)
    assert "age" in [coefficient.name for coefficient in one.summary().coefficients]
    release(tmp_path / "pid.parquet", unit="pid", rows_per_unit=3)
    whole = release(tmp_path / "plain.parquet", one_row_per_person=True)
    made = Predictions.of(whole, tmp_path / "index.parquet", progress=False)
    assert made.write(tmp_path / "p.csv") == ROWS


def test_bytes_of_a_parquet_file_are_text(tmp_path: Path) -> None:
    frame = table()
    sick = pa.array([one.encode() for one in frame["sick"]], pa.binary())
    parquet.write_table(pa.table({"age": frame["age"], "sick": sick}), tmp_path / "t.parquet")
    made = release(tmp_path / "t.parquet", one_row_per_person=True)
    found = float(made.predict_mean(pd.DataFrame({"age": [70.0]}))[0])
    assert abs(found - 0.96) < 0.08


@pytest.mark.slow
def test_own_rows_are_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    grade = rng.choice(["-high", "+low", "=none", "plain"], 5000)
    sick = np.where(rng.random(5000) < np.where(grade == "-high", 0.9, 0.1), "yes", "no")
    pd.DataFrame({"grade": grade, "sick": sick}).to_csv(tmp_path / "t.csv", index=False)

    def run(words: str) -> None:
        command = [sys.executable, "-m", "bdpvi", *words.split()]
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)

    common = "--data t.csv --one-row-per-person --target sick --epsilon 5 --quiet"
    run(f"synthesize {common} --out rows --no-report")
    run(f"private {common} --ledger other.jsonl --positive yes --out model --no-scores")
    run("predict model/release.json --data rows/synthetic.csv --out p.csv")
    made = pd.read_csv(tmp_path / "rows" / "synthetic.csv")
    clean = made.assign(grade=made["grade"].str.lstrip("'"))
    clean.to_csv(tmp_path / "clean.csv", index=False)
    run("predict model/release.json --data clean.csv --out q.csv")
    found, truth = (pd.read_csv(tmp_path / name)["probability"] for name in ("p.csv", "q.csv"))
    assert (found - truth).abs().max() < 1e-9
    assert truth[made["grade"] == "'-high"].mean() > 0.8


@pytest.mark.filterwarnings("ignore")
def test_compressed_files_are_tables(tmp_path: Path) -> None:
    text = b"age,sick\n" + b"50,yes\n40,no\n" * 100
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("a.csv", text)
    given = {"constants": constants_of(PUBLIC), "epsilon": 1.0, "expected_rows": 200}
    for name, content in {
        "a.csv.gz": gzip.compress(text),
        "a.csv.bz2": bz2.compress(text),
        "a.zip": packed.getvalue(),
        "a.xlsx": packed.getvalue(),
    }.items():
        (tmp_path / name).write_bytes(content)
        said = ""
        try:
            release(tmp_path / name, one_row_per_person=True, **given)
        except ValueError as error:
            said = str(error)
        assert "charset" not in said, name


def test_one_release_of_one_table_whoever_brings_it() -> None:
    frame = table()[["age", "sick"]]
    arrow = pa.Table.from_pandas(frame)
    kept: dict[str, Any] = {"constants": constants_of(PUBLIC)}
    names = {tuple(release(one, **kept).feature_names) for one in (frame, arrow)}
    assert names == {("age", "age is missing")}
    once, ledger = arrow.to_reader(), bdpvi.Ledger()
    release(once, **kept)
    with pytest.raises(ValueError, match="open it again"):
        release(once, ledger=ledger, **kept)
    assert not [entry for entry in ledger.entries() if entry.events]

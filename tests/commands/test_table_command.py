"""``bdpvi table``: the public file of a table is drafted, edited, and then needs no option."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
from program import run

import bdpvi
from bdpvi import PrivacyUtilityWarning
from bdpvi.releases.table_file import TableFile

ROWS = 900
SPELLINGS = ["current smoker", "Current smoker", "CURRENT SMOKER", "current-smoker"]


def export() -> pd.DataFrame:
    random = np.random.default_rng(0)
    balance = random.normal(0, 3000, ROWS)
    return pd.DataFrame(
        {
            "patient_id": random.permutation(ROWS) + 10_000,
            "cost": [f"${one:,.2f}" for one in random.gamma(3, 800, ROWS)],
            "balance": [f"(€{-one:,.2f})" if one < 0 else f"€{one:,.2f}" for one in balance],
            "hba1c": [f"{one:.1f} %" for one in random.normal(7, 1, ROWS)],
            "sport": np.where(random.random(ROWS) < 0.1, 9999, random.poisson(3, ROWS)),
            "smoker": random.choice([*SPELLINGS, "never"], ROWS, p=[0.4, 0.1, 0.1, 0.1, 0.3]),
            "insured": random.random(ROWS) < 0.5,
            "admitted": pd.Timestamp("2022-01-01")
            + pd.to_timedelta(random.integers(0, 900, ROWS), "D"),
            "sick": random.choice(["yes", "no"], ROWS),
        }
    )


@pytest.fixture
def workbook(tmp_path: Path) -> Path:
    pytest.importorskip("openpyxl")
    export().to_excel(tmp_path / "a.xlsx", index=False)
    return tmp_path / "a.xlsx"


def edit(path: Path, **public: dict[str, Any]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    for name, entry in content["columns"].items():
        entry.pop("from_data", None)
        entry.update(public.get(name, {}))
    path.write_text(json.dumps(content), encoding="utf-8")


def test_an_excel_export_needs_one_command_and_one_edit(workbook: Path) -> None:
    said = run("table", workbook, "--one-row-per-person", "--budget", 9)
    file = workbook.with_name("a.xlsx.table.json")
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["budget"] == {"epsilon": 9.0, "delta": 1e-05}
    drafted = {name: {**one} for name, one in content["columns"].items()}
    assert all(one.pop("from_data") for one in drafted.values())
    rarer = drafted["smoker"]["spellings"][SPELLINGS[0]]  # most frequent first
    assert {*rarer} == {*SPELLINGS[1:]}
    assert drafted == {
        "patient_id": {"kind": "identifier"},
        "cost": {"kind": "number", "symbol": "$", "thousands": ",", "step": 0.01},
        "balance": {"kind": "number", "symbol": "€", "thousands": ",", "step": 0.01},
        "hba1c": {"kind": "number", "symbol": "%", "step": 0.1},
        "sport": {"kind": "integer", "missing": {"9999": "no value"}},
        "smoker": {"kind": "category", "spellings": {SPELLINGS[0]: rarer}},
        "insured": {"kind": "boolean"},
        "admitted": {"kind": "date"},
        "sick": {"kind": "category"},
    }
    assert "9 entries marked from_data" in said
    given = ("--data", workbook, "--epsilon", 3, "--target", "sick", "--quiet", "--out")
    made = ("private", *given, workbook.with_name("m"), "--positive", "yes", "--no-scores")
    for one in (made, ("synthesize", *given, workbook.with_name("rows"))):
        with pytest.raises(ValueError, match=r"'hba1c', .* delete the mark"):
            run(*one)
    assert not [*workbook.parent.glob("*ledger*")]
    levels = {"levels": ["never", SPELLINGS[0]]}
    edit(file, smoker=levels, hba1c={"low": 4, "high": 14}, sport={"low": 0, "high": 20})
    assert ": as it was" in run("table", workbook)
    run(*made)
    run("synthesize", *given, workbook.with_name("rows"), "--no-report")
    rows = workbook.with_name("rows")
    made_up = pd.read_csv(rows / "synthetic.csv")
    assert {*made_up["smoker"].dropna()} <= {*levels["levels"], "other"}
    assert made_up["sport"].max() <= 20
    said = run("check", rows / "synthetic.csv", "--table", rows / "synthetic.json")
    assert "admitted (date): 100 % numbers" in said


def test_lines_above_the_names_and_a_second_sheet_are_named(workbook: Path) -> None:
    with pd.ExcelWriter(workbook.with_name("two.xlsx")) as file:
        title = pd.DataFrame(["Export of 2024"])
        title.to_excel(file, sheet_name="data", index=False, header=False)
        export().to_excel(file, sheet_name="data", index=False, startrow=2)
        export().to_excel(file, sheet_name="plain", index=False)
    two = workbook.with_name("two.xlsx")
    with pytest.raises(ValueError, match=r"choose one .bdpvi table FILE --sheet 'data'"):
        run("table", two)
    assert "no name: delete the lines above that of the names" in run("table", two, "--sheet=data")
    two.with_name("two.xlsx.table.json").unlink()
    assert "nothing found" in run("table", two, "--sheet", "plain", "--one-row-per-person")


@pytest.mark.parametrize("case", ["utf-16", "latin-1", "cells"])
def test_it_finds_how_a_file_is_written(case: str, tmp_path: Path) -> None:
    charset, path = {"cells": "latin-1"}.get(case, case), tmp_path / "a.csv"
    frame = export()[["hba1c", "sick"]].replace({"yes": "müde"}).assign(empty="")
    frame = frame.rename(columns={"hba1c": "größe"} if case == "latin-1" else {})
    separator = "," if case == "cells" else ";"
    frame.to_csv(path, sep=separator, index=False, encoding=charset)
    made: tuple[object, ...] = ("synthesize", "--data", path, "--epsilon", 3, "--no-report")
    made = (*made, "--one-row-per-person", "--drop", "empty", "--budget", 9, "--quiet", "--out")
    if case == "cells":
        given: dict[str, Any] = {"target": "sick", "positive": "no", "epsilon": 3.0}
        given |= {"one_row_per_person": True, "drop": ["empty"], "ledger": bdpvi.Ledger()}
        with pytest.warns(PrivacyUtilityWarning, match="`bdpvi table` finds it"):
            flat.private(path, **given, progress=False)
    else:
        with pytest.raises(ValueError, match=r"`bdpvi table` finds it"):
            run(*made, tmp_path / "wrong")
    said = run("table", path, "--one-row-per-person")
    assert "empty: blank, or nothing reads it: declare it, or --drop it" in said
    file = tmp_path / "a.csv.table.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    found = {} if separator == "," else {"separator": ";"}
    assert content["file"] == {"charset": charset, "from_data": True, **found}
    del content["file"]["from_data"]
    file.write_text(json.dumps(content), encoding="utf-8")
    edit(file)
    run(*made, tmp_path / "right")
    assert "müde" in (tmp_path / "right" / "synthetic.csv").read_text(encoding="utf-8")


def test_what_a_file_says_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, file = tmp_path / "a.csv", tmp_path / "a.csv.table.json"
    export()[["cost", "sick"]].to_csv(path, index=False)
    with pytest.raises(ValueError, match="give --table FILE"):
        run("table", f"file://{path}")
    run("table", f"file://{path}", "--table", file)
    for content, words in (
        ({"unit": "who", "one_row_per_person": True}, "declare one of them"),
        ({"account": "../l"}, "give another place by --ledger"),
        ({"ages": {}}, "ages is not known"),
    ):
        file.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(ValueError, match=words):
            TableFile.beside(path)
    file.write_text('{"one_row_per_person": true, "account": "l.jsonl"}', encoding="utf-8")
    (tmp_path / "a.csv.ledger.jsonl").touch()
    with pytest.raises(ValueError, match=r"declare account='a.csv.ledger.jsonl'"):
        TableFile.beside(path).ledger(path)
    file.write_text('{"account": "a.csv.ledger.jsonl"}', encoding="utf-8")
    assert TableFile.beside(path).ledger(path) == tmp_path / "a.csv.ledger.jsonl"
    monkeypatch.setattr(Path, "stat", _of_another(Path.stat, file))
    with pytest.raises(ValueError, match=r"say --table .*a\.csv\.table\.json if it is right"):
        TableFile.beside(path)
    assert TableFile.beside(path, file).account


def test_marks_of_a_synthetic_table_are_refused_too(tmp_path: Path) -> None:
    schema = {"columns": {"age": {"low": 0, "high": 9, "origin": "rows"}}, "source": "Form."}
    found = TableFile.of({"receipt": {}, "schema": schema}, tmp_path / "synthetic.json")
    with pytest.raises(ValueError, match="'age' marked from_data"):
        found.public()
    assert found.public(from_data=True) == found


def _of_another(stat: Any, file: Path) -> Any:
    def made(path: Path, **more: Any) -> Any:
        result = stat(path, **more)
        if path.name != file.name:
            return result
        return os.stat_result([*result[:4], 12345, *result[5:10]])

    return made

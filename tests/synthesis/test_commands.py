"""The commands: a table to a folder that may be shared, and more rows from that."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from program import run
from test_cli import run as main

from bdpvi.privacy.ledger import Ledger
from bdpvi.releases import intent
from bdpvi.synthesis import load

# For estimated bounds it depends on noise how much is beyond.
pytestmark = pytest.mark.filterwarnings("ignore:column .* clamped:UserWarning")


@pytest.fixture
def people(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    age = random.integers(18, 90, 2000)
    sick = np.where(random.random(2000) < age / 90, "yes", "no")
    frame = pd.DataFrame({"name": [f"n{at}" for at in range(2000)], "age": age, "sick": sick})
    frame.to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv"


COLUMNS: dict[str, Any] = {
    "age": {"low": 0, "high": 110, "integer": True},
    "sick": {"levels": ["no", "yes"]},
}
KEPT = ("intent.json", "intent.output", "ledger.head")
REPORT = ("report.json", "report.html", "report.rows")


def contents(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def test_a_table_is_shared_and_more_rows_made(people: Path) -> None:
    folder = people.parent
    content = {"source": "law", "columns": {name: {**one, "from_data": True}
               for name, one in COLUMNS.items()}}  # fmt: skip
    (folder / "s.json").write_text(json.dumps(content), encoding="utf-8")
    shared = ["synthesize", "--one-row-per-person",
              "--data", people, "--table", folder / "s.json", "--target", "sick",
              "--epsilon", "1", "--drop", "name", "--out", folder / "shared"]  # fmt: skip
    with pytest.raises(ValueError, match="'age', 'sick' marked from_data"):
        run(*shared)
    ledger = folder / "people.csv.ledger.jsonl"
    assert not ledger.exists()
    content = {"source": "law", "columns": COLUMNS}
    (folder / "s.json").write_text(json.dumps(content), encoding="utf-8")
    said = run(*shared)
    assert "worst-case DP: ε = 1 at δ = 1e-05" in said
    assert sorted(one.name for one in (folder / "shared").iterdir()) == [
        "statement.html",
        "synthetic.csv",
        "synthetic.json",
    ]
    assert len(Ledger(ledger).entries()) == 1
    rows = pd.read_csv(folder / "shared" / "synthetic.csv")
    assert list(rows) == ["age", "sick"]
    assert abs(len(rows) - 1800) < 200  # a tenth is kept out for the report
    with pytest.raises(ValueError, match="exists already"):
        run(*shared, "--rows", "7")
    assert len(Ledger(ledger).entries()) == 1
    run("sample", folder / "shared" / "synthetic.json", "--rows", 7, "--tables", 2,
        "--out", folder / "more")  # fmt: skip
    assert [len(pd.read_csv(one)) for one in sorted((folder / "more").iterdir())] == [7, 7]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--target", "z"], "target='z'"),
        (["--drop", "z"], "drop='z'"),
        (["--also", "age,sick"], "three or four"),
        (["--rows", "0"], "rows must be"),
        (["--tables", "0"], "tables must be"),
    ],
)
def test_what_is_wrong_leaves_nothing_behind(people: Path, option: list[str], said: str) -> None:
    folder = people.parent
    content = {"source": "law", "columns": COLUMNS}
    (folder / "s.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        run("synthesize", "--one-row-per-person",
            "--data", people, "--table", folder / "s.json", "--epsilon", "1",
            "--out", folder / "shared", "--drop", "name", *option)  # fmt: skip
    assert not (folder / "shared").exists()
    ledger = folder / "people.csv.ledger.jsonl"
    assert not ledger.exists() or not Ledger(ledger).entries()


def test_without_a_schema_constants_are_bought_under_the_same_epsilon(
    people: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = people.parent
    options = ["--target", "sick", "--epsilon", "1", "--drop", "name", "--numeric", "age"]
    given = [*options, "--data", people, "--out", folder / "shared", "--json", "--tables", "2"]
    assert main("synthesize", "--one-row-per-person", *given) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["public"]["receipt"]["bought"] == ["age", "sick"]
    assert result["public"]["receipt"]["worst_case"]["epsilon"] == 1
    assert set(result["secret"]) == {"folder", "ledger", "spent"}
    assert 0.999 < result["secret"]["spent"]["epsilon"] <= 1
    entries = Ledger(folder / "people.csv.ledger.jsonl").entries()
    assert [entry.kind for entry in entries] == ["release"]  # one charge for all of it
    shared, secret = folder / "shared", folder / "shared.secret"
    names = ["statement.html", "synthetic-1.csv", "synthetic-2.csv", "synthetic.json"]
    assert sorted(one.name for one in shared.iterdir()) == names
    rows = (shared / "synthetic-1.csv").read_text(encoding="utf-8")
    assert rows.startswith("age,sick\n")
    assert "." not in rows  # whole numbers, also beside blanks
    assert stat.S_IMODE(secret.stat().st_mode) == 0o700
    assert {one.name for one in secret.iterdir()} - {".lock"} == {*KEPT, *REPORT}
    assert intent.read(secret / "intent.json").key == b""  # nothing takes the noise off
    schema = load(shared / "synthetic.json").schema
    assert not schema.from_rows
    # The ledger's budget is ε of the first release: a second one is over it, and leaves nothing.
    capsys.readouterr()
    again = [*options, "--data", people, "--out", folder / "again"]
    assert main("synthesize", "--one-row-per-person", *again) == 2
    assert "over the budget of ε = 1" in capsys.readouterr().err
    assert len(Ledger(folder / "people.csv.ledger.jsonl").entries()) == 1
    assert not list(folder.glob("again*"))


def test_what_a_file_leaves_out_is_not_bought_and_its_marks_need_consent(people: Path) -> None:
    folder = people.parent
    columns = {name: {**one, "from_data": True} for name, one in COLUMNS.items()}
    content = {"source": "rows", "columns": columns, "left_out": {"name": "2000 names"}}
    (folder / "s.json").write_text(json.dumps(content), encoding="utf-8")
    run("synthesize", "--one-row-per-person",
        "--data", people, "--table", folder / "s.json", "--from-data",
        "--epsilon", "1", "--out", folder / "shared", "--quiet")  # fmt: skip
    shared = load(folder / "shared" / "synthetic.json")
    assert list(shared.schema.columns) == ["age", "sick"]
    assert shared.receipt.bought == ()
    assert "2000 " not in (folder / "shared" / "synthetic.json").read_text(encoding="utf-8")


def test_a_secret_folder_is_of_one_table_and_of_one_command(people: Path) -> None:
    folder = people.parent
    given = [
        "synthesize",
        "--one-row-per-person",
        "--data",
        people,
        "--drop",
        "name",
        "--out",
        folder / "shared",
    ]
    run(*given, "--epsilon", "1")
    first = contents(folder / "shared")
    shutil.rmtree(folder / "shared")
    with pytest.raises(ValueError, match="was begun with other options"):
        run(*given, "--epsilon", "0.5")
    with pytest.raises(ValueError, match="was begun with other options"):
        run(*given, "--epsilon", "1", "--test-fraction", "0.5")  # other rows, the same noise
    for name in REPORT[:2]:
        (folder / "shared.secret" / name).unlink()
    run(*given, "--epsilon", "1")  # the same counts, rows and report again, for nothing
    assert all((folder / "shared.secret" / name).exists() for name in REPORT)
    assert contents(folder / "shared") == first
    shutil.rmtree(folder / "shared")
    people.write_text(people.read_text(encoding="utf-8") + "n,30,yes\n", encoding="utf-8")
    with pytest.raises(ValueError, match="was begun with another table"):
        run(*given, "--epsilon", "1")
    assert len(Ledger(folder / "people.csv.ledger.jsonl").entries()) == 1
    (folder / "other").mkdir(mode=0o700)
    (folder / "other" / "letter.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match=r"exists already and holds letter\.txt"):
        run(*given, "--epsilon", "1", "--secret", folder / "other")
    assert not (folder / "shared").exists()


def test_an_identifier_with_repeats_is_said_also_if_it_is_dropped(people: Path) -> None:
    frame = pd.read_csv(people).assign(patient_id=[*range(500)] * 4)
    frame.to_csv(people, index=False)
    for option in ([], ["--drop", "patient_id"]):
        out = people.parent / f"out{len(option)}"
        said = run("synthesize", "--one-row-per-person",
            "--data", people, "--epsilon", "1", "--drop", "name", "--out", out,
            "--ledger", f"{out}.jsonl", *option)  # fmt: skip
        assert "column 'patient_id' has 500 different values in 2000 rows: 4 each" in said
        assert "--unit patient_id --rows-per-unit 4" in said

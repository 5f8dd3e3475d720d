"""The commands: a table to a folder that may be shared, and more rows from that."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from bdpvi.accounting.ledger import Ledger
from bdpvi.cli import app


@pytest.fixture
def people(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    age = random.integers(18, 90, 2000)
    sick = np.where(random.random(2000) < age / 90, "yes", "no")
    frame = pd.DataFrame({"name": [f"n{at}" for at in range(2000)], "age": age, "sick": sick})
    frame.to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv"


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    if done.exception is not None:
        raise done.exception
    return done.output


def test_a_table_is_shared_and_more_rows_made(people: Path) -> None:
    folder = people.parent
    run("schema", people, "--out", folder / "s.json", "--drop", "name")
    shared = ["synthesize", "--data", people, "--schema", folder / "s.json", "--target", "sick",
              "--epsilon", "1", "--drop", "name", "--out", folder / "shared"]  # fmt: skip
    with pytest.raises(ValueError, match="2 columns that were read from the rows, such as 'age'"):
        run(*shared)
    ledger = folder / "people.csv.ledger.jsonl"
    assert not ledger.exists()
    content = json.loads((folder / "s.json").read_text(encoding="utf-8"))
    for one in content["columns"].values():
        one["from_data"] = False
    (folder / "s.json").write_text(json.dumps(content), encoding="utf-8")
    said = run(*shared)
    assert "worst-case DP: ε = 1 at δ = 1e-06" in said
    assert sorted(one.name for one in (folder / "shared").iterdir()) == [
        "synthetic.csv",
        "synthetic.json",
    ]
    assert len(Ledger(ledger).entries()) == 1
    rows = pd.read_csv(folder / "shared" / "synthetic.csv")
    assert list(rows) == ["age", "sick"]
    assert abs(len(rows) - 2000) < 200
    with pytest.raises(ValueError, match="exists already"):
        run(*shared)
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
    content = {"source": "law", "columns": {"age": {"low": 0, "high": 110, "integer": True},
               "sick": {"levels": ["no", "yes"]}}}  # fmt: skip
    (folder / "s.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        run("synthesize", "--data", people, "--schema", folder / "s.json", "--epsilon", "1",
            "--out", folder / "shared", "--drop", "name", *option)  # fmt: skip
    assert not (folder / "shared").exists()
    ledger = folder / "people.csv.ledger.jsonl"
    assert not ledger.exists() or not Ledger(ledger).entries()


def test_an_interruption_says_whether_it_was_charged(
    people: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = people.parent
    run("schema", people, "--out", folder / "s.json", "--drop", "name")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bdpvi.synthesis.released.count", interrupted)
    done = CliRunner().invoke(
        app,
        ["synthesize", "--data", str(people), "--schema", str(folder / "s.json"), "--epsilon", "1",
         "--drop", "name", "--from-data", "--out", str(folder / "shared")],
    )  # fmt: skip
    assert done.exit_code != 0
    assert "ε was charged to" in done.output
    assert not (folder / "shared").exists()
    assert len(Ledger(folder / "people.csv.ledger.jsonl").entries()) == 1

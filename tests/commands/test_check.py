"""``bdpvi check`` names every problem of a messy export, with the option that solves it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from click.testing import Result
from hospital import hospital
from typer.testing import CliRunner

from bdpvi.cli import app
from bdpvi.commands import check
from bdpvi.datasets import table

SIZE = 4000
FILE = {"separator": ";", "charset": "latin-1", "decimal": ",", "thousands": "."}
TYPES = {
    "source": "The hospital's form.",
    "file": FILE,
    "columns": {
        "Aufnahme": {"kind": "date", "date_format": "%d.%m.%Y"},
        "krea": {"kind": "number", "blank": ["unbek."]},
        "sick": {"kind": "category", "spellings": {"yes": ["Yes", "YES", "y"], "no": ["No", "n"]}},
    },
}
ASKED = ("--target", "sick", "--positive", "yes")
SOLVED = ("--drop", "Fallnummer", "--categorical", "plz", "--unit", "patient_id")


def run(*arguments: object) -> Result:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture
def export(tmp_path: Path) -> Path:
    names = ["Fallnummer", "patient_id", "Größe", "Kosten", "plz", "Aufnahme", "krea", "sick"]
    frame = hospital(SIZE, seed=0, visits=3)[names]
    path = tmp_path / "export.csv"
    frame.to_csv(path, sep=";", index=False, encoding="latin-1")
    (tmp_path / "types.json").write_text(json.dumps(TYPES), encoding="utf-8")
    return path


def test_every_problem_of_an_export_is_named_and_its_options_solve_them(export: Path) -> None:
    done = run("check", export, *ASKED, "--epsilon", 1)
    assert done.exit_code == 0
    for option in (
        ': declare {"file": {"charset": "latin-1"}}', ': declare {"file": {"separator": ";"}}',
        ': declare {"file": {"decimal": ",", "thousands": "."}}',
        ": --drop Fallnummer", ": --categorical plz", ": --unit patient_id --rows-per-unit 6",
    ):  # fmt: skip
        assert option in done.stdout, option
    for name, entry in TYPES["columns"].items():  # type: ignore[attr-defined]
        said = f'declare {{"columns": {{{json.dumps(name)}: {json.dumps(entry)[:-1]}'
        assert said[:60] in done.stdout, name
    assert "'krea' has 'unbek.' among its numbers" in done.stdout
    assert "8 columns; 11 findings" in done.stdout
    types = ("--table", export.with_name("types.json"))
    done = run("check", export, *ASKED, "--epsilon", 1, *SOLVED, "--rows-per-unit", 6, *types)
    assert f"{SIZE} rows, 8 columns; nothing found" in done.stdout
    assert "begins with the first release" in done.stdout
    assert {one.name for one in export.parent.iterdir()} == {"export.csv", "types.json"}


def test_the_look_as_json_and_control_characters(export: Path, tmp_path: Path) -> None:
    done = run("check", export, *ASKED, "--json")
    found = json.loads(done.stdout)["secret"]
    assert found["file"]["separator"] == ";"
    assert found["rows"] == SIZE
    assert any(one["option"] == "--drop Fallnummer" for one in found["findings"])
    path = tmp_path / "evil.csv"
    path.write_text("a\x1b[2J,sick\n" + "1\x1b[2J,yes\x1b[1m\n0,no\n" * 20, encoding="utf-8")
    done = run("check", path, "--target", "sick", "--positive", "yes")
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout + done.stderr


def test_private_begins_with_a_look_and_asks_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked = tmp_path / "t.csv", []
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"age": random.integers(20, 90, SIZE)})
    frame["sick"] = random.choice(["yes", "Yes", "no"], SIZE)
    frame.to_csv(path, index=False)

    def confirm(text: str, abort: bool, err: bool) -> None:
        assert not list(tmp_path.glob("*.jsonl"))  # before any charge
        asked.append(text)
        raise typer.Abort

    monkeypatch.setattr(check, "_terminal", lambda: True)
    monkeypatch.setattr(typer, "confirm", confirm)
    given = ("--data", path, "--epsilon", 1, "--out", tmp_path / "out")
    private = ("private", *given, *ASKED, "--no-scores", "--one-row-per-person")
    done = run(*private)
    assert (done.exit_code, len(asked)) == (1, 1)
    assert "1 finding\n  target 'sick': 'yes'" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["t.csv"]
    done = run(*private, "--yes")
    assert (done.exit_code, len(asked)) == (0, 1)
    assert done.stderr.count("Some of them seem to mean") == 1
    assert done.stderr.count("declare its spellings") == 0  # it is said once
    monkeypatch.setattr(check, "_terminal", lambda: False)
    again = ("private", *given[:-1], tmp_path / "again", *ASKED, "--no-scores", "--ledger")
    done = run(*again, tmp_path / "l.jsonl", "--one-row-per-person")
    assert (done.exit_code, len(asked)) == (0, 1)


def test_synthesize_begins_with_a_look(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    frame = pd.DataFrame({"kg": ["70,5", "81,2"] * 900, "sick": ["yes", "no"] * 900})
    frame.to_csv(path, index=False)
    given = ("--data", path, "--epsilon", 1, "--no-report", "--one-row-per-person")
    done = run("synthesize", *given, "--out", tmp_path / "out")
    assert done.exit_code == 0
    assert done.stderr.startswith("For the owner only: 1800 rows, 2 columns; 1 finding")
    assert done.stderr.count('"decimal": ","') == 1


def test_a_folder_is_looked_at_and_drafted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").mkdir()
    for name, first in (("a", 10), ("b", 40)):
        rows = [f"{age},{'FM'[age % 2]},{'yes' if age % 3 else 'no'}" for age in range(first, 60)]
        (tmp_path / "t" / f"{name}.csv").write_text("\n".join(["age,sex,sick", *rows]))
    asked = ("--target", "sick", "--positive", "yes", "--one-row-per-person")
    done = run("check", tmp_path / "t", *asked, "--workers", 1)
    assert done.exit_code == 0
    assert "70 rows, 3 columns; nothing found" in done.stdout
    assert "first" not in done.stdout.replace("first release", "")
    assert str(tmp_path / "t.ledger.jsonl") in done.stdout
    monkeypatch.setattr(table, "MOST", 60)
    done = run("check", f"{tmp_path}/t/*.csv", *asked)
    assert "70 rows, 3 columns" in done.stdout
    assert "findings are from its first 60 rows" in done.stdout
    done = run("table", tmp_path / "t", "--unit", "age", "--rows-per-unit", 2)
    assert done.exit_code == 0
    content = json.loads((tmp_path / "t.table.json").read_text("utf-8"))
    assert (content["unit"], content["rows_per_unit"]) == ("age", 2)
    assert {*content["columns"]} == {"sex", "sick"}

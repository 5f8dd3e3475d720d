"""What is printed and written does nothing by itself, and no screen ends a work."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_cli import run

from bdpvi._ground import outputs

EVIL = "=cmd|' /C calc'!A0\x1b[2J\u202egnp\x9b\r\nPublic: ε = 0"
"""A formula, sequences that terminals obey, letters turned round, a second line."""
IN_LINE = EVIL.replace("\r\n", " ")
"""The same on one line, as a record of a file is."""
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
FORMULA = tuple("=+-@\t\r")


def check(text: str) -> None:
    """Assert that nothing in a text is obeyed, and that names make no lines."""
    assert not (found := OBEYED.search(text)), (found, text)
    assert not re.search(r"^\s*Public: ε = 0", text, re.MULTILINE)


def check_cells(text: str) -> None:
    """Assert that no cell of a CSV text is a formula."""
    for row in csv.reader(io.StringIO(text)):
        for one in row:
            assert not one.startswith(FORMULA) or np.isfinite(float(one)), one


def harmless(*arguments: object, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    """Run a command, look at what it prints, and return its standard output."""
    capsys.readouterr()
    assert run(*arguments) == code
    out, error = capsys.readouterr()
    check(out)
    check(error)
    return out


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a table whose header and cells are hostile."""
    rng = np.random.default_rng(0)
    names = np.array([IN_LINE, "@SUM(1)", "-2+3", "+1", "-1"], dtype=object)
    frame = pd.DataFrame(
        {
            "-age\x1b[1m": rng.integers(18, 90, 900),
            f"@{IN_LINE}": names[rng.integers(0, 5, 900)],
            "sick": rng.choice([IN_LINE, "no"], 900),
        }
    )
    path = tmp_path / "hostile.csv"
    frame.to_csv(path, index=False, quoting=csv.QUOTE_ALL, lineterminator="\n")
    return path


@pytest.mark.filterwarnings("default")
def test_a_hostile_table(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = hostile.parent
    given = ("--data", hostile, "--epsilon", 3)
    harmless("table", hostile, "--table", folder / "s.json", capsys=capsys)
    made = folder / "made"
    harmless("synthesize", *given, "--one-row-per-person", "--out", made, capsys=capsys)
    harmless("synthesize", *given, "--one-row-per-person", "--out", made, "--json", capsys=capsys)
    harmless("show", made / "synthetic.json", capsys=capsys)
    harmless("sample", made / "synthetic.json", "--out", folder / "more", capsys=capsys)
    target = ("--target", "sick", "--positive", IN_LINE)
    harmless("private", *given, *target, "--out", folder / "m", "--plan", capsys=capsys)
    words = ("private", "--one-row-per-person",
             *given, *target, "--out", folder / "m", "--rows", 1000, "--no-scores",
             "--quiet", "--ledger", folder / "people.jsonl")  # fmt: skip
    first = harmless(*words, capsys=capsys)
    assert harmless(*words, capsys=capsys) == first  # said again, and nothing is paid
    release = folder / "m" / "release.json"
    predicting = ("predict", release, "--data", hostile)
    printed = harmless(*predicting, capsys=capsys)
    check_cells(printed)
    name = next(one for one in pd.read_csv(hostile).columns if one.startswith("@"))
    column = "".join(c if c.isprintable() else "\ufffd" for c in name)
    out = folder / "p.csv"
    harmless(*predicting, "--id", column, "--out", out, capsys=capsys)
    harmless(*predicting, "--json", capsys=capsys)
    harmless("account", folder / "m.secret", capsys=capsys)
    harmless("predict", hostile, "--data", hostile, capsys=capsys, code=2)
    ours = [one for one in folder.rglob("*") if one.is_file() and one != hostile]
    assert len(ours) > 10
    for our in ours:
        check(our.read_text(encoding="utf-8"))
        if our.suffix == ".csv":
            check_cells(our.read_text(encoding="utf-8"))
    levels = set(pd.read_csv(made / "synthetic.csv").iloc[:, 1].dropna().astype(str))
    assert {"+1", "-1", "'@SUM(1)", "'-2+3"} & levels  # numbers stay numbers


def test_a_hostile_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A release of others may hold any text wherever it has text."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(18, 90, 400), "who": rng.choice(["a", "b"], 400)})
    frame["sick"] = rng.choice(["yes", "no"], 400)
    frame.to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "c.json").write_text('{"source": "law", "age": [18, 90], "who": ["a", "b"]}')
    options: tuple[object, ...] = (
        "--data",
        tmp_path / "t.csv",
        "--target",
        "sick",
        "--epsilon",
        3,
        "--rows",
        400,
    )
    options += ("--constants", tmp_path / "c.json", "--no-scores", "--quiet")
    options += ("--one-row-per-person",)
    several = ("--model", "multinomial", "--classes", "yes", "--classes", "no")
    for name, more in (("one", ("--positive", "yes")), ("two", several)):
        kept = ("--ledger", tmp_path / f"{name}.jsonl")
        assert run("private", *options, *more, *kept, "--out", tmp_path / name) == 0
        file = tmp_path / name / "release.json"
        content = json.loads(file.read_text(encoding="utf-8"))
        receipt, target = content["receipt"], content["preprocessing"]["target"]
        receipt["source"] = receipt["about"] = content["preprocessing"]["encoding"]["source"] = EVIL
        receipt["worst_case"]["unit"] = EVIL
        target |= {"positive": EVIL} if name == "one" else {"classes": ["yes", EVIL]}
        for one in content["preprocessing"]["encoding"]["columns"]:
            if one["name"] == "who":
                one["categories"] = [EVIL, "b\ud800"]
        content["feature_names"] = [
            one.replace("who=a", f"who={EVIL}").replace("who=b", "who=b\ud800")
            for one in content["feature_names"]
        ]
        file.write_text(json.dumps(content), encoding="utf-8")
        check_cells(harmless("predict", file, "--data", tmp_path / "t.csv", capsys=capsys))
        harmless("predict", file, "--data", tmp_path / "t.csv", "--json", capsys=capsys)
        harmless("summary", file, capsys=capsys)
        harmless("show", file, capsys=capsys)
        harmless("summary", file, "--json", capsys=capsys)


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    words = [sys.executable, "-m", "bdpvi", *map(str, arguments)]
    return subprocess.run(words, check=False, timeout=300, **options)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(18, 90, 900), "sick": rng.choice(["y", "n"], 900)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def test_a_screen_ends_no_release(plain: Path) -> None:
    folder = plain.parent
    words = ("synthesize", "--one-row-per-person",
             "--data", plain, "--epsilon", 1, "--numeric", "age",
             "--out", folder / "made", "--ledger", folder / "people.jsonl")  # fmt: skip
    read, write = os.pipe()
    os.close(read)
    done = command(*words, stdout=write, stderr=write)
    os.close(write)
    assert done.returncode == 0
    made = {one.name for one in (folder / "made").iterdir()}
    assert made == {"statement.html", "synthetic.csv", "synthetic.json"}
    assert (folder / "made.secret" / "report.json").exists()
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    again = command(*words, stdout=subprocess.PIPE, env=ascii_only)  # says it again, pays nothing
    assert again.returncode == 0
    assert b"For the owner only" in again.stdout
    assert b"\\u03b5 = 1 at \\u03b4" in again.stdout


def test_each_cell_is_one_line_and_no_formula() -> None:
    for text in ("=1", "+a", "-a", "@a", " =1", "\t=1", "\r=1", "＝1"):
        assert outputs.cell(text).startswith("'")
    for value in ("-1.5", "+3", "-1e5", "a=1", "", 0, -2.5, None, True):
        assert outputs.cell(value) == value
    assert "\n" not in outputs.cell("a\nb")
    assert outputs.visible("a\nb\tc") == "a\nb\tc"

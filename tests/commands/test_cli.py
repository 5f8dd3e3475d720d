"""The command line as a user meets it: what is asked is parsed; few commands run to their end."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import program
import pytest
import typer
from simulated import guided
from test_layers import UNUSED
from typer.testing import CliRunner

import bdpvi
from bdpvi import datasets
from bdpvi._ground import outputs
from bdpvi._ground.types import Unit
from bdpvi.bench import curves, demonstration
from bdpvi.cli import GONE, app, main
from bdpvi.commands import options, private
from bdpvi.commands.options import WORDS
from bdpvi.datasets import ColumnType
from bdpvi.tables import Machine, Public, Request


def run(*arguments: object) -> int:
    """Run the command line in this process; return its exit code.

    Every option that it prints is one of this command.
    """
    words, said, say = [*map(str, arguments)], list[str](), outputs.say

    def heard(*lines: str, error: bool = False) -> None:
        said.extend(lines)
        say(*lines, error=error)

    code = 0
    with patch.object(sys, "argv", ["bdpvi", *words]), patch.object(outputs, "say", heard):
        try:
            main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    assert not program.of_others(words, said), said
    return code


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    age, dose = rng.normal(50, 10, 120), rng.normal(size=120)
    sick = rng.random(120) < 1 / (1 + np.exp(-(age - 50) / 5 - dose))
    path = tmp_path_factory.mktemp("table") / "patients.csv"
    frame = {"age": age, "dose": dose, "sick": np.where(sick, "yes", "no")}
    pd.DataFrame(frame).to_csv(path, index=False)
    return path


@pytest.fixture
def table(people: Path, tmp_path: Path) -> Path:
    """Return the table under a name whose ledger is empty."""
    return Path(shutil.copy(people, tmp_path / "patients.csv"))


@pytest.fixture(scope="module")
def released(people: Path) -> Path:
    """Return a release of three draws, whose ledger is its own."""
    split = datasets.from_csv(people, "sick", positive="yes", seed=None)
    out = people.parent / "release.json"
    bdpvi.save_release(bdpvi.release(guided(split.train), 3, temperature=2), out)
    return out


# --- what is asked --------------------------------------------------------------------------------


def asked(table: Path, *words: object) -> Request:
    """Return the request that the command makes of these words."""
    found: list[Request] = []

    def plan(data: str, file: Any, request: Request, as_json: bool) -> None:
        found.append(request)

    with patch.object(private, "show_plan", plan), patch.object(private, "_check_plan"):
        given = ("--data", table, "--epsilon", 1, "--out", "new", "--plan")
        assert run("private", *given, *words) == 0
    return found[0]


YES = ("--target", "sick", "--positive", "yes")


def test_words_become_a_request(table: Path) -> None:
    usual = Request(target="sick", positive="yes", epsilon=1.0, public=Public())
    assert asked(table, *YES) == usual
    found = asked(
        table, *YES, "--drop", "a", "--drop", "b", "--categorical", "c", "--numeric", "d", "--rows",
        1e4, "--base-rate", 0.1, "--categories", "hashed", "--draws", 3, "--delta", 1e-6, "--for",
        "intervals", "--unit", "who", "--rows-per-unit", 3, "--other-people",
    )  # fmt: skip
    assert found.public == Public(
        drop=("a", "b"), categorical=("c",), numeric=("d",), rows=1e4, base_rate=0.1, hashed=True
    )
    assert (found.draws, found.delta, found.intervals) == (3, 1e-6, True)
    assert found.unit == Unit("who", 3, other_people=True)
    assert asked(table, *YES, "--one-row-per-person").unit == Unit()
    assert isinstance(asked(table, *YES, "--guarantee", "bayesian").guarantee, bdpvi.BayesianDP)
    exact = asked(table, *YES, "--from-data", "--missing", "drop", "--encoding", "ordinal").public
    assert exact.measuring == {"missing": "drop", "encoding": "ordinal"}


MODELS = {
    "linear": (("--target-bounds", 0, 10), bdpvi.BayesianLinearRegression),
    "poisson": (("--largest", 9), bdpvi.BayesianPoissonRegression),
    "negative-binomial": (("--largest", 9), bdpvi.BayesianNegativeBinomialRegression),
    "multinomial": (("--classes", "a", "--classes", "b"), bdpvi.BayesianMultinomialRegression),
    "ordinal": (
        ("--classes", "a", "--classes", "b", "--classes", "c"),
        bdpvi.BayesianOrdinalRegression,
    ),
    "survival": (("--cuts", 1, "--cuts", 2.5), bdpvi.BayesianSurvivalRegression),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_what_it_needs(
    name: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, kind = MODELS[name]
    assert isinstance(asked(table, "--target", "x", "--model", name, *words).model, kind)
    given = ("--data", table, "--epsilon", 1, "--out", "new", "--plan", "--target", "x")
    assert run("private", *given, "--model", name) == 2
    assert f"{words[0]} is needed, and must be public" in capsys.readouterr().err
    assert run("private", *given, "--positive", "yes", *words) == 2
    assert f"{words[0]} does not go with it" in capsys.readouterr().err


def test_the_tables_file_says_what_no_option_does(table: Path) -> None:
    content = {"source": "By law.", "columns": {"age": {"kind": "number", "low": 0, "high": 99}}}
    file = table.with_name(f"{table.name}.table.json")
    file.write_text(json.dumps({**content, "unit": "who", "rows_per_unit": 2}), "utf-8")
    found = asked(table, *YES)
    assert found.unit == Unit("who", 2)
    assert found.public.types is not None
    assert found.public.types.columns == {"age": ColumnType(kind="number", low=0, high=99)}
    assert asked(table, *YES, "--rows-per-unit", 5).unit == Unit("who", 5)


def test_every_face_has_the_fields_of_a_request() -> None:
    """A field is said once: help, completion and type checks see each of them."""
    names = [one.name for one in fields(Request) if one.name not in ("name", "formula", "terms")]
    given = inspect.signature(bdpvi.private).parameters
    assert set(names) <= set(given)
    assert len(given) <= 16
    assert not any(one.kind is one.VAR_KEYWORD for one in given.values())
    usual = {one.name: one.default for one in fields(Request)}
    for name in set(names) - {"public", "epsilon"}:
        assert given[name].default == usual[name], name
    for kind in (Request, Public, Machine, Unit):
        assert options.words_of(kind).keys() == {one.name for one in fields(kind)}


def test_help_has_the_words_of_the_fields() -> None:
    command = typer.main.get_command(program_app())
    shown = {param.name: param for param in command.commands["private"].params}  # type: ignore[attr-defined]
    for name in ("target", "positive", "epsilon", "delta", "draws", "exposure", "base_rate"):
        assert shown[name].help == WORDS[name]
    hidden = {name for name, one in shown.items() if one.hidden}
    assert hidden == {"missing", "unknown", "encoding"}  # refused without --from-data
    assert set(options.TABLES) == set(datasets.LOADERS)
    assert set(private.GUARANTEES.values()) <= set(dir(bdpvi))


def program_app() -> Any:

    return app


COMMANDS = sorted(name for name in program.commands() if name not in GONE)


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    long, short = (
        CliRunner().invoke(program_app(), [*command.split(), h]) for h in ("--help", "-h")
    )
    assert "Usage" in long.output
    assert "\\[" not in long.output
    assert short.output == long.output


@pytest.mark.parametrize("command", GONE)
def test_a_former_command_says_what_takes_its_place(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, "repair", "folder", "--charge", 3) == 2
    assert capsys.readouterr().err == f"bdpvi: bdpvi {command} is gone: {GONE[command]}\n"


BAD = [
    (["private", "--data", "{table}", "--epsilon", 1, "--out", "{new}"], "target is needed"),
    (["private", "--data", "no.csv", "--target", "x", "--epsilon", 1, "--out", "{new}"], "no.csv"),
    (
        [
            "private",
            *YES,
            "--data",
            "{table}",
            "--epsilon",
            1,
            "--out",
            "{new}",
            "--missing",
            "drop",
        ],
        "missing='drop': blanks and unknown",
    ),
    (
        ["private", *YES, "--data", "adult", "--epsilon", 1, "--out", "{new}", "--plan"],
        "plan: the preprocessing of adult is public",
    ),
    (["compare", "--data", "{table}", "--out", "{new}"], "target is needed"),
    (["compare", "--data", "{table}", "--target", "weight", "--out", "{new}"], "weight"),
    (["account", "{release}", "--charge", "nonsense", "--repair"], "charge must be like 10,5.0"),
    (["account", "{table}.ledger.jsonl", "--charge", "1,1"], "charge='1,1' goes with --repair"),
    (["predict", "{table}", "--data", "{table}"], "gives no predictions: it is no JSON"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[object],
    message: str,
    table: Path,
    released: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    new = tmp_path / "new"
    names = {"{table}": str(table), "{release}": str(released), "{new}": str(new)}
    assert run(*(names.get(str(argument), argument) for argument in arguments)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert not new.exists()


def test_a_missing_file_is_named_before_libraries_load() -> None:
    command = "import sys; sys.argv = {}; from bdpvi.cli import main\ntry: main()\nfinally: {}"
    given = ["--data", "nowhere.csv", "--target", "x", "--epsilon", "1", "--out", "new"]
    loaded = "print(*{'torch', 'pandas', 'pyro'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", command.format(["bdpvi", "private", *given], loaded)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "\n")
    assert done.stderr.startswith("bdpvi: data='nowhere.csv' is neither a file")


def test_a_private_release_loads_no_package_that_it_does_not_use(tmp_path: Path) -> None:
    rows = "".join(f"{i % 7},{'yes' if i % 7 > 3 else 'no'}\n" for i in range(2000))
    (tmp_path / "t.csv").write_text(f"x,sick\n{rows}", encoding="utf-8")
    asked = "private --data t.csv --target sick --positive yes --epsilon 5 --one-row-per-person"
    command = (
        f"import sys; sys.argv = ['bdpvi', *{[*asked.split(), '--out', 'new']}]\n"
        "from bdpvi.cli import main\ntry: main()\n"
        f"finally: print({ {*UNUSED, 'pyro'} } & {{*sys.modules}})"
    )
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (tmp_path / "new" / "release.json").exists(), done.stderr
    assert done.stdout.endswith("set()\n")


def test_an_interruption_while_modules_load_is_one_line() -> None:
    command = (
        "import builtins, bdpvi.__main__ as m; kept = builtins.__import__\n"
        "def stopped(name, *rest):\n"
        "    if name == 'bdpvi.cli': raise KeyboardInterrupt\n"
        "    return kept(name, *rest)\n"
        "builtins.__import__ = stopped; m.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "bdpvi: interrupted: nothing was begun\n")


# --- whole runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        (["predict", "{release}", "--data", "{table}"], "class probability receipt spread"),
        (["compare", "--data", "{table}", "--target", "sick", "--out", "{new}", "--methods",
          "non-private,dpvi-ma", "--seeds", "1", "--epsilons", "0.05"],
         "files headline out summary"),
        (["tune", "--data", "{table}", "--target", "sick", "--out", "{new}", "--methods",
          "non-private", "--seeds", "1", "--configurations", "1", "--refinements", "0", "--folds",
          "2"], "out result"),
    ],
)  # fmt: skip
@pytest.mark.whole
def test_json_is_one_object_and_nothing_else(
    command: list[str],
    keys: str,
    table: Path,
    released: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    names = {"{table}": table, "{release}": released, "{new}": tmp_path / "new"}
    quiet = [] if command[0] == "predict" else ["--quiet"]
    assert run(*(names.get(one, one) for one in command), *quiet, "--json") == 0
    found = json.loads(capsys.readouterr().out, parse_constant=refused)
    assert set(found) == set(keys.split())
    if command[0] == "compare":
        assert [row["accuracy"] is None for row in found["summary"]] == [False, False, True]
        assert all(Path(file).exists() for file in found["files"])


def test_predictions_are_the_models_by_hand(
    table: Path, released: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("predict", released, "--data", table, "--out", tmp_path / "predictions.csv") == 0
    predicted = pd.read_csv(tmp_path / "predictions.csv")
    content = json.loads(released.read_text("utf-8"))
    split = datasets.from_csv(table, "sick", positive="yes")
    x = np.r_[split.train.x, split.test.x].clip(-2, 2)
    by_hand = 1 / (1 + np.exp(-np.c_[x, np.ones(120)] @ np.array(content["samples"]).T))
    mean, order = by_hand.mean(1), np.argsort(by_hand.mean(1))
    assert list(predicted) == ["class", "probability", "spread"]
    np.testing.assert_allclose(np.sort(predicted["probability"]), mean[order], rtol=1e-9)
    yes = np.where(predicted["probability"] > 0.5, "yes", "no")
    assert (predicted["class"] == yes).all()
    # By the formula of the sample's standard deviation: three samples, two degrees of freedom.
    squares = ((by_hand - mean[:, None]) ** 2).sum(1)
    spread = np.sqrt(squares / 2)[order]
    np.testing.assert_allclose(predicted.sort_values("probability")["spread"], spread, rtol=1e-9)


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    command = ("demo", "--data", "breast-cancer", "--out", out, "--quiet")
    assert run(*command, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    rows = pd.DataFrame(result["rows"])
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert len(pd.read_csv(out / "curve.csv")) == len(rows) == 3 + 4 * 4 + 1
    draws = rows[rows["certified"].notna()]
    assert draws["method"].tolist() == ["one, temperature 4", "one", "ten"]
    assert draws["certified"].all()
    assert draws["epsilon"].iloc[0] < draws["epsilon"].iloc[1] < draws["epsilon"].iloc[2]
    assert result["cost"]["bayesian"]["epsilon"] == draws["epsilon"].iloc[2]
    assert rows["accuracy"].min() > 0.6
    # The level in the figure is that without privacy.
    level = curves.demonstration(pd.read_csv(out / "curve.csv"), 1e-5).axes[0].lines[0]
    assert rows["method"].iloc[-1] == demonstration.WITHOUT
    assert np.asarray(level.get_ydata())[0] == pytest.approx(rows["log_score"].iloc[-1])
    # What is finished is kept: a second time only the releases are new.
    kept = {file.name: file.stat().st_mtime_ns for file in (out / "cells").iterdir()}
    assert run(*command) == 0
    assert kept == {file.name: file.stat().st_mtime_ns for file in (out / "cells").iterdir()}


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_identifiers_are_refused_until_they_are_dropped(
    command: str, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.read_csv(table)
    path, out = tmp_path / "named.csv", tmp_path / "out"
    names = [f"SSN-{row}" for row in range(len(frame))]
    frame.assign(who=names, id=range(len(frame))).to_csv(path, index=False)
    options = ["--data", path, "--target", "sick", "--out", out, "--quiet"]
    options += {
        "compare": ["--methods", "non-private", "--seeds", 1],
        "tune": [
            "--methods", "non-private", "--seeds", 1, "--configurations", 1,
            "--refinements", 0, "--folds", 2,
        ],
    }[command]  # fmt: skip
    assert run(command, *options) == 2
    who, numbers = capsys.readouterr().err.splitlines()
    assert "drop=['who'] (--drop who)" in who
    assert "drop=['id'] (--drop id)" in numbers
    assert not out.exists()
    assert run(command, *options, "--drop", "who", "--drop", "id") == 0
    assert out.exists()


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Return a file with blanks, a code that is a number, and semicolons."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"age": rng.uniform(20, 80, 60), "code": rng.integers(1, 3, 60)})
    frame["sex"], frame["sick"] = rng.choice(["F", "M"], 60), np.arange(60) % 2
    frame.loc[3, "age"] = frame.loc[5, "sex"] = None
    path = tmp_path / "odd.csv"
    frame.to_csv(path, index=False, sep=";")
    path.with_name("odd.csv.table.json").write_text('{"file": {"separator": ";"}}', "utf-8")
    return path


CONSTANTS = {"source": "By law.", "age": [18, 98], "sex": ["F", "M"]}


def released_from(table: Path, folder: Path, constants: Path) -> Path:
    """Return a release from a table with public constants, blanks left out."""
    split = datasets.from_csv(
        table, "sick", separator=";", categorical=["code"], missing="drop", positive=1,
        constants=datasets.read_constants(constants), seed=None,
    )  # fmt: skip
    bdpvi.save_release(bdpvi.release(guided(split.train), epsilon=1.0), folder / "r.json")
    return folder / "r.json"


@pytest.mark.parametrize("command", ["private", "compare", "tune"])
def test_every_command_that_reads_a_table_has_its_options(
    command: str, odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    options = ["--data", odd, "--target", "sick", "--out", new]
    private = ["--epsilon", 1, "--positive", 1, "--from-data", "--one-row-per-person"]
    options += private if command == "private" else []
    assert run(command, *options) == 2
    error = capsys.readouterr().err
    assert "'age' has 1 missing value, the first in row 3; missing='drop'" in error
    assert error.count("\n") == 3
    assert "odd.csv.table.json says\n" in error
    for name in ("missing", "encoding", "unknown"):
        assert run(command, *options, f"--{name}", "x") == 2
        assert f"{name} must be one of" in capsys.readouterr().err
    assert run(command, *options, "--constants", tmp_path / "absent.json") == 2
    assert "absent.json" in capsys.readouterr().err
    assert not new.exists()


@pytest.mark.filterwarnings("default:not known")
def test_predictions_of_new_rows(
    odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    constants = tmp_path / "constants.json"
    constants.write_text(json.dumps(CONSTANTS), encoding="utf-8")
    file = released_from(odd, tmp_path, constants)
    new = tmp_path / "new.csv"
    new.write_text("who;age;sex;x\n007;58;F;1\nNA;58;X;1\n3;;;1\n", encoding="utf-8")
    asked = ("predict", file, "--data", new, "--table", f"{odd}.table.json")
    capsys.readouterr()
    assert run(*asked) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 4
    for part in ("'age' has 1 missing", "'sex' has 1 missing", "'X' in row 1", "--unknown base"):
        assert part in error
    out = tmp_path / "p.csv"
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run(*asked, "--unknown", "base", "--id", "who", "--id", "x", "--out", out) == 0
    said = "blank: 1 of 'age', 1 of 'sex'; unlisted level: 1 of 'sex'"
    assert said in capsys.readouterr().err
    predicted = pd.read_csv(out, dtype=str, keep_default_na=False)
    assert list(predicted) == ["who", "x", "class", "probability", "spread"]
    assert predicted["who"].tolist() == ["007", "NA", "3"]
    assert predicted["spread"].tolist() == [""] * 3  # one sample has none
    assert set(predicted["class"]) <= {"not 1", "1"}
    # The age 58 is the mean of its bounds: a blank is the same, and so are two zeros of sex.
    assert predicted["probability"][1] == predicted["probability"][2]
    assert run(*asked, "--unknown", "base", "--json", "--id", "who") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["who"] == ["007", "NA", "3"]
    assert printed["spread"] == [None] * 3
    assert printed["receipt"]["draws"] == 1
    new.write_text("who\x07;age;sex\n=1+1;58;F\n-5;58;F\n", encoding="utf-8")
    assert run(*asked, "--id", "who\ufffd", "--out", tmp_path / "q.csv") == 0
    lines = (tmp_path / "q.csv").read_text("utf-8").splitlines()
    assert [line.split(",")[0] for line in lines] == ["who\ufffd", "'=1+1", "-5"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--id", "nobody"], "id='nobody' is not a column"),
        (["--id", "class"], "id='class' is a column of the predictions too"),
        (["--unknown", "mean"], "unknown must be one of ['refuse', 'base', 'other'], got 'mean'"),
    ],
)
def test_predictions_that_cannot_be_asked_for(
    released: Path, table: Path, tmp_path: Path, options: list[str], message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pd.read_csv(table).assign(**{"class": 1}).to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "p.csv"
    code = run("predict", released, "--data", tmp_path / "t.csv", "--out", out, *options)
    assert code == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_help_has_whole_sentences_in_panels() -> None:
    names = CliRunner().invoke(app, ["--help"]).output
    assert "..." not in names.partition("Commands:")[2]
    assert "the noisy counts of its columns." in " ".join(names.split())
    shown = CliRunner().invoke(app, ["private", "--help"]).output
    heads = [line for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    assert heads[0] == "Options:"
    assert len(heads) == 6

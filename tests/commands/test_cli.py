"""The command line as a user meets it."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import program
import pytest
from simulated import logistic_data

import bdpvi
from bdpvi import datasets, guides
from bdpvi._ground import outputs
from bdpvi.bayesian import storage
from bdpvi.bench import curves, demonstration
from bdpvi.cli import main
from bdpvi.commands import fit as fitting
from bdpvi.commands import options
from bdpvi.commands import release as releasing
from bdpvi.privacy import conversions
from bdpvi.tables.recipe import GUIDES


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
def fitted(people: Path) -> Path:
    out = people.parent / "fit"
    code = run(
        "fit", "--data", people, "--target", "sick", "--positive", "yes", "--out", out,
        "--steps", 100, "--rate", 0.5, "--quiet", "--intercept", "--no-limit", "--no-noise-scale",
    )  # fmt: skip
    assert code == 0
    return out


def test_fit_release_predict(
    table: Path, fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "release.json"
    options = ["--draws", 3, "--temperature", 2, "--json"]
    assert run("release", fitted, "--out", out, *options) == 0
    spent = json.loads(capsys.readouterr().out)["secret"]["cost"]
    assert spent["bayesian"]["kind"] == "Bayesian DP"
    assert spent["worst_case"] is None

    assert run("predict", out, "--data", table, "--out", tmp_path / "predictions.csv") == 0
    probability = pd.read_csv(tmp_path / "predictions.csv")["probability"]
    # Samples are random beyond any seed: what they predict is checked, not how well they do.
    split = datasets.from_csv(table, "sick", positive="yes")
    content = json.loads(out.read_text("utf-8"))
    limit = content["model"]["limit"] or np.inf
    design = np.c_[np.r_[split.train.x, split.test.x].clip(-limit, limit), np.ones(120)]
    by_hand = 1 / (1 + np.exp(-design @ np.array(content["samples"]).T))
    np.testing.assert_allclose(np.sort(probability), np.sort(by_hand.mean(1)), rtol=1e-9)
    predicted = pd.read_csv(tmp_path / "predictions.csv")
    assert list(predicted) == ["class", "probability", "spread"]
    assert (predicted["class"] == np.where(probability > 0.5, "yes", "no")).all()
    # By the formula of the sample's standard deviation: three samples, two degrees of freedom.
    squares = ((by_hand - by_hand.mean(1, keepdims=True)) ** 2).sum(1)
    spread = np.sqrt(squares / 2)[np.argsort(by_hand.mean(1))]
    np.testing.assert_allclose(predicted.sort_values("probability")["spread"], spread, rtol=1e-9)

    capsys.readouterr()
    assert run("release", fitted, "--out", tmp_path / "again.json", *options) == 0
    assert (
        json.loads(capsys.readouterr().out)["secret"]["cost"]["bayesian"]["epsilon"]
        > spent["bayesian"]["epsilon"]
    )
    assert run("release", fitted, "--out", tmp_path / "again.json", *options) == 2
    assert "exists already" in capsys.readouterr().err
    assert run("cost", fitted) == 0
    assert "single records" in capsys.readouterr().out


def test_a_weight_norm_takes_the_clips_place(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (
        "fit", "--data", table, "--target", "sick", "--positive", "yes", "--out", tmp_path / "fit",
        "--quiet", "--weight-norm", 1.2,
    )  # fmt: skip
    assert run(*command, "--clip", 0.5) == 2
    assert "both bound scores" in capsys.readouterr().err
    assert run(*command) == 0
    made = {"weight_norm": 1.2, "clip": None, "prior_scale": None, "intercept": True, "limit": 2.0}
    assert made.items() <= storage.read_extra(tmp_path / "fit")["model"].items()
    out = tmp_path / "release.json"
    assert run("release", tmp_path / "fit", "--out", out, "--epsilon", 1) == 0
    release = bdpvi.load_release(out)
    assert release.receipt.worst_case is not None
    assert release.model == bdpvi.BayesianLogisticRegression(weight_norm=1.2)
    capsys.readouterr()
    assert run("cost", tmp_path / "fit", "--for-groups-of", 0.5, "--for-groups-of", 0.4) == 0
    assert capsys.readouterr().out.count(": for every group of at least") == 2
    for_groups = ("release", tmp_path / "fit", "--for-groups-of", 0.5, "--temperature", 50)
    to = ("--out", tmp_path / "groups.json")
    assert run(*for_groups, *to, "--guarantee", "typical") == 2
    assert "is no mean over a group" in capsys.readouterr().err
    assert run(*for_groups, "--epsilon", 0.01, *to) == 2
    refused = capsys.readouterr().err
    assert "epsilon=0.01 is missed by the certificate of draws=1 at temperature=50" in refused
    assert "which comes to every-group DP" in refused
    assert run(*for_groups, *to) == 0
    assert "for every group of at least 50 %" in capsys.readouterr().out
    group = bdpvi.load_release(tmp_path / "groups.json").receipt.group
    assert group is not None
    assert group.share == 0.5


def test_groups_are_named_by_their_features(table: Path, tmp_path: Path) -> None:
    code = run(
        "fit", "--data", table, "--target", "sick", "--positive", "yes", "--out", tmp_path / "fit",
        "--steps", 5, "--quiet", "--correlation", 0.5, "--group", "dose, age",
    )  # fmt: skip
    assert code == 0
    assert storage.read_extra(tmp_path / "fit")["model"]["groups"] == [[1, 0]]
    assert run("cost", tmp_path / "fit") == 0


def test_a_fit_that_python_saved_is_refused_with_what_to_give_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = bdpvi.BayesianLogisticRegression.unweighted()
    data = logistic_data(60, 2)
    fit = bdpvi.fit(model, guides.MeanField(model), data, progress=False)
    bdpvi.save_fit(fit, tmp_path / "fit")
    assert run("cost", tmp_path / "fit") == 2
    said = capsys.readouterr().err
    assert "written by bdpvi.save_fit" in said
    assert "a folder that `bdpvi fit` wrote" in said


def test_public_noise_is_reliable_by_the_hockey_stick(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = tmp_path / "fit"
    code = run(
        "fit", "--data", table, "--target", "sick", "--positive", "yes", "--out", fit, "--quiet",
        "--neighbours", "optimum", "--clip", 0.1, "--prior-scale", 0.1, "--noise-scale", 0.001,
    )  # fmt: skip
    assert code == 0
    command = ("release", fit, "--epsilon", 0.5, "--conversion")
    assert run(*command, "magic", "--out", tmp_path / "a.json") == 2
    assert "conversion must be one of" in capsys.readouterr().err
    assert run(*command, "hockey-stick", "--out", tmp_path / "b.json", "--json") == 0
    spent = json.loads(capsys.readouterr().out)["secret"]["cost"]
    assert spent["bayesian"]["reliable"]
    assert 0.499 <= spent["worst_case"]["epsilon"] <= 0.5
    assert spent["bayesian"]["epsilon"] <= spent["worst_case"]["epsilon"]
    assert [path.name for path in tmp_path.glob("*.json")] == ["b.json"]


def test_release_for_an_epsilon_keeps_to_it(
    fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(fitted, tmp_path / "fit")
    assert run("release", copy, "--out", tmp_path / "a.json", "--epsilon", 3, "--json") == 0
    said = json.loads(capsys.readouterr().out)  # such a fit promises of typical records
    assert said["public"]["receipt"]["typical"]["epsilon"] == 3
    assert said["secret"]["cost"]["typical"]["epsilon"] <= 3
    code = run(
        "release", copy, "--out", tmp_path / "b.json", "--epsilon", 3, "--temperature", 9,
        "--draws", 30,
    )  # fmt: skip
    assert code == 2
    assert "epsilon=3 is missed by the price" in capsys.readouterr().err
    assert not (tmp_path / "b.json").exists()


def test_budget_and_ledger(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit = tmp_path / "fit"
    command = (
        "fit", "--data", table, "--target", "sick", "--out", fit, "--quiet",
        "--neighbours", "optimum", "--clip", 0.1, "--prior-scale", 0.1,
    )  # fmt: skip
    assert run(*command, "--budget", -1) == 2
    assert "epsilon must be finite and positive, got -1.0" in capsys.readouterr().err
    assert run(*command, "--budget", "1e-320") == 2
    assert "epsilon must be at least 1e-09, got 1e-320" in capsys.readouterr().err
    assert run(*command, "--budget", 1e6, "--budget-delta", 1e-3) == 0
    for out in ("a.json", "b.json"):
        assert run("release", fit, "--out", tmp_path / out, "--temperature", 1e9) == 0
    capsys.readouterr()

    def shown(*command: object) -> dict[str, Any]:
        assert run("ledger", *command, fit, "--json") == 0
        content: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert content["budget"] == {"epsilon": 1e6, "delta": 1e-3}
        return content

    assert [one["draws"] for one in shown("show")["charges"]] == [1, 1]
    file = storage.open_ledger(fit).path
    assert file == table.with_name("patients.csv.ledger.jsonl")
    whole = file.read_bytes()
    file.write_bytes(whole[:-90])
    assert run("release", fit, "--out", tmp_path / "c.json", "--temperature", 1e9) == 2
    said = capsys.readouterr().err
    assert "has lost lines" in said
    assert f"`bdpvi account {fit} --repair`" in said  # where receipts tell what is lost
    assert run("ledger", "show", fit) == 2
    capsys.readouterr()
    assert shown("repair")["added"] == 1
    assert file.read_bytes() == whole

    for receipt in fit.glob("release-*.json"):
        receipt.unlink()
    file.write_bytes(whole.replace(b'"draws": 1', b'"draws": 7'))
    assert run("ledger", "repair", fit) == 2
    assert "by --charge DRAWS,TEMPERATURE" in capsys.readouterr().err
    assert run("ledger", "repair", fit, "--charge", "ten") == 2
    assert "charge must be like 10,5.0, got 'ten'" in capsys.readouterr().err
    content = shown("repair", "--charge", "7,2.5", "--charge", "1,1e9")
    charges = [(one["draws"], one["temperature"], one["origin"]) for one in content["charges"]]
    assert charges == [(7, 2.5, "data"), (1, 1e9, "data")]
    assert run("ledger", "show", fit) == 0
    assert (
        "1. not recorded: 7 draws at temperature 2.5, found from the data"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"clip": "x"}}, {"model": {"more": 1}}, {"model": 3}, {"guide": "x"},
        {"guide": []}, {"noise_scale": "x"}, {"model": {"groups": 3}},
    ],
)  # fmt: skip
def test_a_fit_of_something_else_is_bad_input(
    fitted: Path, tmp_path: Path, change: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    extra = {**storage.read_extra(fitted), **change}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "read_extra", lambda _: extra)
        assert run("release", fitted, "--out", tmp_path / "a.json", "--temperature", 1) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.whole
def test_of_three_releases_to_one_file_two_are_refused_before_they_are_charged(
    table: Path, tmp_path: Path
) -> None:
    fit = tmp_path / "fit"
    command = ("fit", "--data", table, "--target", "sick", "--out", fit, "--quiet")
    bound = ("--neighbours", "optimum", "--clip", 0.1, "--prior-scale", 0.1, "--noise-scale", 0.1)
    assert run(*command, *bound) == 0
    out = tmp_path / "release.json"
    again = (sys.executable, "-m", "bdpvi.cli", "release", fit, "--out", out, "--epsilon", "1")
    running = [
        subprocess.Popen([*map(str, again)], stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    errors = [error for one in running if (error := one.communicate()[1])]
    assert sorted(one.returncode for one in running) == [0, 2, 2]
    refused = ("exists already", "is being written by another process")
    assert all(any(one in error for one in refused) for error in errors)
    assert all(error.count("\n") == 1 for error in errors)
    assert len(storage.open_ledger(fit).charges()) == 1
    bdpvi.load_release(out)
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "elsewhere.json")
    assert run("release", fit, "--out", link, "--epsilon", 1) == 2
    assert len(storage.open_ledger(fit).charges()) == 1
    assert not (tmp_path / "elsewhere.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "--data", "{table}", "--out", "{new}"], "target is needed"),
        (["fit", "--data", "{table}", "--target", "weight", "--out", "{new}"], "weight"),
        (["fit", "--data", "nowhere.csv", "--target", "sick", "--out", "{new}"], "nowhere.csv"),
        (["fit", "--data", "{table}", "--target", "sick", "--out", "{fit}"], "exists already"),
        (
            ["fit", "--data", "{table}", "--target", "sick", "--out", "{new}", "--clip", "-1"],
            "clip",
        ),
        (["fit", "--data", "{table}", "--target", "sick", "--out", "{new}", "--rate", "2"], "rate"),
        (
            ["fit", "--data", "{table}", "--target", "sick", "--out", "{new}", "--group", "dose,x"],
            "group must name features among",
        ),
        (
            ["fit", "--data", "{table}", "--target", "sick", "--out", "{new}", "--guide", "x"],
            "guide must be one of",
        ),
        (
            ["fit", "--data", "{table}", "--target", "sick", "--out", "{new}", "--device", "bogus"],
            "device='bogus' must be auto, cpu or cuda",
        ),
        (
            ["fit", "--data", "{table}", "--target", "sick", "--out", "{new}", "--key", "who"],
            "key",
        ),
        (
            ["ledger", "repair", "{fit}", "--charge", "nonsense"],
            "charge",
        ),
        (["release", "{fit}", "--out", "{new}"], "temperature or epsilon"),
        (["release", "{fit}", "--out", "{new}", "--temperature", "-1"], "temperature must"),
        (["release", "{fit}", "--out", "{new}", "--epsilon", "1e-6"], "cannot be reached"),
        (["release", "nowhere", "--out", "{new}", "--temperature", "1"], "nowhere"),
        (["predict", "{table}", "--data", "{table}"], "cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    table: Path,
    fitted: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    new = tmp_path / "new"
    names = {"{table}": str(table), "{fit}": str(fitted), "{new}": str(new)}
    assert run(*(names.get(argument, argument) for argument in arguments)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert not new.exists()


def test_a_missing_file_is_named_before_libraries_load() -> None:
    command = "import sys; sys.argv = {}; from bdpvi.cli import main\ntry: main()\nfinally: {}"
    asked = ["bdpvi", "fit", "--data", "nowhere.csv", "--target", "x", "--out", "new"]
    loaded = "print(*{'torch', 'pandas', 'pyro'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", command.format(asked, loaded)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "\n")
    assert done.stderr.startswith("bdpvi: data='nowhere.csv' is neither a file")


def test_a_file_that_is_not_there_is_named_without_errno(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing, data = tmp_path / "a.json", tmp_path / "a.csv"
    assert run("predict", missing, "--data", data) == 2
    assert run("cost", tmp_path / "a") == 2
    given = ("--data", "breast-cancer", "--settings", missing, "--out", tmp_path / "o")
    assert run("fit", *given) == 2
    said = capsys.readouterr().err
    assert said.lower().count("no such file or directory") == 3
    assert "Errno" not in said


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


COMMANDS = [
    "", "demo", "private", "fit", "release", "cost", "predict", "compare", "tune", "ledger",
    "ledger show", "ledger repair", "account", "audit",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*command.split(), "--help") == 0
    long = capsys.readouterr().out
    assert "Usage" in long
    assert "\\[" not in long
    assert run(*command.split(), "-h") == 0
    assert capsys.readouterr().out == long


def test_version_as_a_module() -> None:
    written = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    (version,) = re.findall(r'^version = "(.*)"$', written, re.MULTILINE)
    command = (sys.executable, "-m", "bdpvi", "--version")
    assert subprocess.check_output(command, text=True) == f"bdpvi {version}\n"


ACCOUNT = "added budget charges guarantee id path rows_per_unit total unit works"


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        (["fit", "{csv}", "--out", "{new}", "--steps", "5"], "held_out out records"),
        (["release", "{fit}", "--temperature", "2", "--out", "{new}"], "public secret"),
        (["cost", "{fit}"], ""),
        (["predict", "{release}", "{csv}"], "class probability receipt spread"),
        (["compare", "{csv}", "--out", "{new}", "--methods", "non-private,dpvi-ma", "--seeds", "1",
          "--epsilons", "0.05"], "files headline out summary"),
        (["tune", "{csv}", "--out", "{new}", "--methods", "non-private", "--seeds", "1",
          "--configurations", "1", "--refinements", "0", "--folds", "2"], "out result"),
        (["ledger", "show", "{fit}"], ACCOUNT),
        (["ledger", "repair", "{fit}"], ACCOUNT),
    ],
)  # fmt: skip
@pytest.mark.whole
def test_json_is_one_object_and_nothing_else(
    command: list[str],
    keys: str,
    table: Path,
    fitted: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    fit, released = shutil.copytree(fitted, tmp_path / "fit"), tmp_path / "release.json"
    if command[0] in ("predict", "cost"):
        assert run("release", fit, "--temperature", 2, "--out", released) == 0
        capsys.readouterr()
    data = [] if command[0] == "predict" else ["--target", "sick"]
    names: dict[str, list[object]] = {
        "{csv}": ["--data", table, *data], "{fit}": [fit], "{release}": [released],
        "{new}": [tmp_path / "new"],
    }  # fmt: skip
    assert run(*(word for part in command for word in names.get(part, [part])), "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line, parse_constant=refused)
    assert isinstance(found, dict)
    wanted = set(keys.split()) or {field.name for field in dataclasses.fields(bdpvi.Cost)}
    assert set(found) == wanted
    if command[0] == "compare":
        assert [row["accuracy"] is None for row in found["summary"]] == [False, False, True]
        assert all(Path(file).exists() for file in found["files"])


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
    # 455 records of 30 columns: ten draws have no ε that is worth a statement, and it is said.
    assert draws["certified"].tolist() == [True, True, False]
    assert draws["epsilon"].iloc[0] < draws["epsilon"].iloc[1]
    assert result["cost"]["bayesian"]["epsilon"] == draws["epsilon"].iloc[1]
    assert rows["accuracy"].min() > 0.6
    # The level in the figure is that without privacy, not that of draws without an ε.
    level = curves.demonstration(pd.read_csv(out / "curve.csv"), 1e-5).axes[0].lines[0]
    assert rows["method"].iloc[-1] == demonstration.WITHOUT
    assert np.asarray(level.get_ydata())[0] == pytest.approx(rows["log_score"].iloc[-1])
    # What is finished is kept: a second time only the releases are new.
    kept = {file.name: file.stat().st_mtime_ns for file in (out / "cells").iterdir()}
    assert run(*command) == 0
    assert "does not cover the rounding" in capsys.readouterr().out
    assert kept == {file.name: file.stat().st_mtime_ns for file in (out / "cells").iterdir()}


def test_a_demonstration_does_without_extras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demonstration, "find_spec", lambda _: None)
    monkeypatch.setattr(demonstration, "simulated", partial(demonstration.simulated, 400, 2))
    assert run("demo", "--out", tmp_path / "demo", "--quiet") == 0
    said, warned = capsys.readouterr()
    assert demonstration.NO_FIGURE in said.replace("\n", " ")
    assert demonstration.NO_SURVEY in warned


@pytest.mark.parametrize("command", ["fit", "compare", "tune"])
def test_identifiers_are_refused_until_they_are_dropped(
    command: str, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.read_csv(table)
    path, out = tmp_path / "named.csv", tmp_path / "out"
    names = [f"SSN-{row}" for row in range(len(frame))]
    frame.assign(who=names, id=range(len(frame))).to_csv(path, index=False)
    options = ["--data", path, "--target", "sick", "--out", out, "--quiet"]
    options += {
        "fit": ["--steps", 10, "--rate", 0.5, "--records", 40],
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


def test_help_texts_name_what_there_is() -> None:
    assert set(options.TABLES) == set(datasets.LOADERS)
    assert releasing.CONVERSIONS == conversions.CONVERSIONS
    assert set(fitting.GUIDES) == set(GUIDES)
    assert set(releasing.GUARANTEES.values()) <= set(dir(bdpvi))


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
ODD = ("--target", "sick", "--categorical", "code")
DROPPED = ("--missing", "drop")


def released_from(folder: Path, *arguments: object) -> Path:
    """Fit and release by the command line; return the release's file."""
    fast = ("--neighbours", "optimum", "--quiet", "--noise-scale", 0.1)
    assert run("fit", *arguments, "--out", folder / "fit", *fast) == 0
    assert run("release", folder / "fit", "--epsilon", 1, "--out", folder / "r.json") == 0
    return folder / "r.json"


def test_the_tables_options_reach_the_table(odd: Path, tmp_path: Path) -> None:
    file = released_from(
        tmp_path, "--data", odd, *ODD, "--missing", "level", "--encoding", "ordinal",
        "--test-fraction", 0.5, "--positive", 0, "--unknown", "base",
    )  # fmt: skip
    content = json.loads(file.read_text("utf-8"))
    expected = datasets.from_csv(
        odd, "sick", separator=";", categorical=["code"], missing="level", encoding="ordinal",
        test_fraction=0.5, positive=0, unknown="base",
    ).train  # fmt: skip
    assert content["preprocessing"]["declared"].pop("table file") == "used"
    assert content["preprocessing"] == json.loads(json.dumps(expected.preprocessing))
    assert content["preprocessing"]["encoding"]["unknown"] == "base"
    names = ["age", "age is missing", "code", "sex", "sex is missing"]
    assert content["feature_names"] == names


@pytest.mark.parametrize("command", ["fit", "private", "compare", "tune"])
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


def test_a_receipt_says_where_constants_come_from(odd: Path, tmp_path: Path) -> None:
    constants = tmp_path / "constants.json"
    constants.write_text(json.dumps(CONSTANTS), encoding="utf-8")
    file = released_from(
        tmp_path, "--data", odd, *ODD, *DROPPED, "--positive", 1, "--constants", constants
    )
    content = json.loads(file.read_text("utf-8"))
    assert content["receipt"]["about"].endswith("Preprocessing bounds: By law")
    assert "Computed from the rows" not in file.read_text("utf-8")


@pytest.mark.filterwarnings("default:not known")
def test_predictions_of_new_rows(
    odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    constants = tmp_path / "constants.json"
    constants.write_text(json.dumps(CONSTANTS), encoding="utf-8")
    file = released_from(
        tmp_path, "--data", odd, *ODD, *DROPPED, "--positive", 1, "--constants", constants
    )
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
    fitted: Path, table: Path, tmp_path: Path, options: list[str], message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert run("release", fitted, "--temperature", 3, "--out", tmp_path / "r.json") == 0
    pd.read_csv(table).assign(**{"class": 1}).to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "p.csv"
    code = run("predict", tmp_path / "r.json", "--data", tmp_path / "t.csv", "--out", out, *options)
    assert code == 2
    assert message in capsys.readouterr().err
    assert not out.exists()

"""``bdpvi private`` for numbers and counts: the same way, with another model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
import torch
from test_cli import run

import bdpvi
from bdpvi import BayesianLinearRegression, BayesianPoissonRegression, Dataset
from bdpvi.datasets import constants_of
from bdpvi.noise.keys import Key
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases.transaction import Transaction
from bdpvi.tables.work import Work

ROWS = 6_000
PUBLIC = constants_of({"source": "By law.", "age": [20, 80], "sex": ["F", "M"]})
MODELS: dict[str, Any] = {
    "linear": BayesianLinearRegression.of_bounds(80, 200),
    "poisson": BayesianPoissonRegression(largest=12),
}
OPTIONS = {"linear": ("--target-bounds", 80, 200), "poisson": ("--largest", 12)}
BOTH = pytest.mark.parametrize("name", MODELS)


def people(rows: int = ROWS) -> pd.DataFrame:
    """Return people's blood pressure and visits, with blanks and texts among them."""
    rng = np.random.default_rng(0)
    age, sex = rng.uniform(20, 80, rows), rng.choice(["F", "M"], rows)
    z, man = (age - 50) / 17.3, sex == "M"
    linear = 130 + 8 * z + 5 * man + rng.normal(0, 10, rows)
    poisson = rng.poisson(np.exp(0.2 + 0.4 * z - 0.3 * man))
    frame = pd.DataFrame({"age": age, "sex": sex, "linear": linear, "poisson": poisson})
    return frame.astype(object)


def spoilt(rows: int = ROWS) -> pd.DataFrame:
    frame = people(rows)
    for row, value in enumerate(["", None, "high", "n/a"]):
        frame.loc[row, ["linear", "poisson"]] = value
    frame.loc[4, "poisson"] = -1
    frame.loc[5, "poisson"] = 0.5
    return frame


@BOTH
def test_one_command_makes_predicts_and_summarises(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = tmp_path / "people.csv", tmp_path / "shared"
    other = "poisson" if name == "linear" else "linear"
    spoilt().drop(columns=other).to_csv(table, index=False)
    given = ["--target", name, "--model", name, *OPTIONS[name], "--categorical", "sex"]
    assert (
        run(
            "private",
            "--one-row-per-person",
            "--data",
            table,
            *given,
            "--epsilon",
            2,
            "--out",
            out,
            "--quiet",
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "worst-case DP ε = 2 (target)" in said
    assert ("rate ratio" in said) == (name == "poisson")
    release = bdpvi.load_release(out / "release.json")
    made: Any = release.model
    assert replace(made, levels=()) == MODELS[name]
    assert release.preprocessing["target"] == {"column": name}
    total = Ledger.at(table.with_name("people.csv.ledger.jsonl")).worst_case(1e-5)
    assert total is not None
    assert 0.98 * 2 < total.epsilon <= 2
    assert run("summary", out / "release.json", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["reliable"]
    found = {row["name"]: row for row in summary["coefficients"]}
    effect = {"linear": 5, "poisson": -0.3}[name]
    row = found["sex=M"]
    assert abs(row["mean"] - effect) < 4 * row["sd"] < 2 * abs(effect)
    assert run("predict", out / "release.json", "--data", table, "--json") == 0
    predicted = json.loads(capsys.readouterr().out)
    assert set(predicted) == {"expected", "spread", "receipt"}
    frame = people()
    expected = np.array(predicted["expected"])
    assert len(expected) == ROWS
    assert abs(expected.mean() / frame[name].astype(float).mean() - 1) < 0.05
    assert np.corrcoef(expected, frame[name].astype(float))[0, 1] > 0.3


def encoded(work: Work) -> Dataset:
    """Return all records."""
    data, _ = work.dataset(Transaction(work.ledger, Key.of_seed(0)), work.whole)
    assert isinstance(data, Dataset)
    return data


@BOTH
def test_rows_whose_target_is_no_such_number_are_left_out_each_by_itself(name: str) -> None:
    frame = spoilt(50)
    left_out = 4 if name == "linear" else 6
    options = {"target": name, "epsilon": 1.0, "model": MODELS[name], "constants": PUBLIC}
    drop = ["poisson" if name == "linear" else "linear"]
    whole = encoded(flat.work(frame, drop=drop, **options))
    assert whole.y.tolist() == frame[name].iloc[left_out:].astype(float).tolist()
    less = encoded(flat.work(frame.drop(index=20), drop=drop, **options))
    kept = torch.arange(len(whole)) != 20 - left_out
    assert torch.equal(whole.x[kept], less.x)
    assert torch.equal(whole.y[kept], less.y)


@BOTH
def test_python_takes_encoded_records(name: str) -> None:
    frame = people()
    x = torch.from_numpy(((frame[["age"]].astype(float) - 50) / 17.3).to_numpy().copy())
    data = Dataset(x, torch.from_numpy(frame[name].astype(float).to_numpy().copy()))
    release = flat.private(data, epsilon=1.0, model=MODELS[name], expected_rows=6e3)
    assert [entry.kind for entry in data.ledger.entries()] == ["reserved", "release", "ended"]
    slope = {"linear": 8, "poisson": 0.4}[name]
    found = release.summary().coefficients[0]
    assert abs(found.mean - slope) < 4 * (found.sd or 0.0) < slope / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "linear"), "model='linear': --target-bounds is needed, and must be public"),
        (("--model", "poisson"), "model='poisson': --largest is needed, and must be public"),
        (("--largest", 3), "model='logistic': --largest does not go with it"),
        (("--model", "cubic"), "model must be one of"),
        (("--model", "linear", "--target-bounds", 3, 1), "low must be below high, got 3.0 and 1.0"),
        (("--model", "poisson", "--largest", 3, "--positive", "yes"), "positive='yes': a poisson"),
        (("--model", "poisson", "--largest", 3, "--base-rate", 0.1), "base_rate=0.1: a poisson"),
        (("--model", "poisson", "--largest", 3, "--from-data"), "from_data=True: a poisson"),
        (("--model", "poisson", "--largest", 3, "--guarantee", "bayesian"), "has a worst case"),
    ],
)
def test_options_that_do_not_go_together_are_named_and_charge_nothing(
    options: tuple[object, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "people.csv"
    people(20).to_csv(table, index=False)
    out = tmp_path / "shared"
    given = ("--data", table, "--target", "poisson", "--epsilon", 1, "--out", out, *options)
    assert run("private", "--one-row-per-person", *given) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()
    assert Ledger.at(tmp_path / "people.csv.ledger.jsonl").entries() == ()


def test_models_that_the_route_has_nothing_for_are_refused_before_anything_is_bought() -> None:
    exposed = BayesianPoissonRegression(largest=3, exposure=0)
    with pytest.raises(ValueError, match="give exposure=NAME"):
        flat.private(people(20), target="poisson", epsilon=1.0, model=exposed)


def test_the_owner_hears_of_counts_at_their_bound_before_a_charge(
    recwarn: pytest.WarningsRecorder,
) -> None:
    given: dict[str, Any] = {"target": "poisson", "epsilon": 1.0, "drop": ["linear"]}
    frame = people(1000)
    for largest, heard in ((12, False), (2, True)):
        recwarn.clear()
        work = flat.work(frame, model=BayesianPoissonRegression(largest=largest), **given)
        said = [str(one.message) for one in recwarn if "public bounds" in str(one.message)]
        assert bool(said) == heard
        assert work.ledger.entries() == ()
    beyond = int((frame["poisson"].astype(float) > 2).sum())
    assert (
        f"for the owner only: {beyond} of 1000 targets are beyond their public bounds, 0 and 2,"
        in said[0]
    )

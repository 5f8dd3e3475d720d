"""Times to an event from a raw table, on the command line and in Python."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from test_cli import run

import bdpvi
from bdpvi import BayesianSurvivalRegression
from bdpvi.datasets import constants_of
from bdpvi.datasets.schema import Schema
from bdpvi.datasets.types import ColumnType
from bdpvi.tables import Machine, Public, Request
from bdpvi.tables.encoded import usable

MODEL = BayesianSurvivalRegression(cuts=(1, 2, 5))
KNOWN = constants_of({"source": "By law.", "age": [20, 80], "arm": ["new", "old"]})
PUBLIC = Public(event="died", constants=KNOWN, rows=3000)
ASKED: dict[str, Any] = {"target": "years", "model": MODEL, "epsilon": 2.0}
QUIET = Machine(progress=False)
pytestmark = pytest.mark.filterwarnings("ignore:for the owner only")


def people(rows: int = 3000) -> pd.DataFrame:
    """Return people with a hazard ratio of 0.4 in the new arm, and 1.03 a year of age."""
    random = np.random.default_rng(0)
    age, arm = random.uniform(20, 80, rows), random.choice(["new", "old"], rows)
    rate = 0.2 * np.exp(0.03 * (age - 50)) * np.where(arm == "new", 0.4, 1.0)
    time, end = random.exponential(1 / rate), random.uniform(0, 8, rows)
    died = np.where(time <= end, "yes", "no")
    return pd.DataFrame({"age": age, "arm": arm, "years": np.minimum(time, end), "died": died})


def used(frame: pd.DataFrame, **public: Any) -> tuple[list[float], int]:
    """Return the targets of a table's rows, and how many rows have none."""
    rows, left = usable(frame, Request(**ASKED, public=Public(event="died", **public)))
    return rows.y.tolist(), left


def test_events_are_read_by_their_usual_or_declared_spellings() -> None:
    years: list[Any] = [1.5, "2", 3, 4, 0, -1, "", "x", 7, 2, 2]
    died: list[Any] = ["yes", "No", True, 0, "1", "yes", "yes", "no", "f", "", "dead"]
    frame = pd.DataFrame({"years": years, "died": died, "age": 1}, dtype=object)
    found, left = used(frame)
    assert found == [1.5, -2.0, 3.0, -4.0, pytest.approx(1e-9), -7.0]
    assert left == 5
    words = ColumnType(kind="boolean", levels=("alive", "dead"))
    types = Schema({"died": words}, "By us.")
    frame = pd.DataFrame({"years": [1, 2, 3], "died": ["dead", "alive", "lost"], "age": 1})
    assert used(frame, types=types) == ([1.0, -2.0], 1)
    coded = frame.assign(died=[2, 1, 3])
    types = Schema({"died": ColumnType(kind="boolean", levels=("1", "2"))}, "By us.")
    assert used(coded, types=types) == ([1.0, -2.0], 1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a shared file, of one command."""
    folder = tmp_path_factory.mktemp("survival")
    people().to_csv(folder / "people.csv", index=False)
    (folder / "known.json").write_text(json.dumps(
        {"source": "By law.", "age": [20, 80], "arm": ["new", "old"]}), "utf-8")  # fmt: skip
    command = ["private", "--data", folder / "people.csv", "--one-row-per-person", "--epsilon", 2]
    command += ["--model", "survival", "--time", "years", "--event", "died", "--rows", 3000]
    command += ["--cuts", 1, "--cuts", 2, "--cuts", 5, "--constants", folder / "known.json"]
    assert run(*command, "--out", folder / "shared", "--quiet") == 0
    return folder / "shared" / "release.json"


def test_one_command_gives_hazard_ratios_and_the_file_keeps_them(made: Path) -> None:
    release = bdpvi.load_release(made)
    model = release.model
    assert isinstance(model, BayesianSurvivalRegression)
    assert replace(model, levels=()) == MODEL
    assert "died" not in " ".join(release.feature_names)
    declared: Any = release.preprocessing["declared"]
    assert declared["event"] == "died"
    assert declared["target bounds"] == "0, 5"
    summary = release.summary(odds=True, reference={"arm": "old"})
    assert "their exponentials are hazards per unit of time, not ratios" in summary.reason
    assert "intercept is" not in summary.reason
    found = summary.to_frame()
    age, arm = found.loc["age"], found.loc["arm=new"]
    assert age["ratio_low"] < np.exp(0.03) < age["ratio_high"]
    assert arm["ratio_low"] < 0.4 < arm["ratio_high"] < 0.7
    assert found.index[-3:].tolist() == [
        f"log hazard {part}" for part in ("0 to 1", "1 to 2", "2 to 5")
    ]
    hazards = found.iloc[-3:]  # of the old arm at the age of 50
    assert ((hazards["low"] < np.log(0.2)) & (hazards["high"] > np.log(0.2))).sum() >= 2


def test_the_baseline_is_that_of_the_reference_level(made: Path) -> None:
    release = bdpvi.load_release(made)
    old, new = (
        release.summary(reference={"arm": arm}).to_frame()["mean"] for arm in ("old", "new")
    )
    steps = new.iloc[-3:] - old.iloc[-3:]
    np.testing.assert_allclose(steps, old["arm=new"], rtol=1e-9)


def test_predictions_are_curves_and_times_within_the_horizon(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release, rows = bdpvi.load_release(made), people()[:40]
    curves = release.predict_survival(rows, [0, 1, 2, 5])
    assert curves.mean.index.equals(rows.index)
    assert (curves.mean[0] == 1).all()
    assert ((curves.low <= curves.mean) & (curves.mean <= curves.high)).all(axis=None)
    assert (curves.mean.diff(axis=1).iloc[:, 1:] < 0).all(axis=None)
    assert run("predict", made, "--data", made.parents[1] / "people.csv", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found)[:-1] == [
        "expected", "survival at 1", "survival at 2", "survival at 5", "spread"
    ]  # fmt: skip
    assert found["survival at 2"][:40] == pytest.approx(curves.mean[2].tolist())
    assert 0 < min(found["expected"]) < max(found["expected"]) <= 5
    old = rows.assign(arm="old", age=50.0)
    right = np.exp(-0.2 * np.array([1, 2, 5]))
    assert np.abs(release.predict_survival(old, [1, 2, 5]).mean.iloc[0] - right).max() < 0.08


@pytest.mark.parametrize(
    ("public", "model", "message"),
    [
        ({}, MODEL, "event='' must be a column other than the time 'years'"),
        ({"event": "years"}, MODEL, "event='years' must be a column other than the time 'years'"),
        ({"event": "dead"}, MODEL, "event='dead' must be a column .*the columns are .'age', 'arm'"),
        ({"event": "died"}, None, "event='died': it goes with a model of times"),
        (
            {"event": "died"},
            bdpvi.BayesianPoissonRegression(largest=3),
            "event='died': it goes with a survival regression .*and not with a poisson one",
        ),
        (
            {"event": "died", "types": Schema({"died": ColumnType(kind="category")}, "By us.")},
            MODEL,
            "event='died': types declares the kind category; declare a boolean",
        ),
        ({"event": "died", "base_rate": 0.2}, MODEL, "base_rate=0.2: a survival regression takes"),
        ({"event": "died", "exposure": "age"}, MODEL, "exposure='age': it goes with a model of"),
    ],
)
def test_what_does_not_go_together_is_named_and_nothing_is_charged(
    public: dict[str, Any], model: Any, message: str
) -> None:
    given: dict[str, Any] = {"positive": "yes"} if model is None else {}
    ledger = bdpvi.Ledger()
    with pytest.raises(ValueError, match=message):
        bdpvi.private(
            people(50), target="years", model=model, epsilon=1.0, public=Public(**public),
            ledger=ledger, machine=QUIET, **given,
        )  # fmt: skip
    assert not ledger.entries()


def test_encoded_records_have_signed_targets(tmp_path: Path) -> None:
    frame = people(400)
    x = torch.tensor([frame["age"] / 20 - 2.5]).T
    data = bdpvi.Dataset(x, MODEL.targets(frame["years"], frame["died"] == "yes"))
    with pytest.raises(ValueError, match="event='died': targets of encoded records are signed"):
        bdpvi.private(data, model=MODEL, epsilon=1.0, public=Public(event="died"))
    made = bdpvi.private(data, model=MODEL, epsilon=20.0, public=Public(rows=400), machine=QUIET)
    assert made.predict_mean(x).shape == (400,)


@pytest.mark.whole
def test_a_formula_and_a_table_in_blocks_have_events_too(tmp_path: Path) -> None:
    pytest.importorskip("formulaic")
    frame = people(2000)
    (tmp_path / "parts").mkdir()
    for at in range(2):
        frame[at::2].to_csv(tmp_path / "parts" / f"{at}.csv", index=False)
    asked: dict[str, Any] = {**ASKED, "target": "years ~ age * arm", "machine": QUIET}
    asked["public"] = replace(PUBLIC, rows=2000)
    unit = bdpvi.tables.Unit()
    made = bdpvi.private(tmp_path / "parts", unit=unit, **asked)
    assert made.predict_survival(frame[:5], [1.0]).mean.shape == (5, 1)
    with pytest.raises(ValueError, match="event='died' is in the formula"):
        bdpvi.private(frame, **{**asked, "target": "years ~ age + died"})

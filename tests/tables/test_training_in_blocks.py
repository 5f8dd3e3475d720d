"""Models that are trained on a table in blocks: the release of the table in memory, to the bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
import torch
from in_blocks import ROWS
from rehearsals import left_out
from test_cli import run

import bdpvi
from bdpvi import DPVI, Ledger, Release
from bdpvi._ground import checkpoint
from bdpvi.datasets import constants_of, partition
from bdpvi.datasets.table import Table
from bdpvi.programs import sources
from bdpvi.programs.course import Course
from bdpvi.programs.sources import Windows
from bdpvi.tables import setup
from bdpvi.tables.prepared import Prepared

STEPS = 24
CLASSES = ("low", "mid", "high")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # for the owner


def visits() -> pd.DataFrame:
    """Return up to nine rows of each of a thousand persons, some without what a model needs."""
    random = np.random.default_rng(3)
    frame = pd.DataFrame({"who": [f"p{one:03d}" for one in random.integers(0, 1_000, ROWS)]})
    frame["age"] = age = random.normal(50, 12, ROWS)
    frame["sex"] = random.choice(["F", "M"], ROWS)
    score = 0.05 * (age - 50) + (frame["sex"] == "M")
    place = np.digitize(score + random.logistic(size=ROWS), [0, 1.5])
    frame["grade"] = np.array(CLASSES)[place]
    frame["falls"] = random.poisson(np.exp(0.3 * score)).astype(float)
    frame["years"] = random.uniform(0.5, 2, ROWS).round(2)
    frame.loc[1, "age"] = np.nan
    frame.loc[4, "grade"], frame.loc[5, "grade"] = None, "other"
    frame.loc[7, "falls"], frame.loc[9, "years"] = -3, 0
    return frame


@dataclass(frozen=True, kw_only=True)
class Short(DPVI):
    steps: int = STEPS
    batch: int | None = 300


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_keys: None) -> Path:
    """Return a folder with a table, and the same in blocks; keys are known, trainings short.

    The noise of the steps, a function of public numbers that takes a minute, is not searched for.
    """
    monkeypatch.setattr("bdpvi.datasets.objects.ROWS", 700)
    visits().to_csv(tmp_path / "visits.csv", index=False)
    partition(tmp_path / "visits.csv", by="who", out=tmp_path / "parts", progress=False)
    monkeypatch.setattr("bdpvi.programs.plan.steps_within", lambda run, *price: run)
    monkeypatch.setattr(setup, "DPVI", Short)
    return tmp_path


MODELS: dict[str, dict[str, Any]] = {
    "ordinal": {
        "target": "grade",
        "model": bdpvi.BayesianOrdinalRegression(classes=3),
        "classes": CLASSES,
        "drop": ("falls", "years"),
    },
    "multinomial": {
        "target": "grade",
        "model": bdpvi.BayesianMultinomialRegression(classes=3),
        "classes": CLASSES,
        "drop": ("falls", "years"),
    },
    "negative-binomial": {
        "target": "falls",
        "model": bdpvi.BayesianNegativeBinomialRegression(largest=8),
        "drop": ("grade", "years"),
    },
    "exposure": {
        "target": "falls",
        "model": bdpvi.BayesianPoissonRegression(largest=8),
        "exposure": "years",
        "drop": ("grade",),
    },
}
PERSON: dict[str, Any] = {"unit": "who", "rows_per_unit": 2}


def private(table: Any, kind: str = "ordinal", **more: Any) -> Release:
    given = {"epsilon": 6.0, "progress": False, **MODELS[kind], **PERSON, **more}
    return flat.private(table, **given)


def same(found: Release, whole: Release) -> None:
    assert found.guide is not None
    assert torch.equal(found.samples, whole.samples)
    assert found.guide == whole.guide
    assert found.preprocessing == whole.preprocessing
    assert found.receipt == whole.receipt


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(one, marks=() if one == "negative-binomial" else pytest.mark.whole)
        for one in MODELS
    ],
)
def test_the_release_is_that_of_the_table_in_memory(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For persons; the rows lie in another order, so in memory they are read as in the blocks."""
    monkeypatch.setattr(sources, "BYTES", 9 * 300 * 5 * 8)  # nine batches at a time
    written = pd.read_parquet(folder / "parts")
    written.to_csv(folder / "parts.csv", index=False)
    books = Ledger(), Ledger()
    whole = private(folder / "parts.csv", kind, ledger=books[0])
    same(private(folder / "parts", kind, ledger=books[1]), whole)
    one, two = (book.book() for book in books)
    assert (one.unit, one.rows) == (two.unit, two.rows) == ("who", 2)
    assert [charge.events for charge in one.entries] == [charge.events for charge in two.entries]


@pytest.mark.whole
def test_intervals_of_many_features_are_those_of_the_table_in_memory(folder: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(7_500, 60)).round(2)
    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(60)])
    frame["sick"] = np.where(random.random(7_500) < 1 / (1 + np.exp(-x[:, 0])), "yes", "no")
    frame.to_parquet(folder / "wide.parquet", index=False, row_group_size=2_000)
    public = constants_of({"source": "By law.", **{f"x{j}": [-3, 3] for j in range(60)}})
    given: dict[str, Any] = {"target": "sick", "positive": "yes", "one_row_per_person": True}
    given |= {"intervals": True, "epsilon": 3.0, "constants": public}
    whole = flat.private(folder / "wide.parquet", ledger=Ledger(), progress=False, **given)
    table = Table.of(folder / "wide.parquet")
    same(flat.private(table, ledger=Ledger(), progress=False, **given), whole)


@pytest.mark.whole
def test_a_training_that_is_cut_goes_on_at_no_price(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block is lost in the middle of the training: the steps before are not taken again."""
    monkeypatch.setattr(checkpoint, "_EVERY", 0.0)
    monkeypatch.setattr(sources, "BYTES", 9 * 300 * 4 * 8)  # nine batches at a time
    taken, step, read = [], Course._step, Windows._read
    lost = 18

    def noted(course: Course, number: int) -> None:
        step(course, number)
        taken.append(number)

    def losing(windows: Windows, mechanism: Any, steps: range) -> None:
        if lost in steps:
            raise ValueError("parts/00001.parquet, row group 0: disk lost")
        read(windows, mechanism, steps)

    left_out(monkeypatch)
    monkeypatch.setattr(Prepared, "rehearse", lambda _: None)
    monkeypatch.setattr(Course, "_step", noted)
    monkeypatch.setattr(Windows, "_read", losing)
    with pytest.raises(ValueError, match="disk lost"):
        private(folder / "parts", out=folder / "out")
    charged = Ledger.at(folder / "parts.ledger.jsonl").entries()
    assert 0 < len(taken) < STEPS
    lost = -1
    private(folder / "parts", out=folder / "out")
    assert taken == [*range(STEPS)]
    assert Ledger.at(folder / "parts.ledger.jsonl").entries() == charged
    private(folder / "parts", out=folder / "b", ledger=folder / "b.jsonl")
    one, two = ((folder / name / "release.json").read_bytes() for name in ("out", "b"))
    assert one == two


@pytest.mark.whole
def test_the_command_trains_on_blocks_and_scores_the_rows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classes = [one for name in CLASSES for one in ("--classes", name)]
    drop = ("--drop", "falls", "--drop", "years", "--unit", "who", "--rows-per-unit", 2)
    given = ("--data", folder / "parts", "--target", "grade", "--model", "ordinal", *classes, *drop)
    done = run(
        "private", *given, "--epsilon", 6, "--out", folder / "out", "--workers", 2, "--quiet"
    )
    assert done == 0
    here = private(folder / "parts", ledger=Ledger())
    found = bdpvi.load_release(folder / "out" / "release.json")
    assert torch.equal(found.samples, here.samples)
    table = pd.read_parquet(folder / "parts")
    rows = table[table.groupby("who").cumcount() < 2]
    rows = rows[rows["grade"].isin(CLASSES) & (rows["who"] != "")]
    few = replace(here, latents={name: one[:100] for name, one in here.latents.items()})
    chances = few.predict_proba(rows).to_numpy()
    place = np.array([CLASSES.index(one) for one in rows["grade"]])
    score = np.log(chances[np.arange(len(rows)), place]).mean()
    right = (chances.argmax(1) == place).mean()
    said = capsys.readouterr().out
    assert f"scores on the table's own {len(rows):,} rows; " in said
    assert f"this release          log score {score:.3f}  accuracy {right:.3f}\n" in said


@pytest.mark.parametrize("kind", ["multinomial", "exposure"])
def test_noise_does_not_move_predictions_of_blanks_and_unlisted_levels(
    kind: str, folder: Path
) -> None:
    release = private(folder / "visits.csv", kind)
    assert release.guide is not None
    names = [name for name in release.feature_names if name != "years"]
    shape = release.guide.sites["w"]
    mean, seen = (
        np.array(one)[: np.prod(shape)].reshape(len(names) + 1, -1)
        for one in (release.guide.mean, release.guide.measured)
    )
    at = names.index
    listed, known = mean[[at("sex=F"), at("sex=M")]], seen[[at("sex=F"), at("sex=M")]]
    weights = known | ~known.any(0)
    usual = (listed * weights).sum(0) / weights.sum(0)
    assert not seen[[at("sex=other"), at("sex is missing"), at("age is missing")]].any()
    np.testing.assert_allclose(mean[at("sex=other")], usual, rtol=1e-9)
    np.testing.assert_allclose(mean[at("sex is missing")], usual, rtol=1e-9)
    assert abs(usual).max() > 0.01
    assert not mean[at("age is missing")].any()

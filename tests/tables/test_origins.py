"""Where constants come from, and what was declared, stand on every receipt, by every door."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import bdpvi
from bdpvi import BayesianDP, Dataset, Ledger, guides, sklearn
from bdpvi.cli import app
from bdpvi.datasets import ColumnType, Encoding, Schema, constants_of, dataset_from_frame
from bdpvi.datasets import from_csv as split_of_file
from bdpvi.datasets.dataset import People
from bdpvi.datasets.origin import Origin
from bdpvi.privacy import Assumption
from bdpvi.releases.shared_file import load_release, save_release
from bdpvi.releases.transaction import Transaction
from bdpvi.synthesis import Counts
from bdpvi.tables.prepared import Prepared

PUBLIC, BOUGHT = Assumption.PUBLIC_CONSTANTS, Assumption.PRIVATE_CONSTANTS
THIS, ANOTHER = Assumption.CONSTANTS_FROM_TABLE, Assumption.CONSTANTS_FROM_ANOTHER_RELEASE
OF_CONSTANTS = {PUBLIC, BOUGHT, THIS, ANOTHER}
MODEL = bdpvi.BayesianLogisticRegression(intercept=True, limit=2.0)
CLIPPED = bdpvi.BayesianLogisticRegression(clip=0.5, prior_scale=0.3, limit=2.0)
ROUTE = bdpvi.regression.ObjectivePerturbation(rows=2000)


def patients(seed: int = 0, rows: int = 2500) -> pd.DataFrame:
    """Return other people for each seed."""
    random = np.random.default_rng(seed)
    age, dose = random.normal(50, 10, rows).round(1), random.normal(2, 1, rows).round(2)
    sick = random.random(rows) < 1 / (1 + np.exp(-(age - 50) / 10 - dose + 2))
    return pd.DataFrame({"age": age, "dose": dose, "sick": np.where(sick, "yes", "no")})


def private(seed: int = 0, **given: Any) -> bdpvi.Release:
    usual: dict[str, Any] = {"target": "sick", "positive": "yes", "epsilon": 2.0}
    usual |= {"numeric": ("age", "dose"), "progress": False}
    return flat.private(patients(seed), **usual | given)


def named(bound: bdpvi.Bound | None) -> set[Assumption]:
    """Return what a promise says of constants."""
    assert bound is not None
    return OF_CONSTANTS & {*bound.assumptions}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("people") / "a.jsonl"


@pytest.fixture(scope="module")
def first(ledger: Path) -> bdpvi.Release:
    """A release of one table, whose constants were estimated privately."""
    return private(ledger=ledger, budget=bdpvi.Budget(9.0))


def copy_of(ledger: Path) -> Ledger:
    """Return what was charged, in a ledger without a budget."""
    copied = Ledger()
    for entry in Ledger(ledger).entries():
        copied.charge(entry)
    return copied


@pytest.fixture
def encoding(first: bdpvi.Release) -> Encoding:
    assert first.encoding is not None
    return first.encoding


def test_bought_constants_name_their_charge_and_nothing_of_the_ledger(
    first: bdpvi.Release, encoding: Encoding, ledger: Path, tmp_path: Path
) -> None:
    assert named(first.receipt.bound) == {BOUGHT}
    assert encoding.origins == (Origin.ESTIMATED_HERE,)
    assert {*encoding.purchases} <= {entry.purchase for entry in Ledger(ledger).entries()}
    save_release(first, tmp_path / "shared.json")
    shared = (tmp_path / "shared.json").read_text("utf-8")
    assert not any(entry.seal in shared for entry in Ledger(ledger).entries() if entry.seal)
    assert load_release(tmp_path / "shared.json").encoding == encoding


def by_private(given: Encoding, ledger: Ledger) -> bdpvi.Release:
    return private(1, constants=given, ledger=ledger, epsilon=4.0)


def by_intervals(given: Encoding, ledger: Ledger) -> bdpvi.Release:
    return private(1, constants=given, ledger=ledger, epsilon=4.0, intervals=True)


def encoded(given: Encoding, ledger: Ledger) -> Dataset:
    data = dataset_from_frame(patients(1), "sick", positive="yes", constants=given)
    return data.of_people(People(ledger))


def by_route(given: Encoding, ledger: Ledger) -> bdpvi.Release:
    return bdpvi.fit_private(MODEL, encoded(given, ledger), epsilon=4.0, route=ROUTE)


def by_fit(given: Encoding, ledger: Ledger) -> bdpvi.Release:
    guide = guides.MeanField(CLIPPED, noise_scale=1.0)
    remove = bdpvi.Optimum(bdpvi.bayesian.Remove(0))
    fit = bdpvi.fit(CLIPPED, guide, encoded(given, ledger), neighbours=remove, progress=False)
    return bdpvi.release(fit, epsilon=4.0)


def by_hand(given: Encoding, ledger: Ledger) -> bdpvi.Release:
    data = encoded(given, ledger)
    data = replace(data, preprocessing={"encoding": given.to_dict()})
    return bdpvi.fit_private(MODEL, data, epsilon=4.0, route=ROUTE)


@pytest.mark.parametrize("door", [by_private, by_intervals, by_route, by_fit, by_hand])
def test_constants_of_another_table_are_not_bought_here(
    door: Callable[[Encoding, Ledger], bdpvi.Release],
    encoding: Encoding,
    ledger: Path,
    tmp_path: Path,
) -> None:
    of_others = door(encoding, Ledger())
    assert named(of_others.receipt.bound) == named(of_others.cost.worst_case) == {ANOTHER}
    assert "this ε does not cover them" in of_others.receipt.meaning
    assert "were estimated privately" not in of_others.receipt.meaning
    save_release(of_others, tmp_path / "b.json")
    read = load_release(tmp_path / "b.json").encoding
    assert read is not None
    assert (read.origins, read.purchases) == ((Origin.FROM_ANOTHER_RELEASE,), ())
    # The same people's ledger counts the purchase, by whatever door.
    assert named(door(encoding, copy_of(ledger)).receipt.bound) == {BOUGHT}


def test_an_epsilon_of_one_work_alone_counts_its_own_purchases_and_a_total_all(
    encoding: Encoding, ledger: Path
) -> None:
    people = copy_of(ledger)
    prepared = Prepared.of(MODEL, encoded(encoding, people), ROUTE)
    alone = prepared.release(epsilon=1.0, work=Transaction(people, alone=True))
    assert named(alone.receipt.bound) == {ANOTHER}
    data = encoded(encoding, copy_of(ledger)).select(torch.arange(300))
    fit = bdpvi.fit(CLIPPED, guides.MeanField(CLIPPED), data, progress=False)
    with pytest.raises(
        ValueError, match="depends on preprocessing bounds estimated privately from this table"
    ):
        bdpvi.release(fit, temperature=1e6, guarantee=BayesianDP())


def test_the_command_reads_constants_of_another_table(encoding: Encoding, tmp_path: Path) -> None:
    patients(1).to_csv(tmp_path / "b.csv", index=False, sep=";")
    (tmp_path / "constants.json").write_text(json.dumps(encoding.to_dict()), "utf-8")
    (tmp_path / "b.csv.table.json").write_text('{"file": {"separator": ";"}}', "utf-8")
    given: tuple[object, ...] = ("--data", tmp_path / "b.csv")
    given += ("--target", "sick", "--positive", "yes", "--epsilon", 1, "--no-scores", "--quiet")
    given += ("--constants", tmp_path / "constants.json", "--out", tmp_path / "out")
    said = CliRunner().invoke(app, ["private", "--one-row-per-person", *map(str, given)])
    assert said.exit_code == 0, said.output
    assert ANOTHER.value in said.output
    assert BOUGHT.value not in said.output
    assert "Declared: positive: yes; separator: ;; table file: used" in said.output


def test_each_origin_of_several_is_named(encoding: Encoding) -> None:
    age = replace(encoding, columns=encoding.columns[:1])
    of_both = private(1, constants=age, epsilon=4.0)
    assert named(of_both.receipt.bound) == {BOUGHT, ANOTHER}
    assert of_both.encoding is not None
    assert of_both.encoding.origins == (Origin.FROM_ANOTHER_RELEASE, Origin.ESTIMATED_HERE)
    assert len(of_both.encoding.purchases) == 1
    with_public = private(1, constants=constants_of({"source": "By law.", "age": [18, 98]}))
    assert named(with_public.receipt.bound) == {BOUGHT, PUBLIC}
    assert "Preprocessing bounds: By law" in with_public.receipt.about
    # Words that claim something decide nothing.
    words = "bought from the table, which ε covers. Computed from the rows of the data"
    claimed = constants_of({"source": words, "age": [18, 98], "dose": [-2, 6]})
    assert named(private(1, constants=claimed).receipt.bound) == {PUBLIC}
    measured = dataset_from_frame(patients(), "sick").preprocessing["encoding"]
    assert named(private(constants=Encoding.from_dict(measured)).receipt.bound) == {THIS}
    assert named(private(from_data=True, numeric=()).receipt.bound) == {THIS}


FORGED: dict[str, tuple[dict[str, Any], str]] = {
    "no origin": ({"origin": "by law"}, "origin must be one of"),
    "another word": ({"origin": "Bought here"}, "origin must be one of"),
    "no purchase": ({"purchases": []}, "purchases must be digests"),
    "a purchase of what is public": ({"origin": "public"}, "purchases must be digests"),
    "no digest": ({"purchases": ["x"]}, "purchases must be digests"),
    "no list": ({"purchases": 3}, "purchases must be a list"),
    "twice": ({"besides": ["bought here"]}, "besides must be in order"),
    "not on the receipt": ({"origin": "public", "purchases": []}, "which lacks PUBLIC_CONSTANTS"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_origin_is_refused(first: bdpvi.Release, tmp_path: Path, name: str) -> None:
    change, message = FORGED[name]
    save_release(first, tmp_path / "release.json")
    content = json.loads((tmp_path / "release.json").read_text("utf-8"))
    content["preprocessing"]["encoding"] |= change
    (tmp_path / "release.json").write_text(json.dumps(content), "utf-8")
    with pytest.raises(ValueError, match=message):
        load_release(tmp_path / "release.json")


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ({}, Origin.ESTIMATED_HERE),
        ({"bounds": (-5, 90)}, Origin.PUBLIC),
        ({"scales": (10, 20)}, Origin.PUBLIC),
        ({"from_data": True}, Origin.FROM_THIS_TABLE),
    ],
)
@pytest.mark.parametrize("kind", ["logistic", "linear"])
def test_estimators_say_where_their_constants_are_from(
    given: dict[str, Any], origin: Origin, kind: str
) -> None:
    table = patients()
    x, y = table[["age", "dose"]].to_numpy(), table["sick"].to_numpy()
    if kind == "linear":  # its target's bounds are estimated each time, and are no constants of X
        made: Any = sklearn.PrivateLinearRegression(2.0, **given).fit(x, x.sum(axis=1))
    else:
        classes = ("no", "yes")
        made = sklearn.PrivateLogisticRegression(2.0, classes=classes, **given)
        made.fit(x, y)
    assert made.release_.encoding.origins == (origin,)
    wanted = {Origin.ESTIMATED_HERE: BOUGHT, Origin.PUBLIC: PUBLIC, Origin.FROM_THIS_TABLE: THIS}
    assert named(made.bound_) == {wanted[origin]}


@pytest.mark.filterwarnings("ignore:column")
def test_a_schema_that_was_bought_pays_for_one_release(tmp_path: Path) -> None:
    table = patients(rows=4000)
    bought = bdpvi.synthesize(table, epsilon=2.0)
    assert named(bought.receipt.worst_case) == {BOUGHT}
    bought.schema.save(tmp_path / "schema.json")
    again = bdpvi.synthesize(table, Schema.load(tmp_path / "schema.json"), epsilon=2.0)
    assert named(again.receipt.worst_case) == {ANOTHER}
    sick = {"sick": ColumnType(levels=("no", "yes")), "age": bought.schema.columns["age"]}
    three = bdpvi.synthesize(table, Schema(sick, "Partly by law."), epsilon=2.0)
    assert named(three.receipt.worst_case) == {PUBLIC, ANOTHER, BOUGHT}
    given = json.loads((tmp_path / "schema.json").read_text("utf-8"))
    assert constants_of(given).origins == (Origin.FROM_ANOTHER_RELEASE,)


# --- declared facts -------------------------------------------------------------------------------


def test_what_was_declared_is_said_and_no_more(tmp_path: Path) -> None:
    release = private(expected_rows=2137, base_rate=0.4, drop=("dose",), hashed=True)
    words = "Declared: positive: yes; numeric: age; categories: hashed; columns left out: 1; "
    assert f"{words}base rate: 0.4; rows: about 2,000" in release.receipt.meaning
    assert Assumption.DECLARED_FACTS in release.receipt.bound.assumptions
    save_release(release, tmp_path / "release.json")
    shared = (tmp_path / "release.json").read_text("utf-8")
    assert "2137" not in shared
    assert "dose" not in shared  # the name of a column that was left out


def test_bounds_and_classes_of_a_target_are_declared() -> None:
    table = patients().assign(days=lambda one: one["age"] + one["dose"]).drop(columns="sick")
    public = constants_of({"source": "By law.", "age": [18, 98], "dose": [-2, 6]})
    linear = bdpvi.BayesianLinearRegression.of_bounds(0, 100)
    release = flat.private(
        table, target="days", model=linear, epsilon=2.0, constants=public, progress=False
    )
    assert "target bounds: 0, 100" in release.receipt.about
    x, y = patients()[["age", "dose"]], patients()["sick"]
    made = sklearn.PrivateLogisticRegression(
        bounds=(-5, 90), classes=("no", "yes"), base_rate=0.4, expected_rows=3000
    ).fit(x, y)
    assert "Declared: classes: no, yes; base rate: 0.4; rows: about 2,000" in made.guarantee_


def test_how_a_file_is_read_is_declared(tmp_path: Path) -> None:
    patients().to_csv(tmp_path / "a.csv", index=False, sep=";")
    split = split_of_file(
        tmp_path / "a.csv", "sick", separator=";", drop=["dose"], missing="drop", positive="yes"
    )
    assert split.train.preprocessing["declared"] == {
        "positive": "yes", "columns left out": "1", "missing": "drop", "separator": ";",
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:column")
def test_a_synthesis_says_what_was_declared() -> None:
    table = patients().assign(old=lambda one: one["age"] > 50, much=lambda one: one["dose"] > 2)
    either = ColumnType(levels=("True", "False"))
    schema = Schema(
        {"old": either, "much": either, "sick": ColumnType(levels=("yes", "no"))}, "Two."
    )
    settings = Counts(numeric=("age",), also=(("old", "much", "sick"),))
    made = bdpvi.synthesize(table, schema, epsilon=2.0, settings=settings)
    assert made.receipt.declared == {
        "persons": "one row each",
        "kinds by the schema": "old, much, sick",
        "numeric": "age",
        "counted together": "old and much and sick",
    }
    assert Assumption.DECLARED_FACTS in made.receipt.worst_case.assumptions

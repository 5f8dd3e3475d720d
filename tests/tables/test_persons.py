"""Whom ε protects is said before a file is read, and the receipt repeats it."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
from test_cli import run

import bdpvi
from bdpvi.datasets import estimates
from bdpvi.privacy import left
from bdpvi.privacy.accounts import beside
from bdpvi.privacy.book import Book
from bdpvi.privacy.event import Event
from bdpvi.privacy.events import SampledGaussian, Threshold
from bdpvi.privacy.gaussian_dp import gaussian_distance
from bdpvi.regression import ObjectivePerturbation
from bdpvi.releases.persons import check_said
from bdpvi.releases.route import planned
from bdpvi.releases.transaction import Before

COLUMNS = ("--target", "sick", "--positive", "yes", "--epsilon", 2, "--no-scores", "--quiet")
NUMBERS = ("--numeric", "age", "--rows", 3000)


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """Three visits of each of a thousand patients."""
    rng = np.random.default_rng(0)
    age = rng.normal(50, 12, 3000)
    sick = np.where(rng.random(3000) < 1 / (1 + np.exp((50 - age) / 8)), "yes", "no")
    frame = pd.DataFrame({"patient_id": np.repeat(np.arange(1000), 3), "age": age, "sick": sick})
    frame.to_csv(tmp_path / "visits.csv", index=False)
    return tmp_path / "visits.csv"


@pytest.mark.parametrize("command", ["private", "synthesize"])
def test_a_file_is_not_read_before_it_is_said_whose_rows_they_are(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unread = tmp_path / "unread.csv"
    unread.write_bytes(b"\xff\x00 no table")
    given: tuple[object, ...] = (
        "--data",
        unread,
        "--target",
        "sick",
        "--epsilon",
        1,
        "--out",
        tmp_path / "out",
    )
    given += ("--positive", "yes") if command == "private" else ()
    said = []
    for more in ((), ("--rows-per-unit", 3), ("--unit", "who", "--one-row-per-person")):
        assert run(command, *given, *more) == 2
        said.append(capsys.readouterr().err)
    assert "give unit=bdpvi.tables.Unit(COLUMN, k) (--unit COLUMN --rows-per-unit k)" in said[0]
    assert "(--one-row-per-person) if everybody has one row" in said[0]
    assert "rows_per_unit=3 needs unit=" in said[1]
    assert "unit='who' and one_row_per_person=True were both given" in said[2]
    assert [one.name for one in tmp_path.iterdir()] == ["unread.csv"]
    assert run(command, *given, "--one-row-per-person") == 2
    assert "unread.csv" in capsys.readouterr().err  # now it is read, in vain


def test_a_model_for_a_person_with_three_rows(
    visits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default model, with the noise of a person; the constants are estimated for them too."""
    unit = ("--unit", "patient_id", "--rows-per-unit", 3)
    assert run("private", "--data", visits, *COLUMNS, *NUMBERS, *unit, "--out", tmp_path / "a") == 0
    said = capsys.readouterr().out
    assert "to add or remove all records, at most 3, of one person ('patient_id')" in said
    release = bdpvi.load_release(tmp_path / "a" / "release.json")
    assert "patient_id" not in release.feature_names
    assert release.receipt.temperature is None  # not draws from a guide
    total = bdpvi.Ledger.at(beside(visits)).worst_case(1e-5)
    assert total is not None
    assert 1.9 < total.epsilon <= 2.0
    frame = pd.read_csv(visits).drop(columns="patient_id")
    chance = release.predict_mean(frame.drop(columns="sick"))
    assert ((np.asarray(chance) > 0.5) == (frame["sick"] == "yes")).mean() > 0.7


@pytest.mark.filterwarnings("ignore:.*column '")
def test_the_receipt_says_that_a_row_is_a_person(visits: Path) -> None:
    frame = pd.read_csv(visits).drop(columns="patient_id")
    given: dict[str, Any] = {
        "target": "sick",
        "positive": "yes",
        "epsilon": 2.0,
        "numeric": ["age"],
    }
    given |= {"expected_rows": 3000, "progress": False}
    options: dict[str, Any] = {"one_row_per_person": True, "drop": ["patient_id"]}
    tables: list[tuple[Any, dict[str, Any]]] = [(frame, {}), (visits, options)]
    for table, more in tables:
        receipt = flat.private(table, **given, **more).receipt
        assert receipt.bound.neighbours == "add or remove one record"
        assert "persons: one row each" in receipt.meaning
    receipt = flat.private(pd.read_csv(visits), unit="patient_id", rows_per_unit=3, **given).receipt
    assert "one row each" not in receipt.meaning
    made = bdpvi.synthesize(frame, epsilon=2.0)
    assert made.receipt.declared["persons"] == "one row each"


def test_only_the_owner_hears_of_persons_that_repeat(visits: Path) -> None:
    given: dict[str, Any] = {
        "target": "sick",
        "positive": "yes",
        "epsilon": 2.0,
        "numeric": ["age"],
    }
    given |= {"expected_rows": 3000, "progress": False, "drop": ["patient_id"]}
    with pytest.warns(
        UserWarning, match="for the owner only: column 'patient_id' has a value more"
    ):
        release = flat.private(visits, one_row_per_person=True, **given)
    assert "patient_id" not in release.receipt.meaning


def test_public_data_sets_need_neither() -> None:
    check_said("patients.csv", unit="who")
    check_said("patients.csv", one_row_per_person=True)
    check_said(pd.DataFrame())
    check_said(bdpvi.datasets.load_breast_cancer().train)
    with pytest.raises(ValueError, match=r"'patients\.csv' may be of the same persons"):
        check_said(Path("patients.csv"))


def test_a_plan_is_for_the_unit_and_reads_the_header_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = tmp_path / "visits.csv"
    header.write_text("patient_id,age,dose,sick\n")

    def planned(*more: object) -> Any:
        assert (
            run("private", "--data", header, *COLUMNS, "--out", "m", "--plan", "--json", *more) == 0
        )
        return json.loads(capsys.readouterr().out)

    one = planned("--drop", "patient_id")
    person = planned("--unit", "patient_id", "--rows-per-unit", 4)
    assert set(person["bought"]) == set(one["bought"]) == {"age", "dose"}
    assert (person["unit"], person["rows_per_unit"]) == ("patient_id", 4)
    assert person["records_needed"] == pytest.approx(4 * one["records_needed"], rel=0.01)
    for more, words in (
        (("--unit", "who"), "unit='who' must be a column of the table once, there are 0"),
        (("--rows-per-unit", 4), "rows_per_unit=4 needs unit="),
    ):
        assert run("private", "--data", header, *COLUMNS, "--out", "m", "--plan", *more) == 2
        assert words in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["visits.csv"]


@pytest.mark.parametrize("epsilon", [1.0, 20.0])
@pytest.mark.parametrize("rows", [2, 10])
@pytest.mark.parametrize("columns", [3, 40])
def test_bought_constants_leave_a_price_for_the_model(
    columns: int, rows: int, epsilon: float
) -> None:
    """One row's δ is tiny if ε and its person's rows are many: rounding must not use it up."""
    purchase = estimates.Purchase.of([*map(str, range(columns)), "sick"], target="sick")
    share = gaussian_distance(epsilon, 0.9e-5) / rows * math.sqrt(estimates.SHARE)
    counts, others = (share * math.sqrt(one) for one in (estimates.COUNTS, 1 - estimates.COUNTS))
    events: list[Event] = [
        SampledGaussian(
            noise_multiplier=1 / counts, rounding=estimates.count_rounding(purchase, counts)
        ),
        SampledGaussian(
            noise_multiplier=1 / others, rounding=rows * estimates.rounding(purchase, others, rows)
        ),
        Threshold(1e-6),
    ]
    book = Book("a", unit="who", rows=rows, events=Counter(events))
    route = ObjectivePerturbation(sources=columns).of_rows(400)
    model = bdpvi.BayesianLogisticRegression.unweighted(intercept=True)
    made = planned(route, model, columns, Before(book), epsilon, 1e-5)
    assert 0.99 * epsilon < left.total(book, 1e-5, *made.events) <= epsilon

"""``bdpvi private`` for several classes and for counts that noisy scores have nothing for."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
import torch
from test_cli import run

from bdpvi import (
    DPVI,
    BayesianMultinomialRegression,
    BayesianNegativeBinomialRegression,
    BayesianOrdinalRegression,
    BayesianPoissonRegression,
    Dataset,
)
from bdpvi._ground.schema import from_json, to_json
from bdpvi.datasets import constants_of
from bdpvi.noise.keys import Key
from bdpvi.privacy.entry import Entry
from bdpvi.privacy.event import for_unit
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.worst_case import epsilon as worst_case
from bdpvi.releases.route import planned
from bdpvi.releases.transaction import Before, Transaction
from bdpvi.tables import Request
from bdpvi.tables.prepared import Prepared
from bdpvi.tables.rows import Encoded
from bdpvi.tables.setup import Setup, setup
from bdpvi.tables.work import Work

ROWS, SPREAD = 8_000, 17.3
GRADES = ("mild", "moderate", "severe")
PUBLIC = constants_of({"source": "By law.", "age": [20, 80], "smoker": ["no", "yes"]})
CLASSES = tuple(part for grade in GRADES for part in ("--classes", grade))
OPTIONS: dict[str, tuple[Any, ...]] = {
    "multinomial": ("--target", "grade", *CLASSES, "--drop", "visits", "--drop", "years"),
    "ordinal": ("--target", "grade", *CLASSES, "--drop", "visits", "--drop", "years"),
    "negative-binomial": (
        *("--target", "visits", "--largest", 40, "--exposure", "years", "--drop", "grade"),
    ),
}


def people(rows: int = ROWS) -> pd.DataFrame:
    """Return people's grades, and their visits in some years, with blanks among them."""
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 80, rows)
    z = (age - 50) / SPREAD
    smokes = rng.random(rows) < 0.3
    latent = 1.2 * z + 0.9 * smokes + rng.logistic(size=rows)
    grade = np.select([latent < -1, latent < 1], GRADES[:2], GRADES[2])
    years = rng.uniform(0.5, 4, rows).round(3)
    visits = rng.poisson(years * np.exp(0.5 * z + 0.9 * smokes) * rng.gamma(2, 0.5, rows))
    smoker = np.where(smokes, "yes", "no")
    frame = pd.DataFrame(
        {"age": age, "smoker": smoker, "grade": grade, "years": years, "visits": visits}
    )
    frame = frame.astype(object)
    frame.loc[0, "grade"], frame.loc[1, "grade"] = "", "unknown"
    frame.loc[2, "years"], frame.loc[3, "years"], frame.loc[4, "visits"] = 0, None, -1
    return frame


@pytest.mark.parametrize("name", OPTIONS)
def test_one_command_trains_predicts_and_summarises(
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = count()  # of a column that is always 0, one run in 100 takes noise for a slope
    monkeypatch.setattr(Key, "fresh", classmethod(lambda cls: Key.of_seed(next(numbers))))
    shorter(monkeypatch, 600)
    table, out = tmp_path / "people.csv", tmp_path / "shared"
    people().to_csv(table, index=False)
    given = ("--model", name, *OPTIONS[name], "--epsilon", 2, "--out", out, "--quiet")
    assert run("private", "--one-row-per-person", "--data", table, *given) == 0
    said = capsys.readouterr().out
    assert "worst-case DP ε = 2 (target)" in said
    assert "dominated by privacy noise" in said  # no age is missing
    total = Ledger.at(table.with_name("people.csv.ledger.jsonl")).worst_case(1e-5)
    assert total is not None
    assert 0.98 * 2 < total.epsilon <= 2
    assert run("summary", out / "release.json", "--json") == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)["coefficients"]}
    if name != "multinomial":
        no, yes = found["smoker=no"], found["smoker=yes"]
        assert {no["note"], yes["note"]} == {"base level", ""}
        assert abs(yes["mean"] - no["mean"] - 0.9) < min(
            0.3, 4 * max(one["sd"] or 0.0 for one in (no, yes))
        )
    assert run("predict", out / "release.json", "--data", table, "--json") == 0
    predicted = json.loads(capsys.readouterr().out)
    frame = people()
    if name == "negative-binomial":
        row, expected = found["age"], np.array(predicted["expected"], dtype=float)
        assert abs(SPREAD * row["mean"] - 0.5) < 0.15 > 4 * SPREAD * row["sd"]
        assert np.corrcoef(expected[5:], frame["visits"][5:].astype(float))[0, 1] > 0.5
        return
    chances = np.array([predicted[f"probability of {grade}"] for grade in GRADES])
    np.testing.assert_allclose(chances.sum(0), 1.0)
    likeliest = np.array(GRADES)[chances.argmax(0)]
    assert (likeliest == predicted["class"]).all()
    assert (likeliest == frame["grade"]).mean() > 0.5
    if name == "multinomial":
        assert {f"age[{grade}]" for grade in GRADES[1:]} < set(found)
        assert "age[mild]" not in found  # the others are compared with it
    else:
        assert abs(SPREAD * found["age"]["mean"] - 1.2) < 0.3  # coefficients are per year


def of_grades(frame: pd.DataFrame, **options: Any) -> Work:
    given = {"target": "grade", "model": BayesianOrdinalRegression(classes=3), "classes": GRADES}
    return flat.work(frame, drop=["visits", "years"], epsilon=1.0, **{**given, **options})


def of_visits(frame: pd.DataFrame, **options: Any) -> Work:
    given = {"target": "visits", "model": BayesianNegativeBinomialRegression(largest=40)}
    return flat.work(frame, drop=["grade"], epsilon=1.0, exposure="years", **{**given, **options})


def encoded(work: Work) -> tuple[Dataset, Encoded | None]:
    """Return all records, and how they were encoded."""
    data, found = work.dataset(Transaction(work.ledger, Key.of_seed(0)), work.whole)
    assert isinstance(data, Dataset)
    return data, found


def test_rows_are_left_out_each_by_itself() -> None:
    frame = people(50)
    for work, gone in ((of_grades, [0, 1]), (of_visits, [2, 3, 4])):
        whole, _ = encoded(work(frame, constants=PUBLIC))
        kept = frame.drop(index=gone)
        assert len(whole) == len(kept)
        less, _ = encoded(work(frame.drop(index=20), constants=PUBLIC))
        others = torch.tensor(kept.index.to_numpy() != 20)
        assert torch.equal(whole.x[others], less.x)
        assert torch.equal(whole.y[others], less.y)
    grades, _ = encoded(of_grades(frame, constants=PUBLIC))
    assert [GRADES[int(one)] for one in grades.y] == [*frame["grade"][2:]]


def test_the_exposure_is_used_as_it_is_and_costs_nothing() -> None:
    frame = people(50)
    work = of_visits(frame, constants=PUBLIC, expected_rows=50)
    data, found = encoded(work)
    recipe = setup(work.asked, found)
    assert found is not None
    assert not found.paid
    assert isinstance(recipe.model, BayesianNegativeBinomialRegression)
    assert recipe.model.exposure is not None
    years = data.x[:, recipe.model.exposure]
    assert years.tolist() == frame["years"].drop(index=[2, 3, 4]).astype(float).tolist()


def test_the_model_knows_the_levels_of_categories() -> None:
    frame = people(50)
    for of in (of_grades, of_visits):
        work = of(frame, constants=PUBLIC, expected_rows=50)
        data, found = encoded(work)
        model: Any = setup(work.asked, found).model
        (levels,) = model.levels
        names = [data.feature_names[at] for at in levels]
        assert names == ["smoker=no", "smoker=yes", "smoker=other", "smoker is missing"]
        assert (data.x[:, levels].sum(1) == 1).all()
        assert from_json(type(model), to_json(model)) == model
        plain: Any = work.asked.model
        with pytest.raises(ValueError, match="column numbers are assigned during encoding"):
            of(frame, constants=PUBLIC, model=replace(plain, levels=((0,),)))
        with pytest.raises(ValueError, match="levels must hold column numbers"):
            replace(plain, levels=((1, 1),))
        with pytest.raises(ValueError, match=r"levels=.*: column 3 has no weight"):
            replace(model, levels=((0, 3),)).identified(3)


def test_the_route_that_suits_the_model_is_taken() -> None:
    for work in (of_grades(people(9)), of_visits(people(9))):
        assert isinstance(setup(work.asked).route, DPVI)
    counts: dict[str, Any] = {
        "target": "visits",
        "epsilon": 1.0,
        "model": BayesianPoissonRegression(largest=9),
    }
    assert not isinstance(setup(flat.request(**counts)).route, DPVI)
    exposed = setup(flat.request(**counts, exposure="years"))
    assert isinstance(exposed.route, DPVI)


@pytest.mark.parametrize(
    "given", [{"expected_rows": 8_000}, pytest.param({}, marks=pytest.mark.slow)]
)
def test_all_rows_of_a_person_are_under_epsilon(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shorter(monkeypatch, 200)
    frame = people()[["age", "smoker", "grade"]].assign(who=np.arange(ROWS) // 3)
    ledger = Ledger(unit="who", rows_per_unit=2)
    release = flat.private(
        frame,
        target="grade",
        model=BayesianOrdinalRegression(classes=3),
        classes=GRADES,
        epsilon=4.0,
        constants=PUBLIC,
        unit="who",
        rows_per_unit=2,
        ledger=ledger,
        progress=False,
        **given,
    )
    assert release.receipt.worst_case is not None
    assert release.receipt.worst_case.unit == ledger.book().whose
    total = ledger.worst_case(1e-5)
    assert total is not None
    assert 0.98 * 4 < total.epsilon <= 4
    assert bool(given) == any(e.rate < 1 for e in steps_of(ledger))
    age = release.encoding.feature_names.index("age") if release.encoding else 0
    assert release.latents["w"][:, age].mean() > 0.6


def test_steps_are_within_their_price_for_the_ledger_that_is_charged() -> None:
    """Its unit may be settled after the route has seen the data."""
    ledger = Ledger()
    x = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    data = Dataset(x, torch.arange(300) % 3)
    model = BayesianOrdinalRegression(classes=3)
    prepared = Prepared.of(model, data, DPVI(rows=20_000, steps=100), ledger=ledger)
    ledger.settle(unit="who", rows_per_unit=3)
    ledger.charge(Entry(kind="release", events=(SampledGaussian(noise_multiplier=30.0),)))
    plan = planned(prepared.route, model, 2, Before(ledger.book()), 1.0, 1e-5)
    asked = (dict.fromkeys(plan.events, 1), {plan.actual_event: 1})
    price, steps = (worst_case(for_unit(events, 3), 1e-5) for events in asked)
    assert price is not None
    assert steps is not None
    assert plan.actual_event.rate < 1
    assert steps.epsilon <= price.epsilon


def steps_of(ledger: Ledger) -> list[SampledGaussian]:
    return [one for one in ledger.book().events or () if isinstance(one, SampledGaussian)]


def shorter(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Let the command train for fewer steps than by default."""

    def with_steps(asked: Request, found: Encoded | None = None) -> Setup:
        chosen = setup(asked, found)
        assert isinstance(chosen.route, DPVI)
        return chosen.training(steps=steps)

    monkeypatch.setattr("bdpvi.tables.work.setup", with_steps)


def test_encoded_records_have_their_classes_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    shorter(monkeypatch, 20)
    x = torch.randn(40, 2, dtype=torch.float64)
    data = Dataset(x, torch.arange(40.0) % 3)
    model = BayesianMultinomialRegression(classes=3)
    release = flat.private(data, epsilon=1.0, model=model, expected_rows=40)
    assert release.predict_proba(x).shape == (40, 3)
    with pytest.raises(ValueError, match="exposure: for encoded records"):
        flat.private(data, epsilon=1.0, model=model, exposure="years")

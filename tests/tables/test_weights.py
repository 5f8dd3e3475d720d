"""Weights of rows: from a column of a table or an array to the release and its receipt."""

from __future__ import annotations

import dataclasses
import secrets
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
import torch
from test_cli import run

import bdpvi
from bdpvi import Dataset, Ledger
from bdpvi.bayesian.gated.route import PosteriorDraws
from bdpvi.datasets import constants_of
from bdpvi.datasets.weights import shares_of
from bdpvi.noise.keys import Key
from bdpvi.regression import NoisyScores, ObjectivePerturbation
from bdpvi.releases.transaction import Transaction

CONSTANTS = constants_of({"source": "By law.", "age": [-2, 2]})
ODD = ["", "-1", "much", "inf"]


def survey(rows: int = 6_000) -> pd.DataFrame:
    """Return rows of which those with 1 stand for themselves, those with 0 for four."""
    rng = np.random.default_rng(0)
    age = rng.normal(size=4 * rows)
    sick = rng.random(4 * rows) < 1 / (1 + np.exp(-age))
    weight = np.where(sick, 1.0, 4.0)
    frame = pd.DataFrame({"age": age, "sick": np.where(sick, "yes", "no"), "w": weight})
    frame["days"] = rng.poisson(np.exp(age / 2))
    frame["score"] = age + rng.normal(size=4 * rows)
    kept = rng.random(4 * rows) < 1 / weight
    return frame[kept][:rows].reset_index(drop=True)


def private(table: Any, **more: Any) -> bdpvi.Release:
    given: dict[str, Any] = {"epsilon": 5.0, "target": "sick", "constants": CONSTANTS}
    given |= {"weights": "w", "largest_weight": 4.0, "ledger": Ledger(), "positive": "yes"}
    drop = [one for one in ("sick", "days", "score") if one != more.get("target", "sick")]
    return flat.private(table, one_row_per_person=True, progress=False, drop=drop, **(given | more))


@pytest.mark.parametrize("intervals", [False, True])
def test_weights_undo_the_drawing_of_the_rows(intervals: bool) -> None:
    found = private(survey(), intervals=intervals)
    assert found.feature_names[0] == "age"
    assert not any("w" in name.split() for name in found.feature_names)
    half = found.predict_proba([[0.0] * len(found.feature_names)])[0, 1]
    assert float(half) == pytest.approx(0.5, abs=0.04)
    said = str(found.receipt.about)
    assert "weights: w, of which more than 4 counts as 4" in said
    assert ("intervals are design-based" in str(found.summary())) == intervals
    table = survey().drop(columns="w")
    plain = private(table, intervals=intervals, weights="", largest_weight=None)
    away = plain.predict_proba([[0.0] * len(plain.feature_names)])
    assert float(away[0, 1]) == pytest.approx(0.8, abs=0.1)


@pytest.mark.parametrize(
    ("target", "model"),
    [
        ("days", bdpvi.BayesianPoissonRegression(largest=20)),
        ("score", bdpvi.BayesianLinearRegression.of_bounds(-6, 6)),
    ],
)
def test_other_models_take_weights_too(target: str, model: Any) -> None:
    table = survey()
    found = private(table, target=target, model=model, positive=None, draws=200)
    weighted = np.average(table[target], weights=table["w"])
    x = torch.zeros(len(table), len(found.feature_names), dtype=torch.float64)
    x[:, 0] = torch.tensor(table["age"])
    mean = found.predict_mean(x)
    assert float(np.average(mean, weights=table["w"])) == pytest.approx(weighted, abs=0.06)
    assert abs(table[target].mean() - weighted) > 0.12


def test_no_weight_counts_more_than_once() -> None:
    given = torch.tensor([0.0, 1.0, 4.0, 4.01, 1e300, -0.5, torch.nan], dtype=torch.float64)
    assert shares_of(given, 4.0)[:5].tolist() == [0.0, 0.25, 1.0, 1.0, 1.0]
    assert shares_of(given, 4.0)[5:].isnan().all()
    data = Dataset(torch.zeros(2, 1), torch.zeros(2), weights=torch.tensor([0.5, 3.0]))
    assert data.parts.part[2].tolist() == [0.5, 1.0]


def test_rows_without_a_weight_are_left_out_and_the_owner_hears_of_it() -> None:
    table = survey(500).astype({"w": object})
    table.loc[: len(ODD) - 1, "w"] = ODD
    with pytest.warns(bdpvi.PrivacyUtilityWarning, match=r"4 rows left out: .* a weight is blank"):
        private(table)


def test_blocks_have_the_release_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transaction, "_key", lambda work, _, one: Key(bytes(32)).child(one.purpose))
    monkeypatch.setattr(secrets, "token_hex", lambda size: "0f" * size)
    table = survey(3_000)
    table.to_csv(tmp_path / "all.csv", index=False)
    (tmp_path / "parts").mkdir()
    for at in range(3):
        part = table[1_000 * at : 1_000 * (at + 1)]
        part.to_csv(tmp_path / "parts" / f"{at}.csv", index=False)
    for intervals in (False, True):
        whole, parts = (
            private(tmp_path / name, intervals=intervals) for name in ("all.csv", "parts")
        )
        torch.testing.assert_close(whole.samples, parts.samples, rtol=0, atol=1e-6)
        assert whole.receipt == parts.receipt


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"largest_weight": None}, "need a public bound, largest_weight="),
        ({"weights": ""}, "largest_weight=4.0: it bounds weights, and none are given"),
        ({"largest_weight": 0.0}, "largest_weight must be finite and positive"),
        ({"weights": "v"}, "weights='v' must be a column.*the columns are age, sick, w, days"),
        ({"weights": "sick"}, "weights='sick' must be a column"),
        ({"weights": "age"}, "weights='age' must be a column"),
        ({"draws": PosteriorDraws()}, "weights='w': none go with draws=PosteriorDraws"),
        ({"from_data": True, "constants": None}, "none go with from_data=True"),
        ({"guarantee": bdpvi.BayesianDP()}, "none go with guarantee=BayesianDP"),
        (
            {"model": bdpvi.BayesianMultinomialRegression(classes=2), "classes": ("no", "yes"),
             "positive": None},
            "none go with model=BayesianMultinomialRegression.*Logistic regression by objective",
        ),
        ({"target": "sick ~ age + w"}, "weights='w' must be a column"),
    ],
)  # fmt: skip
def test_where_weights_would_be_ignored_they_are_refused_uncharged(
    changed: dict[str, Any], message: str
) -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match=message):
        private(survey(200), ledger=ledger, **changed)
    assert ledger.entries() == ()


def records(rows: int = 4_000) -> Dataset:
    table = survey(rows)
    w = table["w"].to_numpy().copy()
    w[:2] = -1.0, np.nan
    x, y = table[["age"]].to_numpy(), (table["sick"] == "yes").to_numpy()
    return Dataset.of(x, y, weights=w * 2, largest_weight=8.0)


@pytest.mark.parametrize("route", [ObjectivePerturbation(rows=4e3), NoisyScores(rows=4e3)])
def test_encoded_records_carry_theirs(route: Any) -> None:
    with pytest.warns(bdpvi.PrivacyUtilityWarning, match="2 records left out"):
        data = records()
    assert data.weights is not None
    assert set(data.weights.tolist()) == {0.25, 1.0}
    assert data.select(torch.tensor([3])).weights is not None
    assert data.fingerprint() != dataclasses.replace(data, weights=None).fingerprint()
    model = bdpvi.BayesianLogisticRegression.unweighted(intercept=True, prior_scale=5.0)
    found = bdpvi.fit_private(model, data, epsilon=5.0, route=route)
    assert float(found.predict_proba([[0.0]])[0, 1]) == pytest.approx(0.5, abs=0.06)
    assert "weights: weights, of which more than 8 counts as 8" in found.receipt.about


@pytest.mark.filterwarnings("ignore:for the owner only")
@pytest.mark.parametrize("intervals", [False, True])
def test_private_takes_encoded_records_with_weights(intervals: bool) -> None:
    found = bdpvi.private(records(), epsilon=5.0, intervals=intervals)
    assert float(found.predict_proba([[0.0]])[0, 1]) == pytest.approx(0.5, abs=0.06)
    public = bdpvi.tables.Public(weights="w", largest_weight=4.0)
    with pytest.raises(ValueError, match="give encoded records theirs"):
        bdpvi.private(records(), epsilon=1.0, public=public)


@pytest.mark.filterwarnings("ignore:for the owner only")
def test_what_ignores_weights_refuses_such_records() -> None:
    data, model = records(200), bdpvi.BayesianLogisticRegression(intercept=True)
    for call in (
        lambda: bdpvi.fit(model, bdpvi.guides.Laplace(model), data),
        lambda: bdpvi.fit_private(model, data, epsilon=1.0, route=bdpvi.DPVI()),
        lambda: bdpvi.fit_private(model, data, epsilon=1.0, guarantee=bdpvi.BayesianDP()),
        lambda: bdpvi.private(data, epsilon=1.0, draws=PosteriorDraws()),
    ):
        with pytest.raises(ValueError, match=r"weights.*Logistic regression by objective"):
            call()


def test_the_command_takes_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    survey(4_000).to_csv(tmp_path / "people.csv", index=False)
    given = ["private", "--data", tmp_path / "people.csv", "--one-row-per-person", "--target"]
    given += ["sick", "--positive", "yes", "--epsilon", 5, "--numeric", "age", "--drop", "days"]
    given += ["--drop", "score", "--out", tmp_path / "shared", "--weights", "w"]
    assert run(*given) == 2
    assert "largest_weight= (--largest-weight)" in capsys.readouterr().err
    assert run(*given, "--largest-weight", 4) == 0
    said = capsys.readouterr().out
    assert "weights: w, of which more than 4 counts as 4" in said
    assert "scores" not in said

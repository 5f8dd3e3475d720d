"""Estimators for persons with several rows, and public weights of classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import bdpvi
from bdpvi.privacy.ledger import Ledger
from bdpvi.sklearn import (
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivatePoissonRegressor,
)
from bdpvi.sklearn.inputs import read

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6000, 2))
Y = (RNG.random(6000) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)
WHO = np.repeat(np.arange(2000), 3)
PUBLIC: dict[str, Any] = {"scales": (0.0, 1.0), "classes": (0, 1), "expected_rows": 6000}
THREE: dict[str, Any] = {**PUBLIC, "classes": (0, 1, 2)}


def test_epsilon_is_for_all_rows_of_a_person(tmp_path: Any) -> None:
    given: dict[str, Any] = {"rows_per_unit": 2, "ledger": str(tmp_path / "people.jsonl")}
    model = PrivateLogisticRegression(**PUBLIC, **given)
    model.fit(X, Y, unit=pd.Series(WHO, name="patient"))
    assert model.bound_.unit == "all records, at most 2, of one person ('patient')"
    assert model.score(X, Y) > 0.6
    ledger = Ledger(tmp_path / "people.jsonl")
    assert (ledger.unit, ledger.rows_per_unit) == ("patient", 2)
    total = ledger.worst_case(1e-5)
    assert total is not None
    assert 0.99 < total.epsilon <= 1.0
    with pytest.raises(ValueError, match="need a ledger of their own"):
        PrivateLogisticRegression(**PUBLIC, ledger=given["ledger"]).fit(X, Y)


@pytest.mark.filterwarnings("ignore::bdpvi.PrivacyUtilityWarning")
@pytest.mark.parametrize("other", ["a name", 0.5, None])
def test_no_row_changes_the_names_of_other_persons(other: Any) -> None:
    """An array of one type would make 7 and 7.0 two persons, or two long numbers one."""
    model, long = PrivateLogisticRegression(**PUBLIC), 900_719_925_474_099_301
    rows, _ = read(model, X[:5], Y[:5], [7, 7.0, long, long + 1, other])
    assert len(rows) == 3 + (other is not None)


@pytest.mark.parametrize(
    "model",
    [
        PrivateLinearRegression(3.0, scales=(0.0, 1.0), target_bounds=(-5, 5), rows_per_unit=3),
        PrivatePoissonRegressor(3.0, scales=(0.0, 1.0), largest=5, rows_per_unit=3),
        PrivateLogisticRegression(3.0, **PUBLIC, intervals=True, rows_per_unit=3),
        PrivateLogisticRegression(8.0, classes=(0, 1), rows_per_unit=3),
        PrivateLogisticRegression(8.0, **THREE, rows_per_unit=3),
        pytest.param(
            PrivateLogisticRegression(8.0, classes=(0, 1, 2), rows_per_unit=3),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_estimator_takes_persons(model: Any, tmp_path: Any) -> None:
    model = clone(model).set_params(ledger=str(tmp_path / "people.jsonl"))
    model.fit(X, Y, unit=WHO)
    assert model.bound_.unit == "all records, at most 3, of one person ('unit')"
    assert np.isfinite(model.coef_).all()
    if len(model.coef_) < 3:  # the noise of three classes may hide the sign
        assert np.ravel(model.coef_)[0] > 0
    spent = Ledger(tmp_path / "people.jsonl").worst_case(1e-5)
    assert spent is not None
    assert 0.97 * model.epsilon < spent.epsilon <= model.epsilon


def test_persons_go_through_a_pipeline_and_a_search() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        model = PrivateLogisticRegression(**PUBLIC, rows_per_unit=3).set_fit_request(unit=True)
        made = make_pipeline(FunctionTransformer(), model).fit(X, Y, unit=WHO)
        assert "of one person" in made[-1].guarantee_
        assert len(cross_val_score(model, X, Y, params={"unit": WHO}, cv=2)) == 2


def test_what_does_not_go_together_is_refused() -> None:
    for given, fitted, message in (
        ({"rows_per_unit": 2}, {}, "rows_per_unit=2 needs the person of each row"),
        ({"rows_per_unit": 0}, {"unit": WHO}, "rows_per_unit"),
        ({"guarantee": bdpvi.BayesianDP()}, {"unit": WHO}, "covers one row; leave unit or"),
        ({}, {"unit": WHO[:5]}, "inconsistent numbers"),
        ({"class_weight": "balanced"}, {}, "what is computed from y is not covered by epsilon"),
        ({"class_weight": {2: 1.0}}, {}, "class_weight: 2 is not one of"),
        ({"class_weight": {0: 0.0}}, {}, "class_weight must be"),
        ({"class_weight": {0: 2.0}, "intervals": True}, {}, "is for the default release"),
        ({"largest_weight": 2.0}, {}, "it bounds weights, and none are given"),
        ({"largest_weight": 2.0}, {"sample_weight": WHO[:5]}, "inconsistent numbers"),
        (
            {"largest_weight": 2.0, "guarantee": bdpvi.BayesianDP()},
            {"sample_weight": WHO},
            "none go with guarantee",
        ),
        (
            {"largest_weight": 2.0, "classes": (0, 1, 2)},
            {"sample_weight": WHO},
            "largest_weight=2.0 is for two classes",
        ),
    ):
        options: Any = {**PUBLIC, **given}
        with pytest.raises(ValueError, match=message):
            PrivateLogisticRegression(**options).fit(X, Y, **fitted)


def test_class_weights_move_the_model_as_without_privacy_at_no_price() -> None:
    weights = {0: 1.0, 1: 4.0}
    model = PrivateLogisticRegression(20.0, **PUBLIC, class_weight=weights).fit(X, Y)
    plain = LogisticRegression(class_weight=weights, C=1e6).fit(X, Y)
    assert model.intercept_ == pytest.approx(plain.intercept_, abs=0.25)
    assert model.coef_ == pytest.approx(plain.coef_, abs=0.25)
    assert "class weights: 0: 1, 1: 4" in model.guarantee_
    unweighted = PrivateLogisticRegression(20.0, **PUBLIC).fit(X, Y)
    assert model.intercept_[0] - unweighted.intercept_[0] == pytest.approx(np.log(4), abs=0.3)
    assert model.bound_.epsilon == unweighted.bound_.epsilon == 20.0


def test_weights_of_three_classes_move_the_model_as_without_privacy_at_no_price(
    tmp_path: Any,
) -> None:
    scores = X @ [[2.0, 0.0, -1.0], [0.0, 1.5, -1.5]] + [0.0, 0.0, 1.0]
    y = (scores + np.random.default_rng(1).gumbel(size=scores.shape)).argmax(1)
    weights, ledger = {0: 1.0, 2: 4.0}, str(tmp_path / "people.jsonl")
    made = [
        PrivateLogisticRegression(20.0, **THREE, draws=50, ledger=ledger, class_weight=one)
        for one in (weights, {0: 2.0, 1: 2.0, 2: 8.0})
    ]
    plain = LogisticRegression(class_weight={**weights, 1: 1.0}, C=1e6).fit(X, y)
    for model in made:
        (tmp_path / "people.jsonl").unlink(missing_ok=True)
        (tmp_path / "people.jsonl.head").unlink(missing_ok=True)
        model.fit(X, y)
        intercept = model.intercept_ - model.intercept_.mean()
        assert intercept == pytest.approx(plain.intercept_, abs=0.2)
        coef = model.coef_ - model.coef_.mean(axis=0)
        assert coef == pytest.approx(plain.coef_, abs=0.2)
        assert model.bound_.epsilon == 20.0
        spent = Ledger(ledger).worst_case(1e-5)
        assert spent is not None
        assert 19.5 < spent.epsilon <= 20.0
    assert "class weights: 0: 1, 2: 4" in made[0].guarantee_
    with pytest.raises(ValueError, match="what is computed from y is not covered by epsilon"):
        PrivateLogisticRegression(**{**THREE, "class_weight": "balanced"}).fit(X, y)
    with pytest.raises(ValueError, match="class_weights must have one number for each of 3"):
        bdpvi.BayesianMultinomialRegression(classes=3, class_weights=(1.0, 2.0))


def test_no_weight_exceeds_that_of_the_bound() -> None:
    """ω‖z‖ ≤ C and ω‖z‖² ≤ the bound for records of either class, however weighted."""
    import torch

    from bdpvi.regression import ObjectivePerturbation
    from bdpvi.regression.perturbed_objective import Signed
    from bdpvi.releases.route import Allowance

    route = ObjectivePerturbation(rows=6000, class_weights=(10.0, 0.1))
    logistic = bdpvi.BayesianLogisticRegression.unweighted(intercept=True, limit=2.0)
    plan = route.plan(logistic, 2, Allowance(1.0, 1e-5, 0.0))
    x, y = torch.from_numpy(100 * X), torch.from_numpy(Y).double()
    made = Signed.of(plan, x, y)
    norms = torch.linalg.vector_norm(made.signed, dim=1)
    assert float((made.weights * norms).max()) <= plan.clip
    assert float((made.weights * norms**2).max()) <= plan.bend * plan.clip**2
    plain = Signed.of(
        ObjectivePerturbation(rows=6000).plan(logistic, 2, Allowance(1.0, 1e-5, 0.0)), x, y
    )
    ratio = made.weights / plain.weights
    assert torch.allclose(ratio[y == 0], torch.ones(()).double())
    assert torch.allclose(ratio[y == 1], torch.full((), 0.01).double())


@pytest.mark.filterwarnings("ignore:for the owner only")
@pytest.mark.parametrize("private_scales", [False, True])
@pytest.mark.parametrize(
    ("model", "link"),
    [
        (PrivateLogisticRegression(5.0, classes=(0, 1), largest_weight=3.0), "logit"),
        (
            PrivateLogisticRegression(
                5.0, classes=(0, 1), largest_weight=3.0, intervals=True, expected_rows=6000
            ),
            "logit",
        ),
        (PrivateLinearRegression(5.0, target_bounds=(-5, 5), largest_weight=3.0), "identity"),
        (PrivatePoissonRegressor(5.0, largest=8, largest_weight=3.0), "log"),
    ],
)
def test_weights_of_rows_move_every_estimator(model: Any, link: str, private_scales: bool) -> None:
    """Rows of weight 0 follow another law, so without their weights all slopes would be near 0."""
    rng = np.random.default_rng(5)
    slope = np.where(np.arange(6000) % 2, 1.0, -1.0)
    eta = slope * X[:, 0]
    y = {
        "logit": (rng.random(6000) < 1 / (1 + np.exp(-eta))).astype(int),
        "identity": eta + rng.normal(size=6000),
        "log": rng.poisson(np.exp(0.5 * eta)),
    }[link]
    weights = np.where(slope > 0, 3.5, 0.0)
    weights[[1, 3]] = np.nan, -1.0
    model = clone(model).set_params(scales=None if private_scales else (0.0, 1.0))
    model.fit(X, y, sample_weight=weights)
    expected = 0.5 if link == "log" else 1.0
    assert np.ravel(model.coef_)[0] == pytest.approx(expected, abs=0.2)
    assert (
        "weights: sample_weight, of which more than 3 counts as 3" in model.release_.receipt.about
    )

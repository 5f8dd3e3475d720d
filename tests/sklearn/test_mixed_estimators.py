"""Mixed models as estimators: groups as features, groups as records, predictions, refusals."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from bdpvi.sklearn import (
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivatePoissonRegressor,
)

pytestmark = pytest.mark.filterwarnings("ignore::bdpvi.sklearn.PrivacyLeakWarning")
SLOPE, TAU = 0.03, 0.8
LINEAR = PrivateLinearRegression(
    epsilon=3.0, bounds=(20, 80), target_bounds=(4, 16), group="clinic"
)
LOGISTIC = PrivateLogisticRegression(
    epsilon=3.0, bounds=(20, 80), classes=("no", "yes"), group="clinic", rows_per_unit=8, draws=500
)
COUNTS = PrivatePoissonRegressor(
    epsilon=3.0, bounds=(20, 80), largest=20, group="clinic", rows_per_unit=8
)


def table(groups: int, rows: int) -> tuple[pd.DataFrame, dict[str, Any], Any]:
    """Return X, targets by name, and the effects of clinics."""
    r = np.random.default_rng(0)
    clinic = np.repeat(np.arange(groups), rows)
    age, effects = r.uniform(20, 80, len(clinic)), TAU * r.normal(size=groups)
    eta = SLOPE * (age - 50) + effects[clinic]
    targets = {
        "number": 10 + eta + r.normal(size=len(clinic)),
        "count": r.poisson(np.exp(eta)),
        "sick": np.where(r.random(len(clinic)) < 1 / (1 + np.exp(-eta)), "yes", "no"),
    }
    names = [f"c{one:04d}" for one in clinic]
    return pd.DataFrame({"age": age, "clinic": names}), targets, effects


def test_groups_that_are_features_have_effects_and_unknown_ones_none() -> None:
    X, targets, effects = table(30, 600)
    pipeline = make_pipeline(FunctionTransformer(), LINEAR)
    made = clone(pipeline).set_params(privatelinearregression__random_state=0)
    made.fit(X, targets["number"])
    model = pickle.loads(pickle.dumps(made[-1]))
    assert model.get_params() == LINEAR.get_params() | {"random_state": 0}
    assert model.feature_names_in_.tolist() == ["age", "clinic"]
    low, high = model.coef_interval_[0]
    assert low < SLOPE < high
    assert high - low < 0.01
    assert model.coef_[0] == pytest.approx((low + high) / 2, rel=0.05)
    assert model.tau_interval_[0] < model.tau_ < model.tau_interval_[1]
    assert model.tau_ == pytest.approx(effects.std(), abs=0.15)
    assert model.tau_measured_
    of_clinic = dict(zip([f"c{one:04d}" for one in range(30)], effects, strict=True))
    frame = model.effects_.assign(true=model.effects_.index.map(of_clinic)).dropna()
    assert len(frame) >= 28
    assert np.corrcoef(frame["mean"], frame["true"])[0, 1] > 0.95
    known, unknown = frame.index[0], "nowhere"
    rows = pd.DataFrame({"age": [50.0, 50.0, 60.0], "clinic": [known, unknown, unknown]})
    found = made.predict(rows)
    assert found[0] - found[1] == pytest.approx(frame["mean"].iloc[0], abs=0.1)
    assert found[2] - found[1] == pytest.approx(10 * model.coef_[0], abs=0.02)
    assert found[1] == pytest.approx(model.intercept_ + 50 * model.coef_[0], abs=0.1)
    assert made.score(X, targets["number"]) > 0.4


@pytest.mark.parametrize(
    ("model", "target"), [(LOGISTIC, "sick"), (COUNTS, "count")], ids=["logistic", "poisson"]
)
def test_groups_that_are_records_cost_one_record(model: Any, target: str) -> None:
    X, targets, effects = table(1500, 8)
    made = clone(model).set_params(rows_per_unit=8, random_state=0)
    made.fit(X, targets[target], unit="clinic")
    low, high = made.coef_interval_[0]
    assert made.coef_interval_.shape == (1, 2)
    assert low < SLOPE < high
    assert made.tau_ == pytest.approx(effects.std(), abs=0.3)
    assert made.effects_.empty
    rows = pd.DataFrame({"age": [20.0, 80.0], "clinic": ["c0000", "nowhere"]})
    young, old = made.predict(rows)
    assert (young, old) == ("no", "yes") if target == "sick" else young < old
    with pytest.raises(ValueError, match="feature"):
        made.predict(rows[["age"]])


def test_persons_may_be_a_column_beside_the_groups() -> None:
    X, targets, _ = table(20, 200)
    X = X.assign(who=[f"p{one // 2}" for one in range(len(X))])
    made = clone(LINEAR).set_params(rows_per_unit=2).fit(X, targets["number"], unit="who")
    assert "of one person ('who')" in made.guarantee_
    assert made.tau_ > 0
    assert made.predict(X.assign(who="nobody")).shape == (len(X),)
    by_clinic = clone(made).fit(X.drop(columns="who"), targets["number"], unit="clinic")
    assert "all records, at most 2, of one person ('clinic')" in by_clinic.guarantee_
    assert by_clinic.effects_.empty
    numbers = X.drop(columns="clinic")
    plain = PrivateLinearRegression(bounds=(20, 80), target_bounds=(4, 16), rows_per_unit=2)
    plain.fit(numbers, targets["number"], unit="who")
    assert plain.coef_.shape == (1,)
    array = np.column_stack([X["age"], np.repeat(np.arange(20), 200)])
    by_place = clone(LINEAR).set_params(group="x1").fit(array, targets["number"])
    assert by_place.effects_.index.isin(["0", "19"]).any()
    assert by_place.predict(array[:3]).shape == (3,)


@pytest.mark.parametrize(
    ("model", "given", "unit", "message"),
    [
        (LINEAR, {"group": "ward"}, None, "group='ward' must be a column of the table once"),
        (LINEAR, {}, "ward", "unit='ward' must be a column of the table once"),
        (LINEAR, {"expected_rows": 1e4}, "clinic", "rows=10000.0: a mixed model"),
        (LOGISTIC, {"class_weight": {"yes": 2.0}}, "clinic", "class_weight="),
        (LOGISTIC, {"intervals": True}, "clinic", "intervals=True: a mixed model"),
        (LOGISTIC, {"classes": ("a", "b", "c")}, "clinic", "group='clinic' is for two classes"),
    ],
)
def test_what_a_mixed_model_refuses_is_not_charged(
    model: Any, given: dict[str, Any], unit: str | None, message: str, tmp_path: Any
) -> None:
    X, targets, _ = table(20, 8)
    made = clone(model).set_params(**given, ledger=str(tmp_path / "ledger.jsonl"))
    with pytest.raises(ValueError, match=message):
        made.fit(X, targets["number" if model is LINEAR else "sick"], unit=unit)
    assert not (tmp_path / "ledger.jsonl").exists()

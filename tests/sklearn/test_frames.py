"""Data frames as people have them: dtypes declare the features, and rows do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

import bdpvi
from bdpvi.datasets import Encoding
from bdpvi.datasets.schema import Schema, declared_by
from bdpvi.datasets.types import ColumnType
from bdpvi.privacy.assumptions import Assumption
from bdpvi.sklearn import (
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivatePoissonRegressor,
)
from bdpvi.sklearn import classes as of_classes

N = 6000
RNG = np.random.default_rng(0)
SEX = pd.CategoricalDtype(["F", "M", "X"])
GRADE = pd.CategoricalDtype([1, 2, 3], ordered=True)
PUBLIC: dict[str, Any] = {"bounds": ([20, -3], [80, 3]), "classes": (0, 1), "expected_rows": N}
few = pytest.mark.filterwarnings("ignore::bdpvi.PrivacyUtilityWarning")
leaking = pytest.mark.filterwarnings("ignore::bdpvi.sklearn.PrivacyLeakWarning")


def people(records: int = N) -> pd.DataFrame:
    """Return a table with a column of each kind of dtype; a tenth of the ages are blank."""
    rng = np.random.default_rng(1)
    age = pd.array(rng.integers(20, 80, records), dtype="Int64")
    age[rng.random(records) < 0.1] = pd.NA
    smokes = pd.array(rng.random(records) < 0.4, dtype="boolean")
    smokes[rng.random(records) < 0.1] = pd.NA
    return pd.DataFrame(
        {
            "age": age,
            "dose": rng.normal(size=records),
            "sex": pd.Categorical(rng.choice(["F", "M"], records), dtype=SEX),
            "grade": pd.Categorical(rng.integers(1, 4, records), dtype=GRADE),
            "smokes": smokes,
            "insured": rng.random(records) < 0.5,
        }
    )


X = people()
LOGITS = 1.5 * (X["sex"] == "F").to_numpy() - 0.7 + X["dose"].to_numpy()
Y = (RNG.random(N) < 1 / (1 + np.exp(-LOGITS))).astype(int)
NAMES = [
    *("age", "age is missing", "dose", "dose is missing"),
    *("sex=F", "sex=M", "sex=X", "sex=other", "sex is missing"),
    *("grade=1", "grade=2", "grade=3", "grade=other", "grade is missing"),
    *("smokes=False", "smokes=True", "smokes=other", "smokes is missing"),
    *("insured=False", "insured=True", "insured=other", "insured is missing"),
]


def test_dtypes_declare_features_and_the_model_is_as_without_privacy() -> None:
    model = PrivateLogisticRegression(20.0, **PUBLIC).fit(X, Y)
    assert model.encoding_ is not None
    assert [*model.encoding_.feature_names] == NAMES == [*model.release_.feature_names]
    assert [*model.feature_names_in_] == [*X]
    assert (model.n_features_in_, model.coef_.shape) == (6, (1, len(NAMES)))
    plain = X.assign(age=X["age"].fillna(50).astype(float), absent=X["age"].isna())
    dummies = pd.get_dummies(plain, columns=["sex", "grade", "smokes"], dummy_na=True)
    usual = LogisticRegression(C=100.0, max_iter=5000).fit(dummies.astype(float), Y)
    own = dict(zip(NAMES, model.coef_[0], strict=True))
    other = dict(zip(dummies, usual.coef_[0], strict=True))
    assert own["dose"] == pytest.approx(other["dose"], abs=0.1)
    assert own["age"] == pytest.approx(other["age"], abs=0.01)
    contrast = other["sex_F"] - other["sex_M"]
    assert own["sex=F"] - own["sex=M"] == pytest.approx(contrast, abs=0.15)
    expected = usual.predict_proba(dummies.astype(float))
    assert np.abs(model.predict_proba(X) - expected).mean() < 0.02
    assert Assumption.PUBLIC_CONSTANTS in model.bound_.assumptions
    assert "dtypes: sex (category), grade (ordered), smokes (boolean)" in model.guarantee_
    assert "levels declared by the data frame's dtypes" in model.guarantee_


@few
def test_predictions_are_those_of_the_command_line_also_for_what_fit_never_met(
    tmp_path: Path,
) -> None:
    model = PrivateLogisticRegression(**PUBLIC).fit(X, Y)
    odd: Any = X.head(40).astype(object)
    odd.iloc[0] = [np.nan, "none", "Q", 7, "", None]
    odd.iloc[1] = ["", np.inf, "", "", "perhaps", "TRUE"]
    bdpvi.save_release(model.release_, tmp_path / "release.json")
    odd.to_csv(tmp_path / "new.csv", index=False)
    loaded = bdpvi.load_release(tmp_path / "release.json")
    constants: Any = loaded.preprocessing["encoding"]
    encoding = Encoding.from_dict(constants)
    text = pd.read_csv(tmp_path / "new.csv", dtype=str, keep_default_na=False)
    features = encoding.apply(text)
    np.testing.assert_allclose(
        model.predict_proba(odd), loaded.predict_proba(features).numpy(), atol=1e-12
    )
    # Of the first row by hand: all is blank or unknown, of a name "other", of a number missing.
    ones = [NAMES[at] for at in np.flatnonzero(features[0].numpy())]
    assert ones == [
        *("age is missing", "dose is missing", "sex=other", "grade=other"),
        *("smokes is missing", "insured is missing"),
    ]
    ones = [NAMES[at] for at in np.flatnonzero(features[1].numpy())]
    assert ones[2:] == ["sex is missing", "grade is missing", "smokes is missing", "insured=True"]
    with pytest.warns(UserWarning, match="valid feature names"):
        assert (model.predict(odd.to_numpy()) == model.predict(odd)).all()
    with pytest.raises(ValueError, match="feature names"):
        model.predict(odd.rename(columns={"age": "years"}))


@few
@leaking
@pytest.mark.parametrize("rows", [1, 20])
def test_a_row_changes_no_feature_of_another_and_no_number_of_features(rows: int) -> None:
    """Rows with all levels, with few, and of blanks only have the same features."""
    part = X.head(rows)
    none = pd.Series([None] * rows).astype(SEX)
    blank = part.assign(age=pd.array([pd.NA] * rows, dtype="Int64"), sex=none)
    for frame in (part, blank):
        model = PrivateLogisticRegression(**PUBLIC, random_state=0).fit(frame, Y[:rows])
        assert model.encoding_ is not None
        assert [*model.encoding_.feature_names] == NAMES
        whole = model.predict_proba(X.head(100))
        for at in (0, 50):
            np.testing.assert_allclose(model.predict_proba(X.iloc[[at]])[0], whole[at], 1e-12)


@few
@pytest.mark.parametrize("given", [{}, {"bounds": ([20, -3], [80, 3])}, {"from_data": True}])
@pytest.mark.parametrize(
    "model",
    [
        PrivateLogisticRegression(3.0, classes=(0, 1)),
        PrivateLogisticRegression(3.0, classes=(0, 1), intervals=True, expected_rows=N),
        PrivateLogisticRegression(3.0, classes=(0, 1, 2)),
        PrivateLinearRegression(3.0, target_bounds=(-5, 5)),
        PrivateLinearRegression(3.0),
        PrivatePoissonRegressor(3.0),
    ],
)
def test_every_estimator_takes_a_frame(
    model: Any, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(of_classes, "STEPS", 20)
    ledger = tmp_path / "people.jsonl"
    fitted = clone(model).set_params(**given, ledger=str(ledger)).fit(X, Y)
    assert [*fitted.encoding_.feature_names] == NAMES
    assert np.shape(fitted.coef_)[-1] == len(NAMES) == len(fitted.center_)
    assert fitted.bound_.epsilon == 3.0
    spent = bdpvi.Ledger.at(ledger).worst_case(1e-5)
    assert spent is not None
    assert 0.97 * 3.0 < spent.epsilon <= 3.0
    assert np.isfinite(fitted.predict(X.head())).all()
    read = Assumption.CONSTANTS_FROM_TABLE in fitted.bound_.assumptions
    assert read == bool(given.get("from_data"))
    bought = any(origin.value == "bought here" for origin in fitted.encoding_.origins)
    assert bought == (not given)
    if given and not isinstance(model, PrivateLogisticRegression):
        usual = fitted.set_params(bounds=None, scales=([50.0, 0.0], [15.0, 1.5]), from_data=False)
        assert usual.fit(X, Y).center_[:4].tolist() == [50.0, 0.0, 0.0, 0.0]


REFUSED: dict[str, Any] = {
    "of dtype object": pd.Series(["a", "b"] * 30, dtype=object),
    "of dtype string": pd.Series(["a", "b"] * 30, dtype="string"),
    "of dates": pd.Series(pd.date_range("2020-01-01", periods=60)),
    "of periods": pd.Series(pd.period_range("2020-01-01", periods=60, freq="D")),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("records", [60, 0])
def test_a_column_without_declared_levels_is_refused_before_a_charge(
    kind: str, records: int, tmp_path: Path
) -> None:
    frame = pd.DataFrame({"x": np.zeros(60), "town": REFUSED[kind]}).head(records)
    model = PrivateLogisticRegression(classes=(0, 1), ledger=str(tmp_path / "people.jsonl"))
    with pytest.raises(ValueError, match=r"column 'town' has dtype .* declares no levels"):
        model.fit(frame, np.zeros(records))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (["a", "a "], "column 'town', of dtype category: levels must be different"),
        ([1, "1"], "column 'town', of dtype category: levels must be different"),
        ([], "column 'town', of dtype category: levels must be"),
        (range(1001), "column 'town', of dtype category: levels must be 1 to 1000"),
    ],
)
def test_levels_that_are_none_are_refused(levels: Any, message: str) -> None:
    town = pd.Series([None, None]).astype(pd.CategoricalDtype([*levels]))
    with pytest.raises(ValueError, match=message):
        declared_by(pd.DataFrame({"town": town}))


@few
def test_types_declare_what_dtypes_do_not() -> None:
    types = Schema(
        {
            "sex": ColumnType(kind="category", levels=("F", "M", "X")),
            "dose": ColumnType(low=-3, high=3),
            "who": ColumnType(kind="identifier"),
            "town": ColumnType(kind="code"),
        },
        "Questionnaire",
    )
    frame = X[["age", "dose", "grade"]].assign(
        sex=X["sex"].astype(object), who=np.arange(N).astype(str), town=["N", "S"] * (N // 2)
    )
    model = PrivateLogisticRegression(5.0, types=types, classes=(0, 1)).fit(frame, Y)
    assert model.encoding_ is not None
    columns = {column.name: column for column in model.encoding_.columns}
    assert [*columns] == ["age", "dose", "grade", "sex", "town"]
    assert columns["dose"].sd == pytest.approx(np.sqrt(3))  # type: ignore[union-attr]
    assert columns["town"].kind in ("onehot", "hashed")
    assert model.score(frame, Y) > 0.65
    model = clone(model).set_params(bounds=(20, 80), expected_rows=N)
    assert model.fit(frame, Y).center_[0] == 50.0
    with pytest.raises(ValueError, match="types: its column 'sex' must be in the table once"):
        model.fit(frame.to_numpy(), Y)
    with pytest.raises(ValueError, match="bounds must be a pair of numbers or of arrays of 1"):
        model.set_params(bounds=([20, 0], [80, 1])).fit(frame, Y)
    with pytest.raises(ValueError, match="types: its column 'sex' must be in the table once"):
        clone(model).fit(frame.drop(columns="sex"), Y)

"""Formulas: formulaic's own matrices span the same functions; what it would run is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.interpolate
from formulaic import model_matrix
from hypothesis import given
from hypothesis import strategies as st

from bdpvi import BayesianPoissonRegression, load_release, private
from bdpvi.datasets.columns import Numeric, OneHot
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.formula import read_formula, target_of
from bdpvi.datasets.terms import Log, Plain, Power, Spline
from bdpvi.score.bases import BOUND, basis
from bdpvi.sklearn import PrivateLogisticRegression
from bdpvi.tables import Public

COLUMNS = (
    Numeric("age", 50.0, 60 / np.sqrt(12)),
    OneHot("ward", ("A", "B", "C")),
    OneHot("sex", ("F", "M")),
    Numeric("dose", 5.0, 8 / np.sqrt(12)),
)
HEADER = ["sick", *(column.name for column in COLUMNS)]
LEVELS = {"ward": ("A", "B", "C"), "sex": ("F", "M")}


def table(n: int = 400, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": random.uniform(20, 80, n),
            "ward": random.choice(["A", "B", "C"], n),
            "sex": random.choice(["F", "M"], n),
            "dose": random.uniform(1, 9, n),
        }
    )


def features(formula: str, frame: pd.DataFrame) -> tuple[Encoding, np.ndarray[Any, Any]]:
    read = read_formula(formula, HEADER, LEVELS)
    columns = tuple(column for column in COLUMNS if column.name in read.columns)
    encoding = Encoding(columns, "By law.", terms=read.terms)
    return encoding, encoding.apply(frame).numpy()


@pytest.mark.parametrize(
    "formula",
    [
        "age * ward",
        "ward * sex",
        "ward:sex",
        "(age + ward + sex)**2 - ward:sex",
        "age + I(age**2) + {age**3}",
        "log(dose) * sex + age",
        "age:dose + age + dose",
        "C(ward, Treatment('B')) * age",
        "age:ward:sex + age:ward + age:sex + ward:sex + age + ward + sex",
    ],
)
def test_terms_span_the_functions_of_formulaics_matrix(formula: str) -> None:
    frame = table()
    theirs = model_matrix(formula.replace("Treatment(", "contr.treatment("), frame).to_numpy(float)
    encoding, ours = features(formula, frame)
    ours = np.column_stack([ours, np.ones(len(frame))])
    assert ours.shape[1] == len(encoding.feature_names) + 1
    for some, others in ((ours, theirs), (theirs, ours)):
        fitted = others @ np.linalg.lstsq(others, some, rcond=None)[0]
        assert np.abs(fitted - some).max() < 1e-9 * np.abs(some).max()


def test_numbers_of_products_alone_are_measured_from_their_centres() -> None:
    frame = table()
    theirs = model_matrix("age + ward:age - 1", frame.assign(age=frame.age - 50)).to_numpy(float)
    ours = features("age + ward:age", frame)[1]
    fitted = theirs @ np.linalg.lstsq(theirs, ours, rcond=None)[0]
    assert ours.shape[1] == 3
    assert np.abs(fitted - ours).max() < 1e-9


def test_a_spline_is_scipys_without_its_first_function() -> None:
    frame = table()
    encoding, ours = features("bs(age, df=6)", frame)
    knots = np.r_[[20.0] * 4, np.linspace(20, 80, 5)[1:-1], [80.0] * 4]
    theirs = scipy.interpolate.BSpline.design_matrix(frame.age, knots, 3).toarray()[:, 1:]
    np.testing.assert_allclose(ours, theirs, atol=1e-12)
    assert encoding.feature_names == tuple(f"bs(age)[{at}]" for at in range(1, 7))
    given_knots = features("bs(age, knots=[35, 50, 65])", frame)[1]
    np.testing.assert_allclose(given_knots, theirs, atol=1e-12)


@given(st.lists(st.floats(-1.7, 1.7), max_size=4), st.integers(1, 4), st.floats(-9, 9))
def test_splines_sum_to_1_everywhere(inner: list[float], degree: int, at: float) -> None:
    values = basis(np.clip([at], -BOUND, BOUND), np.sort(inner), degree)
    assert values.min() >= 0
    assert values.sum() == pytest.approx(1, abs=1e-9)


def test_values_within_bounds_stay_within_the_bounds_of_a_standardised_number() -> None:
    frame = table(2000)
    for formula in ("age:dose", "I(age**2)", "I(age**3):dose", "log(dose)", "age:ward"):
        assert np.abs(features(formula, frame)[1]).max() <= BOUND * (1 + 1e-12)


def test_a_coefficient_per_unit_is_that_of_the_raw_product() -> None:
    frame = table(2000)
    encoding, ours = features("age + dose + age:dose + I(dose**2)", frame)
    age, dose = frame.age - 50, frame.dose - 5
    raw = np.column_stack([age, dose, age * dose, dose**2])
    np.testing.assert_allclose(ours * [scale for _, scale in encoding.scales], raw, atol=1e-9)


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("sick ~ poly(age, 2)", r"poly\(\) reads the rows; write x"),
        ("sick ~ scale(age)", r"scale\(\) reads the rows; numbers are standardised"),
        ("sick ~ center(age)", r"center\(\) reads the rows"),
        ("sick ~ cr(age, df=3)", r"cr\(\) reads the rows; write bs"),
        ("sick ~ cc(age, df=3)", r"cc\(\) reads the rows; write bs"),
        ("sick ~ C(age)", "would read its levels from the rows"),
        ("sick ~ C(ward, Treatment('Z'))", "with a level of"),
        ("sick ~ C(ward, contr.sum)", "contrasts are"),
        ("sick ~ __import__('os').system('ls')", "cannot be read"),
        ("sick ~ {__import__('os').system('ls')}", "is not known"),
        ("sick ~ I((lambda: 1)())", "is not known"),
        ("sick ~ age.__class__", "'age.__class__' is not a column"),
        ("sick ~ bs(age, df=open('x'))", "malformed node"),
        ("sick ~ bs(age, df=2)", "df must be the degree"),
        ("sick ~ bs(age, df=400)", "df of bs"),
        ("sick ~ bs(age, 4, sharp=1)", "arguments are df, knots and degree"),
        ("sick ~ I(age**40)", "degree"),
        ("sick ~ I(age**0)", "degree"),
        ("sick ~ weight", "'weight' is not a column of the table.*'age'"),
        ("sick ~ age - 1", "has an intercept"),
        ("sick ~ 1", "no term but the intercept"),
        ("sick ~ age + (1 | ward)", "effects of groups, as .1 . clinic., are an option"),
        ("sick ~ age | ward", "one right-hand side"),
        ("log(sick) ~ age", "the name of one column"),
        ("sick + age ~ ward", "the name of one column"),
        ("sick ~ offset(age)", r"only offset\(log\(x\)\) is known"),
        ("sick ~ age + offset(log(dose)) + offset(log(age))", "more than one offset"),
        ("sick ~ bs(age, 3):age", "a column twice"),
        ("sick ~ age + (", "cannot be read"),
        ("sick ~ 'x' + age", "cannot be read"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(formula: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_formula(formula, HEADER, LEVELS)


def test_names_with_blanks_dots_and_all_columns() -> None:
    header = ["sick", "blood pressure", "b"]
    read = read_formula("sick ~ bs(`blood pressure`, 4):b + .", header)
    assert read.target == "sick"
    assert read.columns == ("blood pressure", "b")
    assert read_formula("`sick` ~ `blood pressure`", header).terms == ((Plain("blood pressure"),),)
    assert target_of("`blood pressure` ~ b") == "blood pressure"


def test_constants_that_a_factor_lacks_are_refused() -> None:
    number = Numeric("age", 5.0, 10.0)
    for factor, column, said in (
        (Log("age"), number, "lower bound is -12.3"),
        (Log("age"), None, "needs public bounds above 0"),
        (Spline("age", 4, 3, (50.0,)), number, "within the column's bounds"),
        (Spline("age", 4, 3, (5.0,)), None, "knots need public bounds"),
    ):
        with pytest.raises(ValueError, match=said):
            factor.check(column)
    Power("age", 2).check(None)


@pytest.fixture(scope="module")
def sick() -> pd.DataFrame:
    frame = table(6000, 1)
    random = np.random.default_rng(2)
    b = frame.ward == "B"
    eta = 0.6 * (frame.age - 50) / 17.3 * np.where(b, -1, 1) + 0.5 * b
    return frame.assign(
        sick=np.where(random.random(6000) < 1 / (1 + np.exp(-eta)), "yes", "no"),
        falls=random.poisson(np.exp(0.3 * eta) * frame.dose / 5),
        name=range(6000),
    )


def test_a_formula_is_fitted_released_and_read_again(sick: pd.DataFrame, tmp_path: Any) -> None:
    made = private(
        sick,
        target="sick ~ age * ward + bs(dose, df=4)",
        positive="yes",
        epsilon=8.0,
        intervals=True,
        out=tmp_path / "out",
    )
    text = (tmp_path / "out" / "release.json").read_text(encoding="utf-8")
    written = json.loads(text)["preprocessing"]["encoding"]
    assert {column["name"] for column in written["columns"]} == {"age", "ward", "dose"}
    assert [len(term) for term in written["terms"]] == [1, 1, 2, 1]
    read = load_release(tmp_path / "out" / "release.json")
    new = table(50, 3)
    np.testing.assert_array_equal(read.predict_proba(new), made.predict_proba(new))
    assert "formula: sick ~ age * ward + bs(dose, df=4)" in made.receipt.about
    base = written["columns"][1]["categories"][0]
    summary = made.summary()
    rows = {row.name: row for row in summary.coefficients}
    assert rows[f"ward={base}"].note == "base level"
    assert f"age:ward={base}" not in rows
    assert "In products and powers numbers are measured from their centres: age" in summary.reason
    with pytest.raises(ValueError, match="reference='ward': the formula compares"):
        made.summary(reference={"ward": next(x for x in "ABC" if x != base)})
    turned = -rows["age:ward=A"].mean if base == "B" else rows["age:ward=B"].mean
    assert turned * 60 / np.sqrt(12) == pytest.approx(-1.2, abs=0.35)


def test_an_offset_is_the_exposure_of_a_count(sick: pd.DataFrame) -> None:
    made = private(
        sick,
        target="falls ~ age + offset(log(dose))",
        epsilon=3.0,
        model=BayesianPoissonRegression(largest=20),
        public=Public(rows=6000),
    )
    assert made.model.exposure == made.feature_names.index("dose")  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="exposure='age': the formula's is 'dose'"):
        private(
            sick,
            target="falls ~ age + offset(log(dose))",
            epsilon=3.0,
            model=BayesianPoissonRegression(largest=20),
            public=Public(exposure="age"),
        )
    with pytest.raises(ValueError, match="exposure"):
        private(sick, target="sick ~ age + offset(log(dose))", positive="yes", epsilon=3.0)


def test_formulas_that_data_cannot_have_are_refused_before_a_charge(sick: pd.DataFrame) -> None:
    asked: dict[str, Any] = {"positive": "yes", "epsilon": 1.0}
    with pytest.raises(ValueError, match=r"log\(dose\): it needs public bounds above 0"):
        private(sick, target="sick ~ log(dose)", **asked)
    with pytest.raises(ValueError, match="leave out from_data"):
        private(sick, target="sick ~ age", public=Public(from_data=True), **asked)
    with pytest.raises(ValueError, match="'ward' is a category"):
        private(sick, target="sick ~ bs(ward)", public=Public(categorical=["ward"]), **asked)


def test_an_estimator_takes_the_right_hand_side(sick: pd.DataFrame) -> None:
    x = sick[["age", "ward", "name"]].astype({"ward": "category"})
    made = PrivateLogisticRegression(
        epsilon=8.0, classes=["no", "yes"], formula="age * C(ward, Treatment('A'))"
    ).fit(x, sick.sick)
    assert made.encoding_ is not None
    assert "age:ward=B" in made.encoding_.feature_names
    assert not any("name" in name for name in made.encoding_.feature_names)
    slope = made.coef_[0, made.encoding_.feature_names.index("age:ward=B")]
    assert slope * 60 / np.sqrt(12) == pytest.approx(-1.2, abs=0.5)
    numbers = PrivateLogisticRegression(
        epsilon=8.0, classes=["no", "yes"], formula="x0 + I(x0**2)"
    ).fit(x[["age"]].to_numpy(), sick.sick)
    assert numbers.predict_proba([[20.0], [80.0]]).shape == (2, 2)


@pytest.mark.parametrize(
    "factor",
    [
        {"kind": "power", "column": "age", "degree": 10**9},
        {"kind": "spline", "column": "age", "size": 10**9, "degree": 3, "knots": []},
        {"kind": "spline", "column": "age", "size": 4, "degree": 3, "knots": [1e9]},
        {"kind": "plain", "column": "name", "reference": "", "every": False},
        {"kind": "plain", "column": "ward", "reference": "Z", "every": False},
        {"kind": "log", "column": "ward"},
        {"kind": "power", "column": "ward", "degree": 2},
        {"kind": "eval", "column": "age"},
        "__import__('os')",
    ],
)
def test_a_hostile_term_in_a_file_is_refused(
    factor: Any, sick: pd.DataFrame, tmp_path: Any
) -> None:
    encoding = Encoding(COLUMNS[:2], "By law.", terms=((Plain("age"),), (Plain("ward"),)))
    written = json.loads(json.dumps(encoding.to_dict()))
    assert Encoding.from_dict(written) == encoding
    written["terms"].append([factor])
    with pytest.raises(ValueError, match="not the dictionary of an encoding"):
        Encoding.from_dict(written)

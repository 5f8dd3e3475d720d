"""Levels declared in types are public, and features are known by their places, not by names."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest

import bdpvi
from bdpvi import datasets
from bdpvi.datasets import ColumnType, Schema
from bdpvi.datasets.columns import Numeric, OneHot
from bdpvi.datasets.encoding import Encoding
from bdpvi.releases.persons import check_said
from bdpvi.releases.references import compared
from bdpvi.sklearn import PrivateLogisticRegression
from bdpvi.synthesis import Counts

COLOURS = ("red", "green", "blue")
FORM = {"sick": ColumnType(levels=("no", "yes"))}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def people(colours: tuple[str, ...] = COLOURS) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    sick = rng.choice(["no", "yes"], 6000)
    return pd.DataFrame({"c": rng.choice(colours, 6000), "sick": sick})


@pytest.mark.parametrize(
    ("kind", "levels"),
    [("category", COLOURS), ("category", (*COLOURS, "grey")), ("ordered", COLOURS)],
)
def test_declared_levels_are_not_bought(kind: str, levels: tuple[str, ...]) -> None:
    types = {"c": ColumnType(kind=kind, levels=levels)}
    schema, ledger = Schema(FORM | types, "form"), bdpvi.Ledger()
    made = flat.synthesize(people(), schema, "sick", epsilon=5.0, progress=False, ledger=ledger)
    assert not made.receipt.bought
    assert made.schema.columns["c"].levels == levels
    assert len(ledger.entries()) == 1


@pytest.mark.parametrize("carrier", ["str", "int64"])
@pytest.mark.parametrize("kind", ["category", "code"])
def test_codes_of_17_digits_are_kept(kind: str, carrier: str) -> None:
    codes = tuple(f"1234567890123456{last}" for last in range(3))
    frame = people(codes).astype({"c": carrier})
    for levels in (codes, None):  # declared, or estimated
        schema = Schema(FORM | {"c": ColumnType(kind=kind, levels=levels)}, "form")
        made = flat.synthesize(frame, schema, "sick", epsilon=5.0, progress=False)
        assert made.schema.columns["c"].levels == codes
        assert made.sample(3000)["c"].value_counts().between(700, 1300).sum() == 3


def test_every_declared_level_has_a_coefficient() -> None:
    types = {"c": ColumnType(kind="category", levels=(*COLOURS, "grey"))}
    release = flat.private(
        people(), target="sick", positive="yes", epsilon=5.0, progress=False, expected_rows=6000,
        types=Schema(types, "form"),
    )  # fmt: skip
    names = [coefficient.name for coefficient in release.summary().coefficients]
    assert {f"c={one}" for one in types["c"].levels or ()} <= {*names}


@pytest.mark.parametrize("intervals", [True, False])
def test_a_level_and_a_column_of_one_name_do_not_meet(intervals: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, 6000)
    sick = np.where(rng.random(6000) < 1 / (1 + np.exp(-2 * x)), "yes", "no")
    frame = pd.DataFrame({"sex": rng.choice(["F", "M"], 6000), "sick": sick, "sex=F": x})
    release = flat.private(
        frame, target="sick", positive="yes", epsilon=8.0, progress=False, expected_rows=6000,
        numeric=["sex=F"], intervals=intervals,
        constants=datasets.constants_of({"source": "law", "sex": ["F", "M"]}),
    )  # fmt: skip
    found = release.predict_mean(pd.DataFrame({"sex": ["M", "M"], "sex=F": [-1.0, 1.0]}))
    assert found[1] - found[0] > 0.6
    rows = {coefficient.name: coefficient for coefficient in release.summary().coefficients}
    assert {"sex=F", "sex=F (2)"} <= {*rows}
    assert rows["sex=F (2)"].mean > 1 > abs(rows["sex=F"].mean)


@flat.few_steps(20)
def test_an_exposure_is_known_by_its_column() -> None:
    rng = np.random.default_rng(0)
    years = rng.uniform(1, 9, 1000)
    frame = pd.DataFrame(
        {"sex": rng.choice(["F", "M"], 1000), "sex=F": years, "n": rng.poisson(years / 4)}
    )
    release = flat.private(
        frame, target="n", epsilon=8.0, progress=False, expected_rows=1000,
        model=bdpvi.BayesianPoissonRegression(largest=9), exposure="sex=F", draws=20,
        constants=datasets.constants_of({"source": "law", "sex": ["F", "M"], "sex=F": [1, 9]}),
    )  # fmt: skip
    encoding = release.encoding
    assert encoding is not None
    assert (release.model.exposure,) == encoding.places["sex=F"][:1]  # type: ignore[attr-defined]


def test_levels_that_print_alike_are_told_apart() -> None:
    levels = OneHot("a", ("other", "missing", "a=b", "b"))
    encoding = Encoding((levels, Numeric("a=b", 0.0, 1.0)), "By law.", unknown="other")
    names = encoding.feature_names
    assert len({*names}) == len(names) == 8
    assert names[-2:] == ("a=b (2)", "a=b is missing")
    for level, base in (("other", 0), ("missing", 1), ("other (2)", 4), ("missing (2)", 5)):
        (one,) = compared(encoding, names, {"a": level})
        assert (one.base, one.places) == (base, (0, 1, 2, 3, 4, 5))


@pytest.mark.parametrize("people_", [{}, {"unit": "who", "rows_per_unit": 3}])
def test_a_delta_that_rounding_uses_up_is_named_as_given(people_: dict[str, Any]) -> None:
    public = datasets.constants_of({"source": "law", "age": [20, 90]})
    frame = pd.DataFrame({"age": [50.0] * 3000, "sick": ["yes", "no"] * 1500, "who": range(3000)})
    frame = frame if people_ else frame.drop(columns="who")
    ledger = bdpvi.Ledger(**people_)
    given: dict[str, Any] = {"target": "sick", "positive": "yes", "constants": public}
    with pytest.raises(ValueError, match="delta=1e-300 is too small: rounding alone costs"):
        flat.private(
            frame, **given, **people_, epsilon=1.0, delta=1e-300, expected_rows=3000,
            progress=False, ledger=ledger,
        )  # fmt: skip
    assert not ledger.entries()


def test_a_column_called_row_does_not_switch_persons_off() -> None:
    """In a ledger "row" is the unit of single rows; a column of that name is refused as a unit."""
    frame = people().assign(row=np.arange(6000) // 3)
    ledger = bdpvi.Ledger()
    with pytest.raises(ValueError, match="unit='row' stands for single rows in a ledger: rename"):
        flat.private(frame, target="sick", positive="yes", epsilon=1.0, unit="row", ledger=ledger)
    counts = Counts(unit="row")
    with pytest.raises(ValueError, match="unit='row' stands for single rows in a ledger: rename"):
        flat.synthesize(frame, None, epsilon=1.0, settings=counts, ledger=ledger)
    with pytest.raises(ValueError, match="unit='row' stands for single rows in a ledger: rename"):
        check_said("patients.csv", unit="row")
    check_said(frame)  # an ordinary column
    check_said(frame.rename(columns={"row": "person"}), unit="person", rows_per_unit=3)
    check_said(frame, unit="row", one_row_per_person=True)
    check_said(people(), unit="row")
    assert not ledger.entries()


def test_persons_of_an_array_called_row_are_protected() -> None:
    persons = pd.Series(np.arange(900) // 3, name="row")
    assert PrivateLogisticRegression()._people(persons) == {"unit": "unit", "rows_per_unit": 1}

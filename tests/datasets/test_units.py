"""Whose a row is: names are compared as written, and both mistakes have a price."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest

import bdpvi
from bdpvi import Ledger
from bdpvi.datasets import Schema, from_csv, from_frame
from bdpvi.datasets.table import Table
from bdpvi.datasets.types import ColumnType
from bdpvi.datasets.units import at_most, persons_of
from bdpvi.noise.keys import Key
from bdpvi.privacy.gaussian_dp import gaussian_guarantee
from bdpvi.privacy.groups import group
from bdpvi.synthesis import Counts
from bdpvi.synthesis.order import Order, rows_to_count

GIVEN: dict[str, Any] = {"target": "sick", "positive": "yes", "epsilon": 1.0}


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """Twenty visits of patient 007, of patient 7 and of patient 7.0, in wards 01 and 1."""
    rows = [
        f"{who},{ward},{20 + (7 * i) % 40},{'yes' if i % 3 else 'no'}"
        for i in range(20)
        for who, ward in (("007", "01"), ("7", "1"), ("7.0", "01"))
    ]
    (tmp_path / "visits.csv").write_text("\n".join(["who,ward,age,sick", *rows]) + "\n")
    return tmp_path / "visits.csv"


def schema(kind: str) -> Schema:
    return Schema({"who": ColumnType(kind=kind)}, "Form 7")


@pytest.mark.filterwarnings("ignore::UserWarning")  # of rows left out
@pytest.mark.parametrize(("kind", "persons"), [("", 3), ("code", 3), ("integer", 1)])
@pytest.mark.parametrize("from_data", [False, True])
def test_a_file_s_persons_are_compared_as_written_or_by_their_type(
    kind: str, persons: int, from_data: bool, visits: Path
) -> None:
    types = schema(kind) if kind else None
    given: dict[str, Any] = {"types": types, "unit": "who", "rows_per_unit": 5}
    work = flat.work(visits, from_data=from_data, drop=["ward"], **GIVEN, **given)
    assert work.frame is not None
    assert len(work.frame) == 5 * persons
    split = from_csv(visits, "sick", positive="yes", drop=["ward"], seed=0, **given)
    assert len(split.train) + len(split.test) == 5 * persons
    frame = pd.read_csv(visits, dtype=str)
    settings = Counts(unit="who", rows_per_unit=5)
    order = Order.of(list(frame.columns), types, None, 1.0, 1e-6, settings)
    assert len(rows_to_count(frame, settings, Key.of_seed(0), True, order.person)) == 5 * persons


@pytest.mark.parametrize(
    ("names", "kinds", "persons"),
    [
        (["P" * 300 + "1", "P" * 300 + "2"], ("", "category", "code"), 2),
        (["a\u200b", "a\u200c"], ("category", "code"), 2),
        ([10**5000, 10**5000 + 1, 1e16, 10**16, math.inf], ("",), 4),
        ([7, 7.0, np.int64(7), "7"], ("",), 1),
        ([None, "NA"], ("",), 1),  # nobody
    ],
)
def test_names_stay_apart_and_a_number_is_one(
    names: list[object], kinds: tuple[str, ...], persons: int
) -> None:
    for kind in kinds:
        type = ColumnType(kind=kind) if kind else None
        assert persons_of(pd.Series(names, dtype=object), type).nunique() == persons


@pytest.mark.parametrize("dtype", ["int64", "Int64", object, str])
@pytest.mark.parametrize("kind", ["", "integer", "number", "category", "code"])
def test_long_numbers_of_persons_stay_apart(dtype: Any, kind: str) -> None:
    """As floats, and by their labels, these three numbers are one."""
    numbers = pd.Series([900_719_925_474_099_301 + at for at in range(3)]).astype(dtype)
    type = ColumnType(kind=kind) if kind else None
    assert persons_of(numbers, type).nunique() == 3
    frame = pd.DataFrame({"who": numbers.repeat(2)})
    assert len(at_most(frame, "who", 1, tell=False, type=type)) == 3


def test_neither_mistake_is_safe() -> None:
    """With k rows each: 2k rows differ by a person of two spellings, or of two under one name."""
    k, one = 3, ["a"] * 3
    spelt = pd.DataFrame({"who": ["7"] * 5 + ["07"] * 5})
    assert len(at_most(spelt, "who", k, tell=False)) == 2 * k
    both = ColumnType(kind="category", levels=("x",), spellings={"x": ("a", "b")})
    table = pd.DataFrame({"who": [*one, *["b"] * 3]})
    kept = at_most(table, "who", k, tell=False, type=both)
    rest = at_most(table[table["who"] != "a"], "who", k, tell=False, type=both)
    assert len({*kept.index} ^ {*rest.index}) == 2 * k
    row = gaussian_guarantee(0.01, 1e-5)
    assert row is not None
    person, twice = (group(row, rows) for rows in (k, 2 * k))
    assert person is not None
    assert twice is not None
    assert twice.epsilon > 2 * person.epsilon * 0.95


def test_categories_of_a_file_keep_their_zeros(visits: Path) -> None:
    split = from_csv(visits, "sick", positive="yes", categorical=["ward"], drop=["who"], seed=0)
    assert split.train.feature_names == ("ward=01", "ward=1", "age")


def test_whole_numbers_beside_blanks_in_parquet_stay_exact(tmp_path: Path) -> None:
    """Pandas reads such a column as floats, and 2⁵³ and 2⁵³ + 1 would be one person."""
    many = [2**53, 2**53 + 1, None, 7]
    frame = pd.DataFrame({"who": pd.array(many, dtype="Int64"), "age": [30.0, 40.0, 50.0, None]})
    frame.to_parquet(tmp_path / "visits.parquet")
    found = Table.of(tmp_path / "visits.parquet").frame(written=["who"])
    assert persons_of(found["who"]).tolist() == [str(2**53), str(2**53 + 1), "", "7"]
    assert found["age"].dtype.kind == "f"


@pytest.mark.parametrize("values", [[], [7.0, 8.0], [None, None]])
@pytest.mark.parametrize("dtype", ["float64", "float32", "Float64"])
def test_persons_by_decimal_numbers_are_refused_by_dtype_alone(
    values: list[Any], dtype: str, tmp_path: Path
) -> None:
    """pandas guesses such numbers: one blank or 1e5 turns ids of 19 digits into few persons."""
    frame = pd.DataFrame({"who": pd.Series(values, dtype=dtype), "sick": "no"})
    people: dict[str, Any] = {"unit": "who", "rows_per_unit": 2}
    said = rf"unit='who' has dtype {dtype}"
    ledger = Ledger()
    with pytest.raises(ValueError, match=said):
        flat.private(
            frame, target="sick", positive="yes", epsilon=1.0, ledger=ledger, progress=False,
            **people,
        )  # fmt: skip
    with pytest.raises(ValueError, match=said):
        bdpvi.synthesize(frame, epsilon=1.0, settings=Counts(**people), ledger=ledger)
    with pytest.raises(ValueError, match=said):
        from_frame(frame, "sick", positive="yes", **people)
    assert not ledger.entries()


def test_the_remedies_for_persons_by_decimal_numbers_work(tmp_path: Path) -> None:
    ids = [900_719_925_474_099_301, 900_719_925_474_099_302]
    (tmp_path / "t.csv").write_text(f"who,age\n{ids[0]},1\n{ids[1]},2\n,3\n", encoding="utf-8")
    guessed = pd.read_csv(tmp_path / "t.csv")
    with pytest.raises(ValueError, match="has dtype float64"):
        at_most(guessed, "who", 1, tell=False)
    read = pd.read_csv(tmp_path / "t.csv", dtype={"who": str})
    assert at_most(read, "who", 1, tell=False)["age"].tolist() == [1, 2]
    whole = pd.DataFrame({"who": [7.0, 8.0, None], "age": [1, 2, 3]}).astype({"who": "Int64"})
    assert at_most(whole, "who", 1, tell=False)["age"].tolist() == [1, 2]

"""Encodings: what features mean, and that new rows are treated as the old ones were."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from bdpvi.datasets import Encoding
from bdpvi.datasets.columns import Numeric, OneHot, Ordinal

ENCODING = Encoding(
    (Numeric("age", 40.0, 10.0), Ordinal("size", 1.0, 0.5, ("S", "M", "L")), OneHot("sex", ("F",))),
    "Made up.",
)
ROW = {"age": [50.0], "size": ["L"], "sex": ["F"]}

numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=20).filter(
    lambda v: np.std(v) > 1e-3
)


@given(values=numbers)
def test_numeric_is_scikit_learns_scaler(values: list[float]) -> None:
    column = pd.Series(values, name="v")
    expected = StandardScaler().fit_transform(column.to_numpy()[:, None])
    np.testing.assert_allclose(Numeric.of_values(column).encode(column)[0], expected, atol=1e-9)


@given(
    values=st.lists(st.sampled_from(["b", "a", "?", "C"]), min_size=2).filter(
        lambda v: len(set(v)) > 1
    )
)
def test_categories_are_scikit_learns_encoders(values: list[str]) -> None:
    column = pd.Series(values, name="v")
    table = column.to_frame()
    codes = StandardScaler().fit_transform(OrdinalEncoder().fit_transform(table))
    np.testing.assert_allclose(Ordinal.of_values(column).encode(column)[0], codes, atol=1e-12)
    onehot = OneHotEncoder(sparse_output=False).fit(table)
    np.testing.assert_array_equal(
        OneHot.of_values(column).encode(column)[0], onehot.transform(table)
    )
    assert OneHot.of_values(column).categories == tuple(onehot.categories_[0])


@given(ages=numbers, seed=st.integers(0, 99))
def test_the_json_of_an_encoding_is_the_encoding(ages: list[float], seed: int) -> None:
    sexes = np.random.default_rng(seed).choice(["F", "M"], size=len(ages))
    sexes[:2] = ["F", "M"]
    frame = pd.DataFrame({"age": ages, "sex": sexes})
    columns = (
        Numeric.of_values(frame["age"]),
        Ordinal.of_values(frame["sex"]),
    )
    encoding = Encoding(columns, "Made up.")
    again = Encoding.from_dict(json.loads(json.dumps(encoding.to_dict())))
    assert again == encoding
    assert torch.equal(again.apply(frame), encoding.apply(frame))


def test_rows_are_encoded_one_by_one() -> None:
    frame = pd.DataFrame({"age": [20, 40, 60], "size": ["S", "M", "L"], "sex": ["F"] * 3})
    alone = [ENCODING.apply(frame.iloc[[i]]) for i in range(3)]
    assert torch.equal(torch.cat(alone), ENCODING.apply(frame))
    assert ENCODING.apply(frame.iloc[:0]).shape == (0, 3)


@pytest.mark.parametrize("value", [1, 1.0, np.int8(1), np.float32(1), "1", " 1"])
def test_one_category_however_it_is_spelt(value: object) -> None:
    encoding = Encoding((OneHot("code", ("1", "2")),), "Made up.")
    assert encoding.apply(pd.DataFrame({"code": [value]})).tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (
            "sex",
            "X",
            r"'sex' has the value 'X' in row 0, which is not among its categories \('F'\)",
        ),
        ("size", None, "column 'size' has 1 missing value, the first in row 0"),
        ("age", None, "column 'age' has 1 missing value, the first in row 0"),
        ("age", "old", "column 'age' has 1 value no finite number, .* 'old' in row 0"),
        ("age", np.inf, "column 'age' has 1 value no finite number, .* 'inf' in row 0"),
    ],
)
def test_a_value_that_cannot_be_encoded(column: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ENCODING.apply(pd.DataFrame({**ROW, column: [value]}))


def test_columns_that_are_absent_or_occur_twice() -> None:
    with pytest.raises(ValueError, match=r"no column \('age', 'size'\)"):
        ENCODING.apply(pd.DataFrame({"sex": ["F"]}))
    twice = pd.DataFrame([[1, 2, "S", "F"]], columns=["age", "age", "size", "sex"])
    with pytest.raises(ValueError, match="column name 'age' occurs more than once"):
        ENCODING.apply(twice)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"columns": []},
        {"columns": [{"kind": "cubic", "name": "a"}], "source": ""},
        {"columns": [{"kind": "numeric", "name": "a", "mean": 0.0}], "source": ""},
        {"columns": [{"kind": "numeric", "name": "a", "mean": 0.0, "sd": None}], "source": ""},
        {"columns": [3], "source": ""},
        {"columns": [{"kind": "numeric", "name": "a", "mean": 0.0, "sd": -1.0}], "source": ""},
    ],
)
def test_a_dictionary_that_is_no_encoding(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"not the dictionary of an encoding|sd of column|columns"):
        Encoding.from_dict(values)


LEVELS = Encoding(
    (
        Numeric("age", 40.0, 10.0, missing=True),
        Ordinal("size", 1.0, 0.5, ("S", "M", "L"), missing=True),
        OneHot("sex", ("F", "M")),
    ),
    "Made up.",
)


def test_blanks_that_have_a_level_are_known_and_others_are_not() -> None:
    names = ("age", "age is missing", "size", "size is missing", "sex=F", "sex=M")
    assert LEVELS.feature_names == names
    rows = pd.DataFrame({"age": [None, 50], "size": ["S", None], "sex": ["F", "M"]})
    x = LEVELS.apply(rows)
    assert x.tolist() == [[0, 1, -2, 0, 1, 0], [1, 0, 0, 1, 0, 1]]
    assert Encoding.from_dict(json.loads(json.dumps(LEVELS.to_dict()))) == LEVELS
    with pytest.raises(ValueError, match="'sex' has 1 missing value, the first in row 1"):
        LEVELS.apply(rows.assign(sex=pd.Series(["F", None])))
    with pytest.raises(ValueError, match="'size' has the value 'XL'"):
        LEVELS.apply(rows.assign(size=pd.Series(["XL", None])))


def test_what_is_not_known_is_counted_and_taken_for_the_mean() -> None:
    rows = pd.DataFrame(
        {"age": [50.0, None, 60.0], "size": ["XL", "S", "XXL"]}, index=["p", "q", "r"]
    )
    base = replace(ENCODING, unknown="base")
    x, counts = base.encode_and_count(rows)
    assert x.tolist() == [[1, 0, 0], [0, -2, 0], [2, 0, 0]]
    assert counts == {"age": 1, "size": 2, "sex": 3}
    with pytest.warns(UserWarning, match="1 of 'age', 2 of 'size', 3 of 'sex'"):
        assert base.apply(rows).tolist() == x.tolist()
    with pytest.raises(ValueError, match="no column") as refused:
        ENCODING.apply(rows)
    lines = str(refused.value).splitlines()
    assert len(lines) == 3
    assert "'age' has 1 missing value, the first in row q" in lines[1]
    assert "'XL' in row p, which" in lines[2]
    assert "and 1 further value" in lines[2]
    assert all("--unknown base" in line for line in lines)
    # What is no number is a mistake under either policy.
    with pytest.raises(ValueError, match="'old' in row q"):
        base.apply(rows.assign(age=["50", "old", "60"]))


def test_a_missing_column_is_no_blank() -> None:
    x, counts = replace(LEVELS, unknown="base").encode_and_count(pd.DataFrame({"sex": ["F"]}))
    assert x.tolist() == [[0, 0, 0, 0, 1, 0]]
    assert counts == {"age": 1, "size": 1}


def test_encodings_that_were_written_before_unknown_and_missing_refuse_both() -> None:
    old = {"columns": [{"kind": "numeric", "name": "a", "mean": 0.0, "sd": 1.0}], "source": "x"}
    assert Encoding.from_dict(old) == Encoding((Numeric("a", 0.0, 1.0),), "x", "refuse")

"""X and y as people have them: one table whatever carries it, and one odd row is one odd row."""

from __future__ import annotations

import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import bdpvi
from bdpvi.datasets.looks import ReadingWarning
from bdpvi.datasets.schema import Schema
from bdpvi.datasets.types import ColumnType
from bdpvi.sklearn import PrivateLinearRegression, PrivateLogisticRegression
from bdpvi.sklearn.inputs import column_of

N = 60
NUMBERS = pd.DataFrame({"age": np.arange(N) % 17 + 20, "dose": np.sin(np.arange(N)).round(6)})
ROWS: list[list[Any]] = [[int(a), float(d)] for a, d in NUMBERS.itertuples(index=False)]
TOWN = pd.CategoricalDtype(["N", "S"])
WARD = ["N" if at % 3 else "S" for at in range(N)]
Y = (NUMBERS["dose"] > 0).astype(int)
BOUNDS: dict[str, Any] = {"bounds": ([20, -1], [37, 1]), "expected_rows": N, "random_state": 0}
CLASSES: dict[str, Any] = {**BOUNDS, "classes": (0, 1)}

pytestmark = [
    pytest.mark.filterwarnings("ignore::bdpvi.PrivacyUtilityWarning"),
    pytest.mark.filterwarnings("ignore::bdpvi.sklearn.PrivacyLeakWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning"),
]

KINDS: dict[str, Any] = {
    "numpy dtypes": lambda frame: frame,
    "nullable": lambda frame: frame.convert_dtypes(),
    "of pyarrow": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "named index": lambda frame: frame.set_index(pd.Index(range(7, N + 7), name="id")),
    "array": lambda frame: frame.to_numpy(),
    "array of objects": lambda frame: frame.to_numpy(dtype=object),
    "array of texts": lambda frame: frame.to_numpy().astype(str),
    "lists": lambda frame: ROWS,
    "tuples": lambda frame: tuple(map(tuple, ROWS)),
    "mappings": lambda frame: frame.to_dict("records"),
    "columns": lambda frame: {name: frame[name].tolist() for name in frame},
    "tensor": lambda frame: torch.from_numpy(frame.to_numpy()),
    "Polars": lambda frame: pl.DataFrame(frame.to_dict("list")),
    "lazy Polars": lambda frame: pl.LazyFrame(frame.to_dict("list")),
    "pyarrow": lambda frame: pa.Table.from_pandas(frame),
    "DuckDB": lambda frame: duckdb.from_arrow(pa.Table.from_pandas(frame)),
    "decimals": lambda frame: pa.table(
        {"age": frame["age"], "dose": [Decimal(str(one)) for one in frame["dose"]]}
    ),
}
TARGETS: dict[str, Any] = {
    "list": lambda y: y.tolist(),
    "array": lambda y: y.to_numpy(),
    "series": lambda y: y.set_axis(range(5, N + 5)),
    "nullable": lambda y: y.astype("Int64"),
    "column": lambda y: y.to_numpy()[:, None],
    "column of lists": lambda y: [[one] for one in y],
    "frame": lambda y: y.to_frame(),
    "Polars": lambda y: pl.Series(y.tolist()),
    "pyarrow": lambda y: pa.array(y.tolist()),
    "chunks": lambda y: pa.chunked_array([y.tolist()[:9], y.tolist()[9:]]),
    "tensor": lambda y: torch.tensor(y.tolist()),
    "Booleans": lambda y: y.astype(bool),
    "list of Booleans": lambda y: y.astype(bool).tolist(),
    "texts": lambda y: y.astype(str).tolist(),
    "doubles": lambda y: y.astype(float),
}


def coefficients(X: Any, y: Any, **given: Any) -> list[float]:
    """Return those of an experiment."""
    model = PrivateLogisticRegression(**{**CLASSES, **given}).fit(X, y)
    return [*model.coef_[0], *model.intercept_]


@pytest.fixture(scope="module")
def expected() -> list[float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return coefficients(NUMBERS, Y)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_one_whatever_carries_it(kind: str, expected: list[float]) -> None:
    X = KINDS[kind](NUMBERS)
    model = PrivateLogisticRegression(**CLASSES).fit(X, Y)
    assert [*model.coef_[0], *model.intercept_] == expected
    assert model.encoding_ is None
    bought: Any = {"random_state": 0, "classes": (0, 1), "expected_rows": N}
    made = [PrivateLogisticRegression(**bought).fit(one, Y) for one in (X, NUMBERS)]
    assert made[0].coef_.tolist() == made[1].coef_.tolist()
    assert made[0].center_.tolist() == made[1].center_.tolist()
    named = kind not in ("array", "array of objects", "array of texts", "lists", "tuples", "tensor")
    assert [*getattr(model, "feature_names_in_", ())] == (["age", "dose"] if named else [])
    assert model.predict(X).shape == (N,)


@pytest.mark.parametrize("kind", TARGETS)
def test_a_target_is_one_whatever_carries_it(kind: str, expected: list[float]) -> None:
    assert coefficients(NUMBERS, TARGETS[kind](Y)) == expected
    found = PrivateLinearRegression(**BOUNDS, target_bounds=(-2, 2)).fit(ROWS, TARGETS[kind](Y))
    usual = PrivateLinearRegression(**BOUNDS, target_bounds=(-2, 2)).fit(ROWS, Y)
    assert found.coef_.tolist() == usual.coef_.tolist()


def test_names_are_one_whatever_carries_them() -> None:
    words = Y.map({0: "NA", 1: "01"})
    model = PrivateLogisticRegression(**{**CLASSES, "classes": ("NA", "01")}).fit(NUMBERS, words)
    assert model.classes_.tolist() == ["01", "NA"] == sorted({*model.predict(NUMBERS)})
    for one in (words.tolist(), words.astype("string"), pl.Series(words.tolist())):
        assert coefficients(NUMBERS, one, classes=("NA", "01")) == [
            *model.coef_[0],
            *model.intercept_,
        ]
    taken = PrivateLogisticRegression(**{**CLASSES, "classes": None})
    for y in (Y.tolist(), Y, Y.astype("Int64"), torch.tensor(Y.tolist()), pl.Series(Y.tolist())):
        assert taken.fit(NUMBERS, y).classes_.tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"classes=.*levels must be different"):
        coefficients(NUMBERS, words, classes=("a", "a "))


@pytest.mark.parametrize("blank", [False, True])
def test_what_a_frame_declares_is_one_whatever_library_it_is_of(blank: bool) -> None:
    """A blank changes no type: neither the number of features nor whether a table is taken."""
    smokes: list[Any] = [at % 2 == 0 for at in range(N)]
    age: list[Any] = NUMBERS["age"].tolist()
    if blank:
        smokes[3] = age[4] = None
    ward = pd.Categorical(WARD, dtype=TOWN)
    frame = pd.DataFrame({"age": pd.array(age, dtype="Int64"), "ward": ward})
    frame["smokes"] = pd.array(smokes, dtype="boolean")
    table = pa.table({"age": age, "ward": pa.DictionaryArray.from_pandas(ward), "smokes": smokes})
    polars = pl.DataFrame(
        {"age": age, "ward": WARD, "smokes": smokes}, schema_overrides={"ward": pl.Enum(["N", "S"])}
    )
    given: dict[str, Any] = {"bounds": (20, 37)}
    first = coefficients(frame, Y, **given)
    assert len(first) == 11
    for one in (frame.convert_dtypes(dtype_backend="pyarrow"), table, polars):
        assert coefficients(one, Y, **given) == first
    types = Schema(
        {
            "ward": ColumnType(kind="category", levels=("N", "S")),
            "smokes": ColumnType(kind="boolean"),
        },
        "Questionnaire",
    )
    rows = [dict(zip(frame, one, strict=True)) for one in zip(age, WARD, smokes, strict=True)]
    assert coefficients(rows, Y, **given, types=types) == first
    assert coefficients(frame.astype({"ward": object}), Y, **given, types=types) == first


REFUSED: dict[str, tuple[Any, str]] = {
    "objects": (NUMBERS.astype(object), "column 'age' has dtype object, which declares no levels"),
    "texts": (pl.DataFrame({"age": WARD}), "column 'age' has dtype .*, which declares no levels"),
    "equal names": (NUMBERS.set_axis(["a", " a"], axis=1), "X: the column name 'a' occurs more"),
    "a file": ("patients.csv", "X: str is none of a data frame, an array and a list of rows"),
    "a table of a file": (bdpvi.Table.of(NUMBERS), "X: Table is none of a data frame"),
    "cells": ([1.0, 2.0], "Expected 2D array"),
    "a stream": (iter(ROWS), "X: list_iterator is none of a data frame"),
    "complex numbers": (NUMBERS.assign(age=1j), "column 'age' has dtype complex128"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_table_of_declared_types_is_refused_before_a_charge(
    kind: str, tmp_path: Path
) -> None:
    X, message = REFUSED[kind]
    model = PrivateLogisticRegression(classes=(0, 1), ledger=str(tmp_path / "people.jsonl"))
    with pytest.raises(ValueError, match=message):
        model.fit(X, Y)
    wrong: tuple[Any, ...] = (NUMBERS, Y.to_numpy().reshape(2, -1, 1), 7, None)
    for y in wrong:
        with pytest.raises(ValueError, match=r"y|1d|shape"):
            model.fit(NUMBERS, y)
    with pytest.raises(ValueError, match=r"unit.* has dtype float64, which names nobody exactly"):
        model.fit(NUMBERS, Y, unit=np.arange(N) / 2)
    assert [*tmp_path.iterdir()] == []


ODD = [[1.0], [1, 2.0, 3.0], [1, "x"], ["x", None], ["1e400", 2.0], None, 7, "row", [[1], 2.0]]


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_row_of_a_list_is_left_out_alone(odd: Any, expected: list[float]) -> None:
    """Whichever row it is: one of another length, a word, or no row at all; with its target."""
    for at in (0, 7, N):
        rows, y = [*ROWS[:at], odd, *ROWS[at:]], Y.tolist()
        model = PrivateLogisticRegression(**CLASSES).fit(rows, [*y[:at], 1, *y[at:]])
        assert [*model.coef_[0], *model.intercept_] == expected
        assert np.delete(model.predict(rows), at).tolist() == model.predict(ROWS).tolist()


def test_whole_numbers_of_persons_stay_exact_beside_an_odd_cell() -> None:
    """19 digits that a double takes for one person are 60, whatever the last cell is."""
    persons: list[Any] = [10**18 + at for at in range(N)]
    for odd in ("1e5", 0.5, None):
        found = column_of([*persons, odd])
        assert found.tolist()[:N] == persons
    model = PrivateLogisticRegression(**CLASSES)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit([*ROWS, [20, 0.0]], [*Y, 1], unit=[*persons, "1e5"])
    assert not [one for one in told if "more than" in str(one.message)]


def test_predictions_count_the_cells_that_say_nothing() -> None:
    numbers = PrivateLogisticRegression(**CLASSES).fit(NUMBERS, Y)
    odd = pd.DataFrame({"age": [30, None, "x"], "dose": ["?", 0.5, 0.5]}, dtype=object)
    with pytest.warns(ReadingWarning, match="blank: 1 of 'age', 1 of 'dose'; unfit: 1 of 'age'"):
        found = numbers.predict_proba(odd)
    centre = pd.DataFrame({"age": [30, 28.5, 28.5], "dose": [0, 0.5, 0.5]})
    np.testing.assert_allclose(found, numbers.predict_proba(centre), rtol=1e-12)
    ward = NUMBERS.assign(ward=pd.Categorical(WARD, dtype=TOWN))
    model = PrivateLogisticRegression(**CLASSES).fit(ward, Y)
    new: Any = [{"age": 30, "dose": "x", "ward": "W"}, {"age": 30, "dose": None, "ward": "N"}, 7]
    with pytest.warns(ReadingWarning, match="unfit: 1 of 'dose'; unlisted level: 1 of 'ward'"):
        assert model.predict(new).shape == (3,)

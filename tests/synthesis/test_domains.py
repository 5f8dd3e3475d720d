"""Schemas: codes of any cell, the public grid, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdpvi.datasets import Domain, Schema, constants_of, read_constants

AGE = Domain(low=0, high=110, integer=True)
SEX = Domain(levels=("F", "M"))
SCHEMA = Schema({"age": AGE, "sex": SEX, "pay": Domain(low=-1e4, high=1.1e5)}, "Questionnaire")


def test_cells_have_codes_whatever_they_hold() -> None:
    ages, said = AGE.encode(pd.Series(["-3", "0", "110", "1e9", "", "?", "old"]))
    assert ages.tolist() == [0, 0, 110, 110, 111, 111, 112]
    assert str(said) == (
        "2 values out of range and clamped, more than 5 %: are the bounds right?; 1 value no number"
    )
    sexes, said = SEX.encode(pd.Series(["F", " M", None, "X", 7], dtype=object))
    assert sexes.tolist() == [0, 1, 2, 3, 3]
    assert str(said) == "2 values no level, such as '7'"


def test_numbers_have_the_codes_of_their_texts() -> None:
    values = [-2e4, -0.0, 0.0, 1e-9, 3.7, 5e4, math.nan, math.inf]
    pay = SCHEMA.columns["pay"]
    texts = pay.encode(pd.Series([repr(one) for one in values[:-1]]))[0]
    assert pay.encode(pd.Series(values))[0].tolist() == [*texts, pay.cells + 1]


@given(
    st.floats(-1e6, 1e6),
    st.floats(0, 1e6),
    st.booleans(),
    st.lists(st.floats(-2e6, 2e6), max_size=9),
)
def test_the_grid_holds_every_number_between_the_bounds(
    low: float, span: float, integer: bool, values: list[float]
) -> None:
    if integer:
        low, span = round(low), round(span)
    domain = Domain(low=low, high=low + span, integer=integer)
    edges = domain.edges
    assert edges is not None
    assert (np.diff(edges) > 0).all()
    assert edges[0] == domain.low
    assert len(edges) < 400
    inside = np.clip([*values, low, low + span], low, low + span)
    inside = np.round(inside) if integer else inside
    codes = domain.encode(pd.Series(inside))[0]
    assert ((codes >= 0) & (codes < domain.cells)).all()
    back = domain.decode(codes, np.random.default_rng(0)).to_numpy()
    assert (domain.encode(pd.Series(back))[0] == codes).all()
    assert ((back >= domain.low) & (back <= domain.high)).all()


def test_bounds_and_zero_stand_alone() -> None:
    codes, _ = Domain(low=-5, high=5).encode(
        pd.Series([-5.0, -4.9999, -1e-9, 0.0, 1e-9, 4.9999, 5])
    )
    assert len(set(codes)) == 7


def test_a_schema_is_read_as_it_was_written(tmp_path: Path) -> None:
    SCHEMA.save(tmp_path / "s.json")
    assert Schema.load(tmp_path / "s.json") == SCHEMA
    short = '{"source": "law", "columns": {"age": {"low": 0, "high": 9}, "a": {"levels": ["x"]}}}'
    (tmp_path / "short.json").write_text(short, encoding="utf-8")
    assert Schema.load(tmp_path / "short.json").columns["age"] == Domain(low=0, high=9)
    with pytest.raises(ValueError, match="exists already"):
        SCHEMA.save(tmp_path / "s.json")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"columns": {"a": {"levels": ["x"]}}}', "source is missing"),
        ('{"source": "", "columns": {}}', "at least one"),
        ('{"source": "", "columns": {"a": {"low": 0}}}', "give levels, or low and high"),
        ('{"source": "", "columns": {"a": {"low": 2, "high": 1}}}', "low=2.0 must be at most"),
        ('{"source": "", "columns": {"a": {"low": 2, "high": 1}}}', r"columns\.a: low=2\.0 "),
        ('{"source": "", "columns": {"a": {"low": 0.5, "high": 1, "integer": true}}}', "whole"),
        ('{"source": "", "columns": {"a": {"levels": ["1", "1.0"]}}}', "levels must differ"),
        ('{"source": "", "columns": {"a": {"levels": ["?"]}}}', "not be blank"),
        ('{"source": "", "columns": {"a": {"levels": []}}}', "1 to 1000 names"),
        ('{"source": "", "columns": {"a": {"wide": 3}}}', "wide is not known"),
        ('{"source": "", "columns": {" a": {"levels": ["x"]}}}', "blanks around it"),
        ("{", "not a schema"),
        ('{"source": "", "a": {"mean": 3, "sd": 1}}', r"columns\.a\.mean is not known"),
        ('{"source": "", "a": [1, 2, 3]}', r"levels\[0\] must be str"),
        ('{"source": "", "a": [0, 9], "columns": {"a": [0, 9]}}', "a is not known"),
        ('{"source": "", "columns": {"a": [0, 9]}, "left_out": {"a": "id"}}', "left_out has 'a'"),
    ],
)
def test_bad_schemas_are_refused_by_name(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "s.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=said) as error:
        Schema.load(tmp_path / "s.json")
    assert "s.json" in str(error.value)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["age", "sex"], "'pay' must be in the table once, there are 0"),
        (["age", "sex", "pay", "pay"], "'pay' must be in the table once, there are 2"),
        (["age", "sex", "pay", "name"], r"schema lacks the columns \['name'\]"),
    ],
)
def test_headers_are_refused_by_name(columns: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SCHEMA.encode(pd.DataFrame([[1] * len(columns)], columns=columns))


def test_the_files_of_constants_and_of_schemas_are_one_format(tmp_path: Path) -> None:
    short = {"source": "law", "age": [0, 99.5], "sex": ["F", "M"], "well": [True, False]}
    expected = Schema(
        {
            "age": Domain(low=0, high=99.5),
            "sex": Domain(levels=("F", "M")),
            "well": Domain(levels=("True", "False")),
        },
        "law",
    )
    within = {"source": "law", "columns": {k: v for k, v in short.items() if k != "source"}}
    for content in (short, within):
        (tmp_path / "s.json").write_text(json.dumps(content), encoding="utf-8")
        assert Schema.load(tmp_path / "s.json") == expected
    (tmp_path / "s.json").unlink()
    expected.save(tmp_path / "s.json")
    assert read_constants(tmp_path / "s.json") == constants_of(short)
    content = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    content["columns"]["age"]["from_data"] = True
    with pytest.raises(ValueError, match="'age' is marked from_data"):
        constants_of(content)

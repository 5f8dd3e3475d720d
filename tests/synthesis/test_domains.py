"""Schemas: codes of any cell, the public grid, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdpvi.datasets import ColumnType, Schema, constants_of, grid, read_constants

AGE = ColumnType(low=0, high=110, whole=True)
SEX = ColumnType(levels=("F", "M"))
SCHEMA = Schema({"age": AGE, "sex": SEX, "pay": ColumnType(low=-1e4, high=1.1e5)}, "Questionnaire")


def test_cells_have_codes_whatever_they_hold() -> None:
    ages, said = grid.encode(AGE, pd.Series(["-3", "0", "110", "1e9", "", "?", "old"]))
    assert ages.tolist() == [0, 0, 110, 110, 111, 111, 112]
    assert grid.words_of_unfit(said) == (
        "2 values out of range and clamped, more than 5 %: are the bounds right?; 1 value no number"
    )
    sexes, said = grid.encode(SEX, pd.Series(["F", " M", None, "X", 7], dtype=object))
    assert sexes.tolist() == [0, 1, 2, 3, 3]
    assert grid.words_of_unfit(said) == "2 values no level, such as '7'"


def test_numbers_have_the_codes_of_their_texts() -> None:
    values = [-2e4, -0.0, 0.0, 1e-9, 3.7, 5e4, math.nan, math.inf]
    pay = SCHEMA.columns["pay"]
    texts = grid.encode(pay, pd.Series([repr(one) for one in values[:-1]]))[0]
    assert grid.encode(pay, pd.Series(values))[0].tolist() == [*texts, grid.cells(pay) + 1]


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
    domain = ColumnType(low=low, high=low + span, whole=integer)
    edges = grid.edges(domain)
    assert edges is not None
    assert (np.diff(edges) > 0).all()
    assert edges[0] == domain.low
    assert len(edges) < 400
    inside = np.clip([*values, low, low + span], low, low + span)
    inside = np.round(inside) if integer else inside
    codes = grid.encode(domain, pd.Series(inside))[0]
    assert ((codes >= 0) & (codes < grid.cells(domain))).all()
    back = grid.decode(domain, codes, np.random.default_rng(0)).to_numpy()
    assert (grid.encode(domain, pd.Series(back))[0] == codes).all()
    assert ((back >= domain.low) & (back <= domain.high)).all()


def test_a_schema_is_read_as_it_was_written(tmp_path: Path) -> None:
    SCHEMA.save(tmp_path / "s.json")
    assert Schema.load(tmp_path / "s.json") == SCHEMA
    short = '{"source": "law", "columns": {"age": {"low": 0, "high": 9}, "a": {"levels": ["x"]}}}'
    (tmp_path / "short.json").write_text(short, encoding="utf-8")
    assert Schema.load(tmp_path / "short.json").columns["age"] == ColumnType(low=0, high=9)
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
            "age": ColumnType(low=0, high=99.5),
            "sex": ColumnType(levels=("F", "M")),
            "well": ColumnType(levels=("True", "False")),
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
    with pytest.raises(ValueError, match="'age' is marked as read"):
        constants_of(content)


@pytest.mark.parametrize(
    ("entry", "now"),
    [
        ({"levels": None, "low": 0.0, "high": 9.0, "integer": True, "from_data": False,
          "bought": True}, ColumnType(low=0, high=9, whole=True, origin="estimated")),
        ({"levels": ["a", "b"], "from_data": True}, ColumnType(levels=("a", "b"), origin="rows")),
        ({"low": 0, "high": 9, "from_data": True, "bought": True},
         ColumnType(low=0, high=9, origin="rows")),
        ({"low": 0, "high": 9, "integer": True, "type": {"kind": "date", "since": "2000-01-01"}},
         ColumnType(kind="date", since="2000-01-01", low=0, high=9)),
        ({"low": 0, "high": 9, "integer": True, "type": {"kind": "number", "step": 10.0}},
         ColumnType(kind="number", step=10, low=0, high=9, whole=True)),
        ({"low": 0, "high": 9, "integer": False, "type": {"kind": "number", "step": 1.0}},
         ColumnType(kind="number", step=1, low=0, high=9)),
        ({"kind": "code", "levels": ["007", "7"], "from_data": False, "bought": False},
         ColumnType(kind="code", levels=("007", "7"))),
        ({"levels": ["False", "True"], "type": {"kind": "boolean"}},
         ColumnType(kind="boolean", levels=("False", "True"))),
    ],
)  # fmt: skip
def test_entries_of_earlier_versions_are_read_as_before(
    entry: dict[str, Any], now: ColumnType, tmp_path: Path
) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"source": "law", "columns": {"a": entry}}), encoding="utf-8")
    assert Schema.load(path).columns == {"a": now}
    beside = {"source": "law", "columns": {"a": entry}, "types": {"b": {"kind": "code"}}}
    path.write_text(json.dumps(beside), encoding="utf-8")
    assert Schema.load(path).columns == {"a": now, "b": ColumnType(kind="code")}
    again = tmp_path / "again.json"
    Schema.load(path).save(again)
    assert Schema.load(again) == Schema.load(path)


def test_a_mark_without_levels_or_bounds_says_nothing(tmp_path: Path) -> None:
    """The owner may delete what came from the rows and keep the kind: it is then estimated."""
    entry = {"kind": "code", "origin": "rows"}
    content = {"source": "law", "columns": {"a": entry, "b": [0, 1]}}
    (tmp_path / "s.json").write_text(json.dumps(content), encoding="utf-8")
    assert Schema.load(tmp_path / "s.json").from_rows == ()

"""Each cell is read by itself: a row says nothing about how another one is read."""

from __future__ import annotations

import datetime
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdpvi.datasets.cells import read_cell, read_cells
from bdpvi.datasets.spelling import shown

CELLS = st.one_of(
    st.floats(), st.integers(-(10**20), 10**20), st.booleans(), st.none(), st.text(max_size=5),
    st.sampled_from(
        [
            "1", "1.0", " 2 ", "1e300", "1e999", "-", "?", "N/A", "", "1,234", "2020-01-01", "∞",
            "9" * 400, 10**400, pd.NA, pd.NaT, np.float32(0.5), np.int64(3), "=cmd()", "a\x00b",
            datetime.date(2020, 1, 1),
        ]
    ),
)  # fmt: skip


@given(st.lists(CELLS, min_size=1, max_size=8), st.data())
def test_without_a_row_the_others_are_read_as_before(
    column: list[object], data: st.DataObject
) -> None:
    i = data.draw(st.integers(0, len(column) - 1))
    whole = read_cells(pd.Series(column, dtype=object))
    less = read_cells(pd.Series(column[:i] + column[i + 1 :], dtype=object))
    kept = np.arange(len(column)) != i
    np.testing.assert_array_equal(whole.numbers[kept], less.numbers)
    labels = [[one.names[c] if c >= 0 else None for c in one.codes] for one in (whole, less)]
    assert [name for name, keep in zip(labels[0], kept, strict=True) if keep] == labels[1]


@given(st.lists(CELLS, max_size=8))
def test_a_column_is_its_cells(column: list[object]) -> None:
    found = read_cells(pd.Series(column, dtype=object))
    for i, cell in enumerate(column):
        number, label, blank = read_cell(cell)
        assert found.blank[i] == blank
        np.testing.assert_equal(found.numbers[i], number)
        assert blank or found.names[found.codes[i]] == label
        assert math.isnan(number) or math.isfinite(number)
        assert label.isprintable()


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("007", (7.0, "7", False)), (True, (math.nan, "True", False)),
        ("1e400", (math.nan, "1e400", False)), (10**400, (math.nan, shown(str(10**400)), False)),
        ("NULL", (math.nan, "", True)), ("a\x1b[2J", (math.nan, "a\ufffd[2J", False)),
    ],
)  # fmt: skip
def test_examples(cell: object, expected: tuple[float, str, bool]) -> None:
    np.testing.assert_equal(read_cell(cell), expected)

"""Synthetic rows, written to a file, are read as they were by the schema of the table's file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bdpvi.commands.sampled import rows_text
from bdpvi.datasets import ColumnType, Schema, grid
from bdpvi.datasets.cells import read_cells
from bdpvi.datasets.table import Table
from bdpvi.synthesis import load
from bdpvi.synthesis.synthetic import Synthetic

_TEXTS = st.text("abAB01 -+=@'.,;é\"", min_size=1, max_size=6).map(str.strip)
_LEVELS = (
    st.lists(_TEXTS, min_size=1, max_size=5)
    .map(lambda some: tuple(dict.fromkeys(one for one in some if one not in ("", "?", "-"))))
    .filter(bool)
)
_SIGNS = st.sampled_from([{}, {"decimal": ","}, {"decimal": ",", "thousands": "."}])
_BOUNDS = st.tuples(st.integers(-(10**6), 10**6), st.integers(0, 10**5)).map(
    lambda pair: {"low": float(pair[0]), "high": float(pair[0] + pair[1])}
)


@st.composite
def types(draw: st.DrawFn) -> ColumnType:
    """Return a type with levels or bounds, and with all that may change how a cell is read."""
    kind = draw(st.sampled_from(["category", "code", "ordered", "boolean", "number", "integer",
                                 "date", "datetime", "any"]))  # fmt: skip
    if kind == "boolean":
        return ColumnType(kind=kind, levels=draw(st.sampled_from([None, ("no", "yes")])))
    if kind in ("category", "code", "ordered"):
        return ColumnType(kind=kind, levels=draw(_LEVELS), blank=draw(st.sampled_from([None, ()])))
    more: dict[str, Any] = draw(_BOUNDS)
    if kind in ("number", "integer", "any"):
        more |= draw(_SIGNS)
    if kind in ("number", "any"):
        more |= {"whole": draw(st.booleans())}
    if kind == "number":
        more |= {"step": draw(st.sampled_from([None, 0.01, 0.5, 10.0]))}
        more |= {"symbol": draw(st.sampled_from([None, "$"])), "missing": {"9999": "not asked"}}
    if kind == "date":
        more |= {"low": more["low"] / 100 // 1, "high": more["high"] / 100 // 1}
        more |= {"date_format": draw(st.sampled_from([None, "%d.%m.%Y"]))}
    if kind == "datetime":
        more |= {"zone": draw(st.sampled_from([None, "Europe/Berlin"]))}
    return ColumnType(kind=kind, **more)


@given(type=types(), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_column_of_any_type_comes_back(type: ColumnType, seed: int) -> None:
    random = np.random.default_rng(seed)
    schema = Schema({"a": type}, "law")
    codes = random.integers(grid.size(type), size=(40, 1))
    rows = schema.decode(codes, random)
    made = Synthetic(None, schema, None, None, None)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        path.write_bytes(rows_text(made, rows))
        back = Table.of(path).frame(text=True)["a"]
    found = read_cells(back, schema.of_rows().columns["a"].reading)
    held = read_cells(rows["a"], schema.of_rows().columns["a"].reading)
    assert found.blank.tolist() == held.blank.tolist()
    if type.bounds is not None:
        assert found.numbers.tolist() == pytest.approx(held.numbers.tolist(), nan_ok=True, rel=0)
        assert (found.blank == (codes[:, 0] >= grid.cells(type))).all()
    else:
        drawn = codes[:, 0]
        if type.kind == "boolean":  # "other" is neither yes nor no
            drawn = np.minimum(drawn, grid.cells(type))
        assert grid.encode(type, back)[0].tolist() == drawn.tolist()


def test_the_file_of_a_synthetic_table_is_its_schema(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    cells = rng.choice(["27,3", "1.081,5", "66,0"], 3000)
    frame = pd.DataFrame({"pay": cells, "grade": rng.choice(["-high", "=low", "007"], 3000)})
    pay = ColumnType(kind="number", decimal=",", thousands=".", step=0.1, low=0, high=2000)
    given_ = Schema({"pay": pay, "grade": ColumnType(kind="code")}, "form")
    made = flat.synthesize(frame, given_, epsilon=5.0, progress=False)
    made.save(tmp_path / "synthetic.json")
    assert load(tmp_path / "synthetic.json").schema == made.schema
    assert made.schema.columns["pay"] == pay
    schema = Schema.load(tmp_path / "synthetic.json")
    assert schema.columns["grade"] == made.schema.columns["grade"]
    assert schema.columns["grade"].origin == "estimated"
    rows = made.sample(500, seed=0)
    (tmp_path / "rows.csv").write_bytes(rows_text(made, rows))
    back = Table.of(tmp_path / "rows.csv").frame(text=True)
    np.testing.assert_array_equal(schema.encode(back)[0], made.schema.encode(rows)[0])
    assert not any(map(grid.words_of_unfit, schema.encode(back)[1].values()))


def test_spellings_of_levels_that_were_not_found_do_no_harm() -> None:
    """Nothing that the rows decide may be refused after the charge."""
    frame = pd.DataFrame({"sex": ["F"] * 3000 + ["m"]})
    sex = ColumnType(kind="category", spellings={"M": ("m",), "F": ("f", "w")})
    made = flat.synthesize(frame, Schema({"sex": sex}, "form"), epsilon=1.0, progress=False)
    assert made.schema.columns["sex"].levels == ("F",)
    assert made.schema.columns["sex"].spellings == {"F": ("f", "w")}

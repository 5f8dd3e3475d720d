"""Declared types: how cells are read, that they go with releases, and what is refused."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bdpvi
from bdpvi.datasets import (
    Encoding,
    Schema,
    constants_of,
    from_csv,
    from_frame,
    grid,
    read_constants,
)
from bdpvi.datasets.cells import read_cell, read_cells, series_of
from bdpvi.datasets.types import ColumnType
from bdpvi.score.reading import UNFIT
from bdpvi.synthesis import Counts
from bdpvi.synthesis.synthetic import of_bytes

BLANK = (math.nan, "", True)
NUMBER = ColumnType(kind="number", decimal=",", thousands=".")


def name(text: str) -> tuple[float, str, bool]:
    return math.nan, text, False


def number(value: float) -> tuple[float, str, bool]:
    return value, read_cell(value)[1], False


@pytest.mark.parametrize(
    ("type_", "cell", "expected"),
    [
        (NUMBER, "27,3", number(27.3)),
        (NUMBER, "1.234,5", number(1234.5)),
        (NUMBER, "-,5e1", number(-5.0)),
        (NUMBER, "27.3", BLANK),
        (NUMBER, "12.34", BLANK),
        (NUMBER, 27.3, number(27.3)),
        (NUMBER, True, number(1.0)),
        (NUMBER, "9" * 400, BLANK),
        (ColumnType(kind="number", thousands=" "), "1\u202f234.5", number(1234.5)),
        (ColumnType(kind="number", blank=("-9",)), -9.0, BLANK),
        (ColumnType(kind="number", blank=("-9",)), "-9.0", BLANK),
        (ColumnType(kind="integer"), "7.0", number(7.0)),
        (ColumnType(kind="integer"), "7.5", BLANK),
        (ColumnType(kind="code"), "01002", name("01002")),
        (ColumnType(kind="code"), " 1E1 ", name("1E1")),
        (ColumnType(kind="code"), "1.0", name("1.0")),
        (ColumnType(kind="code", blank=()), "NA", name("NA")),
        (ColumnType(kind="code"), 1002, name("1002")),
        (ColumnType(kind="category"), "007", name("007")),
        (ColumnType(kind="category"), "7.0", name("7")),
        (ColumnType(kind="category"), 7.0, name("7")),
        (ColumnType(kind="category"), "NA", BLANK),
        (ColumnType(kind="category", levels=("NA", "-")), "NA", name("NA")),
        (ColumnType(kind="category", levels=("NA", "-")), "None", BLANK),
        (ColumnType(kind="category", levels=("7", "7.0")), "7.0", name("7.0")),
        (ColumnType(kind="ordered", levels=("1", "2")), 2.0, name("2")),
        (ColumnType(kind="category", blank=("99",)), "NA", name("NA")),
        (ColumnType(kind="category", blank=("99",)), 99, BLANK),
        (ColumnType(kind="category", blank=("99",)), "", BLANK),
        (ColumnType(kind="category", spellings={"yes": ("Yes", "ja")}), "ja", name("yes")),
        (ColumnType(kind="boolean"), True, name("True")),
        (ColumnType(kind="boolean"), np.False_, name("False")),
        (ColumnType(kind="boolean"), "YES ", name("True")),
        (ColumnType(kind="boolean"), 0.0, name("False")),
        (ColumnType(kind="boolean"), "perhaps", BLANK),
        (ColumnType(kind="boolean", levels=("no", "yes")), "Y", name("yes")),
        (ColumnType(kind="date"), "1970-01-02", number(1.0)),
        (ColumnType(kind="date"), "1970-01-02T10:00", number(1.0)),
        (ColumnType(kind="date"), pd.Timestamp("1970-01-03 23:00"), number(2.0)),
        (ColumnType(kind="date"), np.datetime64("1969-12-31"), number(-1.0)),
        (ColumnType(kind="date", date_format="%d.%m.%Y"), "02.01.1970", number(1.0)),
        (ColumnType(kind="date", date_format="%d.%m.%Y"), "1970-01-02", BLANK),
        (ColumnType(kind="date", since="2000-01-01"), "2000-02-30", BLANK),
        (ColumnType(kind="any", decimal=","), "27,3", number(27.3)),
        (ColumnType(kind="any", decimal=","), "27.3", name("27.3")),
        (ColumnType(kind="any", decimal=","), "ward", name("ward")),
    ],
)
def test_a_declared_type_alone_decides(
    type_: ColumnType, cell: object, expected: tuple[float, str, bool]
) -> None:
    np.testing.assert_equal(read_cell(cell, type_), expected)


CELLS = st.one_of(
    st.floats(), st.integers(), st.booleans(), st.none(), st.text(max_size=6),
    st.sampled_from(["27,3", "NA", "01", "yes", "2020-01-01", "1.234", pd.NA, pd.NaT, 10**400]),
)  # fmt: skip


@given(CELLS, st.sampled_from(["category", "code", "boolean", "ordered", "identifier", "text"]))
def test_what_is_read_once_is_read_the_same_again(cell: object, kind: str) -> None:
    """Such as an estimated level, or a row made from it."""
    _, label, blank = read_cell(cell, ColumnType(kind=kind))
    assert label.isprintable()
    assert blank or read_cell(label, ColumnType(kind=kind))[1:] in ((label, False), ("", True))


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"kind": "word"}, "kind must be one of"),
        ({"kind": "number", "levels": ("a",)}, r"levels=\('a',\) does not go with kind=number"),
        ({"kind": "code", "low": 0.0, "high": 1.0}, "low=0.0 does not go with kind=code"),
        ({"kind": "number", "low": 2.0, "high": 1.0}, "low=2.0 must be at most high=1.0"),
        ({"kind": "integer", "low": 0.5, "high": 1.0}, "must be whole"),
        ({"kind": "number", "low": 2.0}, "low and high"),
        ({"kind": "number", "decimal": ";"}, "decimal must be one of"),
        ({"kind": "number", "decimal": ",", "thousands": ","}, "thousands=',' is the decimal sign"),
        ({"kind": "number", "step": 0.0}, "step"),
        ({"kind": "integer", "step": 0.5}, "step=0.5 must be whole"),
        ({"kind": "date", "date_format": "%d"}, "date_format='%d' must have a year"),
        ({"kind": "date", "date_format": "%Q"}, "date_format='%Q'"),
        ({"kind": "date", "since": "1.1.70"}, "since='1.1.70' must be a day"),
        ({"kind": "category", "levels": ("a", "a")}, "levels must be different"),
        ({"kind": "category", "levels": (" a",)}, "levels must be different"),
        ({"kind": "boolean", "levels": ("a",)}, "levels of a boolean must be two"),
        ({"kind": "category", "levels": ("a",), "spellings": {"b": ("c",)}}, "spellings has 'b'"),
        ({"kind": "category", "levels": ("a", "b"), "spellings": {"b": ("a",)}}, "more than once"),
        ({"kind": "category", "levels": ("a",), "blank": ("a",)}, "blank has 'a'"),
        ({"kind": "number", "symbol": "5"}, "symbol='5' must be a sign"),
        ({"kind": "datetime", "zone": "Mars"}, "zone='Mars' must be a name"),
        ({"kind": "category", "levels": ("9",), "missing": {"9": ""}}, "missing has '9'"),
        ({"kind": "code", "symbol": "$"}, r"symbol='\$' does not go with"),
    ],
)
def test_types_that_cannot_be(given_: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ColumnType(**given_)


# What was found by reading: each was otherwise.


def test_codes_keep_their_spelling_also_where_only_categorical_was_said() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"zip": rng.choice(["01002", "02138"], 3000), "code": rng.choice(["007", "7"], 3000)}
    )
    made = bdpvi.synthesize(frame, epsilon=5.0, settings=Counts(categorical=("zip", "code")))
    rows = of_bytes(made.to_bytes()).sample(500)
    assert {name: set(rows[name].dropna()) for name in rows} == {n: set(frame[n]) for n in frame}
    release = flat.private(
        frame.assign(sick=frame["code"] == "7"), target="sick", positive="True", epsilon=3.0,
        categorical=["zip", "code"], progress=False,
    )  # fmt: skip
    assert {"zip=01002", "code=007", "code=7"} <= {*release.feature_names}
    assert release.encoding is not None
    x = release.encoding.apply(frame[:1])
    row = dict(zip(release.feature_names, x[0].tolist(), strict=True))
    assert row[f"zip={frame['zip'][0]}"] == 1
    assert row["zip=other"] == 0


def test_a_schema_of_codes_and_of_names_that_look_blank_is_taken() -> None:
    codes = ColumnType(levels=("007", "7", "12"))
    assert grid.encode(codes, pd.Series(["7", "007", "12", "x"]))[0].tolist() == [1, 0, 2, 4]
    with pytest.raises(ValueError, match="a declared kind, such as category, takes them as"):
        ColumnType(levels=("NA", "DE"))
    land = ColumnType(kind="category", levels=("NA", "None", "-"))
    assert grid.encode(land, pd.Series(["-", "NA", "None", "?", ""]))[0].tolist() == [2, 0, 1, 3, 3]
    back = grid.decode(land, np.array([0, 1, 2, 3]), np.random.default_rng(0))
    assert back.tolist() == ["NA", "None", "-", None]
    encoding = constants_of(
        {"source": "ISO 3166.", "columns": {"land": {"kind": "category", "levels": ["NA", "DE"]}}}
    )
    assert encoding.apply(pd.DataFrame({"land": ["DE", "NA"]})).tolist() == [[0, 1], [1, 0]]
    assert Encoding.from_dict(encoding.to_dict()) == encoding


def test_privately_estimated_bounds_keep_a_column_what_it_is() -> None:
    rng = np.random.default_rng(0)
    days = pd.to_timedelta(rng.integers(0, 9999, 4000), "D")
    frame = pd.DataFrame({"born": pd.Timestamp("1950-01-01") + days})
    frame["dose"] = rng.integers(0, 20, 4000) * 5
    types = {"born": ColumnType(kind="date"), "dose": ColumnType(kind="integer", step=5.0)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are beyond the private bounds
        made = bdpvi.synthesize(frame, Schema(types, "form"), epsilon=5.0)
    rows, born = made.sample(2000), made.schema.columns["born"]
    assert (born.kind, born.origin) == ("date", "estimated")
    assert rows["born"].dtype.kind == "M"
    assert rows["born"].between("1945-01-01", "1980-01-01").mean() > 0.95
    assert set(rows["dose"] % 5) == {0}


def test_a_comma_as_decimal_sign_is_told_before_the_charge_and_read_if_declared(
    tmp_path: Path,
) -> None:
    path = tmp_path / "comma.csv"
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"weight": np.round(rng.normal(70, 12, 1500), 1)})
    frame["sick"] = np.where(rng.random(1500) < frame["weight"] / 140, "yes", "no")
    frame.to_csv(path, index=False, sep=";", decimal=",")
    options: dict[str, Any] = {"target": "sick", "positive": "yes", "epsilon": 5.0}
    options["one_row_per_person"] = True
    ledger = bdpvi.Ledger()
    told = []

    def show(message: Warning, *_: object) -> None:
        told.append((str(message), len(ledger.entries())))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show  # type: ignore[assignment]
        flat.private(path, separator=";", ledger=ledger, progress=False, **options)
    assert told[0][1] == 0
    assert "column 'weight': 1500 of 1500 cells are numbers with a comma" in told[0][0]
    more = flat.private(path, separator=";", decimal=",", progress=False, **options)
    assert more.feature_names == ("weight", "weight is missing")
    assert more.encoding is not None
    assert more.encoding.apply(pd.DataFrame({"weight": ["70,0", "x"]}))[:, 1].tolist() == [0, 1]
    data = from_csv(path, "sick", separator=";", decimal=",", seed=0).train
    assert data.feature_names == ("weight",)
    assert data.preprocessing["declared"]["decimal"] == ","


def test_spellings_of_the_target_are_shown_before_the_charge_and_change_nothing() -> None:
    rng = np.random.default_rng(0)
    said = rng.choice(["yes", "Yes", "YES", "no"], 2000)
    frame = pd.DataFrame({"age": rng.integers(20, 90, 2000), "sick": said})
    options: dict[str, Any] = {"target": "sick", "epsilon": 3.0, "numeric": ["age"]}
    with pytest.warns(bdpvi.PrivacyUtilityWarning, match="counted as not 'yes': .*'Yes'") as told:
        guessed = flat.private(frame, positive="yes", progress=False, **options)
    words = next(str(one.message) for one in told if "counted as not" in str(one.message))
    assert f"'YES' ({(said == 'YES').sum()})" in words
    assert "(secret)" in words
    assert "Yes" not in repr(guessed.receipt)
    for type_ in (
        ColumnType(kind="boolean", levels=("no", "yes")),
        ColumnType(kind="category", spellings={"yes": ("Yes", "YES")}),
    ):
        types = Schema({"sick": type_}, "form")
        split = from_frame(
            frame, "sick", positive="Yes", types=types, seed=0,
            constants=constants_of({"source": "law", "age": [20, 90]}),
        )  # fmt: skip
        assert int(split.train.y.sum() + split.test.y.sum()) == (said != "no").sum()
        assert split.train.preprocessing["target"]["positive"] == "yes"
        work = flat.private(frame, positive="yes", types=types, progress=False, **options)
        meaning: Any = work.preprocessing["target"]
        assert meaning["positive"] == "yes"
    types = Schema({"sick": ColumnType(kind="boolean", levels=("no", "yes"))}, "form")
    with pytest.raises(ValueError, match=r"positive='maybe': types declares \('no', 'yes'\)"):
        flat.private(frame, positive="maybe", types=types, progress=False, **options)


def test_cells_that_do_not_fit_are_blank_and_only_counted() -> None:
    values = pd.Series(["7,5", "7.5", "?", "seven", None, "7,5"])
    type_ = ColumnType(kind="number", decimal=",", low=0, high=9)
    assert read_cells(values, type_).count(UNFIT) == 2
    np.testing.assert_equal(series_of(values, type_).tolist(), [7.5, *[math.nan] * 4, 7.5])
    frame = pd.DataFrame({"kg": [*values] * 300, "sick": ["yes", "no"] * 900})
    types = Schema({"kg": type_}, "form")
    with pytest.warns(
        bdpvi.PrivacyUtilityWarning, match="'kg': 600 cells of 1800, not of kind number"
    ) as told:
        release = flat.private(
            frame, target="sick", positive="yes", epsilon=1.0, types=types, progress=False
        )
    assert not any("seven" in str(one.message) for one in told)
    assert release.encoding is not None
    assert release.encoding.types == {"kg": type_}
    assert release.receipt.about is not None
    assert "kg (number)" in release.receipt.about


def test_a_type_costs_nothing_and_its_levels_are_not_bought() -> None:
    frame = pd.DataFrame({"sex": ["F", "M"] * 900, "well": [True, False, True] * 600})
    frame["sick"] = ["no", "yes", "no"] * 600
    sex = ColumnType(kind="category", levels=("F", "M"))
    schema = Schema({"sex": sex, "well": ColumnType(kind="code")}, "form")
    release = flat.private(
        frame[["sex", "sick"]], target="sick", positive="yes", epsilon=1.0, progress=False,
        types=Schema({"sex": sex}, "form"),
    )  # fmt: skip
    assert release.encoding is not None
    assert release.encoding.origin.value == "public"
    made = bdpvi.synthesize(frame, schema, "sick", epsilon=1.0)
    assert made.receipt.bought == ("well", "sick")
    assert made.receipt.declared["types"] == "well (code)"


def test_types_that_the_header_or_options_do_not_fit_are_refused() -> None:
    frame = pd.DataFrame({"age": range(50), "sick": ["no", "yes"] * 25})
    options: dict[str, Any] = {"target": "sick", "positive": "yes", "epsilon": 1.0}
    types = Schema({"weight": ColumnType(kind="number")}, "form")
    with pytest.raises(ValueError, match="types: its column 'weight' must be in the table"):
        flat.private(frame, types=types, **options)
    with pytest.raises(ValueError, match="its column 'weight' must be in the table"):
        from_frame(frame, "sick", types=types)
    with pytest.raises(ValueError, match="its column 'weight' must be in the table"):
        bdpvi.synthesize(frame, types, epsilon=1.0)
    types = Schema({"age": ColumnType(kind="code")}, "form")
    with pytest.raises(ValueError, match="numeric names 'age', whose kind is code"):
        flat.private(frame, types=types, numeric=["age"], **options)
    types = Schema({"age": ColumnType(kind="number")}, "form")
    with pytest.raises(ValueError, match="categorical names 'age', whose kind is number"):
        flat.private(frame, types=types, categorical=["age"], **options)
    age = ColumnType(kind="number", low=0, high=9, origin="rows")
    with pytest.raises(ValueError, match="'age' is marked as read from the rows"):
        flat.private(frame, types=Schema({"age": age}, "form"), **options)


def test_one_file_has_types_bounds_and_levels(tmp_path: Path) -> None:
    content = {
        "source": "form",
        "columns": {
            "age": [0, 110],
            "weight": {"kind": "number", "low": 0, "high": 300, "step": 0.1},
            "zip": {"kind": "code"},
            "born": {"kind": "date", "low": "1900-01-01", "high": "1970-01-02"},
            "note": {"kind": "text"},
        },
    }
    path = tmp_path / "types.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    schema = Schema.load(path)
    assert schema.columns["born"].bounds == (-25567.0, 1.0)
    assert schema.columns["born"].integer
    assert schema.columns["weight"] == ColumnType(kind="number", low=0, high=300, step=0.1)
    assert [n for n in schema.columns if n not in schema.bounded] == ["zip", "note"]
    schema.save(tmp_path / "again.json")
    assert Schema.load(tmp_path / "again.json") == schema
    with pytest.raises(ValueError, match=r"'zip' has a kind and neither .*\(--table\)"):
        read_constants(path)
    for name in ("zip", "note"):
        del content["columns"][name]  # type: ignore[attr-defined]
    path.write_text(json.dumps(content), encoding="utf-8")
    assert [column.type is not None for column in read_constants(path).columns] == [
        False,
        True,
        True,
    ]
    content["columns"]["born"]["low"] = "1.1.1900"  # type: ignore[index]
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"columns.born: low='1.1.1900' must be a day"):
        Schema.load(path)


def test_pandas_nullable_columns_have_the_codes_of_others() -> None:
    age = ColumnType(low=0, high=9, whole=True)
    values = pd.Series([1, None, 3], dtype="Int64")
    found, same = (grid.encode(age, one)[0] for one in (values, pd.Series([1.0, None, 3.0])))
    assert found.tolist() == same.tolist()
    frame = pd.DataFrame(
        {
            "age": values,
            "sex": pd.Series(["F", "M", None], dtype="category"),
            "well": pd.Series([True, None, False], dtype="boolean"),
        }
    )
    encoding = constants_of({"source": "law", "age": [0, 9], "sex": ["F", "M"], "well": [True]})
    encoding = replace(encoding, unknown="other")
    missing = [one.endswith("is missing") for one in encoding.feature_names]
    assert encoding.apply(frame)[:, missing].tolist() == [[0, 0, 0], [1, 0, 1], [0, 1, 0]]

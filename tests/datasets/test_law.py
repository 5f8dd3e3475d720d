"""The law: how a cell is read depends on it and on its column's type, whatever carries it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import flat
import numpy as np
import odd_cells
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from odd_cells import ODD, TYPES, alone, as_objects, differ, each, guessed

from bdpvi.datasets import Schema, grid
from bdpvi.datasets.cells import (
    array_of,
    read_array,
    read_cell,
    read_cells,
    spell_array,
)
from bdpvi.datasets.columns import OneHot
from bdpvi.datasets.types import ColumnType
from bdpvi.score.reading import BLANK, OK, UNFIT, UNKNOWN
from bdpvi.score.spelling import digits, spell

STAMPS = [pd.Timestamp("2020-01-02"), pd.Timestamp("1960-01-02 03:04:05.000001")]
CARRIERS: dict[str, Callable[[], pd.Series[Any]]] = {
    "list": lambda: pd.Series([1, "x", None, 2.5, True]),
    "int64": lambda: pd.Series([1, 7, 9999, -1, 2**53 - 1]),
    "float64": lambda: pd.Series([1.5, 0.1, 7.0, 1e-9, 9999.0, np.nan]),
    "float32": lambda: pd.Series([0.5, 0.1], dtype="float32"),
    "uint8": lambda: pd.Series([7, 255], dtype="uint8"),
    "bool": lambda: pd.Series([True, False]),
    "object": lambda: pd.Series(["F", "007", "7", " x ", "1e5", "$2,519.00", "NA"], dtype=object),
    "string": lambda: pd.Series(["F", "007", None, "1,5", "9.5%"], dtype="string"),
    "Int64": lambda: pd.Series([1, None, 7], dtype="Int64"),
    "Float64": lambda: pd.Series([1.5, None, 7], dtype="Float64"),
    "boolean": lambda: pd.Series([True, None], dtype="boolean"),
    "decimal": lambda: pd.Series([Decimal("1.10"), Decimal(7)]),
    "bytes": lambda: pd.Series([b"yes", b"no", b"\xff"]),
    "date": lambda: pd.Series([date(2020, 1, 2), date(1969, 12, 31)]),
    "datetime": lambda: pd.Series(STAMPS),
    "zoned": lambda: pd.Series([one.tz_localize("Europe/Berlin") for one in STAMPS]),
    "timedelta": lambda: pd.Series([pd.Timedelta("1h"), pd.Timedelta("1ms")]),
    "category": lambda: pd.Series(pd.Categorical(["F", "M", "NA", None])),
    "category of numbers": lambda: pd.Series(pd.Categorical([1, 2, 7])),
    "arrow text": lambda: pd.Series(["F", " 7 ", None], dtype=pd.ArrowDtype(pa.large_string())),
    "arrow int": lambda: pd.Series([2**53 + 1, None, 7], dtype=pd.ArrowDtype(pa.int64())),
    "arrow decimal": lambda: pd.Series([Decimal("1.10")], dtype=pd.ArrowDtype(pa.decimal128(9, 2))),
    "arrow date": lambda: pd.Series([date(2020, 1, 2), None], dtype=pd.ArrowDtype(pa.date32())),
    "arrow list": lambda: pd.Series([[1], None], dtype=pd.ArrowDtype(pa.list_(pa.int8()))),
}
CELL = st.one_of(
    st.text(max_size=12), st.integers(), st.floats(), st.booleans(), st.none(), st.decimals(),
    st.dates(), st.datetimes(), st.timedeltas(), st.binary(max_size=5), st.sampled_from(ODD),
    st.from_regex(r"\A[+-]?[0-9.,]{1,8}(e[0-9]{1,3})?\Z"),
)  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_a_column_is_its_cells(name: str) -> None:
    assert len(ODD) >= 300
    assert len(CARRIERS) >= 14
    type_ = TYPES[name]
    columns = [as_objects(ODD), *(make() for make in CARRIERS.values())]
    for column in columns:
        right = [alone(one, type_) for one in column.tolist()]
        found = each(read_cells(column, type_))
        assert not [(column[at], found[at], right[at]) for at in differ(found, right)]
        chosen = read_cells(column, type_).select(np.arange(len(column))[::-1])
        assert not [*differ(each(chosen), right[::-1])]
    many = as_objects([*ODD, *(f"{one}.5" for one in range(1500)), "+7", " 8", "1.234,5"])
    right = [alone(one, type_) for one in many.tolist()]
    found = each(read_cells(many, type_))
    assert not [(many[at], found[at], right[at]) for at in differ(found, right)]


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(CELL, max_size=8), st.sampled_from(sorted(TYPES)))
def test_any_cells_are_read_by_themselves(cells: list[object], name: str) -> None:
    type_ = TYPES[name]
    for column in (as_objects(cells), guessed(cells, None)):
        right = [alone(one, type_) for one in column.tolist()]
        assert not [*differ(each(read_cells(column, type_)), right)]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_no_neighbour_changes_a_cell(carrier: str) -> None:
    base = CARRIERS[carrier]()
    cells = base.tolist()
    before = {name: each(read_cells(base, type_)) for name, type_ in TYPES.items()}
    failed = []
    for number, neighbour in enumerate(ODD):
        at = (0, 1, len(cells))[number % 3]
        column = guessed([*cells[:at], neighbour, *cells[at:]], base.dtype)
        for name in (*TYPES,)[number % 4 :: 4]:
            found = each(read_cells(column, TYPES[name]))
            rest = found[:at] + found[at + 1 :]
            failed += [(neighbour, name, str(column.dtype), cells[i])
                       for i in differ(rest, before[name])]  # fmt: skip
    assert not failed


def test_equal_values_have_one_text_in_any_carrier() -> None:
    sevens: list[Any] = [
        7, 7.0, np.int64(7), np.uint8(7), np.float32(7), Decimal(7), Decimal("7.00"), "7", " 7\t",
        b"7", 7 + 0j, np.longdouble(7),
    ]  # fmt: skip
    assert {spell(seven) for seven in sevens} == {"7"}
    halves = [0.5, np.float32(0.5), Decimal("0.50"), timedelta(seconds=0.5)]
    assert len({spell(halve) for halve in halves}) == 1
    day = "2020-01-02"
    days = [date(2020, 1, 2), datetime(2020, 1, 2), pd.Timestamp(day), np.datetime64(day)]
    assert len({spell(one) for one in days}) == 1
    view = pa.string_view() if hasattr(pa, "string_view") else pa.string()  # pyarrow 15
    for kind in (pa.int64(), pa.float64(), pa.string(), pa.large_string(), view):
        array = pa.array(["7", None] if "string" in str(kind) else [7, None], kind)
        assert spell_array(array).to_pylist() == ["7", None]
        assert read_array(array, ColumnType(kind="code")).names == ("7",)
    for column in (pd.Series([2**53, 2**53 + 1]), pd.Series([2**53, 2**53 + 1]).astype(str)):
        assert read_cells(column).names == (str(2**53), str(2**53 + 1))
        assert spell_array(array_of(column)).to_pylist() == [str(2**53), str(2**53 + 1)]


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(-400, 400))
def test_a_number_has_one_spelling(number: Decimal, exponent: int) -> None:
    exact = digits(str(number))
    assert Decimal(exact) == number
    assert digits(exact) == exact
    assert digits(format(number, "f")) == exact
    assert digits(f"{number}e{exponent}" if "E" not in str(number) else exact) is not None


@pytest.mark.parametrize(
    ("kind", "cell", "expected"),
    [
        ("dollar", "$2,519.00", (2519.0, OK)), ("dollar", "-$5", (-5.0, OK)),
        ("dollar", "($5)", (-5.0, OK)), ("dollar", "5 $", (5.0, OK)),
        ("dollar", "€5", (None, UNFIT)), ("dollar", 9999, (None, BLANK)),
        ("dollar", "$9,999", (None, BLANK)),
        ("integer", "-1.0", (None, BLANK)), ("integer", True, (1.0, OK)),
        ("levels", 7, ("007", OK)), ("levels", "7", ("007", OK)), ("levels", "Q", ("Q", UNKNOWN)),
        ("levels", 8, ("8", UNKNOWN)), ("ordered", 2.0, ("2", OK)),
        ("category", 1e16, (None, UNFIT)),
        ("code", 10**16 + 1, ("10000000000000001", OK)), ("number-de", 1.5, (1.5, OK)),
        ("german date", "2020-01-02", (None, UNFIT)), ("german date", date(1970, 1, 2), (1.0, OK)),
        ("datetime", "1970-01-01 01:00", (0.0, OK)),
        ("datetime", "1970-01-01T01:00Z", (3600.0, OK)),
        ("datetime", date(1970, 1, 2), (82800.0, OK)),
        ("none", "007", (7.0, OK)), ("none", True, ("True", OK)), ("none", "1e400", ("1e400", OK)),
        ("none", "NULL", (None, BLANK)), ("none", "a\x1b[2J", ("a\ufffd[2J", OK)),
        ("datetime", datetime(1970, 1, 1, 9, tzinfo=timezone(timedelta(hours=8))), (3600.0, OK)),
    ],
)  # fmt: skip
def test_examples(kind: str, cell: object, expected: tuple[object, int]) -> None:
    assert read(cell, TYPES[kind]) == expected


def read(cell: object, type_: ColumnType | None) -> tuple[float | str | None, int]:
    """Return a cell's number or label, None for what has none, and its status."""
    number, label, status = (type_ or ColumnType()).of_text(spell(cell))
    if status in (BLANK, UNFIT):
        return None, status
    return label if np.isnan(number) else number, status


def test_labels_of_earlier_releases_are_found() -> None:
    named = OneHot("shop", ("1e+16", "1e-05", "7"), type=ColumnType(kind="code"))
    cells = read_cells(pd.Series([10**16, 1e-5, "7", 10**16 + 1], dtype=object), named.type)
    assert named.encode_cells(cells).argmax(axis=1).tolist() == [0, 1, 2, 3]


def test_a_code_of_a_blank_takes_no_level_with_it() -> None:
    levels = ColumnType(kind="category", levels=("007", "9"), missing={"7": "not asked"})
    assert [read(one, levels) for one in ("7", "007", 9)] == [(None, BLANK), ("007", OK), ("9", OK)]


def test_long_labels_stay_apart() -> None:
    names = read_cells(pd.Series(["x" * 300, "x" * 299 + "y", "x" * 200])).names
    assert len({*names}) == 3
    assert max(map(len, names)) == 200
    assert [read_cell(name)[1] for name in names] == [*names]


def test_new_fields_are_in_a_file_and_values_are_written(tmp_path: Path) -> None:
    content = {
        "pay": {"kind": "number", "symbol": "$", "missing": {"9999": "not asked"}, "measure": "$"},
        "seen": {"kind": "datetime", "zone": "Europe/Berlin", "low": "1970-01-01", "high": 86400},
    }  # fmt: skip
    path = tmp_path / "types.json"
    path.write_text(json.dumps({"source": "form", "columns": content}), encoding="utf-8")
    schema = Schema.load(path)
    schema.save(tmp_path / "again.json")
    assert Schema.load(tmp_path / "again.json") == schema
    assert schema.columns["pay"].missing == {"9999": "not asked"}
    seen = schema.columns["seen"]
    assert seen.bounds == (-3600.0, 86400.0)
    codes, odd = grid.encode(seen, pd.Series(["1970-01-01 02:00", "x", None]))
    rows = grid.decode(seen, codes[:1], np.random.default_rng(0))
    assert str(rows.dt.tz) == "Europe/Berlin"
    assert odd["unread"] == 0


def test_whole_numbers_beyond_doubles_are_codes() -> None:
    random_ = np.random.default_rng(0)
    shops = np.array([2**53, 2**53 + 1, 1234567890123456])
    at = random_.choice(3, 6000)
    ill = np.where(random_.random(6000) < np.array([0.1, 0.9, 0.5])[at], "yes", "no")
    release = flat.private(
        pd.DataFrame({"shop": shops[at].astype(str), "ill": ill}), target="ill", positive="yes",
        epsilon=8.0, types=Schema({"shop": ColumnType(kind="code")}, "form"), progress=False,
        expected_rows=6000,
    )  # fmt: skip
    texts, numbers = (
        np.asarray(release.predict_mean(pd.DataFrame({"shop": shops.astype(kind)})))
        for kind in (str, np.int64)
    )
    np.testing.assert_array_equal(texts, numbers)
    np.testing.assert_allclose(numbers, [0.1, 0.9, 0.5], atol=0.08)


@pytest.mark.parametrize("carrier", odd_cells.CARRIERS)
def test_a_fuzz_of_cells(carrier: str, tmp_path: Path) -> None:
    if carrier == "Polars":
        pytest.importorskip("polars")
    counts = odd_cells.fuzzed(carrier, 1000, random.Random(0), tmp_path)
    assert (counts.differences, counts.exceptions) == (0, 0), counts.examples
    for cells in (ODD, ODD[::-7], ["\ud800", "x"], [None, None], [1, 10**5000], [np.array([1.5])]):
        assert not odd_cells.wrong(carrier, cells, "none", tmp_path)

"""The law: how a cell is read depends on it and on its column's type, whatever carries it."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bdpvi
from bdpvi.datasets import Schema, grid
from bdpvi.datasets.cells import (
    Cells,
    array_of,
    read,
    read_array,
    read_cell,
    read_cells,
    spell_array,
)
from bdpvi.datasets.columns import OneHot
from bdpvi.datasets.spelling import digits, spell
from bdpvi.datasets.types import BLANK, OK, UNFIT, UNKNOWN, ColumnType

TYPES: dict[str, ColumnType | None] = {
    "none": None,
    "any": ColumnType(kind="any", decimal=",", missing={"9999": "not asked"}),
    "number": ColumnType(kind="number"),
    "number-de": ColumnType(kind="number", decimal=",", thousands="."),
    "dollar": ColumnType(kind="number", symbol="$", thousands=",", missing={"9999": ""}),
    "integer": ColumnType(kind="integer", missing={"9999": "", "-1": "refused"}),
    "category": ColumnType(kind="category"),
    "levels": ColumnType(
        kind="category", levels=("007", "012", "F", "M", "NA"), spellings={"F": ("female", "f")}
    ),
    "ordered": ColumnType(kind="ordered", levels=("1", "2", "3")),
    "code": ColumnType(kind="code"),
    "boolean": ColumnType(kind="boolean"),
    "date": ColumnType(kind="date"),
    "german date": ColumnType(kind="date", date_format="%d.%m.%Y"),
    "datetime": ColumnType(kind="datetime", zone="Europe/Berlin"),
    "text": ColumnType(kind="text"),
    "identifier": ColumnType(kind="identifier"),
}
BERLIN = ZoneInfo("Europe/Berlin")
TEXTS = [
    "", " ", "x", "1", "1.0", "1e5", "1e400", "1e-400", "0e99999999999", "1e-99999999999", "-0",
    "+5", "5.", ".5", "007", "7", "nan", "NaN", "inf", "-inf", "None", "null", "NA", "N/A", "?",
    "-", ".", "True", "true", "FALSE", "yes", "no", "t", "1_000", "1,000", "1.000", "1.234,5",
    "1 000", "1'000", "$5", "5$", "($5)", "-$5", "-$-5", "(5)", "5%", "€5", "0x10", "0b1", "1e",
    "e1", "--1", "٣", "½", "1/2", "9007199254740993", "9007199254740993.0", "1" * 19, "1" * 400,
    "x" * 300, "x" * 299 + "y", "2020-01-02", "2020-1-2", "2020-01-02 00:00:00", "20200102",
    "2020-01-02T09:00+01:00", "2020-01-02 09:00Z", "2020-13-01", "01.02.2020", "09:00", "a,b",
    'a"b', '"', "'", "'=x", "=1+1", "@x", "+x", "-x", "\t", "a\tb", "a\nb", "a\rb", "\0", "a\0b",
    "\x1f", "\x1a", "\ufeff", "\ufffd", "é", "e\u0301", "İ", "ß", "\u202e", "\U0001f600", "≈",
    "≈1e300", "\ue000", "\ue0001.5", "row", "sex=F", "other", "F", "M", "9999", "9999.0", "-1",
    "[1]", "{}", "b'yes'", "0." + "0" * 40 + "1", "\u20037", "7\x85",
]  # fmt: skip
ODD: list[Any] = [
    *TEXTS, None, np.nan, pd.NA, pd.NaT, math.inf, -math.inf, 0, 1, -1, 7, 7.0, 7.5, -0.0, 1e300,
    5e-324, 2**53, 2**53 + 1, float(2**53), 2**63, -(2**63), 2**64, 10**50, 10**400, 10**5000,
    1e16, 1e15, 1e22, True, False, np.True_, np.int8(3), np.uint64(2**64 - 1), np.float16(0.1),
    np.float32(0.1), np.longdouble(1.5), 1j, 1 + 0j, np.complex64(2), Decimal("1.10"),
    Decimal("NaN"), Decimal("Infinity"), Decimal("1E+400"), Decimal("1E+9999"), Decimal("0E-9999"),
    b"yes", b"\xff", bytearray(b"a"), memoryview(b"a"), date(2020, 1, 2), datetime(2020, 1, 2),
    datetime(2020, 1, 2, 3), datetime(2020, 1, 1, 8, tzinfo=timezone.utc),
    datetime(2020, 1, 1, 9, tzinfo=BERLIN), datetime.min, datetime.max,
    pd.Timestamp("2020-01-01 08:00", tz="UTC"), pd.Timestamp("1969-01-02 00:00:00.000000001"),
    np.datetime64("2020-01-02"), np.datetime64("NaT"), np.datetime64("30000-01-01"),
    np.timedelta64(1, "s"), time(9), timedelta(1), timedelta(microseconds=-1), pd.Timedelta("1ns"),
    pd.Period("2020-01"), pd.Interval(0, 1), (1,), (True,), [1], [None, np.int64(2)], {"a": 1},
    {1: 2}, {1: 2, "a": date.max}, set("ab"), object, object(), ..., np.array([1.5]), print,
]  # fmt: skip
ODD += [
    first + last
    for first, last in itertools.product(
        ("1", "x", "007", "true", "2020-01-02", "$5", "F", "-9999", "1e", '"'),
        ("", " ", "\xa0", ".0", "e5", ",", ";", "%", "$", "'", '"', "\0", "Z", "+01:00", "\ud800"),
    )
]
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


def alone(cell: object, type_: ColumnType | None) -> tuple[float, str, bool, int]:
    return (*read_cell(cell, type_), read(cell, type_)[1])


def each(cells: Cells) -> list[tuple[float, str, bool, int]]:
    labels = [cells.names[code] if code >= 0 else "" for code in cells.codes.tolist()]
    rows = (cells.numbers.tolist(), labels, cells.blank.tolist(), cells.status.tolist())
    return list(zip(*rows, strict=True))


def differ(found: Sequence[Any], right: Sequence[Any]) -> Iterator[int]:
    """Yield where two lists of cells are not the same; NaN is NaN."""
    for at, (one, other) in enumerate(zip(found, right, strict=True)):
        same_number = one[0] == other[0] or (one[0] != one[0] and other[0] != other[0])
        if not same_number or one[1:] != other[1:]:
            yield at


def as_objects(cells: Sequence[Any]) -> pd.Series[Any]:
    held = np.empty(len(cells), dtype=object)
    for at, one in enumerate(cells):
        held[at] = one
    return pd.Series(held, dtype=object)


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


def guessed(cells: list[Any], dtype: Any) -> pd.Series[Any]:
    """Return a column as pandas makes it where a dtype cannot hold the cells."""
    for kind in (dtype, None):
        try:
            return pd.Series(cells, dtype=kind)
        except Exception:  # whatever pandas raises
            continue
    return as_objects(cells)


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
    assert {spell(one) for one in sevens} == {"7"}
    halves = [0.5, np.float32(0.5), Decimal("0.50"), timedelta(seconds=0.5)]
    assert len({spell(one) for one in halves}) == 1
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
        ("datetime", datetime(1970, 1, 1, 9, tzinfo=timezone(timedelta(hours=8))), (3600.0, OK)),
    ],
)  # fmt: skip
def test_examples(kind: str, cell: object, expected: tuple[object, int]) -> None:
    assert read(cell, TYPES[kind]) == expected


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
    assert [read_cell(one)[1] for one in names] == [*names]


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
    for given_, said in (
        ({"kind": "number", "symbol": "5"}, "symbol='5' must be a sign"),
        ({"kind": "datetime", "zone": "Mars"}, "zone='Mars' must be a name"),
        ({"kind": "category", "levels": ("9",), "missing": {"9": ""}}, "missing has '9'"),
        ({"kind": "code", "symbol": "$"}, "symbol='\\$' does not go with"),
    ):
        with pytest.raises(ValueError, match=said):
            ColumnType(**given_)


def test_whole_numbers_beyond_doubles_are_codes() -> None:
    random_ = np.random.default_rng(0)
    shops = np.array([2**53, 2**53 + 1, 1234567890123456])
    at = random_.choice(3, 6000)
    ill = np.where(random_.random(6000) < np.array([0.1, 0.9, 0.5])[at], "yes", "no")
    frame = pd.DataFrame({"shop": shops[at], "ill": ill})
    code = {"shop": ColumnType(kind="code")}
    schema = Schema({"ill": ColumnType(levels=("no", "yes"))} | code, "form")
    made = bdpvi.synthesize(frame, schema, "ill", epsilon=8.0, progress=False).sample(4000)
    share = made.groupby(made["shop"].astype(str))["ill"].apply(lambda one: (one == "yes").mean())
    assert sorted(share.index) == sorted(map(str, shops))
    np.testing.assert_allclose([share[str(one)] for one in shops], [0.1, 0.9, 0.5], atol=0.06)
    release = bdpvi.private(
        frame.assign(shop=frame["shop"].astype(str)), target="ill", positive="yes", epsilon=8.0,
        types=Schema(code, "form"), progress=False, expected_rows=6000,
    )  # fmt: skip
    texts, numbers = (
        np.asarray(release.predict_mean(pd.DataFrame({"shop": shops.astype(kind)})))
        for kind in (str, np.int64)
    )
    np.testing.assert_array_equal(texts, numbers)
    np.testing.assert_allclose(numbers, [0.1, 0.9, 0.5], atol=0.08)


def fuzzed(cells: int, seed: int) -> tuple[int, int, int]:
    """Return the numbers of odd cells read, of differences, and of exceptions."""
    chance, count, wrong, raised = random.Random(seed), 0, 0, 0
    parts = [str(one) for one in TEXTS] + list("0123456789.,eE+-$% ")
    makers: list[Callable[[], Any]] = [
        lambda: "".join(chance.choices(parts, k=chance.randint(1, 3))),
        lambda: "".join(chance.choices("0123456789.,e-+ $", k=chance.randint(1, 9))),
        lambda: chance.choice(ODD),
        lambda: chance.randint(-(2**70), 2**70) >> chance.randint(0, 70),
        lambda: math.ldexp(chance.random(), chance.randint(-1070, 1000)),
        lambda: datetime(1, 1, 1) + timedelta(microseconds=chance.randrange(3 * 10**17)),
        lambda: chr(chance.randrange(0x110000)) + chance.choice(TEXTS),
    ]
    names = [*TYPES]
    while count < cells:
        size = chance.choice((3, 40, 3000))
        few = chance.sample(makers, chance.randint(1, 3))
        made = [chance.choice(few)() for _ in range(size)]
        column = guessed(made, None) if chance.random() < 0.5 else as_objects(made)
        if chance.random() < 0.2:
            with suppress(TypeError, ValueError):  # not hashable, or no text
                column = column.astype("category")
        type_ = TYPES[chance.choice(names)]
        count += size
        try:
            found = each(read_cells(column, type_))
            wrong += len([*differ(found, [alone(one, type_) for one in column.tolist()])])
        except Exception:  # counted
            raised += 1
    return count, wrong, raised


def test_a_fuzz_of_cells() -> None:
    assert fuzzed(10_000, 0)[1:] == (0, 0)


@pytest.mark.slow
def test_a_fuzz_of_a_million_cells() -> None:
    found = fuzzed(1_000_000, 1)
    print(found)
    assert found[1:] == (0, 0)

"""What JSON says of a dataclass is read back as the same, and anything else is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Literal

import pytest
import torch
from damage import DEEP, WRONG, places
from hypothesis import given
from hypothesis import strategies as st

from bdpvi._ground.schema import from_json, loads, parsed, require_same, to_json


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Round:
    radius: float
    kind: ClassVar[str] = "round"


@dataclass(frozen=True)
class Square:
    side: int
    kind: ClassVar[str] = "square"


NAMED = {"sine": torch.sin, "cosine": torch.cos}


@dataclass(frozen=True, kw_only=True)
class Whole:
    """One field of each type."""

    truth: bool
    count: int
    number: float
    text: str
    secret: bytes
    word: Literal["a", "b"] | None
    colour: Colour
    shapes: tuple[Round | Square, ...]
    pair: tuple[int, str]
    scales: Mapping[str, float | None]
    inner: Round | None
    anything: Any
    function: Any = field(default=torch.sin, metadata={"names": NAMED})
    wide: int = field(default=0, metadata={"bits": 256})


NUMBERS = st.floats(-1e300, 1e300)
INTEGERS = st.integers(-(2**63) + 1, 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | NUMBERS | st.text(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(), inside, max_size=3),
    max_leaves=8,
)
WHOLE = st.builds(
    Whole,
    truth=st.booleans(),
    count=INTEGERS,
    number=NUMBERS,
    text=st.text(),
    secret=st.binary(),
    word=st.sampled_from(["a", "b", None]),
    colour=st.sampled_from(Colour),
    shapes=st.lists(st.builds(Round, NUMBERS) | st.builds(Square, INTEGERS), max_size=3).map(tuple),
    pair=st.tuples(INTEGERS, st.text()),
    scales=st.dictionaries(st.text(), NUMBERS | st.none(), max_size=3),
    inner=st.none() | st.builds(Round, NUMBERS),
    anything=JSON,
    function=st.sampled_from(list(NAMED.values())),
    wide=st.integers(0, 2**256 - 1),
)
ONE = Whole(
    truth=True, count=1, number=0.5, text="x", secret=b"\x00", word="a", colour=Colour.RED,
    shapes=(Round(1.0), Square(2)), pair=(1, "y"), scales={"z": 1.0, "w": None}, inner=Round(2.0),
    anything={"deep": [1, None]},
)  # fmt: skip


@given(WHOLE)
def test_what_is_written_is_read(value: Whole) -> None:
    written = json.dumps(to_json(value), allow_nan=False)
    assert loads(Whole, written.encode()) == value
    assert json.dumps(to_json(loads(Whole, written.encode()))) == written


@given(st.data())
def test_what_is_read_is_what_was_written(data: st.DataObject) -> None:
    """One value of the JSON is another: refused, or read as what it says, never guessed at."""
    content = deepcopy(to_json(ONE))
    inside, key = data.draw(st.sampled_from(places(content)))
    inside[key] = data.draw(st.sampled_from([one for one in WRONG if one != "DEEP"]))
    try:
        read = from_json(Whole, content)
    except ValueError:
        return
    again = to_json(read)
    assert again == content
    assert type(again["truth"]) is bool


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"truth": 1}, "truth must be bool, got 1"),
        ({"count": True}, "count must be int, got True"),
        ({"count": 1.0}, r"count must be int, got 1\.0"),
        ({"count": 2**70}, r"count must be int below 2\*\*63"),
        ({"wide": 2**256}, r"wide must be int below 2\*\*256"),
        ({"count": 10**400}, "count must be int below .*, got one of 1329 bits"),
        ({"number": True}, "number must be float, got True"),
        ({"number": 10**400}, "number must be float and finite"),
        ({"number": float("nan")}, "number must be float and finite, got nan"),
        ({"number": -1e308}, "number must be float and finite"),
        ({"text": None}, "text must be str, got None"),
        ({"secret": "0g"}, "secret must be hexadecimal, got '0g'"),
        ({"word": "c"}, r"word must be one of \['a', 'b'\], got 'c'"),
        ({"colour": "green"}, r"colour must be one of \['red', 'blue'\]"),
        ({"shapes": [{"kind": "oval"}]}, r"shapes\[0\]\.kind must be one of .*got 'oval'"),
        ({"shapes": [{"kind": "round"}]}, r"shapes\[0\]\.radius is missing"),
        ({"pair": [1]}, "pair must have 2 entries, got 1"),
        ({"pair": "xy"}, "pair must be a list"),
        ({"scales": {"z": "1"}}, r"scales\.z must be float \| None, got '1'"),
        ({"inner": 7}, r"inner must be Round \| None, got 7"),
        ({"inner": {"kind": "round", "radius": 1, "x": 2}}, r"inner\.x is not known"),
        ({"function": "tangent"}, r"function must be one of \['sine', 'cosine'\]"),
        ({"anything": [float("inf")]}, r"anything\[0\] must be float and finite"),
        ({"more": 1}, "more is not known; there are"),
    ],
)
def test_refusals_name_the_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_json(Whole, {**to_json(ONE), **change})


def test_fields_may_be_left_out_where_people_write() -> None:
    content = to_json(ONE)
    del content["function"]
    assert from_json(Whole, content, partial=True) == ONE
    with pytest.raises(ValueError, match="function is missing"):
        from_json(Whole, content)
    del content["text"]
    with pytest.raises(ValueError, match="text is missing"):
        from_json(Whole, content, partial=True)


def test_what_json_cannot_hold_is_not_written() -> None:
    for value in (torch.zeros(2), object(), {1: 2}, {"a": float("nan")}):
        with pytest.raises(ValueError, match=r"cannot be written|as keys|must be float"):
            to_json(value)


def test_files_that_hold_no_object() -> None:
    for file in (b"[]", b"", b"\xff", b"null", DEEP.encode(), b'{"a": NaN}'):
        with pytest.raises(ValueError, match=r"."):
            parsed(file)
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ValueError, match="nested too deeply"):
        from_json(Whole, {**to_json(ONE), "anything": nested})


def test_other_settings_are_told_in_one_way() -> None:
    require_same("state", {"a": 1}, {"a": 1}, "")
    for made, now, words in (
        ({"a": 1}, {"a": 2}, "state was made with a=1, and not a=2; begin anew"),
        ({"a": 1}, {}, "state was made with a=1, and not a=nothing"),
        ({}, {"a": "x" * 999}, r"state was made with a=nothing, and not a=x{200}…"),
    ):
        with pytest.raises(ValueError, match=words):
            require_same("state", made, now, "begin anew")

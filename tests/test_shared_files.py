"""Files of others: what they only speak of is never made; what does not fit is one ValueError."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from damage import one_gigabyte
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_cli import run

from bdpvi import load_release
from bdpvi._ground import store
from bdpvi.datasets import ColumnType, Schema
from bdpvi.datasets.constants import read_constants
from bdpvi.synthesis import load

FRAME = pd.DataFrame(
    {"age": [20, 50, 80, None], "dose": [0, 1, 2, None], "sex": ["a", "b", "F", None]}
)
HUGE = (2**31, 2**62, 2**63 - 1, -(2**62), 10**400, 1e300, -1e300, 1e-300, 5e-324)
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    0.5,
    "",
    "x",
    "\ud800",
    [],
    [[]],
    {},
    {"x": {}},
    [0] * 1000,
    ["x"] * 3,
)
Place = tuple[Any, ...]


def places(content: Any, at: Place = ()) -> Iterator[Place]:
    """Yield where something is in a JSON value; of long lists at both ends."""
    if at:
        yield at
    keys: Any = content if isinstance(content, dict) else ()
    if isinstance(content, list):
        keys = sorted({*range(len(content))[:2], *range(len(content))[-1:]})
    for key in keys:
        yield from places(content[key], (*at, key))


def exchanged(content: Any, at: Place, value: Any) -> Any:
    """Return a JSON value with another value at a place, if that is there still.

    "gone" takes away what is there, and "twice" repeats an entry of a list.
    """
    whole = inside = json.loads(json.dumps(content))
    with suppress(KeyError, IndexError, TypeError):
        for key in at[:-1]:
            inside = inside[key]
        there = inside[at[-1]]
        if value == "gone":
            del inside[at[-1]]
        elif value == "twice":
            inside.insert(at[-1], there) if isinstance(inside, list) else None
        else:
            inside[at[-1]] = value
    return whole


def sampled(path: Path) -> None:
    load(path).sample(3, seed=0)


def predicted(path: Path) -> None:
    found = load_release(path)
    found.predict_mean(FRAME)
    found.summary()


def encoded(path: Path) -> None:
    Schema.load(path).encode(FRAME[["age", "sex"]])


def constants(path: Path) -> None:
    read_constants(path).apply(FRAME)


READ: dict[str, Callable[[Path], None]] = {
    "synthetic": sampled, "release": predicted, "intervals": predicted, "schema": encoded,
    "constants": constants,
}  # fmt: skip


FORMS = Path(__file__).parent / "golden" / "forms"
GOLDEN = {"release": "persons.json", "intervals": "poisson.json", "synthetic": "synthesis.json"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the contents of small files that can be read."""
    found = {name: json.loads((FORMS / file).read_text("utf-8")) for name, file in GOLDEN.items()}
    path = tmp_path_factory.mktemp("shared") / "schema.json"
    Schema(
        {"age": ColumnType(low=0, high=99, whole=True), "sex": ColumnType(levels=("a", "b"))}, "law"
    ).save(path)
    long = {"source": "law", "unknown": "base", "columns": [
        {"kind": "numeric", "name": "age", "mean": 50.0, "sd": 20.0},
        {"kind": "onehot", "name": "sex", "categories": ["a", "b"]},
    ]}  # fmt: skip
    return {**found, "constants": long, "schema": json.loads(path.read_text(encoding="utf-8"))}


def check(name: str, content: Any, folder: Path) -> bool:
    """Read a file that was changed; return whether it was refused, by a ValueError."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with one_gigabyte():
        try:
            READ[name](path)
        except ValueError:
            return True
    return False


CHANGES = st.lists(
    st.tuples(st.randoms(use_true_random=False), st.sampled_from((*HUGE, *ODD, "gone", "twice"))),
    min_size=1,
    max_size=2,
)


def mutated(files: dict[str, Any], folder: Path, changes: Any) -> None:
    for name, content in files.items():
        whole = content
        for chance, value in changes:
            whole = exchanged(whole, chance.choice(list(places(content))), value)
        check(name, whole, folder)


@pytest.mark.filterwarnings("ignore")
def test_files_as_they_are_can_be_read(files: dict[str, Any], tmp_path: Path) -> None:
    for name, content in files.items():
        assert not check(name, content, tmp_path)


FEW: Any = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=25, **FEW)  # of each of five files
@given(changes=CHANGES)
def test_forged_files(files: dict[str, Any], tmp_path_factory: Any, changes: Any) -> None:
    mutated(files, tmp_path_factory.getbasetemp(), changes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=2000, **FEW)
@given(changes=CHANGES)
def test_many_forged_files(files: dict[str, Any], tmp_path_factory: Any, changes: Any) -> None:
    mutated(files, tmp_path_factory.getbasetemp(), changes)


@pytest.mark.parametrize(
    ("name", "at", "value", "said"),
    [
        ("synthetic", ("bins", 0, 0), 2**62, r"bins\[0\]"),
        ("synthetic", ("single", 0, "counts", 0), 2**62, r"single\[0\]\.counts"),
        ("synthetic", ("settings", "cells"), 2**62, "settings: cells must be at most"),
        ("synthetic", ("joint", 0, "deviation"), 1e-300, r"joint\[0\]\.deviation"),
        ("release", ("model", "prior_scale"), "x", "model.prior_scale"),
        ("release", ("model", "prior_scale"), 1e200, "model: "),
        ("intervals", ("model", "levels"), [[2**40]], "model.levels"),
        ("release", ("feature_names",), ["x"] * 10_000, "feature_names must be at most"),
        ("release", ("preprocessing", "encoding", "columns", 0),
         {"kind": "hashed", "name": "age", "buckets": 2**60, "missing": True}, "buckets"),
        ("constants", ("columns", 0),
         {"kind": "hashed", "name": "age", "buckets": 2**60, "missing": True}, "buckets"),
    ],
)  # fmt: skip
def test_what_a_file_only_speaks_of_is_not_made(
    name: str, at: Place, value: Any, said: str, files: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "f.json"
    path.write_text(json.dumps(exchanged(files[name], at, value)), encoding="utf-8")
    with one_gigabyte(), pytest.raises(ValueError, match=said) as error:
        READ[name](path)
    assert "f.json" in str(error.value)


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.json"
    path.write_text("[" * 100, encoding="utf-8")
    for name in ("MOST_BYTES", "MOST_VALUES"):
        with monkeypatch.context() as patch:
            patch.setattr(store, name, 99)
            for read in READ.values():
                with pytest.raises(ValueError, match=r"f\.json.* in the file|of the file must be"):
                    read(path)


def test_nobody_gets_more_rows_than_were_asked_for(
    files: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(json.dumps(files["synthetic"]))
    for one in (*content["single"], *content["joint"]):
        one["counts"] = [2**39] * len(one["counts"])
    path = tmp_path / "f.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with one_gigabyte():
        assert run("sample", path, "--out", tmp_path / "out") == 2
        assert "(--rows)" in capsys.readouterr().err
        assert run("sample", path, "--out", tmp_path / "out", "--rows", 5) == 0

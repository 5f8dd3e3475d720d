"""Public constants in a file, in the form that people write and in the encoding's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bdpvi.datasets import Encoding, constants_of, from_frame, read_constants
from bdpvi.datasets.columns import Numeric, OneHot

SHORT: dict[str, Any] = {
    "source": "Census.",
    "age": [18, 98],
    "income": {"mean": 31_000, "sd": 18_000.5},
    "sex": ["F", "M"],
    "smokes": [False, True],
}


def test_the_short_form(tmp_path: Path) -> None:
    path = tmp_path / "constants.json"
    path.write_text(json.dumps(SHORT), encoding="utf-8")
    encoding = read_constants(path)
    assert encoding.source == "Census."
    assert encoding.columns[1:] == (
        Numeric("income", 31_000.0, 18_000.5),
        OneHot("sex", ("F", "M")),
        OneHot("smokes", ("False", "True")),
    )
    assert read_constants(path) == Encoding.from_dict(encoding.to_dict())


def test_bounds_are_those_of_a_uniform_distribution() -> None:
    (age,) = constants_of({"source": "Law.", "age": [18, 98]}).columns
    assert isinstance(age, Numeric)
    # Brute force: the midpoints of a million equal cells.
    points = 18 + 80 * (np.arange(1_000_000) + 0.5) / 1_000_000
    assert age.mean == pytest.approx(points.mean(), rel=1e-9)
    assert age.sd == pytest.approx(points.std(), rel=1e-9)


def test_the_long_form_is_the_encodings(tmp_path: Path) -> None:
    columns = (Numeric("age", 40.0, 10.0, missing=True), OneHot("columns", ("a", "b")))
    encoding = Encoding(columns, "Elsewhere.", "base")
    path = tmp_path / "constants.json"
    path.write_text(json.dumps(encoding.to_dict()), encoding="utf-8")
    assert read_constants(path) == encoding
    assert constants_of({"source": "x", "columns": ["a", "b"]}).feature_names == (
        "columns=a",
        "columns=b",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": " "}, "source must say where"),
        ({"source": None}, "source must say where"),
        ({"age": [98, 18]}, r"column 'age': bounds must be \[low, high\], got \[98, 18\]"),
        ({"age": [1, 2, 3]}, "column 'age' must be"),
        ({"age": [1, "2"]}, "column 'age' must be"),
        ({"age": 3}, "column 'age' must be"),
        ({"age": {"mean": 1}}, "column 'age' must be"),
        ({"age": {"mean": 1, "sd": "2"}}, "column 'age': mean and sd must be numbers, got '2'"),
        ({"age": {"mean": 1, "sd": 0}}, "sd of column 'age'"),
        ({"age": [0, float("inf")]}, "column 'age'"),
        ({"sex": []}, "column 'sex' must have at least one category"),
        ({"sex": ["F", "F"]}, "none twice"),
        ({"columns": [{"kind": "numeric"}]}, "not the dictionary of an encoding"),
    ],
)
def test_what_is_not_constants(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "constants.json"
    path.write_text(json.dumps({**SHORT, **change}), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as refused:
        read_constants(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b"[" * 100_000])
def test_a_file_that_holds_no_constants(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "constants.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"constants\.json"):
        read_constants(path)


def test_nothing_that_is_published_comes_from_the_rows() -> None:
    constants = constants_of({key: SHORT[key] for key in ("source", "age", "sex")})
    rng = np.random.default_rng(0)

    def published(low: float) -> Any:
        frame = pd.DataFrame({"age": rng.uniform(low, 90, 40), "sick": np.arange(40) % 2})
        frame["sex"] = rng.choice(["F", "M"], 40)
        given: dict[str, Any] = {"positive": 1, "constants": constants, "missing": "drop"}
        return from_frame(frame, "sick", **given).train.preprocessing

    assert published(20) == published(60)
    assert published(20)["encoding"] == constants.to_dict()

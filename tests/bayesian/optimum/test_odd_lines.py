"""Tables on disk: no line of a file decides whether the others are read."""

from __future__ import annotations

import csv
import random
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from simulated import logistic_data

from bdpvi import PrivacyUtilityWarning, Table
from bdpvi.datasets import lines as lines_of


def read(path: Path, size: int = 1 << 20) -> tuple[np.ndarray[Any, Any], int]:
    """Return features and target of a table, (n, d + 1), and how many records were left out."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        table = Table.of(path, size=size).numbers("y")
    (count,) = re.findall("owner only: ([0-9]+) record", "".join(str(w.message) for w in said)) or [
        0
    ]
    found = np.concatenate([np.column_stack([x, y]) for x, y in table.parts.rows()])
    assert len(found) == len(table)
    return found, int(count)


@pytest.mark.parametrize("kind", ["csv", "parquet", "folder"])
def test_a_record_that_cannot_be_read_is_left_out_alone(kind: str, tmp_path: Path) -> None:
    data = logistic_data(200, 3)
    table = pd.DataFrame(data.x.numpy(), columns=list(data.feature_names))
    table.insert(1, "y", data.y.numpy())
    for row, (column, value) in enumerate(
        [("x1", np.nan), ("x0", np.inf), ("y", 2.0), ("y", np.nan), ("y", 0.5), ("x2", -np.inf)]
    ):
        table.loc[31 * row, column] = value
    good = np.setdiff1d(np.arange(200), 31 * np.arange(6))
    path = tmp_path / f"t.{kind}"
    if kind == "csv":
        table.to_csv(path, index=False, float_format="%.17g")
    elif kind == "parquet":
        table.to_parquet(path)
    else:  # files of several types, as pandas writes them where a value is blank
        path.mkdir()
        for at in (0, 100):
            part = table[at : at + 100].reset_index(drop=True)
            whole = part["y"].isin([0, 1]).all()
            part.astype({"y": "int64"} if whole else {}).to_parquet(path / f"{at}.parquet")
    expected = np.column_stack([data.x, data.y])[good]
    for size in (70, 640, 1 << 20):
        found, count = read(path, size)
        assert count == 6
        np.testing.assert_array_equal(found, expected)


def test_integers_of_any_size_are_numbers(tmp_path: Path) -> None:
    pd.DataFrame({"x": [2**62 + 1, 3], "y": [0, 1]}).to_parquet(tmp_path / "t.parquet")
    found, count = read(tmp_path / "t.parquet")
    assert (found.tolist(), count) == ([[2.0**62, 0.0], [3.0, 1.0]], 0)


def test_what_is_too_large_for_the_type_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y\n1,0\n1e300,1\n")
    table = Table.of(tmp_path / "t.csv").numbers("y")
    with pytest.warns(PrivacyUtilityWarning, match="owner only: 1 record left out"):
        assert len(table.to(torch.float32)) == 1
    assert len(table) == 2


ODD_CELLS = (
    b"", b" ", b"nan", b"inf", b"-1e400", b"NA", b"0x10", b"TRUE", b"1_0", b"?", b"+2", b" 3 ",
    b"1e5", b".5", b"7.", b'"4"', b'"4,5"', b'"', b'x"', b'"a"b', b"\xff", b"\x00", b"\x1f",
    b"1\r2", b"\r", b"1,2", b"\xd9\xa3", b"9" * 400, b"1" + b"0" * 20000, b"\xe2\x80\xa8",
)  # fmt: skip
"""Of a CSV file."""


def by_itself(line: bytes) -> list[float] | None:
    """Return the numbers of a line of four values, the target the second; None if it has none."""
    text = line.decode(errors="replace").replace("\x1f", "\ufffd").replace("\0", "\ufffd")
    rows = csv.reader([text.replace("\r", " ")], strict=True, skipinitialspace=True)
    try:
        (cells,) = [*rows] or [[]]
    except csv.Error:
        return None
    if len(cells) != 4 or any("_" in cell or not cell.isascii() for cell in cells):
        return None
    try:
        numbers = [float(cell) for cell in cells]
    except ValueError:
        return None
    target = numbers.pop(1)
    good = target in (0.0, 1.0) and np.isfinite(numbers).all()
    return [*numbers, target] if good else None


def mutate(path: Path, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put odd lines among good ones: each is read by itself, or left out and counted."""
    chance = random.Random(0)
    for turn in range(times):
        monkeypatch.setattr(lines_of, "CHUNK", chance.choice([1, 7, 64, 1 << 20]))
        end = chance.choice([b"\n", b"\r\n"])
        lines = []
        for _ in range(chance.randrange(1, 30)):
            cells = [b"%.3f" % chance.gauss(0, 1) for _ in range(4)]
            cells[1] = chance.choice([b"0", b"1"])
            for _ in range(chance.choice([0, 0, 1, 2])):
                cells[chance.randrange(4)] = chance.choice(ODD_CELLS)
            lines.append(b",".join(cells[: chance.choice([4, 4, 4, 4, 4, 3])]))
        head = chance.choice([b"x0,y,x1,x2", b"\xef\xbb\xbfx0, y,x1,x2"])
        path.write_bytes(end.join([head, *lines]) + chance.choice([b"", end, end + end]))
        expected = [one for one in map(by_itself, lines) if one is not None]
        found, count = read(path, size=chance.choice([3000, 1 << 20]))
        assert found.tolist() == expected, (turn, lines)
        assert count == len(lines) - len(expected), (turn, lines)


def test_odd_lines_are_read_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(tmp_path / "t.csv", 60, monkeypatch)


@pytest.mark.slow
def test_more_odd_lines_are_read_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(tmp_path / "t.csv", 2000, monkeypatch)

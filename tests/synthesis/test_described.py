"""What a shared table says of itself: against the table, and with nothing but the file."""

from __future__ import annotations

import re
from pathlib import Path

import flat
import numpy as np
import pandas as pd
import pytest
from test_cli import run

from bdpvi.datasets import ColumnType, Schema
from bdpvi.synthesis import load
from bdpvi.synthesis.described import described

GOLDEN = Path(__file__).parents[1] / "golden"


def test_it_says_what_the_noisy_counts_say() -> None:
    rng = np.random.default_rng(0)
    age = rng.gamma(9.0, 5.0, 20_000).round().clip(0, 120)
    smokes = rng.choice(["never", "daily"], 20_000, p=[0.7, 0.3])
    frame = pd.DataFrame({"age": age, "smokes": smokes})
    columns = {
        "age": ColumnType(low=0, high=120, whole=True),
        "smokes": ColumnType(kind="code", levels=("never", "daily")),
    }
    made = flat.synthesize(frame, Schema(columns, "Form 7."), epsilon=1.0, delta=1e-6, seed=0)
    lines = list(described(made))
    assert lines[0] == f"Covered: {made.receipt}"
    assert "age: integer from 0 to 120, declared" in lines
    assert "smokes: code of 2 levels, declared" in lines
    text = "\n".join(lines)
    found = re.findall(r"(?:quartile|median) +(\d+) ", text)
    assert [float(one) for one in found] == pytest.approx(
        np.quantile(age, [0.25, 0.5, 0.75]), abs=1
    )
    share, low, high = (
        float(one) for one in re.findall(r"never.*; ([\d.]+) % \(([\d.]+), ([\d.]+)\)", text)[0]
    )
    assert low <= share <= high
    assert abs(share - 100 * (smokes == "never").mean()) < high - low


def test_nothing_but_the_file_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", GOLDEN / "synthetic.json") == 0
    out = capsys.readouterr().out
    assert out.splitlines() == [*described(load(GOLDEN / "synthetic.json"))]
    assert "ward: category of 3 levels, estimated privately" in out
    assert "bounds or levels of age, dose, ward, sick were estimated privately" in out
    assert run("show", GOLDEN / "release.json") == 0
    out = capsys.readouterr().out
    assert out.startswith("Covered: worst-case DP ε = 2 (target)")
    assert "point estimates, without intervals" in out
    for name in ("expected.json", "ledger.jsonl"):
        assert run("show", GOLDEN / name) == 2
        assert name in capsys.readouterr().err

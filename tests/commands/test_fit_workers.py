"""``bdpvi fit`` with workers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from simulated import load

from bdpvi import cli


def run(*arguments: Any) -> int:
    sys.argv = ["bdpvi", *map(str, arguments)]
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(str(end.value.code))


def test_workers_train_the_same_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    rng = np.random.default_rng(0)
    age = rng.normal(50, 10, 400)
    sick = np.where(rng.random(400) < 1 / (1 + np.exp(-(age - 50) / 5)), "yes", "no")
    table = tmp_path / "patients.csv"
    pd.DataFrame({"age": age, "sick": sick}).to_csv(table, index=False)
    given = ["fit", "--data", table, "--target", "sick", "--steps", 20, "--seed", 0, "--quiet"]
    assert run(*given, "--out", tmp_path / "alone") == 0
    assert run(*given, "--out", tmp_path / "two", "--workers", 2) == 0
    (one,), (other,) = load(tmp_path / "alone").panels, load(tmp_path / "two").panels
    assert torch.equal(one.ids, other.ids)
    torch.testing.assert_close(one.pairs.b2, other.pairs.b2, rtol=1e-9, atol=1e-15)
    optimum = ["--neighbours", "optimum", "--out", tmp_path / "three", "--workers", 2]
    assert run("fit", "--data", table, "--target", "sick", *optimum) == 2
    assert "workers=2: the optimum method needs none" in capsys.readouterr().err

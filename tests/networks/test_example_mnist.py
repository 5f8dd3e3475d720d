"""The example on MNIST, with few steps."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT.parent / "shared" / "data" / "mnist"


@pytest.mark.skipif(not MNIST.is_dir(), reason="the MNIST files are not at hand")
def test_the_example_prints_a_row_with_its_epsilon(capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(ROOT / "examples" / "mnist.py"))["main"]
    few = ["--steps", "3", "--batch", "64", "--panel", "100", "--device", "cpu"]
    main(["--data", str(MNIST), *few])
    heading, row, *rest = capsys.readouterr().out.splitlines()
    assert "worst-case ε at δ = 1e-05" in heading
    assert row.split()[0] == "3"
    assert 0 <= float(row.split()[2]) <= 1
    assert "not a guarantee about the algorithm" in rest[1]

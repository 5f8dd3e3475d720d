"""The example models, with few steps."""

from __future__ import annotations

import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

MODELS = Path(__file__).parents[1] / "examples" / "models"


RELIABLE = ("poisson", "student_t")


@pytest.mark.parametrize("path", sorted(MODELS.glob("[!_]*.py")), ids=lambda path: path.stem)
def test_example_prints_its_epsilon_and_draws_its_figure(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plt, "show", pytest.fail)
    plt.switch_backend("agg")
    figure = tmp_path / "figure.png"
    main = runpy.run_path(str(path))["main"]
    reliable = path.stem in RELIABLE
    few = ("--steps", "120", "--records", "1000", "--draws", "1")
    options = few if reliable else ("--steps", "10", "--records", "160")
    main(["--out", str(figure), *options])
    plt.close("all")
    printed = capsys.readouterr().out
    assert "Bayesian DP ε = " in printed
    assert ("NOT RELIABLE" in printed) == (not reliable)  # 160 records cannot support an ε
    assert "worst-case DP: none" in printed
    assert figure.read_bytes().startswith(b"\x89PNG")

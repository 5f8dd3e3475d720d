"""The example models, with few steps."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
MODELS = EXAMPLES / "models"


@pytest.mark.parametrize("name", ["poisson", "student_t"])
def test_example_prints_its_epsilon_and_draws_its_figure(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plt, "show", pytest.fail)
    plt.switch_backend("agg")
    figure = tmp_path / "figure.png"
    main = runpy.run_path(str(MODELS / f"{name}.py"))["main"]
    main(["--out", str(figure), "--steps", "120", "--records", "1000", "--draws", "1"])
    plt.close("all")
    printed = capsys.readouterr().out
    assert "typical-record DP ε = " in printed
    assert "expected to miss" not in printed
    assert "worst-case DP: none" in printed
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_model_of_noisy_counts_prints_its_worst_case_and_draws_its_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plt.switch_backend("agg")
    figure = tmp_path / "figure.png"
    main = runpy.run_path(str(MODELS / "noisy_counts.py"))["main"]
    main(["--out", str(figure), "--steps", "2", "--records", "160"])
    plt.close("all")
    printed = capsys.readouterr().out
    assert "worst-case DP: ε = 1 at δ = 1e-06" in printed
    assert "loss" in printed
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.whole
def test_the_cluster_releases_a_model_synthetic_rows_and_a_certificate(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    example = EXAMPLES / "larger" / "dask_cluster.py"
    ran = subprocess.run(
        [sys.executable, example, tmp_path / "made", "--rows", "20000"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "worst-case DP ε = 1 (target)" in ran.stdout
    assert "certified" in ran.stdout
    assert (tmp_path / "made" / "synthetic.csv").exists()
    assert (tmp_path / "made" / "model" / "release.json").exists()

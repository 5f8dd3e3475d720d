"""The benchmarks of networks: what they keep, go on from and charge."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from accounts import bayes, worst_of
from torch import Tensor

from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian_dp import gaussian_guarantee
from bdpvi.privacy.norms import NormCounts
from bdpvi.privacy.sampled_steps import GaussianAccountant, PrivacyLossAccountant, calibrate

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DELTA = 1e-5


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import mnist_runs

    return mnist_runs


@pytest.fixture
def last(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import last_layer

    return last_layer


def images(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, 1, 28, 28, generator=generator)
    return x, torch.randint(10, (n,), generator=generator)


def test_finished_runs_are_kept_and_not_repeated(
    runs: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = replace(
        runs.PLANS["levels"], noises=(1.0, 4.0), batch=20, held=110, panel=100, seeds=(0, 1)
    )
    monkeypatch.setitem(runs.PLANS, "levels", small)
    monkeypatch.setattr(runs.datasets.mnist, "load_mnist", lambda _: (images(300), images(50)))
    out = tmp_path / "runs.jsonl"
    asked = ["levels", "--out", str(out), "--steps", "2"]
    runs.main([*asked, "--seeds", "0"])
    first = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["noise"], row["seed"]) for row in first] == [(1.0, 0), (4.0, 0)]
    runs.main(asked)
    both = [json.loads(line) for line in out.read_text().splitlines()]
    assert both[:2] == first
    assert [(row["noise"], row["seed"]) for row in both[2:]] == [(1.0, 1), (4.0, 1)]
    for row in both:
        assert all(a <= b for a, b in zip(row["bayesian"], row["worst"], strict=True))
    capsys.readouterr()
    runs.main(asked)
    assert len(out.read_text().splitlines()) == 4
    printed = capsys.readouterr().out
    assert "| 4 | 1e-05 | 2 |" in printed
    assert runs.guess(both[0]["worst"][0]) in printed


def test_panel_mean_of_records_at_the_clip_is_that_of_the_largest(runs: ModuleType) -> None:
    steps, counts = 100, torch.zeros(120, 64, dtype=torch.int64)
    counts[:30, -1] = counts[30:, 0] = steps  # the rest is at 1/64 of the clip
    norms = NormCounts(torch.arange(120), counts)
    event = SampledGaussian(noise_multiplier=1.0, rate=0.01, steps=steps, norms=norms)
    quarter = PrivacyLossAccountant().epsilon(1.0, 0.01, steps, 4 * DELTA)
    assert runs.plain_mean(event, DELTA) == pytest.approx(quarter, rel=0.01)
    assert runs.plain_mean(event, DELTA) <= runs.certified(event, DELTA)


def test_guess_is_the_published_column(runs: ModuleType) -> None:
    assert runs.guess(0.62) == "0.620, 0.650"
    assert runs.guess(0.95) == "0.950, 0.721"


def test_features_are_clipped_to_the_public_norm(
    last: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = torch.arange(0.0, 11.0)
    private = torch.tensor([[0.0, 3.0], [40.0, 30.0]])
    sets = ((private, torch.tensor([0, 4])),) * 4
    monkeypatch.setattr(last, "features", lambda *_: (public, sets))
    found = last.task(None, 0, 0.5).panel.x
    expected = torch.tensor([[0.0, 3.0, 1.0], [4.0, 3.0, 1.0]]) / math.sqrt(26)
    assert found.numpy() == pytest.approx(expected.numpy())


def test_static_costs_of_short_features_are_below_the_worst_case(
    last: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    length = torch.full((800, 1), 2.0)
    length[:8] = 9.0
    way = torch.nn.functional.normalize(torch.randn(800, 3, generator=generator))
    short = (way * length, torch.randint(5, (800,), generator=generator))
    monkeypatch.setattr(last, "features", lambda *_: (torch.tensor([5.0]), (short,) * 4))
    found = last.run(last.task(None, 0, 0.5), (math.sqrt(2),), 0.51, 0.9, 0)
    spent = found.costs[0]
    assert worst_of(spent).epsilon == pytest.approx(0.51, rel=0.01)
    assert bayes(spent).reliable
    # A hundredth is at the clip: no ε below that of the worst case at a δ 100 times as large.
    z = calibrate(GaussianAccountant(), epsilon=0.51, delta=DELTA, rate=1.0, steps=last.STEPS)
    least = gaussian_guarantee(last.STEPS / z**2, 100 * DELTA)
    assert least is not None
    assert least.epsilon < bayes(spent).epsilon < 0.95 * worst_of(spent).epsilon
    assert found.at_clip == pytest.approx(0.01)

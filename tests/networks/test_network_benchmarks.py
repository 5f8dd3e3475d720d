"""The benchmarks of networks: what they keep, go on from and charge."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType

import pytest
import torch
from accounts import bayes, worst_of

from bdpvi.privacy.gaussian_dp import gaussian_guarantee
from bdpvi.privacy.sampled_steps import GaussianAccountant, calibrate

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DELTA = 1e-5


@pytest.fixture
def last(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import last_layer

    return last_layer


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

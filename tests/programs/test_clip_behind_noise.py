"""A clip that follows noisy counts: noise moves it little, and training ends where records say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats

from bdpvi.programs.training import SuitedDPVI
from bdpvi.releases.route import Allowance

SPREAD = 0.7
"""Standard deviation of the logarithms of the norms."""


@pytest.mark.parametrize("start", [0.2, 1.0, 10.0])
@pytest.mark.parametrize("size", [8, 200])
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
@pytest.mark.parametrize("rows", [2000, 10_000])
def test_the_clip_stays_near_its_quantile_whatever_the_noise(
    rows: int, epsilon: float, size: int, start: float
) -> None:
    """Norms are lognormal, so that the share beyond C is known; the start is far off."""
    route: Any = SuitedDPVI(rows=rows, guide=None, size=size, start={})
    plan = route.plan(None, 0, Allowance(epsilon, 1e-5, 0.0))
    clip, steps = plan.clip, plan.event.steps
    middle = math.log(clip.bound / start)
    goal = middle + SPREAD * stats.norm.isf(clip.longer)
    for seed in range(2):
        noise = plan.event.noise_multiplier * torch.randn(
            steps, generator=torch.Generator().manual_seed(seed)
        )
        bound, away = clip.bound, []
        for number, one in enumerate(noise.tolist()):
            beyond = math.erfc((math.log(bound) - middle) / SPREAD / math.sqrt(2)) / 2
            count = clip.share * clip.batch * (beyond - clip.longer)
            bound = clip.next(bound, count + one, number)
            away.append(math.log(bound) - goal)
        last = torch.tensor(away[steps // 2 :])
        assert abs(float(last.mean())) < math.log(3.0)
        assert float(last.max()) < math.log(5.0)

"""Logistic and Poisson mixed models from noisy scores: lengths, noise, and the posterior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import bdpvi
from bdpvi import BayesianLogisticRegression, BayesianPoissonRegression, Dataset
from bdpvi.models.logistic import LogisticScores
from bdpvi.models.mixed import MixedRegression
from bdpvi.models.poisson import PoissonScores
from bdpvi.models.scores import ScoreParts
from bdpvi.noise.keys import Key
from bdpvi.privacy.events import SampledGaussian
from bdpvi.regression import NoisyGroups
from bdpvi.regression.group_moments import GroupedRows
from bdpvi.regression.group_scores import GroupPoint, ScoredGroups
from bdpvi.releases.noisy_sum import NoisySum

GROUPS = 6
W = torch.tensor([0.5, -0.3, 0.2], dtype=torch.float64)
FAMILIES = [LogisticScores(), PoissonScores(largest=7.0)]


def plan(family: ScoreParts) -> ScoredGroups:
    event = SampledGaussian(noise_multiplier=2.0)
    return ScoredGroups(event=event, columns=3, groups=GROUPS, radius=2.2, family=family)


def rows(n: int, family: ScoreParts, seed: int = 0) -> GroupedRows:
    random = torch.Generator().manual_seed(seed)
    x = torch.cat([torch.randn(n, 2, generator=random), torch.ones(n, 1)], 1).double()
    there = torch.nn.functional.one_hot(torch.randint(GROUPS, (n,), generator=random), GROUPS) > 0
    y = torch.randint(2 if family.link == "logit" else 9, (n,), generator=random).double()
    return GroupedRows(x, there, y)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_row_moves_a_round_by_more_than_its_bound(family: ScoreParts) -> None:
    """GroupedRows of any size at points near and far; each sum is as long as its matrices say."""
    made, some = plan(family), rows(1500, family)
    some.x[:, :2] *= torch.logspace(-1, 2, 1500, dtype=torch.float64)[:, None]
    some.groups[::5] = False
    longest = 0.0
    for at in (
        GroupPoint(torch.zeros(3).double(), torch.zeros(GROUPS).double(), 0.0),
        GroupPoint(3 * W, torch.linspace(-2, 2, GROUPS).double(), 0.5),
        GroupPoint(-9 * W, torch.full((GROUPS,), 2.0).double(), 2.0),
    ):
        x, parts = made.parts(some, at)
        for one in range(0, 1500, 7):
            each = GroupedRows(*(part[[one]] for part in some))
            length = float(made.sums(each, at).norm())
            matrix = torch.outer(x[one], x[one]) * parts.curvature[one] * parts.ratio
            wanted = math.hypot(float((parts.score[one] * x[one]).norm()), float(matrix.norm()))
            assert length == pytest.approx(wanted, rel=1e-6, abs=1e-9)
            longest = max(longest, length / parts.bound)
    assert 0.9 < longest <= 1


@pytest.mark.parametrize("family", FAMILIES)
def test_moments_are_the_scores_of_the_rows_with_noise_of_the_longest(family: ScoreParts) -> None:
    made, some = plan(family), rows(400, family)
    at = GroupPoint(W, torch.linspace(-1, 1, GROUPS).double(), 0.3)
    eta = some.x @ W + some.groups.double() @ at.u
    nodes = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    law = torch.exp(-nodes.square() / 2) / math.sqrt(2 * math.pi) * (nodes[1] - nodes[0])
    inverse, error = (torch.sigmoid, 0.002) if family.link == "logit" else (torch.exp, 1e-4)
    mean = inverse(eta[:, None] + math.sqrt(0.3) * nodes) @ law  # E g(η + ξ) by quadrature
    no, yes = (made.parts(some._replace(y=0 * some.y + one), at)[1].score for one in (0, 1))
    uncut = mean < 0.8  # of counts, hardly any is cut at 7 then
    torch.testing.assert_close((-no / (yes - no))[uncut], mean[uncut], atol=error, rtol=0)
    flat = made.sums(some, at)
    assert len(flat) == made.size - 1
    _, parts = made.parts(some, at)
    s, h, g = parts.score, parts.curvature, some.groups.double()
    many = [made.released(flat, 0.5, Key.fresh()) for _ in range(400)]

    def spread(name: str) -> float:
        values = torch.stack([getattr(one, name) for one in many])
        return float(values.std(0).mean())

    assert many[0].product_noise == pytest.approx(0.5 * parts.bound, rel=1e-3)
    assert spread("products") == pytest.approx(0.5 * parts.bound, rel=0.06)
    assert spread("by_group") == pytest.approx(many[0].group_noise, rel=0.04)
    assert spread("features") == pytest.approx(
        many[0].feature_noise * (3 + 6 / 2**0.5) / 9, rel=0.06
    )
    counts = torch.stack([one.sums[:, -1] for one in many]).std(0).mean()
    assert float(counts) == pytest.approx(many[0].count_noise, rel=0.04)
    sums = torch.stack([one.sums[:, 0] for one in many]).std(0).mean()
    assert float(sums) == pytest.approx(many[0].sum_noise, rel=0.04)
    quiet = made.released(flat, 1e-7, Key.fresh())
    torch.testing.assert_close(quiet.products, some.x.T @ s, atol=1e-4, rtol=0)
    torch.testing.assert_close(quiet.by_group, g.T @ s, atol=1e-4, rtol=0)
    torch.testing.assert_close(quiet.features, some.x.T @ (h[:, None] * some.x), atol=1e-4, rtol=0)
    torch.testing.assert_close(quiet.sums, g.T @ (h[:, None] * some.x), atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_rounds_together_cost_what_is_charged(
    family: ScoreParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gaussian mechanisms of distances 1/z compose to the root of Σ 1/z²."""
    used: list[float] = []

    class Noted(NoisySum):
        def noisy(self, totals: Sequence[Tensor], key: Key) -> list[Tensor]:
            used.append(self.noise_multiplier)
            return super().noisy(totals, key)

    monkeypatch.setattr("bdpvi.releases.noisy_sum.NoisySum", Noted)
    of: Any = BayesianLogisticRegression.unweighted(intercept=True)
    if family.link == "log":
        of = BayesianPoissonRegression(largest=7)
    model = MixedRegression(of=of, groups=tuple(range(2, 2 + GROUPS)))
    x, _, y = rows(300, family)
    groups = torch.eye(GROUPS).double().repeat(300 // GROUPS, 1)
    data = Dataset(torch.cat([x[:, :2], groups], 1), y.clamp(max=7))
    plan(family).posterior(data, model, Key.fresh())
    assert len(used) == 4
    assert sum(z**-2 for z in used) == pytest.approx(2.0**-2, rel=1e-9)


def test_a_mean_is_the_same_whatever_spread_effects_are_given() -> None:
    """A step at one τ², and the one of the same mean at another; errors bound the variance."""
    z, step = torch.tensor([0.7, -1.0, 1.0]).double(), torch.tensor([0.1, 0.2, -0.3]).double()
    at = GroupPoint(W, torch.zeros(2), 0.4, error=0.6)
    assert at.variance(1.5) == pytest.approx(1.5 - 1.5**2 / (1.5 + 0.6))
    steps = ((step, at.variance(0.4)), (at.given(True, step, 1.5), at.variance(1.5)))
    both = [float(z @ (W + one)) / math.sqrt(1 + math.pi * v / 8) for one, v in steps]
    assert both[0] == pytest.approx(both[1])
    steps = ((step, at.variance(0.4)), (at.given(False, step, 1.5), at.variance(1.5)))
    both = [math.exp(float(z @ (W + one)) + v / 2) for one, v in steps]
    assert both[0] == pytest.approx(both[1])


def simulated(family: str, groups: int, size: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(groups * size, 2, generator=random).double()
    u = 0.6 * torch.randn(groups, generator=random).double()
    eta = x @ W[:2] + W[2] + u.repeat_interleave(size)
    law = torch.bernoulli(eta.sigmoid(), generator=random)
    y = law if family == "logistic" else torch.poisson(eta.exp(), generator=random)
    one_hot = torch.eye(groups).double().repeat_interleave(size, 0)
    return torch.cat([x, one_hot], 1), y.double(), u


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_intervals_hold_on_simulated_tables(family: str) -> None:
    """Twelve tables of 60 groups: weights, effects and τ."""
    of = (
        BayesianLogisticRegression.unweighted(intercept=True, prior_scale=5.0)
        if family == "logistic"
        else BayesianPoissonRegression(largest=12)
    )
    model = MixedRegression(of=of, column="clinic", groups=tuple(range(2, 62)))
    held: list[Tensor] = []
    for seed in range(12):
        x, y, u = simulated(family, 60, 120, seed)
        route = NoisyGroups(draws=2)
        guide = bdpvi.fit_private(model, Dataset(x, y), epsilon=3.0, route=route).guide
        assert guide is not None
        assert all(guide.measured[:2])
        assert guide.measured[-1]
        sd = torch.tensor(guide.variances).sqrt()
        truth = torch.cat([W[:2], u, W[2:], torch.tensor([math.log(0.6)])])
        held.append((torch.tensor(guide.mean) - truth).abs() < 1.96 * sd)
    share = torch.stack(held).double().mean(0)
    assert float(share[[0, 1, -2]].mean()) > 0.85
    assert float(share[2:62].mean()) > 0.9
    assert float(share[-1]) > 0.7


def test_a_step_too_long_measures_nothing() -> None:
    """Counts under a bound far above them, of few rows: noise decides where the rounds end."""
    model = MixedRegression(
        of=BayesianPoissonRegression(largest=1000), column="clinic", groups=(2, 3, 4, 5)
    )
    x, y, _ = simulated("poisson", 4, 40, 0)
    release = bdpvi.fit_private(model, Dataset(x, y), epsilon=1.0, route=NoisyGroups(draws=2))
    assert release.guide is not None
    assert not any(release.guide.measured[:2])
    assert not release.guide.measured[-1]

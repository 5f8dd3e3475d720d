"""A clip that follows noisy counts: noise moves it little, and training ends where records say."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, JitTrace_ELBO, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from scipy import stats
from torch import Tensor

import bdpvi
from bdpvi import DPVI
from bdpvi.noise.keys import Key
from bdpvi.programs.training import SuitedDPVI
from bdpvi.releases.route import Allowance

SPREAD = 0.7
"""Standard deviation of the logarithms of the norms."""
PARTS, SIZES = torch.tensor([0.3, 0.8, -0.5]), torch.tensor([0.7, 0.5, -0.4])


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


class Hurdle(dist.TorchDistribution):  # type: ignore[misc]
    """0, or a positive Poisson count."""

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = dist.constraints.nonnegative_integer

    def __init__(self, logit: Tensor, rate: Tensor) -> None:
        self.logit, self.rate = logit, rate
        super().__init__(logit.shape, validate_args=False)

    def expand(self, shape: torch.Size, _instance: Any = None) -> Hurdle:
        return Hurdle(self.logit.expand(shape), self.rate.expand(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        y, of = value.clamp(min=1.0), torch.nn.functional.logsigmoid
        count = y * self.rate.log() - self.rate - torch.lgamma(y + 1)
        count = count - torch.log(-torch.expm1(-self.rate))
        return torch.where(value > 0, of(self.logit) + count, of(-self.logit))

    def sample(self, shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        logit, rate = (one.expand(shape + one.shape).detach() for one in (self.logit, self.rate))
        place = torch.rand(rate.shape) * -torch.expm1(-rate) + (-rate).exp()
        counts = torch.from_numpy(stats.poisson.ppf(place.double(), rate.double())).to(rate)
        return torch.bernoulli(logit.sigmoid()) * counts.clamp(min=1.0)


def hurdle(x: Tensor, y: Tensor | None = None) -> None:
    a = pyro.sample("a", dist.Normal(x.new_zeros(3), 1.0).to_event(1))
    b = pyro.sample("b", dist.Normal(x.new_zeros(3), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", Hurdle(x @ a, (x @ b).clamp(-8, 8).exp()), obs=y)


def visits(rows: int) -> tuple[Tensor, Tensor]:
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        x = torch.cat([torch.ones(rows, 1), torch.randn(rows, 2)], 1)
        return x, Hurdle(x @ PARTS, (x @ SIZES).exp()).sample()


@pytest.mark.whole
def test_no_measured_coefficient_is_far_from_the_truth_of_a_hurdle_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the defaults, at an ε at which noise hides the counts that the clip follows."""
    data, truth = visits(3000), torch.cat([PARTS, SIZES]).double()
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    guide = AutoNormal(hurdle, init_scale=0.05)
    svi = SVI(hurdle, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(500):
        svi.step(*data)
    plain = torch.cat([pyro.param(f"AutoNormal.locs.{site}").detach() for site in "ab"])
    assert float((plain - truth).abs().max()) < 0.15
    pyro.clear_param_store()
    for seed in range(3):
        monkeypatch.setattr(Key, "fresh", classmethod(lambda _, s=seed: Key.of_seed(s)))
        route = DPVI(rows=3000, draws=50, loss=JitTrace_ELBO())
        release = bdpvi.fit_private(hurdle, data, epsilon=0.5, route=route)
        assert release.guide is not None
        assert release.guide.settled
        away = (torch.tensor(release.guide.mean).double() - truth).abs()
        away = away / torch.tensor(release.guide.variances).double().sqrt()
        assert float(away[torch.tensor(release.guide.measured)].max()) < 4

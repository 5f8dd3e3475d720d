"""The example models: what bounds their scores, and that a release of each is reliable."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import bdpvi
from bdpvi.bayesian.inference.svi import default_optimiser
from bdpvi.guides import FullRank
from bdpvi.models.traces import log_likelihood

MODELS = Path(__file__).parents[1] / "examples" / "models"
RELIABLE = bdpvi.bayesian.Accounting(only_reliable=True, failure_probability=1e-30)


def source(name: str) -> dict[str, Any]:
    return runpy.run_path(str(MODELS / f"{name}.py"))


@pytest.mark.parametrize("bound", [0.3, 2.0, 50.0])
@pytest.mark.parametrize("count", [0.0, 1.0, 4.0, 30.0])
def test_the_clipped_poisson_is_the_integral_of_its_clipped_slope(
    count: float, bound: float
) -> None:
    clipped = source("poisson")["ClippedPoisson"]

    def slope(log_rate: float) -> float:
        return float(np.clip(count - math.exp(log_rate), -bound, bound))

    start = math.log(max(count, 0.1))  # near the maximum, where nothing is clipped
    knees = [math.log(count + bound), math.log(max(count - bound, 1e-9))]
    for end in (-3.0, 0.0, 2.5, 5.0):
        inside = [knee for knee in knees if min(start, end) < knee < max(start, end)]
        area = integrate.quad(slope, start, end, points=inside, epsabs=1e-11)[0]
        expected = stats.poisson.logpmf(count, math.exp(start)) + area
        found = clipped(
            torch.tensor(end, dtype=torch.float64), torch.tensor(bound, dtype=torch.float64)
        )
        assert float(found.log_prob(torch.tensor(count).double())) == pytest.approx(
            expected, rel=1e-8, abs=1e-8
        )


def scores(model: Any, latents: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> Any:
    """Return the gradient of each record's log-likelihood in each latent, by finite records."""

    def one(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return log_likelihood(model, values, x[None], y[None]).sum()

    each = [torch.func.grad(one)(latents, a, b) for a, b in zip(x, y, strict=True)]
    return {name: torch.stack([value[name] for value in each]) for name in latents}


def test_no_record_has_a_poisson_score_beyond_the_clip() -> None:
    found = source("poisson")
    w = torch.tensor([0.4, -0.3, 0.2, 0.0, 0.5]).double()
    x = torch.tensor([[0.1] * 4, [2.0] * 4, [-1e6] * 4, [1e6, -1e6, 1e6, 1e6]]).double()
    for y in (0.0, 3.0, 1e6):
        score = scores(found["model"], {"w": w}, x, torch.full((4,), y).double())["w"]
        assert float(score.norm(dim=1).max()) <= found["CLIP"] * (1 + 1e-12)
    assert score.norm(dim=1).tolist() == pytest.approx([found["CLIP"]] * 4)  # all of it, far off


def test_the_student_t_bounds_a_score_by_itself() -> None:
    """The bound is met where the target is √ν scales off; further off the score falls."""
    found = source("student_t")
    freedom, scale = found["FREEDOM"], 0.5
    latents = {
        "w": torch.zeros(4).double(),
        "intercept": torch.tensor(0.0).double(),
        "scale": torch.tensor(scale).double(),
    }
    off = scale * torch.cat([torch.tensor([math.sqrt(freedom)]), torch.logspace(-3, 6, 50)])
    score = scores(found["model"], latents, torch.full((51, 4), 1e6).double(), off.double())
    bound = (freedom + 1) / (2 * math.sqrt(freedom) * scale)
    weights = score["w"].norm(dim=1) / (2 * found["LIMIT"])  # ‖x‖ is 4 at most
    assert float(weights[0]) == pytest.approx(bound, rel=1e-6)
    assert float(weights.max()) <= bound * (1 + 1e-6)
    in_log_scale = score["scale"] * scale
    assert float(in_log_scale.min()) >= -1 - 1e-9
    assert float(in_log_scale.max()) == pytest.approx(freedom, rel=1e-6)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "records"),
    [("poisson", 600), pytest.param("student_t", 1000, marks=pytest.mark.slow)],
)
def test_a_release_of_the_guide_s_own_covariance_is_reliable(name: str, records: int) -> None:
    found = source(name)
    guide = FullRank(found["model"], init_scale=0.05)
    fit = bdpvi.fit(
        found["model"],
        guide,
        found["simulated"](records),
        training=bdpvi.Training(steps=120, seed=0, optim=default_optimiser(120, lr=0.1, decay=0.1)),
        progress=False,
    )
    assert not bool((fit.panels[0].pairs.r == 1).any())
    given: dict[str, Any] = {"accounting": RELIABLE, "guarantee": bdpvi.BayesianDP()}
    release = bdpvi.release(fit, **given)
    assert release.receipt.bound.reliable
    assert release.receipt.bound.epsilon < 2
    test = found["simulated"](2000, seed=1)
    error = (found["predicted"](release.latents, test.x) - test.y).abs().mean()
    without = (test.y - test.y.median()).abs().mean()
    assert float(error) < 0.9 * float(without)

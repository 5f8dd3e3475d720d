"""The benchmark of static costs: its training, its bound and what it charges."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

DELTA = 1e-5


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "static_costs.py"
    spec = importlib.util.spec_from_file_location("static_costs", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # dataclasses look their module up
    spec.loader.exec_module(found)
    return found


def gradient(w: Tensor, x: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    w = w.clone().requires_grad_()
    (found,) = torch.autograd.grad(F.cross_entropy((logits + x @ w)[None], y[None]), [w])
    return found


def test_steps_follow_clipped_gradients_within_the_bound(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (
        torch.randn(40, 3, generator=generator)
        * torch.tensor([0.0, 1.0, 4.0, 9.0]).repeat(10)[:, None]
    )
    logits = 2 * torch.randn(40, 3, generator=generator)
    data = benchmark.Records(x, logits, torch.randint(3, (40,), generator=generator))
    monkeypatch.setattr(benchmark, "STEPS", 1)
    found = benchmark.trained(data, benchmark.Settings(2.0, 0.5), 1e-12, 0)
    zero = torch.zeros(3, 3)
    alone = [gradient(zero, *one) for one in zip(x, logits, data.y, strict=True)]
    clipped = [g * min(1.0, 2.0 / max(float(g.norm()), 1e-9)) for g in alone]
    assert found.numpy() == pytest.approx(
        (-0.5 / 40 / 2.0 * torch.stack(clipped).sum(0)).numpy(), abs=1e-6
    )
    for scale in (0.1, 1.0, 30.0):
        w = scale * torch.randn(3, 3, generator=generator)
        for one in zip(x, logits, data.y, strict=True):
            bound = math.sqrt(2) * one[0].norm()
            assert gradient(w, *one).norm() <= bound * (1 + 1e-5)


def test_a_record_is_charged_what_its_features_allow(benchmark: ModuleType) -> None:
    clip, z = 4.0, 60.0
    x = torch.zeros(200, 1)
    x[50:100], x[100:] = 1.0, 90.0
    panel = benchmark.Records(x, torch.zeros(200, 2), torch.zeros(200, dtype=torch.int64))
    own = benchmark.accountant(panel, clip, z).per_record(DELTA)
    assert (own[:50] == 0).all()
    # √2/4 is rounded up to 91/256.
    for epsilon, norm in ((own[60], 91 / 256), (own[-1], 1.0)):
        exact = _gaussian(math.sqrt(benchmark.STEPS) * norm / z)
        assert float(epsilon) == pytest.approx(exact, rel=1e-3)


def _gaussian(mu: float) -> float:
    """Return ε of a Gaussian release by bisection of its exact δ."""
    low, high = 0.0, 50.0
    for _ in range(60):
        mid = (low + high) / 2
        tail = stats.norm.cdf(mu / 2 - mid / mu) - math.exp(mid) * stats.norm.cdf(
            -mu / 2 - mid / mu
        )
        low, high = (mid, high) if tail > DELTA else (low, mid)
    return high

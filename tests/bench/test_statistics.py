"""One-shot noisy statistics: what a record moves, what the noise is, what is solved."""

from __future__ import annotations

import math

import pytest
import torch
from simulated import logistic_data

from bdpvi import Dataset
from bdpvi.bench.methods.statistics import NoisyStatistics, PreparedStatistics
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.noise.keys import Key

MODEL = BayesianLogisticRegression.unweighted(intercept=True, limit=1e9)


def prepared(data: Dataset) -> PreparedStatistics:
    return NoisyStatistics(model=MODEL).prepare(data, 1e-5)


def test_a_record_moves_both_sums_by_one_at_most() -> None:
    generator = torch.Generator().manual_seed(0)
    longest = []
    for size in torch.logspace(-3, 12, 60):
        x = size * torch.randn(1, 3, generator=generator, dtype=torch.float64)
        one = prepared(Dataset(x, torch.ones(1, dtype=torch.float64)))
        longest.append((float(one.t.norm()), float(one.s.norm())))
        assert max(longest[-1]) <= 1
    assert min(max(some) for some in zip(*longest, strict=True)) > 1 - 3e-6


def test_the_noise_is_what_each_norm_needs() -> None:
    """Of half a million numbers off the diagonal, deviations are within 0.1 %, one sd."""
    d, noise = 1000, 3.0
    nothing = PreparedStatistics(
        NoisyStatistics(), torch.zeros(d).double(), torch.zeros(d, d).double(), 1.0, 1e-5,
        torch.zeros(0),
    )  # fmt: skip
    t, s = nothing.noisy(noise, Key.of_seed(0))
    assert torch.equal(s, s.T)
    above = s[torch.triu_indices(d, d, 1).unbind()]
    assert float(above.std()) == pytest.approx(noise, rel=0.005)
    for own in (t, s.diagonal()):
        assert float(own.std()) == pytest.approx(math.sqrt(2) * noise, rel=0.1)


def test_without_noise_it_is_the_maximum_of_the_quadratic() -> None:
    data = logistic_data(500, 3)
    (made,) = prepared(data).outcomes([0.0], [0])
    w = made.latents["w"][0].double().requires_grad_()
    z = torch.cat([data.x, torch.ones(500, 1).double()], 1)
    clip = 0.75 * 2 * (1 - 2**-20)  # with the margin for rounding
    z = z * (clip / z.norm(dim=1, keepdim=True)).clamp(max=1)
    logit = (2 * data.y - 1) * (z @ w)
    objective = (logit / 2 - 0.1 * logit**2).sum() - w.square().sum() / 2
    (gradient,) = torch.autograd.grad(objective, w)
    assert float(gradient.norm()) < 1e-9
    assert made.cost is None

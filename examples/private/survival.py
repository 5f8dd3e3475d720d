"""Survival by Weibull regression, with censored times.

    python examples/private/survival.py --out survival.png

The last column of x is the follow-up time. A person still alive then is censored: y is the
follow-up time itself. The figure shows survival for low, average and high values of the first
feature.
"""

from __future__ import annotations

import sys

import pyro
import pyro.distributions as dist
import torch
from _example import Draws, main, most_likely, summed_out
from matplotlib.axes import Axes
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from bdpvi import Dataset
from bdpvi.models.contract import Model

WEIGHTS = torch.tensor([-0.8, 0.5, 0.3, 0.0])
INTERCEPT, SHAPE, YEARS = 1.0, 1.6, 5.0
LOSS = Trace_ELBO()


def log_survival(y: Tensor, scale: Tensor, shape: Tensor) -> Tensor:
    """Return the log of the chance to live beyond y."""
    return -((y / scale) ** shape)


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw weights, intercept and shape; observe deaths, and that the censored outlived y."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(4), 1.0).to_event(1))
    intercept = pyro.sample("intercept", dist.Normal(x.new_zeros(()), 2.0))
    shape = pyro.sample("shape", dist.LogNormal(x.new_zeros(()), 0.5))
    scale = (intercept + x[:, :4] @ w).exp()
    died = True if y is None else y < x[:, 4]
    with pyro.plate("records", len(x)):
        with poutine.mask(mask=died):
            pyro.sample("y", dist.Weibull(scale, shape), obs=y)
        if y is not None:
            with poutine.mask(mask=~died):
                pyro.factor("outlived", log_survival(y, scale, shape))


def fresh() -> tuple[Model, AutoNormal]:
    """Return the model and an untrained guide."""
    return model, AutoNormal(model)


def simulated(records: int, seed: int) -> Dataset:
    """Return four standardised features, years of follow-up, and years until death or their end."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(records, 4, generator=generator)
    follow = 0.5 + (YEARS - 0.5) * torch.rand(records, generator=generator)
    exponential = -torch.log1p(-torch.rand(records, generator=generator))
    time = (INTERCEPT + features @ WEIGHTS).exp() * exponential ** (1 / SHAPE)
    y = torch.minimum(time.clamp(min=1e-3), follow)
    return Dataset(torch.cat([features, follow[:, None]], 1), y, name="survival")


def baseline(train: Dataset, test: Dataset) -> float:
    """Return the mean log density under one Weibull for everybody, censored as the model's."""

    def one(p: Tensor, x: Tensor, y: Tensor) -> Tensor:
        scale, shape = p.exp()
        density = dist.Weibull(scale, shape).log_prob(y)
        return torch.where(y < x[:, 4], density, log_survival(y, scale, shape))

    return most_likely(one, 2, train, test)


log_density = summed_out


def figure(draws: Draws, axes: Axes) -> None:
    """Draw survival curves: the truth, and draws."""
    years = torch.linspace(0.01, YEARS, 100)
    latents = {name: value[:20, ..., None].to(years) for name, value in draws.latents.items()}
    for first, colour in zip((-1.0, 0.0, 1.0), ("C0", "C1", "C2"), strict=True):
        scale = (latents["intercept"] + first * latents["w"][:, 0]).exp()
        learned = log_survival(years, scale, latents["shape"]).exp()
        axes.plot(years, learned.T, color=colour, alpha=0.3)
        scale = (INTERCEPT + first * WEIGHTS[0]).exp()
        axes.plot(years, log_survival(years, scale, torch.tensor(SHAPE)).exp(), "k--")
    axes.set(xlabel="years", ylabel="survival", title="true survival (dashed) and draws of it")


if __name__ == "__main__":
    main(sys.modules[__name__])

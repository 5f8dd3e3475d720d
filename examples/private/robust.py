"""Robust regression: Student-t noise of unknown scale and degrees of freedom.

    python examples/private/robust.py --out robust.png

One target in twenty is far off. The figure shows true and learned weights.
"""

from __future__ import annotations

import sys

import pyro
import pyro.distributions as dist
import torch
from _example import Draws, main, most_likely, summed_out
from matplotlib.axes import Axes
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from bdpvi import Dataset
from bdpvi.models.contract import Model

WEIGHTS = torch.tensor([0.9, -0.6, 0.4, 0.2, 0.0])
INTERCEPT, NOISE, OFF = 0.3, 0.4, 0.05
LOSS = Trace_ELBO()


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw weights, intercept, scale and degrees of freedom; observe the targets."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(5), 1.0).to_event(1))
    intercept = pyro.sample("intercept", dist.Normal(x.new_zeros(()), 1.0))
    scale = pyro.sample("scale", dist.LogNormal(x.new_zeros(()), 1.0))
    freedom = pyro.sample("freedom", dist.Gamma(x.new_tensor(2.0), 0.2))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.StudentT(freedom, intercept + x @ w, scale), obs=y)


def fresh() -> tuple[Model, AutoNormal]:
    """Return the model and an untrained guide."""
    return model, AutoNormal(model)


def simulated(records: int, seed: int) -> Dataset:
    """Return five standardised features and a target."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, 5, generator=generator)
    noise = NOISE * torch.randn(records, generator=generator)
    far = torch.rand(records, generator=generator) < OFF
    return Dataset(x, INTERCEPT + x @ WEIGHTS + torch.where(far, 10 * noise, noise), name="robust")


def baseline(train: Dataset, test: Dataset) -> float:
    """Return the mean log density under one Student's t for everybody."""
    return most_likely(
        lambda p, x, y: dist.StudentT(10 * p[2].exp(), p[0], p[1].exp()).log_prob(y), 3, train, test
    )


log_density = summed_out


def figure(draws: Draws, axes: Axes) -> None:
    """Draw true weights, and those learned with two standard deviations."""
    w = draws.latents["w"]
    axes.errorbar(range(5), w.mean(0), 2 * w.std(0), fmt="o", capsize=3)
    axes.plot(range(5), WEIGHTS, "k_", markersize=20)
    axes.set(xlabel="feature", ylabel="weight", title="true weights (lines) and learned")


if __name__ == "__main__":
    main(sys.modules[__name__])

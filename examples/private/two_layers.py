"""A Bayesian network with two hidden layers of eight tanh units, for a regression.

    python examples/private/two_layers.py --out two_layers.png

The guide starts at a draw from the prior, as at zero all units are the same. The figure shows the
true curve along the first feature, and draws of the learned one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pyro
import pyro.distributions as dist
import torch
from _example import Draws, main, most_likely, summed_out
from matplotlib.axes import Axes
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_sample
from torch import Tensor

from bdpvi import Dataset
from bdpvi.models.contract import Model

SHAPES = ((2, 8), (8, 8), (8, 1))
NOISE = 0.3
LOSS = Trace_ELBO()


def network(x: Tensor, latents: Mapping[str, Tensor]) -> Tensor:
    """Return the output for each row of x, (N,)."""
    for layer in range(len(SHAPES)):
        x = (torch.tanh(x) if layer else x) @ latents[f"w{layer}"] + latents[f"b{layer}"]
    return x.squeeze(-1)


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw weights and offsets of each layer and the noise; observe the targets."""
    latents = {}
    for layer, (inputs, outputs) in enumerate(SHAPES):
        weights = dist.Normal(x.new_zeros(inputs, outputs), (2 / inputs) ** 0.5)
        latents[f"w{layer}"] = pyro.sample(f"w{layer}", weights.to_event(2))
        offsets = dist.Normal(x.new_zeros(outputs), 1.0)
        latents[f"b{layer}"] = pyro.sample(f"b{layer}", offsets.to_event(1))
    noise = pyro.sample("noise", dist.LogNormal(x.new_tensor(-0.5), 1.0))
    mean = network(x, latents)
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(mean, noise), obs=y)


def fresh() -> tuple[Model, AutoNormal]:
    """Return the model and an untrained guide."""
    return model, AutoNormal(model, init_loc_fn=init_to_sample, init_scale=0.05)


def true(x: Tensor) -> Tensor:
    """Return the expected target: a wave along one feature that the other one shifts."""
    return torch.sin(1.5 * x[..., 0] + x[..., 1]) + 0.5 * x[..., 1].square() - 0.5


def simulated(records: int, seed: int) -> Dataset:
    """Return two features within ± 2 and a target."""
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(records, 2, generator=generator) - 2
    return Dataset(x, true(x) + NOISE * torch.randn(records, generator=generator), name="wave")


def baseline(train: Dataset, test: Dataset) -> float:
    """Return the mean log density under one Gaussian for everybody."""
    return most_likely(lambda p, x, y: dist.Normal(p[0], p[1].exp()).log_prob(y), 2, train, test)


log_density = summed_out


def figure(draws: Draws, axes: Axes) -> None:
    """Draw the true curve and twenty draws, where the second feature is 0."""
    x = torch.stack([torch.linspace(-2, 2, 100), torch.zeros(100)], 1)
    for k in range(20):
        latents = {name: value[k].to(x) for name, value in draws.latents.items()}
        axes.plot(x[:, 0], network(x, latents), color="C0", alpha=0.3)
    axes.plot(x[:, 0], true(x), color="black", linestyle="--")
    axes.set(xlabel="first feature", ylabel="y", title="true curve (dashed) and draws of it")


if __name__ == "__main__":
    main(sys.modules[__name__])

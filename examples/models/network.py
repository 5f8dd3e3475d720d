"""A small Bayesian neural network: one layer of eight tanh units.

    python examples/models/network.py --out network.png

The guide starts at a draw from the prior, as at zero all units are the same, and releases samples
with a public noise scale: a network's fitted scales alone would give records away. The figure shows
the true curve and the released ones. ε is a Bayesian one: it is about records like these.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoNormal, init_to_sample
from torch import Tensor

import bdpvi
from bdpvi import guides

UNITS = 8


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw the weights of both layers, and observe the targets."""
    prior = dist.Normal(x.new_zeros(UNITS), 2.0)
    slopes = pyro.sample("slopes", prior.to_event(1))
    offsets = pyro.sample("offsets", prior.to_event(1))
    weights = pyro.sample("weights", dist.Normal(x.new_zeros(UNITS), UNITS**-0.5).to_event(1))
    mean = torch.tanh(x * slopes + offsets) @ weights
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(mean, 0.2), obs=y)


def simulate(records: int) -> bdpvi.Dataset:
    """Return records around sin(2x)/2."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(records, 1, generator=generator) * 4 - 2
    y = torch.sin(2 * x[:, 0]) / 2 + 0.2 * torch.randn(records, generator=generator)
    return bdpvi.Dataset(x, y, name="curve")


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, release, print what it promises, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="network.png", help="path of the figure")
    parser.add_argument("--steps", type=int, default=400, help="optimiser steps")
    parser.add_argument("--records", type=int, default=300, help="simulated records")
    given = parser.parse_args(arguments)

    data = simulate(given.records)
    auto = AutoNormal(model, init_loc_fn=init_to_sample)
    guide = guides.of(auto, model, data, noise_scale=0.2)
    fit = bdpvi.fit(model, guide, data, steps=given.steps, seed=0)
    release = bdpvi.release(fit, draws=3)
    print(release)
    print("for the owner only:", release.cost)  # few records: not reliable, as it says

    x = torch.linspace(-2, 2, 100)
    figure, axes = plt.subplots()
    for k in range(len(release.samples)):
        slopes, offsets, weights = (value[k].to(x) for value in release.latents.values())
        axes.plot(x, torch.tanh(x.unsqueeze(1) * slopes + offsets) @ weights, color="C0", alpha=0.5)
    axes.plot(x, torch.sin(2 * x) / 2, color="black", linestyle="--")
    axes.set(xlabel="x", ylabel="y", title="true curve (dashed) and released curves")
    figure.savefig(given.out)
    print("wrote", given.out)


if __name__ == "__main__":
    main()

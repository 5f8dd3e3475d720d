"""A small variational autoencoder: signals of ten sensors with a bump of any place and height.

    python examples/private/autoencoder.py --out autoencoder.png

The decoder's and encoder's weights are parameters, each record's code is a local latent. The
density of a new record is importance weighted with one code for each of 100 draws of the noise. The
figure shows decoded codes.
"""

from __future__ import annotations

import sys

import pyro
import pyro.distributions as dist
import torch
from _example import Draws, importance_weighted, main
from matplotlib.axes import Axes
from pyro import poutine
from pyro.infer import Trace_ELBO
from torch import Tensor, nn
from torch.distributions import constraints

from bdpvi import Dataset
from bdpvi.models.contract import Model

SENSORS, CODES, UNITS = 10, 2, 8
PLACES = torch.linspace(-2, 2, SENSORS)
NOISE = 0.2
LOSS = Trace_ELBO()


class Autoencoder(nn.Module):
    """One hidden layer each way."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.Sequential(nn.Linear(CODES, UNITS), nn.Tanh(), nn.Linear(UNITS, SENSORS))
        self.encoder = nn.Sequential(
            nn.Linear(SENSORS, UNITS), nn.Tanh(), nn.Linear(UNITS, 2 * CODES)
        )

    def model(self, x: Tensor, y: Tensor | None = None) -> None:
        """Draw the noise; of each record draw the code, and observe the signals."""
        pyro.module("decoder", self.decoder)
        noise = pyro.sample("noise", dist.LogNormal(x.new_tensor(-1.0), 1.0))
        with pyro.plate("records", len(x)):
            z = pyro.sample("z", dist.Normal(x.new_zeros(CODES), 1.0).to_event(1))
            pyro.sample("y", dist.Normal(self.decoder(z), noise).to_event(1), obs=y)

    def guide(self, x: Tensor, y: Tensor) -> None:
        """Draw the noise, and codes read off the signals."""
        pyro.module("encoder", self.encoder)
        loc = pyro.param("noise_loc", lambda: x.new_tensor(-1.0))
        scale = pyro.param("noise_scale", lambda: x.new_tensor(0.05), constraints.positive)
        pyro.sample("noise", dist.LogNormal(loc, scale))
        read, spread = self.encoder(y).chunk(2, -1)
        with pyro.plate("records", len(x)):
            pyro.sample("z", dist.Normal(read, (spread - 1).exp()).to_event(1))


def fresh() -> tuple[Model, Model]:
    """Return the model and an untrained guide, with random weights."""
    both = Autoencoder()
    return both.model, both.guide


def simulated(records: int, seed: int) -> Dataset:
    """Return the signals of ten sensors; x has no columns."""
    generator = torch.Generator().manual_seed(seed)
    place = 3 * torch.rand(records, 1, generator=generator) - 1.5
    height = 1.5 + 0.5 * torch.randn(records, 1, generator=generator)
    bump = height * (-((PLACES - place) / 0.8).square() / 2).exp() - 0.6
    y = bump + NOISE * torch.randn(records, SENSORS, generator=generator)
    return Dataset(torch.zeros(records, 0), y, name="signals")


def baseline(train: Dataset, test: Dataset) -> float:
    """Return the mean log density under independent normals."""
    one = dist.Normal(train.y.mean(0), train.y.std(0))
    return float(one.log_prob(test.y).sum(1).mean())


log_density = importance_weighted


def figure(draws: Draws, axes: Axes) -> None:
    """Draw what codes along each axis decode to."""
    latents = {name: value[0] for name, value in draws.latents.items()}
    for axis, colour in enumerate(("C0", "C1")):
        z = torch.linspace(-1.5, 1.5, 7)[:, None] * torch.eye(CODES)[axis]
        given = poutine.condition(draws.model, data={**latents, "z": z})
        decoded = poutine.trace(given).get_trace(z[:, :0]).nodes["y"]["fn"].mean.detach()
        axes.plot(PLACES, decoded.T, color=colour, alpha=0.6)
    axes.set(xlabel="place of the sensor", ylabel="signal", title="codes along both axes, decoded")


if __name__ == "__main__":
    main(sys.modules[__name__])

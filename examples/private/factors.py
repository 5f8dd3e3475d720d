"""Factor analysis: ten tests, two abilities of each person by an amortised guide.

    python examples/private/factors.py --out factors.png

The abilities are local latents: the guide computes them from a person's own ten results, and they
are never released. The figure compares the tests' true correlations with the learned ones.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from _example import Draws, main, over_draws
from matplotlib.axes import Axes
from pyro.infer import Trace_ELBO
from pyro.nn import PyroModule, PyroParam
from torch import Tensor, nn
from torch.distributions import constraints

from bdpvi import Dataset
from bdpvi.models.contract import Model

TESTS, FACTORS = 10, 2
AT = torch.linspace(0, 1, TESTS)
LOADINGS = torch.stack([0.9 - 0.3 * AT, 0.8 * torch.cos(3 * AT)], 1)
NOISE = 0.4 + 0.3 * AT
LOSS = Trace_ELBO()


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw loadings and noise; of each record draw its factors, and observe its results."""
    loadings = pyro.sample("loadings", dist.Normal(x.new_zeros(FACTORS, TESTS), 1.0).to_event(2))
    noise = pyro.sample("noise", dist.LogNormal(x.new_zeros(TESTS) - 0.5, 0.5).to_event(1))
    with pyro.plate("records", len(x)):
        z = pyro.sample("z", dist.Normal(x.new_zeros(FACTORS), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(z @ loadings, noise).to_event(1), obs=y)


class Guide(PyroModule):  # type: ignore[misc]
    """Independent normals of loadings and log noise; factors read off the results."""

    def __init__(self) -> None:
        super().__init__()
        start = torch.stack([torch.full((TESTS,), 0.5), torch.linspace(0.5, -0.5, TESTS)])
        self.loadings_loc = PyroParam(start)
        self.loadings_scale = PyroParam(torch.full_like(start, 0.05), constraints.positive)
        self.noise_loc = PyroParam(torch.full((TESTS,), -0.5))
        self.noise_scale = PyroParam(torch.full((TESTS,), 0.05), constraints.positive)
        self.encoder = PyroModule[nn.Linear](TESTS, FACTORS)
        self.encoder.weight = nn.Parameter(start / 5)
        self.z_scale = PyroParam(torch.full((FACTORS,), 0.5), constraints.positive)

    def forward(self, x: Tensor, y: Tensor) -> None:
        """Draw from it."""
        pyro.sample("loadings", dist.Normal(self.loadings_loc, self.loadings_scale).to_event(2))
        pyro.sample("noise", dist.LogNormal(self.noise_loc, self.noise_scale).to_event(1))
        read, scale = self.encoder(y), self.z_scale
        with pyro.plate("records", len(x)):
            pyro.sample("z", dist.Normal(read, scale).to_event(1))


def fresh() -> tuple[Model, Guide]:
    """Return the model and an untrained guide."""
    return model, Guide()


def simulated(records: int, seed: int) -> Dataset:
    """Return the standardised results of ten tests; x has no columns."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(records, FACTORS, generator=generator)
    y = z @ LOADINGS.T + NOISE * torch.randn(records, TESTS, generator=generator)
    return Dataset(torch.zeros(records, 0), y, name="tests")


def baseline(train: Dataset, test: Dataset) -> float:
    """Return the mean log density under independent normals."""
    one = dist.Normal(train.y.mean(0), train.y.std(0))
    return float(one.log_prob(test.y).sum(1).mean())


def log_density(
    model: Model, guide: Any, latents: Mapping[str, Tensor], x: Tensor, y: Tensor
) -> Tensor:
    """Return the density with the factors integrated out: a normal of low rank."""

    def one(values: dict[str, Tensor]) -> Tensor:
        normal = dist.LowRankMultivariateNormal(
            torch.zeros_like(y[0]), values["loadings"].T, values["noise"].square()
        )
        return normal.log_prob(y)  # type: ignore[no-any-return]

    return over_draws(one, latents)


def figure(draws: Draws, axes: Axes) -> None:
    """Draw each pair's learned covariance against the true one."""
    above = torch.triu_indices(TESTS, TESTS, 1)
    learned = (draws.latents["loadings"].mT @ draws.latents["loadings"]).mean(0)
    axes.plot((LOADINGS @ LOADINGS.T)[tuple(above)], learned[tuple(above)], "o")
    axes.axline((0, 0), slope=1, color="black", linestyle="--")
    axes.set(xlabel="true covariance", ylabel="learned covariance", title="all pairs of tests")


if __name__ == "__main__":
    main(sys.modules[__name__])

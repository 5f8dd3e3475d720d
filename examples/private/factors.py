"""Factor analysis: ten tests, and two abilities of each person, which are integrated out.

    python examples/private/factors.py --out factors.png

Given the loadings a person's ten results are normal with a covariance of low rank. So no guide has
to approximate the abilities, which would bias the loadings and make their intervals too narrow.
The figure compares the tests' true correlations with the learned ones.
"""

from __future__ import annotations

import sys

import pyro
import pyro.distributions as dist
import torch
from _example import Draws, main, summed_out
from matplotlib.axes import Axes
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.infer.autoguide.initialization import init_to_value
from torch import Tensor

from bdpvi import Dataset
from bdpvi.models.contract import Model

TESTS, FACTORS = 10, 2
AT = torch.linspace(0, 1, TESTS)
LOADINGS = torch.stack([0.9 - 0.3 * AT, 0.8 * torch.cos(3 * AT)], 1)
NOISE = 0.4 + 0.3 * AT
LOSS = Trace_ELBO()


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw loadings and noise; observe each person's results."""
    loadings = pyro.sample("loadings", dist.Normal(x.new_zeros(FACTORS, TESTS), 1.0).to_event(2))
    noise = pyro.sample("noise", dist.LogNormal(x.new_zeros(TESTS) - 0.5, 0.5).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", results(loadings, noise), obs=y)


def results(loadings: Tensor, noise: Tensor) -> dist.LowRankMultivariateNormal:
    """Return the law of a person's results."""
    return dist.LowRankMultivariateNormal(torch.zeros_like(noise), loadings.mT, noise.square())


def fresh() -> tuple[Model, AutoNormal]:
    """Return the model and an untrained guide, which starts where the two abilities differ."""
    start = torch.stack([torch.full((TESTS,), 0.5), torch.linspace(0.5, -0.5, TESTS)])
    return model, AutoNormal(model, init_loc_fn=init_to_value(values={"loadings": start}))


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


log_density = summed_out


def figure(draws: Draws, axes: Axes) -> None:
    """Draw each pair's learned covariance against the true one."""
    above = torch.triu_indices(TESTS, TESTS, 1)
    learned = (draws.latents["loadings"].mT @ draws.latents["loadings"]).mean(0)
    axes.plot((LOADINGS @ LOADINGS.T)[tuple(above)], learned[tuple(above)], "o")
    axes.axline((0, 0), slope=1, color="black", linestyle="--")
    axes.set(xlabel="true covariance", ylabel="learned covariance", title="all pairs of tests")


if __name__ == "__main__":
    main(sys.modules[__name__])

"""A mixture of three Gaussians in the plane; each record's component is summed out.

    python examples/private/mixture.py --out mixture.png

There are no covariates: x has no columns. The guide's locations start at three public points,
because components with equal starts would stay equal. The figure shows the learned density.
"""

from __future__ import annotations

import sys

import pyro
import pyro.distributions as dist
import torch
from _example import Draws, main, summed_out
from matplotlib.axes import Axes
from pyro import poutine
from pyro.infer import TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoNormal, init_to_value
from torch import Tensor

from bdpvi import Dataset
from bdpvi.models.contract import Model

COMPONENTS = 3
SHARES = torch.tensor([0.5, 0.3, 0.2])
LOCS = torch.tensor([[-1.2, -0.6], [1.0, -0.8], [0.5, 1.4]])
SCALES = torch.tensor([[0.4, 0.6], [0.5, 0.3], [0.6, 0.4]])
START = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
LOSS = TraceEnum_ELBO(max_plate_nesting=1)


@config_enumerate  # type: ignore[untyped-decorator]
def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw shares, locations and scales; observe points whose component is not known."""
    shares = pyro.sample("shares", dist.Dirichlet(x.new_full((COMPONENTS,), 2.0)))
    with pyro.plate("components", COMPONENTS):
        locs = pyro.sample("locs", dist.Normal(x.new_zeros(2), 2.0).to_event(1))
        scales = pyro.sample("scales", dist.LogNormal(x.new_zeros(2) - 0.5, 0.5).to_event(1))
    with pyro.plate("records", len(x)):
        component = pyro.sample("component", dist.Categorical(shares))
        pyro.sample("y", dist.Normal(locs[component], scales[component]).to_event(1), obs=y)


def fresh() -> tuple[Model, AutoNormal]:
    """Return the model and an untrained guide of all but the records' components."""
    first = {"locs": START, "scales": torch.ones(COMPONENTS, 2), "shares": torch.ones(3) / 3}
    kind = torch.get_default_dtype()
    start = init_to_value(values={name: value.to(kind) for name, value in first.items()})
    hidden = poutine.block(model, hide=["component"])
    return model, AutoNormal(hidden, init_loc_fn=start)


def simulated(records: int, seed: int) -> Dataset:
    """Return points in the plane."""
    generator = torch.Generator().manual_seed(seed)
    component = torch.multinomial(SHARES, records, replacement=True, generator=generator)
    y = LOCS[component] + SCALES[component] * torch.randn(records, 2, generator=generator)
    return Dataset(torch.zeros(records, 0), y, name="mixture")


def baseline(train: Dataset, test: Dataset) -> float:
    """Return the mean log density under one Gaussian of any covariance."""
    one = dist.MultivariateNormal(train.y.mean(0), train.y.T.cov())
    return float(one.log_prob(test.y).mean())


log_density = summed_out


def figure(draws: Draws, axes: Axes) -> None:
    """Draw levels of the learned density, and the true locations."""
    along = torch.linspace(-3, 3, 80)
    grid = torch.cartesian_prod(along, along)
    found = log_density(draws.model, draws.guide, draws.latents, grid[:, :0], grid)
    axes.contour(along, along, found.exp().reshape(80, 80).T)
    axes.plot(*LOCS.T, "k+", markersize=12)
    axes.set(xlabel="y₀", ylabel="y₁", title="learned density, true locations (+)")


if __name__ == "__main__":
    main(sys.modules[__name__])

"""A sparse Gaussian process in the plane: sixteen public inducing points, whitened.

    python examples/private/gaussian_process.py --out gaussian_process.png

Given the process at the inducing points records are independent (FITC: Snelson and Ghahramani
2006); u ~ N(0, 1) are its whitened values there. The figure shows the learned surface.
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

POINTS = torch.cartesian_prod(torch.linspace(-1.8, 1.8, 4), torch.linspace(-1.8, 1.8, 4))
LENGTH, JITTER = 1.2, 1e-4
NOISE = 0.5
LOSS = Trace_ELBO()


def kernel(a: Tensor, b: Tensor) -> Tensor:
    """Return exp(−‖a − b‖²/2·LENGTH²) of all pairs, (N, M)."""
    return (-(a.unsqueeze(1) - b).square().sum(-1) / (2 * LENGTH**2)).exp()


def features(x: Tensor) -> Tensor:
    """Return what u is multiplied with, (N, 16): L⁻¹k(points, x), where K = LLᵀ."""
    points = POINTS.to(x)
    factor = torch.linalg.cholesky(kernel(points, points) + JITTER * torch.eye(len(points)).to(x))
    result: Tensor = torch.linalg.solve_triangular(factor, kernel(points, x), upper=False).T
    return result


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw u, the process's height and the noise; observe the targets."""
    u = pyro.sample("u", dist.Normal(x.new_zeros(len(POINTS)), 1.0).to_event(1))
    height = pyro.sample("height", dist.LogNormal(x.new_zeros(()), 0.5))
    noise = pyro.sample("noise", dist.LogNormal(x.new_tensor(-0.5), 0.5))
    at = features(x)
    left = (1 - at.square().sum(1)).clamp(min=0)  # of the process's variance, given u
    with pyro.plate("records", len(x)):
        spread = (noise.square() + height.square() * left).sqrt()
        pyro.sample("y", dist.Normal(height * (at @ u), spread), obs=y)


def fresh() -> tuple[Model, AutoNormal]:
    """Return the model and an untrained guide."""
    return model, AutoNormal(model)


def true(x: Tensor) -> Tensor:
    """Return the surface."""
    return 1.5 * torch.sin(1.2 * x[..., 0]) * torch.cos(x[..., 1]) + 0.4 * x[..., 1]


def simulated(records: int, seed: int) -> Dataset:
    """Return places on a map, within ± 2, and what was measured there."""
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(records, 2, generator=generator) - 2
    return Dataset(x, true(x) + NOISE * torch.randn(records, generator=generator), name="map")


def baseline(train: Dataset, test: Dataset) -> float:
    """Return the mean log density under one Gaussian for all places."""
    return most_likely(lambda p, x, y: dist.Normal(p[0], p[1].exp()).log_prob(y), 2, train, test)


log_density = summed_out


def figure(draws: Draws, axes: Axes) -> None:
    """Draw levels of the true and the learned surface."""
    along = torch.linspace(-2, 2, 40)
    grid = torch.cartesian_prod(along, along)
    heights = draws.latents["height"].to(grid)[:, None] * draws.latents["u"].to(grid)
    learned = features(grid) @ heights.mean(0)
    axes.contourf(along, along, learned.reshape(40, 40).T, levels=12)
    axes.contour(along, along, true(grid).reshape(40, 40).T, levels=12, colors="black")
    axes.plot(*POINTS.T, "r.")
    axes.set(xlabel="x₀", ylabel="x₁", title="learned surface, true levels, inducing points")


if __name__ == "__main__":
    main(sys.modules[__name__])

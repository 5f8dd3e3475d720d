"""Gaussian process with inducing points: a curve by its values at public places.

    python examples/tutorials/inducing_points.py

Changed: ``bdpvi.PrivateSVI`` instead of ``SVI``, and the model of ``contrib.gp`` is written out:
given the values at the inducing points, the loss is a sum over the records of a plate.
"""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal
from pyro.optim import Adam
from torch import Tensor

import bdpvi

POINTS = torch.linspace(-3, 3, 9)


def at(x: Tensor) -> Tensor:
    """Return what whitened values at the points are multiplied with at x, (N, M)."""
    inside, there = ((-(POINTS[:, None] - b).square() / 2).exp() for b in (POINTS, x))
    root = torch.linalg.cholesky(inside + 1e-4 * torch.eye(len(POINTS)))
    result: Tensor = torch.linalg.solve_triangular(root, there, upper=False).T
    return result


def model(x: Tensor, y: Tensor) -> None:
    """Whitened values u at the points, and noise."""
    u = pyro.sample("u", dist.Normal(torch.zeros(len(POINTS)), 1.0).to_event(1))
    noise = pyro.sample("noise", dist.LogNormal(-1.0, 1.0))
    features = at(x)
    left = (1 - features.square().sum(-1)).clamp(min=0)
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(features @ u, (noise**2 + left).sqrt()), obs=y)


def main() -> None:
    """Train, and print the guarantee and what was learned."""
    pyro.clear_param_store()
    torch.manual_seed(0)
    x = 6 * torch.rand(3000) - 3
    y = torch.sin(2 * x) + 0.3 * torch.randn(3000)
    guide, settings = AutoMultivariateNormal(model, init_scale=0.05), {"clip": 3.0, "rate": 0.05}
    optim = Adam({"lr": 0.03})
    svi = bdpvi.PrivateSVI(model, guide, optim, Trace_ELBO(), noise_multiplier=3.0, **settings)  # type: ignore[arg-type]
    for _ in range(300):
        svi.step(x, y)
    places = torch.linspace(-2.5, 2.5, 50)
    off = (at(places) @ guide.median()["u"] - torch.sin(2 * places)).abs().mean()
    print(svi.worst_case(delta=1e-5))
    print(f"mean distance of the curve from the true one: {off:.2f}, of 0.64 without data")


if __name__ == "__main__":
    main()

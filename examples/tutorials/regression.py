"""Bayesian regression: a ``PyroModule`` whose weights are sampled, with an interaction.

    python examples/tutorials/regression.py

Changed: ``bdpvi.PrivateSVI`` instead of ``SVI``. ``Predictive`` needs no privacy of its own.
"""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.nn import PyroModule, PyroSample
from pyro.optim import Adam
from torch import Tensor, nn

import bdpvi


class Regression(PyroModule):  # type: ignore[misc]
    """Income by ruggedness."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = PyroModule[nn.Linear](3, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))
        self.linear.bias = PyroSample(dist.Normal(0.0, 2.0).expand([1]).to_event(1))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Observe log income, standardised by public numbers."""
        sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 0.5))
        mean: Tensor = self.linear(x).squeeze(-1)
        with pyro.plate("countries", len(x)):
            pyro.sample("obs", dist.Normal(mean, sigma), obs=y)
        return mean


def main() -> None:
    """Train, and print the guarantee and what was learned."""
    pyro.clear_param_store()
    torch.manual_seed(0)
    there, rugged = torch.bernoulli(torch.full((3000,), 0.5)), torch.rand(3000) * 2 - 1
    x = torch.stack([there, rugged, there * rugged], 1)
    y = 0.3 - 0.8 * there - 0.4 * rugged + 0.6 * there * rugged + 0.3 * torch.randn(3000)
    model = Regression()
    guide = AutoDiagonalNormal(model, init_scale=0.05)
    svi = bdpvi.PrivateSVI(
        model, guide, Adam({"lr": 0.04}), Trace_ELBO(), clip=2.0, noise_multiplier=3.0, rate=0.05
    )
    for _ in range(300):
        svi.step(x, y)
    print(svi.worst_case(delta=1e-5))
    new = torch.tensor([[0.0, 0.5, 0.0], [1.0, 0.5, 0.5]])
    found = Predictive(model, guide=guide, num_samples=300, return_sites=("_RETURN",))(new)
    means = [round(v, 2) for v in found["_RETURN"].mean(0).tolist()]
    print("log income of both:", means, "of [0.1, -0.4]")


if __name__ == "__main__":
    main()

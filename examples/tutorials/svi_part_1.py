"""SVI part I: is a coin fair? A Beta prior and a guide that is Beta too, written by hand.

    python examples/tutorials/svi_part_1.py

Changed: ``bdpvi.PrivateSVI`` instead of ``SVI``, and ``step`` takes all tosses. The plate that the
tutorial writes as a loop is a vectorised one.
"""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO
from pyro.optim import Adam
from torch import Tensor
from torch.distributions import constraints

import bdpvi

FAIRNESS = 0.6


def model(tosses: Tensor) -> None:
    """A coin near a fair one, and its tosses."""
    fairness = pyro.sample("fairness", dist.Beta(10.0, 10.0))
    with pyro.plate("tosses", len(tosses)):
        pyro.sample("toss", dist.Bernoulli(fairness), obs=tosses)


def guide(tosses: Tensor) -> None:
    """A Beta distribution."""
    a = pyro.param("a", torch.tensor(15.0), constraint=constraints.positive)
    b = pyro.param("b", torch.tensor(15.0), constraint=constraints.positive)
    pyro.sample("fairness", dist.Beta(a, b))


def main() -> None:
    """Train, and print the guarantee and what was learned."""
    pyro.clear_param_store()
    torch.manual_seed(0)
    tosses = torch.bernoulli(torch.full((2000,), FAIRNESS))
    svi = bdpvi.PrivateSVI(
        model, guide, Adam({"lr": 0.02}), Trace_ELBO(), clip=1.0, noise_multiplier=4.0, rate=0.1
    )
    for _ in range(400):
        svi.step(tosses)
    a, b = pyro.param("a").item(), pyro.param("b").item()
    print(svi.worst_case(delta=1e-5))
    print(f"P(heads): {a / (a + b):.3f}, of a coin with {FAIRNESS}")


if __name__ == "__main__":
    main()

"""SVI part III: estimators of the gradient, for guides that cannot be reparameterised.

    python examples/tutorials/svi_part_3.py

The tutorial lowers the variance of score-function gradients by baselines and ``TraceGraph_ELBO``.
That loss is refused by name: its baselines are averages over records that are not private. A Beta
guide is reparameterised in torch, so ``Trace_ELBO`` trains it.
"""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO, TraceGraph_ELBO
from pyro.optim import Adam
from torch import Tensor
from torch.distributions import constraints

import bdpvi


def model(tosses: Tensor) -> None:
    """Two coins with one prior, each tossed once for a record."""
    with pyro.plate("coins", 2):
        fairness = pyro.sample("fairness", dist.Beta(10.0, 10.0))
    with pyro.plate("records", len(tosses)):
        pyro.sample("toss", dist.Bernoulli(fairness).to_event(1), obs=tosses)


def guide(tosses: Tensor) -> None:
    """Independent Beta distributions."""
    a, b = (
        pyro.param(name, torch.full((2,), 15.0), constraint=constraints.positive) for name in "ab"
    )
    with pyro.plate("coins", 2):
        pyro.sample("fairness", dist.Beta(a, b))


def main() -> None:
    """Train, and print the guarantee and what was learned."""
    pyro.clear_param_store()
    torch.manual_seed(0)
    tosses = torch.bernoulli(torch.tensor([0.3, 0.6]).expand(2000, 2))
    settings = {"clip": 1.5, "noise_multiplier": 4.0, "rate": 0.1}
    try:
        svi = bdpvi.PrivateSVI(model, guide, Adam({"lr": 0.02}), TraceGraph_ELBO(), **settings)  # type: ignore[arg-type]
        svi.step(tosses)
    except ValueError as error:
        print("refused:", error)
    svi = bdpvi.PrivateSVI(model, guide, Adam({"lr": 0.02}), Trace_ELBO(), **settings)  # type: ignore[arg-type]
    for _ in range(400):
        svi.step(tosses)
    a, b = pyro.param("a").detach(), pyro.param("b").detach()
    print(svi.worst_case(delta=1e-5))
    print("P(heads):", [round(value, 2) for value in (a / (a + b)).tolist()], "of [0.3, 0.6]")


if __name__ == "__main__":
    main()

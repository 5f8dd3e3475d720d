"""SVI part II: plates that subsample, and a table larger than a batch.

    python examples/tutorials/svi_part_2.py

Changed: ``bdpvi.PrivateSVI`` instead of ``SVI``, with a rate. The model stays as it is:
``subsample_size`` is ignored, as the private batch is drawn by secret coins.
"""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal
from pyro.optim import Adam
from torch import Tensor

import bdpvi

WEIGHTS = torch.tensor([1.0, -0.5, 0.0])


def model(x: Tensor, y: Tensor) -> None:
    """Logistic regression on 100 records of the table at a time."""
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    with pyro.plate("records", len(x), subsample_size=100) as at:
        pyro.sample("y", dist.Bernoulli(logits=x[at] @ w), obs=y[at])


def main() -> None:
    """Train, and print the guarantee and what was learned."""
    pyro.clear_param_store()
    torch.manual_seed(0)
    x = torch.randn(5000, 3)
    y = torch.bernoulli(torch.sigmoid(x @ WEIGHTS))
    guide = AutoMultivariateNormal(model, init_scale=0.05)
    svi = bdpvi.PrivateSVI(
        model, guide, Adam({"lr": 0.03}), Trace_ELBO(), clip=1.5, noise_multiplier=3.0, rate=0.04
    )
    for _ in range(300):
        svi.step(x, y)
    print(svi.worst_case(delta=1e-5))
    learned = [round(value, 2) for value in guide.median()["w"].tolist()]
    print("weights:", learned, "of", WEIGHTS.tolist())


if __name__ == "__main__":
    main()

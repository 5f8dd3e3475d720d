"""Gaussian mixture: the component of each record is enumerated, and never released.

    python examples/tutorials/gmm.py

Changed: ``bdpvi.PrivateSVI`` instead of ``SVI``; the public starting values are spread out.
"""

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDelta, init_to_value
from pyro.optim import Adam
from torch import Tensor

import bdpvi

LOCS = torch.tensor([-1.0, 1.5])


@config_enumerate  # type: ignore[untyped-decorator]
def model(data: Tensor) -> None:
    """Two components of one scale."""
    weights = pyro.sample("weights", dist.Dirichlet(2.0 * torch.ones(2)))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with pyro.plate("components", 2):
        locs = pyro.sample("locs", dist.Normal(0.0, 2.0))
    with pyro.plate("data", len(data)):
        assignment = pyro.sample("assignment", dist.Categorical(weights))
        pyro.sample("obs", dist.Normal(locs[assignment], scale), obs=data)


def main() -> None:
    """Train, and print the guarantee and what was learned."""
    pyro.clear_param_store()
    torch.manual_seed(0)
    data = LOCS[torch.bernoulli(torch.full((3000,), 0.3)).long()] + 0.5 * torch.randn(3000)
    start = {"locs": torch.tensor([-0.5, 0.5]), "weights": torch.ones(2) / 2}
    start["scale"] = torch.ones(())
    hidden = poutine.block(model, hide=["assignment"])
    guide = AutoDelta(hidden, init_loc_fn=init_to_value(values=start))
    settings = {"clip": 4.0, "noise_multiplier": 3.0, "rate": 0.05}
    loss = TraceEnum_ELBO(max_plate_nesting=1)
    svi = bdpvi.PrivateSVI(model, guide, Adam({"lr": 0.03}), loss, **settings)  # type: ignore[arg-type]
    for _ in range(300):
        svi.step(data)
    median = guide.median().items()
    found = {name: [round(v, 2) for v in value.flatten().tolist()] for name, value in median}
    print(svi.worst_case(delta=1e-5))
    print(found, "of [0.7, 0.3], 0.5 and", LOCS.tolist())


if __name__ == "__main__":
    main()

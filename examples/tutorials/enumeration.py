"""Enumeration: hidden Markov chains, summed out by ``pyro.markov`` in parallel.

    python examples/tutorials/enumeration.py

Changed: ``PrivateSVI`` instead of ``SVI``. A record is a whole sequence, all of which ε protects.
"""

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.optim import Adam
from torch import Tensor

import bdpvi

LENGTH, STAY, LEVELS = 5, 0.85, torch.tensor([-1.0, 1.0])


@config_enumerate  # type: ignore[untyped-decorator]
def model(data: Tensor) -> None:
    """Two states, each of which stays with a chance of its own."""
    with pyro.plate("states", 2):
        stay = pyro.sample("stay", dist.Beta(5.0, 2.0))
        level = pyro.sample("level", dist.Normal(0.0, 2.0))
    move = torch.stack([torch.stack([stay[0], 1 - stay[0]]), torch.stack([1 - stay[1], stay[1]])])
    with pyro.plate("sequences", len(data), dim=-1):
        chances = torch.ones(2) / 2
        for t in pyro.markov(range(LENGTH)):
            state = pyro.sample(f"state {t}", dist.Categorical(chances))
            chances = move[state]
            pyro.sample(f"y {t}", dist.Normal(level[state], 0.5), obs=data[:, t])


def main() -> None:
    """Train, and print the guarantee and what was learned."""
    pyro.clear_param_store()
    torch.manual_seed(0)
    states = [torch.randint(2, (2000,))]
    for _ in range(LENGTH - 1):
        states.append(torch.where(torch.rand(2000) < STAY, states[-1], 1 - states[-1]))
    data = LEVELS[torch.stack(states, 1)] + 0.5 * torch.randn(2000, LENGTH)
    first = init_to_value(values={"level": torch.tensor([-0.3, 0.3]), "stay": torch.ones(2) * 0.7})
    hidden = poutine.block(model, expose=["stay", "level"])
    guide = AutoNormal(hidden, init_loc_fn=first, init_scale=0.05)
    loss, settings = TraceEnum_ELBO(max_plate_nesting=1), {"clip": 4.0, "rate": 0.05}
    optim = Adam({"lr": 0.05})
    svi = bdpvi.PrivateSVI(model, guide, optim, loss, noise_multiplier=3.0, **settings)  # type: ignore[arg-type]
    for _ in range(120):
        svi.step(data)
    found = {n: [round(v, 2) for v in value.tolist()] for n, value in guide.median().items()}
    print(svi.worst_case(delta=1e-5))
    print(found, "of", STAY, "and", LEVELS.tolist())


if __name__ == "__main__":
    main()

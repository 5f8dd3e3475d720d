"""SVI part IV: tips. Start small, let the learning rate fall, fix what is known, watch the loss.

    python examples/tutorials/svi_part_4.py

Changed: ``bdpvi.PrivateSVI`` instead of ``SVI``; and ``evaluate_loss`` shows the loss, to the owner
alone, as ``step`` returns nothing. Several particles are refused: more steps do as well.
"""

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_median
from pyro.optim import ClippedAdam
from torch import Tensor

import bdpvi

STEPS = 300


def whole(x: Tensor, y: Tensor) -> None:
    """A robust regression whose noise is Student's."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    freedom = pyro.sample("freedom", dist.Gamma(2.0, 0.1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.StudentT(freedom, x @ w, scale), obs=y)


def main() -> None:
    """Train, and print the guarantee and what was learned."""
    pyro.clear_param_store()
    torch.manual_seed(0)
    x = torch.randn(3000, 2)
    y = x @ torch.tensor([0.7, -0.4]) + 0.5 * torch.randn(3000)
    model = poutine.condition(whole, data={"freedom": torch.tensor(4.0)})
    guide = AutoNormal(model, init_loc_fn=init_to_median, init_scale=0.02)
    optim = ClippedAdam({"lr": 0.03, "lrd": 0.1 ** (1 / STEPS), "betas": (0.95, 0.999)})
    svi = bdpvi.PrivateSVI(
        model, guide, optim, TraceMeanField_ELBO(), clip=2.0, noise_multiplier=3.0, rate=0.05
    )
    before = svi.evaluate_loss(x, y)
    for _ in range(STEPS):
        svi.step(x, y)
    print(svi.worst_case(delta=1e-5))
    print("weights:", [round(value, 2) for value in guide.median()["w"].tolist()], "of [0.7, -0.4]")
    after = svi.evaluate_loss(x, y)
    print(f"loss of a record, for the owner alone: {before / 3000:.2f}, then {after / 3000:.2f}")


if __name__ == "__main__":
    main()

"""A small regression for steps of :class:`bdpvi.PrivateSVI`."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.optim import Adam
from torch import Tensor

from bdpvi import PrivateSVI


def table(records: int = 500) -> tuple[Tensor, Tensor]:
    """Return x of two columns, and a target of which one says much."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3000, 3, generator=generator)[:records]
    return x[:, :2], x[:, 0] + x[:, 2]


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Have a normal target."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(2), x.new_tensor(1.0)).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def made(program: Any = model, optim: Any = None, **settings: Any) -> PrivateSVI:
    """Return what trains a program."""
    given: dict[str, Any] = {"clip": 1.0, "noise_multiplier": 2.0, "rate": 0.1, **settings}
    guide = given.pop("guide", None) or AutoNormal(program)
    optim = optim or Adam({"lr": 0.05})
    return PrivateSVI(program, guide, optim, given.pop("loss", Trace_ELBO()), **given)

"""Counts with many zeros: a hurdle model and a zero-inflated one, for ``guide_coverage.py``.

Five coefficients say how often a count is positive (a count of zero by structure), and five how
large it is. Features are standard normal; the truth is the same for every seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from bdpvi import Dataset
from bdpvi.models.contract import Model

CHANCE = torch.tensor([0.8, -0.5, 0.0, 0.3, 0.2])
"""Logits of a positive count, or of a structural zero: of four features, and of nobody's."""
RATE = torch.tensor([0.4, 0.0, -0.3, 0.2, 0.7])
"""Log rates."""


def _hurdle(logits: Tensor, rate: Tensor, y: Tensor | None) -> None:
    """Observe whether a count is positive, and of a positive one its size."""
    pyro.sample("positive", dist.Bernoulli(logits=logits), obs=None if y is None else (y > 0).to(y))
    if y is not None:
        size = dist.Poisson(rate).log_prob(y) - torch.log(-torch.expm1(-rate))
        pyro.factor("size", torch.where(y > 0, size, torch.zeros_like(size)))


def _inflated(logits: Tensor, rate: Tensor, y: Tensor | None) -> None:
    """Observe a structural zero, or a Poisson count."""
    pyro.sample("y", dist.ZeroInflatedPoisson(rate, gate_logits=logits), obs=y)


@dataclass(frozen=True)
class Zeros:
    """A model of counts as an example of ``examples/private``."""

    observe: Callable[[Tensor, Tensor, Tensor | None], None]
    LOSS = Trace_ELBO()

    def model(self, x: Tensor, y: Tensor | None = None) -> None:
        """Draw coefficients of chances and of rates; observe counts."""
        chance = pyro.sample("chance", dist.Normal(x.new_zeros(5), 2.0).to_event(1))
        rate = pyro.sample("rate", dist.Normal(x.new_zeros(5), 1.0).to_event(1))
        logits, log_rate = (x @ one[:4] + one[4] for one in (chance, rate))
        with pyro.plate("records", len(x)):
            self.observe(logits, log_rate.clamp(max=5).exp(), y)

    def fresh(self) -> tuple[Model, AutoNormal]:
        """Return the model and an untrained guide."""
        return self.model, AutoNormal(self.model)

    def simulated(self, records: int, seed: int) -> Dataset:
        """Return features and counts."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(records, 4, generator=generator)
        chance = torch.sigmoid(x @ CHANCE[:4] + CHANCE[4])
        rate = (x @ RATE[:4] + RATE[4]).exp()
        event = torch.rand(records, generator=generator) < chance
        count = torch.poisson(rate, generator=generator)
        if self.observe is _inflated:
            return Dataset(x, count * ~event, name="counts")
        at = torch.rand(records, generator=generator)  # positive counts by inversion
        below = torch.exp(-rate)
        at, size = below + at * (1 - below), torch.zeros(records)
        for k in range(200):
            size += (at > torch.special.gammaincc(torch.tensor(k + 1.0), rate)).float()
        return Dataset(x, size * event, name="counts")


COUNTS = {"hurdle": Zeros(_hurdle), "zero_inflated": Zeros(_inflated)}

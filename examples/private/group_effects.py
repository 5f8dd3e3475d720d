"""Logistic regression with effects of twelve clinics, whose numbers are public.

    python examples/private/group_effects.py --out group_effects.png

Like the whole model, a clinic's effect is protected record by record; clinics with few records are
shrunk towards the overall mean. The figure shows true and learned effects.
"""

from __future__ import annotations

import sys

import pyro
import pyro.distributions as dist
import torch
from _example import Draws, main, most_likely, summed_out
from matplotlib.axes import Axes
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from bdpvi import Dataset
from bdpvi.models.contract import Model

CLINICS = 12
WEIGHTS = torch.tensor([0.9, -0.6, 0.4, 0.0])
EFFECTS = torch.linspace(-1.6, 1.2, CLINICS)
LOSS = Trace_ELBO()


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw weights, the clinics' mean, spread and places in it; observe who comes back."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(4), 1.0).to_event(1))
    centre = pyro.sample("centre", dist.Normal(x.new_zeros(()), 1.0))
    spread = pyro.sample("spread", dist.HalfNormal(x.new_ones(())))
    with pyro.plate("clinics", CLINICS):
        place = pyro.sample("place", dist.Normal(x.new_zeros(()), 1.0))
    logits = x[:, :4] @ w + (centre + spread * place)[x[:, 4].long()]
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def fresh() -> tuple[Model, AutoNormal]:
    """Return the model and an untrained guide."""
    return model, AutoNormal(model)


def simulated(records: int, seed: int) -> Dataset:
    """Return patients: four standardised features, the clinic, and whether they come back."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(records, 4, generator=generator)
    size = torch.arange(1.0, CLINICS + 1)  # the last clinic has twelve times the first's patients
    clinic = torch.multinomial(size, records, replacement=True, generator=generator)
    chance = torch.sigmoid(features @ WEIGHTS + EFFECTS[clinic])
    y = (torch.rand(records, generator=generator) < chance).float()
    return Dataset(torch.cat([features, clinic[:, None].float()], 1), y, name="clinics")


def baseline(train: Dataset, test: Dataset) -> float:
    """Return the mean log density under one chance for everybody."""
    return most_likely(lambda p, x, y: dist.Bernoulli(logits=p[0]).log_prob(y), 1, train, test)


log_density = summed_out


def figure(draws: Draws, axes: Axes) -> None:
    """Draw true effects, and those learned with two standard deviations."""
    latents = draws.latents
    effects = latents["centre"][:, None] + latents["spread"][:, None] * latents["place"]
    axes.errorbar(range(CLINICS), effects.mean(0), 2 * effects.std(0), fmt="o", capsize=3)
    axes.plot(range(CLINICS), EFFECTS, color="black", linestyle="--")
    axes.set(xlabel="clinic", ylabel="effect (log odds)", title="true effects (dashed) and learned")


if __name__ == "__main__":
    main(sys.modules[__name__])

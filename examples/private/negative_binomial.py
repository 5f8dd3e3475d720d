"""Negative binomial regression with exposure: claims of drivers insured for parts of a year.

    python examples/private/negative_binomial.py --out negative_binomial.png

Counts are overdispersed: with mean μ the variance is μ + μ²/size. The figure shows claims per year
along the first feature.
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

WEIGHTS = torch.tensor([0.7, -0.5, 0.3, 0.0])
INTERCEPT, SIZE = 0.2, 1.5
LOSS = Trace_ELBO()


def counts(log_mean: Tensor, size: Tensor) -> dist.NegativeBinomial:
    """Return the negative binomial of this mean and size."""
    return dist.NegativeBinomial(size, logits=log_mean - size.log())


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw weights, intercept and size; observe counts. The last column is years insured."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(4), 1.0).to_event(1))
    intercept = pyro.sample("intercept", dist.Normal(x.new_zeros(()), 2.0))
    size = pyro.sample("size", dist.LogNormal(x.new_zeros(()), 1.0))
    log_mean = intercept + x[:, :4] @ w + x[:, 4].log()
    with pyro.plate("records", len(x)):
        pyro.sample("y", counts(log_mean, size), obs=y)


def fresh() -> tuple[Model, AutoNormal]:
    """Return the model and an untrained guide."""
    return model, AutoNormal(model)


def simulated(records: int, seed: int) -> Dataset:
    """Return drivers: four standardised features, years insured, and claims."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(records, 4, generator=generator)
    years = 0.1 + 0.9 * torch.rand(records, generator=generator)
    mean = years * (INTERCEPT + features @ WEIGHTS).exp()
    gamma = torch._standard_gamma(torch.full((records,), SIZE), generator=generator) / SIZE
    y = torch.poisson(mean * gamma, generator=generator)
    return Dataset(torch.cat([features, years[:, None]], 1), y, name="claims")


def baseline(train: Dataset, test: Dataset) -> float:
    """Return the mean log density under one rate and size for everybody; exposure is used."""
    return most_likely(
        lambda p, x, y: counts(p[0] + x[:, 4].log(), p[1].exp()).log_prob(y), 2, train, test
    )


log_density = summed_out


def figure(draws: Draws, axes: Axes) -> None:
    """Draw claims a year along the first feature: the truth, and draws."""
    along = torch.linspace(-2, 2, 50)
    w, intercept = draws.latents["w"][:20, :1], draws.latents["intercept"][:20, None]
    axes.plot(along, (intercept + w * along).exp().T, color="C0", alpha=0.3)
    axes.plot(along, (INTERCEPT + WEIGHTS[0] * along).exp(), color="black", linestyle="--")
    axes.set(
        xlabel="first feature", ylabel="claims a year", title="true rate (dashed) and draws of it"
    )


if __name__ == "__main__":
    main(sys.modules[__name__])

"""Ordinal regression: satisfaction on five levels.

    python examples/private/ordinal.py --out ordinal.png

The figure shows how likely each level is along the first feature.
"""

from __future__ import annotations

import sys

import pyro
import pyro.distributions as dist
import torch
from _example import Draws, main, most_likely, summed_out
from matplotlib.axes import Axes
from pyro.distributions.transforms import OrderedTransform
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor
from torch.nn.functional import pad

from bdpvi import Dataset
from bdpvi.models.contract import Model

LEVELS = 5
WEIGHTS = torch.tensor([1.4, -0.9, 0.5, 0.0])
CUTS = torch.tensor([-2.0, -0.8, 0.4, 2.2])
LOSS = Trace_ELBO()


def chances(predictor: Tensor, cuts: Tensor) -> Tensor:
    """Return the chance of each level, (..., LEVELS): of a logistic variable between two cuts."""
    below = torch.sigmoid(cuts - predictor.unsqueeze(-1))
    return pad(below, (0, 1), value=1.0) - pad(below, (1, 0))


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw weights and ordered cuts; observe the levels 0 to 4."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(4), 1.0).to_event(1))
    free = dist.Normal(x.new_zeros(LEVELS - 1), 2.0).to_event(1)
    cuts = pyro.sample("cuts", dist.TransformedDistribution(free, [OrderedTransform()]))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Categorical(chances(x @ w, cuts)), obs=y)


def fresh() -> tuple[Model, AutoNormal]:
    """Return the model and an untrained guide."""
    return model, AutoNormal(model)


def simulated(records: int, seed: int) -> Dataset:
    """Return four standardised features and the level of a customer."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, 4, generator=generator)
    logistic = torch.logit(torch.rand(records, generator=generator), eps=1e-6)
    y = torch.bucketize(x @ WEIGHTS + logistic, CUTS)
    return Dataset(x, y, name="satisfaction")


def baseline(train: Dataset, test: Dataset) -> float:
    """Return the mean log density under the same shares of the levels for everybody."""
    return most_likely(
        lambda p, x, y: dist.Categorical(logits=p.expand(len(y), LEVELS)).log_prob(y),
        LEVELS, train, test,
    )  # fmt: skip


log_density = summed_out


def figure(draws: Draws, axes: Axes) -> None:
    """Draw the levels' shares along the first feature, the others at their means."""
    along = torch.linspace(-3, 3, 100)
    w, cuts = draws.latents["w"][:, :1].to(along), draws.latents["cuts"].to(along)
    p = chances(along * w, cuts.unsqueeze(1)).mean(0)
    axes.stackplot(along, p.T, labels=[f"level {level}" for level in range(LEVELS)])
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axes.set(xlabel="first feature", ylabel="share", title="learned shares of the levels")


if __name__ == "__main__":
    main(sys.modules[__name__])

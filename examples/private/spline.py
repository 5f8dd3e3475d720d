"""Spline regression: a curve over the day from twelve cubic B-splines at public knots.

    python examples/private/spline.py --out spline.png

The figure shows the true curve and draws of the learned one.
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

KNOTS, HOURS = 12, 24.0
NOISE = 0.4
LOSS = Trace_ELBO()


def basis(hours: Tensor) -> Tensor:
    """Return the cubic B-splines at equidistant knots, (..., KNOTS); within the day they sum to 1.

    Source: de Boor, A Practical Guide to Splines, 2001, chapter IX.
    """
    at = hours.unsqueeze(-1) / HOURS * (KNOTS - 3) + 1
    far = (at - torch.arange(KNOTS, device=hours.device)).abs()
    near = 2 / 3 - far.square() + far**3 / 2
    return torch.where(far < 1, near, (2 - far).clamp(min=0) ** 3 / 6)


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw the splines' weights and the noise; observe standardised demand."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(KNOTS), 2.0).to_event(1))
    noise = pyro.sample("noise", dist.LogNormal(x.new_zeros(()), 1.0))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(basis(x[:, 0]) @ w, noise), obs=y)


def fresh() -> tuple[Model, AutoNormal]:
    """Return the model and an untrained guide."""
    return model, AutoNormal(model)


def true(hours: Tensor) -> Tensor:
    """Return the demand that is expected: a peak in the morning and a higher one at night."""
    return (
        1.5 * (-((hours - 8) / 2).square() / 2).exp()
        + 2.2 * (-((hours - 19) / 3).square() / 2).exp()
        - 0.9
    )


def simulated(records: int, seed: int) -> Dataset:
    """Return hours of the day and the demand of a household."""
    generator = torch.Generator().manual_seed(seed)
    hours = HOURS * torch.rand(records, generator=generator)
    y = true(hours) + NOISE * torch.randn(records, generator=generator)
    return Dataset(hours[:, None], y, feature_names=("hour",), name="demand")


def baseline(train: Dataset, test: Dataset) -> float:
    """Return the mean log density under one Gaussian for all hours."""
    return most_likely(lambda p, x, y: dist.Normal(p[0], p[1].exp()).log_prob(y), 2, train, test)


log_density = summed_out


def figure(draws: Draws, axes: Axes) -> None:
    """Draw the true curve and twenty draws."""
    hours = torch.linspace(0, HOURS, 200)
    axes.plot(hours, basis(hours) @ draws.latents["w"][:20].to(hours).T, color="C0", alpha=0.3)
    axes.plot(hours, true(hours), color="black", linestyle="--")
    axes.set(xlabel="hour", ylabel="demand", title="true curve (dashed) and draws of it")


if __name__ == "__main__":
    main(sys.modules[__name__])

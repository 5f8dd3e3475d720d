"""Poisson regression of counts, with one of Pyro's own guides.

    python examples/models/poisson.py --out poisson.png

The figure shows the true rate of the counts and the released one, with the spread of the samples.
A Poisson likelihood bounds no record, so ε is a Bayesian one, about records like these.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor

import bdpvi

TRUE = (0.3, 0.8)  # of the logarithm of the rate: intercept, slope


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw intercept and slope of the log-rate, and observe the counts."""
    line = pyro.sample("line", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Poisson((line[0] + line[1] * x[:, 0]).exp()), obs=y)


def simulate(records: int) -> bdpvi.Dataset:
    """Return counts at places between -1 and 1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(records, 1, generator=generator) * 2 - 1
    y = torch.poisson((TRUE[0] + TRUE[1] * x[:, 0]).exp(), generator=generator)
    return bdpvi.Dataset(x, y, name="counts")


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, release, print what it promises, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="poisson.png", help="path of the figure")
    parser.add_argument("--steps", type=int, default=500, help="optimiser steps")
    parser.add_argument("--records", type=int, default=400, help="simulated records")
    given = parser.parse_args(arguments)

    guide = AutoMultivariateNormal(model)
    fit = bdpvi.fit(model, guide, simulate(given.records), steps=given.steps)
    release = bdpvi.release(fit, draws=10, temperature=10.0)
    print(release)
    print("for the owner only:", release.spent)  # few records: not reliable, as it says

    x = torch.linspace(-1, 1, 50)
    lines = release.latents["line"].to(x)
    rates = (lines[:, :1] + lines[:, 1:] * x).exp()
    figure, axes = plt.subplots()
    axes.fill_between(x, rates.min(0).values, rates.max(0).values, alpha=0.3)
    axes.plot(x, release.predict_mean(x.unsqueeze(1)), color="C0")
    axes.plot(x, (TRUE[0] + TRUE[1] * x).exp(), color="black", linestyle="--")
    axes.set(xlabel="x", ylabel="rate", title="true rate (dashed), released mean and range")
    figure.savefig(given.out)
    print("wrote", given.out)


if __name__ == "__main__":
    main()

"""Linear regression with unknown noise, every record's score clipped.

    python examples/models/linear.py --out linear.png

The figure shows the true line and the released ones, but no records. The ε is Bayesian: it is about
records like these, and clipping does not make it a worst-case guarantee.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from _clipped import Clipped
from torch import Tensor

import bdpvi
from bdpvi import guides

TRUE = (0.5, 1.5)  # intercept, slope


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw intercept, slope and noise, and observe the targets."""
    line = pyro.sample("line", dist.Normal(x.new_zeros(2), 2.0).to_event(1))
    noise = pyro.sample("noise", dist.HalfNormal(x.new_tensor(1.0)))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(line[0] + line[1] * x[:, 0], noise), obs=y)


def simulate(records: int) -> bdpvi.Dataset:
    """Return records around the true line."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(records, 1, generator=generator) * 4 - 2
    noise = 0.5 * torch.randn(records, generator=generator)
    return bdpvi.Dataset(x, TRUE[0] + TRUE[1] * x[:, 0] + noise, name="line")


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, release, print what it promises, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="linear.png", help="path of the figure")
    parser.add_argument("--steps", type=int, default=400, help="optimiser steps")
    parser.add_argument("--records", type=int, default=300, help="simulated records")
    given = parser.parse_args(arguments)

    clipped = Clipped(model, clip=2.0)
    guide = guides.FullRank(clipped)
    fit = bdpvi.fit(
        clipped, guide, simulate(given.records), training=bdpvi.Training(steps=given.steps, seed=0)
    )
    release = bdpvi.release(fit, draws=5, temperature=20.0)
    print(release)
    print("for the owner only:", release.cost)  # few records: not reliable, as it says

    x = torch.linspace(-2, 2, 50)
    figure, axes = plt.subplots()
    lines = release.latents["line"].to(x)
    axes.plot(x, (lines[:, :1] + lines[:, 1:] * x).T, color="C0", alpha=0.5)
    axes.plot(x, TRUE[0] + TRUE[1] * x, color="black", linestyle="--")
    axes.set(xlabel="x", ylabel="y", title="true line (dashed) and released lines")
    figure.savefig(given.out)
    print("wrote", given.out)


if __name__ == "__main__":
    main()

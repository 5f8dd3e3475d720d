"""Robust regression: Student-t noise that outliers cannot tear at.

    python examples/models/robust.py --out robust.png

One record in twenty has a target that is far off. The score of a Student-t is bounded in the
target, and the features are within ±2; that is no worst-case guarantee, and ε is a Bayesian one,
about records like these. The figure shows the true slopes and the released samples of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import bdpvi
from bdpvi import guides

TRUE = torch.tensor([1.0, -0.5, 0.0])


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw slopes and spread, and observe the targets with heavy tails."""
    slopes = pyro.sample("slopes", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    spread = pyro.sample("spread", dist.HalfNormal(x.new_tensor(1.0)))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.StudentT(x.new_tensor(3.0), x @ slopes, spread), obs=y)


def simulate(records: int) -> bdpvi.Dataset:
    """Return records of which every twentieth has a target 20 too high."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(records, 3, generator=generator).clamp(-2, 2)
    y = x @ TRUE + 0.3 * torch.randn(records, generator=generator)
    y[::20] += 20.0
    return bdpvi.Dataset(x, y, name="outliers")


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, release, print what it promises, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="robust.png", help="path of the figure")
    parser.add_argument("--steps", type=int, default=500, help="optimiser steps")
    parser.add_argument("--records", type=int, default=400, help="simulated records")
    given = parser.parse_args(arguments)

    fit = bdpvi.fit(model, guides.MeanField(model), simulate(given.records), steps=given.steps)
    release = bdpvi.release(fit, draws=10, temperature=10.0)
    print(release)
    print("for the owner only:", release.spent)  # few records: not reliable, as it says

    figure, axes = plt.subplots()
    for j, true in enumerate(TRUE.tolist()):
        slopes = release.latents["slopes"][:, j]
        axes.scatter([j] * len(slopes), slopes, color="C0", alpha=0.5)
        axes.plot([j - 0.2, j + 0.2], [true, true], color="black")
    axes.set(xlabel="feature", ylabel="slope", title="true slopes (lines) and released samples")
    figure.savefig(given.out)
    print("wrote", given.out)


if __name__ == "__main__":
    main()

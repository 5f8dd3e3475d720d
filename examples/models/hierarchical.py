"""A hierarchical model: effects of eight groups, non-centred.

    python examples/models/hierarchical.py --out hierarchical.png

Groups have a plate of their own: their effects are global latents, the number of groups is public,
and the group of a record is its feature. The figure shows true and released effects. ε is about
typical records, and protects single records, not a whole group. Samples have a public noise scale,
so that the fitted spreads leak nothing.
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

GROUPS = 8
TRUE = torch.linspace(-1, 2, GROUPS)


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw the groups' mean, their spread and each one's place in it, and observe the targets."""
    centre = pyro.sample("centre", dist.Normal(x.new_zeros(()), 1.0))
    spread = pyro.sample("spread", dist.HalfNormal(x.new_tensor(1.0)))
    with pyro.plate("groups", GROUPS):
        place = pyro.sample("place", dist.Normal(x.new_zeros(()), 1.0))
    effect = centre + spread * place
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(effect[x[:, 0].long()], 1.0), obs=y)


def simulate(records: int) -> bdpvi.Dataset:
    """Return records of the eight groups in turn; the one feature is the group's number."""
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(records) % GROUPS
    y = TRUE[group] + torch.randn(records, generator=generator)
    return bdpvi.Dataset(group.unsqueeze(1).float(), y, feature_names=("group",), name="groups")


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, release, print what it promises, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="hierarchical.png", help="path of the figure")
    parser.add_argument("--steps", type=int, default=500, help="optimiser steps")
    parser.add_argument("--records", type=int, default=400, help="simulated records")
    given = parser.parse_args(arguments)

    guide = guides.FullRank(model, noise_scale=0.15)
    fit = bdpvi.fit(
        model, guide, simulate(given.records), training=bdpvi.Training(steps=given.steps, seed=0)
    )
    release = bdpvi.release(fit, draws=5)
    print(release)
    print("for the owner only:", release.cost)  # few records: not reliable, as it says

    samples = {name: value.unsqueeze(-1) for name, value in release.latents.items()}
    effects = samples["centre"] + samples["spread"] * release.latents["place"]
    figure, axes = plt.subplots()
    axes.errorbar(range(GROUPS), effects.mean(0), effects.std(0), fmt="o", capsize=3)
    axes.plot(range(GROUPS), TRUE, color="black", linestyle="--")
    axes.set(
        xlabel="group", ylabel="effect", title="true effects (dashed), released mean and spread"
    )
    figure.savefig(given.out)
    print("wrote", given.out)


if __name__ == "__main__":
    main()

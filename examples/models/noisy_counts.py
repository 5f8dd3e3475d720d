"""A custom model for the noisy counts of a shared table: a mixture of products, by SVI.

    python examples/models/noisy_counts.py --out noisy-counts.png

Everything is post-processing: anyone with synthetic.json can do it, at no privacy cost. The counts'
noise has a known deviation and is the likelihood here, so that the posterior accounts for it. The
posterior is about the counted rows and ignores their sampling from a population. Single components
are not interpreted, as they may be permuted. The figure shows the number of sick people at each
age: the released counts, the posterior, and the secret table.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor

import bdpvi
from bdpvi.datasets import ColumnType, Schema
from bdpvi.synthesis import NoisyCounts, Synthetic

COMPONENTS = 3
AGES, WORDS, SICK = ("18-39", "40-59", "60-79", "80+"), ("never", "some", "daily"), ("no", "yes")
LEVELS = {"age": AGES, "smoking": WORDS, "exercise": WORDS, "sick": SICK}
SCHEMA = Schema(
    {name: ColumnType(levels=levels) for name, levels in LEVELS.items()},
    source="Questionnaire 2021",
)


def simulate(records: int) -> pd.DataFrame:
    """Return rows; the older are sick more often, and exercise less."""
    random = np.random.default_rng(0)
    age = random.choice(4, records, p=[0.35, 0.3, 0.25, 0.1])
    smoking = random.choice(3, records, p=[0.6, 0.2, 0.2])
    exercise = (random.random(records) < 0.8 - 0.15 * age).astype(int) + random.choice(2, records)
    risk = 0.05 + 0.15 * age + 0.1 * smoking
    sick = (random.random(records) < risk).astype(int)
    codes = zip(LEVELS.items(), (age, smoking, exercise, sick), strict=True)
    return pd.DataFrame({name: np.take(levels, code) for (name, levels), code in codes})


def pairs(weights: Tensor, levels: Sequence[Tensor], i: int, j: int) -> Tensor:
    """Return the probabilities of two columns' bins, (…, A, B): Σ_k π_k p_ki p_kj."""
    return torch.einsum("...k,...ka,...kb->...ab", weights, levels[i], levels[j])


def model(counts: NoisyCounts) -> None:
    """Draw the number of rows, shares and bins of the components; observe all pairs of columns."""
    about = torch.tensor(counts.records, dtype=torch.float64)
    rows = about * pyro.sample("size", dist.Normal(about.new_ones(()), 0.5))
    weights = pyro.sample("weights", dist.Dirichlet(about.new_ones(COMPONENTS)))
    levels = [
        pyro.sample(f"levels {at}", dist.Dirichlet(about.new_ones(COMPONENTS, size)).to_event(1))
        for at, size in enumerate(counts.sizes)
    ]
    for (i, j), table in counts.joint.items():
        noisy = dist.Normal(rows * pairs(weights, levels, i, j), counts.deviations[i, j])
        pyro.sample(f"pair {i} {j}", noisy.to_event(2), obs=torch.from_numpy(table).double())


def fit(counts: NoisyCounts, steps: int, draws: int = 500) -> tuple[list[float], dict[str, Tensor]]:
    """Return the losses, and draws from the posterior."""
    guide = AutoMultivariateNormal(model, init_scale=0.05)
    optimiser = pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.1 ** (1 / steps)})
    svi = SVI(model, guide, optimiser, Trace_ELBO())
    losses = [svi.step(counts) for _ in range(steps)]
    with torch.no_grad():
        drawn = [guide(counts) for _ in range(draws)]
    pyro.clear_param_store()
    return losses, {name: torch.stack([one[name] for one in drawn]) for name in drawn[0]}


def sick_by_age(released: Synthetic, drawn: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the share of the sick at each age: of the noisy counts (A,), and drawn (S, A)."""
    counts = released.counts
    levels = [drawn[f"levels {at}"] for at in range(len(counts.sizes))]
    places = torch.from_numpy(counts.bins[0][: len(AGES)])
    yes = int(counts.bins[3][SICK.index("yes")])
    both = torch.from_numpy(counts.joint[0, 3]).double(), pairs(drawn["weights"], levels, 0, 3)
    raw, posterior = (table[..., places, yes] / table[..., places, :].sum(-1) for table in both)
    return raw, posterior


def main(arguments: Sequence[str] | None = None) -> None:
    """Release, fit, print, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="noisy-counts.png", help="path of the figure")
    parser.add_argument("--steps", type=int, default=1500, help="optimiser steps")
    parser.add_argument("--records", type=int, default=5000, help="simulated records")
    parser.add_argument("--epsilon", type=float, default=1.0)
    given = parser.parse_args(arguments)

    frame = simulate(given.records)
    released = bdpvi.synthesize(frame, SCHEMA, None, epsilon=given.epsilon, delta=1e-6)
    print(released.receipt)
    losses, drawn = fit(released.counts, given.steps)
    print(f"loss {losses[0]:.1f} to {losses[-1]:.1f}")

    raw, posterior = sick_by_age(released, drawn)
    true = [float((frame["sick"][frame["age"] == age] == "yes").mean()) for age in AGES]
    low, middle, high = posterior.quantile(torch.tensor([0.025, 0.5, 0.975]).double(), 0)
    figure, axes = plt.subplots()
    axes.errorbar(AGES, middle, torch.stack([middle - low, high - middle]), fmt="o", capsize=3)
    axes.plot(AGES, raw, "x", color="C1")
    axes.plot(AGES, true, color="black", linestyle="--")
    axes.set(ylabel="share that is sick", title="table (dashed), noisy counts (×), posterior, 95 %")
    figure.savefig(given.out)
    print("wrote", given.out)


if __name__ == "__main__":
    main()

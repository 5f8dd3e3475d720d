"""Robust regression: Student-t noise of unknown scale, trained by SVI and released as it is.

    python examples/models/student_t.py --out student_t.png

The score of a record is bounded by the likelihood itself: by ‖x‖(ν + 1)/(2√ν·scale) in the weights
and between -1 and ν in log scale, however far off its target is.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import bdpvi
from bdpvi import Dataset, guides
from bdpvi.inference.svi import default_optimiser

FREEDOM, LIMIT = 4.0, 2.0
TRUE = (0.6, -0.4, 0.2, 0.0)


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Weights, an intercept and the scale of the noise; features within ± LIMIT."""
    x = x.clamp(-LIMIT, LIMIT)
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    intercept = pyro.sample("intercept", dist.Normal(x.new_zeros(()), 1.0))
    scale = pyro.sample("scale", dist.LogNormal(x.new_zeros(()), 1.0))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.StudentT(FREEDOM, intercept + x @ w, scale), obs=y)


def predicted(latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return each record's expected target, averaged over k samples of the latents, (N,)."""
    means = latents["w"] @ x.clamp(-LIMIT, LIMIT).T + latents["intercept"][:, None]
    return means.mean(0)


def simulated(records: int, seed: int = 0) -> Dataset:
    """Return records of four features, whose noise has two outliers in a hundred."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, 4, generator=generator, dtype=torch.float64)
    noise = 0.5 * torch.randn(records, generator=generator, dtype=torch.float64)
    noise[::50] *= 20
    weights = torch.tensor(TRUE, dtype=torch.float64)
    return Dataset(x, 0.3 + x.clamp(-LIMIT, LIMIT) @ weights + noise)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit with every record left out once, release samples at temperature 1, draw a figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="student_t.png", help="path of the figure")
    parser.add_argument("--steps", type=int, default=300, help="optimiser steps")
    parser.add_argument("--records", type=int, default=2000, help="simulated records")
    parser.add_argument("--draws", type=int, default=5, help="posterior samples to release")
    given = parser.parse_args(arguments)

    fit = bdpvi.fit(
        model,
        guides.FullRank(model, init_scale=0.05),
        simulated(given.records),
        steps=given.steps,
        optim=default_optimiser(given.steps, lr=0.1, decay=0.05),
        accounting=bdpvi.Accounting(only_reliable=True, failure_probability=1e-30),
    )
    release = bdpvi.release(fit, draws=given.draws)
    print(release)
    print("for the owner only:", release.spent)
    test = simulated(10_000, seed=1)
    error = (predicted(release.latents, test.x) - test.y).abs().median().item()
    print(f"median absolute error {error:.3f}")

    figure, axes = plt.subplots()
    for j, true in enumerate(TRUE):
        weights = release.latents["w"][:, j]
        axes.scatter([j] * len(weights), weights, color="C0", alpha=0.5)
        axes.plot([j - 0.2, j + 0.2], [true, true], color="black")
    axes.set(xlabel="feature", ylabel="weight", title="true weights (lines) and released samples")
    figure.savefig(given.out)
    print("wrote", given.out)


if __name__ == "__main__":
    main()

"""Share of the gain that a private fit of any Pyro model keeps with default settings.

    python benchmarks/any_model.py [--sizes 1e4 1e5] [--seeds 3] [--epsilon 1] [--only NAME ...]

Models are the nine of ``examples/private``, and linear, Poisson and multinomial regression by the
default route of ``fit_private``. The gain is in mean log density of 20,000 new records, from the
best model without covariates or structure to the same model by Pyro's SVI, both without privacy.
Tables have seed 0, δ = 1e-5, nothing is tuned. Without privacy each model is fitted once. Private
fits differ in their noise, which has no seed, and in random starts of guides. Times are wall-clock
times of a private fit on one thread.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "private"))

from _example import DELTA, FRESH, Draws, Example, Fitted, non_private, private, score, share
from _regressions import REGRESSIONS
from printed import command

import bdpvi
from bdpvi.datasets.dataset import People

NAMES = (
    "group_effects", "spline", "robust", "mixture", "factors", "autoencoder", "two_layers",
    "gaussian_process", "survival",
    *(one.name for one in REGRESSIONS),
)  # fmt: skip
OURS = {one.name: one for one in REGRESSIONS}
STEPS = 8000
"""Of the fits without privacy: enough for all to come to rest."""


def fitted(example: Example, data: bdpvi.Dataset, epsilon: float) -> Draws:
    """Return a private fit by defaults: of a regression by the route that its model has."""
    if example.__name__ not in OURS:
        return private(example, data, epsilon)[1]
    model, _ = example.fresh()
    release = bdpvi.fit_private(model, data, epsilon=epsilon)
    return Fitted(release.model, None, release.with_draws(100).latents)


def row(example: Example, records: int, seeds: int, epsilon: float) -> str:
    """Return a line of the table."""
    data, test = example.simulated(records, 0), example.simulated(FRESH, 1)
    baseline = example.baseline(data, test)
    most = score(example, non_private(example, data, steps=STEPS), test)
    found, seconds = [], []
    for seed in range(seeds):
        torch.manual_seed(seed)
        start = time.perf_counter()
        # people of their own: nothing was spent on them before
        learned = fitted(example, replace(data, people=People()), epsilon)
        seconds.append(time.perf_counter() - start)
        found.append(score(example, learned, test))
    shares = [share(baseline, one, most) for one in found]
    spread = f"{stdev(shares):.3f}" if seeds > 1 else "–"
    return (
        f"| {example.__name__} | {records} | {baseline:.4f} | {most:.4f} | {fmean(found):.4f} | "
        f"{fmean(shares):.3f} | {spread} | {min(shares):.3f} | {fmean(seconds):.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="*", default=(1e4, 1e5))
    parser.add_argument("--seeds", type=int, default=3, help="private fits of each")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES, metavar="NAME")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("command:", command())
    print(f"machine: {platform.platform()}, {os.cpu_count()} cores")
    print(f"versions: python {platform.python_version()}", end="")
    print("", *(f"{name} {version(name)}" for name in ("torch", "pyro-ppl", "numpy")))
    promised = f"worst-case DP ε = {given.epsilon:g} at δ = {DELTA:g}"
    print(f"{promised}, {given.seeds} private fits of each\n")
    print(
        "| example | N | baseline | non-private | private | share | deviation | lowest | s a fit |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for records in given.sizes:
        for name in given.only:
            example: Example = OURS.get(name) or import_module(name)  # type: ignore[assignment]
            print(row(example, int(records), given.seeds, given.epsilon), flush=True)


if __name__ == "__main__":
    main()

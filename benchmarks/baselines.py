"""Share of the true model's gain that a comparison's baselines keep with default settings.

    python benchmarks/baselines.py [--sizes 1e3 1e4 1e5] [--columns 5 20 60] [--seeds 4]
        [--intercepts -0.5 -2.5]

Tables are those of ``default_release.py``, exactly logistic; the intercept −2.5 makes a class of
about an eighth. The share is of the true model's gain in expected log score over the base rate, on
20,000 new rows with known probabilities: 0 is the base rate, below 0 is worse. δ = 1e-5. Means are
over the seeds; tables of 1e5 rows have one seed. Nothing is tuned here; the numbers of the rule in
``bdpvi/bench/methods/pace.py`` were chosen on such tables with other seeds.
"""

from __future__ import annotations

import argparse
import time
from statistics import fmean

import torch
from default_release import COLUMNS, EPSILONS, SIZES, Simulated, gain, simulated

from bdpvi import Dataset
from bdpvi.bench.hyperparameters import load
from bdpvi.models.predictions import predictive_means

SHOWN = (
    "logistic-regression", "objective-perturbation", "dp-gd", "dpvi-pld", "dp-sgld-pld",
    "dp-sgld",
)  # fmt: skip


def table(rows: int, columns: int, seed: int, intercept: float) -> Simulated:
    """Return a table whose truth has another intercept."""
    made = simulated(rows, columns, seed)
    chance = torch.sigmoid(made.x @ made.truth[:-1] + intercept)
    drawn = torch.rand(rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Simulated(
        x=made.x,
        y=(drawn < chance).double(),
        fresh=made.fresh,
        chance=torch.sigmoid(made.fresh @ made.truth[:-1] + intercept),
        truth=made.truth,
    )


def share(name: str, made: Simulated, seed: int) -> list[float]:
    """Return what a method keeps at each ε."""
    method = load("no table of the file").methods[name]
    prepared = method.prepare(Dataset(made.x, made.y), 1e-5)
    kept = []
    for epsilon in EPSILONS:
        (outcome,) = prepared.outcomes([prepared.calibrate(epsilon)], [seed])
        found = predictive_means(method.model, outcome.latents, made.fresh).mean(0).double()
        kept.append(gain(found, made.chance) / gain(made.chance, made.chance))
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES)
    parser.add_argument("--columns", type=int, nargs="+", default=COLUMNS)
    parser.add_argument("--intercepts", type=float, nargs="+", default=(-0.5, -2.5))
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| intercept, d, N | {' | '.join(SHOWN)} |")
    print("| --- " * (1 + len(SHOWN)) + "|")
    start = time.process_time()
    for intercept in options.intercepts:
        for d in options.columns:
            for n in options.sizes:
                seeds = range(options.seeds if n < 1e5 else 1)
                tables = [table(int(n), d, seed, intercept) for seed in seeds]
                shown = []
                for name in SHOWN:
                    each = [
                        share(name, made, seed) for seed, made in zip(seeds, tables, strict=True)
                    ]
                    shown.append(" ".join(f"{fmean(one):.2f}" for one in zip(*each, strict=True)))
                print(f"| {intercept:g}, {d}, {n:g} | {' | '.join(shown)} |", flush=True)
    targets = " / ".join(f"{epsilon:g}" for epsilon in EPSILONS)
    print(f"\nshare at ε = {targets}; {time.process_time() - start:.0f} CPU s")


if __name__ == "__main__":
    main()

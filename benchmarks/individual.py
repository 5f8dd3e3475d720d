"""What a filter of single records is worth: accuracy with and without it at the same worst-case ε.

    python benchmarks/individual.py

Logistic regression by full-batch DP-GD. Noise is such that T steps cost ε in the worst case.
Without the filter training ends there; with it, ``make_private(individual=)``, it goes on to 1.5 T
or 2 T steps at the same noise and ε, and records are left out when their own budget is spent. One
split; means and standard errors over seeds of the noise. T, steps and learning rate are the best by
the accuracies that are printed, alike for both, and breast cancer is standardised by its own means:
ε covers neither.
"""

from __future__ import annotations

import argparse
from itertools import product
from statistics import mean, stdev

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from bdpvi import Budget, make_private
from bdpvi.accounting.individual import IndividualFilter

DELTA = 1e-5
CLIPS, STEPS, FACTORS, RATES = (0.1, 0.3, 1.0), (30, 100, 300), (1, 1.5, 2), (0.3, 1.0)


def tables() -> dict[str, tuple[Tensor, Tensor]]:
    """Return features of norm 1 at most, a constant among them, and classes."""
    found = {}
    for name, load in (("digits", load_digits), ("breast cancer", load_breast_cancer)):
        x, y = load(return_X_y=True)
        x = torch.tensor(x, dtype=torch.float32)
        x = x / 16 - 0.5 if name == "digits" else ((x - x.mean(0)) / x.std(0)).clamp(-2, 2)
        x = torch.cat([x, torch.ones(len(x), 1)], dim=1)
        found[name] = (x / x.norm(dim=1, keepdim=True), torch.tensor(y))
    return found


def accuracies(
    table: tuple[Tensor, Tensor], epsilon: float, seed: int, clip: float, steps: int, rate: float
) -> list[tuple[float, float]]:
    """Return test accuracy after k·T steps for each k, and which share of the records is spent.

    Those cannot pay for another gradient at the clip. k = 1 is training without the filter: in T
    steps nobody is left out.
    """
    x, y = table
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[len(x) // 5 :], order[: len(x) // 5]
    module = nn.Linear(x.shape[1], int(y.max()) + 1, bias=False)
    nn.init.zeros_(module.weight)
    budget = IndividualFilter.of(Budget(epsilon, DELTA), 1.0).budget
    noise = (steps / budget) ** 0.5 * (1 + 1e-9)  # T gradients at the clip spend it
    private = make_private(
        module,
        torch.optim.SGD(module.parameters(), lr=rate / clip, momentum=0.9),
        loss=F.cross_entropy,
        data=(x[train], y[train]),
        rate=1.0,
        clip=clip,
        noise_multiplier=noise,
        individual=Budget(epsilon, DELTA),
        seed=seed,
        physical_batch=2048,
    )
    found = []
    for factor in FACTORS:
        while private.steps < factor * steps:
            private.step()
        own = private.state_dict()["counts"]["own"]
        right = (module(x[test]).argmax(1) == y[test]).double().mean()
        found.append((float(right), float((own > budget - noise**-2).double().mean())))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"ε = {given.epsilon:g}, {given.seeds} seeds of the noise; best T, steps and rate a row")
    print("table          clip  filter   accuracy         T    steps  rate  spent")
    for (name, table), clip in product(tables().items(), CLIPS):
        rows = []
        for steps, rate in product(STEPS, RATES):
            runs = [
                accuracies(table, given.epsilon, seed, clip, steps, rate)
                for seed in range(given.seeds)
            ]
            for k, factor in enumerate(FACTORS):
                scores, spent = zip(*(run[k] for run in runs), strict=True)
                error = stdev(scores) / given.seeds**0.5
                rows.append((mean(scores), error, factor, steps, rate, mean(spent)))
        for label, wanted in (("without", (1,)), ("with", FACTORS[1:])):
            best, error, factor, steps, rate, share = max(r for r in rows if r[2] in wanted)
            print(
                f"{name:<13}  {clip:<4g}  {label:<7}  {best:.4f} ± {error:.4f}  {steps:<3}  "
                f"{factor * steps:<5g}  {rate:<4g}  {share:.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()

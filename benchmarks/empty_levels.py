"""Intervals of coefficients that no record informs: levels that a category has by law alone.

    python benchmarks/empty_levels.py [--tables 5] [--only KIND ...] [--epsilon 1]

Each table of 8,000 records has a category of 30 levels, 25 of them empty, and is fitted by DPVI
with its defaults, at δ = 1e-5. ``exclude 0`` counts the empty levels whose 95 % interval does,
``noted`` those with the note that privacy noise dominates them, and ``width`` is their median
standard deviation; the prior's is 5.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import torch
from printed import command
from torch import Tensor

import bdpvi

FULL, EMPTY, RECORDS = 5, 25, 8000
PLACES = tuple(range(2, 2 + FULL + EMPTY))

MODELS: dict[str, Callable[[], Any]] = {
    "logistic": lambda: bdpvi.BayesianLogisticRegression.unweighted(
        intercept=True, one_hot=(PLACES,), prior_scale=5.0
    ),
    "poisson": lambda: bdpvi.BayesianPoissonRegression(largest=15, levels=(PLACES,)),
    "ordinal": lambda: bdpvi.BayesianOrdinalRegression(classes=4, levels=(PLACES,)),
    "linear": lambda: bdpvi.BayesianLinearRegression(largest=5.0, levels=(PLACES,)),
}


def table(kind: str, seed: int) -> tuple[Tensor, Tensor]:
    """Return simulated records: two numbers and a category's indicators, and targets."""
    generator = torch.Generator().manual_seed(seed)
    level = torch.randint(0, FULL, (RECORDS,), generator=generator)
    numbers = torch.randn(RECORDS, 2, generator=generator).clamp(-2, 2)
    x = torch.cat([numbers, torch.eye(FULL + EMPTY)[level]], dim=1)
    predictor = 0.3 + numbers @ torch.tensor([0.4, -0.2]) + 0.2 * (level - 2)
    chance = torch.rand(RECORDS, generator=generator)
    if kind == "poisson":
        return x, torch.poisson(predictor.exp(), generator=generator)
    if kind == "logistic":
        return x, (chance < predictor.sigmoid()).float()
    if kind == "ordinal":
        at = predictor + chance.logit()
        return x, torch.stack([at > -1, at > 0.5, at > 2]).sum(0).float()
    return x, predictor + torch.randn(RECORDS, generator=generator)


def fitted(kind: str, seed: int, epsilon: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return of each empty level whether it excludes 0, has the note, and its deviation."""
    release = bdpvi.fit_private(
        MODELS[kind](), table(kind, seed), epsilon=epsilon, route=bdpvi.DPVI()
    )
    rows = release.summary().coefficients[2 + FULL : 2 + FULL + EMPTY]
    ends = [(row.low or 0.0, row.high or 0.0) for row in rows]
    return (
        torch.tensor([low > 0 or high < 0 for low, high in ends]),
        torch.tensor([not row.measured for row in rows]),
        torch.tensor([row.sd or 0.0 for row in rows]),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", default=[*MODELS], choices=[*MODELS])
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(command())
    print("\n| model | ε | empty levels | exclude 0 | noted | width |\n| --- |" + " --- |" * 5)
    for kind in asked.only:
        parts = zip(*(fitted(kind, s, asked.epsilon) for s in range(asked.tables)), strict=True)
        out, noted, width = (torch.cat(part) for part in parts)
        print(
            f"| {kind} | {asked.epsilon:g} | {len(out)} | {int(out.sum())} | {int(noted.sum())} | "
            f"{float(width.median()):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

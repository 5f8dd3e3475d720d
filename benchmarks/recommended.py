"""Comparison of the recommended settings with the best of a grid search.

    python benchmarks/recommended.py [--data FILE ...]

On a quarter of each table's training rows, held out from the fit: the mean log score and AUC of
worst-case releases with the settings of ``bdpvi.recommended``, and with the best of a grid of clip,
prior scale and limit. The best is chosen on the rows that score it and the search is not charged,
which favours the grid. The last column of a FILE is the target.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from defaults import with_files
from printed import command
from sklearn.linear_model import LogisticRegression

import bdpvi
from bdpvi import Dataset, datasets
from bdpvi.datasets import Split
from bdpvi.guides import MeanField
from bdpvi.models.predictions import predictive_means
from bdpvi.tables.metrics import metrics
from bdpvi.tables.recipe import Recipe

EPSILONS = (0.03, 0.1, 0.3, 1.0, 3.0)
CLIPS = (0.1, 0.3, 1.0, 3.0)
PRIOR_SCALES = (0.03, 0.1, 0.2, 0.4, 0.8)
LIMITS = (1.0, 3.0)
DRAWS = 12
FEW = bdpvi.Optimum(bdpvi.bayesian.Remove(3))
"""A worst-case ε does not depend on the neighbours, so a few are enough."""


@dataclass(frozen=True)
class Score:
    """The mean over releases of one sample each, with the settings that they had."""

    log_score: float
    auc: float
    settings: Recipe

    def __str__(self) -> str:
        model: Any = self.settings.model
        return (
            f"{self.log_score:.3f} | {self.auc:.3f} | "
            f"{model.clip:g}, {model.prior_scale:g}, {model.limit:g}"
        )


def scores(settings: Recipe, split: Split, epsilons: Sequence[float] = EPSILONS) -> list[Score]:
    """Return what releases at each ε score on the held-out rows; all have the same noise."""
    fitted = settings.fit(split.train, neighbours=FEW, progress=False)
    found = []
    for epsilon in epsilons:
        tau = bdpvi.WorstCaseDP().temperature(fitted, 1, epsilon, 1e-5)
        generator = torch.Generator().manual_seed(0)
        latents = bdpvi.bayesian.preview(fitted, DRAWS, temperature=tau, generator=generator)
        chances = predictive_means(fitted.model, latents, split.test.x)
        each = [metrics(chance, split.test.y) for chance in chances]
        log_score, auc = (fmean(m[name] for m in each) for name in ("log_score", "auc"))
        found.append(Score(log_score, auc, settings))
    return found


def grid() -> Iterator[Recipe]:
    """Return every point of the grid, as settings."""
    for clip, scale, limit in product(CLIPS, PRIOR_SCALES, LIMITS):
        model = bdpvi.BayesianLogisticRegression(
            clip=clip, prior_scale=scale, limit=limit, intercept=True
        )
        yield Recipe(model=model, noise_scale=1.0)


def rows(name: str, data: Dataset) -> Iterator[tuple[Score, Score]]:
    """Print a table's lines; yield the recommended and the best score at each ε."""
    split = datasets.split.shuffled(data, 0.25)
    train, test = split.train, split.test
    usual = LogisticRegression(max_iter=10_000).fit(train.x.numpy(), train.y.numpy())
    base = metrics(torch.full_like(test.y, float(train.y.mean())), test.y)
    free = metrics(torch.from_numpy(usual.predict_proba(test.x.numpy())[:, 1]), test.y)
    searched = [scores(settings, split) for settings in grid()]
    for i, epsilon in enumerate(EPSILONS):
        (ours,) = scores(bdpvi.recommended(epsilon, guide=MeanField), split, [epsilon])
        best = max((column[i] for column in searched), key=lambda score: score.log_score)
        print(
            f"| {name} | {len(train)}, {train.x.shape[1]} | {base['log_score']:.3f} | "
            f"{free['log_score']:.3f} | {free['auc']:.3f} | {epsilon:g} | {ours} | {best} |",
            flush=True,
        )
        yield ours, best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, nargs="*", default=[], metavar="FILE")
    files = parser.parse_args().data
    tables = with_files(files)
    print(command())
    print(f"Python {platform.python_version()}, torch {torch.__version__}")
    print(f"Worst-case DP, δ = 1e-5, one sample a release, mean of {DRAWS} releases; settings are")
    print("clip, prior scale, limit\n")
    print(
        "| table | rows, features | log score of the base rate | without privacy | AUC | ε | "
        "recommended: log score | AUC | settings | best of the grid: log score | AUC | settings |"
    )
    print("| --- " * 12 + "|")
    all_pairs = [list(rows(name, data)) for name, data in tables.items()]
    print("\nMean over the tables\n")
    print("| ε | recommended: log score | AUC | best of the grid: log score | AUC | largest gap |")
    print("| --- " * 6 + "|")
    for epsilon, pairs in zip(EPSILONS, zip(*all_pairs, strict=True), strict=True):
        ours, best = zip(*pairs, strict=True)
        gap = max(b.log_score - o.log_score for o, b in pairs)
        means = [
            fmean(getattr(score, name) for score in side)
            for side in (ours, best)
            for name in ("log_score", "auc")
        ]
        print(f"| {epsilon:g} | " + " | ".join(f"{m:.3f}" for m in means) + f" | {gap:.3f} |")


if __name__ == "__main__":
    main()

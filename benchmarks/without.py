"""Effect of each setting: the log score of tuned methods with one setting removed.

    python benchmarks/without.py --data abalone [--methods M,...] [--settings FILE]

Each method has the settings of its file at each target ε. A row removes one of them, without
retuning the others, and shows the change in log score by cross-validation on training rows, with
folds and seeds that no search has used. Test rows are not used. The raw files are found as in
``bdpvi compare``.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from printed import command

from bdpvi import datasets
from bdpvi.bench.hyperparameters import FILE, build, describe, load
from bdpvi.bench.methods import Method
from bdpvi.bench.trials import replaced, value_at
from bdpvi.bench.tuning import Search, cross_validated

EPSILONS = (0.01, 0.05, 0.2, 1.0)
TAKEN: Mapping[str, tuple[str, Any]] = {
    "no clip": ("model.clip", None),
    "no limit of features": ("model.limit", None),
    "no correlation": ("model.correlation", 0.0),
    "no groups": ("model.groups", None),
    "no intercept": ("model.intercept", False),
    "prior scale 1": ("model.prior_scale", 1.0),
    "own covariance": ("noise_scale", None),
}
FOLDS_SEED, FIRST_SEED = 7, 2_000_000


def score(method: Method, data: Any, epsilon: float, seeds: int) -> float:
    """Return the mean log score on held-out training rows at one ε."""
    search = Search(epsilons=(epsilon,), seeds=seeds, folds=5)
    splits = datasets.split.folds(data, search.folds, FOLDS_SEED)
    return cross_validated(method, splits, search, FIRST_SEED).score


def rows(method: Method, data: Any, epsilon: float, seeds: int) -> dict[str, float]:
    """Return the whole method's score, and how much it changes by each setting taken away."""
    whole, entry = score(method, data, epsilon, seeds), describe(method)
    found = {"whole": whole}
    for words, (path, value) in TAKEN.items():
        top = path.split(".")[0]
        if top in entry and value_at(entry, path) != value:
            less = build(method.name, replaced(entry, {path: value}))
            found[words] = score(less, data, epsilon, seeds) - whole
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="abalone", choices=("abalone", "adult"))
    parser.add_argument("--methods", default="bdp-vi-full-rank")
    parser.add_argument("--settings", type=Path, default=FILE)
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train = datasets.LOADERS[options.data]().train
    print("$", command())
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"{options.data}: {len(train)} training rows, five folds, δ = 1e-5\n")
    print("| method | setting | " + " | ".join(f"ε {epsilon:g}" for epsilon in EPSILONS) + " |")
    print("| --- " * (2 + len(EPSILONS)) + "|")
    at = load(options.data, options.settings).at
    for name in options.methods.split(","):
        found = {e: rows(at[name][e], train, e, options.seeds) for e in EPSILONS}
        names = dict.fromkeys(words for one in found.values() for words in one)
        for words in names:
            values = [found[e].get(words) for e in EPSILONS]
            plus = "" if words == "whole" else "+"
            cells = ("as it is" if v is None else f"{v:{plus}.4f}" for v in values)
            print(f"| {name} | {words} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

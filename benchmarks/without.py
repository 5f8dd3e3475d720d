"""What each setting buys: the log score of tuned methods with one of their settings taken away.

    python benchmarks/without.py --data abalone [--methods M,...] [--settings FILE]

Each method has the settings of its file at each target ε. A row takes one of them away, without
tuning the others again, and shows by how much the log score of cross-validation on training rows
then changes, in folds and with seeds that no search has used. "Published price" is objective
perturbation by the bound of Redberg, Koskela and Wang (2023), which does not ask gradients for one
sign. Test rows are not used. The raw files are found as ``bdpvi compare`` finds them.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from published import published_delta
from scipy.optimize import brentq

from bdpvi import datasets
from bdpvi.bench.hyperparameters import FILE, build, describe, load
from bdpvi.bench.methods import Method
from bdpvi.bench.methods.objective_perturbation import ObjectivePerturbation
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
    splits = datasets.folds(data, search.folds, FOLDS_SEED)
    return cross_validated(method, splits, search, FIRST_SEED).score


def published(epsilon: float, method: ObjectivePerturbation, delta: float) -> float:
    """Return the ε at which our price allows the noise that the published one asks for ``epsilon``.

    The noise multiplier is the least whose published δ is within ``delta``, at the same share.
    """
    accountant = method.accountant(method.model)

    def excess(log_noise: float) -> float:
        noise = math.exp(log_noise)
        ratio = min(accountant.curvature / accountant.ridge_at(noise), 0.99)
        return math.log(max(published_delta(epsilon, ratio, 1 / noise), 1e-300) / delta)

    noise = math.exp(float(brentq(excess, math.log(0.05 / epsilon), math.log(100 / epsilon))))
    return accountant.epsilon(noise, 1.0, 1, delta)


def rows(method: Method, data: Any, epsilon: float, seeds: int) -> dict[str, float]:
    """Return the whole method's score, and how much it changes by each setting taken away."""
    whole, entry = score(method, data, epsilon, seeds), describe(method)
    found = {"whole": whole}
    for words, (path, value) in TAKEN.items():
        top = path.split(".")[0]
        if top in entry and value_at(entry, path) != value:
            less = build(method.name, replaced(entry, {path: value}))
            found[words] = score(less, data, epsilon, seeds) - whole
    if isinstance(method, ObjectivePerturbation):
        dearer = published(epsilon, method, 1e-5)
        found["published price"] = score(method, data, dearer, seeds) - whole
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="abalone", choices=("abalone", "adult"))
    parser.add_argument("--methods", default="bdp-vi-full-rank,objective-perturbation")
    parser.add_argument("--settings", type=Path, default=FILE)
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train = datasets.LOADERS[options.data]().train
    print("$ python", " ".join(sys.argv))
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

"""Settings for tables that nothing was searched on: the same trials of every method on several.

    python benchmarks/defaults.py --out defaults.json [--configurations 8] [--refinements 8]

Every method has the settings that it has now, random points of its space, and steps from the best
so far, as in ``bdpvi tune``, but scored by the mean over the tables, of cross-validation on the
training rows of each. At each ε the best are chosen, and for other ε the best on average over all.
A public correlation of features suits some tables only, so it stays out. The raw files are found
as ``bdpvi compare`` finds them. Finished trials are kept in the folder OUT.trials, and a run that
was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch
from rich.progress import track
from sklearn.datasets import load_diabetes, load_digits

from bdpvi import Dataset, datasets
from bdpvi._runtime.cells import Cells
from bdpvi.compare.comparison import EPSILONS
from bdpvi.compare.hyperparameters import DEFAULT, build, load
from bdpvi.compare.methods import Method
from bdpvi.compare.tuning import Search, Trial, configurations, refinement, score

TUNED = ("bdp-vi-mean-field", "bdp-vi-full-rank", "dpvi-pld", "dp-sgld-pld", "dp-gd")
Tried = tuple[Trial, dict[str, Any]]
FIRST_SEED = 1_000  # comparisons count from 0
OF_ADULT = 3_000
PIXELS = 12


def diabetes() -> Dataset:
    """Return whether the disease progressed by more than the median: 353 records, 10 features."""
    frame = load_diabetes(as_frame=True).frame
    above = frame["target"] > frame["target"].median()
    return _table(frame.drop(columns="target"), above, "diabetes")


def digits() -> Dataset:
    """Return whether a digit is odd, by the pixels that vary most: 1,437 records, 12 features."""
    loaded = load_digits(as_frame=True)
    pixels = loaded.data[loaded.data.std().sort_values().index[-PIXELS:]]
    return _table(pixels, loaded.target % 2 == 1, "digits")


def _table(features: pd.DataFrame, yes: pd.Series[Any], name: str) -> Dataset:
    frame = features.assign(yes=yes.map({True: "yes", False: "no"}))
    return datasets.from_frame(frame, "yes", positive="yes", name=name).train


def adult() -> Dataset:
    """Return some of Adult's training records: 14 features."""
    train = datasets.load_adult().train
    shuffled = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    return train.select(shuffled[:OF_ADULT])


TABLES = {
    "breast-cancer": lambda: datasets.load_breast_cancer().train,
    "diabetes": diabetes,
    "digits": digits,
    "abalone": lambda: datasets.load_abalone().train,
    "adult": adult,
}


@cache
def table(name: str) -> Dataset:
    """Return a table's training records."""
    return TABLES[name]()


def plain(method: Method) -> Method:
    """Return the method with a space that leaves the features' correlation alone."""
    space = {path: v for path, v in method.space.items() if path != "model.correlation"}
    return type("Plain", (type(method),), {"space": space})(**vars(method))  # type: ignore[no-any-return]


def accuracies(search: Search, job: tuple[Trial, str]) -> list[float]:
    """Return what a configuration scores on a table, at each ε."""
    torch.set_num_threads(1)
    trial, where = job
    parts = []
    for fold, split in enumerate(datasets.folds(table(where), search.folds, search.seed)):
        first = FIRST_SEED + fold * search.seeds
        seeds = range(first, first + search.seeds)
        parts.append(score(build(trial.name, trial.entry), split, search, seeds)["accuracies"])
    return [fmean(column) for column in zip(*parts, strict=True)]


def run(trials: Sequence[Trial], search: Search, store: Cells, pool: Executor) -> list[Tried]:
    """Return all trials with their means over the tables; what is finished is read."""
    missing = [(t, w) for t in trials for w in TABLES if store.get(_cell(t, w)) is None]
    results = zip(missing, pool.map(partial(accuracies, search), missing), strict=True)
    for job, found in track(results, "trials", total=len(missing), disable=not missing):
        store.put(_cell(*job), found)
    tried: list[Tried] = []
    for trial in trials:
        columns = zip(*(store.get(_cell(trial, where)) for where in TABLES), strict=True)
        tried.append((trial, {"accuracies": [fmean(column) for column in columns]}))
    return tried


def _cell(trial: Trial, where: str) -> str:
    return f"{trial.name}-{where}-{trial.number}"


def main() -> None:
    """Search, print what was found, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--configurations", type=int, default=8)
    parser.add_argument("--refinements", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    search = Search(
        configurations=options.configurations, refinements=options.refinements, seeds=6, folds=2
    )
    methods = {name: plain(load(DEFAULT).methods[name]) for name in TUNED}
    entries = {name: configurations(method, search) for name, method in methods.items()}
    store = Cells(
        options.out.with_name(f"{options.out.name}.trials"),
        {"tables": {w: table(w).fingerprint() for w in TABLES}, "entries": entries},
    )
    with ProcessPoolExecutor(options.workers) as pool:
        first = [Trial(name, n, e) for name in TUNED for n, e in enumerate(entries[name])]
        tried = run(first, search, store, pool)
        for _ in range(search.refinements):
            steps = [
                refinement(method, [one for one in tried if one[0].name == name], search)
                for name, method in methods.items()
            ]
            tried += run([step for step in steps if step is not None], search, store, pool)
    print("python", " ".join(sys.argv))
    print(f"Python {platform.python_version()}, torch {torch.__version__}")
    print("Tables: " + ", ".join(f"{w} ({len(table(w))} rows)" for w in TABLES))
    print(
        f"δ = {search.delta:g}: Bayesian DP for bdp-vi-…, worst-case DP for the others; what is "
        "not reliable scores like releasing nothing\n"
    )
    print("| method | settings | " + " | ".join(f"ε {epsilon:g}" for epsilon in EPSILONS) + " |")
    print("| --- " * (2 + len(EPSILONS)) + "|")
    found: dict[str, Any] = {"methods": {}, "at": {}}
    for name in TUNED:
        mine = [
            (trial.entry, result["accuracies"]) for trial, result in tried if trial.name == name
        ]
        whole = max(mine, key=lambda one: fmean(one[1]))
        at = [max(mine, key=lambda one, i=i: one[1][i]) for i in range(len(EPSILONS))]  # type: ignore[misc]
        found["methods"][name] = whole[0]
        found["at"][name] = {f"{e:g}": entry for e, (entry, _) in zip(EPSILONS, at, strict=True)}
        rows = {"before": mine[0][1], "best on average": whole[1]}
        rows["best at each"] = [values[i] for i, (_, values) in enumerate(at)]
        for words, row in rows.items():
            print(f"| {name} | {words} | " + " | ".join(f"{value:.4f}" for value in row) + " |")
    options.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()

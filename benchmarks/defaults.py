"""Settings for tables that nothing was searched on: the same trials of every method on several.

    python benchmarks/defaults.py --out defaults.json [--configurations 8] [--refinements 8]

Every method has the settings that it has now, random points of its space, and steps from the best
so far, as in ``bdpvi tune``, but scored by the mean over the tables, of cross-validation on the
training rows of each. At each ε the best are chosen, and for other ε the best on average over all.
A public correlation of features suits some tables only, so it stays out. The raw files are found
as ``bdpvi compare`` finds them. Finished trials are kept in the file OUT.trials, and a run that was
stopped goes on; delete that file before another search.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch
from sklearn.datasets import load_diabetes, load_digits

from bdpvi import Dataset, datasets
from bdpvi.compare.comparison import EPSILONS
from bdpvi.compare.hyperparameters import DEFAULT, Entry, build, load
from bdpvi.compare.methods import Method
from bdpvi.compare.trials import Study, Trial
from bdpvi.compare.tuning import Search, cross_validated, proposal

TUNED = ("bdp-vi-mean-field", "bdp-vi-full-rank", "dpvi-pld", "dp-sgld-pld", "dp-gd")
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


def scores(search: Search, job: tuple[str, Entry, str]) -> Sequence[float]:
    """Return what a configuration scores on a table, at each ε."""
    torch.set_num_threads(1)
    name, entry, where = job
    splits = datasets.folds(table(where), search.folds, search.seed)
    return cross_validated(build(name, entry), splits, search, FIRST_SEED).scores


def extend(studies: Mapping[str, Study], search: Search, pool: Executor) -> bool:
    """Try one more configuration of every method, False if there is none."""
    found = {
        name: proposal(study.method, study.trials(), search) for name, study in studies.items()
    }
    entries = {name: entry for name, entry in found.items() if entry is not None}
    jobs = [(name, entry, where) for name, entry in entries.items() for where in TABLES]
    results = pool.map(partial(scores, search), jobs)
    for name, entry in entries.items():
        columns = zip(*(next(results) for _ in TABLES), strict=True)
        studies[name].add(Trial(entry, [fmean(column) for column in columns]))
    return bool(entries)


def rows(name: str, trials: Sequence[Trial]) -> tuple[dict[str, Any], list[str]]:
    """Return the best configurations, as the file of hyper-parameters has them, and table lines."""
    whole = max(trials, key=lambda trial: trial.score)
    at = [max(trials, key=lambda trial, i=i: trial.scores[i]) for i in range(len(EPSILONS))]  # type: ignore[misc]
    shown = {
        "before": trials[0].scores,
        "best on average": whole.scores,
        "best at each": [trial.scores[i] for i, trial in enumerate(at)],
    }
    lines = [
        f"| {name} | {words} | " + " | ".join(f"{value:.4f}" for value in row) + " |"
        for words, row in shown.items()
    ]
    best = {f"{epsilon:g}": trial.entry for epsilon, trial in zip(EPSILONS, at, strict=True)}
    return {"methods": whole.entry, "at": best}, lines


def main() -> None:
    """Search, print what was found, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--configurations", type=int, default=8)
    parser.add_argument("--refinements", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    search = Search(
        configurations=options.configurations,
        refinements=options.refinements,
        objective="accuracy",  # as for the settings that are committed
        seeds=6,
        folds=2,
    )
    file = options.out.with_name(f"{options.out.name}.trials")
    methods = {name: plain(load(DEFAULT).methods[name]) for name in TUNED}
    studies = {n: Study(file, n, method, len(EPSILONS)) for n, method in methods.items()}
    with ProcessPoolExecutor(options.workers) as pool:
        while extend(studies, search, pool):
            print(sum(len(study.trials()) for study in studies.values()), "trials", file=sys.stderr)
    print("python", " ".join(sys.argv))
    print(f"Python {platform.python_version()}, torch {torch.__version__}")
    print("Tables: " + ", ".join(f"{w} ({len(table(w))} rows)" for w in TABLES))
    print(
        f"{search.measure.label} at δ = {search.delta:g}: Bayesian DP for bdp-vi-…, worst-case DP "
        "for the others; what is not reliable scores like the base rate\n"
    )
    print("| method | settings | " + " | ".join(f"ε {epsilon:g}" for epsilon in EPSILONS) + " |")
    print("| --- " * (2 + len(EPSILONS)) + "|")
    found: dict[str, dict[str, Any]] = {"methods": {}, "at": {}}
    for name, study in studies.items():
        best, lines = rows(name, study.trials())
        for part, entry in best.items():
            found[part][name] = entry
        print("\n".join(lines))
    options.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()

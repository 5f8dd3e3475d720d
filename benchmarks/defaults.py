"""Settings for tables that nothing was searched on: the rule for releases, a search for the rest.

    python benchmarks/defaults.py --out defaults.json [--held-out FILE ...] [--mnist FOLDER]

Objective perturbation has settings that follow from ε and δ alone; with their
public noise scale both guides score the same to four digits, so one is shown. Objective
perturbation has those that the searches on six tables nearly agree on (Abalone, Adult, MAGIC,
Spambase, Mushroom and Phoneme), with a clip that rises with ε. Each other method has the settings
that it has now, random points of its space, and steps from the best so far, as in ``bdpvi tune``,
but scored by the mean over five tables, of cross-validation on the training rows of
each; at each ε the best are chosen. A public correlation of features suits some tables only, so it
stays out. Then all are scored on tables that the search did not see: CSV files whose last column is
the target, and whether a digit of MNIST is a 4 or a 9, by means over squares of 4 × 4 pixels. The
raw files are found as ``bdpvi compare`` finds them. Finished trials are kept in the file
OUT.trials, and a run that was stopped goes on; delete that file before another search.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch
from printed import command
from sklearn.datasets import load_diabetes, load_digits

import bdpvi
from bdpvi import Dataset, datasets
from bdpvi.bench.hyperparameters import DEFAULT, Entry, build, load
from bdpvi.bench.methods import Method
from bdpvi.bench.methods.objective_perturbation import PerturbedMinimum
from bdpvi.bench.trials import Study, Trial
from bdpvi.bench.tuning import Search, base_rate_score, cross_validated, proposal

TUNED = ("dpvi-pld", "dp-sgld-pld", "dp-gd")
EPSILONS = (0.01, 0.05, 0.2, 1.0)
FIRST_SEED = 1_000_000  # comparisons count from 0
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
    train = datasets.adult.load_adult().train
    shuffled = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    return train.select(shuffled[:OF_ADULT])


TABLES = {
    "breast-cancer": lambda: datasets.load_breast_cancer().train,
    "diabetes": diabetes,
    "digits": digits,
    "abalone": lambda: datasets.abalone.load_abalone().train,
    "adult": adult,
}


def of_file(file: Path) -> Dataset:
    """Return a file's training records: the last column is the target."""
    frame = bdpvi.Table.of(file).frame()
    same = [str(name) for name in frame if frame[name].nunique() < 2]
    return datasets.from_frame(frame, frame.columns[-1], drop=same, name=file.stem).train


def with_files(files: Iterable[Path]) -> dict[str, Dataset]:
    """Return the training records of the tables and of these files, by name."""
    found = {name: load() for name, load in TABLES.items()}
    return found | {file.stem: of_file(file) for file in files}


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
    splits = datasets.split.folds(table(where), search.folds, search.seed)
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


def by_rule(rule: Callable[[float], Any]) -> dict[str, Entry]:
    """Return a rule's settings at each ε, as the file of hyper-parameters has them."""
    found = {epsilon: rule(epsilon) for epsilon in EPSILONS}
    return {f"{epsilon:g}": json.loads(json.dumps(asdict(one))) for epsilon, one in found.items()}


def best_at(trials: Sequence[Trial]) -> dict[str, Entry]:
    """Return the best configuration at each ε, as the file of hyper-parameters has it."""
    columns = range(len(EPSILONS))
    best = [max(trials, key=lambda trial, i=i: trial.scores[i]) for i in columns]  # type: ignore[misc]
    return {f"{epsilon:g}": one.entry for epsilon, one in zip(EPSILONS, best, strict=True)}


def digits_apart(folder: Path) -> Dataset:
    """Return whether a digit is a 9 or a 4: MNIST's training images of both, 49 features."""
    images, labels = datasets.mnist.load_mnist(folder)[0]
    kept = (labels == 4) | (labels == 9)
    means = torch.nn.functional.avg_pool2d(images[kept].float().reshape(-1, 1, 28, 28), 4)
    frame = pd.DataFrame(means.reshape(len(means), -1).numpy()).rename(columns=str)
    varied = frame.loc[:, frame.std() > 0]
    return _table(varied, pd.Series((labels[kept] == 9).numpy()), "mnist-4-9")


def held_out(
    data: Dataset, found: Mapping[str, Mapping[str, Entry]], search: Search
) -> Iterator[str]:
    """Return table lines: what each method's settings score on a table, at each ε."""
    splits = datasets.split.folds(data, search.folds, search.seed)
    base = fmean(base_rate_score(split, search.measure) for split in splits)
    yield f"| {data.name} ({len(data)} rows) | base rate | {f'{base:.4f} | ' * len(EPSILONS)}"
    for name, at in found.items():
        scored = [
            cross_validated(
                build(name, entry), splits, replace(search, epsilons=(float(e),)), FIRST_SEED
            ).score
            for e, entry in at.items()
        ]
        yield f"| {data.name} | {name} | " + " | ".join(f"{one:.4f}" for one in scored) + " |"


def main() -> None:
    """Search, print what was found, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--configurations", type=int, default=8)
    parser.add_argument("--refinements", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--held-out", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--mnist", type=Path)
    options = parser.parse_args()
    search = Search(
        configurations=options.configurations,
        refinements=options.refinements,
        epsilons=EPSILONS,
        seeds=4,
        folds=2,
    )
    file = options.out.with_name(f"{options.out.name}.trials")
    methods = {name: plain(load(DEFAULT).methods[name]) for name in TUNED}
    studies = {n: Study(file, n, method, len(EPSILONS)) for n, method in methods.items()}
    with ProcessPoolExecutor(options.workers) as pool:
        while extend(studies, search, pool):
            print(sum(len(study.trials()) for study in studies.values()), "trials", file=sys.stderr)
    print(command())
    print(f"Python {platform.python_version()}, torch {torch.__version__}")
    print("Searched on: " + ", ".join(f"{w} ({len(table(w))} rows)" for w in TABLES))
    print(
        f"{search.measure.label} at δ = {search.delta:g}: Bayesian DP for bdp-vi-…, worst-case DP "
        "for the others; what is not reliable scores like the base rate\n"
    )
    found = {PerturbedMinimum.name: by_rule(lambda _: PerturbedMinimum())}
    found |= {name: best_at(study.trials()) for name, study in studies.items()}
    options.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print("| table | method | " + " | ".join(f"ε {epsilon:g}" for epsilon in EPSILONS) + " |")
    print("| --- " * (2 + len(EPSILONS)) + "|")
    tables = [of_file(file) for file in options.held_out]
    if options.mnist is not None:
        tables.append(digits_apart(options.mnist))
    for data in tables:
        for line in held_out(data, found, search):
            print(line, flush=True)


if __name__ == "__main__":
    main()

"""The commands ``bdpvi compare`` and ``bdpvi tune``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.console import Console

from bdpvi import datasets
from bdpvi._runtime import progress
from bdpvi.compare import comparison as comparison
from bdpvi.compare import hyperparameters, report, tuning
from bdpvi.compare.methods import METHODS, TUNED, Method
from bdpvi.types import Split

Data = Annotated[str, typer.Option(help=f"A CSV file, or one of {', '.join(datasets.LOADERS)}.")]
Target = Annotated[str, typer.Option(help="Yes/no column of a CSV file.")]
Positive = Annotated[str, typer.Option(help="Value of the target that counts as 1.")]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        help="Column of a CSV file to leave out, such as an identifier; once for every column.",
        show_default=False,
    ),
]
TestFraction = Annotated[
    float, typer.Option(help="Fraction of a CSV file's rows that is kept out of training.")
]
Methods = Annotated[str, typer.Option(help=f"Comma-separated, of {', '.join(METHODS)}.")]
Delta = Annotated[float, typer.Option(help="δ of every guarantee.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]

_WIDE = 1_000
"""Characters: tables that go to a file or another program are not folded."""

ALL = ",".join(METHODS)
SEARCHED = ",".join(TUNED)
EPSILONS = ",".join(f"{epsilon:g}" for epsilon in comparison.EPSILONS)


def compare(
    data: Data,
    out: Annotated[
        Path, typer.Option(help="Folder for tables, figures and report; an unfinished one goes on.")
    ],
    target: Target = "",
    positive: Positive = "",
    drop: Drop = None,
    test_fraction: TestFraction = 0.2,
    methods: Methods = ALL,
    epsilons: Annotated[
        str, typer.Option(help="Comma-separated ε that every private method is calibrated to.")
    ] = EPSILONS,
    delta: Delta = 1e-5,
    seeds: Annotated[int, typer.Option(help="Number of seeds of every result.")] = 10,
    settings: Annotated[
        Path,
        typer.Option(
            help="File of hyper-parameters, such as `bdpvi tune` writes; by default bdpvi's own.",
            show_default=False,
        ),
    ] = hyperparameters.FILE,
    quiet: Quiet = False,
) -> None:
    """Compare methods at equal ε: accuracy, likelihood, calibration, and what each ε means.

    Finished results are kept, so the same command goes on after an interruption.

    Example: bdpvi compare --data abalone --out abalone-comparison
    """
    chosen = hyperparameters.load(_name(data), settings)
    plan = comparison.Plan(
        methods=[_method(chosen, name) for name in _words(methods)],
        epsilons=_numbers("epsilons", epsilons),
        delta=delta,
        seeds=seeds,
        at=chosen.at,
    )
    with resumable(out / "cells"):
        comparison.compare(
            _split(data, target, positive, test_fraction, drop),
            plan,
            out,
            chosen={"data": chosen.data, **chosen.how},
            track=progress.silent if quiet else progress.bar,
        )
    summary = pd.read_csv(out / "summary.csv")
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    console.print(f"ε is that of each row's guarantee, at δ = {delta:g}")
    console.print("Accuracy, mean ± standard error over seeds")
    console.print(report.overview(summary, "accuracy"))
    console.print("Behind the best at the same ε ± standard error over test records")
    console.print(report.overview(summary, "behind"))
    print(f"Wrote {out}/report.html, results.csv, summary.csv, curve.png and curve.svg")


def tune(
    data: Data,
    out: Annotated[
        Path, typer.Option(help="Hyper-parameter file that gets an entry for this data set.")
    ],
    target: Target = "",
    positive: Positive = "",
    drop: Drop = None,
    test_fraction: TestFraction = 0.2,
    methods: Methods = SEARCHED,
    configurations: Annotated[int, typer.Option(help="Tried for every method at random.")] = 24,
    refinements: Annotated[
        int, typer.Option(help="Tried for every method after that, steps from the best so far.")
    ] = 12,
    epsilons: Annotated[
        str, typer.Option(help="Comma-separated ε at which they are scored.")
    ] = EPSILONS,
    delta: Delta = 1e-5,
    folds: Annotated[int, typer.Option(help="Folds of cross-validation.")] = 5,
    repeats: Annotated[
        int, typer.Option(help="Cross-validations, with folds of their own, of the finalists.")
    ] = 1,
    finalists: Annotated[
        int, typer.Option(help="Number of the best at each ε that all repeats score.")
    ] = 4,
    seeds: Annotated[int, typer.Option(help="Number of seeds of every fold.")] = 4,
    quiet: Quiet = False,
) -> None:
    """Search the hyper-parameters of every method with equal effort, on training rows alone.

    Finished trials are kept: the same command goes on after an interruption, and one with more
    refinements, repeats or finalists from what is there.

    Example: bdpvi tune --data abalone --out hyperparameters.json
    """
    search = tuning.Search(
        configurations=configurations,
        refinements=refinements,
        epsilons=tuple(_numbers("epsilons", epsilons)),
        folds=folds,
        repeats=repeats,
        finalists=finalists,
        seeds=seeds,
        delta=delta,
    )
    with resumable(tuning.trials_folder(out)):
        found = tuning.tune(
            _split(data, target, positive, test_fraction, drop).train,
            hyperparameters.load(_name(data), out if out.exists() else hyperparameters.FILE),
            _words(methods),
            search,
            out,
            track=progress.silent if quiet else progress.bar,
        )
    for name, result in found["chosen"]["result"].items():
        print(f"{name}: accuracy {result['score']:.4f} in cross-validation")
    print(f"Wrote {out}")


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Say in one line what an interrupted command has kept in its folder."""
    try:
        yield
    except KeyboardInterrupt:
        files = (one for one in folder.rglob("*") if one.is_file())
        if any(not one.name.startswith(".") for one in files):
            said = f"what is finished is kept in {folder}/ (secret); the same command goes on there"
        else:
            said = "nothing was finished, nothing is kept"
        print(f"bdpvi: interrupted: {said}", file=sys.stderr)
        raise


def _split(
    data: str, target: str, positive: str, test_fraction: float, drop: list[str] | None
) -> Split:
    if data in datasets.LOADERS:
        return datasets.LOADERS[data]()
    if not target:
        raise ValueError(f"target is needed for data={data!r}: the name of the yes/no column")
    return datasets.from_csv(
        data, target, positive=positive or None, drop=drop or (), test_fraction=test_fraction
    )


def _name(data: str) -> str:
    return data if data in datasets.LOADERS else Path(data).stem


def _method(chosen: hyperparameters.Chosen, name: str) -> Method:
    if name not in chosen.methods:
        raise ValueError(f"methods must be among {list(chosen.methods)}, got {name!r}")
    return chosen.methods[name]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(word) for word in _words(text)]
    except ValueError:
        raise ValueError(f"{name} must be numbers with commas between, got {text!r}") from None

"""The commands ``bdpvi demo``, ``bdpvi compare`` and ``bdpvi tune``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdpvi._ground import outputs, store, validate
from bdpvi.commands import options
from bdpvi.commands.options import Delta, Device, Json, Quiet, SplitTable, of_fields

if TYPE_CHECKING:
    from bdpvi.bench.methods import Method

METHODS = (
    "logistic-regression", "non-private", "posterior-draws", "bdp-vi-full-rank",
    "bdp-vi-mean-field", "dpvi-ma", "dpvi-pld", "dp-sgld", "dp-sgld-pld", "dp-gd",
    "objective-perturbation",
)  # fmt: skip
TUNED = tuple(name for name in METHODS if not name.startswith(("posterior", "bdp-vi")))
ALL, SEARCHED = ",".join(METHODS), ",".join(TUNED)
WRITTEN = ("report.html", "results.csv", "summary.csv", "ratios.csv", "curve.png")
DEMONSTRATED = ("fair", "adult", "abalone", "breast-cancer")
EPSILONS = "0.01,0.02,0.05,0.1,0.2,0.5,1"

Methods = Annotated[str, typer.Option(help=f"Comma-separated, of {', '.join(METHODS)}.")]
Settings = Annotated[
    Path | None,
    typer.Option(
        help="File of hyper-parameters, such as `bdpvi tune` writes; by default no search."
    ),
]

COLUMNS = (
    "Mean ± standard error over runs, and the standard deviation (sd) of one; log score is the "
    "mean log-likelihood of a record in nats, higher is better; behind the best of its guarantee, "
    "with a 95 % interval over test records and runs"
)
_EXTRA = ("jinja2", "matplotlib")
_WIDE = 1_000
"""Characters per line: tables written to a file or another program are not wrapped."""


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the figure and the table; an unfinished run continues.")
    ] = Path("demo"),
    data: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(DEMONSTRATED)}; by default fair, where statsmodels is there."
        ),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fit a Pyro guide, release draws with a certified Bayesian ε, and compare: in a minute.

    The data are a survey of 6,366 women: has she had an affair? One draw from the posterior and
    nine more are released, and set beside the library's default worst-case release, DPVI and
    DP-SGLD.

    Example: bdpvi demo --data breast-cancer --out demo-breast-cancer
    """
    from rich.console import Console

    from bdpvi._ground.host import device_of
    from bdpvi.bench import demonstration

    if data is not None:
        validate.choice("data", data, DEMONSTRATED)
    with options.resumable(out / "cells"):
        split, note = demonstration.load(data)
        split = split.trained_on(device_of(device))
        if note:
            outputs.complain(note)
        result = demonstration.run(out, split, progress=not quiet)
    if as_json:
        outputs.say(store.json_text(result.to_dict()))
    else:
        result.print(Console())


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """What is compared, and how often each result is measured."""

    methods: Methods = ALL
    epsilons: Annotated[
        str, typer.Option(help="Comma-separated ε that every private method is calibrated to.")
    ] = EPSILONS
    delta: Delta = 1e-5
    seeds: Annotated[int, typer.Option(help="Number of trainings behind every result.")] = 10
    draws: Annotated[
        int, typer.Option(help="Number of draws behind every result of a release from one fit.")
    ] = 1_000


@of_fields
def compare(
    table: SplitTable,
    out: Annotated[
        Path,
        typer.Option(help="Folder for tables, figures and report; an unfinished run continues."),
    ],
    asked: ComparisonOptions,
    settings: Settings = None,
    searched: Annotated[
        bool,
        typer.Option(
            "--searched", help="Use the settings that bdpvi's own searches found for the table."
        ),
    ] = False,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare methods at equal ε: log score, accuracy, AUC, calibration, and what each ε means.

    The base rate, which looks at no feature, is in every table.
    Finished results are kept, so the same command goes on after an interruption.

    Example: bdpvi compare --data abalone --out abalone-comparison
    """
    _need_extra()
    from bdpvi._ground import progress
    from bdpvi._ground.host import device_of
    from bdpvi.bench import comparison, hyperparameters
    from bdpvi.bench.hyperparameters import DEFAULT

    there = device_of(device)
    named = table.name if searched or settings is not None else DEFAULT
    chosen = hyperparameters.load(named, settings or hyperparameters.FILE)
    methods = _methods(chosen.methods, asked.methods)
    given = {"methods": methods, "epsilons": _numbers("epsilons", asked.epsilons), "at": chosen.at}
    plan = comparison.ComparisonPlan(**vars(asked) | given)
    with options.resumable(out / "cells"):
        comparison.compare(
            table.split(options.PUBLIC_SEED).trained_on(there),
            plan,
            out,
            chosen={"data": chosen.data, **chosen.how},
            track=progress.silent if quiet else progress.bar,
        )
    _print_results(out, asked.delta, as_json)


def _print_results(out: Path, delta: float, as_json: bool) -> None:
    """Print what a comparison wrote to its folder."""
    import pandas as pd
    from rich.console import Console

    from bdpvi.bench import headline, report

    summary, ratios = (pd.read_csv(out / f"{name}.csv") for name in ("summary", "ratios"))
    files, lines = [out / name for name in WRITTEN], headline.headline(summary, ratios)
    if as_json:
        rows = summary.astype(object).where(summary.notna(), None).to_dict("records")
        said = {"out": out, "headline": lines, "summary": rows, "files": files}
        outputs.say(store.json_text(said))
        return
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    console.print(f"ε is for the guarantee of each row, at δ = {delta:g}", COLUMNS, sep="\n")
    console.print(report.EXPERIMENT)
    for heading, shown in report.console_tables(summary).items():
        console.print(heading, shown, sep="\n")
    for line in lines:
        console.print(f"- {line}")
    outputs.say("Wrote " + ", ".join(map(str, files)))


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The effort of a search."""

    configurations: Annotated[int, typer.Option(help="Random configurations of every method.")] = 24
    refinements: Annotated[
        int,
        typer.Option(help="Further configurations of every method, steps from the best so far."),
    ] = 12
    epsilons: Annotated[str, typer.Option(help="Comma-separated ε at which they are scored.")] = (
        EPSILONS
    )
    objective: Annotated[
        str, typer.Option(help="Criterion for settings: log-score, accuracy or auc.")
    ] = "log-score"
    delta: Delta = 1e-5
    folds: Annotated[int, typer.Option(help="Folds of cross-validation.")] = 5
    repeats: Annotated[
        int, typer.Option(help="Cross-validations, with folds of their own, of the finalists.")
    ] = 1
    finalists: Annotated[
        int, typer.Option(help="Number of finalists at each ε, scored by all repeats.")
    ] = 4
    seeds: Annotated[int, typer.Option(help="Number of seeds of every fold.")] = 4


@of_fields
def tune(
    table: SplitTable,
    out: Annotated[
        Path, typer.Option(help="Hyper-parameter file that gets an entry for this data set.")
    ],
    asked: SearchOptions,
    methods: Methods = SEARCHED,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Search the hyper-parameters of every method with equal effort, on training rows alone.

    Finished trials are kept: the same command goes on after an interruption, and one with other
    methods, or with more refinements, repeats or finalists, from what is there.

    Example: bdpvi tune --data abalone --out hyperparameters.json
    """
    _need_extra()
    from bdpvi._ground import progress
    from bdpvi.bench import hyperparameters, report, tuning

    epsilons = tuple(_numbers("epsilons", asked.epsilons))
    search = tuning.Search(**vars(asked) | {"epsilons": epsilons})
    with options.resumable(tuning.trials_folder(out)):
        found = tuning.tune(
            table.split(options.PUBLIC_SEED).train,
            hyperparameters.load(table.name, out if out.exists() else hyperparameters.FILE),
            _words(methods),
            search,
            out,
            track=progress.silent if quiet else progress.bar,
        )
        if as_json:
            outputs.say(store.json_text({"out": out, "result": found["chosen"]["result"]}))
            return
        for name, result in found["chosen"]["result"].items():
            score = f"{result['score']:.4f} in cross-validation"
            outputs.say(f"{name}: {search.measure.label} {score}")
        outputs.say(report.EXPERIMENT, f"Wrote {out}")


def _methods(chosen: Mapping[str, Method], text: str) -> list[Method]:
    return [chosen[validate.choice("methods", name, chosen)] for name in _words(text)]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(word) for word in _words(text)]
    except ValueError:
        raise ValueError(f"{name} must be numbers with commas between, got {text!r}") from None


def _need_extra() -> None:
    """Raise ValueError if the additional packages for comparing and tuning are missing."""
    if missing := [name for name in _EXTRA if find_spec(name) is None]:
        raise ValueError(f"{' and '.join(missing)} missing: pip install 'bdpvi[bench]'")

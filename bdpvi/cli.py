"""The command line: thin, over the same functions that scripts use."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import pandas as pd
import torch
import typer
from rich.console import Console

import bdpvi
from bdpvi import cli_comparison, cli_ledger, datasets, guides
from bdpvi import demo as demonstration
from bdpvi._runtime import checkpoint, progress, store
from bdpvi._runtime.workers import Alone, Reduction
from bdpvi.accounting.bayesian import CONVERSIONS
from bdpvi.datasets import Encoding
from bdpvi.neighbours.route import Neighbours
from bdpvi.neighbours.sharding import Sharded, ShardedRecords
from bdpvi.releasing import storage
from bdpvi.releasing.guarantees import BayesianDP, Guarantee, WorstCaseDP
from bdpvi.studies.catalogue import STUDIES

app = typer.Typer(
    help="Private variational inference with Bayesian differential privacy accounting.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
GUIDES = {"full-rank": guides.FullRank, "mean-field": guides.MeanField}

Route = Callable[[Path, bdpvi.Remove, Reduction], Neighbours]
ROUTES: dict[str, tuple[float, Route]] = {
    "coupled": (
        0.1,
        lambda kept, kind, workers: Sharded(
            partial(bdpvi.Coupled, checkpoint=kept), kind, workers=workers
        ),
    ),
    "optimum": (
        1.0,
        lambda _, kind, workers: ShardedRecords(bdpvi.Optimum, kind, workers=workers),
    ),
}
"""How neighbours are found: the usual rate, and the route, with a folder for finished parts."""

GUARANTEES: dict[str, Callable[[], Guarantee]] = {"worst-case": WorstCaseDP, "bayesian": BayesianDP}

LIST_OF_STUDIES = "\n\n".join(f"{name}: {one.help}" for name, one in STUDIES.items())

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
Seed = Annotated[int, typer.Option(help="Seed of batches and base noise.")]
Delta = Annotated[float, typer.Option(help="δ of the guarantee.")]
Folder = Annotated[Path, typer.Argument(help="Folder that `bdpvi fit` wrote. It is secret.")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the table.")] = Path("demo"),
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run the main job on data that comes along: fit, release, account, predict, draw a figure.

    Fits the breast cancer table (455 training records), releases one and ten posterior samples at
    a range of temperatures, and sets their test accuracy beside their Bayesian-DP ε.
    """
    result = demonstration.run(out, seed=seed, progress=not quiet)
    if as_json:
        _print_json(result.to_dict())
    else:
        result.print(Console())


@app.command()
def fit(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Option(help=f"A CSV file, or one of {', '.join(datasets.LOADERS)}."),
    ],
    out: Annotated[Path, typer.Option(help="New folder for the fit. Keep it secret.")],
    target: Annotated[str, typer.Option(help="Yes/no column of a CSV file.")] = "",
    positive: Annotated[str, typer.Option(help="Value of the target that counts as 1.")] = "",
    drop: cli_comparison.Drop = None,
    test_fraction: Annotated[
        float, typer.Option(help="Share of a CSV file's rows that is kept out of training.")
    ] = 0.2,
    guide: Annotated[str, typer.Option(help=f"One of {', '.join(GUIDES)}.")] = "full-rank",
    clip: Annotated[
        float, typer.Option(help="Norm bound C of a record's score; smaller is more private.")
    ] = 0.5,
    prior_scale: Annotated[float, typer.Option(help="Standard deviation of the prior.")] = 1.0,
    intercept: Annotated[bool, typer.Option(help="Add a constant feature.")] = False,
    limit: Annotated[
        float | None,
        typer.Option(help="Cut features off at ± this public bound.", show_default=False),
    ] = None,
    correlation: Annotated[
        float, typer.Option(help="Correlation that features of a group are taken to have; public.")
    ] = 0.0,
    group: Annotated[
        list[str] | None,
        typer.Option(
            help="Features of one group, by name with commas between; once for every group. "
            "Without it all features are one group.",
            show_default=False,
        ),
    ] = None,
    noise_scale: Annotated[
        float | None,
        typer.Option(
            help="Release samples with this standard deviation, which is public, in the place of "
            "the guide's covariance.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 1000,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Poisson sampling rate of the batches; 0.1 if not given, for the optimum 1.",
            show_default=False,
        ),
    ] = None,
    neighbours: Annotated[
        str,
        typer.Option(
            help="How the left-out records are accounted for: coupled, each trained beside the fit "
            "by minibatches; optimum, the exact maximiser of the ELBO, with proven errors."
        ),
    ] = "coupled",
    records: Annotated[
        int, typer.Option(help="Records left out in turn for the accounting; 0 is all.")
    ] = 0,
    budget: Annotated[
        float | None,
        typer.Option(
            help="Bayesian-DP ε that all releases together may reach; kept with the fit.",
            show_default=False,
        ),
    ] = None,
    budget_delta: Annotated[float, typer.Option(help="δ of that budget.")] = 1e-5,
    seed: Seed = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fit a Bayesian logistic regression and the neighbours that account for releases from it.

    A coupled run keeps what it has finished in the folder OUT.unfinished, which is as secret as the
    fit: after an interruption the same command goes on from there. One process at a time may.

    Example: bdpvi fit --data patients.csv --target sick --positive yes --out fit
    """
    if guide not in GUIDES:
        raise ValueError(f"guide must be one of {list(GUIDES)}, got {guide!r}")
    if neighbours not in ROUTES:
        raise ValueError(f"neighbours must be one of {list(ROUTES)}, got {neighbours!r}")
    allowed = None if budget is None else bdpvi.Budget(budget, budget_delta)
    if data in datasets.LOADERS:
        split = datasets.LOADERS[data]()
    elif not target:
        raise ValueError(f"target is needed for data={data!r}: the name of the yes/no column")
    else:
        split = datasets.from_csv(
            data, target, positive=positive or None, drop=drop or (), test_fraction=test_fraction
        )
    unfinished = out.with_name(f"{out.name}.unfinished")
    _check_new(out, unfinished)
    model = bdpvi.BayesianLogisticRegression(
        prior_scale=prior_scale,
        intercept=intercept,
        clip=clip,
        limit=limit,
        correlation=correlation,
        groups=_columns(group, split.train.feature_names) if group else None,
    )
    workers: Reduction = context.obj
    first = workers.rank == 0
    usual_rate, route = ROUTES[neighbours]
    kept = unfinished / f"workers-{workers.size}"
    with (
        cli_comparison.resumable(unfinished) if first else nullcontext(),
        store.held(unfinished) if first else nullcontext(),
    ):
        if first:
            _check_new(out, unfinished)  # whoever held the folder may have finished
            store.check_writable(out.parent)
        fitted = bdpvi.fit(
            model,
            GUIDES[guide](model, noise_scale=noise_scale),
            split.train,
            steps=steps,
            rate=usual_rate if rate is None else rate,
            seed=seed,
            neighbours=route(kept, bdpvi.Remove(records or None), workers),
            budget=allowed,
            device=device,
            progress=first and not quiet,
        )
        if first:
            made = {"model": asdict(model), "guide": guide, "noise_scale": noise_scale}
            storage.save_fit(fitted, out, extra=made)
        workers.sum(torch.zeros(1))  # nobody forgets a part before the fit is on the disk
        checkpoint.forget(unfinished)
    if not first:
        return
    if as_json:
        _print_json({"out": str(out), "records": len(split.train), "held_out": len(split.test)})
    else:
        print(f"{len(split.train)} records of {fitted.data_name}: {fitted.convergence}")
        print(f"Wrote {out}/ (secret: it holds the posterior and what each record did to it)")


@app.command()
def release(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="New JSON file that may be shared.")],
    draws: Annotated[int, typer.Option(help="Number of posterior samples.")] = 1,
    temperature: Annotated[
        float,
        typer.Option(
            help="Temperature of the posterior, chosen without looking at the data; 0 means: find "
            "it from --epsilon."
        ),
    ] = 0.0,
    epsilon: Annotated[
        float, typer.Option(help="ε that all releases together may reach; 0: no limit.")
    ] = 0.0,
    delta: Delta = 1e-5,
    guarantee: Annotated[
        str,
        typer.Option(
            help=f"What ε is about: {', '.join(GUARANTEES)}. Without it worst-case where the fit "
            "can give it: at the optimum of a clipped model, with a noise scale.",
            show_default=False,
        ),
    ] = "",
    large_delta: Annotated[
        bool,
        typer.Option(
            "--large-delta", help="Take a δ of 1/N or more for a Bayesian guarantee, knowingly."
        ),
    ] = False,
    conversion: Annotated[
        str, typer.Option(help=f"How a Bayesian ε follows from the cost: {', '.join(CONVERSIONS)}.")
    ] = CONVERSIONS[0],
    as_json: Json = False,
) -> None:
    """Release posterior samples from a fit, charged before they are drawn.

    Give --epsilon to release at the smallest temperature that keeps within it, --temperature to
    choose that yourself, or both to be refused beyond ε. From a clipped fit at the optimum with a
    noise scale, ε is a worst-case one and the temperature follows from public constants; there
    --conversion hockey-stick gives a Bayesian ε beside it that is reliable.

    The file holds what may be shared. What the command prints is for the owner: it is computed
    from the records.
    """
    if temperature == 0 and epsilon == 0:
        raise ValueError("temperature or epsilon must be given")
    if guarantee and guarantee not in GUARANTEES:
        raise ValueError(f"guarantee must be one of {list(GUARANTEES)}, got {guarantee!r}")
    accountant = partial(bdpvi.BayesianAccountant, conversion=conversion)
    accountant()  # refuses an unknown conversion before anything is read
    fitted = _load(folder)
    both = temperature and epsilon
    store.make_folder(out.parent)
    with store.claimed(out) as temporary:
        released = bdpvi.release(
            fitted,
            draws,
            temperature=temperature or None,
            epsilon=None if both else epsilon or None,
            guarantee=GUARANTEES[guarantee]() if guarantee else None,
            delta=delta,
            budget=bdpvi.Budget(epsilon, delta) if both else None,
            accountant=accountant,
            large_delta=large_delta,
        )
        storage.write_release(released, temporary)
    if as_json:
        public = {"out": str(out), "receipt": asdict(released.receipt)}
        _print_json({**public, "spent": asdict(released.spent)})
        return
    print(f"{draws} draws at temperature {released.receipt.temperature:.4g}")
    print(f"Public: {released.receipt}")
    print(f"For the owner only: {released.spent}")
    print(released.spent.exposure)
    if fitted.ledger.budget is None:
        print("No budget is stored with this fit: nothing limits further releases")
    print(f"Wrote {out}")


@app.command()
def spent(folder: Folder, delta: Delta = 1e-5, as_json: Json = False) -> None:
    """Say what all releases from a fit have cost. For the owner only."""
    total = bdpvi.spent(_load(folder), delta=delta)
    if as_json:
        _print_json(asdict(total))
    else:
        print(total)
        if total.exposure is not None:
            print(total.exposure)


@app.command()
def predict(
    released: Annotated[Path, typer.Argument(help="File that `bdpvi release` wrote.")],
    data: Annotated[Path, typer.Option(help="CSV file with the raw columns of the training data.")],
    out: Annotated[
        Path | None, typer.Option(help="CSV file for the predictions; default standard output.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict the probability of the positive class for the rows of a CSV file."""
    if out is not None and not as_json:
        with store.claimed(out) as temporary:
            _, table = _predicted(released, data)
            table.to_csv(temporary, index=False)
        print(f"Wrote {len(table)} predictions to {out}")
        return
    loaded, table = _predicted(released, data)
    if as_json:
        receipt = asdict(loaded.receipt)
        _print_json({"probability": table["probability"].tolist(), "receipt": receipt})
    else:
        table.to_csv(sys.stdout, index=False)


def _predicted(released: Path, data: Path) -> tuple[bdpvi.Release, pd.DataFrame]:
    loaded = storage.load_release(released)
    constants = loaded.preprocessing.get("encoding")
    if not isinstance(constants, dict):
        raise ValueError(
            f"{released} does not say how a table becomes features; it was not fitted by bdpvi fit"
        )
    encoding = Encoding.from_dict(constants)
    probabilities = loaded.predict_proba(encoding.apply(datasets.read_table(data)))[:, 1]
    return loaded, pd.DataFrame({"probability": probabilities.numpy()})


@app.command(
    help="Run a study and write its numbers (CSV), figures and findings.\n\n" + LIST_OF_STUDIES
)
def study(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(STUDIES)}.")],
    out: Annotated[Path, typer.Option(help="Folder for what it writes.")] = Path("studies"),
    scale: Annotated[float, typer.Option(help="Share of the full size, in (0, 1].")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run one of the studies."""
    if name not in STUDIES:
        raise ValueError(f"name must be one of {list(STUDIES)}, got {name!r}")
    store.check_writable(out)
    finding = STUDIES[name].run(
        out, seed=seed, track=progress.silent if quiet else progress.bar, scale=scale
    )
    if as_json:
        _print_json({"text": finding.text, "files": [str(path) for path in finding.files]})
    else:
        print(finding.text)
        print("Wrote " + ", ".join(str(path) for path in finding.files))


app.command()(cli_comparison.compare)
app.command()(cli_comparison.tune)
app.add_typer(cli_ledger.app, name="ledger")


def main(program: typer.Typer = app, workers: Reduction | None = None) -> NoReturn:
    """Run the command line; bad input ends in one line on standard error and exit code 2.

    An interruption or SIGTERM ends in exit code 130. A worker is ended by SIGTERM at once: it may
    be waiting for another one that has died.
    """
    try:
        with _stoppable() if workers is None else nullcontext():
            program(standalone_mode=True, obj=workers or Alone())
    except (ValueError, OSError, FloatingPointError, bdpvi.BudgetExceededError) as error:
        print(f"bdpvi: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(0)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Take SIGTERM for an interruption, where this thread can have a say in that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_new(out: Path, unfinished: Path) -> None:
    """Raise ValueError if something is at ``out`` already, a dangling link included."""
    if os.path.lexists(out):
        left = f"; {unfinished}/ is left of another run, secret too" if unfinished.exists() else ""
        raise ValueError(f"out={str(out)!r} exists already; a fit is never overwritten{left}")


def _columns(groups: Sequence[str], names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the column numbers of groups that are given by name."""
    wanted = [[name.strip() for name in group.split(",")] for group in groups]
    for name in (name for group in wanted for name in group):
        if name not in names:
            raise ValueError(f"group must name features among {list(names)}, got {name!r}")
    return tuple(tuple(names.index(name) for name in group) for group in wanted)


def _load(folder: Path) -> bdpvi.Fit:
    extra = storage.read_extra(folder)
    try:
        model = bdpvi.BayesianLogisticRegression(**extra["model"])
        guide = GUIDES[extra["guide"]](model, noise_scale=extra.get("noise_scale"))
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{folder} does not hold a fit by `bdpvi fit`: {error!r}") from error
    return storage.load_fit(folder, model, guide)


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False))

"""``bdpvi fit``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdpvi import _validate
from bdpvi.commands import options
from bdpvi.commands.options import Data, Drop, Json, Positive, Quiet, Seed, Target, TestFraction

if TYPE_CHECKING:
    from bdpvi import Fit
    from bdpvi._runtime.workers import Reduction
    from bdpvi.neighbours.route import Neighbours

GUIDES = {"full-rank": "FullRank", "mean-field": "MeanField"}
RATES = {"coupled": 0.1, "optimum": 1.0}
"""How neighbours are found, and the usual sampling rate there."""

Guide = Annotated[str, typer.Option(help=f"One of {', '.join(GUIDES)}.")]
Clip = Annotated[
    float, typer.Option(help="Norm bound C of a record's score; smaller is more private.")
]
Group = Annotated[
    list[str] | None,
    typer.Option(
        help="Features of one group, by name with commas between; once for every group. Without it "
        "all features are one group.",
        show_default=False,
    ),
]
Limit = Annotated[
    float | None,
    typer.Option(help="Cut features off at ± this public bound.", show_default=False),
]
Correlation = Annotated[
    float, typer.Option(help="Correlation that features of a group are taken to have; public.")
]
NoiseScale = Annotated[
    float | None,
    typer.Option(
        help="Release samples with this standard deviation, which is public, instead of the "
        "guide's covariance.",
        show_default=False,
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        help="Poisson sampling rate of the batches; 0.1 if not given, for the optimum 1.",
        show_default=False,
    ),
]
Route = Annotated[
    str,
    typer.Option(
        help="How the left-out records are accounted for: coupled, each trained beside the fit by "
        "minibatches; optimum, the exact maximiser of the ELBO, with proven errors."
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(
        help="ε that all releases together may reach; kept with the fit.", show_default=False
    ),
]


def fit(
    context: typer.Context,
    data: Data,
    out: Annotated[Path, typer.Option(help="New folder for the fit. Keep it secret.")],
    target: Target = "",
    positive: Positive = "",
    drop: Drop = None,
    test_fraction: TestFraction = 0.2,
    guide: Guide = "full-rank",
    clip: Clip = 0.5,
    prior_scale: Annotated[float, typer.Option(help="Standard deviation of the prior.")] = 1.0,
    intercept: Annotated[bool, typer.Option(help="Add a constant feature.")] = False,
    limit: Limit = None,
    correlation: Correlation = 0.0,
    group: Group = None,
    noise_scale: NoiseScale = None,
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 1000,
    rate: Rate = None,
    neighbours: Route = "coupled",
    records: Annotated[
        int, typer.Option(help="Records left out in turn for the accounting; 0 is all.")
    ] = 0,
    budget: Budget = None,
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
    import bdpvi
    from bdpvi._runtime.workers import Alone

    _validate.choice("neighbours", neighbours, RATES)
    split = options.read_split(data, target, positive, test_fraction, drop)
    model = bdpvi.BayesianLogisticRegression(
        prior_scale=prior_scale,
        intercept=intercept,
        clip=clip,
        limit=limit,
        correlation=correlation,
        groups=_columns(group, split.train.feature_names) if group else None,
    )
    workers: Reduction = context.obj or Alone()
    run = partial(
        bdpvi.fit,
        model,
        guide_of(guide, model, noise_scale),
        split.train,
        steps=steps,
        rate=RATES[neighbours] if rate is None else rate,
        seed=seed,
        neighbours=_route(neighbours, out, records, workers),
        budget=None if budget is None else bdpvi.Budget(budget, budget_delta),
        device=device,
        progress=workers.rank == 0 and not quiet,
    )
    made = {"model": asdict(model), "guide": guide, "noise_scale": noise_scale}
    fitted = _kept(run, out, workers, made)
    if workers.rank == 0:
        _report(fitted, len(split.test), out, as_json)


def _report(fitted: Fit, held_out: int, out: Path, as_json: bool) -> None:
    if as_json:
        options.print_json({"out": out, "records": fitted.records, "held_out": held_out})
    else:
        print(f"{fitted.records} records of {fitted.data_name}: {fitted.convergence}")
        print(f"Wrote {out}/ (secret: it holds the posterior and what each record did to it)")


def guide_of(name: str, model: Any, noise_scale: float | None) -> Any:
    """Return a guide by its name on the command line."""
    from bdpvi import guides

    kind = getattr(guides, GUIDES[_validate.choice("guide", name, GUIDES)])
    return kind(model, noise_scale=noise_scale)


def _route(name: str, out: Path, records: int, workers: Reduction) -> Neighbours:
    import bdpvi
    from bdpvi.neighbours.sharding import Sharded, ShardedRecords

    kind = bdpvi.Remove(records or None)
    if name == "optimum":
        return ShardedRecords(bdpvi.Optimum, kind, workers=workers)
    kept = _unfinished(out) / f"workers-{workers.size}"
    return Sharded(partial(bdpvi.Coupled, checkpoint=kept), kind, workers=workers)


def _kept(run: Any, out: Path, workers: Reduction, made: dict[str, Any]) -> Any:
    """Fit and save, in a folder that one process at a time may work in."""
    import torch

    from bdpvi._runtime import checkpoint, store
    from bdpvi.releasing import storage

    first, unfinished = workers.rank == 0, _unfinished(out)
    with (
        options.resumable(unfinished, out) if first else nullcontext(),
        store.held(unfinished) if first else nullcontext(),
    ):
        if first:
            _check_new(out)  # whoever held the folder may have finished
            store.check_writable(out.parent)
        fitted = run()
        if first:
            storage.save_fit(fitted, out, extra=made)
        workers.sum(torch.zeros(1))  # nobody forgets a part before the fit is on the disk
        checkpoint.forget(unfinished)
    return fitted


def _unfinished(out: Path) -> Path:
    return out.with_name(f"{out.name}.unfinished")


def _check_new(out: Path) -> None:
    """Raise ValueError if something is at ``out`` already, a dangling link included."""
    if os.path.lexists(out):
        unfinished = _unfinished(out)
        left = f"; {unfinished}/ is left of another run, secret too" if unfinished.exists() else ""
        raise ValueError(f"out={str(out)!r} exists already; a fit is never overwritten{left}")


def _columns(groups: Sequence[str], names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the column numbers of groups that are given by name."""
    wanted = [[name.strip() for name in group.split(",")] for group in groups]
    for name in (name for group in wanted for name in group):
        if name not in names:
            raise ValueError(f"group must name features among {list(names)}, got {name!r}")
    return tuple(tuple(names.index(name) for name in group) for group in wanted)

"""``bdpvi fit``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdpvi._ground import outputs, store, validate
from bdpvi._ground.outputs import several
from bdpvi.commands import options
from bdpvi.commands.engine import engine
from bdpvi.commands.options import (
    Device,
    Json,
    LedgerFile,
    OtherPeople,
    Quiet,
    RowsPerUnit,
    Seed,
    Settings,
    SplitTable,
    Unit,
    reads_table,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from bdpvi import Fit
    from bdpvi.bayesian.neighbours.route import Neighbours

GUIDES = ("full-rank", "mean-field")
RATES = {"coupled": 0.1, "optimum": 1.0}
"""Methods for the neighbours, and their default sampling rates."""
STEPS = 1000

FROM_SETTINGS = "By default from the settings."

Epsilon = Annotated[
    float, typer.Option(help="Target ε of the releases; the settings follow from it.")
]
Records = Annotated[
    int | None,
    typer.Option(
        help="Number of records that the accounting leaves out one by one; all by default."
    ),
]
Guide = Annotated[
    str,
    typer.Option(help=f"One of {', '.join(GUIDES)}. {FROM_SETTINGS}"),
]
Clip = Annotated[
    float | None,
    typer.Option(
        help="Norm bound C of a record's score, public. Sensible: 0.05 to 1; smaller is more "
        f"private. {FROM_SETTINGS}"
    ),
]
WeightNorm = Annotated[
    float | None,
    typer.Option(
        help="Weigh records by their features so that every score has norm at most this public "
        "C, instead of clipping: estimates are then consistent. With d columns ½√(d + 4) is "
        "sensible. The prior's precision follows, 4C times the length of the longest "
        "record, unless --prior-scale says otherwise."
    ),
]
PriorScale = Annotated[
    float | None,
    typer.Option(
        help="Standard deviation of the prior, public. Sensible: 0.05 to 1; the noise that ε "
        f"costs grows with its square. {FROM_SETTINGS}"
    ),
]
Intercept = Annotated[bool | None, typer.Option(help=f"Add a constant feature. {FROM_SETTINGS}")]
Limit = Annotated[
    float | None,
    typer.Option(
        help="Clamp standardised features to ± this public bound. Sensible: 1 to 3. "
        f"{FROM_SETTINGS}"
    ),
]
NoLimit = Annotated[bool, typer.Option("--no-limit", help="Do not clamp features.")]
NoNoiseScale = Annotated[
    bool,
    typer.Option(
        "--no-noise-scale",
        help="Release with the guide's own covariance, which gives no worst-case guarantee.",
    ),
]
Correlation = Annotated[
    float | None,
    typer.Option(help=f"Assumed correlation of features within a group; public. {FROM_SETTINGS}"),
]
Group = Annotated[
    list[str] | None,
    typer.Option(
        help="Features of one group, comma-separated; once for every group. By default all "
        "features are one group."
    ),
]
NoiseScale = Annotated[
    float | None,
    typer.Option(
        help="Release samples with this public standard deviation instead of the guide's "
        f"covariance. Any value works if the temperature is calibrated to ε. {FROM_SETTINGS}"
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(help="Steps of SVI; 1000 if not given."),
]
Rate = Annotated[
    float | None,
    typer.Option(help="Poisson sampling rate of SVI's batches; 0.1 if not given."),
]
Route = Annotated[
    str,
    typer.Option(
        help="How the leave-one-out fits are computed: optimum, the exact maximiser of the ELBO, "
        "with proven errors; coupled, by SVI alongside the fit. By default coupled if "
        "--steps or --rate is given, else optimum."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Processes that train the neighbours of the coupled method; by default this one does."
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(help="Limit on the total ε spent on the table; kept in its ledger."),
]


@reads_table
def fit(
    table: SplitTable,
    out: Annotated[Path, typer.Option(help="New folder for the fit. Keep it secret.")],
    settings: Settings = "",
    epsilon: Epsilon = 1.0,
    guide: Guide = "",
    clip: Clip = None,
    weight_norm: WeightNorm = None,
    prior_scale: PriorScale = None,
    intercept: Intercept = None,
    limit: Limit = None,
    no_limit: NoLimit = False,
    correlation: Correlation = None,
    group: Group = None,
    noise_scale: NoiseScale = None,
    no_noise_scale: NoNoiseScale = False,
    steps: Steps = None,
    rate: Rate = None,
    neighbours: Route = "",
    records: Records = None,
    budget: Budget = None,
    budget_delta: Annotated[float, typer.Option(help="δ of that budget.")] = 1e-5,
    ledger: LedgerFile = None,
    unit: Unit = "",
    rows_per_unit: RowsPerUnit = 1,
    other_people: OtherPeople = False,
    seed: Seed = None,
    device: Device = "auto",
    workers: Workers = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fit a Bayesian logistic regression and the neighbours that account for releases from it.

    A coupled run keeps what it has finished in the folder OUT.unfinished, which is as secret as the
    fit: after an interruption the same command goes on from there. One process at a time may.

    Example: bdpvi fit --data patients.csv --target sick --positive yes --out fit
    """
    import bdpvi
    from bdpvi._ground.schema import to_json
    from bdpvi.datasets.origin import DECLARED, declared
    from bdpvi.datasets.split import noted
    from bdpvi.noise.keys import Key
    from bdpvi.privacy.places import followed
    from bdpvi.releases.persons import OTHER_PEOPLE
    from bdpvi.tables.files import guide_named, unfinished

    usual = "optimum" if steps is None and rate is None else "coupled"
    route = validate.choice("neighbours", neighbours or usual, RATES)
    if workers is not None and route != "coupled":
        raise ValueError(f"workers={workers}: the {route} method needs none; leave it out")
    way = _route(route, out, records)
    key = way.key() if seed is None else seed
    whole = None if budget is None else bdpvi.Budget(budget, budget_delta)
    own = key.child("split") if isinstance(key, Key) else key
    split = table.split(own, unit, rows_per_unit)
    if other_people:
        said = {**split.train.preprocessing.get(DECLARED, {}), **declared(people=OTHER_PEOPLE)}
        split = noted(split, DECLARED, said)
    _check_new(out)
    for place in (out, unfinished(out)):
        if ledger and followed("ledger", ledger).is_relative_to(followed("out", place)):
            raise ValueError(
                f"ledger={str(ledger)!r} lies in {str(place)!r}, which this fit makes and clears; "
                "choose another place"
            )
    kept = None if whole is None else bdpvi.Ledger(budget=whole)
    if seed is None:  # an experiment releases nothing
        kept = table.ledger(ledger, whole, table.identity, other_people) or kept
    chosen = options.settings_of(settings, split.train.name, epsilon)
    given: dict[str, Any] = {
        "clip": clip, "weight_norm": weight_norm, "prior_scale": prior_scale,
        "intercept": intercept, "limit": limit, "correlation": correlation,
        "groups": _columns(group, split.train.feature_names) if group else None,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    given |= {"limit": None} if no_limit else {}
    if weight_norm is not None:
        given = {"clip": None, "prior_scale": None} | given
    scale = chosen.noise_scale if noise_scale is None else noise_scale
    chosen = replace(
        chosen,
        model=replace(chosen.model, **given),
        guide=guide_named(guide) if guide else chosen.guide,
        noise_scale=None if no_noise_scale else scale,
    )
    run = partial(
        bdpvi.fit,
        chosen.model,
        chosen.made_guide(),
        split.train,
        training=bdpvi.Training(
            steps=STEPS if steps is None else steps,
            rate=RATES[route] if rate is None else rate,
            seed=key,
            device=device,
        ),
        accounting=chosen.accounting,
        ledger=kept,
        progress=not quiet,
    )
    with engine(workers, "") as executor:
        way = _route(route, out, records, executor)
        fitted = _kept(partial(run, neighbours=way), out, to_json(chosen))
    _report(fitted, len(split.test), out, as_json)


def _report(fitted: Fit, held_out: int, out: Path, as_json: bool) -> None:
    if as_json:
        said = {"out": out, "records": fitted.records, "held_out": held_out}
        outputs.say(store.json_text(said))
    else:
        outputs.say(
            f"{several(fitted.records, 'record')} of {fitted.data_name}: {fitted.convergence}"
        )
        if fitted.ledger.path is not None and fitted.ledger.path.parent != out.resolve():
            where = fitted.ledger.path
            outputs.say(f"{where} records everything spent on this table; keep it secret too")
        outputs.say(f"Wrote {out}/ (secret: it holds the posterior and what each record did to it)")


def _route(
    name: str, out: Path, records: int | None, executor: Executor | None = None
) -> Neighbours:
    import bdpvi
    from bdpvi.tables.files import NEIGHBOURS, unfinished

    kind = bdpvi.bayesian.Remove(records)
    if name == "optimum":
        return bdpvi.Optimum(kind)
    return bdpvi.Coupled(kind, checkpoint=unfinished(out) / NEIGHBOURS, executor=executor)


def _kept(run: Any, out: Path, made: dict[str, Any]) -> Any:
    """Fit and save, in a folder for one process at a time."""
    from bdpvi.bayesian import storage
    from bdpvi.tables import files

    kept = files.unfinished(out)
    with options.resumable(kept, out), store.held(kept):
        _check_new(out)  # the folder's last process may have finished
        store.check_writable(out.parent)
        fitted = run()
        store.write(kept / files.SAVED, fitted.kept.name.encode())
        storage.save_fit(fitted, out, extra=made)
        files.forget(kept)
    return fitted


def _check_new(out: Path) -> None:
    """Raise ValueError if ``out`` exists, even as a broken link."""
    from bdpvi.tables import files

    if not store.nothing_at(out):
        files.sweep(out)
        kept = files.unfinished(out)
        left = f"; {kept}/ is left of another run, secret too" if kept.exists() else ""
        raise ValueError(f"out={str(out)!r} exists already; a fit is never overwritten{left}")


def _columns(groups: Sequence[str], names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the column numbers of groups given by name."""
    wanted = [[name.strip() for name in group.split(",")] for group in groups]
    for name in (name for group in wanted for name in group):
        if name not in names:
            raise ValueError(f"group must name features among {list(names)}, got {name!r}")
    return tuple(tuple(names.index(name) for name in group) for group in wanted)

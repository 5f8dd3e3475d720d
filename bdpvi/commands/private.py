"""``bdpvi private``: from a table to a model that may be shared, in one command."""

from __future__ import annotations

import time
import warnings
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdpvi._ground import outputs, store, validate
from bdpvi.commands import options
from bdpvi.commands.check import Yes, look_first
from bdpvi.commands.engine import Dask, Workers, engine
from bdpvi.commands.options import (
    BaseRate,
    BudgetOption,
    Delta,
    Device,
    Json,
    LedgerFile,
    Numeric,
    OneRowPerPerson,
    OtherPeople,
    Quiet,
    RowCount,
    RowsPerUnit,
    Secret,
    Settings,
    Unit,
    WholeTable,
    reads_table,
)
from bdpvi.commands.plan import show_plan
from bdpvi.commands.release import Draws, Guarantee, guarantee_of

if TYPE_CHECKING:
    from bdpvi import Release
    from bdpvi.models.kinds import OfClasses, OfNumbers
    from bdpvi.tables.private import Work
    from bdpvi.tables.row_scores import RowScores
    from bdpvi.tables.scores import Scores

CATEGORIES = ("counted", "hashed")
PURPOSES = ("prediction", "intervals")
OPTIONS = {
    "logistic": (),
    "linear": ("target_bounds",),
    "poisson": ("largest",),
    "negative-binomial": ("largest",),
    "multinomial": ("classes",),
    "ordinal": ("classes",),
}
"""Models, and the options that each needs."""


Epsilon = Annotated[
    float,
    typer.Option(
        help="ε of all outputs: private preprocessing and model. 0.1 is strong, 1 is usual, "
        "above 3 is weak."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for the model that may be shared.")]
Categories = Annotated[
    str,
    typer.Option(
        help="Encoding of categories without public levels: counted, one feature for each "
        "sufficiently frequent name; hashed, at no cost and without names. By default "
        "hashed if a name would need more than a tenth of the records, by their noisy "
        "number."
    ),
]
FromData = Annotated[
    bool,
    typer.Option(
        "--from-data",
        help="Consent to publish exact means, standard deviations and categories of this table, "
        "which ε does not cover.",
    ),
]
For = Annotated[
    str,
    typer.Option(
        "--for",
        help="Purpose of the model: prediction, or intervals, which are intervals of "
        "coefficients that account for sampling and privacy noise (see bdpvi summary).",
    ),
]
Model = Annotated[
    str,
    typer.Option(
        help="logistic, for a yes/no target; linear, for numbers, with --target-bounds; poisson "
        "or negative-binomial, for counts, with --largest; multinomial or ordinal, for "
        "several --classes. All but the first have intervals. Rows with an invalid target "
        "are left out."
    ),
]
TargetBounds = Annotated[
    tuple[float, float] | None,
    typer.Option(
        help="Public lower and upper bound of a linear model's target; values beyond are clamped."
    ),
]
Largest = Annotated[
    int | None,
    typer.Option(help="Public bound of counts; larger ones are clamped."),
]
Classes = Annotated[
    list[str] | None,
    typer.Option(
        help="A class, as a public value of the target; once for each class, in order for an "
        "ordinal model."
    ),
]
Exposure = Annotated[
    str,
    typer.Option(
        help="Column with the exposure of each row, such as years at risk, for a model of counts."
    ),
]
Plan = Annotated[
    bool,
    typer.Option(
        "--plan",
        help="Print how many records are needed, from header and options alone. Charges nothing.",
    ),
]
WithScores = Annotated[
    bool,
    typer.Option(
        help="Score simulated releases on held-out rows, or, of a table in blocks, the release on "
        "its rows; for the owner only."
    ),
]


@reads_table
def private(
    table: WholeTable,
    epsilon: Epsilon,
    out: Out,
    secret: Secret = None,
    numeric: Numeric = None,
    categories: Categories = "",
    from_data: FromData = False,
    ledger: LedgerFile = None,
    budget: BudgetOption = None,
    unit: Unit = "",
    rows_per_unit: RowsPerUnit = 1,
    one_row_per_person: OneRowPerPerson = False,
    other_people: OtherPeople = False,
    settings: Settings = "",
    base_rate: BaseRate = None,
    rows: RowCount = None,
    model: Model = "logistic",
    target_bounds: TargetBounds = None,
    largest: Largest = None,
    classes: Classes = None,
    exposure: Exposure = "",
    purpose: For = PURPOSES[0],
    guarantee: Guarantee = "",
    draws: Draws = None,
    delta: Delta = 1e-5,
    plan: Plan = False,
    scores: WithScores = True,
    workers: Workers = None,
    dask: Dask = "",
    device: Device = "auto",
    yes: Yes = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Turn a table into a private model, under a worst-case ε that covers all that is shared.

    Bounds and categories of columns that --constants does not name are estimated privately, for a
    fifth of μ². The model is a logistic regression by objective perturbation, which approaches the
    one without privacy as rows are added; or one of numbers, counts or several classes, with
    intervals. After an interruption the same command goes on and nothing is charged twice.

    Example: bdpvi private --data patients.csv --one-row-per-person --target sick --positive yes
    --epsilon 1 --out shared
    """
    from bdpvi._ground.types import Budget
    from bdpvi.privacy.book import Book, checked
    from bdpvi.releases.persons import check_said

    kind = guarantee_of(guarantee)
    if categories:
        validate.choice("categories", categories, CATEGORIES)
    validate.choice("for", purpose, PURPOSES)
    _check_options(table, from_data)
    given = _given(table, from_data) | {
        "epsilon": epsilon,
        "delta": delta,
        "draws": 1 if draws is None else draws,
        "base_rate": base_rate,
        "expected_rows": rows,
        "intervals": purpose == PURPOSES[1],
        "model": _model(model, target_bounds=target_bounds, largest=largest, classes=classes),
        "classes": tuple(classes or ()),
        "exposure": exposure,
        "guarantee": kind,
        "numeric": tuple(numeric or ()),
        "hashed": None if not categories else categories == CATEGORIES[1],
        "from_data": from_data,
        "other_people": other_people,
    }
    if settings:
        given["settings"] = options.settings_of(
            settings, table.name, epsilon, delta=delta, base_rate=base_rate
        )
    people = table.declared.people(unit, rows_per_unit, one_row_per_person)
    if plan:
        if unit or rows_per_unit != 1:
            check_said(table.data, **people)
        checked(None, people["unit"], people["rows_per_unit"])
        book = Book("", unit=people["unit"], rows=people["rows_per_unit"])
        show_plan(table, given, book, as_json)
    else:
        limit = None if budget is None else Budget(budget, delta)
        given |= people | {
            "out": out,
            "secret": secret,
            "ledger": ledger,
            "budget": table.declared.limit(limit),
            "known": table.declared,
        }
        blocks = table.in_blocks or workers is not None or dask
        if table.data not in options.TABLES and not blocks:
            _look_first(table, given, yes=yes, quiet=quiet or as_json)
        with engine(workers, dask) as executor:
            given |= {"executor": executor, "device": device}
            _carry_out(table, given, scores=scores, quiet=quiet, as_json=as_json)


def _look_first(table: WholeTable, given: dict[str, Any], *, yes: bool, quiet: bool) -> None:
    """Show the owner what is read otherwise than it seems meant, before anything is charged."""
    from bdpvi.releases.persons import check_said

    names = (
        "target", "drop", "categorical", "numeric", "constants", "types", "unit", "rows_per_unit",
        "one_row_per_person", "delta",
    )  # fmt: skip
    asked = {name: given[name] for name in names if name in given}
    asked["positive"] = None if given["model"] is not None else given["positive"]
    asked["epsilon"] = None if given["from_data"] else given["epsilon"]
    said = {name: given[name] for name in ("unit", "rows_per_unit", "one_row_per_person")}
    check_said(table.data, **said)  # refused by options alone
    look_first(Path(table.data), table.file, yes=yes, quiet=quiet, **asked)


def _carry_out(
    table: WholeTable,
    given: dict[str, Any],
    *,
    scores: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Carry out the command and print its result."""
    from bdpvi.releases.account import same_people
    from bdpvi.tables.private import Work, places

    public = table.data in options.TABLES
    work = Work.of(
        table.split(options.PUBLIC_SEED).train if public else table.data,
        file=table.file,
        progress=not quiet and not as_json,
        **given,
    )
    file, folder = places(given["out"], given["secret"])
    start = time.monotonic()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        released = _go_on(work, folder)
    took = time.monotonic() - start
    for one in said:
        outputs.complain(str(one.message))
    where = {"out": file, "secret": folder}
    if not as_json:
        _report(released, where)
        if not public:
            assert work.ledger.path is not None
            outputs.say(same_people(work.ledger.path))
    found = _scores(work, released, took) if scores else None
    if as_json:
        _print_json(released, where, found)
    elif found is not None:
        outputs.say(*f"For the owner only: {found}".split("\n"))


def _model(name: str, **given: Any) -> OfNumbers | OfClasses | None:
    """Return the regression that the options select, None for yes and no."""
    import bdpvi

    validate.choice("model", name, OPTIONS)
    for option, value in given.items():
        if bool(value) != (option in OPTIONS[name]):
            goes = "does not go with it" if value else "is needed, and must be public"
            raise ValueError(f"model={name!r}: --{option.replace('_', '-')} {goes}")
    if name == "linear":
        return bdpvi.BayesianLinearRegression.of_bounds(*given["target_bounds"])
    if name == "poisson":
        return bdpvi.BayesianPoissonRegression(largest=given["largest"])
    if name == "negative-binomial":
        return bdpvi.BayesianNegativeBinomialRegression(largest=given["largest"])
    if name == "multinomial":
        return bdpvi.BayesianMultinomialRegression(classes=len(given["classes"]))
    if name == "ordinal":
        return bdpvi.BayesianOrdinalRegression(classes=len(given["classes"]))
    return None


def _check_options(table: WholeTable, from_data: bool) -> None:
    """Refuse options that need exact preprocessing bounds."""
    usual = {option.name: option.default for option in fields(WholeTable)}
    for name in ("missing", "unknown", "encoding"):
        if getattr(table, name) != usual[name] and not from_data:
            raise ValueError(
                f"{name}={getattr(table, name)!r}: blanks and unknown categories become levels of "
                "their own; this option needs --from-data; leave it out"
            )


def _given(table: WholeTable, from_data: bool) -> dict[str, Any]:
    """Return the arguments from the table's options."""
    from bdpvi import datasets

    if table.data in options.TABLES:
        return {}
    if not table.target:
        raise ValueError(
            f"target is needed for data={table.data!r}: the name of the column to predict"
        )
    given: dict[str, Any] = {
        "target": table.target,
        "positive": table.positive,
        "drop": tuple(table.drop or ()),
        "categorical": tuple(table.categorical or ()),
    }
    if table.constants:
        given["constants"] = datasets.read_constants(table.constants)
    if table.declared.schema is not None:
        given["types"] = table.declared.schema
    if from_data:
        names = ("missing", "encoding") + (("unknown",) if table.unknown else ())
        given["measuring"] = {name: getattr(table, name) for name in names}
    return given


def _go_on(work: Work, folder: Path) -> Release:
    try:
        return work.written()
    except KeyboardInterrupt:
        kept = f"finished work is kept in {folder}/ (secret); the same command continues it"
        raise KeyboardInterrupt(f"{kept} without a second charge") from None


def _scores(work: Work, released: Release, took: float) -> Scores | RowScores | None:
    """Score a release that took ``took`` seconds; an interruption loses only the scores."""
    from bdpvi._ground import progress
    from bdpvi.noise.keys import Key
    from bdpvi.tables.row_scores import RowScores
    from bdpvi.tables.scores import patience, previewed

    try:
        if work.spread is not None:
            return RowScores.of(work, released)
        track = progress.bar if work.progress else progress.silent
        return previewed(work, released, Key.fresh(), track, seconds=patience(took))
    except KeyboardInterrupt:
        whole = "the release is complete; only the scores are missing"
        raise KeyboardInterrupt(f"{whole}: the same command makes them") from None


def _report(released: Release, where: dict[str, Path]) -> None:
    outputs.say(f"Public: {released.receipt}", f"  {released.receipt.meaning}")
    outputs.say(*str(released.summary(odds=True)).split("\n")[:-1])
    outputs.say(
        *f"For the owner only: {released.cost}".split("\n"),
        f"Wrote {where['out']}, which may be shared. Keep {where['secret']}/ secret",
    )


def _print_json(
    released: Release, where: dict[str, Path], found: Scores | RowScores | None
) -> None:
    public: dict[str, Any] = {"out": where["out"], "receipt": released.receipt.to_dict()}
    public["summary"] = released.summary().to_dict()
    secret = {"folder": where["secret"], "cost": released.cost.to_dict()}
    if found is not None:
        secret["scores"] = found.to_dict()
    outputs.say(store.json_text({"public": public, "secret": secret}))

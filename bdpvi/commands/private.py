"""``bdpvi private``: from a table to a model that may be shared, in one command."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdpvi._ground import outputs, store, validate
from bdpvi._ground.outputs import several
from bdpvi.commands import options
from bdpvi.commands.check import look_first
from bdpvi.commands.engine import WorkerOptions
from bdpvi.commands.options import (
    CONSTANTS_FILE,
    WORDS,
    AccountOptions,
    ColumnOptions,
    Device,
    FromData,
    ScreenOptions,
    UnitOptions,
    of_fields,
)
from bdpvi.tables.request import Public, Request

if TYPE_CHECKING:
    from bdpvi import Release
    from bdpvi.bayesian.guarantees import Guarantee
    from bdpvi.datasets.formats import FileFormat
    from bdpvi.models.kinds import OfClasses, OfNumbers
    from bdpvi.releases.table_file import TableFile
    from bdpvi.tables.request import Machine
    from bdpvi.tables.row_scores import RowScores
    from bdpvi.tables.scores import Scores
    from bdpvi.tables.work import Work

CATEGORIES = ("counted", "hashed")
PURPOSES = ("prediction", "intervals")
_GATE = "The draws' gate may need more: bdpvi.PosteriorDraws(rows=N).needed(columns) is its ε"
GUARANTEES = {"worst-case": "WorstCaseDP", "bayesian": "BayesianDP"}


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """What is asked of the table."""

    target: Annotated[
        str, typer.Option("--target", "--formula", "--time", help=WORDS["target"])
    ] = ""
    positive: Annotated[str, typer.Option(help=WORDS["positive"])] = ""
    model: Annotated[
        str,
        typer.Option(
            help="logistic, for a yes/no target; linear, for numbers, with --target-bounds; "
            "poisson or negative-binomial, for counts, with --largest; multinomial or ordinal, for "
            "several --classes; survival, for the --time until an --event, with --cuts; "
            "mixed-logistic, -linear or -poisson, for normal effects of the groups in --unit or "
            "--group. All but the first have intervals. Rows with an invalid target are left out."
        ),
    ] = "logistic"
    target_bounds: Annotated[
        tuple[float, float] | None,
        typer.Option(
            help="Public lower and upper bound of a linear model's target; values beyond are "
            "clamped."
        ),
    ] = None
    largest: Annotated[
        int | None, typer.Option(help="Public bound of counts; larger ones are clamped.")
    ] = None
    classes: Annotated[
        list[str] | None, typer.Option(help=f"{WORDS['classes']} Once for each class.")
    ] = None
    exposure: Annotated[str, typer.Option(help=WORDS["exposure"])] = ""
    weights: Annotated[str, typer.Option(help=WORDS["weights"])] = ""
    largest_weight: Annotated[float | None, typer.Option(help=WORDS["largest_weight"])] = None
    event: Annotated[str, typer.Option(help=WORDS["event"])] = ""
    group: Annotated[str, typer.Option(help=WORDS["group"])] = ""
    cuts: Annotated[
        list[float] | None,
        typer.Option(
            help="Public end of an interval with a constant hazard, of a survival regression; once "
            "for each. At the last one follow-up ends: later times count as censored there."
        ),
    ] = None
    base_rate: Annotated[float | None, typer.Option(help=WORDS["base_rate"])] = None
    rows: Annotated[float | None, typer.Option(help=WORDS["rows"])] = None
    epsilon: Annotated[float, typer.Option(help=WORDS["epsilon"])]
    delta: Annotated[float, typer.Option(help=WORDS["delta"])] = 1e-5
    draws: Annotated[int, typer.Option(help=WORDS["draws"])] = 1
    of_the_posterior: Annotated[
        bool,
        typer.Option(
            "--draws-of-the-posterior",
            help="Release draws of the posterior itself, with a worst case. A table that is too "
            "flat for ε, such as a small or wide one, is refused, at the same price.",
        ),
    ] = False
    purpose: Annotated[
        str,
        typer.Option(
            "--for",
            help="Purpose of the model: prediction, or intervals, which are intervals of "
            "coefficients that account for sampling and privacy noise (see bdpvi summary).",
        ),
    ] = PURPOSES[0]
    guarantee: Annotated[
        str,
        typer.Option(
            help="Kind of guarantee: worst-case, the default, or bayesian, about a random record: "
            "then all bounds and categories must be public."
        ),
    ] = ""
    constants: Annotated[
        Path | None,
        typer.Option(
            help=f"{CONSTANTS_FILE} Bounds and categories of other columns are estimated privately."
        ),
    ] = None
    from_data: FromData = False
    missing: Annotated[str, typer.Option(hidden=True, help=WORDS["missing"])] = "refuse"
    unknown: Annotated[str, typer.Option(hidden=True, help=WORDS["unknown"])] = ""
    encoding: Annotated[str, typer.Option(hidden=True, help=WORDS["encoding"])] = "onehot"
    categories: Annotated[str, typer.Option(help=f"counted or hashed. {WORDS['hashed']}")] = ""

    @property
    def regression(self) -> OfNumbers | OfClasses | None:
        """The regression; None for yes and no."""
        from bdpvi.models.kinds import MIXED, NAMED

        known = ("logistic", *NAMED, *(options.MIXED + one for one in MIXED))
        name = validate.choice("model", self.model, known).removeprefix(options.MIXED)
        needed = NAMED[name].option if name in NAMED else ""
        for option in dict.fromkeys(family.option for family in NAMED.values()):
            value = getattr(self, option)
            if bool(value) != (option == needed):
                goes = "does not go with it" if value else "is needed, and must be public"
                raise ValueError(f"model={self.model!r}: --{option.replace('_', '-')} {goes}")
        if not needed:
            return None
        return NAMED[name].of_option(getattr(self, needed))  # type: ignore[no-any-return]

    def of(
        self, data: str, columns: ColumnOptions, account: AccountOptions, known: TableFile
    ) -> Request:
        """Return the request; no table is read."""
        from bdpvi.bayesian.gated.route import PosteriorDraws

        validate.choice("for", self.purpose, PURPOSES)
        if self.categories:
            validate.choice("categories", self.categories, CATEGORIES)
        given = {n: getattr(self, n) for n in ("base_rate", "rows", "weights", "largest_weight")}
        public = Public(**given)
        if data not in options.TABLES:
            options.check_target(data, self.target, "column to predict")
            same = (
                *("from_data", "exposure", "event", "base_rate", "rows", "missing", "unknown"),
                *("encoding", "weights", "largest_weight"),
            )
            public = columns.public(
                known,
                self.constants,
                hashed=self.categories == CATEGORIES[1] if self.categories else None,
                classes=tuple(self.classes or ()),
                group=options.group_of(self.model, self.group, account.of(known)),
                **{name: getattr(self, name) for name in same},
            )
        return Request(
            target=self.target,
            positive=self.positive,
            epsilon=self.epsilon,
            delta=self.delta,
            draws=PosteriorDraws(draws=self.draws) if self.of_the_posterior else self.draws,
            model=self.regression,
            intervals=self.purpose == PURPOSES[1],
            guarantee=guarantee_of(self.guarantee),
            public=public,
            unit=account.of(known, account.other_people),
        )


@of_fields
def private(
    data: Annotated[
        str,
        typer.Option(
            help="A file, such as CSV, Parquet or Excel; a folder, a glob or a URL of files of one "
            f"kind, which need not fit in memory; or one of {', '.join(options.TABLES)}."
        ),
    ],
    request: RequestOptions,
    columns: ColumnOptions,
    account: AccountOptions,
    workers: WorkerOptions,
    screen: ScreenOptions,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Print how many records are needed, from header and options alone. Charges "
            "nothing.",
        ),
    ] = False,
    scores: Annotated[
        bool,
        typer.Option(
            help="Score simulated releases on held-out rows, or, of a table in blocks, the release "
            "on its rows; for the owner only."
        ),
    ] = True,
    device: Device = "auto",
) -> None:
    """Turn a table into a private model, under a worst-case ε that covers all that is shared.

    Bounds and categories of columns that --constants does not name are estimated privately, for a
    fifth of μ², which grows about as ε². The model is a logistic regression by objective
    perturbation, close to the one without privacy if rows are many, or what --model says. After an
    interruption the same command goes on and nothing is charged twice.

    Example: bdpvi private --data patients.csv --one-row-per-person --target sick --positive yes
    --epsilon 1 --out shared
    """
    options.check_there(data)
    known = options.table_file_of(data, columns.table)
    asked = request.of(data, columns, account, known)
    if plan:
        _check_plan(data, account, asked)
        show_plan(data, known.file, asked, screen.as_json)
        return
    if Path(data).is_file() and data not in options.TABLES and not workers.is_given:
        _look_first(data, known, asked, screen)
    with workers.machine(device, progress=screen.bars) as machine:
        _carry_out(data, asked, account, known, machine, scores=scores, as_json=screen.as_json)


def guarantee_of(name: str) -> Guarantee | None:
    """Return the guarantee with this name; None for the default."""
    import bdpvi

    if not name:
        return None
    result: Guarantee = getattr(bdpvi, GUARANTEES[validate.choice("guarantee", name, GUARANTEES)])()
    return result


def _check_plan(data: str, whom: UnitOptions, asked: Request) -> None:
    """Refuse what a plan cannot be of."""
    from bdpvi.releases.persons import check_said

    if data in options.TABLES:
        raise ValueError(
            f"plan: the preprocessing of {data} is public, so nothing is estimated privately"
        )
    if whom.unit or whom.rows_per_unit != 1:
        check_said(data, unit=asked.person, rows_per_unit=asked.rows_of_person)


def show_plan(data: str, file: FileFormat, asked: Request, as_json: bool) -> None:
    """Print the plan of a request, from the header only."""
    from bdpvi.datasets.table import Table
    from bdpvi.privacy.book import ROW, Book, check_terms
    from bdpvi.tables.encoded import price_of

    book = Book("", unit=asked.person or ROW, rows=asked.rows_of_person)
    check_terms(None, book.unit, book.rows)
    price = price_of(asked, list(Table.of(data, file=file).header), file)[0]
    whom = f" to add or remove {book.whose}" if asked.person else ""
    facts = {
        "epsilon": asked.epsilon,
        "delta": asked.delta,
        "unit": book.unit,
        "rows_per_unit": book.rows,
        "bought": price.columns,
        "records_needed": price.needed,
        "records_refused_below": price.refused_below,
    }
    if as_json:
        outputs.show(store.json_text(facts))
    elif not price.needed:
        outputs.show(
            f"Nothing is estimated privately: the model gets all of ε = {asked.epsilon:g}{whom}"
        )
    else:
        outputs.show(
            "private preprocessing takes a fifth of μ² and estimates bounds or categories of "
            f"{several(len(price.columns), 'column')}: "
            f"{', '.join(f'{name} ({kind})' for name, kind in price.columns.items())}",
            f"ε = {asked.epsilon:g}{whom} needs about {price.needed} records for this "
            f"preprocessing; below {price.refused_below} nothing is fitted. Columns of an "
            "undeclared kind count as numbers. Only the header was read, and nothing is charged"
            + ("" if isinstance(asked.draws, int) else f". {_GATE}"),
        )


def _look_first(data: str, known: TableFile, asked: Request, screen: ScreenOptions) -> None:
    """Show the owner what is read otherwise than it seems meant, before anything is charged."""
    from bdpvi.tables.reading import protected_unit

    protected_unit(known, data, asked.unit)  # refused by options alone
    look_first(
        Path(data),
        known.file,
        screen,
        target=asked.target,
        positive=None if asked.model is not None else asked.positive,
        epsilon=None if asked.public.from_data else asked.epsilon,
        delta=asked.delta,
        public=asked.public,
        unit=asked.unit,
    )


def _carry_out(
    data: str,
    asked: Request,
    account: AccountOptions,
    known: TableFile,
    machine: Machine,
    *,
    scores: bool,
    as_json: bool,
) -> None:
    """Carry out the command and print its result."""
    from bdpvi import datasets
    from bdpvi.releases.account import words_of_account
    from bdpvi.releases.publishing import secret_of
    from bdpvi.tables.private import write_release
    from bdpvi.tables.reading import MODEL, work_of

    public = data in options.TABLES
    work = work_of(
        datasets.LOADERS[data]().train if public else data,
        asked,
        out=account.out,
        secret=account.secret,
        ledger=account.ledger,
        budget=account.limit(asked.delta),
        machine=machine,
        known=known,
    )
    start = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        released = write_release(work)
    took = time.monotonic() - start
    where = {"out": account.out / MODEL, "secret": secret_of(account.out, account.secret)}
    if not as_json:
        _report(released, where)
        if not public:
            assert work.ledger.path is not None
            outputs.say(
                *words_of_account(work.ledger, released.receipt.bound, work.budget is not None)
            )
    found = _scores(work, released, took) if scores else None
    if as_json:
        _print_json(released, where, found)
    elif found is not None:
        outputs.say(*f"For the owner only: {found}".split("\n"))


def _scores(work: Work, released: Release, took: float) -> Scores | RowScores | None:
    """Score a release that took ``took`` seconds; an interruption loses only the scores."""
    from bdpvi._ground import progress
    from bdpvi.noise.keys import Key
    from bdpvi.tables.row_scores import RowScores
    from bdpvi.tables.scores import patience, preview_scores

    try:
        if work.table is not None:
            return RowScores.of(work, released)
        track = progress.bar if work.machine.progress else progress.silent
        return preview_scores(work, released, Key.fresh(), track, seconds=patience(took))
    except KeyboardInterrupt:
        whole = "the release is complete; only the scores are missing"
        raise KeyboardInterrupt(f"{whole}: the same command makes them") from None


def _report(released: Release, where: dict[str, Path]) -> None:
    outputs.say(*released.receipt.lines("Public"))
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

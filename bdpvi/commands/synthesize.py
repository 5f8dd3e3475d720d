"""``bdpvi synthesize`` and ``sample``: a table to rows that may be shared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdpvi._ground import outputs, store, validate
from bdpvi._ground.outputs import several
from bdpvi.commands import quality
from bdpvi.commands.check import Yes, look_first
from bdpvi.commands.counted import begun, counted_bytes
from bdpvi.commands.engine import Dask, Workers, engine
from bdpvi.commands.options import (
    BudgetOption,
    Categorical,
    Delta,
    Drop,
    Json,
    LedgerFile,
    Numeric,
    OneRowPerPerson,
    OtherPeople,
    Quiet,
    RowsPerUnit,
    Secret,
    TableOption,
    Unit,
    declared,
    remaining,
)

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi._ground.progress import Track
    from bdpvi.privacy.cost import Bound
    from bdpvi.privacy.ledger import Ledger
    from bdpvi.synthesis import Synthetic

ROWS, COUNTS = "synthetic.csv", "synthetic.json"
_MOST_VALUES = 2**25
"""The most values of a table unless its size is given."""
_USUAL = 1e-5
"""δ of other works on a table without a budget."""

Data = Annotated[
    str,
    typer.Option(
        help="A file, such as CSV, Parquet or Excel; or a folder, a glob or a URL of files of one "
        "kind; read in blocks."
    ),
]
Out = Annotated[Path, typer.Option(help="New folder for what may be shared.")]
Number = Annotated[
    int | None,
    typer.Option("--rows", help="Rows; by default as many as are estimated."),
]
Tables = Annotated[
    int, typer.Option(help="Number of tables, which vary like tables from other samples and noise.")
]


def synthesize(
    data: Data,
    epsilon: Annotated[float, typer.Option(help="Worst-case ε of all outputs.")],
    out: Out,
    table: TableOption = None,
    target: Annotated[str, typer.Option(help="Most important column, such as a label.")] = "",
    delta: Delta = 1e-6,
    also: Annotated[
        list[str] | None,
        typer.Option(help="Columns a,b,c that are counted together too."),
    ] = None,
    from_data: Annotated[
        bool,
        typer.Option("--from-data", help="Treat levels and bounds read from the rows as public."),
    ] = False,
    drop: Drop = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    rows: Number = None,
    tables: Tables = 1,
    secret: Secret = None,
    ledger: LedgerFile = None,
    budget: BudgetOption = None,
    unit: Unit = "",
    rows_per_unit: RowsPerUnit = 1,
    one_row_per_person: OneRowPerPerson = False,
    other_people: OtherPeople = False,
    test_fraction: quality.TestFraction = 0.1,
    no_report: quality.NoReport = False,
    groups: quality.Groups = None,
    workers: Workers = None,
    dask: Dask = "",
    yes: Yes = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Turn a table into synthetic rows that may be shared, under a worst-case ε.

    OUT gets synthetic.csv, and synthetic.json, from which `bdpvi sample` makes more rows. Bounds
    and levels that the table's file does not declare are estimated privately, for a fifth of μ².
    What is spent on the table is written to its ledger before anything is drawn. After an
    interruption the same command goes on and nothing is charged twice. The secret folder gets a
    report on how well models and statistics of the rows agree with the table's, for the owner of
    the table alone; the same command makes it again, and OUT stays.
    A table in blocks need not fit in memory; no rows are held out, and there is no report.

    Example: bdpvi synthesize --data patients.csv --one-row-per-person --target sick --epsilon 1
    --out shared
    """
    import bdpvi
    from bdpvi._ground import progress
    from bdpvi.datasets.encoding import with_text_names
    from bdpvi.datasets.identity import Identity
    from bdpvi.datasets.schema import in_file
    from bdpvi.datasets.table import Table, in_blocks
    from bdpvi.privacy.places import Places
    from bdpvi.releases import persons
    from bdpvi.releases.intent import HEAD, NAME, output_of
    from bdpvi.releases.transaction import Transaction
    from bdpvi.synthesis import Counts
    from bdpvi.synthesis.order import Order, for_persons
    from bdpvi.synthesis.released import rehearse
    from bdpvi.synthesis.source import look
    from bdpvi.synthesis.synthetic import of_bytes
    from bdpvi.tables.private import places

    table_file = declared(data, table, release=False).public(from_data)
    protected = table_file.people(unit, rows_per_unit, one_row_per_person)
    persons.check_said(data, **protected)
    file, known = table_file.file, table_file.schema
    blocks, whole = None, Table.of(data, file=file)
    if in_blocks(data) or workers is not None or dask:
        quality.check_in_memory(groups or ())
        blocks, no_report = whole, True
    kept_header = remaining(list(whole.header), drop)
    given: dict[str, Any] = {
        "schema": in_file(known, kept_header, file),
        "target": target or None,
        "epsilon": epsilon,
        "delta": delta,
        "settings": Counts(
            also=tuple(tuple(one.split(",")) for one in also or ()),
            unit=protected["unit"],
            rows_per_unit=protected["rows_per_unit"],
            categorical=tuple(categorical or ()),
            numeric=tuple(numeric or ()),
        ),
    }
    folder = places(out, secret)[1]
    path = table_file.ledger(data, ledger)
    output = output_of(folder / NAME)
    where = Places.of(out=out, secret=folder, ledger=path, shared=out, output=output)
    _check(rows, tables)
    out_of_it = [] if known is None else [one for one in known.left_out if one in kept_header]
    used: pd.DataFrame | None = None
    identity: Identity | None = None
    if blocks is None:
        look_first(
            Path(data), file, yes=yes, quiet=quiet or as_json, types=known, target=target,
            positive=None, drop=[*(drop or ()), *out_of_it], categorical=categorical or (),
            numeric=numeric or (), **protected,
        )  # fmt: skip
        frame = with_text_names(whole.frame(text=True, least=0))
        identity = Identity.of(frame, file.signs[:2])
        used = frame.drop(columns=list(drop or ())).reset_index(drop=True)
        persons.warn_of_repeats(frame.drop(columns=used.columns), protected["unit"], 2)
        kept_header = list(used.columns)
    order = Order.of(kept_header, **given)  # refuse before anything is stored
    if not no_report:
        quality.check(test_fraction, groups or (), [*order.declared, *order.kinds])
    rehearse(order, file, _content)
    track = progress.silent if quiet or as_json else progress.bar
    kept = (given, sorted(drop or ()), file, other_people, None if no_report else test_fraction)
    options = repr(kept)
    price = {"epsilon": epsilon, "delta": delta}
    with engine(workers, dask) as executor, ExitStack() as stack:
        records: Any = used
        if blocks is not None:
            shown = None if track is progress.silent else track
            records = blocks.records(executor, track=shown, what="pass")
            identity = look(records, order, file.signs[:2])  # before there is a ledger
        digest = whole.fingerprint(executor)
        limit = table_file.limit(None if budget is None else bdpvi.Budget(budget, delta))
        people = table_file.opened(data, identity, ledger, other_people)
        Places.of(out=out, secret=folder, ledger=people.path, shared=out, output=output)
        if limit is None and people.budget is None and not people.entries():
            limit = bdpvi.Budget(epsilon, delta)
        work = begun(where.secret, digest, people, options, price)
        intent = stack.enter_context(work)
        people.settle(budget=limit)

        def counted_with_noise() -> bytes:
            for_persons(people, order.settings)
            people.remember(where.secret / HEAD)
            noted = {"what": "synthesize", "out": f"{where.out.name}/{COUNTS}"}
            work = Transaction(people, intent.secret, intent.facts, alone=True, kept=True, **noted)
            held = None if no_report else (where.secret, test_fraction)
            whose = persons.OTHER_PEOPLE if other_people else None
            more = {
                "columns_dropped": len(drop or ()) or None,
                "people": whose,
                "table_file": table_file.described or None,
            }
            return counted_bytes(records, order, work, file, more, held)

        finished = not store.nothing_at(where.out)
        put = _same if finished else store.write
        with nullcontext(where.out) if finished else store.claimed_folder(where.out) as public:
            content = intent.output(counted_with_noise)
            put(public / COUNTS, content)
            made = of_bytes(content)
            seed = int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
            shared = _write(made, public, rows, tables, track, seed, put)
    _report(made, people, {"out": out, "secret": folder}, as_json=as_json)
    if blocks is not None and not as_json:
        outputs.say("No report for the owner: the table is in blocks, and no rows were held out")
    if not no_report:
        assert used is not None
        parts = quality.kept(where.secret, used)
        said = quality.report(made, *parts, shared, groups or (), folder)
        outputs.say(*(() if as_json else said))


def sample(
    shared: Annotated[Path, typer.Argument(help="File synthetic.json.")],
    out: Out,
    rows: Number = None,
    tables: Tables = 1,
    quiet: Quiet = False,
) -> None:
    """Make more synthetic rows, which costs nothing."""
    from bdpvi._ground import progress
    from bdpvi.synthesis import load

    made = load(shared)
    _check(rows, tables)
    if rows is None:  # then the file has the number
        rows, width = made.rows, len(made.schema.columns)
        name = f"values in the {rows} rows that {shared} speaks of"
        validate.at_most(name, rows * width, _MOST_VALUES, "say how many rows you want (--rows)")
    with store.claimed_folder(out) as folder:
        _write(
            made,
            folder,
            rows,
            tables,
            progress.silent if quiet else progress.bar,
            None,
            store.write,
        )
    outputs.say(f"{out}: {tables} × {several(rows, 'row')}; {made.receipt}")


def _check(rows: int | None, tables: int) -> None:
    """Check the options before anything is charged."""
    from bdpvi.synthesis.synthetic import checked_rows

    checked_rows("tables", tables)
    if rows is not None:
        checked_rows("rows", rows)


def _write(
    made: Synthetic,
    folder: Path,
    rows: int | None,
    tables: int,
    track: Track[int],
    seed: int | None,
    put: Callable[[Path, bytes], None],
) -> pd.DataFrame:
    """Write the tables to a folder; return the first. A seed repeats them."""

    def write(name: str, frame: pd.DataFrame) -> pd.DataFrame:
        put(folder / name, _content(made, frame))
        return frame

    if tables == 1:
        return write(ROWS, made.sample(rows, seed=seed))
    first, *_ = (
        write(
            f"synthetic-{at}.csv",
            made.tables(1, rows, seed=None if seed is None else seed + at)[0],
        )
        for at in track(range(1, tables + 1), "tables")
    )
    return first


def _content(made: Synthetic, rows: pd.DataFrame) -> bytes:
    """Return the content of a file of rows."""
    from bdpvi.datasets.types import TIMES

    numbers = {name: one for name, one in made.schema.columns.items() if one.integer}
    whole = {name: "Int64" for name, one in numbers.items() if one.kind not in TIMES}
    return outputs.csv_text(rows.astype(whole)).encode()


def _same(path: Path, content: bytes) -> None:
    """Raise ValueError unless a file has this content."""
    if not path.is_file() or path.read_bytes() != content:
        raise ValueError(f"{str(path.parent)!r} exists already; nothing is overwritten")


def _spent(people: Ledger, delta: float) -> Bound | None:
    """Return the cost of everything at δ; at the budget's if an earlier work has used up δ."""
    larger = people.budget.delta if people.budget else _USUAL
    return people.worst_case(delta) or people.worst_case(max(delta, larger))


def _report(made: Synthetic, people: Ledger, where: dict[str, Path], *, as_json: bool) -> None:
    from bdpvi._ground.schema import to_json
    from bdpvi.releases.account import NOT_PRICED, same_people

    assert people.path is not None
    spent = _spent(people, made.receipt.worst_case.delta)
    if as_json:
        secret = {
            "folder": where["secret"],
            "ledger": people.path,
            "spent": spent and to_json(spent),
        }
        public = {"out": where["out"], "rows": made.rows, "receipt": to_json(made.receipt)}
        outputs.say(store.json_text({"public": public, "secret": secret}))
        return
    outputs.say(
        f"Public: {made.receipt}",
        f"  {made.receipt.meaning}",
        f"For the owner only: everything spent on this table: {spent or NOT_PRICED}",
        f"Wrote {where['out']}: about {several(made.rows, 'row')}, which may be shared. Keep "
        f"{where['secret']}/ and {people.path} secret",
        same_people(people.path),
    )

"""From a table to rows that may be shared: check, charge, count with noise, sample for free."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from bdpvi._ground.types import Machine, Unit
from bdpvi.datasets import grid, made_up
from bdpvi.datasets.bounds import NOTHING
from bdpvi.datasets.estimates import CATEGORY, NUMBER
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.grid import Codes, Unfit
from bdpvi.datasets.made_up import Copies
from bdpvi.datasets.origin import declarations
from bdpvi.datasets.records import Records
from bdpvi.datasets.schema import Schema
from bdpvi.datasets.table import Table
from bdpvi.datasets.types import ESTIMATED, ROWS
from bdpvi.noise.keys import Key
from bdpvi.privacy.accounts import account, account_in_use, in_use
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.book import ROW
from bdpvi.privacy.cost import Bound
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases import transaction
from bdpvi.releases.account import together_of
from bdpvi.releases.persons import OTHER_PEOPLE
from bdpvi.releases.table_file import TableFile
from bdpvi.releases.transaction import Before, Transaction, trial_work
from bdpvi.synthesis.content import TableReceipt
from bdpvi.synthesis.counts import Counts, count, count_columns
from bdpvi.synthesis.order import Order, for_persons
from bdpvi.synthesis.source import look, open_table
from bdpvi.synthesis.synthetic import Synthetic, of_bytes
from bdpvi.synthesis.table_one import TableOne, table_one

_AT_ONCE = 14
"""Most columns of a part of a rehearsal, beside the target."""
_MANY = 10**6
"""What is added to each count of a rehearsal, so that noise hides nothing."""


def synthesize(
    table: pd.DataFrame | Table | str | os.PathLike[str],
    schema: Schema | None = None,
    target: str | None = None,
    *,
    epsilon: float,
    delta: float = 1e-5,
    settings: Counts | None = None,
    unit: str | Unit | None = None,
    ledger: Ledger | Transaction | str | os.PathLike[str] | None = None,
    machine: Machine | None = None,
) -> Synthetic:
    """Count a table with noise, and return a sampler of synthetic rows that may be shared.

    Bounds and levels of columns missing from the schema are estimated privately first, for a fifth
    of μ² (:mod:`bdpvi.datasets.bounds`). ε covers the whole release, for adding or removing one row
    or all rows of one person. It is charged to the table's ledger before anything is drawn, and
    composes there with other charges. No row is refused, see :class:`bdpvi.datasets.Schema`.

    Args:
        table: the rows, with the schema's columns in any order: a table in memory, as
            :func:`bdpvi.private` takes it. Or one in blocks, which need not fit in memory: a file,
            a folder or a glob of files of one kind, a URL, a Dask data frame, or
            :class:`bdpvi.datasets.table.Table`. :meth:`bdpvi.Table.of` says how a CSV file is
            written (``file=``), and so does the public file beside it. Schema, unit, ledger and
            budget are by default those of that file too.
        schema: the type of each column, if any; public, made without looking at the table.
        target: the most important column, if any, such as the label of a classifier.
        epsilon, delta: worst-case guarantee of this release.
        settings: :class:`Counts` by default.
        unit: whom ε protects, as for :func:`bdpvi.private`: the column of persons, or a
            :class:`bdpvi.tables.Unit`; ``Unit()`` says that everybody has one row. A file needs one
            of them. By default that of the settings.
        ledger: the people's ledger; by default the table's own, as for :func:`bdpvi.private`. That
            of a table in memory adds up with others of the same rows, and ends with the process. Or
            a transaction on one for exactly this table and these arguments: repeating the call,
            such as after a block was lost, gives the same result and is charged once. A seeded key
            makes it an experiment that can be repeated, and protects nobody.
        machine: workers that read a table in blocks and count its rows, and progress bars; see
            :class:`bdpvi.tables.Machine`.

    Warns:
        UserWarning: for the owner only: how many values of a column did not fit the schema, how
            many rows of a person were left out, and columns that seem to identify persons.

    Raises:
        ValueError: naming the fault in header, schema or options, before anything is charged; or
            the block that cannot be read.
        BudgetExceededError: if the ledger's budget has too little left. Nothing is charged.

    >>> from bdpvi.datasets import ColumnType
    >>> age = ColumnType(kind="integer", low=0, high=99)
    >>> sick = ColumnType(kind="category", levels=("no", "yes"))
    >>> people = Schema({"age": age, "sick": sick}, "By law.")
    >>> frame = pd.DataFrame({"age": [*range(100)] * 20, "sick": ["no", "yes"] * 1000})
    >>> shared = synthesize(frame, people, "sick", epsilon=1.0, delta=1e-6)
    >>> print(shared.receipt)
    worst-case DP: ε = 1 at δ = 1e-06 (Gaussian DP, to add or remove one record)
    >>> shared.sample(3).shape
    (3, 2)
    >>> synthesize(frame, Schema({"age": age}, "By law."), epsilon=1.0).receipt.bought
    ('sick',)
    """
    settings = settings or Counts()
    unit = Unit(unit) if isinstance(unit, str) else unit
    path = table.path if isinstance(table, Table) else table
    known = TableFile.beside(path).public()
    people = _people(known, settings, unit)
    settings = replace(settings, unit=people["unit"], rows_per_unit=people["rows_per_unit"])
    header, rows, file, schema = open_table(
        table, schema or known.schema, people=people, known=known, machine=machine or Machine()
    )
    order = Order.of(header, schema, target, epsilon, delta, settings)
    rehearse(order, file)
    others = unit is not None and unit.other_people
    if isinstance(ledger, Transaction):
        work = ledger
        look(rows, order)
    else:
        own = known.ledger(path, ledger)
        keyed = own is not None or in_use()
        identity = look(rows, order, file.signs[:2] if keyed else None)
        if keyed and own is None:
            own = account_in_use(identity, settings.unit, settings.rows_per_unit)
        kept: Ledger | None = None
        if own is not None:
            budget = known.limit(None)
            kept = account(path, identity, ledger, own, other_people=others, budget=budget)
        secret, name = Key.fresh(), Key.fresh().work
        charged = for_persons(kept, settings, rows)
        work = Transaction(charged, secret, name=name, alone=True, what=settings.door)
    facts = {
        "people": OTHER_PEOPLE if others else None,
        "table_file": known.words_for_receipt or None,
    }
    made = as_read(work.perform(Synthesis(rows, order)), file, **facts)
    receipt = made.receipt.assuming(*work.ledger.assumptions)
    together = together_of(work.ledger, order.delta)
    return replace(made, receipt=replace(receipt, together=together))


def describe(
    table: pd.DataFrame | Table | str | os.PathLike[str],
    schema: Schema | None = None,
    by: str | None = None,
    *,
    epsilon: float,
    delta: float = 1e-5,
    settings: Counts | None = None,
    unit: str | Unit | None = None,
    ledger: Ledger | Transaction | str | os.PathLike[str] | None = None,
    machine: Machine | None = None,
) -> TableOne:
    """Return the Table 1 of a table, under a worst-case ε: it may be published.

    Each column is counted once with noise, in each group if there are groups; everything else
    follows from these counts. They are charged like those of :func:`bdpvi.synthesize`, whose other
    arguments these are, and bounds and levels that the schema lacks are estimated likewise.

    Args:
        table, schema, epsilon, delta, unit, ledger, machine: as for :func:`bdpvi.synthesize`.
        by: a column of levels; the result has a column for each level with enough rows.
        settings: whom ε protects and which columns are numbers; pairs are not counted.

    Raises:
        ValueError: naming the fault, before anything is charged.
        BudgetExceededError: if the ledger's budget has too little left. Nothing is charged.

    >>> from bdpvi.datasets import ColumnType
    >>> age = ColumnType(kind="integer", low=0, high=99)
    >>> sick = ColumnType(kind="category", levels=("no", "yes"))
    >>> people = Schema({"age": age, "sick": sick}, "By law.")
    >>> frame = pd.DataFrame({"age": [*range(100)] * 20, "sick": ["no", "yes"] * 1000})
    >>> made = describe(frame, people, by="sick", epsilon=1.0)
    >>> made.groups, str(made).split()[:3]
    (('all', 'no', 'yes'), ['all', 'no', 'yes'])
    >>> mean = made.to_frame().query("group == 'all' and name == 'mean'").iloc[0]
    >>> bool(mean.low < 49.5 < mean.high)
    True
    """
    settings = replace(settings or Counts(), pairs=False)
    made = synthesize(
        table,
        schema,
        by,
        epsilon=epsilon,
        delta=delta,
        settings=settings,
        unit=unit,
        ledger=ledger,
        machine=machine,
    )
    return table_one(made, by)


def _people(known: TableFile, settings: Counts, unit: Unit | None) -> dict[str, Any]:
    """Return whom ε protects: as the call says, otherwise as the table's public file does."""
    if unit is None:
        return known.people(settings.unit, settings.rows_per_unit, False)
    if settings.unit != ROW:
        raise ValueError(f"unit={unit!r} and unit={settings.unit!r} of settings: give one of them")
    if unit.column:
        return known.people(unit.column, unit.rows, False)
    return known.people(ROW, 1, True)


def rehearse(
    order: Order, file: FileFormat, use: Callable[[Synthetic, pd.DataFrame], object] | None = None
) -> None:
    """Release made-up rows, read the release, and use it, before anything is charged.

    A wide table is tried in parts, since pairs of columns are counted together.

    Args:
        order: the release.
        file: how the table is written.
        use: what else is done with the release and its rows.

    Raises:
        ValueError: if anything fails.
    """
    names = [name for name in (*order.declared, *order.kinds) if name != order.target]
    for start in range(0, max(len(names), 1), _AT_ONCE):
        some = {*names[start : start + _AT_ONCE], order.target}
        declared = {name: one for name, one in order.declared.items() if name in some}
        kinds = {name: kind for name, kind in order.kinds.items() if name in some}
        settings = order.settings
        if len(some) <= len(names):
            settings = replace(settings, also=(), categorical=(), numeric=())
        part = replace(order, declared=declared, kinds=kinds, settings=settings)
        for frame in _made_up(part):
            people = {"unit": settings.unit, "rows_per_unit": settings.rows_per_unit}
            with trial_work(people) as work:
                made = as_read(work.perform(Synthesis(Copies(frame), part)), file)
                read = of_bytes(made.to_bytes())
                random = np.random.default_rng(0)
                sizes = [grid.size(column) for column in read.schema.columns.values()]
                codes = random.integers(sizes, size=(len(frame), len(sizes)))
                rows = read.schema.decode(codes, random)
                read.schema.encode(rows)
                if not settings.pairs:
                    str(table_one(replace(read, counts=read.counts.raised(_MANY)), part.target))
                if use is not None:
                    use(read, rows)


def _made_up(order: Order) -> Iterator[pd.DataFrame]:
    """Yield made-up rows with the columns of a release."""
    known, unit = order.declared.items(), order.settings.unit
    kinds = {n: NUMBER if one.names is None else CATEGORY for n, one in known} | {**order.kinds}
    values = {name: one.names or one.bounds or () for name, one in known}
    return made_up.frames(kinds, values, {} if unit == ROW else {unit: range(made_up.ROWS)})


def as_read(made: Synthetic, file: FileFormat, **more: object) -> Synthetic:
    """Return the release with what was declared to read the file, and more of its owner's words."""
    receipt = made.receipt
    if file.multiline:
        receipt = receipt.assuming(Assumption.RECORDS_ACROSS_LINES)
    facts = declarations(**more, **file.differences)
    return replace(made, receipt=receipt.declaring(facts))


@dataclass(frozen=True, eq=False)
class Synthesis:
    """Noisy counts of a table, with private estimates of what its schema lacks, as one mechanism.

    Attributes:
        table: the rows.
        order: the release.
    """

    step: ClassVar[str] = "synthesis"

    table: Records[pd.DataFrame]
    order: Order

    def plan(self, before: Before) -> transaction.Plan[str]:
        """Return the privacy cost; the ledger decides the privacy unit."""
        order, unit = self.order, before.book.whose
        return transaction.Plan(
            kind="release",
            what=f"{'synthesis' if order.settings.pairs else 'Table 1'} at ε = {order.epsilon:g}",
            events=order.events,
            settings=unit,
        )

    def draw(self, plan: transaction.Plan[str], key: Key) -> Synthetic:
        """Return the release; warn the owner about values that did not fit."""
        order, settings = self.order, self.order.settings
        table = order.rows_to_count(self.table, key)
        complete = order.complete_schema(table, key)
        measured = order.plan(complete)
        coded = table.map(_coded, complete)
        unfit, exact = coded.sum(_first, measured.sizes)
        said = {column: grid.words_of_unfit(one) for column, one in unfit.items()}
        nothing = [(one.levels, one.bounds) for one in NOTHING.values()]
        for column in order.kinds:
            found = complete.columns[column]
            if (found.levels, found.bounds) in nothing:
                said[column] = "no value was frequent enough to give a bound or a level"
        for column, words in said.items():
            if words:
                warnings.warn(f"column {column!r}: {words} (secret)", stacklevel=4)
        bound = order.bound if settings.unit == ROW else replace(order.bound, unit=plan.settings)
        public = bound.public(order.epsilon)
        receipt = _receipt(public, complete, order, key.experiment)
        counts = count(coded.map(_codes), measured, key, exact)
        return Synthetic(receipt, complete, order.target, settings, counts)


def _coded(table: pd.DataFrame, schema: Schema) -> tuple[Codes, dict[str, Unfit]]:
    """Return the codes of rows, and by column how many values do not fit."""
    return schema.encode(table[list(schema.columns)])


def _codes(coded: tuple[Codes, dict[str, Unfit]]) -> Codes:
    return coded[0]


def _first(
    coded: tuple[Codes, dict[str, Unfit]], sizes: Sequence[int]
) -> tuple[Mapping[str, Unfit], tuple[Codes, ...]]:
    """Return how many values do not fit, and the exact counts of every column's codes."""
    return coded[1], count_columns(coded[0], sizes)


def _receipt(bound: Bound, schema: Schema, order: Order, seeded: bool) -> TableReceipt:
    """Return the guarantee with all its assumptions."""
    from_rows, estimated = schema.from_rows, tuple(order.kinds)
    given = {one.origin for one in order.declared.values()}
    for holds, assumption in (
        (from_rows, Assumption.CONSTANTS_FROM_TABLE),
        (given - {ROWS, ESTIMATED}, Assumption.PUBLIC_CONSTANTS),
        (ESTIMATED in given, Assumption.CONSTANTS_FROM_ANOTHER_RELEASE),
        (estimated, Assumption.PRIVATE_CONSTANTS),
        (order.facts, Assumption.DECLARED_FACTS),
    ):
        bound = bound.assuming(assumption) if holds else bound
    return TableReceipt(
        worst_case=bound.seeded() if seeded else bound,
        source=schema.source,
        from_data=from_rows,
        bought=estimated,
        declared=order.facts,
    )

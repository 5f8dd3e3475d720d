"""A table to rows that may be shared: check, charge, draw, count; then rows cost nothing."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd

from bdpvi._runtime import schema as files
from bdpvi._runtime import store, validate
from bdpvi._runtime.keys import Key
from bdpvi.accounting import transaction
from bdpvi.accounting.book import ROW
from bdpvi.accounting.cost import Assumption, Bound
from bdpvi.accounting.ledger import Ledger
from bdpvi.accounting.transaction import Before, Transaction
from bdpvi.datasets.bounds import NOTHING
from bdpvi.datasets.encoding import with_text_names
from bdpvi.datasets.schema import Schema
from bdpvi.synthesis.content import File, Receipt
from bdpvi.synthesis.counts import Counts, NoisyCounts, count
from bdpvi.synthesis.network import Network, network, redrawn
from bdpvi.synthesis.order import Order, for_persons, of_persons

_MOST_ROWS = 10**8


@dataclass(frozen=True, eq=False)
class Synthetic:
    """Noisy counts of a table, and any number of rows from them, all of which may be shared.

    Attributes:
        receipt: what was promised.
        schema: of the rows.
        target: name of the column that all others are drawn given, or None.
        settings: see :class:`Counts`.
        counts: the noisy counts with their deviations, for models of one's own.
    """

    receipt: Receipt
    schema: Schema
    target: str | None
    settings: Counts
    counts: NoisyCounts

    @property
    def rows(self) -> int:
        """The estimated number of rows of the table, at least 1. The exact one is not known."""
        return round(self.counts.records)

    @cached_property
    def network(self) -> Network:
        """The distribution of the rows."""
        return self._fitted(self.counts)

    def sample(self, rows: int | None = None, *, seed: int | None = None) -> pd.DataFrame:
        """Return rows, which cost nothing: columns, spellings and ranges of the schema.

        A blank is None or NaN, a value that was no level is "other".

        Args:
            rows: how many; :attr:`rows` by default.
            seed: for the same rows again; by default they are others each time.

        Raises:
            ValueError: naming the argument that is out of range.
        """
        random = _random(seed)
        return self.schema.decode(self.network.sample(self._number(rows), random), random)

    def tables(
        self, number: int, rows: int | None = None, *, seed: int | None = None
    ) -> tuple[pd.DataFrame, ...]:
        """Return tables that differ as those of other samples and other noise would.

        For :func:`~bdpvi.synthesis.combine`, it costs nothing: the counts are moved as other rows
        and other noise would (:func:`~bdpvi.synthesis.network.redrawn`), and each table is drawn
        from a network of such counts, fitted without shrinkage, so that intervals are not biased.

        Args:
            number: M, how many tables.
            rows: of each; :attr:`rows` by default.
            seed: as of :meth:`sample`.

        Raises:
            ValueError: naming the argument that is out of range.
        """
        number, rows = checked_rows("number", number), self._number(rows)
        random = _random(seed)
        made = []
        for _ in range(number):
            again = redrawn(self.counts, self.network, self.rows, random)
            codes = self._fitted(again, shrink=False).sample(rows, random)
            made.append(self.schema.decode(codes, random))
        return tuple(made)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all of it to a JSON file, which may be shared.

        Raises:
            ValueError: if there is something already, or this is a seeded experiment.
        """
        if not store.nothing_at(Path(path)):
            raise ValueError(f"path={str(path)!r} exists already; choose another")
        store.write(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return what :meth:`save` writes.

        Raises:
            ValueError: if this is a seeded experiment.
        """
        if Assumption.SEEDED_EXPERIMENT in self.receipt.worst_case.assumptions:
            raise ValueError(
                "seed: an experiment has no guarantee and is not saved; leave seed out"
            )
        return store.json_text(
            files.to_json(
                File.of(self.receipt, self.schema, self.target, self.settings, self.counts)
            )
        ).encode()

    def _number(self, rows: int | None) -> int:
        return checked_rows("rows", self.rows if rows is None else rows)

    def _fitted(self, counts: NoisyCounts, *, shrink: bool = True) -> Network:
        settings, shares = self.settings, [one.shares for one in self.schema.columns.values()]
        target = None if self.target is None else list(self.schema.columns).index(self.target)
        return network(counts, target, shares, settings.parents, settings.cells, shrink=shrink)


def synthesize(
    table: pd.DataFrame,
    schema: Schema | None = None,
    target: str | None = None,
    *,
    epsilon: float,
    delta: float = 1e-6,
    settings: Counts | None = None,
    ledger: Ledger | None = None,
    seed: int | None = None,
    work: Transaction | None = None,
) -> Synthetic:
    """Count a table with noise, and return what makes rows of it that may be shared.

    Bounds and levels of columns that the schema lacks are bought first, for a fifth of μ²
    (:mod:`bdpvi.datasets.bounds`). ε is that of all of this release, to add or remove one row, or
    all rows of one person, and the table's ledger is charged before anything is drawn; what it has
    besides adds up there. No row is refused: see :class:`~bdpvi.datasets.schema.Schema`.

    Args:
        table: the rows, with the schema's columns in any order.
        schema: what columns may hold; public, made without looking at the table. None for nothing.
        target: the column that matters most, as the label of a classifier; None for no such.
        epsilon, delta: of this release, worst-case.
        settings: :class:`Counts` by default.
        ledger: of the people; one in memory by default, which ends with the process.
        seed: for an experiment that can be repeated, and protects nobody.
        work: the transaction of this table and these arguments alone, in place of ``ledger``: the
            same call draws the same, and is charged once.

    Warns:
        UserWarning: for the owner alone: how many values of a column did not fit the schema, how
            many rows a person had too many, a column that seems to name persons.

    Raises:
        ValueError: naming what is wrong with header, schema or options, before anything is charged.
        BudgetExceededError: if the ledger's budget has too little left. Nothing is charged.

    >>> from bdpvi.datasets import Domain
    >>> age, sick = Domain(low=0, high=99, integer=True), Domain(levels=("no", "yes"))
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
    table = with_text_names(table)
    order = Order.of(list(table.columns), schema, target, epsilon, delta, settings)
    if work is None:
        secret = Key.fresh() if (number := _seed(seed)) is None else Key.of_seed(number)
        people, name = for_persons(ledger, settings), Key.fresh().work  # each call is a work
        work = Transaction(people, secret, name=name, alone=True)
    return work.perform(Synthesis(table, order))


@dataclass(frozen=True, eq=False)
class Synthesis:
    """Noisy counts of a table, and of what its schema lacks, as one mechanism.

    Attributes:
        table: the rows.
        order: what is done with them.
    """

    step: ClassVar[str] = "synthesis"

    table: pd.DataFrame
    order: Order

    def plan(self, before: Before) -> transaction.Plan[str]:
        """Return the price; whose rows are protected is the ledger's."""
        order, unit = self.order, before.book.whose
        return transaction.Plan(
            kind="release",
            what=f"synthesis at ε = {order.epsilon:g}",
            events=order.events,
            settings=unit,
        )

    def draw(self, plan: transaction.Plan[str], key: Key) -> Synthetic:
        """Return the release; tell the owner what did not fit."""
        order, settings = self.order, self.order.settings
        table = of_persons(self.table, settings, key)
        complete = order.bought(table, key)
        codes, unfit = complete.encode(table[list(complete.columns)])
        for column in order.kinds:
            if complete.columns[column] in NOTHING.values():
                unfit[column] = "no value was frequent enough to give a bound or a level"
        for column, words in unfit.items():
            warnings.warn(f"column {column!r}: {words} (secret)", stacklevel=4)
        bound = order.bound if settings.unit == ROW else replace(order.bound, unit=plan.settings)
        public = bound.public(order.epsilon)
        receipt = _receipt(public, complete, order, key.experiment)
        counts = count(codes, order.plan(complete), key)
        return Synthetic(receipt, complete, order.target, settings, counts)


def _receipt(bound: Bound, schema: Schema, order: Order, seeded: bool) -> Receipt:
    """Return what is promised, with all that it rests on."""
    marked, bought, given = schema.marked, tuple(order.kinds), order.declared.values()
    for holds, assumption in (
        (marked, Assumption.CONSTANTS_FROM_TABLE),
        (any(not (one.from_data or one.bought) for one in given), Assumption.PUBLIC_CONSTANTS),
        (any(one.bought for one in given), Assumption.CONSTANTS_FROM_ANOTHER_RELEASE),
        (bought, Assumption.BOUGHT_CONSTANTS),
        (order.facts, Assumption.DECLARED_FACTS),
    ):
        bound = bound.assuming(assumption) if holds else bound
    return Receipt(
        worst_case=bound.seeded() if seeded else bound,
        source=schema.source,
        from_data=marked,
        bought=bought,
        declared=order.facts,
    )


def checked_rows(name: str, rows: int) -> int:
    """Return a number of rows or tables that can be made.

    Raises:
        ValueError: naming the argument.
    """
    return validate.at_most(name, validate.positive_int(name, rows), _MOST_ROWS)


def load(path: str | os.PathLike[str]) -> Synthetic:
    """Return what :meth:`Synthetic.save` wrote.

    The file may be anybody's: nothing is made of a size that it only speaks of.

    Raises:
        ValueError: naming the file, if it was cut, edited, is of another format or too large.
        OSError: if it cannot be read.
    """
    try:
        return of_bytes(store.read_shared(Path(path)))
    except ValueError as error:
        raise ValueError(f"{path} holds no synthetic table: {error}") from error


def of_bytes(content: bytes) -> Synthetic:
    """Return what :meth:`Synthetic.to_bytes` returned, however large that is.

    Raises:
        ValueError: naming the entry that is missing or wrong.
    """
    found = files.loads(File, content)
    return Synthetic(found.receipt, found.schema, found.target, found.settings, found.counts())


def _seed(seed: int | None) -> int | None:
    return None if seed is None else validate.positive_int("seed", seed, least=0)


def _random(seed: int | None) -> np.random.Generator:
    return np.random.default_rng(_seed(seed))

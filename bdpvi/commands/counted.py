"""The work of ``bdpvi synthesize``: a table looked at, charged and counted, or gone on with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from bdpvi.commands import quality
from bdpvi.commands.check import look_first
from bdpvi.commands.options import (
    AccountOptions,
    ColumnOptions,
    Delta,
    ScreenOptions,
    remaining,
    table_file_of,
)

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi._ground.types import Budget
    from bdpvi.datasets.identity import Identity
    from bdpvi.datasets.records import Records
    from bdpvi.privacy.ledger import Ledger
    from bdpvi.releases.transaction import Transaction
    from bdpvi.synthesis import Synthetic
    from bdpvi.synthesis.order import Order
    from bdpvi.tables import Machine

T = TypeVar("T")


CountedData = Annotated[
    str,
    typer.Option(
        help="A file, such as CSV, Parquet or Excel; or a folder, a glob or a URL of files of one "
        "kind; read in blocks."
    ),
]


@dataclass(frozen=True, kw_only=True)
class CountOptions:
    """What is counted."""

    epsilon: Annotated[float, typer.Option(help="Worst-case ε of these outputs alone.")]
    delta: Delta = 1e-5
    from_data: Annotated[
        bool,
        typer.Option("--from-data", help="Treat levels and bounds read from the rows as public."),
    ] = False

    @property
    def given(self) -> tuple[str, dict[str, Any]]:
        """The most important column, and more settings of :class:`bdpvi.synthesis.Counts`."""
        return "", {}


class Counting:
    """A table, of which the header is read, and what is counted of it.

    Args:
        data: where it is.
        counts, columns, account: the options.
        in_blocks: whether the table is read in blocks anyway.

    Attributes:
        table: the rows.
        header: the columns that are used.
        known: what its public file declares.
        whom: whom ε protects.
        asked: the arguments of the order, but for the header.
        where: the places of the work.
        blocks: whether the table is read in blocks.
        used: the rows in memory that are used; None of a table in blocks.
        identity: whose rows they are.
    """

    used: pd.DataFrame | None = None
    identity: Identity | None = None

    def __init__(
        self,
        data: str,
        counts: CountOptions,
        columns: ColumnOptions,
        account: AccountOptions,
        in_blocks: bool,
    ) -> None:
        from bdpvi.datasets import table as tables
        from bdpvi.datasets.schema import in_file
        from bdpvi.releases import persons
        from bdpvi.releases.publishing import places
        from bdpvi.synthesis import Counts

        self.data, self.columns, self.account = data, columns, account
        known = table_file_of(data, columns.table, release=False).public(counts.from_data)
        whom = known.people(account.unit, account.rows_per_unit, account.one_row_per_person)
        persons.check_said(data, **whom)
        self.where = places(account.out, account.secret, known.ledger(data, account.ledger))
        self.table = tables.Table.of(data, file=known.file)
        self.header = remaining(list(self.table.header), columns.drop or ())
        self.known, self.whom, self.blocks = known, whom, tables.in_blocks(data) or in_blocks
        target, more = counts.given
        settings = Counts(
            **more,
            unit=whom["unit"],
            rows_per_unit=whom["rows_per_unit"],
            categorical=tuple(columns.categorical or ()),
            numeric=tuple(columns.numeric or ()),
        )
        self.asked: dict[str, Any] = {
            "schema": in_file(known.schema, self.header, known.file),
            "target": target or None,
            "epsilon": counts.epsilon,
            "delta": counts.delta,
            "settings": settings,
        }

    @property
    def price(self) -> dict[str, float]:
        """ε and δ."""
        return {name: self.asked[name] for name in ("epsilon", "delta")}

    @property
    def order(self) -> Order:
        """The release, from header and options alone."""
        from bdpvi.synthesis.order import Order

        return Order.of(self.header, **self.asked)

    def look_first(self, screen: ScreenOptions) -> None:
        """Show the owner what is read otherwise than meant; return the work with its rows."""
        from bdpvi.datasets.encoding import with_text_names
        from bdpvi.datasets.identity import Identity
        from bdpvi.releases import persons

        if self.blocks:
            return
        known, drop = self.known, list(self.columns.drop or ())
        schema = known.schema
        left_out = [] if schema is None else [n for n in schema.left_out if n in self.header]
        look_first(
            Path(self.data),
            known.file,
            screen,
            target=self.asked["target"] or "",
            positive=None,
            public=replace(self.columns.public(known), drop=[*drop, *left_out]),
            unit=self.account.of(known),
        )
        frame = with_text_names(self.table.frame(text=True, least=0))
        used = frame.drop(columns=drop).reset_index(drop=True)
        persons.warn_of_repeats(frame.drop(columns=used.columns), self.whom["unit"], 2)
        person = limit.unit if (limit := self.order.limit) else ""
        self.used, self.identity = used, Identity.of(frame, known.file.signs[:2], person)

    def publish(
        self,
        file: str,
        write: Callable[[Synthetic, Path, Callable[[Path, bytes], None], int], T],
        machine: Machine,
        fraction: float | None = None,
    ) -> tuple[Synthetic, Ledger, T]:
        """Charge, count and publish; return the release, the ledger, and what was written.

        Args:
            file: name of the file of counts.
            write: writes what else is shared: takes the release, the folder, what writes a file,
                and a seed that the release gives; returns it.
            machine: workers and bars.
            fraction: of the rows, held out for the report; None for none.
        """
        from bdpvi.releases import publishing, statement
        from bdpvi.synthesis.described import statement_of
        from bdpvi.synthesis.order import for_persons
        from bdpvi.synthesis.synthetic import of_bytes

        order, where, drop = self.order, self.where, sorted(self.columns.drop or ())
        kept = (self.asked, drop, self.known.file, self.account.other_people, fraction)
        rows, whose = self.records(order, machine)
        digest = self.table.fingerprint()
        people, limit = self.open_ledger(whose)
        assert people.path is not None

        def settle_ledger(ledger: Ledger) -> None:
            ledger.settle(budget=limit)
            for_persons(ledger, order.settings)

        with (
            publishing.work_at(
                where,
                lambda: people,
                settle_ledger,
                table=digest,
                options=hashlib.sha256(repr(kept).encode()).hexdigest(),
                price=self.price,
                ledger=people.path,
            ) as (begun, _),
            publishing.folder_at(where.out) as (public, put),
        ):

            def content() -> bytes:
                place, what = where.out / file, order.settings.door
                step = publishing.transaction(begun, people, what, place, alone=True)
                return self.count_rows(order, rows, step, fraction)

            output = begun.output(content)
            put(public / file, output)
            made = of_bytes(output)
            seed = int.from_bytes(hashlib.sha256(output).digest()[:8], "big")
            written = write(made, public, put, seed)
        statement.write(where.out, statement_of(made, file, output))
        return made, people, written

    def open_ledger(self, whose: Identity | None) -> tuple[Ledger, Budget | None]:
        """Return the table's ledger, and the limit that it gets."""
        from bdpvi._ground.types import Budget
        from bdpvi.releases.publishing import places

        account, known = self.account, self.known
        limit = known.limit(account.limit(self.asked["delta"]))
        people = known.open_ledger(self.data, whose, account.ledger, account.other_people)
        places(self.where.out, self.where.secret, people.path)  # it may be another table's
        if limit is None and people.budget is None and not people.entries():
            limit = Budget(**self.price)
        return people, limit

    def records(
        self, order: Order, machine: Machine
    ) -> tuple[Records[pd.DataFrame], Identity | None]:
        """Return the rows to count, and whose they are; a table in blocks is looked at."""
        from bdpvi._ground import progress
        from bdpvi.datasets.records import Held
        from bdpvi.synthesis.source import look

        if self.used is not None:
            return Held(self.used), self.identity
        track = progress.bar if machine.progress else None
        rows = self.table.records(machine.executor, track=track, what="pass")
        return rows, look(rows, order, self.known.file.signs[:2])  # before there is a ledger

    def count_rows(
        self,
        order: Order,
        rows: Records[pd.DataFrame],
        work: Transaction,
        fraction: float | None,
    ) -> bytes:
        """Return the noisy counts of a table as bytes.

        Args:
            order: the release.
            rows: the rows, in memory, or in blocks and looked at.
            work: the transaction.
            fraction: of the rows, held out for the report, whose numbers the secret folder gets.
        """
        from bdpvi.datasets.records import Held
        from bdpvi.privacy.assumptions import Assumption
        from bdpvi.releases.persons import OTHER_PEOPLE
        from bdpvi.synthesis.order import rows_to_count
        from bdpvi.synthesis.released import Synthesis, as_read
        from bdpvi.synthesis.source import look

        settings = order.settings
        parts: list[pd.DataFrame] = []
        if rows.in_memory and fraction is not None:
            split = work.secret.child("held out")
            both = quality.hold_out(rows.first(), fraction, split, settings.unit, order.person)
            parts = [*both]
            rows = Held(parts[0])
        if rows.in_memory:
            look(rows, order)
        made = as_read(
            work.perform(Synthesis(rows, order)),
            self.known.file,
            columns_dropped=len(self.columns.drop or ()) or None,
            people=OTHER_PEOPLE if self.account.other_people else None,
            table_file=self.known.words_for_receipt or None,
        )
        if parts:
            made = replace(made, receipt=made.receipt.assuming(Assumption.SECRET_SPLIT))
            key = work.charge(Synthesis(rows, order))[1]  # charged already, not again
            same = (rows_to_count(part, settings, key, person=order.person) for part in parts)
            quality.keep(self.where.secret, *same)
        return made.to_bytes()

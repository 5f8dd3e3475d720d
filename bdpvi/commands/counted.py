"""The work of ``bdpvi synthesize``: a table looked at, charged and counted, or gone on with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdpvi._ground import outputs
from bdpvi.commands import quality
from bdpvi.commands.check import look_first
from bdpvi.commands.engine import WorkerOptions
from bdpvi.commands.options import (
    ColumnOptions,
    Delta,
    LedgerOptions,
    Quiet,
    UnitOptions,
    declared,
    remaining,
)
from bdpvi.commands.quality import ReportOptions

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi._ground.progress import Track
    from bdpvi._ground.types import Budget
    from bdpvi.datasets.formats import FileFormat
    from bdpvi.datasets.identity import Identity
    from bdpvi.datasets.records import Records, Spread
    from bdpvi.datasets.table import Table
    from bdpvi.privacy.ledger import Ledger
    from bdpvi.privacy.places import Places
    from bdpvi.releases.table_file import TableFile
    from bdpvi.releases.transaction import Transaction
    from bdpvi.synthesis import Synthetic
    from bdpvi.synthesis.order import Order
    from bdpvi.tables import Machine, Unit

ROWS, COUNTS = "synthetic.csv", "synthetic.json"


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """The synthetic rows that are written."""

    rows: Annotated[
        int | None,
        typer.Option("--rows", help="Rows; by default as many as are estimated."),
    ] = None
    tables: Annotated[
        int,
        typer.Option(help="Number of tables, which vary like tables from other samples and noise."),
    ] = 1
    quiet: Quiet = False

    def check(self) -> None:
        """Check the options before anything is charged."""
        from bdpvi.synthesis.synthetic import checked_rows

        checked_rows("tables", self.tables)
        if self.rows is not None:
            checked_rows("rows", self.rows)

    def write(
        self,
        made: Synthetic,
        folder: Path,
        put: Callable[[Path, bytes], None],
        *,
        seed: int | None = None,
        quiet: bool = False,
    ) -> pd.DataFrame:
        """Write the tables to a folder; return the first. A seed repeats them."""
        from bdpvi._ground import progress

        track: Track[int] = progress.silent if quiet or self.quiet else progress.bar

        def write(name: str, frame: pd.DataFrame) -> pd.DataFrame:
            put(folder / name, rows_text(made, frame))
            return frame

        if self.tables == 1:
            return write(ROWS, made.sample(self.rows, seed=seed))
        first, *_ = (
            write(
                f"synthetic-{at}.csv",
                made.tables(1, self.rows, seed=None if seed is None else seed + at)[0],
            )
            for at in track(range(1, self.tables + 1), "tables")
        )
        return first


@dataclass(frozen=True, kw_only=True)
class CountOptions:
    """What is counted."""

    epsilon: Annotated[float, typer.Option(help="Worst-case ε of all outputs.")]
    delta: Delta = 1e-6
    target: Annotated[str, typer.Option(help="Most important column, such as a label.")] = ""
    also: Annotated[
        list[str] | None,
        typer.Option(help="Columns a,b,c that are counted together too."),
    ] = None
    from_data: Annotated[
        bool,
        typer.Option("--from-data", help="Treat levels and bounds read from the rows as public."),
    ] = False


def rows_text(made: Synthetic, rows: pd.DataFrame) -> bytes:
    """Return the content of a file of rows."""
    from bdpvi.datasets.types import TIMES

    numbers = {name: one for name, one in made.schema.columns.items() if one.integer}
    whole = {name: "Int64" for name, one in numbers.items() if one.kind not in TIMES}
    return outputs.csv_text(rows.astype(whole)).encode()


@dataclass(frozen=True, kw_only=True, eq=False)
class Counting:
    """A table, and what is counted of it.

    Attributes:
        data, table: where it is, and the rows.
        out: where the shared folder will be, as it was given.
        counts, columns, kept: the options.
        known: what its public file declares.
        said, unit: whom ε protects.
        folder: the secret folder, as it was given.
        where: the places of the work.
        used: the rows in memory that are used; None of a table in blocks.
        identity: whose rows they are.
    """

    data: str
    table: Table
    out: Path
    counts: CountOptions
    columns: ColumnOptions
    kept: LedgerOptions
    known: TableFile
    said: dict[str, Any]
    unit: Unit | None
    folder: Path
    where: Places
    blocks: bool
    used: pd.DataFrame | None = None
    identity: Identity | None = None

    @classmethod
    def of(
        cls,
        data: str,
        out: Path,
        counts: CountOptions,
        columns: ColumnOptions,
        whom: UnitOptions,
        kept: LedgerOptions,
        workers: WorkerOptions,
    ) -> Counting:
        """Return the work; of the table the header is read."""
        from bdpvi.datasets.table import Table, in_blocks
        from bdpvi.releases import persons
        from bdpvi.releases.publishing import places, secret_of

        known = declared(data, columns.table, release=False).public(counts.from_data)
        said = known.people(whom.unit, whom.rows_per_unit, whom.one_row_per_person)
        persons.check_said(data, **said)
        return cls(
            data=data,
            table=Table.of(data, file=known.file),
            out=out,
            counts=counts,
            columns=columns,
            kept=kept,
            known=known,
            said=said,
            unit=whom.of(known),
            folder=secret_of(out, kept.secret),
            where=places(out, kept.secret, known.ledger(data, kept.ledger)),
            blocks=in_blocks(data) or workers.given,
        )

    @property
    def file(self) -> FileFormat:
        """How the table is written."""
        return self.known.file

    @property
    def header(self) -> list[str]:
        """The columns that are used."""
        if self.used is not None:
            return list(self.used.columns)
        return remaining(list(self.table.header), self.columns.drop or ())

    @property
    def price(self) -> dict[str, float]:
        """ε and δ."""
        return {"epsilon": self.counts.epsilon, "delta": self.counts.delta}

    @property
    def asked(self) -> dict[str, Any]:
        """The arguments of the order, but for the header."""
        from bdpvi.datasets.schema import in_file
        from bdpvi.synthesis import Counts

        header = remaining(list(self.table.header), self.columns.drop or ())
        return {
            "schema": in_file(self.known.schema, header, self.file),
            "target": self.counts.target or None,
            **self.price,
            "settings": Counts(
                also=tuple(tuple(one.split(",")) for one in self.counts.also or ()),
                unit=self.said["unit"],
                rows_per_unit=self.said["rows_per_unit"],
                categorical=tuple(self.columns.categorical or ()),
                numeric=tuple(self.columns.numeric or ()),
            ),
        }

    @property
    def order(self) -> Order:
        """The release, from header and options alone."""
        from bdpvi.synthesis.order import Order

        return Order.of(self.header, **self.asked)

    def checked(self, report: ReportOptions) -> ReportOptions:
        """Return the options of the report; a table in blocks has none."""
        if not self.blocks:
            return report
        report.check_in_memory()
        return replace(report, no_report=True)

    def looked_at(self, *, yes: bool, quiet: bool) -> Counting:
        """Show the owner what is read otherwise than meant; return the work with its rows."""
        from bdpvi.datasets.encoding import with_text_names
        from bdpvi.datasets.identity import Identity
        from bdpvi.releases import persons

        if self.blocks:
            return self
        drop, schema = list(self.columns.drop or ()), self.known.schema
        header = remaining(list(self.table.header), drop)
        left_out = [] if schema is None else [one for one in schema.left_out if one in header]
        look_first(
            Path(self.data),
            self.file,
            yes=yes,
            quiet=quiet,
            target=self.counts.target,
            positive=None,
            public=replace(self.columns.public(self.known), drop=[*drop, *left_out]),
            unit=self.unit,
        )
        frame = with_text_names(self.table.frame(text=True, least=0))
        used = frame.drop(columns=drop).reset_index(drop=True)
        persons.warn_of_repeats(frame.drop(columns=used.columns), self.said["unit"], 2)
        return replace(self, used=used, identity=Identity.of(frame, self.file.signs[:2]))

    def published(
        self,
        report: ReportOptions,
        samples: SampleOptions,
        workers: WorkerOptions,
        *,
        quiet: bool,
    ) -> tuple[Synthetic, Ledger, pd.DataFrame]:
        """Charge, count and publish; return the release, the ledger, and the shared rows."""
        from bdpvi.releases import publishing
        from bdpvi.synthesis.order import for_persons
        from bdpvi.synthesis.synthetic import of_bytes

        order, where = self.order, self.where
        fraction = None if report.no_report else report.test_fraction
        drop = sorted(self.columns.drop or ())
        kept = (self.asked, drop, self.file, self.kept.other_people, fraction)
        options = hashlib.sha256(repr(kept).encode()).hexdigest()
        with workers.machine(progress=not quiet) as machine:
            rows, whose = self.records(order, machine)
            digest = self.table.fingerprint(machine.executor)
            people, limit = self.opened(whose)
            assert people.path is not None

            def settled(ledger: Ledger) -> None:
                ledger.settle(budget=limit)
                for_persons(ledger, order.settings)

            with (
                publishing.work_at(
                    where,
                    lambda: people,
                    settled,
                    table=digest,
                    options=options,
                    price=self.price,
                    ledger=people.path,
                ) as (work, _),
                publishing.folder_at(where.out) as (public, put),
            ):
                content = work.output(
                    lambda: self.counted(
                        order,
                        rows,
                        publishing.transaction(
                            work, people, "synthesize", where.out / COUNTS, alone=True
                        ),
                        fraction,
                    )
                )
                put(public / COUNTS, content)
                made = of_bytes(content)
                seed = int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
                shared = samples.write(made, public, put, seed=seed, quiet=quiet)
        return made, people, shared

    def opened(self, whose: Identity | None) -> tuple[Ledger, Budget | None]:
        """Return the table's ledger, and the limit that it gets."""
        from bdpvi._ground.types import Budget
        from bdpvi.releases.publishing import places

        given = self.kept.budget
        limit = self.known.limit(None if given is None else Budget(given, self.counts.delta))
        people = self.known.opened(self.data, whose, self.kept.ledger, self.kept.other_people)
        places(self.where.out, self.where.secret, people.path)  # it may be another table's
        if limit is None and people.budget is None and not people.entries():
            limit = Budget(**self.price)
        return people, limit

    def records(self, order: Order, machine: Machine) -> tuple[Any, Identity | None]:
        """Return the rows to count, and whose they are; a table in blocks is looked at."""
        from bdpvi._ground import progress
        from bdpvi.synthesis.source import look

        if not self.blocks:
            return self.used, self.identity
        track = progress.bar if machine.progress else None
        rows = self.table.records(machine.executor, track=track, what="pass")
        return rows, look(rows, order, self.file.signs[:2])  # before there is a ledger

    def counted(
        self,
        order: Order,
        table: pd.DataFrame | Spread[pd.DataFrame],
        work: Transaction,
        fraction: float | None,
    ) -> bytes:
        """Return the noisy counts of a table as bytes.

        Args:
            order: the release.
            table: the rows, in memory, or in blocks and looked at.
            work: the transaction.
            fraction: of the rows, held out for the report, whose numbers the secret folder gets.
        """
        from bdpvi.datasets.records import Held, Spread
        from bdpvi.privacy.assumptions import Assumption
        from bdpvi.releases.persons import OTHER_PEOPLE
        from bdpvi.synthesis.order import counted
        from bdpvi.synthesis.released import Synthesis, as_read
        from bdpvi.synthesis.source import look

        def made_of(rows: Records[pd.DataFrame]) -> Synthetic:
            if isinstance(rows, Held):
                look(rows, order)
            return as_read(work.perform(Synthesis(rows, order)), self.file, **facts)

        facts = {
            "columns_dropped": len(self.columns.drop or ()) or None,
            "people": OTHER_PEOPLE if self.kept.other_people else None,
            "table_file": self.known.described or None,
        }
        if isinstance(table, Spread) or fraction is None:
            return made_of(table if isinstance(table, Spread) else Held(table)).to_bytes()
        settings, split = order.settings, work.secret.child("held out")
        both = quality.kept_out(table, fraction, split, settings.unit, order.person)
        made = made_of(Held(both[0]))
        made = replace(made, receipt=made.receipt.assuming(Assumption.SECRET_SPLIT))
        key = work.charge(Synthesis(Held(both[0]), order))[1]  # charged already, not again
        quality.keep(
            self.where.secret, *(counted(one, settings, key, person=order.person) for one in both)
        )
        return made.to_bytes()

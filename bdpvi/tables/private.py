"""From a table to a model that may be shared: one request, one ε for all outputs."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from bdpvi._ground import store
from bdpvi._ground.schema import from_json, parsed
from bdpvi._ground.types import Budget, Unit
from bdpvi.bayesian.guarantees import Guarantee
from bdpvi.datasets.dataset import Dataset
from bdpvi.datasets.table import Table
from bdpvi.privacy.cost import Bound, Cost
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases import publishing, shared_file, statement
from bdpvi.releases.received import release_of
from bdpvi.releases.transaction import Transaction
from bdpvi.tables.reading import work_of
from bdpvi.tables.request import Machine, Public, Request
from bdpvi.tables.work import Work

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi.bayesian.gated.route import PosteriorDraws
    from bdpvi.models.kinds import OfClasses, OfNumbers
    from bdpvi.releases.released import Release

LEDGER = "ledger.jsonl"
"""The ledger's file in the secret folder, unless it is elsewhere."""


def private(
    table: pd.DataFrame | Dataset | Table | str | os.PathLike[str],
    *,
    target: str = "",
    positive: object = None,
    epsilon: float,
    delta: float = 1e-5,
    draws: int | PosteriorDraws = 1,
    model: OfNumbers | OfClasses | None = None,
    intervals: bool = False,
    guarantee: Guarantee | None = None,
    public: Public | None = None,
    unit: str | Unit | None = None,
    out: str | os.PathLike[str] | None = None,
    secret: str | os.PathLike[str] | None = None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    budget: Budget | None = None,
    machine: Machine | None = None,
) -> Release:
    """Turn a table into a private model: private preprocessing, fit to all rows, charge, draw.

    ε covers all outputs: the preprocessing of the columns, the number of records, and the draws, of
    this call and of all earlier ones on this table. Public preprocessing costs nothing and leaves
    all of ε to the fit. ε is worst-case, for one row added or removed, or all rows of one
    unit.

    Args:
        table: a file, a data frame of pandas or Polars, a relation of DuckDB, a table or stream of
            pyarrow, a query with its connection, or records with public preprocessing. Or a table
            in blocks, which need not fit in memory: a folder or a glob of files of one kind, a URL,
            a Dask data frame, or :class:`bdpvi.datasets.table.Table`. With a ``unit`` all rows of
            a person must lie in one block; :func:`bdpvi.datasets.partition` writes such a table.
            :meth:`bdpvi.Table.of` says how a CSV file is written (``file=``), and so does the
            public file beside it that ``bdpvi table`` writes. That also declares columns, ``unit``,
            ledger and budget, which arguments override, and the receipt says so.
        target, positive, epsilon, delta, draws, model, intervals, guarantee: what is asked, see
            :class:`bdpvi.tables.Request`.
        public: what is known of the table without its rows: columns, bounds, levels, classes, its
            number of rows; see :class:`bdpvi.tables.Public`.
        unit: the column that names persons, if the guarantee is for all rows of a person; or a
            :class:`bdpvi.tables.Unit`, with the most rows of each to use. ``Unit()`` says that
            everybody has one row. A file needs one of them; a data frame without it has one row of
            each person. A new file that shares rows with another account is refused without a
            ``ledger``, unless ``Unit(other_people=True)`` says that nobody is in both.
        out: new folder for ``release.json``, which may be shared. Without it nothing is written.
        secret: new folder for the work in progress; ``OUT.secret`` by default. Never share it.
            After an interruption the same call resumes there and pays nothing twice. At the end it
            holds a copy of the output, or the result of a training on a table in blocks.
        ledger: the table's ledger, or its file, which is created if missing. By default it lies
            beside the table's file, so that another ``out`` still uses the same ledger. A data
            frame with the rows of an account that this process has used is charged there; for
            any other it lies in the secret folder, and receipts add what else this process spent on
            the same rows.
        budget: the total that may be spent on the table; by default ε and δ of the first call. Give
            a larger one if later calls need more.
        machine: workers, device and progress bars; see :class:`bdpvi.tables.Machine`.

    Raises:
        TooFewRecordsError: if a declared number of records is too small, before any charge; or if
            the noisy number is, before further charges. Draws behind a gate are refused by it at
            their price.
        ValueError: if header, preprocessing or options are invalid, never because of a row; or if
            the rows have an account already.

    Warns:
        PrivacyUtilityWarning: if there are few records.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": [*range(20, 70)] * 40, "sick": ["no", "yes"] * 1000})
    >>> from bdpvi.datasets import constants_of
    >>> from bdpvi.tables import Public
    >>> public = Public(constants=constants_of({"source": "By law.", "age": [18, 80]}))
    >>> release = private(frame, target="sick", positive="yes", epsilon=1.0, public=public)
    >>> print(release.receipt)
    worst-case DP ε = 1 (target) at δ = 1e-05, to add or remove one record
    """
    asked = Request(
        target=target,
        positive=positive,
        epsilon=epsilon,
        delta=delta,
        draws=draws,
        model=model,
        intervals=intervals,
        guarantee=guarantee,
        public=public or Public(),
        unit=unit if unit is None or isinstance(unit, Unit) else Unit(unit),
    )
    work = work_of(
        table, asked, out=out, secret=secret, ledger=ledger, budget=budget, machine=machine
    )
    if work.where is not None:
        return write_release(work)
    return work.perform(Transaction(work.ledger, what=asked.what))


def write_release(work: Work) -> Release:
    """Charge, fit and publish; resume if an earlier call was interrupted or has ended."""
    kept, where, asked = work.people.kept, work.where, work.asked
    assert where is not None
    secret, (table, options) = where.secret, work.digests()

    def open_ledger() -> Ledger:
        if kept is None:
            work.people.share(Ledger.at(secret / LEDGER).join(*work.some()))
        return work.ledger

    made: list[Release] = []
    with (
        store.new_folder(where.out.parent),
        publishing.work_at(
            where,
            open_ledger,
            work.settle,
            table=table,
            options=options,
            price={"epsilon": asked.epsilon, "delta": asked.delta},
            ledger=(kept and kept.path) or secret / LEDGER,
            own=kept is None,
        ) as (begun, ledger),
        publishing.file_at(where.out, shared_file.ROOM) as put,
    ):

        def content() -> bytes:
            step = publishing.transaction(begun, ledger, asked.what, where.out)
            made.append(work.perform(step, secret))
            return shared_file.release_bytes(made[0])

        output = begun.output(content)
        put(output)
    statement.write(where.out.parent, statement.of_release(output))
    if made:
        return made[0]
    from bdpvi.bayesian import storage  # late: it loads Pyro

    spent = storage.open_ledger(secret).worst_case(asked.delta)
    stated = parsed(output)["receipt"]["worst_case"]
    if spent and stated:
        spent = spent.assuming(*from_json(Bound, stated).assumptions)
    return replace(release_of(output), secret=Cost(worst_case=spent))

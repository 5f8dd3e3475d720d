"""From a table to a model that may be shared: one request, one ε for all outputs."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bdpvi._ground import store
from bdpvi._ground.checkpoint import Checkpoint
from bdpvi._ground.host import device_of
from bdpvi._ground.progress import bar
from bdpvi._ground.schema import from_json, parsed
from bdpvi._ground.types import Budget, PrivacyUtilityWarning, Unit
from bdpvi.bayesian import storage
from bdpvi.bayesian.drawing import Asked
from bdpvi.bayesian.fit import Fit, Training, fit
from bdpvi.bayesian.guarantees import BayesianDP, Guarantee
from bdpvi.bayesian.releases import carried_out
from bdpvi.datasets.dataset import BlockData, Data, Dataset, People
from bdpvi.datasets.encoding import with_text_names
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.identity import Identity
from bdpvi.datasets.looks import misread, tell_of_misread
from bdpvi.datasets.objects import in_memory
from bdpvi.datasets.origin import DECLARED, MULTILINE, declared
from bdpvi.datasets.records import Held, Records
from bdpvi.datasets.table import Table, in_blocks
from bdpvi.datasets.tables import dataset_from_frame, read_file
from bdpvi.datasets.units import RowLimit, at_most, persons_of, without_unit
from bdpvi.guides import Laplace
from bdpvi.privacy.accounts import account, in_use, joined
from bdpvi.privacy.book import ROW, checked
from bdpvi.privacy.cost import Bound, Cost
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.perturbed_objective import PerturbedObjective
from bdpvi.privacy.places import Places
from bdpvi.releases import intent, persons, publishing, shared_file
from bdpvi.releases.received import release_of
from bdpvi.releases.table_file import TableFile
from bdpvi.releases.transaction import Transaction
from bdpvi.tables import encoded, spread
from bdpvi.tables.allowance import Remaining, setup
from bdpvi.tables.encoded import encode, encoded_of, rows_of
from bdpvi.tables.prepared import Prepared
from bdpvi.tables.rehearsal import rehearse
from bdpvi.tables.request import Machine, Public, Request
from bdpvi.tables.rows import PERSON, Encoded, Rows
from bdpvi.tables.setup import Setup
from bdpvi.tables.validation import check, purchase

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi.models.kinds import OfClasses, OfNumbers
    from bdpvi.releases.released import Release

MODEL = "release.json"
"""The file in the public folder."""
TRAINING = "training"
"""The folder in the secret folder for the state of a training on a table in blocks."""
LEDGER = "ledger.jsonl"
"""The ledger's file in the secret folder, unless it is elsewhere."""


def private(
    table: pd.DataFrame | Dataset | Table | str | os.PathLike[str],
    *,
    target: str = "",
    positive: object = None,
    epsilon: float,
    delta: float = 1e-5,
    draws: int = 1,
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
        out: new folder for :data:`MODEL`, which may be shared. Without it nothing is written.
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
            the noisy number is, before further charges.
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
        unit=Unit(unit) if isinstance(unit, str) else unit,
    )
    given: dict[str, Any] = {"out": out, "secret": secret, "ledger": ledger, "budget": budget}
    work = Work.of(table, asked, machine=machine, **given)
    if work.where is not None:
        return work.written()
    return work.released(Transaction(work.ledger, what=asked.what))


def places(
    out: str | os.PathLike[str], secret: str | os.PathLike[str] | None = None
) -> tuple[Path, Path]:
    """Return the file that may be shared and the secret folder."""
    folder = Path(out).with_name(f"{Path(out).name}.secret") if secret is None else Path(secret)
    return Path(out) / MODEL, folder


@dataclass(frozen=True, eq=False)
class Work:
    """A table and what is asked of it.

    Attributes:
        table: the rows, raw or encoded.
        asked: the request.
        people: the people in the table, with their ledger.
        budget: the total that may be spent on them.
        machine: workers, device and progress bars.
        file: how a CSV file is written.
        where: paths of its files, if it has any.
        limit: the rows used of each person of a table in blocks; None for all.
        known: what the table's public file declares, if it has one.
        trial: whether a training has a few steps only.
    """

    table: pd.DataFrame | Dataset | Table
    asked: Request
    people: People = field(default_factory=People)
    budget: Budget | None = None
    machine: Machine = field(default_factory=Machine)
    file: FileFormat = field(default_factory=FileFormat)
    where: Places | None = None
    limit: RowLimit | None = None
    known: TableFile = field(default_factory=TableFile)
    trial: bool = False

    @classmethod
    def of(
        cls,
        table: pd.DataFrame | Dataset | Table | str | os.PathLike[str],
        asked: Request,
        *,
        out: str | os.PathLike[str] | None = None,
        secret: str | os.PathLike[str] | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        budget: Budget | None = None,
        machine: Machine | None = None,
        known: TableFile | None = None,
    ) -> Work:
        """Read the table; arguments as for :func:`private`. A refusal leaves no ledger.

        Args:
            known: what its public file declares; by default that of the file beside it.
        """
        machine = machine or Machine()
        torch.zeros(1, dtype=torch.float64, device=device_of(machine.device)).cpu()  # or refused
        table = in_memory(table)
        path = table.path or table if isinstance(table, Table) else table
        known = TableFile.beside(path).public() if known is None else known
        said = protected(known, path, asked.unit)
        checked(budget := known.limit(budget), said["unit"], said["rows_per_unit"])
        own = known.ledger(path, ledger)
        kept = table.people.kept if own is None and isinstance(table, Dataset) else own
        ledger_file = kept.path if isinstance(kept, Ledger) else kept and Path(kept)
        where = None if out is None else _held(*places(out, secret), ledger_file)
        if asked.public.types is None:
            asked = replace(asked, public=replace(asked.public, types=known.schema))
        rows: Any = table  # read below
        work = cls(rows, asked, People(**said), budget, machine, known.file, where, known=known)
        identity: Any
        work, identity = work._read(own is not None or in_use())
        check(work.asked)
        work.check()
        rehearse(work)
        work.look()
        if identity is True:
            identity = work.looked[1]
        if own is None and identity is not False:
            own = joined(identity, **said)
        if own is not None:
            more = asked.unit is not None and asked.unit.other_people
            whose = None if isinstance(identity, bool) else identity
            found = account(path, whose, ledger, own, other_people=more)
            if out is not None:  # the account may be that of another table
                _held(*places(out, secret), found.path)
            work.people.share(found)
        return work

    def _read(self, keyed: bool) -> tuple[Work, Identity | bool]:
        """Return the work with its rows or their blocks, and whose rows they are.

        Args:
            keyed: whether that is wanted. Of a table in blocks the first pass finds it.
        """
        table, asked, file = self.table, self.asked, self.file
        if in_blocks(table) or (_is_path(table) and self.machine.executor is not None):
            table = Table.of(table, file=file)
            types = asked.public.types or table.schema
            public = replace(asked.public, types=types).in_file(list(table.header), table.file)
            asked = replace(asked, public=public, name=asked.name or spread.name_of(table))
            spread.check(asked)
            work = replace(self, table=table, asked=asked, file=table.file)._of_persons()
            return work, keyed
        if self.machine.executor is not None:
            raise ValueError("executor: a table in memory needs no workers; leave it out")
        if isinstance(table, Dataset):
            return replace(self, asked=_of_records(asked, table), people=table.people), False
        if isinstance(table, str | os.PathLike):
            raw, named = not asked.public.from_data, (self.people.unit, *asked.public.categorical)
            name = asked.name or Path(table).stem
            table, types = read_file(table, file, raw, asked.public.types, named)
            asked = replace(asked, public=replace(asked.public, types=types), name=name)
        assert not isinstance(table, Table)
        asked = replace(asked, name=asked.name or "data")
        identity: Identity | bool = False
        if keyed:
            identity = Identity.of(with_text_names(table), file.signs[:2])
        if self.people.unit == ROW:
            persons.warn_of_repeats(table, ROW, 5)
        return replace(self, table=table, asked=asked)._of_persons(), identity

    def _of_persons(self) -> Work:
        """Return the work with the first rows of each person, if they may have several."""
        if (unit := self.people.unit) == ROW:
            return self
        type_, public = self.asked.public.of_unit(unit)
        asked, limit = (
            replace(self.asked, public=public),
            RowLimit(unit, self.people.rows_per_unit, type_),
        )
        if isinstance(self.table, Table):
            without_unit(self.table.header, unit)
            return replace(self, asked=asked, limit=limit)
        assert not isinstance(self.table, Dataset)
        kept = at_most(with_text_names(self.table), unit, limit.rows, type=type_)
        numbered = kept.groupby(persons_of(kept[unit], type_)).ngroup()
        table = kept.drop(columns=unit).set_index(numbered.rename(PERSON))
        return replace(self, table=table, asked=asked)

    def look(self) -> None:
        """Show the owner what may be read otherwise than meant, before anything is charged."""
        if isinstance(self.table, Dataset):
            return
        one_file = isinstance(self.table, Table) and os.path.isfile(self.table.path)
        if (one_file or not isinstance(self.table, Table)) and not self.asked.public.from_data:
            rows = self.table.first()[0] if isinstance(self.table, Table) else self.table
            types = self.asked.public.read_by
            used = [name for name in self.header if name not in self.asked.public.drop]
            tell_of_misread(misread(with_text_names(rows), types, used), types)
        _ = self.looked  # the first pass, which tells what it finds

    @cached_property
    def rows(self) -> Rows:
        """The raw rows that have a target, in memory."""
        assert not isinstance(self.table, Dataset | Table)
        return rows_of(self.table, self.asked)

    @property
    def spread(self) -> Records[pd.DataFrame] | None:
        """The rows of a table in blocks, the first ones of each person."""
        found = self._all_rows
        return found if found is None or self.limit is None else found.map(self.limit.of)

    @property
    def _all_rows(self) -> Records[pd.DataFrame] | None:
        if not isinstance(self.table, Table):
            return None
        track = bar if self.machine.progress else None
        return self.table.records(self.machine.executor, track=track, what="pass")

    @cached_property
    def looked(self) -> tuple[int, Identity | None]:
        """The number of rows that have a target, and, of a table in blocks, whose rows it has."""
        if (rows := self._all_rows) is not None:
            return spread.look(rows, self.asked, self.limit, self.file.signs[:2])
        assert not isinstance(self.table, Dataset | Table)
        return spread.look(Held(self.table), self.asked)

    @property
    def header(self) -> list[str]:
        """The names of the table's columns, without that of persons."""
        if isinstance(self.table, Table):
            named = list(self.table.header)
            return named if self.limit is None else without_unit(named, self.limit.unit)
        assert not isinstance(self.table, Dataset)
        return list(with_text_names(self.table).columns)

    @cached_property
    def records(self) -> Dataset | None:
        """All records if encoded or with exact bounds; None if they are still to be encoded."""
        asked, public = self.asked, self.asked.public
        if isinstance(self.table, Dataset):
            return replace(self.table, preprocessing=self._noting(self.table.preprocessing))
        if not public.from_data or isinstance(self.table, Table):
            return None
        data = dataset_from_frame(
            self.table,
            asked.target,
            positive=asked.positive,
            types=public.types,
            name=asked.name,
            drop=public.drop,
            categorical=public.categorical,
            **public.measuring,
        )
        noted = self._noting(data.preprocessing)
        return replace(data, preprocessing=noted, people=self.people)

    def _noting(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """Return the description of the records, with the declarations used to read them."""
        said = self.asked.declared
        said |= declared(**self.file.declared, table_file=self.known.described)
        if isinstance(self.table, Dataset):  # its targets are 0 and 1, or numbers of classes
            said = {name: one for name, one in said.items() if name not in ("positive", "classes")}
        elif self.people.unit == ROW:
            said |= declared(persons=persons.ONE_ROW)
        noted = {**made, DECLARED: {**said, **made.get(DECLARED, {})}}
        return noted | ({MULTILINE: True} if self.file.multiline else {})

    @property
    def whole(self) -> Remaining:
        """The whole allowance, before any charge."""
        return Remaining.whole(self.asked.distance, self.people.rows_per_unit)

    @property
    def solved(self) -> tuple[PerturbedObjective, ...]:
        """The event of the last solved release, if there is one."""
        events = [e for one in self.people.ledger.entries() for e in one.events or ()]
        return tuple([e for e in events if isinstance(e, PerturbedObjective)][-1:])

    def check(self) -> None:
        """Check header, preprocessing and options before anything is charged or stored.

        Raises:
            ValueError: if one, which it names, is invalid.
        """
        if self.records is not None:
            encoded.promising(self.asked, self.records.x.shape[1], 0.0)
            return
        model: Any = self.asked.model
        if model is not None and (model.levels or getattr(model, "exposure", None) is not None):
            raise ValueError(
                f"model={model!r:.80}: column numbers are assigned during encoding, so leave "
                "levels= and exposure= out of the model, and give exposure=NAME"
            )
        bought = purchase(self.asked, self.header)
        encoded.check(self.asked, bought, self.whole)
        if self.asked.bayesian and not bought.empty:
            raise ValueError(
                f"guarantee: a {BayesianDP().name} guarantee or a weaker one needs public bounds "
                "or categories for all columns, as privately estimated ones are outputs too; give "
                "--constants, or leave guarantee out"
            )

    @property
    def ledger(self) -> Ledger:
        """The ledger of these people."""
        found: Ledger = self.people.of(self._some)
        return found

    def _some(self) -> tuple[Any, ...]:
        """Return records by which the table is known again."""
        if isinstance(self.table, Dataset):
            return self.table.some()
        return (self.table if self._all_rows is None else self._all_rows.first(),)

    def dataset(self, work: Transaction, left: Remaining) -> tuple[Data, Encoded | None]:
        """Return all records, and how they were encoded unless the preprocessing is given."""
        asked = self.asked
        if self.records is not None:
            return self.records, None
        rows: Records[Rows] = (
            Held(self.rows) if self.spread is None else self.spread.map(rows_of, asked)
        )
        found = encode(rows, self.header, asked, work.perform, left=left)
        meaning: dict[str, Any] = {"column": asked.target}
        if asked.model is None:
            positive = asked.label(asked.positive)
            meaning |= {"positive": positive, "negative": f"not {positive}"}
        elif asked.public.classes:
            meaning["classes"] = asked.labels
        told: dict[str, Any] = {
            "feature_names": found.encoding.feature_names,
            "name": asked.name,
            "preprocessing": self._noting(
                {"encoding": found.encoding.to_dict(), "target": meaning}
            ),
            "people": self.people,
        }
        parts = rows.map(encoded_of, found.encoding)
        if isinstance(parts, Held):
            return Dataset(*parts.part, **told), found
        return BlockData(parts, self.looked[0], **told), found

    def released(self, work: Transaction, folder: Path | None = None) -> Release:
        """Return the release: plan, charge and draw everything as one work.

        Args:
            work: a transaction on this table's ledger.
            folder: secret folder for the state of a training on blocks; None keeps none.
        """
        asked, ledger = self.asked, work.ledger
        self._settle(ledger)
        with ExitStack() as stack:
            with ledger.locked():  # nobody spends between this check and the charge
                left = Remaining.of(asked, ledger, work.before())
                if not asked.bayesian:  # a Bayesian work only pays for draws
                    all_of_it = f"ε = {asked.epsilon:g}"
                    stack.enter_context(work.reserved(asked.epsilon, asked.delta, all_of_it))
            data, found = self.dataset(work, left)
            self._warn(data, found)
            chosen = setup(asked, found)
            chosen = chosen.short if self.trial else chosen
            if chosen.trains and isinstance(data, Dataset):
                data = data.to(device_of(self.machine.device), None)
            fitted = self._fitted(chosen, data, folder)
            fitted.kept.name = work.name
            if isinstance(fitted, Prepared):
                return fitted.release(epsilon=asked.epsilon, delta=asked.delta, work=work)
            guarantee, rows = asked.guarantee, asked.public.rows
            if isinstance(guarantee, BayesianDP) and guarantee.rows is None and rows is not None:
                guarantee = replace(guarantee, rows=rows)  # by which a temperature is planned
            wanted = Asked(
                draws=asked.draws,
                epsilon=asked.epsilon,
                delta=asked.delta,
                guarantee=guarantee,
                work=work,
            )
            return carried_out(fitted, wanted)

    def _fitted(self, chosen: Setup, data: Data, folder: Path | None) -> Fit | Prepared:
        """Return the posterior of a Bayesian release, otherwise the rows with their route."""
        if chosen.route is None:
            assert isinstance(data, Dataset)
            model: Any = chosen.model
            where = Training(device=str(data.x.device))
            return fit(model, Laplace(model), data, training=where, progress=self.machine.progress)
        checkpoint = None
        if folder is not None and isinstance(data, BlockData) and chosen.trains:
            checkpoint = folder / TRAINING  # reading blocks again takes long
            Checkpoint(checkpoint, {"rows": "in blocks"}).begin()
        return chosen.prepared(data, progress=self.machine.progress, checkpoint=checkpoint)

    def _warn(self, data: Data, found: Encoded | None) -> None:
        """Warn of a large δ, and of what private preprocessing cannot do with few records."""
        delta = self.asked.delta
        about = len(data) if found is None or found.records is None else max(found.records, 1.0)
        if delta * about >= 1:
            warnings.warn(
                f"delta={delta:g} is at least 1/N = {1 / about:.2g}: publishing one row "
                "at random would satisfy it too. Choose a smaller δ",
                UserWarning,
                stacklevel=4,
            )
        for few in () if found is None else (
            found.caution(self.asked.epsilon), found.nameless(self.asked.public.categorical)
        ):  # fmt: skip
            if few:
                warnings.warn(few, PrivacyUtilityWarning, stacklevel=4)

    def _settle(self, ledger: Ledger) -> None:
        """Set budget and unit, if there are no charges yet."""
        budget = self.budget
        if budget is None and ledger.budget is None and not ledger.entries():
            budget = Budget(self.asked.epsilon, self.asked.delta)
        people = self.people
        ledger.settle(budget=budget, unit=people.unit, rows_per_unit=people.rows_per_unit)
        ledger.limits_all = self.budget is not None

    def written(self) -> Release:
        """Charge, fit and publish; resume if an earlier call was interrupted or has ended."""
        kept, where, asked = self.people.kept, self.where, self.asked
        assert where is not None
        table, options = self.digests()
        ledger_file = (kept and kept.path) or where.secret / LEDGER

        def opened() -> Ledger:
            if kept is None:
                self.people.share(Ledger.at(where.secret / LEDGER).joined(*self._some()))
            return self.ledger

        price = {"epsilon": asked.epsilon, "delta": asked.delta}
        given: dict[str, Any] = {"table": table, "options": options, "price": price}
        given |= {"ledger": ledger_file, "own": kept is None}
        made: list[Release] = []
        with (
            store.new_folder(where.out.parent),
            publishing.work_at(where, opened, self._settle, **given) as (work, ledger),
            publishing.file_at(where.out, shared_file.ROOM) as put,
        ):

            def content() -> bytes:
                step = publishing.transaction(work, ledger, asked.what, where.out)
                made.append(self.released(step, where.secret))
                return shared_file.release_bytes(made[0])

            output = work.output(content)
            put(output)
        if made:
            return made[0]
        return replace(release_of(output), secret=_spent(where.secret, output, asked.delta))

    def digests(self) -> tuple[str, str]:
        """Return digests of the table and of the options."""
        if isinstance(self.table, Dataset):
            table = self.table.fingerprint()
        elif isinstance(self.table, Table):
            table = self.table.fingerprint(self.machine.executor)
            if self.limit is not None:
                table = hashlib.sha256(f"{table} {self.limit!r}".encode()).hexdigest()
        else:
            table = hashlib.sha256(self.table.to_csv().encode("utf-8", "replace")).hexdigest()
        options = replace(self.asked, name="data")
        return table, hashlib.sha256(repr(options).encode()).hexdigest()


def protected(known: TableFile, path: object, unit: Unit | None) -> dict[str, Any]:
    """Return whom ε protects, as the caller says or the table's public file does.

    Raises:
        ValueError: if neither says it of a file.
    """
    given = unit or Unit()
    said = known.people(given.column, given.rows, unit is not None and not unit.column)
    persons.check_said(path, **said)
    return {name: said[name] for name in ("unit", "rows_per_unit")}


def _of_records(asked: Request, data: Dataset) -> Request:
    """Return the request of records that are encoded already."""
    public = asked.public
    if public.exposure:
        raise ValueError(
            "exposure: for encoded records it belongs to the model, as a column number"
        )
    if classes := getattr(asked.model, "classes", 0):
        public = replace(public, classes=tuple(range(classes)))
    positive = asked.positive if asked.model else 1
    return replace(asked, target="y", name=data.name, positive=positive, public=public)


def _is_path(table: object) -> bool:
    return isinstance(table, str | os.PathLike)


def _spent(folder: Path, output: bytes, delta: float) -> Cost:
    """Return the worst case of everything spent, with the assumptions of a finished release."""
    found = storage.open_ledger(folder).worst_case(delta)
    told = parsed(output)["receipt"]["worst_case"]
    if found and told:
        found = found.assuming(*from_json(Bound, told).assumptions)
    return Cost(worst_case=found)


def _held(file: Path, secret: Path, ledger: Path | None) -> Places:
    """Check the paths of a work against each other."""
    output = intent.output_of(secret / intent.NAME)
    return Places.of(out=file, secret=secret, ledger=ledger, output=output)

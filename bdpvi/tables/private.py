"""From a table to a model that may be shared: one pipeline, one ε for all outputs."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bdpvi._ground import store
from bdpvi._ground.checkpoint import Checkpoint
from bdpvi._ground.host import HOST, device_of
from bdpvi._ground.progress import bar
from bdpvi._ground.schema import to_json
from bdpvi._ground.types import Budget, PrivacyUtilityWarning
from bdpvi.bayesian import storage
from bdpvi.bayesian.asked import Asked
from bdpvi.bayesian.guarantees import BayesianDP, Guarantee, WorstCaseDP
from bdpvi.bayesian.neighbours.route import Remove
from bdpvi.bayesian.optimum.route import Optimum
from bdpvi.bayesian.releases import carried_out
from bdpvi.datasets.dataset import BlockData, Data, Dataset, People
from bdpvi.datasets.encoding import with_text_names
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.identity import Identity
from bdpvi.datasets.looks import misread, tell_of_misread
from bdpvi.datasets.objects import in_memory
from bdpvi.datasets.origin import DECLARED, MULTILINE, declared
from bdpvi.datasets.records import Held, Records
from bdpvi.datasets.schema import in_file
from bdpvi.datasets.table import Table, in_blocks
from bdpvi.datasets.tables import dataset_from_frame, read_file
from bdpvi.datasets.units import RowLimit, at_most, persons_of, without_unit
from bdpvi.privacy.accounts import account, in_use, joined
from bdpvi.privacy.book import ROW, checked
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.perturbed_objective import PerturbedObjective
from bdpvi.privacy.places import Places
from bdpvi.releases import intent, persons, shared_file
from bdpvi.releases.received import release_of
from bdpvi.releases.table_file import TableFile
from bdpvi.releases.transaction import Transaction
from bdpvi.tables import encoded, files, spread
from bdpvi.tables.encoded import encode, encoded_of, rows_of
from bdpvi.tables.pipeline import Pipeline, Remaining
from bdpvi.tables.prepared import Prepared
from bdpvi.tables.rehearsal import rehearse
from bdpvi.tables.rows import PERSON, Encoded, Rows

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi.bayesian.fit import Fit
    from bdpvi.datasets.encoding import Encoding
    from bdpvi.datasets.schema import Schema
    from bdpvi.guides import GaussianGuide
    from bdpvi.models.kinds import OfClasses, OfNumbers
    from bdpvi.releases.released import Release
    from bdpvi.tables.recipe import Recipe

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
    base_rate: float | None = None,
    expected_rows: float | None = None,
    constants: Encoding | None = None,
    types: Schema | None = None,
    from_data: bool = False,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    numeric: Sequence[str] = (),
    hashed: bool | None = None,
    settings: Recipe | None = None,
    guide: type[GaussianGuide] | None = None,
    model: OfNumbers | OfClasses | None = None,
    classes: Sequence[object] = (),
    exposure: str = "",
    intervals: bool = False,
    guarantee: Guarantee | None = None,
    name: str = "",
    measuring: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    secret: str | os.PathLike[str] | None = None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    budget: Budget | None = None,
    unit: str = ROW,
    rows_per_unit: int = 1,
    one_row_per_person: bool = False,
    other_people: bool = False,
    separator: str = ",",
    multiline: bool = False,
    charset: str = "utf-8",
    decimal: str = ".",
    thousands: str = "",
    date_format: str = "",
    executor: Executor | None = None,
    device: str = "auto",
    progress: bool = True,
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
        target: the column to predict, yes or no unless there is a ``model``. Rows with a blank
            target are left out, independently of each other.
        positive: the target value that counts as 1; all others count as 0.
        epsilon: ε of everything spent on this table, including earlier charges.
        delta: δ of the same.
        draws: number of posterior samples.
        base_rate: a public guess of the fraction of class 1.
        expected_rows: N as declared by the owner, within a factor of 3; it is published, rounded
            to 1, 2 or 5 times a power of ten. By default N is estimated privately.
        constants: public preprocessing bounds of some or all columns, which cost nothing; others
            are estimated privately.
        types: declared types of columns, with public bounds and levels of some: they decide how
            cells are read, here and in new rows, and go with the release. Identifiers and text are
            left out.
        from_data: consent to exact bounds, read from this table and published, which ε does not
            cover.
        drop: columns to leave out.
        categorical, numeric: columns of public kind; other kinds are estimated privately.
        hashed: whether categories are hashed instead of counted. None: hashed if few names
            would be counted, by the noisy number of records.
        settings: settings of the fit; by default those of :func:`bdpvi.recommended`.
        guide: kind of guide to draw from, instead of objective perturbation.
        model: a regression for numbers, counts or classes instead of yes and no. Rows with another
            kind of target are left out, independently of each other. Linear and Poisson regression
            use :class:`bdpvi.regression.NoisyScores`; others, and any with an exposure,
            :class:`bdpvi.DPVI`.
        classes: the target's public classes, in the order of an ordinal model.
        exposure: column with each row's exposure, such as years at risk, for a model of counts;
            used unchanged, at no price. Rows without a positive exposure are left out.
        intervals: whether the release is for inference: coefficients with intervals that cover,
            by :class:`bdpvi.regression.NoisyScores` or, for many features,
            :class:`bdpvi.DPVI`. Then, and with a ``model``, the number of
            draws has no price, and 1 means 1,000.
        guarantee: as for :func:`bdpvi.release`.
        name: name of the data in reports; by default that of the file or data set.
        measuring: further options of :func:`bdpvi.datasets.dataset_from_frame`, with
            ``from_data``.
        out: new folder for :data:`MODEL`, which may be shared. Without it nothing is written.
        secret: new folder for the work in progress; ``OUT.secret`` by default. Never share it.
            After an interruption the same call resumes there and pays nothing twice. At the end it
            holds a copy of the output, and the fit if draws are from a guide, or the result of a
            training on a table in blocks.
        ledger: the table's ledger, or its file, which is created if missing. By default it lies
            beside the table's file, so that another ``out`` still uses the same ledger. A data
            frame with the rows of an account that this process has used is charged there; for
            any other it lies in the secret folder, and receipts add what else this process spent on
            the same rows.
        budget: the total that may be spent on the table; by default ε and δ of the first call. Give
            a larger one if later calls need more.
        unit: the column that names persons, if the guarantee is for all rows of a person; it is not
            used as a feature.
        rows_per_unit: the most rows of each person to use, the first ones.
        one_row_per_person: that every person has one row, so that ε for a row is ε for a person. A
            file needs this or ``unit``; for a data frame it is the default. The receipt says which.
        other_people: that nobody in this table is in one of another account, although a new file
            shares rows with it: such a file is refused without a ``ledger``, and one with the same
            rows, in any format and order, has the same account. The receipt says so.
        separator, multiline, charset, decimal, thousands, date_format: how a CSV file is written;
            see :class:`bdpvi.datasets.formats.FileFormat`. That values may span several lines is
            stated in the receipt. These, ``types``, ``unit``, the ledger and ``budget`` are by
            default those of the public file beside the table that ``bdpvi table`` writes, if there
            is one, and the receipt says so.
        executor: workers that read a table in blocks and add up its rows, such as a
            :class:`concurrent.futures.ProcessPoolExecutor` or Dask's ``client.get_executor()``; a
            file is then read in blocks. They see rows, never keys or noise, and the release is the
            same to the bit for any number of them.
        device: where :class:`bdpvi.DPVI` and guides are trained: "auto" (CUDA when there is one),
            "cpu", "cuda" or any torch device. Other routes go through the rows a few times, where
            the rows are.
        progress: whether to show progress bars.

    Raises:
        TooFewRecordsError: if a declared number of records is too small, before any charge; or if
            the noisy number is, before further charges.
        ValueError: if header, preprocessing or options are invalid, never because of a row; or if
            the rows have an account already (``other_people``).

    Warns:
        PrivacyUtilityWarning: if there are few records.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": [*range(20, 70)] * 40, "sick": ["no", "yes"] * 1000})
    >>> from bdpvi.datasets import constants_of
    >>> public = constants_of({"source": "By law.", "age": [18, 80]})
    >>> release = private(frame, target="sick", positive="yes", epsilon=1.0, constants=public)
    >>> print(release.receipt)
    worst-case DP ε = 1 (target) at δ = 1e-05, to add or remove one record
    """
    given = locals()
    asked = {one.name: given[one.name] for one in fields(Pipeline)} | {"measuring": measuring or {}}
    if not name:
        del asked["name"]
    work = Work.of(
        table,
        progress=progress,
        executor=executor,
        device=device,
        out=out,
        secret=secret,
        **asked | _declared(table, given),
    )
    if work.where is not None:
        return work.written()
    return work.released(Transaction(work.ledger, what=work.pipeline.what))


def places(
    out: str | os.PathLike[str], secret: str | os.PathLike[str] | None = None
) -> tuple[Path, Path]:
    """Return the file that may be shared and the secret folder."""
    folder = Path(out).with_name(f"{Path(out).name}.secret") if secret is None else Path(secret)
    return Path(out) / MODEL, folder


@dataclass(frozen=True, eq=False)
class Work:
    """A table and its processing.

    Attributes:
        table: the rows, raw or encoded.
        pipeline: the steps and their settings.
        people: the people in the table, with their ledger.
        budget: the total that may be spent on them.
        progress: whether to show progress bars.
        file: how a CSV file is written.
        where: paths of its files, if it has any.
        executor: workers for a table in blocks.
        device: where a training has its records.
        limit: the rows used of each person of a table in blocks; None for all.
        known: what the table's public file declares, if it has one.
    """

    table: pd.DataFrame | Dataset | Table
    pipeline: Pipeline
    people: People = field(default_factory=People)
    budget: Budget | None = None
    progress: bool = True
    file: FileFormat = field(default_factory=FileFormat)
    where: Places | None = None
    executor: Executor | None = None
    device: torch.device = HOST
    limit: RowLimit | None = None
    known: TableFile = field(default_factory=TableFile)

    @classmethod
    def of(
        cls,
        table: pd.DataFrame | Dataset | Table | str | os.PathLike[str],
        *,
        file: FileFormat | None = None,
        progress: bool = True,
        executor: Executor | None = None,
        device: str = "auto",
        out: str | os.PathLike[str] | None = None,
        secret: str | os.PathLike[str] | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        budget: Budget | None = None,
        unit: str = ROW,
        rows_per_unit: int = 1,
        one_row_per_person: bool = False,
        known: TableFile | None = None,
        **pipeline: Any,
    ) -> Work:
        """Read the table; arguments as for :func:`private`. A refusal leaves no ledger."""
        there = device_of(device)
        torch.zeros(1, dtype=torch.float64, device=there).cpu()  # refused before a charge
        table = in_memory(table)
        said: Any = {"unit": unit, "rows_per_unit": rows_per_unit}
        path_of = table.path or table if isinstance(table, Table) else table
        persons.check_said(path_of, **said, one_row_per_person=one_row_per_person)
        checked(budget, unit, rows_per_unit)
        file, known = file or FileFormat(), known or TableFile()
        own = known.ledger(path_of, ledger)
        kept = table.people.kept if own is None and isinstance(table, Dataset) else own
        path = kept.path if isinstance(kept, Ledger) else None if kept is None else Path(kept)
        where = None if out is None else _held(*places(out, secret), path)
        people, limit, identity = People(**said), None, None
        path_given = isinstance(table, str | os.PathLike)
        if in_blocks(table) or (path_given and executor is not None):
            table = Table.of(table, file=file)
            file = table.file
            pipeline = {"name": spread.name_of(table), **pipeline}
            types = pipeline.get("types") or table.schema
            pipeline["types"] = in_file(types, list(table.header), file)
        elif executor is not None:
            raise ValueError("executor: a table in memory needs no workers; leave it out")
        elif isinstance(table, str | os.PathLike):
            pipeline = {"name": Path(table).stem, **pipeline}
            raw = not pipeline.get("from_data")
            named = (unit, *pipeline.get("categorical", ()))
            table, types = read_file(table, file, raw, pipeline.get("types"), named)
            pipeline["types"] = types
        keyed = own is not None or (in_use() and not isinstance(table, Dataset))
        if keyed and not isinstance(table, Dataset | Table):
            identity = Identity.of(with_text_names(table), file.signs[:2])
        if isinstance(table, Dataset):
            pipeline |= {"target": "y", "name": table.name}
            model = pipeline.get("model")
            pipeline |= {} if model else {"positive": 1}
            if classes := getattr(model, "classes", 0):
                pipeline["classes"] = tuple(range(classes))
            if pipeline.get("exposure"):
                raise ValueError(
                    "exposure: for encoded records it belongs to the model, as a column number"
                )
            people = table.people
        elif isinstance(table, Table):
            spread.check(Pipeline(**pipeline))
        elif unit == ROW:
            persons.warn_of_repeats(table, unit, 4)
        if unit != ROW and not isinstance(table, Dataset):
            types = pipeline.get("types")
            type_, pipeline["types"] = (None, None) if types is None else types.of_unit(unit)
            limit = RowLimit(unit, rows_per_unit, type_)
            if isinstance(table, Table):
                without_unit(table.header, unit)
            else:
                table, limit = _of_persons(table, limit), None
        made = Pipeline(**pipeline)
        work = cls(
            table, made, people, budget, progress, file, where, executor, there, limit, known
        )
        work.check()
        rehearse(work)
        work.look()
        if keyed and isinstance(table, Table):
            identity = work.looked[1]
        if own is None and keyed:
            own = joined(identity, unit, rows_per_unit)
        if own is not None:
            found = account(path_of, identity, ledger, own, other_people=made.other_people)
            if out is not None:  # the account may be that of another table
                _held(*places(out, secret), found.path)
            people.share(found)
        return work

    def look(self) -> None:
        """Show the owner what may be read otherwise than meant, before anything is charged."""
        if isinstance(self.table, Dataset):
            return
        if not isinstance(self.table, Table) and not self.pipeline.from_data:
            used = [name for name in self.header if name not in self.pipeline.drop]
            types = self.pipeline.types_used
            tell_of_misread(misread(with_text_names(self.table), types, used), types)
        _ = self.looked  # the first pass, which tells what it finds

    @cached_property
    def rows(self) -> Rows:
        """The raw rows that have a target, in memory."""
        assert not isinstance(self.table, Dataset | Table)
        return rows_of(self.table, self.pipeline)

    @property
    def spread(self) -> Records[pd.DataFrame] | None:
        """The rows of a table in blocks, the first ones of each person."""
        found = self._all_rows
        return found if found is None or self.limit is None else found.map(self.limit.of)

    @property
    def _all_rows(self) -> Records[pd.DataFrame] | None:
        if not isinstance(self.table, Table):
            return None
        track = bar if self.progress else None
        return self.table.records(self.executor, track=track, what="pass")

    @cached_property
    def looked(self) -> tuple[int, Identity | None]:
        """The number of rows that have a target, and, of a table in blocks, whose rows it has."""
        if (rows := self._all_rows) is not None:
            return spread.look(rows, self.pipeline, self.limit, self.file.signs[:2])
        assert not isinstance(self.table, Dataset | Table)
        return spread.look(Held(self.table), self.pipeline)

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
        pipeline = self.pipeline
        if isinstance(self.table, Dataset):
            return replace(self.table, preprocessing=self._noting(self.table.preprocessing))
        if not pipeline.from_data or isinstance(self.table, Table):
            return None
        given = {"drop": pipeline.drop, "categorical": pipeline.categorical, **pipeline.measuring}
        data = dataset_from_frame(
            self.table,
            pipeline.target,
            positive=pipeline.positive,
            types=pipeline.types,
            name=pipeline.name,
            **given,
        )
        noted = self._noting(data.preprocessing)
        return replace(data, preprocessing=noted, people=self.people)

    def _noting(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """Return the description of the records, with the declarations used to read them."""
        said = self.pipeline.declared
        said |= declared(**self.file.declared, table_file=self.known.described)
        if isinstance(self.table, Dataset):  # its targets are 0 and 1, or numbers of classes
            said = {name: one for name, one in said.items() if name not in ("positive", "classes")}
        elif self.people.unit == ROW:
            said |= declared(persons=persons.ONE_ROW)
        noted = {**made, DECLARED: {**said, **made.get(DECLARED, {})}}
        return noted | ({MULTILINE: True} if self.file.multiline else {})

    @property
    def bayesian(self) -> bool:
        """Whether the guarantee, as requested or by the settings, is not worst-case."""
        if self.pipeline.guarantee is not None:
            return self.pipeline.guarantee.name != WorstCaseDP.name
        return not self.pipeline.chosen(self.whole).bounded

    @property
    def whole(self) -> Remaining:
        """The whole allowance, before any charge."""
        return Remaining.whole(self.pipeline.distance, self.people.rows_per_unit)

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
            encoded.promising(self.pipeline, self.records.x.shape[1], 0.0)
            return
        model: Any = self.pipeline.model
        if model is not None and (model.levels or getattr(model, "exposure", None) is not None):
            raise ValueError(
                f"model={model!r:.80}: column numbers are assigned during encoding, so leave "
                "levels= and exposure= out of the model, and give exposure=NAME"
            )
        purchase = self.pipeline.purchase(self.header)
        encoded.check(self.pipeline, purchase, self.whole)
        if self.bayesian and not purchase.empty:
            raise ValueError(
                f"guarantee: a {BayesianDP().name} guarantee or a weaker one, requested or implied "
                "by settings without clip and noise_scale, needs public bounds or categories for "
                "all columns, as privately estimated ones are outputs too; give --constants, or "
                "leave guarantee and settings out"
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
        pipeline = self.pipeline
        if self.records is not None:
            return self.records, None
        rows: Records[Rows] = (
            Held(self.rows) if self.spread is None else self.spread.map(rows_of, pipeline)
        )
        found = encode(rows, self.header, pipeline, work.perform, left=left)
        meaning: dict[str, Any] = {"column": pipeline.target}
        if pipeline.model is None:
            positive = pipeline.positive_label
            meaning |= {"positive": positive, "negative": f"not {positive}"}
        elif pipeline.classes:
            meaning["classes"] = pipeline.labels
        told: dict[str, Any] = {
            "feature_names": found.encoding.feature_names,
            "name": pipeline.name,
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
            folder: secret folder to save a fit of a guide in; None saves none.
        """
        pipeline, ledger = self.pipeline, work.ledger
        self._settle(ledger)
        with ExitStack() as stack:
            with ledger.locked():  # nobody spends between this check and the charge
                left = pipeline.left(ledger, work.before())
                if not self.bayesian:  # a Bayesian work only pays for draws
                    all_of_it = f"ε = {pipeline.epsilon:g}"
                    aside = work.reserved(pipeline.epsilon, pipeline.delta, all_of_it)
                    stack.enter_context(aside)
            if folder is not None and storage.is_fit(folder):
                return self._drawn(files.load(folder), work)
            fit, settings = self._fitted(work, left, folder)
            if folder is not None and not isinstance(fit, Prepared):
                storage.save_fit_in(fit, folder, extra=to_json(settings))
            return self._drawn(fit, work)

    def _fitted(
        self, work: Transaction, left: Remaining, folder: Path | None
    ) -> tuple[Fit | Prepared, Recipe]:
        """Return the fit to all records; preprocessing is charged before it is estimated."""
        pipeline, checkpoint = self.pipeline, None
        data, found = self.dataset(work, left)
        about = len(data) if found is None or found.records is None else max(found.records, 1.0)
        if pipeline.delta * about >= 1:
            warnings.warn(
                f"delta={pipeline.delta:g} is at least 1/N = {1 / about:.2g}: publishing one row "
                "at random would satisfy it too. Choose a smaller δ",
                UserWarning,
                stacklevel=4,
            )
        if found and (few := found.caution(pipeline.epsilon)):
            warnings.warn(few, PrivacyUtilityWarning, stacklevel=4)
        if found and (nameless := found.nameless(pipeline.categorical)):
            warnings.warn(nameless, PrivacyUtilityWarning, stacklevel=4)
        settings = pipeline.chosen(left, found)
        if folder is not None and isinstance(data, BlockData) and settings.trains:
            checkpoint = folder / TRAINING  # reading blocks again takes long
            Checkpoint(checkpoint, {"rows": "in blocks"}).begin()
        if settings.trains and isinstance(data, Dataset):
            data = data.to(self.device, None)
        panel = self.bayesian or settings.noise_scale is None
        fit = settings.fit(
            data,
            neighbours=None if panel else Optimum(Remove(0)),
            progress=self.progress,
            checkpoint=checkpoint,
        )
        fit.kept.name = work.name
        return fit, settings

    def _settle(self, ledger: Ledger) -> None:
        """Set budget and unit, if there are no charges yet."""
        budget = self.budget
        if budget is None and ledger.budget is None and not ledger.entries():
            budget = Budget(self.pipeline.epsilon, self.pipeline.delta)
        people = self.people
        ledger.settle(budget=budget, unit=people.unit, rows_per_unit=people.rows_per_unit)
        ledger.limits_all = self.budget is not None

    def _drawn(self, fit: Fit | Prepared, work: Transaction) -> Release:
        """Charge draws from a fit and return them."""
        pipeline = self.pipeline
        asked = Asked(
            draws=pipeline.chosen().released,
            epsilon=pipeline.epsilon,
            delta=pipeline.delta,
            guarantee=pipeline.guarantee,
            work=work,
        )
        return carried_out(fit, asked)

    def written(self) -> Release:
        """Charge, fit and publish; resume if an earlier call was interrupted or has ended."""
        kept, where = self.people.kept, self.where
        assert where is not None
        table, options = self.digests()
        finished = not store.nothing_at(where.out)
        with (
            store.new_folder(where.out.parent),
            store.held(where.secret),
            nullcontext()
            if finished
            else store.claimed(where.out, room=shared_file.ROOM) as temporary,
        ):
            price = {"epsilon": self.pipeline.epsilon, "delta": self.pipeline.delta}
            file = where.secret / intent.NAME
            begun = intent.begun(
                file,
                table=table,
                options=options,
                charge=price,
                ledger=(kept and kept.path) or where.secret / LEDGER,
            )
            if kept is None:
                self.people.share(Ledger.at(where.secret / LEDGER).joined(*self._some()))
            self._settle(self.ledger)  # before its first line is remembered
            self.ledger.remember(where.secret / intent.HEAD)
            made: list[Release] = []

            def content() -> bytes:
                work = Transaction(
                    self.ledger,
                    begun.secret,
                    begun.facts,
                    kept=True,
                    what=self.pipeline.what,
                    out=f"{where.out.parent.name}/{where.out.name}",
                )
                made.append(self.released(work, where.secret))
                return shared_file.release_bytes(made[0])

            try:
                output = begun.output(content)
            except ValueError as error:
                name, ledger = begun.secret.work, self.ledger
                charged = any(one.of == name for one in ledger.book().charges)
                if charged and type(error) is ValueError:
                    raise ValueError(
                        f"{error}; ε was charged to {ledger.path}, and the same call goes on from "
                        f"{where.secret} (secret) without a second charge"
                    ) from error
                if kept is not None:  # refused without a charge: other works may use the folder
                    begun.abandoned(ledger)
                raise
            if temporary is not None:
                store.fill(temporary, output)
            elif where.out.read_bytes() != output:
                raise ValueError(f"{str(where.out)!r} exists already; nothing is overwritten")
        if made:
            return made[0]
        spent = files.cost(where.secret, self.pipeline.delta)
        return replace(release_of(where.out.read_bytes()), secret=spent)

    def digests(self) -> tuple[str, str]:
        """Return digests of the table and of the options."""
        if isinstance(self.table, Dataset):
            table = self.table.fingerprint()
        elif isinstance(self.table, Table):
            table = self.table.fingerprint(self.executor)
            if self.limit is not None:
                table = hashlib.sha256(f"{table} {self.limit!r}".encode()).hexdigest()
        else:
            table = hashlib.sha256(self.table.to_csv().encode("utf-8", "replace")).hexdigest()
        options = replace(self.pipeline, name="data")
        return table, hashlib.sha256(repr(options).encode()).hexdigest()


def _declared(table: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what arguments of :func:`private` or else the table's public file declare."""
    path = table.path if isinstance(table, Table) else table
    known = TableFile.beside(path).public()
    return {
        "file": known.format(given),
        "types": known.schema if given["types"] is None else given["types"],
        "known": known,
        "ledger": given["ledger"],
        "budget": known.limit(given["budget"]),
        **known.people(given["unit"], given["rows_per_unit"], given["one_row_per_person"]),
    }


def _of_persons(table: pd.DataFrame, limit: RowLimit) -> pd.DataFrame:
    """Return the first rows of every person, numbered instead of named."""
    kept = at_most(with_text_names(table), limit.unit, limit.rows, type=limit.type)
    numbered = kept.groupby(persons_of(kept[limit.unit], limit.type)).ngroup()
    return kept.drop(columns=limit.unit).set_index(numbered.rename(PERSON))


def _held(file: Path, secret: Path, ledger: Path | None) -> Places:
    """Check the paths of a work against each other."""
    output = intent.output_of(secret / intent.NAME)
    return Places.of(out=file, secret=secret, ledger=ledger, output=output)

"""A table and what is asked of it: charged, encoded, fitted and drawn as one work."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bdpvi._ground.checkpoint import Checkpoint
from bdpvi._ground.host import device_of
from bdpvi._ground.progress import bar
from bdpvi._ground.types import Budget, PrivacyUtilityWarning, tell_owner
from bdpvi.bayesian.guarantees import BayesianDP
from bdpvi.datasets.cells import read_cells
from bdpvi.datasets.dataset import BlockData, Data, Dataset, People
from bdpvi.datasets.encoding import with_text_names
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.identity import Identity
from bdpvi.datasets.looks import beyond, tell_of_clamped, tell_of_labels
from bdpvi.datasets.made_up import Copies
from bdpvi.datasets.origin import DECLARED, MULTILINE, declarations
from bdpvi.datasets.records import Held, Records
from bdpvi.datasets.table import LEFT_OUT, ODD, Table
from bdpvi.datasets.tables import dataset_from_frame
from bdpvi.datasets.units import Persons, RowLimit, without_unit
from bdpvi.privacy.book import ROW
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases import persons
from bdpvi.releases.publishing import Places
from bdpvi.releases.route import Allowance
from bdpvi.releases.table_file import TableFile
from bdpvi.releases.transaction import Transaction
from bdpvi.tables.encoded import (
    UNWEIGHTED,
    WITHOUT,
    encode,
    encoded_of,
    features_of,
    rows_of,
    usable,
)
from bdpvi.tables.prepared import Prepared
from bdpvi.tables.request import Machine, Request
from bdpvi.tables.rows import Encoded, Rows
from bdpvi.tables.setup import Setup, remaining, setup

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi.releases.released import Release

TRAINING = "training"
"""The folder in the secret folder for the state of a training on a table in blocks."""
_SHORT = 2
"""Steps of a training that is only tried."""
_SHOWN = 50
"""Most labels of a target that are counted."""


@dataclass(frozen=True, eq=False)
class Work:
    """A table and what is asked of it.

    Attributes:
        asked: the request.
        data: the records, if they are encoded already.
        table: the raw rows, if they are in blocks.
        frame: the raw rows, if they are in memory.
        people: the people in the table, with their ledger.
        budget: the total that may be spent on them.
        machine: workers, device and progress bars.
        file: how a CSV file is written.
        where: paths of its files, if it has any.
        limit: the rows used of each person of a table in blocks; None for all.
        known: what the table's public file declares, if it has one.
        trial: whether the rows are made up and a training has a few steps only.
    """

    asked: Request
    data: Dataset | None = None
    table: Table | None = None
    frame: pd.DataFrame | None = None
    people: People = field(default_factory=People)
    budget: Budget | None = None
    machine: Machine = field(default_factory=Machine)
    file: FileFormat = field(default_factory=FileFormat)
    where: Places | None = None
    limit: RowLimit | None = None
    known: TableFile = field(default_factory=TableFile)
    trial: bool = False

    @property
    def frames(self) -> Records[pd.DataFrame]:
        """All raw rows."""
        if self.table is not None:
            track = bar if self.machine.progress else None
            return self.table.records(self.machine.executor, track=track, what="pass")
        assert self.frame is not None
        return Copies(self.frame) if self.trial else Held(self.frame)

    @cached_property
    def rows(self) -> Records[Rows]:
        """The raw rows that have a target, of each person the first ones."""
        frames = self.frames if self.limit is None else self.frames.map(self.limit.of)
        return frames.map(rows_of, self.asked)

    @cached_property
    def first_look(self) -> tuple[int, Identity | None]:
        """The number of rows that have a target, and, of a table in blocks, whose rows it has."""
        signs = None if self.table is None else self.file.signs[:2]
        return look(self.frames, self.asked, self.limit, signs)

    @property
    def header(self) -> list[str]:
        """The names of the table's columns, without that of persons."""
        if self.table is not None:
            named = list(self.table.header)
            return named if self.limit is None else without_unit(named, self.limit.unit)
        return list(with_text_names(self.frames.first()).columns)

    @cached_property
    def records(self) -> Dataset | None:
        """All records if encoded or with exact bounds; None if they are still to be encoded."""
        asked, public = self.asked, self.asked.public
        if self.data is not None:
            return replace(self.data, preprocessing=self._noting(self.data.preprocessing))
        if not public.from_data or self.frame is None or self.trial:
            return None
        data = dataset_from_frame(
            self.frame,
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
        words = self.asked.declarations
        words |= declarations(**self.file.differences, table_file=self.known.words_for_receipt)
        if self.data is not None:  # its targets are 0 and 1, or numbers of classes
            words = {n: one for n, one in words.items() if n not in ("positive", "classes")}
        elif self.people.unit == ROW:
            words |= declarations(persons=persons.ONE_ROW)
        noted = {**made, DECLARED: {**words, **made.get(DECLARED, {})}}
        return noted | ({MULTILINE: True} if self.file.multiline else {})

    @property
    def whole(self) -> Allowance:
        """The whole allowance, before any charge."""
        return self.asked.whole(self.people.rows_per_unit)

    @property
    def ledger(self) -> Ledger:
        """The ledger of these people."""
        ledger: Ledger = self.people.of(self.some)
        return ledger

    def some(self) -> tuple[Any, ...]:
        """Return records by which the table is known again."""
        return (self.frames.first(),) if self.data is None else self.data.some()

    def settle(self, ledger: Ledger) -> None:
        """Set budget and unit, if there are no charges yet."""
        budget = self.budget
        if budget is None and ledger.budget is None and not ledger.entries():
            budget = Budget(self.asked.epsilon, self.asked.delta)
        people = self.people
        ledger.settle(budget=budget, unit=people.unit, rows_per_unit=people.rows_per_unit)
        ledger.limits_all = self.budget is not None

    def dataset(self, work: Transaction, left: Allowance) -> tuple[Data, Encoded | None]:
        """Return all records, and how they were encoded unless the preprocessing is given."""
        asked = self.asked
        if self.records is not None:
            return self.records, None
        encoded = encode(self.rows, self.header, asked, work.perform, left=left)
        meaning: dict[str, Any] = {"column": asked.target}
        if asked.model is None:
            positive = asked.label(asked.positive)
            meaning |= {"positive": positive, "negative": f"not {positive}"}
        elif asked.public.classes:
            meaning["classes"] = asked.labels
        encoding = {"encoding": encoded.encoding.to_dict(), "target": meaning}
        facts: dict[str, Any] = {
            "feature_names": encoded.encoding.feature_names,
            "name": asked.name,
            "preprocessing": self._noting(encoding),
            "people": self.people,
        }
        if self.rows.in_memory and getattr(setup(asked).route, "reads_once", False):
            held: Any = Held(features_of(self.rows.first(), encoded.encoding))
            number = len(held.part[0])
            return BlockData(held, number, weighted=len(held.part) > 2, **facts), encoded
        parts = self.rows.map(encoded_of, encoded.encoding)
        if parts.in_memory:
            x, y, *weights = parts.first()
            return Dataset(x, y, weights=weights[0] if weights else None, **facts), encoded
        weighted = bool(asked.public.weights)
        return BlockData(parts, self.first_look[0], weighted=weighted, **facts), encoded

    def perform(self, work: Transaction, folder: Path | None = None) -> Release:
        """Return the release: plan, charge and draw everything as one work.

        Args:
            work: a transaction on this table's ledger.
            folder: secret folder for the state of a training on blocks; None keeps none.
        """
        asked, ledger = self.asked, work.ledger
        self.settle(ledger)
        with ExitStack() as stack:
            with ledger.locked():  # nobody spends between this check and the charge
                left = remaining(asked, ledger, work.before())
                if not asked.bayesian:  # a Bayesian work only pays for draws
                    all_of_it = f"ε = {asked.epsilon:g}"
                    stack.enter_context(work.reserve(asked.epsilon, asked.delta, all_of_it))
            data, encoded = self.dataset(work, left)
            self._warn(data, encoded)
            chosen = setup(asked, encoded)
            if chosen.trains and isinstance(data, Dataset):
                data = data.to(device_of(self.machine.device), None)
            if chosen.route is None:
                return self._draw_posterior(chosen.model, data, work)
            chosen = self._with_checkpoint(chosen, data, folder)
            if asked.groups_are_records:
                assert isinstance(data, Dataset)
                return release_groups(chosen, data, self.rows.first().persons, asked, work)
            prepared = Prepared.of(chosen.model, data, chosen.route)
            return prepared.release(epsilon=asked.epsilon, delta=asked.delta, work=work)

    def _draw_posterior(self, model: Any, data: Data, work: Transaction) -> Release:
        """Return a Bayesian release: draws from the posterior."""
        from bdpvi.bayesian.drawing import Asked  # late: they load Pyro
        from bdpvi.bayesian.fit import Training, fit
        from bdpvi.bayesian.releases import perform_release
        from bdpvi.guides import Laplace

        asked, guarantee, rows = self.asked, self.asked.guarantee, self.asked.public.rows
        where = Training(device=str(data.like[0].device))
        fitted = fit(model, Laplace(model), data, training=where, progress=self.machine.progress)
        fitted.kept.name = work.name
        if isinstance(guarantee, BayesianDP) and guarantee.rows is None and rows is not None:
            guarantee = replace(guarantee, rows=rows)  # by which a temperature is planned
        wanted = Asked(
            draws=asked.number,
            epsilon=asked.epsilon,
            delta=asked.delta,
            guarantee=guarantee,
            work=work,
        )
        return perform_release(fitted, wanted)

    def _with_checkpoint(self, chosen: Setup, data: Data, folder: Path | None) -> Setup:
        """Return the setup of a training; on blocks it keeps its state, as reading takes long."""
        checkpoint = None
        if folder is not None and not data.parts.in_memory and chosen.trains:
            checkpoint = folder / TRAINING
            Checkpoint(checkpoint, {"rows": "in blocks"}).begin()
        chosen = chosen.training(progress=self.machine.progress, checkpoint=checkpoint)
        return chosen.training(steps=_SHORT) if self.trial else chosen

    def _warn(self, data: Data, encoded: Encoded | None) -> None:
        """Warn of a large δ, and of what private preprocessing cannot do with few records."""
        delta, about = self.asked.delta, float(len(data))
        if encoded is not None and encoded.records is not None:
            about = max(encoded.records, 1.0)
        if delta * about >= 1:
            warnings.warn(
                f"delta={delta:g} is at least 1/N = {1 / about:.2g}: publishing one row "
                "at random would satisfy it too. Choose a smaller δ",
                UserWarning,
                stacklevel=4,
            )
        for few in () if encoded is None else (
            encoded.caution(self.asked.epsilon), encoded.nameless(self.asked.public.categorical)
        ):  # fmt: skip
            if few:
                warnings.warn(few, PrivacyUtilityWarning, stacklevel=4)

    def digests(self) -> tuple[str, str]:
        """Return digests of the table and of the options."""
        if self.data is not None:
            table = self.data.fingerprint()
        elif self.table is not None:
            table = self.table.fingerprint()
            if self.limit is not None:
                table = hashlib.sha256(f"{table} {self.limit!r}".encode()).hexdigest()
        else:
            text = self.frames.first().to_csv()
            table = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        options = replace(self.asked, name="data")
        return table, hashlib.sha256(repr(options).encode()).hexdigest()


def release_groups(
    chosen: Setup, data: Dataset, persons: Any, asked: Request, work: Transaction
) -> Release:
    """Return the release of a mixed model whose records are groups.

    Args:
        chosen: the mixed model and its route.
        data: the rows; their people's unit is the group.
        persons: the group of each row, (N,); None if each is one of its own.
        asked: the request.
        work: the transaction.
    """
    from bdpvi.tables import mixed  # late: it loads what pads groups

    rows = data.people.rows_per_unit
    model = mixed.of_records(chosen.model, rows)
    records = mixed.grouped(data, persons, chosen.model, rows)
    prepared = Prepared.of(model, records, chosen.route, ledger=work.ledger)
    made = prepared.release(epsilon=asked.epsilon, delta=asked.delta, work=work)
    return mixed.of_rows(made, chosen.model, data.feature_names)


def look(
    frames: Records[pd.DataFrame],
    asked: Request,
    limit: RowLimit | None = None,
    signs: tuple[str, str] | None = None,
) -> tuple[int, Identity | None]:
    """Return the number of rows that are used, and whose all rows are.

    The owner is told about the others and the target.

    It is the first pass over the table, before anything is charged.

    Args:
        frames: all rows.
        asked: the request.
        limit: the rows used of each person; None for all.
        signs: as for :meth:`bdpvi.datasets.identity.Identity.of`; None if it is not wanted.

    Raises:
        ValueError: if rows of one person lie in two parts, each of which would keep some. It is for
            the owner, like all that this pass finds.
    """
    used, left_out, odd, labels, clamped, persons, identity = frames.sum(
        _facts, asked, limit, signs
    )
    frames.check()
    if limit is not None:
        limit.check(persons)
    tell_owner(left_out, "row", WITHOUT + UNWEIGHTED * bool(asked.public.weights))
    tell_owner(odd, "line", ODD)
    if asked.model is None:
        tell_of_labels(asked.target, labels, asked.label(asked.positive))
    elif hasattr(asked.model, "largest"):
        tell_of_clamped(clamped, used, asked.model)
    return int(used), identity


def _facts(
    whole: pd.DataFrame, asked: Request, limit: RowLimit | None, signs: tuple[str, str] | None
) -> tuple[int, int, int, dict[str, int], int, Persons, Identity | None]:
    """Return rows in use, others of them, lines left out, counts of the target's labels, targets
    beyond their public bound, the persons, and whose rows they are."""
    frame = whole if limit is None else limit.of(whole)
    persons: Persons = ([], 0) if limit is None else limit.persons(whole)
    rows, left_out = usable(frame, asked)
    labels: dict[str, int] = {}
    if asked.model is None:
        counts = read_cells(frame[asked.target], asked.target_type).counts
        labels = dict(sorted(counts.items(), key=lambda one: one[::-1], reverse=True)[:_SHOWN])
    odd = int(whole.attrs.get(LEFT_OUT, 0))
    clamped = beyond(rows.y, asked.model)
    whose = Identity.of(whole, signs, "" if limit is None else limit.unit) if signs else None
    return len(rows), left_out, odd, labels, clamped, persons, whose

"""A work's table read, checked and rehearsed, by header and options alone, before any charge.

In a rehearsal made-up rows go all the way. What follows the charge is the same for any records but
for their noisy sums, so what could refuse a release then refuses it here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bdpvi._ground.host import HOST, device_of
from bdpvi._ground.types import Budget, Unit
from bdpvi.bayesian.guarantees import BayesianDP
from bdpvi.datasets import made_up
from bdpvi.datasets.dataset import Dataset, People
from bdpvi.datasets.encoding import with_text_names
from bdpvi.datasets.estimates import CATEGORY, NUMBER
from bdpvi.datasets.identity import Identity
from bdpvi.datasets.looks import misread, tell_of_misread
from bdpvi.datasets.made_up import ROWS
from bdpvi.datasets.objects import in_memory
from bdpvi.datasets.stored import without_pattern
from bdpvi.datasets.table import Table, in_blocks, is_path
from bdpvi.datasets.tables import read_file
from bdpvi.datasets.units import RowLimit, at_most, persons_of, without_unit
from bdpvi.privacy.accounts import account, account_in_use, in_use
from bdpvi.privacy.book import ROW, check_terms
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases import persons, publishing
from bdpvi.releases.received import release_of
from bdpvi.releases.released import Release
from bdpvi.releases.shared_file import release_bytes
from bdpvi.releases.table_file import TableFile
from bdpvi.releases.transaction import trial_work
from bdpvi.tables import encoded
from bdpvi.tables.formulas import with_terms
from bdpvi.tables.request import Machine, Request
from bdpvi.tables.rows import PERSON
from bdpvi.tables.validation import check, purchase
from bdpvi.tables.work import Work

if TYPE_CHECKING:
    import pandas as pd

MODEL = "release.json"
"""The file in the public folder."""
MANY = 1e7
"""The number of rows unless one is declared."""


def work_of(
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
    """Return the work of a table; arguments as for :func:`private`. A refusal leaves no ledger.

    Args:
        known: what its public file declares; by default that of the file beside it.
    """
    machine = machine or Machine()
    torch.zeros(1, dtype=torch.float64, device=device_of(machine.device)).cpu()  # or refused
    table = in_memory(table)
    path = table.path or table if isinstance(table, Table) else table
    known = TableFile.beside(path).public() if known is None else known
    unit = protected_unit(known, path, asked.unit)
    check_terms(budget := known.limit(budget), unit["unit"], unit["rows_per_unit"])
    own = known.ledger(path, ledger)
    kept = table.people.kept if own is None and isinstance(table, Dataset) else own
    ledger_file = kept.path if isinstance(kept, Ledger) else kept and Path(kept)
    folders = None if out is None else (Path(out), None if secret is None else Path(secret))
    where = None if folders is None else publishing.places(*folders, ledger_file, MODEL)
    if asked.public.types is None:
        asked = replace(asked, public=replace(asked.public, types=known.schema))
    work = Work(
        asked,
        people=People(**unit),
        budget=budget,
        machine=machine,
        file=known.file,
        where=where,
        known=known,
    )
    identity: Any
    work, identity = _read(work, table, own is not None or in_use())
    if asked.formula:
        work = _of_terms(work)
    check(work.asked)
    _check(work)
    rehearse(work)
    _look(work)
    if identity is True:
        identity = work.first_look[1]
    if own is None and identity is not False:
        own = account_in_use(identity, **unit)
    if own is not None:
        more = asked.unit is not None and asked.unit.other_people
        whose = None if isinstance(identity, bool) else identity
        found = account(path, whose, ledger, own, other_people=more)
        if folders is not None:  # the account may be that of another table
            publishing.places(*folders, found.path, MODEL)
        work.people.share(found)
    return work


def protected_unit(known: TableFile, path: object, unit: Unit | None) -> dict[str, Any]:
    """Return whom ε protects, as the caller says or the table's public file does.

    Raises:
        ValueError: if neither says it of a file.
    """
    given = unit or Unit()
    if not isinstance(given.column, str):
        raise ValueError(
            f"unit must be the name of a column of the table, got {type(given.column).__name__}"
        )
    whom = known.people(given.column, given.rows, unit is not None and not unit.column)
    persons.check_said(path, **whom)
    return {name: whom[name] for name in ("unit", "rows_per_unit")}


def _read(work: Work, table: Any, keyed: bool) -> tuple[Work, Identity | bool]:
    """Return the work with its rows or their blocks, and whose rows they are.

    Args:
        work: the work, which has no rows yet.
        table: they, or their place.
        keyed: whether that is wanted. Of a table in blocks the first pass finds it.
    """
    asked, file = work.asked, work.file
    if in_blocks(table) or (is_path(table) and work.machine.executor is not None):
        table = Table.of(table, file=file)
        types = asked.public.types or table.schema
        public = replace(asked.public, types=types).in_file(list(table.header), table.file)
        asked = replace(asked, public=public, name=asked.name or _name_of(table))
        _check_blocks(asked)
        return _of_persons(replace(work, table=table, asked=asked, file=table.file)), keyed
    if work.machine.executor is not None:
        raise ValueError("executor: a table in memory needs no workers; leave it out")
    if isinstance(table, Dataset):
        made = replace(work, data=table, asked=_of_records(asked, table), people=table.people)
        return made, False
    if is_path(table):
        raw, named = not asked.public.from_data, (work.people.unit, *asked.public.categorical)
        name = asked.name or Path(table).stem
        table, types = read_file(table, file, raw, asked.public.types, named)
        asked = replace(asked, public=replace(asked.public, types=types), name=name)
    asked = replace(asked, name=asked.name or "data")
    identity: Identity | bool = False
    if keyed:
        unit = work.people.unit
        identity = Identity.of(with_text_names(table), file.signs[:2], unit if unit != ROW else "")
    if work.people.unit == ROW:
        persons.warn_of_repeats(table, ROW, 5)
    return _of_persons(replace(work, frame=table, asked=asked)), identity


def _check_blocks(asked: Request) -> None:
    """Refuse options that need all rows of a table in blocks in memory.

    Raises:
        ValueError: naming the option.
    """
    given: dict[str, object] = {"from_data": asked.public.from_data}
    given |= {"guarantee": asked.bayesian and asked.guarantee}
    given |= {"group": asked.groups_are_records and asked.public.group}
    remedy = "; bdpvi.fit takes guides.Laplace for such a table, as datasets.from_blocks reads it"
    for name, value in given.items():
        if value:
            raise ValueError(
                f"{name}={value!r:.80}: it needs all rows in memory, and the table is in blocks; "
                f"leave it out{remedy if name == 'guarantee' else ''}"
            )


def _name_of(table: Table) -> str:
    """Return the name of the data in reports."""
    return Path(without_pattern(table.path)).stem if table.path else "data"


def _of_persons(work: Work) -> Work:
    """Return the work with the first rows of each person, if they may have several."""
    if (unit := work.people.unit) == ROW:
        return work
    kind, public = work.asked.public.of_unit(unit)
    asked, limit = (
        replace(work.asked, public=public),
        RowLimit(unit, work.people.rows_per_unit, kind),
    )
    if work.table is not None:
        without_unit(work.table.header, unit)
        return replace(work, asked=asked, limit=limit)
    kept = at_most(with_text_names(work.frames.first()), unit, limit.rows, type=kind)
    numbered = kept.groupby(persons_of(kept[unit], kind)).ngroup()
    frame = kept.drop(columns=unit).set_index(numbered.rename(PERSON))
    return replace(work, frame=frame, asked=asked)


def _of_terms(work: Work) -> Work:
    """Return the work with the terms of the request's formula."""
    if work.data is not None:
        raise ValueError(
            f"formula={work.asked.formula!r:.200}: these records are encoded already; give the "
            "table itself"
        )
    return replace(work, asked=with_terms(work.asked, work.header))


def _of_records(asked: Request, data: Dataset) -> Request:
    """Return the request of records that are encoded already."""
    public = asked.public
    if public.exposure:
        raise ValueError(
            "exposure: for encoded records it belongs to the model, as a column number"
        )
    if public.weights:
        raise ValueError(f"weights={public.weights!r}: give encoded records theirs, Dataset.of()")
    if data.weighted:
        public = replace(public, weights="weights", largest_weight=1.0)
    if public.group:
        raise ValueError(
            f"group={public.group!r}: these records are encoded already; give the table itself, or "
            "bdpvi.fit_private a bdpvi.models.mixed.MixedRegression whose groups are columns"
        )
    if public.event:
        raise ValueError(
            f"event={public.event!r}: targets of encoded records are signed times, "
            "BayesianSurvivalRegression.targets(times, events); leave it out"
        )
    if classes := getattr(asked.model, "classes", 0):
        public = replace(public, classes=tuple(range(classes)))
    positive = asked.positive if asked.model else 1
    return replace(asked, target="y", name=data.name, positive=positive, public=public)


def _check(work: Work) -> None:
    """Check header, preprocessing and options before anything is charged or stored.

    Raises:
        ValueError: if one, which it names, is invalid.
    """
    asked = work.asked
    if work.records is not None:
        encoded.promising(asked, work.records.x.shape[1], 0.0)
        return
    model: Any = asked.model
    if model is not None and (model.levels or getattr(model, "exposure", None) is not None):
        raise ValueError(
            f"model={model!r:.80}: column numbers are assigned during encoding, so leave "
            "levels= and exposure= out of the model, and give exposure=NAME"
        )
    private = purchase(asked, work.header)
    encoded.check(asked, private, work.whole)
    if asked.bayesian and not private.empty:
        raise ValueError(
            f"guarantee: a {BayesianDP().name} guarantee or a weaker one needs public bounds "
            "or categories for all columns, as privately estimated ones are outputs too; give "
            "--constants, or leave guarantee out"
        )


def _look(work: Work) -> None:
    """Show the owner what may be read otherwise than meant, before anything is charged."""
    table, public = work.table, work.asked.public
    if work.data is not None:
        return
    if (table is None or os.path.isfile(table.path)) and not public.from_data:
        rows = work.frames.first() if table is None else table.first()[0]
        used = [name for name in work.header if name not in public.drop]
        tell_of_misread(misread(with_text_names(rows), public.read_by, used), public.read_by)
    _ = work.first_look  # the first pass, which tells what it finds


def try_file(release: Release, x: object) -> None:
    """Write a release, read it and predict rows."""
    found = release_of(release_bytes(release))
    (found.predict_proba if hasattr(found.model, "classes") else found.predict_mean)(x)


def rehearse(work: Work) -> None:
    """Release a made-up table as a work would, and predict its rows.

    A Bayesian release is left out: its records decide whether there is one.

    Raises:
        ValueError: if anything fails; nothing was charged.
    """
    asked: Request = work.asked
    if asked.bayesian:
        return
    draws = asked.draws
    if isinstance(draws, int):
        draws = 2 if asked.uses_noisy_scores or asked.uses_dpvi else min(draws, 2)
    public = replace(asked.public, rows=asked.public.rows or MANY)
    brief = replace(asked, draws=draws, public=public)
    given: dict[str, Any] = {"asked": brief, "where": None, "limit": None, "trial": True}
    given |= {"budget": None, "machine": Machine(device="cpu", progress=False)}
    people: dict[str, Any] = {"unit": work.people.unit, "rows_per_unit": work.people.rows_per_unit}
    data = None if work.records is None else _encoded(work.records, brief)
    for frame in _raw(work, brief) if data is None else [None]:
        with trial_work(people) as transaction:
            given["people"] = own = People(transaction.ledger, **people)
            given["data"] = None if data is None else data.of_people(own)
            tried = replace(work, table=None, frame=frame, **given)
            try_file(tried.perform(transaction), frame if data is None else data.x)


def _encoded(records: Dataset, asked: Request) -> Dataset:
    """Return made-up records with the features of these."""
    key = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, records.x.shape[1], generator=key, dtype=torch.float64, device=HOST)
    targets = torch.tensor(_targets(asked), dtype=torch.float64)
    y = targets[torch.arange(ROWS) % len(targets)]
    weights = torch.ones(ROWS, dtype=torch.float64) if records.weighted else None
    return replace(records, x=x, y=y, ids=torch.arange(ROWS), weights=weights)


def _targets(asked: Request) -> list[float]:
    """Return targets of encoded records."""
    model: Any = asked.model
    if model is None:
        return [0.0, 1.0]
    if classes := getattr(model, "classes", 0):
        return [float(at) for at in range(classes)]
    if cuts := getattr(model, "cuts", ()):
        return [cut / 2 for cut in cuts] + [-cut for cut in cuts]
    middle, most = getattr(model, "middle", 0.0), model.largest
    return [middle, middle + 1, middle + most, middle + most + 1]


def _raw(work: Work, asked: Request) -> Iterator[pd.DataFrame]:
    """Return made-up tables."""
    private, public = purchase(asked, work.header), asked.public
    kinds = dict.fromkeys(work.header, NUMBER)
    kinds |= dict(zip(private.names, private.kinds, strict=True))
    declared = {name: one.names or () for name, one in public.read_by.items()}
    for column in asked.constants.columns if asked.constants is not None else ():
        kinds[column.name] = CATEGORY if column.named else NUMBER
        known = declared.get(column.name, ())
        declared[column.name] = getattr(column, "categories", known)
    target: list[object] = [*public.classes] or [*_targets(asked), ""]
    if asked.model is None:
        target = [asked.positive, *(declared.get(asked.target) or ("no", ""))]
    alone = {asked.target: target} | ({public.exposure: [1.0]} if public.exposure else {})
    alone |= {public.weights: [public.largest_weight]} if public.weights else {}
    alone |= {public.event: [1, 0]} if public.event else {}
    return made_up.frames(kinds, declared, alone)

"""A rehearsal of a table's work, before anything is charged: made-up rows go all the way.

Header, declared types and options alone decide what it finds. What follows the charge is the same
for any records but for their noisy sums, so what could refuse a release then refuses it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from bdpvi._ground.host import HOST
from bdpvi.datasets import made_up
from bdpvi.datasets.columns import OneHot
from bdpvi.datasets.dataset import Dataset, People
from bdpvi.datasets.estimates import CATEGORY, NUMBER
from bdpvi.datasets.made_up import ROWS, MadeUp
from bdpvi.releases.received import release_of
from bdpvi.releases.released import Release
from bdpvi.releases.shared_file import release_bytes
from bdpvi.releases.transaction import trial_work
from bdpvi.tables.request import Machine, Request
from bdpvi.tables.validation import purchase
from bdpvi.tables.work import Work

MANY = 1e7
"""The number of rows unless one is declared."""


def read(release: Release, x: object) -> None:
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
    tables: Iterable[Any] = _raw(work, brief) if data is None else [None]
    for table in tables:
        with trial_work(people) as transaction:
            given["people"] = own = People(transaction.ledger, **people)
            given["data"] = None if data is None else data.of_people(own)
            tried = replace(work, table=table, frame=None, **given)
            read(tried.perform(transaction), table.frame if data is None else data.x)


def _encoded(records: Dataset, asked: Request) -> Dataset:
    """Return made-up records with the features of these."""
    key = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, records.x.shape[1], generator=key, dtype=torch.float64, device=HOST)
    targets = torch.tensor(_targets(asked), dtype=torch.float64)
    y = targets[torch.arange(ROWS) % len(targets)]
    return replace(records, x=x, y=y, ids=torch.arange(ROWS))


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


def _raw(work: Work, asked: Request) -> Iterator[MadeUp]:
    """Yield made-up tables."""
    private, public = purchase(asked, work.header), asked.public
    kinds = dict.fromkeys(work.header, NUMBER)
    kinds |= dict(zip(private.names, private.kinds, strict=True))
    declared = {name: one.names or () for name, one in public.read_by.items()}
    constants = asked.constants.columns if asked.constants is not None else ()
    declared |= {
        constant.name: constant.categories for constant in constants if isinstance(constant, OneHot)
    }
    kinds |= {
        constant.name: CATEGORY if isinstance(constant, OneHot) else NUMBER
        for constant in constants
    }
    target: list[object] = [*public.classes] or [*_targets(asked), ""]
    if asked.model is None:
        target = [asked.positive, *(declared.get(asked.target) or ("no", ""))]
    alone = {asked.target: target} | ({public.exposure: [1.0]} if public.exposure else {})
    alone |= {public.event: [1, 0]} if public.event else {}
    for frame in made_up.frames(kinds, declared, alone):
        yield MadeUp("", tuple(frame.columns), (), work.file, frame=frame)

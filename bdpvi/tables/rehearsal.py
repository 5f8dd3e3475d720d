"""A rehearsal of a table's work, before anything is charged: made-up rows go all the way.

Header, declared types and options alone decide what it finds. What follows the charge is the same
for any records but for their noisy sums, so what could refuse a release then refuses it here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from bdpvi._ground.host import HOST
from bdpvi.datasets import made_up
from bdpvi.datasets.columns import OneHot
from bdpvi.datasets.dataset import Dataset, People
from bdpvi.datasets.estimates import CATEGORY, NUMBER
from bdpvi.datasets.made_up import ROWS, MadeUp
from bdpvi.programs.dpvi import DPVI
from bdpvi.releases.received import release_of
from bdpvi.releases.released import Release
from bdpvi.releases.shared_file import release_bytes
from bdpvi.releases.transaction import rehearsed
from bdpvi.tables.inference import Intervals
from bdpvi.tables.pipeline import Pipeline, Remaining
from bdpvi.tables.recipe import Recipe
from bdpvi.tables.rows import Encoded

_STEPS, MANY = 2, 1e7
"""Steps of a training; the number of rows unless one is declared."""


@dataclass(frozen=True, kw_only=True)
class Brief(Pipeline):
    """A pipeline that trains for two steps, and does not search settings for a noisy count."""

    @classmethod
    def of(cls, usual: Pipeline) -> Brief:
        """Return the pipeline with few draws."""
        given = {one.name: getattr(usual, one.name) for one in fields(Pipeline)}
        given["draws"] = 2 if usual.scored or usual.trained else min(usual.draws, 2)
        given["expected_rows"] = usual.expected_rows or MANY
        return cls(**given)

    def chosen(self, left: Remaining | None = None, found: Encoded | None = None) -> Recipe:
        """Do :meth:`Pipeline.chosen`."""
        return brief(super().chosen(left, found))


def brief(usual: Recipe) -> Recipe:
    """Return settings that train for two steps."""
    route = usual.route
    if isinstance(route, DPVI):
        return replace(usual, route=replace(route, steps=_STEPS))
    if isinstance(route, Intervals):
        trained = replace(route.trained, steps=_STEPS)
        return replace(usual, route=replace(route, trained=trained))
    return usual


def read(release: Release, x: object) -> None:
    """Write a release, read it and predict rows."""
    found = release_of(release_bytes(release))
    (found.predict_proba if hasattr(found.model, "classes") else found.predict_mean)(x)


def rehearse(work: Any) -> None:
    """Release a made-up table as a :class:`bdpvi.tables.private.Work` would, and predict its rows.

    A Bayesian release is left out: its records decide whether there is one.

    Raises:
        ValueError: if anything fails; nothing was charged.
    """
    if work.bayesian:
        return
    brief = Brief.of(work.pipeline)
    given: dict[str, Any] = {"pipeline": brief, "where": None, "executor": None, "limit": None}
    given |= {"budget": None, "progress": False, "device": torch.device("cpu")}
    people = {"unit": work.people.unit, "rows_per_unit": work.people.rows_per_unit}
    tables = [_encoded(work.records, brief)] if work.records is not None else _raw(work)
    for table in tables:
        with rehearsed(people) as transaction:
            own = People(transaction.ledger, **people)
            if isinstance(table, Dataset):
                table = table.of_people(own)
            release = replace(work, table=table, people=own, **given).released(transaction)
            read(release, table.x if isinstance(table, Dataset) else table.frame)


def _encoded(records: Dataset, pipeline: Pipeline) -> Dataset:
    """Return made-up records with the features of these."""
    key = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, records.x.shape[1], generator=key, dtype=torch.float64, device=HOST)
    targets = torch.tensor(_targets(pipeline), dtype=torch.float64)
    y = targets[torch.arange(ROWS) % len(targets)]
    return replace(records, x=x, y=y, ids=torch.arange(ROWS))


def _targets(pipeline: Pipeline) -> list[float]:
    """Return targets of encoded records."""
    model: Any = pipeline.model
    if model is None:
        return [0.0, 1.0]
    if classes := getattr(model, "classes", 0):
        return [float(at) for at in range(classes)]
    middle, most = getattr(model, "middle", 0.0), model.largest
    return [middle, middle + 1, middle + most, middle + most + 1]


def _raw(work: Any) -> Iterator[MadeUp]:
    """Yield made-up tables."""
    pipeline: Pipeline = work.pipeline
    purchase = pipeline.purchase(work.header)
    kinds = dict.fromkeys(work.header, NUMBER)
    kinds |= dict(zip(purchase.names, purchase.kinds, strict=True))
    declared = {name: one.names or () for name, one in pipeline.types_used.items()}
    public = pipeline.public.columns if pipeline.public is not None else ()
    declared |= {one.name: one.categories for one in public if isinstance(one, OneHot)}
    kinds |= {one.name: CATEGORY if isinstance(one, OneHot) else NUMBER for one in public}
    target: list[object] = [*pipeline.classes] or [*_targets(pipeline), ""]
    if pipeline.model is None:
        target = [pipeline.positive, *(declared.get(pipeline.target) or ("no", ""))]
    alone = {pipeline.target: target} | ({pipeline.exposure: [1.0]} if pipeline.exposure else {})
    for frame in made_up.frames(kinds, declared, alone):
        yield MadeUp("", tuple(frame.columns), (), work.file, frame=frame)

"""Tables in blocks: what their releases need of the rows, and what cannot be asked of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bdpvi._ground.types import tell_owner
from bdpvi.bayesian.guarantees import WORST_CASE
from bdpvi.datasets.cells import read_cells
from bdpvi.datasets.identity import Identity
from bdpvi.datasets.looks import beyond, tell_of_clamped, tell_of_labels
from bdpvi.datasets.records import Records, Spread
from bdpvi.datasets.stored import without_pattern
from bdpvi.datasets.table import LEFT_OUT, ODD, Table
from bdpvi.datasets.units import Persons, RowLimit
from bdpvi.tables.encoded import WITHOUT, usable
from bdpvi.tables.pipeline import Pipeline

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 50


def check(pipeline: Pipeline) -> None:
    """Refuse options that need all rows in memory.

    Raises:
        ValueError: naming the option.
    """
    fit = "; bdpvi.fit takes guides.Laplace for such a table, as datasets.from_blocks reads it"
    drawn = pipeline.settings if pipeline.settings and pipeline.settings.route is None else None
    asked: dict[str, tuple[Any, str]] = {
        "from_data": (pipeline.from_data, ""),
        "settings": (drawn, ", or give settings with a route"),
        "guide": (pipeline.guide, fit),
        "guarantee": (pipeline.guarantee if _bayesian(pipeline) else None, fit),
    }
    for name, (value, remedy) in asked.items():
        if value:
            raise ValueError(
                f"{name}={value!r:.80}: it needs all rows in memory, and the table is in blocks; "
                f"leave it out{remedy}"
            )


def _bayesian(pipeline: Pipeline) -> bool:
    return pipeline.guarantee is not None and pipeline.guarantee.name != WORST_CASE


def look(
    frames: Records[pd.DataFrame],
    pipeline: Pipeline,
    limit: RowLimit | None = None,
    signs: tuple[str, str] | None = None,
) -> tuple[int, Identity | None]:
    """Return the number of rows that are used, and whose all rows are.

    The owner is told about the others and the target.

    It is the first pass over the table, before anything is charged.

    Args:
        frames: all rows.
        pipeline: the steps and their settings.
        limit: the rows used of each person; None for all.
        signs: as for :meth:`bdpvi.datasets.identity.Identity.of`; None if it is not wanted.

    Raises:
        ValueError: if rows of one person lie in two parts, each of which would keep some. It is for
            the owner, like all that this pass finds.
    """
    used, left_out, odd, labels, clamped, persons, identity = frames.sum(
        _facts, pipeline, limit, signs
    )
    if isinstance(frames, Spread):
        frames.check()
    if limit is not None:
        limit.check(persons)
    tell_owner(left_out, "row", WITHOUT)
    tell_owner(odd, "line", ODD)
    if pipeline.model is None:
        tell_of_labels(pipeline.target, labels, pipeline.positive_label)
    elif hasattr(pipeline.model, "largest"):
        tell_of_clamped(clamped, used, pipeline.model)
    return int(used), identity


def _facts(
    whole: pd.DataFrame, pipeline: Pipeline, limit: RowLimit | None, signs: tuple[str, str] | None
) -> tuple[int, int, int, dict[str, int], int, Persons, Identity | None]:
    """Return rows in use, others of them, lines left out, counts of the target's labels, targets
    beyond their public bound, the persons, and whose rows they are."""
    frame = whole if limit is None else limit.of(whole)
    persons: Persons = ([], 0) if limit is None else limit.persons(whole)
    rows, left_out = usable(frame, pipeline)
    labels: dict[str, int] = {}
    if pipeline.model is None:
        counts = read_cells(frame[pipeline.target], pipeline.target_type).counts
        labels = dict(sorted(counts.items(), key=lambda one: one[::-1], reverse=True)[:_SHOWN])
    odd = int(whole.attrs.get(LEFT_OUT, 0))
    clamped = beyond(rows.y, pipeline.model)
    whose = Identity.of(whole, signs) if signs else None
    return len(rows), left_out, odd, labels, clamped, persons, whose


def name_of(table: Table) -> str:
    """Return the name of the data in reports."""
    from pathlib import Path

    return Path(without_pattern(table.path)).stem if table.path else "data"

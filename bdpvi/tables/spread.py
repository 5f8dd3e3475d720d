"""Tables in blocks: what their releases need of the rows, and what cannot be asked of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bdpvi._ground.types import tell_owner
from bdpvi.datasets.cells import read_cells
from bdpvi.datasets.identity import Identity
from bdpvi.datasets.looks import beyond, tell_of_clamped, tell_of_labels
from bdpvi.datasets.records import Records, Spread
from bdpvi.datasets.stored import without_pattern
from bdpvi.datasets.table import LEFT_OUT, ODD, Table
from bdpvi.datasets.units import Persons, RowLimit
from bdpvi.tables.encoded import WITHOUT, usable
from bdpvi.tables.request import Request

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 50


def check(asked: Request) -> None:
    """Refuse options that need all rows in memory.

    Raises:
        ValueError: naming the option.
    """
    given = {"from_data": asked.public.from_data, "guarantee": asked.bayesian and asked.guarantee}
    remedy = "; bdpvi.fit takes guides.Laplace for such a table, as datasets.from_blocks reads it"
    for name, value in given.items():
        if value:
            raise ValueError(
                f"{name}={value!r:.80}: it needs all rows in memory, and the table is in blocks; "
                f"leave it out{remedy if name == 'guarantee' else ''}"
            )


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
    if isinstance(frames, Spread):
        frames.check()
    if limit is not None:
        limit.check(persons)
    tell_owner(left_out, "row", WITHOUT)
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
    whose = Identity.of(whole, signs) if signs else None
    return len(rows), left_out, odd, labels, clamped, persons, whose


def name_of(table: Table) -> str:
    """Return the name of the data in reports."""
    from pathlib import Path

    return Path(without_pattern(table.path)).stem if table.path else "data"

"""A synthetic table's file in words: its columns, and what their noisy counts say."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from bdpvi._ground.outputs import one_line, several
from bdpvi.datasets.types import DECLARED, DTYPE, ESTIMATED, ROWS, ColumnType
from bdpvi.releases.statement import StatementPage
from bdpvi.score.reading import ANY
from bdpvi.synthesis.synthetic import Synthetic
from bdpvi.synthesis.table_one import table_one, written

_SOURCES = {
    DECLARED: "declared",
    DTYPE: "declared",
    ESTIMATED: "estimated privately",
    ROWS: "from the rows, and not covered by ε",
}


def statement_of(made: Synthetic, file: str, content: bytes) -> StatementPage:
    """Return the statement of a synthetic table or a Table 1, from its file's content."""
    rows = several(made.rows, "row")
    what = f"About {rows} of a synthetic table, drawn from noisy counts"
    return StatementPage(
        what=what if made.settings.pairs else f"Noisy counts of about {rows}, for a Table 1",
        file=file,
        digest=hashlib.sha256(content).hexdigest(),
        guarantee=str(made.receipt),
        bound=made.receipt.worst_case,
        declared=made.receipt.declared,
        about=f"Schema: {made.receipt.source}" if made.receipt.source else "",
    )


def described(made: Synthetic, by: str | None = None) -> Iterator[str]:
    """Yield lines on released counts; all of them follow from the released file, at no price.

    They are what ε covered, the columns, and the Table 1 of the counts, by a column's levels if one
    is named.

    >>> import pandas as pd
    >>> from bdpvi.datasets import Schema
    >>> from bdpvi.synthesis import synthesize
    >>> people = Schema({"age": ColumnType(kind="integer", low=0, high=99)}, "By law.")
    >>> frame = pd.DataFrame({"age": [*range(100)] * 20})
    >>> made = synthesize(frame, people, epsilon=40.0)
    >>> list(described(made))[4]
    'age: integer from 0 to 99, declared'
    """
    found = table_one(made, by)
    yield f"Covered: {one_line(str(made.receipt))}"
    for said in filter(None, (made.receipt.meaning, made.receipt.in_one_sentence)):
        yield f"  {one_line(said)}"
    given = f", conditioned on {made.target!r}" if made.target and made.settings.pairs else ""
    yield (
        f"About {several(made.rows, 'row')} (estimated), "
        f"{several(len(made.schema.columns), 'column')}{one_line(given)}"
    )
    for name, column in made.schema.columns.items():
        yield one_line(f"{name}: {_kind(column)}, {_SOURCES[column.origin]}")
    yield from str(found).split("\n")


def _kind(column: ColumnType) -> str:
    kind = "" if column.kind == ANY else column.kind
    if column.bounds is None:
        return f"{kind or 'category'} of {several(len(column.names or ()), 'level')}"
    low, high = (written(column, bound) for bound in column.bounds)
    return f"{kind or ('integer' if column.integer else 'number')} from {low} to {high}"

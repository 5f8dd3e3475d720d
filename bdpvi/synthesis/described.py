"""A synthetic table's file in words: its columns, and what their noisy counts say."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bdpvi._ground.outputs import one_line, several
from bdpvi.datasets import grid
from bdpvi.datasets.types import DECLARED, DTYPE, ESTIMATED, ROWS, ColumnType
from bdpvi.releases.statement import StatementPage
from bdpvi.score.reading import ANY, TIMES
from bdpvi.synthesis.synthetic import Synthetic

_WIDE = 1.959964
"""Half the width of a standard normal's central 95 % interval."""
_SOURCES = {
    DECLARED: "declared",
    DTYPE: "declared",
    ESTIMATED: "estimated privately",
    ROWS: "from the rows, and not covered by ε",
}
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def statement_of(made: Synthetic, file: str, content: bytes) -> StatementPage:
    """Return the statement of a synthetic table, from its file's content."""
    return StatementPage(
        what=f"About {several(made.rows, 'row')} of a synthetic table, drawn from noisy counts",
        file=file,
        digest=hashlib.sha256(content).hexdigest(),
        guarantee=str(made.receipt),
        bound=made.receipt.worst_case,
        declared=made.receipt.declared,
        about=f"Schema: {made.receipt.source}" if made.receipt.source else "",
    )


def described(made: Synthetic) -> Iterator[str]:
    """Yield lines on a synthetic table; all of them follow from the released file, at no price.

    Shares are noisy counts over the estimated number of rows. Their ± is the 95 % interval of the
    privacy noise in the count alone. Quantiles are those of the noisy counts of a grid's cells.

    >>> import pandas as pd
    >>> from bdpvi.datasets import Schema
    >>> from bdpvi.synthesis import synthesize
    >>> people = Schema({"age": ColumnType(kind="integer", low=0, high=99)}, "By law.")
    >>> frame = pd.DataFrame({"age": [*range(100)] * 20})
    >>> made = synthesize(frame, people, epsilon=40.0)
    >>> list(described(made))[4]
    'age: integer from 0 to 99, declared'
    """
    counts = made.counts
    yield f"Covered: {one_line(str(made.receipt))}"
    for said in filter(None, (made.receipt.meaning, made.receipt.in_one_sentence)):
        yield f"  {one_line(said)}"
    given = f", conditioned on {made.target!r}" if made.target is not None else ""
    yield (
        f"About {several(made.rows, 'row')} (estimated), "
        f"{several(len(made.schema.columns), 'column')}{one_line(given)}"
    )
    for at, (name, column) in enumerate(made.schema.columns.items()):
        yield one_line(f"{name}: {_kind(column)}, {_SOURCES[column.origin]}")
        single = counts.single[at].astype(np.float64)
        names, cells = [*(column.names or ()), "blank", grid.OTHER], grid.cells(column)
        shown = single if column.bounds is None else single[cells:]
        if column.bounds is not None:
            yield f"  quantiles {_quantiles(column, single[:cells])}"
        half = 100 * _WIDE * counts.deviation / counts.records
        for one, number in zip(names, shown.tolist(), strict=True):
            share = min(max(100 * number / counts.records, 0.0), 100.0)
            yield f"  {one_line(one)}: {share:.1f} % ± {half:.2g}"
    yield (
        "Shares are of noisy counts; ± is their privacy noise alone, at 95 %. Sampling error is "
        "further error"
    )


def _kind(column: ColumnType) -> str:
    kind = "" if column.kind == ANY else column.kind
    if column.bounds is None:
        return f"{kind or 'category'} of {several(len(column.names or ()), 'level')}"
    low, high = (_written(column, bound) for bound in column.bounds)
    return f"{kind or ('integer' if column.integer else 'number')} from {low} to {high}"


def _quantiles(column: ColumnType, cells: NDArray[np.float64]) -> str:
    """Return the quantiles of a grid's noisy counts, (cells,), in words."""
    edges = grid.edges(column)
    assert edges is not None
    below = np.maximum.accumulate(np.cumsum(cells))
    if not below[-1] > 0:
        return "unknown: the noise hides the counts"
    found = []
    for share in _QUANTILES:
        at = int(np.searchsorted(below, share * below[-1]))
        before = below[at - 1] if at else 0.0
        inside = (share * below[-1] - before) / max(below[at] - before, 1e-300)
        low, high = edges[at], edges[at + 1]
        value = low + min(max(inside, 0.0), 1.0) * (high - low)
        value = min(math.floor(value), high - 1) if column.integer else value
        found.append(f"{100 * share:g} %: {_written(column, value)}")
    return ", ".join(found)


def _written(column: ColumnType, value: float) -> str:
    """Return a number as the column has it."""
    if column.step or column.kind in TIMES:
        one = grid.written(column, np.array([value])).iloc[0]
        return str(one.date() if hasattr(one, "date") and column.kind == "date" else one)
    return f"{value:.0f}" if column.integer else f"{value:.6g}"

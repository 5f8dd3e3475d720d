"""Features of a table's rows, a few at a time: a copy of all of them is never in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bdpvi.datasets.cells import Columns
from bdpvi.datasets.columns import Column, Floats
from bdpvi.datasets.terms import Features, joined

if TYPE_CHECKING:
    from torch import Tensor

_ROWS = 1 << 13  # so that they stay in the cache


class FeatureRows:
    """The features of cells, (N, d), each slice of rows made when it is asked for.

    Args:
        columns: the columns in use, all of them in the table.
        blocks: the features of each column or term, in order.
        table: the cells.

    >>> import pandas as pd
    >>> from bdpvi.datasets.cells import read_columns
    >>> from bdpvi.datasets.columns import Numeric
    >>> from bdpvi.datasets.encoding import Encoding
    >>> encoding = Encoding((Numeric("age", mean=40.0, sd=10.0),), "By law.", unknown="other")
    >>> rows = encoding.rows_of(read_columns(pd.DataFrame({"age": [50, None, 45]})))
    >>> len(rows), rows[1:].tolist()
    (3, [[0.0, 1.0], [0.5, 0.0]])
    """

    def __init__(
        self, columns: Sequence[Column], blocks: Sequence[Features], table: Columns
    ) -> None:
        self._columns, self._blocks = columns, blocks
        self._cells = {column.name: table[column.name] for column in columns}
        # Read once, as levels are sorted.
        self._names = {c.name: c.encode_cells(table[c.name]) for c in columns if not c.scaled}

    def __len__(self) -> int:
        return max(map(len, self._cells.values()), default=0)

    def __getitem__(self, rows: slice) -> Tensor:
        import torch

        return torch.from_numpy(self._numbers(rows))

    def whole(self) -> Floats:
        """Return all features, (N, d)."""
        made = np.empty((len(self), sum(len(one.names) for one in self._blocks)))
        for few in self.slices():
            made[few] = self._numbers(few)
        return made

    def _numbers(self, rows: slice) -> Floats:
        parts = {name: found[rows] for name, found in self._names.items()}
        for column in self._columns:
            if column.scaled:
                parts[column.name] = column.encode_cells(self._cells[column.name].select(rows))
        return joined(self._blocks, parts, self._columns)

    def slices(self) -> Iterator[slice]:
        """Yield slices of all rows, in order; without rows, an empty one."""
        for start in range(0, max(len(self), 1), _ROWS):
            yield slice(start, start + _ROWS)

"""A table's rows before they are encoded, and their encoding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bdpvi.datasets import estimates
from bdpvi.datasets.cells import Columns
from bdpvi.datasets.encoding import Encoding

PERSON = "person's number"
"""Name of a frame's index, if it numbers persons who may have several rows."""


@dataclass(frozen=True, eq=False)
class Rows:
    """A table's rows with a target; each cell is read independently of the others.

    Attributes:
        columns: all columns except the target.
        y: (N,) 1 for the positive class, otherwise 0; with a ``model`` in the pipeline the
            target's number, or its index among the classes.
        persons: (N,) a number for each row's person, if a person may have several. Secret.
    """

    columns: Columns
    y: np.ndarray[Any, np.dtype[np.float64]]
    persons: np.ndarray[Any, np.dtype[np.int64]] | None = None

    def select(self, rows: np.ndarray[Any, Any]) -> Rows:
        """Return some of them."""
        persons = None if self.persons is None else self.persons[rows]
        columns = {name: one.select(rows) for name, one in self.columns.items()}
        return Rows(columns, self.y[rows], persons)

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Encoded:
    """A table's encoding, and the price of its private preprocessing.

    Attributes:
        encoding: how cells become features.
        paid: distances μ of the charged mechanisms, for a row.
        records: noisy number of records, None if nothing was estimated privately.
        need: number of records from which private preprocessing costs little.
    """

    encoding: Encoding
    paid: tuple[float, ...] = ()
    records: float | None = None
    need: int = 0

    def caution(self, epsilon: float) -> str:
        """Return a warning if records are few for the private preprocessing, otherwise ""."""
        if self.records is None or self.records >= estimates.FEW * self.need:
            return ""
        return (
            f"about {max(self.records, 0):.0f} records are few: ε = {epsilon:g} needs about "
            f"{math.ceil(estimates.FEW * self.need)} for these columns, so their private bounds "
            "and categories are rough. Public bounds, fewer columns or a larger epsilon would help"
        )

    def nameless(self, declared: Sequence[str]) -> str:
        """Return a warning about text columns for which no category was found."""
        found = [
            repr(column.name)
            for column in self.encoding.columns
            if not column.features and column.name not in declared
        ]
        if not found:
            return ""
        return (
            f"{', '.join(found)}: mostly text, and no value is frequent enough to become a "
            "category. Numbers with thousands separators (1,234) and dates are read as text: "
            "make them numbers, or leave the column out (--drop)"
        )

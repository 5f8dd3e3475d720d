"""A table's rows before encoding: each cell is read independently of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bdpvi.datasets.cells import Cells, Columns, read_cell, read_columns
from bdpvi.datasets.encoding import with_text_names
from bdpvi.types import tell_owner

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi.recipes.pipeline import Pipeline


@dataclass(frozen=True, eq=False)
class Rows:
    """A table's rows with a target; each cell is read independently of the others.

    Attributes:
        columns: all columns except the target.
        y: (N,) 1 for the positive class, otherwise 0; with a ``model`` in the pipeline the
            target's number, or its index among the classes.
    """

    columns: Columns
    y: np.ndarray[Any, np.dtype[np.float64]]

    @classmethod
    def of(cls, frame: pd.DataFrame, pipeline: Pipeline) -> Rows:
        """Return the rows with a target; tell the owner how many rows have none."""
        columns = dict(read_columns(with_text_names(frame)))
        target = columns.pop(pipeline.target)
        if pipeline.model is None:
            y = np.asarray(_places(target, [pipeline.positive]) == 0, dtype=np.float64)
            kept = ~target.blank
        else:
            y = _places(target, pipeline.classes) if pipeline.classes else target.numbers
            kept = pipeline.model.fits(torch.from_numpy(y)).numpy()
        if pipeline.exposure:
            kept = kept & (columns[pipeline.exposure].numbers > 0)
        why = "a target, or an exposure, is blank or one that the model is not of"
        tell_owner(int((~kept).sum()), "row", why)
        return cls(columns, y).select(np.flatnonzero(kept))

    def select(self, rows: np.ndarray[Any, Any]) -> Rows:
        """Return some of them."""
        return Rows({name: one.select(rows) for name, one in self.columns.items()}, self.y[rows])

    def __len__(self) -> int:
        return len(self.y)


def _places(cells: Cells, values: Sequence[object]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return each cell's index among ``values``, (N,), -1 if it is none of them."""
    at = {read_cell(value)[1]: float(place) for place, value in enumerate(values)}
    of_names = np.array([*(at.get(name, -1.0) for name in cells.names), -1.0])
    return of_names[cells.codes]  # a blank is -1, the last

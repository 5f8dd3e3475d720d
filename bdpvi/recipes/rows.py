"""A table's rows before they are encoded: each cell read by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bdpvi.datasets.cells import Columns, read_cell, read_columns
from bdpvi.datasets.encoding import with_text_names

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi.recipes.pipeline import Pipeline


@dataclass(frozen=True, eq=False)
class Rows:
    """A table's rows, each cell read by itself, that have a target.

    Attributes:
        columns: all but the target.
        y: (N,) 1 where the target is the positive class, else 0; of a pipeline with a ``model`` the
            target's number.
    """

    columns: Columns
    y: np.ndarray[Any, np.dtype[np.float64]]

    @classmethod
    def of(cls, frame: pd.DataFrame, pipeline: Pipeline) -> Rows:
        """Return the rows of a table."""
        columns = dict(read_columns(with_text_names(frame)))
        target = columns.pop(pipeline.target)
        if pipeline.model is not None:
            y = target.numbers
            kept = np.flatnonzero(pipeline.model.fits(torch.from_numpy(y)).numpy())
        else:
            place = dict(zip(target.names, range(len(target.names)), strict=True))
            positive = place.get(read_cell(pipeline.positive)[1], -2)
            y = np.asarray(target.codes == positive, dtype=np.float64)
            kept = np.flatnonzero(~target.blank)
        return cls(columns, y).select(kept)

    def select(self, rows: np.ndarray[Any, Any]) -> Rows:
        """Return some of them."""
        return Rows({name: one.select(rows) for name, one in self.columns.items()}, self.y[rows])

    def __len__(self) -> int:
        return len(self.y)

"""Public benchmark tables: turns raw columns into records, the last step of every loader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from bdpvi.datasets.columns import Column, Numeric
from bdpvi.datasets.dataset import Dataset
from bdpvi.datasets.encoding import Encoding


def public_table(
    name: str,
    frame: pd.DataFrame,
    y: pd.Series[Any],
    positive: str,
    columns: tuple[Column, ...] | None = None,
) -> Dataset:
    """Return the rows of a public table; its constants are public because the table is.

    Args:
        name: the table's name in reports.
        frame: raw columns.
        y: N Booleans.
        positive: the meaning of y = 1.
        columns: encodings of the raw columns; by default all are numbers.
    """
    source = (
        "Means, standard deviations and categories are computed from all rows of the published "
        f"{name} table, training and test; they count as public."
    )
    columns = columns or tuple(Numeric.measured(frame[column]) for column in frame)
    encoding = Encoding(columns, source)
    return Dataset(
        encoding.apply(frame),
        torch.from_numpy(y.to_numpy(dtype=np.float64)),
        feature_names=encoding.feature_names,
        name=name,
        preprocessing={"encoding": encoding.to_dict(), "positive": positive},
    )

"""Public benchmark tables: turns raw columns into records, the last step of every loader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from bdpvi.datasets.columns import Column, Numeric
from bdpvi.datasets.dataset import Dataset
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.origin import Origin


def public_table(
    name: str,
    frame: pd.DataFrame,
    y: pd.Series[Any],
    positive: str,
    columns: tuple[Column, ...] | None = None,
) -> Dataset:
    """Return the rows of a public table, whose constants were read from all of them.

    Receipts say so: for a table that is not public, no ε would cover them.

    Args:
        name: the table's name in reports.
        frame: raw columns.
        y: N Booleans.
        positive: the meaning of y = 1.
        columns: encodings of the raw columns; by default all are numbers.
    """
    source = (
        "Means, standard deviations and categories are computed from all rows of the published "
        f"{name} table, training and test."
    )
    columns = columns or tuple(Numeric.of_values(frame[column]) for column in frame)
    encoding = Encoding(columns, source, origin=Origin.FROM_THIS_TABLE)
    return Dataset(
        encoding.apply(frame),
        torch.from_numpy(y.to_numpy(dtype=np.float64)),
        feature_names=encoding.feature_names,
        name=name,
        preprocessing={"encoding": encoding.to_dict(), "positive": positive},
    )

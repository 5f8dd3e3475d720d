"""Public benchmark tables: from raw columns to records, the last step of every loader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from bdpvi.datasets.columns import Column, Numeric
from bdpvi.datasets.encoding import Encoding
from bdpvi.types import Dataset


def public_table(
    name: str,
    frame: pd.DataFrame,
    y: pd.Series[Any],
    positive: str,
    columns: tuple[Column, ...] | None = None,
) -> Dataset:
    """Return the rows of a public table; its constants are public because the table is.

    Args:
        name: what reports call the table.
        frame: raw columns.
        y: N truth values.
        positive: what y = 1 means.
        columns: how the raw columns become features; by default every one is a number.
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

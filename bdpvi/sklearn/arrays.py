"""The linear predictor for arrays of which each column is one number, block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from bdpvi.datasets.columns import FARTHEST

_ROWS = 1024
"""Rows at once, which stay in a processor's cache."""


def predictor_of(estimator: Any, X: Any, constant: NDArray[np.float64]) -> Any:
    """Return w·clip(x − c) + b by each draw, (N, k), without a copy of X.

    Args:
        estimator: fitted, with ``coef_samples_`` (k, d), ``center_`` c, ``scale_`` and the release.
        X: a table.
        constant: b, the predictor at the centre, (k,).

    Returns:
        None where X is no array of finite numbers, or its columns are not the features.
    """
    plain = estimator.encoding_ is None and estimator.group is None and not estimator.unit_
    if not plain or type(X) is not np.ndarray or X.ndim != 2 or X.dtype.kind not in "fiu":
        return None
    shown = np.zeros((min(len(X), 1), X.shape[1]))
    validate_data(estimator, shown, reset=False)  # the number of columns, and their names
    limit = estimator.release_.model.limit
    reach = (FARTHEST if limit is None else float(limit)) * estimator.scale_
    size, made = min(len(X), _ROWS), np.empty((len(X), len(constant)))
    ends = estimator.center_ - reach, estimator.center_ + reach, estimator.center_
    low, high, center = (np.tile(end, (size, 1)) for end in ends)  # wide operations are faster
    for at in range(0, len(X), _ROWS):
        rows = X[at : at + _ROWS]
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.isfinite(rows.sum(dtype=np.float64)):
                return None
        some = np.maximum(rows, low[: len(rows)])
        np.minimum(some, high[: len(rows)], out=some)
        some -= center[: len(rows)]
        np.matmul(some, estimator.coef_samples_.T, out=made[at : at + _ROWS])
    made += constant
    return made

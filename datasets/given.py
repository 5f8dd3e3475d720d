"""Signs that the features of arrays were computed from the very rows that they belong to.

An ε covers what is computed from the arrays that a call is given. A mean or a limit of the table
that went into them before is an output that nothing covers, and mostly leaves a sign.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdpvi._ground.types import PrivacyUtilityWarning

_FEWEST, _MOST, _CLOSE = 20, 1000, 1e-4
"""Fewest rows, most columns that are looked at, and how close to rounding numbers have to lie."""
_ENDS = ((0.0, 1.0), (-1.0, 1.0), (-5.1993375821928165, 5.1993375821928165))
"""Of MinMaxScaler, and of QuantileTransformer with Gaussian outputs."""
REMEDY = (
    "no ε covers that. Give raw columns to bdpvi.private or an estimator of bdpvi.sklearn, which "
    "pay for their scales; or scale by numbers that you know without the rows, and declare that: "
    "Dataset(x, y, preprocessing={'declared': {'features': 'how, and from which numbers'}})"
)

Column = NDArray[np.float64]


def _standardised(one: Column) -> bool:
    size, variance = len(one), float(one.var())
    return _centred(one) and min(abs(variance - 1), abs(variance * size / (size - 1) - 1)) < _CLOSE


def _centred(one: Column) -> bool:
    return bool(abs(one.mean()) < _CLOSE * one.std())


def _to_ends(one: Column) -> bool:
    found = one.min(), one.max()
    return any(np.allclose(found, ends, rtol=0, atol=1e-6) for ends in _ENDS)


def _robust(one: Column) -> bool:
    low, middle, high = np.percentile(one, (25, 50, 75))
    return bool(abs(middle) < 1e-6 and abs(high - low - 1) < 1e-6)


def _ranks(one: Column) -> bool:
    steps = np.diff(np.sort(one))
    return bool(steps[0] > 0 and np.allclose(steps, steps[0], rtol=1e-4, atol=0))


_SIGNS = {
    "has mean 0 and standard deviation 1, as StandardScaler makes it": _standardised,
    "reaches from end to end of one range, as MinMaxScaler or QuantileTransformer makes it": (
        _to_ends
    ),
    "has median 0 and an interquartile range of 1, as RobustScaler makes it": _robust,
    "has equal steps from each value to the next, as ranks have": _ranks,
}
"""By what is said of a table: what holds for each column of more than two values."""
_PCA = "has mean 0 and is uncorrelated with the others, as PCA makes it"


def sign(values: Any) -> str:
    """Return what shows that an array was made from its own rows, "" if nothing does.

    Args:
        values: (N, ...) numbers; those that are not finite are no sign.

    >>> raw = np.random.default_rng(0).normal(5, 3, (1000, 2))
    >>> sign(raw), sign((raw - raw.mean(0)) / raw.std(0))
    ('', 'has mean 0 and standard deviation 1, as StandardScaler makes it')
    """
    found = np.asarray(values)
    if found.dtype.kind not in "iuf" or not found.ndim or len(found) < _FEWEST:
        return ""
    signs, kept = {**_SIGNS, _PCA: _centred}, []
    for column in found.reshape(len(found), -1).T[:_MOST]:
        numbers = column.astype(np.float64)
        if not np.isfinite(numbers).all() or len(np.unique(numbers[:1000])) < 3:
            continue
        kept.append(numbers)
        with np.errstate(all="ignore"):  # a warning would tell of a record with large numbers
            signs = {words: holds for words, holds in signs.items() if holds(numbers)}
        if not signs:
            return ""
    if len(kept) < 2 or _PCA not in signs or not _uncorrelated(kept):
        signs.pop(_PCA, None)
    return next(iter(signs), "") if kept else ""


def _uncorrelated(columns: list[Column]) -> bool:
    with np.errstate(all="ignore"):
        found: NDArray[np.float64] = np.corrcoef(np.array(columns))
    return bool(np.abs(found - np.eye(len(found))).max() < _CLOSE)


def warn_of_signs(stacklevel: int = 3, **arrays: Any) -> None:
    """Warn the owner of arrays, by name, that were made from their own rows."""
    for name, values in arrays.items():
        if words := sign(values):
            warnings.warn(
                f"for the owner only: each column of {name} {words}: if this table's rows gave it "
                f"that, {REMEDY}",
                PrivacyUtilityWarning,
                stacklevel=stacklevel + 1,
            )

"""Public centres and scales of columns of numbers, or those of the rows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdpvi.datasets.columns import Numeric
from bdpvi.datasets.encoding import MEASURED, Encoding
from bdpvi.datasets.origin import Origin

Floats = NDArray[np.float64]


def of_bounds(bounds: Any, names: Sequence[str]) -> Encoding | None:
    """Return midpoints and quarter widths of public ranges (low, high), numbers or arrays of d.

    Raises:
        ValueError: if they are not ranges.

    >>> found = of_bounds((0, 4), ["age"])
    >>> found.columns if found else ()
    (Numeric(name='age', mean=2.0, sd=1.0, missing=False, type=None),)
    """
    low, high = _pair("bounds", bounds, len(names))
    if not (low < high).all():
        raise ValueError(f"bounds must have low < high, got {bounds!r}")
    return _encoding(names, (low + high) / 2, (high - low) / 4)


def of_scales(scales: Any, names: Sequence[str]) -> Encoding | None:
    """Return public centres and standard deviations, numbers or arrays of d.

    Raises:
        ValueError: if a deviation is not positive.
    """
    center, scale = _pair("scales", scales, len(names))
    if not (scale > 0).all():
        raise ValueError(f"scales must have positive deviations, got {scales!r}")
    return _encoding(names, center, scale)


def of_rows(X: Floats, names: Sequence[str]) -> Encoding | None:
    """Return the rows' own means and deviations, which no ε covers; the owner must consent.

    What is no finite number is left out of its column.
    """
    there = np.where(np.isfinite(X), X, np.nan)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # squares may overflow, or a column may have no number
        deviation, mean = np.nanstd(there, axis=0), np.nanmean(there, axis=0)
    whole = np.isfinite(deviation) & np.isfinite(mean)
    mean, deviation = np.where(whole, mean, 0.0), np.where(whole & (deviation > 0), deviation, 1.0)
    return _encoding(names, mean, deviation, MEASURED, origin=Origin.FROM_THIS_TABLE)


def _encoding(
    names: Sequence[str],
    center: Floats,
    scale: Floats,
    source: str = "given as public",
    origin: Origin = Origin.PUBLIC,
) -> Encoding | None:
    """Return the encoding of columns with these names, None without any."""
    columns = map(Numeric, names, center.tolist(), scale.tolist())
    return Encoding(tuple(columns), source, origin=origin) if names else None


def _pair(name: str, value: Any, width: int) -> tuple[Floats, Floats]:
    """Return two arrays with one number for each feature."""
    try:
        one, other = (np.broadcast_to(np.asarray(v, dtype=np.float64), width) for v in value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be a pair of numbers or of arrays of {width}, got {value!r}"
        ) from error
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return one.copy(), other.copy()

"""A table's rows before they are encoded, and their encoding, by public scales or the rows' own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdpvi.datasets import estimates
from bdpvi.datasets.cells import Columns
from bdpvi.datasets.columns import Numeric
from bdpvi.datasets.encoding import MEASURED, Encoding
from bdpvi.datasets.origin import Origin

Floats = NDArray[np.float64]
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
        weights: (N,) how often each row counts, from 0 to 1; None for once.
    """

    columns: Columns
    y: Floats
    persons: np.ndarray[Any, np.dtype[np.int64]] | None = None
    weights: Floats | None = None

    def select(self, rows: np.ndarray[Any, Any]) -> Rows:
        """Return some of them."""
        persons = None if self.persons is None else self.persons[rows]
        weights = None if self.weights is None else self.weights[rows]
        columns = {name: one.select(rows) for name, one in self.columns.items()}
        return Rows(columns, self.y[rows], persons, weights)

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

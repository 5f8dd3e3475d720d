"""Standardisation of an array's columns, and its cost."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdpvi.datasets.bought import SOURCE
from bdpvi.datasets.columns import Numeric
from bdpvi.datasets.encoding import MEASURED, Encoding
from bdpvi.datasets.origin import Origin
from bdpvi.tables.rows import Encoded

Floats = NDArray[np.float64]
FURTHEST = 1e12
"""Standardised features are clamped to ± this, so that a rough scale makes none infinite."""


@dataclass(frozen=True, eq=False)
class Standard:
    """Centres and scales of d columns.

    Attributes:
        center, scale: (d,) each.
        source: a public sentence about their source.
        found: the private preprocessing; None if there was none.
        origin, purchases: as in :class:`~bdpvi.datasets.Encoding`.
        table: how a data frame's columns become the d features; None for the columns of an array.

    >>> of_bounds((0, 4), 2).applied(np.array([[2.0, 3.0]]))
    array([[0., 1.]])
    """

    center: Floats
    scale: Floats
    source: str = "given as public"
    found: Encoded | None = None
    origin: Origin = Origin.PUBLIC
    purchases: tuple[str, ...] = ()
    table: Encoding | None = None

    @classmethod
    def of_table(cls, found: Encoded) -> Standard:
        """Return the centre and the scale of each feature that an encoding makes."""
        center, scale = np.array(found.encoding.scales).T
        source = found.encoding.source
        return cls(center, scale, source, found, table=found.encoding)

    @classmethod
    def of_numbers(cls, found: Encoded) -> Standard:
        """Return private centres and scales of columns of which each is one feature."""
        made: Any = found.encoding
        center, scale = np.array([(one.mean, one.sd) for one in made.columns]).T
        return cls(center, scale, SOURCE, found, made.origin, made.purchases)

    def applied(self, X: Floats) -> Floats:
        """Return the standardised rows, (N, d)."""
        return standardised(X, self.center, self.scale)

    def encoding(self, names: Iterable[object]) -> Encoding:
        """Return how columns with these names, which a table has already, become features."""
        if self.table is not None:
            return self.table
        constants = zip(names, self.center.tolist(), self.scale.tolist(), strict=True)
        columns = tuple(Numeric(str(n), c, s) for n, c, s in constants)
        return Encoding(columns, self.source, origin=self.origin, purchases=self.purchases)


def standardised(X: Floats, center: Floats, scale: Floats) -> Floats:
    """Return (X − center)/scale, (N, d), clamped to ± :data:`FURTHEST`."""
    with np.errstate(over="ignore"):  # an overflow is clamped too
        found: Floats = ((X - center) / scale).clip(-FURTHEST, FURTHEST)
    return found


def of_bounds(bounds: Any, width: int) -> Standard:
    """Return midpoints and quarter widths of public ranges (low, high), numbers or arrays of d.

    Raises:
        ValueError: if they are not ranges.
    """
    low, high = _pair("bounds", bounds, width)
    if not (low < high).all():
        raise ValueError(f"bounds must have low < high, got {bounds!r}")
    return Standard((low + high) / 2, (high - low) / 4)


def of_scales(scales: Any, width: int) -> Standard:
    """Return public centres and standard deviations, numbers or arrays of d.

    Raises:
        ValueError: if a deviation is not positive.
    """
    center, scale = _pair("scales", scales, width)
    if not (scale > 0).all():
        raise ValueError(f"scales must have positive deviations, got {scales!r}")
    return Standard(center, scale)


def of_rows(X: Floats) -> Standard:
    """Return the rows' own means and deviations, which no ε covers; the owner must consent.

    What is no finite number is left out of its column.
    """
    there = np.where(np.isfinite(X), X, np.nan)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # squares may overflow, or a column may have no number
        deviation, mean = np.nanstd(there, axis=0), np.nanmean(there, axis=0)
    whole = np.isfinite(deviation) & np.isfinite(mean)
    mean, deviation = np.where(whole, mean, 0.0), np.where(whole & (deviation > 0), deviation, 1.0)
    return Standard(mean, deviation, MEASURED, origin=Origin.FROM_THIS_TABLE)


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

"""The features of a row, in the order of the weights: columns, or the terms of a formula.

:mod:`bdpvi.datasets.terms` makes and names terms; what they are for a row is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from .bases import BOUND, Floats, basis, inner_knots, logarithm, power, products
from .columns import LevelColumn, NumberColumn, RankColumn, RowColumn


class RowFactor:
    """A factor of a term.

    Args:
        entry: its entry in a release's file.
        column: its column.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    counts = True
    """Whether it counts as a number, by which products are divided."""

    def __init__(self, entry: Mapping[str, Any], column: RowColumn) -> None:
        if more := sorted(entry.keys() - {"kind", "column", *self.fields}):
            raise ValueError(f"a term of {column.name!r} has {more[0]!r}: a later version made it")
        self.column = column
        self._set(entry)

    def _set(self, entry: Mapping[str, Any]) -> None:
        """Read what is the kind's own."""

    @property
    def number(self) -> NumberColumn | RankColumn:
        """The column of a number."""
        if not isinstance(self.column, NumberColumn | RankColumn):
            raise ValueError(f"a term needs numbers in {self.column.name!r}")
        return self.column

    def values(self, plain: Floats) -> Floats:
        """Return its values, (N, k), by the features of the columns."""
        return self.of(np.clip(plain[:, self.number.start], -BOUND, BOUND))

    def of(self, z: Floats) -> Floats:
        """Return its values, (N, k), by the number within its bounds."""
        raise NotImplementedError


class PlainFactor(RowFactor):
    """A number itself, or the levels of a category."""

    fields = ("reference", "every")

    def _set(self, entry: Mapping[str, Any]) -> None:
        self.counts = isinstance(self.column, NumberColumn | RankColumn)
        kept = range(self.column.start, self.column.end)
        if isinstance(self.column, LevelColumn) and not entry["every"] and not self.counts:
            base = self.column.levels.index(entry["reference"]) if entry["reference"] else 0
            kept = [at for at in kept if at != kept[base]]  # type: ignore[assignment]
        self.kept = [*kept][: 1 if self.counts else None]
        """Numbers of the column's features that it has."""

    def values(self, plain: Floats) -> Floats:
        """Return the number, or the features of the levels."""
        return super().values(plain) if self.counts else plain[:, self.kept]

    def of(self, z: Floats) -> Floats:
        """Return the number."""
        return z[:, None]


class PowerFactor(RowFactor):
    """A power of a number."""

    fields = ("degree",)

    def _set(self, entry: Mapping[str, Any]) -> None:
        self.degree = int(entry["degree"])

    def of(self, z: Floats) -> Floats:
        """Return the power."""
        return power(z, self.degree)[:, None]


class LogFactor(RowFactor):
    """The logarithm of a number."""

    def of(self, z: Floats) -> Floats:
        """Return the logarithm."""
        return logarithm(z, self.number.mean, self.number.sd)[:, None]


class SplineFactor(RowFactor):
    """A B-spline basis of a number, without the first function."""

    fields = ("size", "degree", "knots")
    counts = False

    def _set(self, entry: Mapping[str, Any]) -> None:
        self.size, self.degree = int(entry["size"]), int(entry["degree"])
        number = self.number
        self.inner = inner_knots(self.size, self.degree, entry["knots"], number.mean, number.sd)

    def of(self, z: Floats) -> Floats:
        """Return the functions."""
        return basis(z, self.inner, self.degree)[:, 1:]


FACTORS: dict[str, type[RowFactor]] = {
    "plain": PlainFactor,
    "power": PowerFactor,
    "log": LogFactor,
    "spline": SplineFactor,
}
"""Factors by the kinds that files name."""


class FeatureBlock:
    """Features that stand side by side: those of a column, of a term, or the sign of a blank.

    Attributes:
        column: the column of its own features, or of the blank.
        factors: of a term; none of a column.
        sign: whether it is the sign of a blank alone.
        start, end: its features are those from ``start`` on, before ``end``.
    """

    def __init__(
        self,
        start: int,
        column: RowColumn,
        factors: Sequence[RowFactor] = (),
        sign: bool = False,
    ) -> None:
        self.start, self.column, self.factors, self.sign = start, column, factors, sign
        width = max(one.column.end for one in factors) if factors else column.end
        self.end = start + self.values(np.zeros((1, width))).shape[1]

    @property
    def plain(self) -> bool:
        """Whether it is a column itself."""
        return not (self.factors or self.sign)

    def values(self, plain: Floats) -> Floats:
        """Return its features, (N, k), by those of the columns."""
        if self.factors:
            values = [one.values(plain) for one in self.factors]
            return products(values, sum(one.counts for one in self.factors))
        first = self.column.end - 1 if self.sign else self.column.start
        return plain[:, first : self.column.end]


def blocks_of(terms: Sequence[Any], columns: Sequence[RowColumn]) -> list[FeatureBlock]:
    """Return the features of a formula's terms, or without one of the columns.

    A number that is no term by itself has its sign of a blank at the end.

    Raises:
        ValueError, KeyError: if a term is unknown.
    """
    whole = {one.name: one for one in columns}
    left, used = dict(whole), set()
    found: list[FeatureBlock] = []

    def add(*block: Any) -> None:
        found.append(FeatureBlock(found[-1].end if found else 0, *block))

    for term in terms:
        used |= {entry["column"] for entry in term}
        if len(term) == 1 and term[0]["kind"] == "plain":
            add(left.pop(term[0]["column"]))
            continue
        factors = [FACTORS[one["kind"]](one, whole[one["column"]]) for one in term]
        add(factors[0].column, factors)
    for name, one in left.items():
        if not terms:
            add(one)
        elif name in used and isinstance(one, NumberColumn | RankColumn) and one.missing >= 0:
            add(one, (), True)
    return found

"""Terms of a formula: products of columns, powers, logarithms, splines and levels.

A term is a product of factors, one for each column. Factors read a column's features as its
encoding makes them, so their constants are the column's own: a formula has no further price.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, NamedTuple

import numpy as np

from bdpvi._ground import validate
from bdpvi.datasets.columns import Column, Numeric, OneHot
from bdpvi.score.bases import (
    BOUND,
    Floats,
    basis,
    inner_knots,
    log_scale,
    logarithm,
    power,
    products,
)


def _clamped(column: Column, features: Floats) -> Floats:
    """Return a number in standard deviations from its mean, (N,), within its bounds."""
    assert isinstance(column, Numeric)
    return np.clip(features[:, 0], -BOUND, BOUND)


def _check_number(name: str, column: Column | None) -> None:
    """Raise ValueError if a column is known and no number."""
    if column is not None and not isinstance(column, Numeric):
        raise ValueError(f"{name!r} is a category, and is used as a number")


@dataclass(frozen=True)
class Plain:
    """A column itself: a number within its bounds, or a category's levels, 0 or 1.

    Attributes:
        column: the column.
        reference: the level that others are compared with; "" for the first.
        every: whether products have the reference level too, as their other factors stand nowhere
            alone.

    >>> Plain("age").values(Numeric("age", 40.0, 10.0), np.array([[1.0, 0.0]])).tolist()
    [[1.0]]
    """

    kind: ClassVar[str] = "plain"
    column: str
    reference: str = ""
    every: bool = False

    def check(self, column: Column | None) -> None:
        """Raise ValueError unless it suits the column's public constants, None without any."""
        levels = getattr(column, "categories", ())
        if self.reference and column is not None and self.reference not in levels:
            raise ValueError(
                f"C({self.column}): {self.reference!r} is not one of its levels {levels!r:.200}"
            )

    def _kept(self, column: Column, width: int) -> list[int]:
        """Return the places of the column's features that a product has, of ``width`` in all."""
        if isinstance(column, Numeric):
            return [0]
        if self.every or not isinstance(column, OneHot):
            return [*range(width)]
        base = column.categories.index(self.reference) if self.reference else 0
        return [place for place in range(width) if place != base]

    def values(self, column: Column, features: Floats) -> Floats:
        """Return the factor's values, (N, k), from the features of its column."""
        if isinstance(column, Numeric):
            return _clamped(column, features)[:, None]
        return features[:, self._kept(column, features.shape[1])]

    def names(self, names: Sequence[str], column: Column) -> tuple[str, ...]:
        """Return the names of its k values from those of the column's features."""
        return tuple(names[at] for at in self._kept(column, len(names)))

    def scale(self, column: Column) -> float:
        """Return the units of the raw number in one of its values; 1 for levels."""
        return column.sd if isinstance(column, Numeric) else 1.0


@dataclass(frozen=True)
class Power:
    """A power of a number, measured from the column's mean and clamped at its bounds.

    It is divided by the bound once for each degree above 1, so that it keeps the number's bounds.

    >>> Power("age", 2).values(Numeric("age", 40.0, 10.0), np.array([[1.0], [-9.0]])).tolist()
    [[0.5773502691896258], [1.7320508075688772]]
    """

    kind: ClassVar[str] = "power"
    column: str
    degree: int

    def __post_init__(self) -> None:
        validate.at_most("degree", validate.positive_int("degree", self.degree, least=2), 9)

    def check(self, column: Column | None) -> None:
        """See :meth:`Plain.check`."""
        _check_number(self.column, column)

    def values(self, column: Column, features: Floats) -> Floats:
        """See :meth:`Plain.values`."""
        return power(_clamped(column, features), self.degree)[:, None]

    def names(self, names: Sequence[str], column: Column) -> tuple[str, ...]:
        """See :meth:`Plain.names`."""
        return (f"{self.column}^{self.degree}",)

    def scale(self, column: Column) -> float:
        """See :meth:`Plain.scale`."""
        assert isinstance(column, Numeric)
        return float(column.sd**self.degree * BOUND ** (self.degree - 1))


@dataclass(frozen=True)
class Log:
    """The logarithm of a number with public bounds above 0, standardised by their logarithms.

    >>> at = Numeric("dose", 5.0, 2.0)
    >>> round(float(Log("dose").values(at, np.array([[9.0]]))[0, 0]), 6) == round(BOUND, 6)
    True
    """

    kind: ClassVar[str] = "log"
    column: str

    def check(self, column: Column | None) -> None:
        """See :meth:`Plain.check`."""
        _check_number(self.column, column)
        if column is None:
            raise ValueError(
                f"log({self.column}): it needs public bounds above 0 (--constants, or bdpvi table)"
            )
        self._number(column)

    def _number(self, column: Column) -> tuple[float, float]:
        assert isinstance(column, Numeric)
        if (low := column.mean - BOUND * column.sd) <= 0:
            raise ValueError(
                f"log({self.column}): the column's lower bound is {low:.3g}; give it public bounds "
                "above 0, or use bs()"
            )
        return column.mean, column.sd

    def values(self, column: Column, features: Floats) -> Floats:
        """See :meth:`Plain.values`."""
        return logarithm(_clamped(column, features), *self._number(column))[:, None]

    def names(self, names: Sequence[str], column: Column) -> tuple[str, ...]:
        """See :meth:`Plain.names`."""
        return (f"log({self.column})",)

    def scale(self, column: Column) -> float:
        """See :meth:`Plain.scale`."""
        return log_scale(*self._number(column))


@dataclass(frozen=True)
class Spline:
    """A B-spline basis of a number between its bounds, without the first function.

    Attributes:
        column: the column.
        size: number of basis functions; inner knots are evenly spaced unless they are given.
        degree: degree of the pieces.
        knots: inner knots in the column's units, ascending.

    Source: de Boor, A Practical Guide to Splines (2001), chapter IX, eq. 14.

    >>> Spline("age", 3).values(Numeric("age", 40.0, 10.0), np.array([[0.0]])).tolist()
    [[0.375, 0.375, 0.125]]
    """

    kind: ClassVar[str] = "spline"
    column: str
    size: int
    degree: int = 3
    knots: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        validate.positive_int("degree of bs()", self.degree)
        validate.at_most("df of bs()", validate.positive_int("df of bs()", self.size), 50)
        inner = self.size - self.degree
        if inner < 0 or (self.knots and len(self.knots) != inner):
            raise ValueError(
                f"bs({self.column}): df={self.size} with degree={self.degree} and "
                f"{len(self.knots)} knots; df must be the degree, plus 1 for each knot"
            )
        if any(not math.isfinite(k) for k in self.knots) or [*self.knots] != sorted(self.knots):
            raise ValueError(f"bs({self.column}): knots must ascend, got {self.knots}")

    def check(self, column: Column | None) -> None:
        """See :meth:`Plain.check`."""
        _check_number(self.column, column)
        if self.knots and column is None:
            raise ValueError(
                f"bs({self.column}): knots need public bounds (--constants, or bdpvi table); df= "
                "does not"
            )
        if self.knots and np.any(np.abs(self._inner(column)) >= BOUND):
            raise ValueError(
                f"bs({self.column}): knots {self.knots} must lie within the column's bounds"
            )

    def _inner(self, column: Column | None) -> Floats:
        """Return the inner knots in standard deviations from the mean."""
        mean, sd = (column.mean, column.sd) if isinstance(column, Numeric) else (0.0, 1.0)
        return inner_knots(self.size, self.degree, self.knots, mean, sd)

    def values(self, column: Column, features: Floats) -> Floats:
        """See :meth:`Plain.values`."""
        return basis(_clamped(column, features), self._inner(column), self.degree)[:, 1:]

    def names(self, names: Sequence[str], column: Column) -> tuple[str, ...]:
        """See :meth:`Plain.names`."""
        return tuple(f"bs({self.column})[{number}]" for number in range(1, self.size + 1))

    def scale(self, column: Column) -> float:
        """See :meth:`Plain.scale`."""
        return 1.0


Factor = Plain | Power | Log | Spline
Term = tuple[Factor, ...]


def product_of(term: Term, columns: Mapping[str, Column], parts: Mapping[str, Floats]) -> Floats:
    """Return a term's values, (N, k): products of one value of each factor, the last the quickest.

    Products of numbers are divided by the bound for each number but the first.
    """
    each = [one.values(columns[one.column], parts[one.column]) for one in term]
    return products(each, _numbers(term, columns))


def names_of(
    term: Term, columns: Mapping[str, Column], names: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Return the names of a term's values from those of the columns' features."""
    each = (factor.names(names[factor.column], columns[factor.column]) for factor in term)
    return tuple(":".join(parts) for parts in product(*each))


def scale_of(term: Term, columns: Mapping[str, Column]) -> float:
    """Return the units of the raw product in one of the term's values."""
    whole = math.prod(factor.scale(columns[factor.column]) for factor in term)
    return whole * BOUND ** max(0, _numbers(term, columns) - 1)


def _numbers(term: Term, columns: Mapping[str, Column]) -> int:
    """Return how many factors are numbers."""
    return sum(
        isinstance(columns[factor.column], Numeric) and not isinstance(factor, Spline)
        for factor in term
    )


class Features(NamedTuple):
    """The features of a column or of a term.

    Attributes:
        names: their names.
        scales: centre and scale of the number behind each; 0 and 1 where there is none.
        column: the column; None for a product, a power, a logarithm or a spline.
        blank: whether the last feature says that a cell is blank.
        term: the term; () for a column, and for the sign of a blank that stands alone.
        sign: the number whose sign of a blank it is.
    """

    names: tuple[str, ...]
    scales: tuple[tuple[float, float], ...]
    column: Column | None
    blank: bool = False
    term: Term = ()
    sign: str = ""

    def units(self, per: Mapping[str, float]) -> float:
        """Return the units of the raw number or product that is ``per[NAME]`` of each column."""
        if self.column is not None and self.column.scaled:
            return per.get(self.column.name, 1.0)
        degrees = (
            (f.column, getattr(f, "degree", 1)) for f in self.term if isinstance(f, Plain | Power)
        )
        return math.prod(per.get(name, 1.0) ** degree for name, degree in degrees)


def of_columns(
    terms: Sequence[Term], columns: Sequence[tuple[Column, tuple[str, ...], bool]]
) -> tuple[Features, ...]:
    """Return the features of each term, or without terms of each column.

    A number that is no term by itself has its sign of a blank at the end.

    Args:
        terms: the terms.
        columns: each column, the names of its features, and whether the last says it is blank.
    """
    plain = []
    for one, names, blank in columns:
        others = [(0.0, 1.0)] * (len(names) - len(one.scales))
        plain.append(Features(names, (*one.scales, *others), one, blank))
    if not terms:
        return tuple(plain)
    known = {one.name: one for one, _, _ in columns}
    left = dict(zip(known, plain, strict=True))
    named = {name: one.names for name, one in left.items()}
    used = {factor.column for term in terms for factor in term}
    made = []
    for term in terms:
        if len(term) == 1 and isinstance(term[0], Plain):
            made.append(left.pop(term[0].column))
            continue
        own = names_of(term, known, named)
        made.append(Features(own, ((0.0, scale_of(term, known)),) * len(own), None, term=term))
    for name, rest in left.items():
        if name in used and known[name].scaled and rest.blank:
            made.append(Features(rest.names[-1:], ((0.0, 1.0),), None, blank=True, sign=name))
    return tuple(made)


def joined(
    blocks: Sequence[Features], parts: Mapping[str, Floats], columns: Sequence[Column]
) -> Floats:
    """Return all features, (N, d), from those of each column."""
    named = {column.name: column for column in columns}
    return np.hstack(
        [
            parts[one.column.name]
            if one.column is not None
            else product_of(one.term, named, parts)
            if one.term
            else parts[one.sign][:, -1:]
            for one in blocks
        ]
    )


def check_terms(terms: Sequence[Term], columns: Sequence[Column]) -> None:
    """Raise ValueError unless the terms are of these columns, and suit them."""
    named = {column.name: column for column in columns}
    for factor in (factor for term in terms for factor in term):
        if factor.column not in named:
            raise ValueError(f"terms has {factor.column!r}, which is not a column")
        factor.check(named[factor.column])


def references_of(terms: Sequence[Term], columns: Sequence[Column]) -> dict[str, str]:
    """Return the reference levels of categories: those stated, and those of products."""
    levels = {c.name: c.categories for c in columns if isinstance(c, OneHot) and c.categories}
    return {
        factor.column: factor.reference or levels[factor.column][0]
        for term in terms
        for factor in term
        if isinstance(factor, Plain)
        and factor.column in levels
        and (factor.reference or (len(term) > 1 and not factor.every))
    }

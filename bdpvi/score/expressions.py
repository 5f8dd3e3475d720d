"""Expressions of standard SQL, as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

from .bases import BOUND, log_ends, log_scale
from .blocks import LogFactor, PlainFactor, PowerFactor, RowFactor, SplineFactor
from .columns import LevelColumn

LARGEST = 700.0
"""Exponents are clipped at ± this: databases refuse larger ones."""
MISSING, UNLISTED = -1, -2
"""What stands for a blank and for an unlisted level among indices of levels."""


def sigmoid(value: str) -> str:
    """Return 1/(1 + e^−value)."""
    return f"(1e0 / (1e0 + {exp(f'(0e0 - {value})')}))"


def exp(value: str, most: float = LARGEST) -> str:
    """Return e to the value, which is clipped at ± a bound."""
    return f"EXP({clipped(value, most)})"


def clipped(value: str, most: float) -> str:
    """Return a value within ± a bound."""
    if math.isinf(most):
        return value
    high, low = literal(most), literal(-most)
    return (
        f"CASE WHEN {value} > {high} THEN {high} WHEN {value} < {low} THEN {low} ELSE {value} END"
    )


def sum_of(terms: Sequence[str]) -> str:
    """Return a sum whose depth grows with the logarithm of the terms: databases limit it."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return f"({sum_of(terms[:half])} + {sum_of(terms[half:])})"


def literal(value: float) -> str:
    """Return a number as a literal in double precision, which one with an exponent is.

    >>> literal(0.1), literal(-1e-7)
    ('0.1e0', '-1e-07')
    """
    text = repr(float(value))
    return text if "e" in text else f"{text}e0"


def quoted(text: str) -> str:
    """Return the name of a column or a table."""
    return '"' + text.replace('"', '""') + '"'


def text_of(text: str) -> str:
    """Return a text as a literal."""
    return "'" + text.replace("'", "''") + "'"


def texts_of(some: Iterable[str]) -> str:
    """Return texts as a list of literals."""
    return ", ".join(map(text_of, sorted(some)))


def _plain(one: RowFactor, x: str, z: str) -> list[str]:
    assert isinstance(one, PlainFactor)
    column = one.column
    if not isinstance(column, LevelColumn):
        return [z]
    codes = {column.start + at: at for at in range(len(column.levels))}
    others = {MISSING: column.missing, UNLISTED: column.other}
    codes |= {feature: at for at, feature in others.items() if feature >= 0}
    odd = [at for at, feature in others.items() if feature < 0 and column.unknown == "refuse"]
    refused = "".join(f" WHEN {at} THEN NULL" for at in odd)
    return [f"CASE {x} WHEN {codes[at]} THEN 1e0{refused} ELSE 0e0 END" for at in one.kept]


def _power(one: RowFactor, x: str, z: str) -> list[str]:
    assert isinstance(one, PowerFactor)
    return [f"{' * '.join([z] * one.degree)} * {literal(BOUND ** (1 - one.degree))}"]


def _log(one: RowFactor, x: str, z: str) -> list[str]:
    mean, sd = one.number.mean, one.number.sd
    value = f"LN({literal(mean)} + {literal(sd)} * {z})"
    return [f"({value} - {literal(sum(log_ends(mean, sd)) / 2)}) / {literal(log_scale(mean, sd))}"]


def _spline(one: RowFactor, x: str, z: str) -> list[str]:
    """Return each function as polynomials between the knots."""
    assert isinstance(one, SplineFactor)
    knots = np.unique([-BOUND, *one.inner, BOUND])
    made: list[list[str]] = [[] for _ in range(one.size)]
    for low, high in pairwise(knots):
        middle, half = (low + high) / 2, (high - low) / 2
        u = np.cos(np.pi * (np.arange(one.degree + 1) + 0.5) / (one.degree + 1))
        fitted = np.polynomial.polynomial.polyfit(u, one.of(middle + half * u), one.degree)
        at = f"(({z} - {literal(middle)}) / {literal(half)})"
        for k, some in enumerate(fitted.T.tolist()):
            value = literal(some[-1])
            for coefficient in some[-2::-1]:
                value = f"({literal(coefficient)} + {at} * {value})"
            made[k].append(f"WHEN {z} <= {literal(high)} THEN {value}")
    return [f"CASE {' '.join(cases)} END" for cases in made]


_FACTORS: dict[type[RowFactor], Callable[[RowFactor, str, str], list[str]]] = {
    PlainFactor: _plain,
    PowerFactor: _power,
    LogFactor: _log,
    SplineFactor: _spline,
}


def values_of(factor: RowFactor, x: str, z: str) -> list[str]:
    """Return the values of a factor of a term.

    Args:
        factor: the factor.
        x: the index of a level.
        z: a number in standard deviations from its mean, within its bounds.
    """
    return _FACTORS[type(factor)](factor, x, z)

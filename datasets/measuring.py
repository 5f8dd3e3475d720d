"""Constants from a table's own rows, and the columns that must not become features."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from bdpvi.datasets.columns import Column, Numeric, OneHot, Ordinal, categories_of
from bdpvi.datasets.encoding import MEASURED, Encoding

MOST_CATEGORIES = 100
_FEW = 10
"""A column with at most this number of different values is not taken for an identifier."""
_NEARLY_ALL = 0.95
"""Integers with fewer different values than this fraction of the rows are no identifiers."""
_DIGITS = 6
"""Integers that all have the same number of digits, at least this one, are identifiers."""
_NAMES = frozenset({"id", "ids", "identifier", "uid", "uuid", "guid", "ssn", "mrn"})


def measured(
    frame: pd.DataFrame, *, encoding: str, categorical: Sequence[str], level: bool, unknown: str
) -> Encoding:
    """Return an encoding with the constants of the table's own rows.

    Args:
        frame: the columns to use.
        encoding: ``"onehot"`` or ``"ordinal"``, what becomes of categories.
        categorical: columns whose values are names of categories.
        level: whether blanks are values of their own, in columns that have any.
        unknown: see :class:`Encoding`.

    Raises:
        ValueError: with one line for each column that cannot be a feature, and the option that
            solves it.
    """
    columns, problems, constant = [], [], []
    for name in frame:
        values = frame[name]
        try:
            if values.nunique() <= 1:
                constant.append(name)
                continue
            column = _column(values.dropna(), encoding, name in categorical)
        except ValueError as error:
            problems.append(str(error))
        except TypeError:  # lists and dictionaries have no hash
            problems.append(
                f"column {name!r} has values that are no numbers or texts, such as "
                f"{values.dropna().iloc[0]!r:.40}. {_leave_out([values])}"
            )
        else:
            columns.append(replace(column, missing=bool(level and values.hasnans)))
    if problems:
        raise ValueError("\n".join(problems))
    if constant:
        listed = ", ".join(map(repr, constant))
        warnings.warn(f"never varies, so it is left out: {listed}", UserWarning, stacklevel=3)
    if not columns:
        raise ValueError("no column is left to be a feature")
    return Encoding(tuple(columns), MEASURED, unknown)


def whole(values: pd.Series[Any]) -> pd.Series[Any]:
    """Return integers as integers, where a blank among them has made them floating point.

    Identifiers would pass for measurements otherwise.

    >>> whole(pd.Series([1.0, None])).dtype, whole(pd.Series([1.5, None])).dtype
    (Int64Dtype(), dtype('float64'))
    """
    if values.dtype.kind == "f" and values.hasnans and (values.dropna() % 1 == 0).all():
        small = values.dropna().abs().max() < 2**53
        return values.astype("Int64") if small else values
    return values


def _column(values: pd.Series[Any], encoding: str, categorical: bool) -> Column:
    if values.dtype.kind in "mMc":
        raise ValueError(
            f"column {values.name!r} has values of type {values.dtype}. {_leave_out([values])}, "
            "or make it a number"
        )
    boolean = pd.api.types.is_bool_dtype(values.dtype)
    if pd.api.types.is_numeric_dtype(values.dtype) and not (boolean or categorical):
        if _numbers_rows(values):
            raise ValueError(
                f"column {values.name!r} has {values.nunique()} different integers in "
                f"{len(values)} rows that look like identifiers. {_leave_out([values])}, or, if it "
                "measures something, make it floating point or say its bounds in constants "
                "(--constants)"
            )
        try:
            return Numeric.measured(values)
        except ValueError as error:
            raise ValueError(f"{error}. {_leave_out([values])}, or correct it") from error
    if not (boolean or categorical):
        _refuse_numbers(values)
    categories = categories_of(values)
    if len(categories) > _FEW and 2 * len(categories) >= len(values) and not categorical:
        raise ValueError(
            f"column {values.name!r} has {len(categories)} different values in {len(values)} rows, "
            "which would be published as the names of categories: an identifier? "
            f"{_leave_out([values])}, or list it in categorical (--categorical) if harmless"
        )
    if len(categories) > MOST_CATEGORIES:
        raise ValueError(
            f"column {values.name!r} has {len(categories)} different values, more than "
            f"{MOST_CATEGORIES}: an identifier or free text? "
            f"{_leave_out([values])}, or group it"
        )
    return (
        Ordinal.measured(values, categories) if encoding == "ordinal" else OneHot.measured(values)
    )


def _leave_out(columns: Sequence[pd.Series[Any]]) -> str:
    names = [str(values.name) for values in columns]
    flags = " ".join(f"--drop {shlex.quote(name)}" for name in names)
    return f"Leave {'it' if len(names) == 1 else 'them'} out with drop={names} ({flags})"


def _numbers_rows(values: pd.Series[Any]) -> bool:
    """Return whether integers look like names of the rows rather than measurements.

    Measurements may all differ too, as incomes do. Identifiers nearly fill a range, are in the
    order of the rows, all have the same number of digits, or have the name of one.
    """
    if not pd.api.types.is_integer_dtype(values.dtype):
        return False
    distinct = values.nunique()
    if distinct <= _FEW or distinct < _NEARLY_ALL * len(values) or values.min() < 0:
        return False
    low, high = int(values.min()), int(values.max())
    return (
        high - low < 2 * len(values)
        or values.is_monotonic_increasing
        or values.is_monotonic_decreasing
        or len(str(low)) == len(str(high)) >= _DIGITS
        or _is_called_identifier(str(values.name))
    )


def _is_called_identifier(name: str) -> bool:
    """Return whether a word of the column's name means an identifier.

    >>> _is_called_identifier("PatientID"), _is_called_identifier("humidity")
    (True, False)
    """
    words = re.findall("[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return any(word.lower() in _NAMES for word in words)


_WRITTEN = {
    r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?": "numbers with thousands separators; write 1234, not 1,234",
    r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T].*)?": "dates; make them numbers, such as days or years",
}


def _refuse_numbers(values: pd.Series[Any]) -> None:
    """Refuse text that is mostly numbers: a stray entry would turn each of them into a category."""
    distinct = pd.Series(categories_of(values))
    for pattern, what in _WRITTEN.items():
        found = distinct.astype(str).str.fullmatch(pattern)
        if 2 * found.sum() > len(distinct):
            raise ValueError(
                f"column {values.name!r} is {what} (here {distinct[found].iloc[0]!r}), or list it "
                "in categorical (--categorical)"
            )
    parsed = pd.to_numeric(distinct, errors="coerce").notna()
    if 2 * parsed.sum() > len(distinct):
        odd = "" if parsed.all() else f", but also {distinct[~parsed].iloc[0]!r}"
        raise ValueError(
            f"column {values.name!r} is text with {int(parsed.sum())} different numbers{odd}; "
            "make it numeric, or list it in categorical (--categorical)"
        )

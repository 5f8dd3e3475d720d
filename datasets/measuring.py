"""Constants and targets computed from a table's rows; columns that must not become features."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bdpvi._ground.outputs import several
from bdpvi.datasets.columns import Column, Numeric, OneHot, Ordinal, categories_of, label
from bdpvi.datasets.encoding import MEASURED, Encoding
from bdpvi.datasets.origin import Origin

MOST_CATEGORIES = 100
_FEW = 10
"""A column with at most this number of distinct values is not considered an identifier."""
_NEARLY_ALL = 0.95
"""Integers with fewer distinct values than this fraction of the rows are not identifiers."""
_DIGITS = 6
"""Integers that all have the same number of digits, at least this many, are identifiers."""
_NAMES = frozenset({"id", "ids", "identifier", "uid", "uuid", "guid", "ssn", "mrn"})


def measured(
    frame: pd.DataFrame, *, encoding: str, categorical: Sequence[str], level: bool, unknown: str
) -> Encoding:
    """Return an encoding with constants computed from the table's rows.

    Args:
        frame: the columns to use.
        encoding: encoding of categories, ``"onehot"`` or ``"ordinal"``.
        categorical: columns whose values are names of categories.
        level: whether blanks count as a separate value, in columns that have any.
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
        except TypeError:  # lists and dictionaries are not hashable
            problems.append(
                f"column {name!r} has values that are neither numbers nor texts, such as "
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
    return Encoding(tuple(columns), MEASURED, unknown, Origin.FROM_THIS_TABLE)


def whole(values: pd.Series[Any]) -> pd.Series[Any]:
    """Convert integers back to integers if a blank among them has made them floating-point.

    Otherwise identifiers would look like measurements.

    >>> whole(pd.Series([1.0, None])).dtype, whole(pd.Series([1.5, None])).dtype
    (Int64Dtype(), dtype('float64'))
    """
    if values.dtype.kind == "f" and values.hasnans and (values.dropna() % 1 == 0).all():
        small = values.dropna().abs().max() < 2**53
        return values.astype("Int64") if small else values
    return values


class Objection(NamedTuple):
    """The reason why a column must not become features.

    Attributes:
        reason: the reason, in words.
        remedy: the remedy, as the rest of the sentence.
    """

    reason: str
    remedy: str


def objection(
    values: pd.Series[Any], categorical: bool = False, most: int = MOST_CATEGORIES
) -> Objection | None:
    """Return the reason, if any, why a column's values must not become features or be published.

    Reasons are identifiers, free text, dates, and numbers written as text.

    Args:
        values: values that are not blank.
        categorical: whether they are declared to be names of categories.
        most: largest number of distinct names.

    >>> objection(pd.Series([f"P{one}" for one in range(20)], name="patient")).reason[:56]
    "column 'patient' has 20 different values in 20 rows, whi"
    """
    out, named = _leave_out([values]), f"column {values.name!r}"
    if values.dtype.kind in "mMc":
        return Objection(
            f"{named} has values of type {values.dtype}", f". {out}, or make it a number"
        )
    if _measures(values, categorical):
        if not _numbers_rows(values):
            return None
        return Objection(
            f"{named} has {values.nunique()} different integers in {several(len(values), 'row')} "
            "that look like identifiers",
            f". {out}, or, if it measures something, make it floating point or say its bounds in "
            "constants (--constants)",
        )
    boolean = pd.api.types.is_bool_dtype(values.dtype)
    if not (boolean or categorical) and (written := _written(values)):
        return written
    categories = categories_of(values)
    if len(categories) > _FEW and 2 * len(categories) >= len(values) and not categorical:
        return Objection(
            f"{named} has {len(categories)} different values in {several(len(values), 'row')}, "
            "which would be published as names of categories: is it an identifier?",
            f" {out}"
            + ", or list it in categorical (--categorical) if harmless" * (len(categories) <= most),
        )
    if len(categories) > most:
        return Objection(
            f"{named} has {len(categories)} different values, more than {most}: an identifier or "
            "free text?",
            f" {out}, or group it",
        )
    return None


def _measures(values: pd.Series[Any], categorical: bool) -> bool:
    boolean = pd.api.types.is_bool_dtype(values.dtype)
    return pd.api.types.is_numeric_dtype(values.dtype) and not (boolean or categorical)


def _column(values: pd.Series[Any], encoding: str, categorical: bool) -> Column:
    if found := objection(values, categorical):
        raise ValueError(found.reason + found.remedy)
    if _measures(values, categorical):
        try:
            return Numeric.measured(values)
        except ValueError as error:
            raise ValueError(f"{error}. {_leave_out([values])}, or correct it") from error
    if encoding == "ordinal":
        return Ordinal.measured(values, categories_of(values))
    return OneHot.measured(values)


def _leave_out(columns: Sequence[pd.Series[Any]]) -> str:
    names = [str(values.name) for values in columns]
    flags = " ".join(f"--drop {shlex.quote(name)}" for name in names)
    return f"Leave {'it' if len(names) == 1 else 'them'} out with drop={names} ({flags})"


def _numbers_rows(values: pd.Series[Any]) -> bool:
    """Return whether integers look like identifiers of rows rather than measurements.

    Measurements, such as incomes, may all differ too. Identifiers nearly fill a range, are in the
    order of the rows, all have the same number of digits, or are named like one.
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
        or called_identifier(str(values.name))
    )


def repeated(frame: pd.DataFrame) -> list[str]:
    """Return the columns named like identifiers in which a value occurs more than once.

    >>> repeated(pd.DataFrame({"patient_id": [7, 7, None], "visit_id": [1, 2, 3], "age": 40}))
    ['patient_id']
    """
    called = (str(name) for name in frame if called_identifier(str(name)))
    return [name for name in called if frame[name].dropna().duplicated().any()]


def called_identifier(name: str) -> bool:
    """Return whether a word of the column's name means an identifier.

    >>> called_identifier("PatientID"), called_identifier("humidity")
    (True, False)
    """
    words = re.findall("[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return any(word.lower() in _NAMES for word in words)


_WRITTEN = {
    r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?": "numbers with thousands separators; write 1234, not 1,234",
    r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T].*)?": "dates; make them numbers, such as days or years",
}


def _written(values: pd.Series[Any]) -> Objection | None:
    """Object to text that is mostly numbers: one stray entry would turn them into categories."""
    distinct = pd.Series(categories_of(values))
    for pattern, what in _WRITTEN.items():
        found = distinct.astype(str).str.fullmatch(pattern)
        if 2 * found.sum() > len(distinct):
            return Objection(
                f"column {values.name!r} is {what} (here {distinct[found].iloc[0]!r})",
                ", or list it in categorical (--categorical)",
            )
    parsed = pd.to_numeric(distinct, errors="coerce").notna()
    if 2 * parsed.sum() > len(distinct):
        odd = "" if parsed.all() else f", but also {distinct[~parsed].iloc[0]!r}"
        return Objection(
            f"column {values.name!r} is text with "
            f"{several(int(parsed.sum()), 'different number')}{odd}",
            "; make it numeric, or list it in categorical (--categorical)",
        )
    return None


def outcome(values: pd.Series[Any], positive: object) -> tuple[NDArray[np.float64], dict[str, str]]:
    """Return y, (N,), and the target's values for 1 and 0."""
    labels = values.map(label)
    numbers = pd.to_numeric(labels, errors="coerce")
    found = [str(v) for v in labels.unique()]
    # Sort numbers as numbers, so that 1 is the positive of -1 and 1, and 10 of 9 and 10.
    found.sort(key=(lambda v: (float(v), v)) if numbers.notna().all() else (lambda v: (0.0, v)))
    if len(found) != 2:
        some = ", ".join(map(repr, found[:8])) + (", …" if len(found) > 8 else "")
        raise ValueError(
            f"target={values.name!r} must have two different values, it has {len(found)}: {some}"
        )
    chosen = found[1] if positive is None else label(positive)
    if chosen not in found:
        raise ValueError(
            f"positive={positive!r} is not a value of target {values.name!r}: {found[0]!r}, "
            f"{found[1]!r}"
        )
    other = found[0] if chosen == found[1] else found[1]
    meaning = {"column": str(values.name), "positive": chosen, "negative": other}
    return np.asarray(labels == chosen, dtype=np.float64), meaning

"""How a table's rows become records: options, constants and targets computed from the rows.

And columns that must not become features.
"""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi.datasets.cells import read_cell
from bdpvi.datasets.columns import Column, Numeric, OneHot, Ordinal, categories_of, label
from bdpvi.datasets.encoding import MEASURED, UNKNOWN, Encoding
from bdpvi.datasets.origin import Origin, declarations
from bdpvi.datasets.schema import Schema

MOST_CATEGORIES = 100
_FEW = 10
"""A column with at most this number of distinct values is not considered an identifier."""
_NEARLY_ALL = 0.95
"""Integers with fewer distinct values than this fraction of the rows are not identifiers."""
_DIGITS = 6
"""Integers that all have the same number of digits, at least this many, are identifiers."""
_NAMES = frozenset({"id", "ids", "identifier", "uid", "uuid", "guid", "ssn", "mrn"})


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options for turning a table with a yes/no column into records.

    Attributes:
        positive: the value of the target with y = 1; by default the later one in sorted order (1 of
            0 and 1, yes of no and yes). Required with ``constants``, where every other value is 0.
        encoding: encoding of text, Boolean and ``categorical`` columns: ``"onehot"`` makes one 0/1
            feature for each value, ``"ordinal"`` one standardised feature of its index in sorted
            order.
        categorical: columns whose values are names of categories, even if they are numbers or
            nearly as many as the rows.
        drop: columns to leave out, such as identifiers.
        missing: ``"refuse"`` blanks; ``"drop"`` their rows; or ``"level"``: a blank is a separate
            value, with a feature "NAME is missing", in columns with blanks or, with ``constants``,
            in all columns. A blank target is refused or dropped.
        unknown: see :class:`Encoding`; by default ``"refuse"``, or the setting of ``constants``.
        constants: a ready encoding: it determines the columns and their features, and ``encoding``
            and ``categorical`` have no effect. No row is then refused: a row with a blank or an
            unknown value is left out unless another option says how to treat it, and the owner is
            told how many rows were.
        types: declared types of columns, which alone decide how their cells are read. Columns of
            identifiers and text are left out. Bounds and levels there have no further effect:
            ``constants`` takes them from the same file.
        name: the data's name in reports.

    Raises:
        ValueError: naming an option with an invalid value.
    """

    positive: object = None
    encoding: str = "onehot"
    categorical: Sequence[str] = ()
    drop: Sequence[str] = ()
    missing: str = "refuse"
    unknown: str | None = None
    constants: Encoding | None = None
    types: Schema | None = None
    name: str = "data"

    def __post_init__(self) -> None:
        validate.choice("encoding", self.encoding, ("ordinal", "onehot"))
        validate.choice("missing", self.missing, ("drop", "level", "refuse"))
        if self.unknown is not None:
            validate.choice("unknown", self.unknown, UNKNOWN)

    @property
    def declarations(self) -> dict[str, str]:
        """The owner's declarations about the table, in words."""
        named = () if self.constants else tuple(n for n in self.categorical if n not in self.drop)
        return declarations(
            positive=None if self.positive is None else read_cell(self.positive)[1],
            **({} if self.types is None else self.types.kinds),
            categorical=named,
            columns_left_out=len(self.drop) or None,
            missing=None if self.missing == "refuse" else self.missing,
            unknown=self.unknown,
            encoding=None if self.constants or self.encoding == "onehot" else self.encoding,
        )


def measure_encoding(
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
                f"{values.dropna().iloc[0]!r:.40}. {_leave_out(values)}"
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


def objection(values: pd.Series[Any], categorical: bool = False) -> str:
    """Return why a column's values must not become features or be published, and a remedy.

    Reasons are identifiers, free text, dates, and numbers written as text; "" if there is none.

    Args:
        values: values that are not blank.
        categorical: whether they are declared to be names of categories.

    >>> objection(pd.Series([f"P{one}" for one in range(20)], name="patient"))[:56]
    "column 'patient' has 20 different values in 20 rows, whi"
    """
    out, named = _leave_out(values), f"column {values.name!r}"
    if values.dtype.kind in "mMc":
        return f"{named} has values of type {values.dtype}. {out}, or make it a number"
    if _measures(values, categorical):
        if not _numbers_rows(values):
            return ""
        return (
            f"{named} has {values.nunique()} different integers in {several(len(values), 'row')} "
            f"that look like identifiers. {out}, or, if it measures something, make it floating "
            "point or say its bounds in constants (--constants)"
        )
    boolean = pd.api.types.is_bool_dtype(values.dtype)
    if not (boolean or categorical) and (written := _written(values)):
        return written
    number = len(categories_of(values))
    if number > _FEW and 2 * number >= len(values) and not categorical:
        harmless = ", or list it in categorical (--categorical) if harmless"
        out += harmless * (number <= MOST_CATEGORIES)
        return (
            f"{named} has {number} different values in {several(len(values), 'row')}, which would "
            f"be published as names of categories: is it an identifier? {out}"
        )
    if number > MOST_CATEGORIES:
        return (
            f"{named} has {number} different values, more than {MOST_CATEGORIES}: an identifier "
            f"or free text? {out}, or group it"
        )
    return ""


def _measures(values: pd.Series[Any], categorical: bool) -> bool:
    boolean = pd.api.types.is_bool_dtype(values.dtype)
    return pd.api.types.is_numeric_dtype(values.dtype) and not (boolean or categorical)


def _column(values: pd.Series[Any], encoding: str, categorical: bool) -> Column:
    if found := objection(values, categorical):
        raise ValueError(found)
    if _measures(values, categorical):
        try:
            return Numeric.of_values(values)
        except ValueError as error:
            raise ValueError(f"{error}. {_leave_out(values)}, or correct it") from error
    if encoding == "ordinal":
        return Ordinal.of_values(values, categories_of(values))
    return OneHot.of_values(values)


def _leave_out(values: pd.Series[Any]) -> str:
    name = str(values.name)
    return f"Leave it out with drop={[name]} (--drop {shlex.quote(name)})"


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


def repeated_identifiers(frame: pd.DataFrame) -> list[str]:
    """Return the columns named like identifiers in which a value occurs more than once.

    >>> visits = {"patient_id": [7, 7, None], "visit_id": [1, 2, 3], "age": 40}
    >>> repeated_identifiers(pd.DataFrame(visits))
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


def _written(values: pd.Series[Any]) -> str:
    """Object to text that is mostly numbers: one stray entry would turn them into categories."""
    distinct = pd.Series(categories_of(values))
    named, listed = f"column {values.name!r} is", "list it in categorical (--categorical)"
    for pattern, what in _WRITTEN.items():
        found = distinct.astype(str).str.fullmatch(pattern)
        if 2 * found.sum() > len(distinct):
            return f"{named} {what} (here {distinct[found].iloc[0]!r}), or {listed}"
    parsed = pd.to_numeric(distinct, errors="coerce").notna()
    if 2 * parsed.sum() > len(distinct):
        odd = "" if parsed.all() else f", but also {distinct[~parsed].iloc[0]!r}"
        count = several(int(parsed.sum()), "different number")
        return f"{named} text with {count}{odd}; make it numeric, or {listed}"
    return ""


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

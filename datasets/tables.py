"""People's own tables: data frames and CSV files with a yes/no column."""

from __future__ import annotations

import csv
import os
import re
import shlex
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from bdpvi import _validate
from bdpvi.datasets.encoding import (
    Column,
    Encoding,
    Numeric,
    OneHot,
    Ordinal,
    categories_of,
    label,
    with_text_names,
)
from bdpvi.datasets.split import shuffled
from bdpvi.types import Dataset, Split

MOST_CATEGORIES = 100
_FEW = 10
"""A column with at most this number of different values is not taken for an identifier."""
_NEARLY_ALL = 0.95
"""Integers with fewer different values than this fraction of the rows are no identifiers."""
_DIGITS = 6
"""Integers that all have the same number of digits, at least this one, are identifiers."""
_NAMES = frozenset({"id", "ids", "identifier", "uid", "uuid", "guid", "ssn", "mrn"})


def from_frame(
    frame: pd.DataFrame, target: str, *, test_fraction: float = 0.2, seed: int = 0, **options: Any
) -> Split:
    """Turn a table with a yes/no column into training and test records.

    Rows are permuted with ``seed`` before the split, because tables are often sorted by outcome.

    Args:
        frame: one row for each record.
        target: the yes/no column.
        test_fraction: fraction of the rows kept for test, strictly between 0 and 1.
        seed: of the permutation; it is public.
        options: see :func:`dataset_from_frame`.

    Raises:
        ValueError: as :func:`dataset_from_frame`, or if the split leaves one side empty.

    >>> frame = pd.DataFrame({"age": range(20, 30), "sick": ["no", "yes"] * 5})
    >>> split = from_frame(frame, target="sick")
    >>> len(split.train), len(split.test), split.train.preprocessing["target"]["positive"]
    (8, 2, 'yes')
    """
    return shuffled(dataset_from_frame(frame, target, **options), test_fraction, seed)


def from_csv(path: str | os.PathLike[str], target: str, **options: Any) -> Split:
    """Read a CSV file as :func:`read_table` does and split it as :func:`from_frame` does.

    Args:
        path: the file.
        target: the yes/no column.
        options: see :func:`from_frame`; ``name`` is by default the file's.

    Raises:
        ValueError: as :func:`read_table` and :func:`from_frame`.
        OSError: if the file cannot be opened.
    """
    return from_frame(read_table(path), target, **{"name": Path(path).stem, **options})


def dataset_from_frame(
    frame: pd.DataFrame,
    target: str,
    *,
    positive: object = None,
    encoding: Literal["ordinal", "onehot"] = "onehot",
    categorical: Sequence[str] = (),
    drop: Sequence[str] = (),
    constants: Encoding | None = None,
    name: str = "data",
) -> Dataset:
    """Turn a table with a yes/no column into records; a record's id is its row number.

    Without ``constants``, means, standard deviations and categories are computed from all rows of
    the table. Releasing a model releases them, and no accountant pays for that: they are treated as
    public, and ``preprocessing`` says so. Where they are not, pass an :class:`Encoding` made from
    public knowledge.

    Args:
        frame: one row for each record.
        target: the yes/no column: two values.
        positive: which of its values is y = 1; the later one in sorted order by default (1 of
            0 and 1, yes of no and yes).
        encoding: what becomes of text, boolean and ``categorical`` columns: ``"onehot"`` makes
            one 0/1 feature of each value, ``"ordinal"`` one standardised feature of its position
            in sorted order.
        categorical: columns whose values are names of categories, though they are numbers or
            nearly as many as the rows.
        drop: columns to leave out, such as identifiers.
        constants: an encoding made elsewhere: it decides which columns are used and how, and
            ``encoding`` and ``categorical`` have no effect.
        name: what reports call the data.

    Warns:
        UserWarning: naming the columns that are left out because they never vary.

    Raises:
        ValueError: naming the column and its values: unknown or repeated column names; missing or
            infinite values; a target with other than two values; text where most values are
            numbers; text with more than 100 different values, or with more than 10 that are half as
            many as the rows, and integers that look like identifiers, see below; a category or
            column that ``constants`` lacks; no row or no feature.

    The names of categories are published, so a column that identifies rows must not become
    categories. List it in ``categorical`` if its values are harmless all the same.

    Integers are taken for identifiers where the number of different values is at least 95 % of the
    number of rows, none is negative, and they nearly fill a range, rise or fall from row to row,
    all have the same number of digits, six at least, or have a name such as "id" or "patient_id".
    If they measure something, make them floats.

    >>> frame = pd.DataFrame({"age": [20.0, 40.0], "sex": ["F", "M"], "sick": [0, 1]})
    >>> data = dataset_from_frame(frame, target="sick")
    >>> data.feature_names, data.x.tolist()
    (('age', 'sex=F', 'sex=M'), [[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    >>> data.preprocessing["encoding"]["source"]
    'Computed from the rows of the data; treated as public.'
    """
    _validate.choice("encoding", encoding, ("ordinal", "onehot"))
    frame = with_text_names(frame)
    _known("target", [target], frame)
    _known("drop", drop, frame)
    _known("categorical", categorical, frame)
    if constants is None:
        used = [str(c) for c in frame if c != target and c not in drop]
    else:
        used = [c.name for c in constants.columns]
        _known("constants", used, frame)
    if target in used:
        raise ValueError(f"target={target!r} is among the columns of constants")
    frame = frame[[*used, target]]
    _check_complete(frame)
    y, meaning = _outcome(frame[target], positive)
    if constants is None:
        constants = _measured(frame[used], encoding, categorical)
    return Dataset(
        constants.apply(frame),
        torch.from_numpy(y),
        feature_names=constants.feature_names,
        name=name,
        preprocessing={"encoding": constants.to_dict(), "target": meaning},
    )


def read_table(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read a CSV file with a header line: UTF-8, commas.

    Raises:
        ValueError: naming the file, and the line where there is one: an empty file, a header
            without rows, a name that occurs twice, a line with more or fewer values than the
            header (a file cut short ends in one, unless the cut falls into a last value), a quote
            that is never closed, bytes that are not text.
        OSError: if the file cannot be opened.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as lines:
            _check_shape(csv.reader(lines, skipinitialspace=True, strict=True), str(path))
        frame = pd.read_csv(path, encoding="utf-8-sig", skipinitialspace=True, low_memory=False)
    except (UnicodeDecodeError, csv.Error, pd.errors.ParserError) as error:
        raise ValueError(f"{path} is not a readable CSV file: {error}") from error
    return frame


def _check_shape(rows: Any, path: str) -> None:
    header = [name.strip() for name in next(rows, [])]
    if not header:
        raise ValueError(f"{path} is empty")
    for name in header:
        if header.count(name) > 1:
            raise ValueError(f"{path}: the column name {name!r} occurs more than once")
    count = 0
    for row in rows:
        if row and len(row) != len(header):
            raise ValueError(
                f"{path}, line {rows.line_num}: {len(row)} values for {len(header)} columns"
            )
        count += bool(row)
    if not count:
        raise ValueError(f"{path} has a header but no rows")


def _check_complete(frame: pd.DataFrame) -> None:
    if not len(frame):
        raise ValueError("the table has no rows")
    counts = frame.isna().sum()
    if counts.any():
        listed = ", ".join(f"{c!r} ({n})" for c, n in counts[counts > 0].items())
        raise ValueError(
            f"missing values in {listed} of {len(frame)} rows; "
            "fill them in, or leave those rows out"
        )


def _outcome(
    values: pd.Series[Any], positive: object
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], dict[str, str]]:
    """Return y, (N,), and which value of the target is 1 and which 0."""
    labels = values.map(label)
    numbers = pd.to_numeric(labels, errors="coerce")
    found = [str(v) for v in labels.unique()]
    # Numbers sort as numbers, so that 1 is positive beside -1 and 10 beside 9.
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


def _measured(frame: pd.DataFrame, encoding: str, categorical: Sequence[str]) -> Encoding:
    """Return an encoding with the constants of the table's own rows."""
    constant = [c for c in frame if frame[c].nunique() == 1]
    if constant:
        warnings.warn(
            f"left out because they never vary: {', '.join(map(repr, constant))}",
            UserWarning,
            stacklevel=3,
        )
    columns = tuple(
        _column(frame[c], encoding, c in categorical) for c in frame if c not in constant
    )
    if not columns:
        raise ValueError("no column is left to be a feature")
    return Encoding(columns, "Computed from the rows of the data; treated as public.")


def _column(values: pd.Series[Any], encoding: str, categorical: bool) -> Column:
    boolean = pd.api.types.is_bool_dtype(values.dtype)
    if pd.api.types.is_numeric_dtype(values.dtype) and not (boolean or categorical):
        if _numbers_rows(values):
            raise ValueError(
                f"column {values.name!r} has {values.nunique()} different integers in "
                f"{len(values)} rows that look like identifiers. {_leave_out(values)}, or make it "
                "floating point if it measures something"
            )
        return Numeric.measured(values)
    if not (boolean or categorical):
        _refuse_numbers(values)
    categories = categories_of(values)
    if len(categories) > _FEW and 2 * len(categories) >= len(values) and not categorical:
        raise ValueError(
            f"column {values.name!r} has {len(categories)} different values in {len(values)} rows, "
            "which would be published as the names of categories: an identifier? "
            f"{_leave_out(values)}, or list it in categorical if they are harmless"
        )
    if len(categories) > MOST_CATEGORIES:
        raise ValueError(
            f"column {values.name!r} has {len(categories)} different values, more than "
            f"{MOST_CATEGORIES}: an identifier or free text? "
            f"{_leave_out(values)}, or group it"
        )
    return (
        Ordinal.measured(values, categories) if encoding == "ordinal" else OneHot.measured(values)
    )


def _leave_out(values: pd.Series[Any]) -> str:
    name = str(values.name)
    return f"Leave it out with drop=[{name!r}] (--drop {shlex.quote(name)})"


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


def _refuse_numbers(values: pd.Series[Any]) -> None:
    """Refuse text that is mostly numbers: a stray entry would turn each of them into a category."""
    distinct = pd.Series(categories_of(values))
    parsed = pd.to_numeric(distinct, errors="coerce").notna()
    if 2 * parsed.sum() > len(distinct):
        odd = "" if parsed.all() else f", but also {distinct[~parsed].iloc[0]!r}"
        raise ValueError(
            f"column {values.name!r} is text with {int(parsed.sum())} different numbers{odd}; "
            "make it numeric, or list it in categorical"
        )


def _known(argument: str, names: Sequence[str], frame: pd.DataFrame) -> None:
    unknown = [n for n in names if n not in frame.columns]
    if unknown:
        has = ", ".join(map(repr, frame.columns))
        raise ValueError(f"{argument}: no column {', '.join(map(repr, unknown))} among {has}")

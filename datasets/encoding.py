"""How the columns of a raw table become features, written down so that new rows follow.

An :class:`Encoding` holds every constant that the features depend on. A model is released together
with it, so its constants count as public; ``source`` says where they come from.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from bdpvi._runtime import validate

Floats = NDArray[np.float64]
UNKNOWN = ("refuse", "base")


def label(value: object) -> str:
    """Return the name of a category, the same whether a file spelt a number as 1 or as 1.0.

    >>> label("M"), label(True), label(1), label(1.0), label(0.5)
    ('M', 'True', '1', '1', '0.5')
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _codes(values: pd.Series[Any], categories: tuple[str, ...]) -> Floats:
    """Return the position of each value among the categories, (N,), NaN where it has none."""
    found, distinct = pd.factorize(values)  # a blank is -1, the last of the positions
    position = {category: float(code) for code, category in enumerate(categories)}
    positions = [position.get(label(v), np.nan) for v in distinct]
    return np.array([*positions, np.nan], dtype=np.float64)[found]


def _some(values: tuple[str, ...], most: int = 8) -> str:
    shown = ", ".join(repr(v) for v in values[:most])
    return f"({shown}{', …' if len(values) > most else ''})"


@dataclass(frozen=True)
class Numeric:
    """A number, standardised: one feature, (value - mean) / sd.

    ``missing`` says whether a blank is a value of its own; see :class:`Encoding`.
    """

    kind: ClassVar[str] = "numeric"
    name: str
    mean: float
    sd: float
    missing: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _truth(self.name, self.missing)
        validate.positive(f"sd of column {self.name!r}", self.sd)
        if not math.isfinite(self.mean):
            raise ValueError(f"mean of column {self.name!r} must be finite, got {self.mean!r}")

    @classmethod
    def measured(cls, values: pd.Series[Any]) -> Numeric:
        """Return the column with the mean and the population standard deviation of its values.

        Blanks are left out of both.
        """
        name = str(values.name)
        numbers = _numbers(values.dropna(), name)
        mean, sd = float(numbers.mean()), float(numbers.std())
        if not (math.isfinite(mean) and math.isfinite(sd) and sd > 0):
            raise ValueError(f"column {name!r} cannot be standardised: mean {mean!r}, sd {sd!r}")
        return cls(name, mean, sd)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features it makes."""
        return (self.name,)

    def encode(self, values: pd.Series[Any]) -> Floats:
        """Return the features, (N, 1), NaN where the value is blank."""
        return ((_numbers(values, self.name) - self.mean) / self.sd)[:, None]


@dataclass(frozen=True)
class Ordinal(Numeric):
    """A category as its index in a list, standardised like a number: one feature."""

    kind: ClassVar[str] = "ordinal"
    categories: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        _distinct(self.name, self.categories)

    @classmethod
    def measured(cls, values: pd.Series[Any], categories: tuple[str, ...] = ()) -> Ordinal:
        """Return the column with the mean and the population standard deviation of its indices.

        Args:
            values: the raw column.
            categories: in the order of their indices; by default sorted as text.
        """
        name, categories = str(values.name), categories or categories_of(values)
        codes = Numeric.measured(pd.Series(_codes(values, categories), name=name))
        return cls(name, codes.mean, codes.sd, categories)

    def encode(self, values: pd.Series[Any]) -> Floats:
        """Return the features, (N, 1), NaN where the value is not among the categories."""
        return super().encode(pd.Series(_codes(values, self.categories)))


@dataclass(frozen=True)
class OneHot:
    """A category as one 0/1 feature for each possible value, none left out.

    The features of one column sum to 1. That makes their weights interchangeable with an
    intercept, which is harmless under a proper prior and keeps every category readable.
    """

    kind: ClassVar[str] = "onehot"
    name: str
    categories: tuple[str, ...]
    missing: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _truth(self.name, self.missing)
        _distinct(self.name, self.categories)

    @classmethod
    def measured(cls, values: pd.Series[Any]) -> OneHot:
        """Return the column with its own values, sorted, as categories."""
        return cls(str(values.name), categories_of(values))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features it makes."""
        return tuple(f"{self.name}={category}" for category in self.categories)

    def encode(self, values: pd.Series[Any]) -> Floats:
        """Return the features, (N, categories), NaN where the value is not among them."""
        codes = _codes(values, self.categories)[:, None]
        features = np.asarray(codes == np.arange(len(self.categories)), dtype=np.float64)
        features[np.isnan(codes[:, 0])] = np.nan
        return features


Column = Numeric | Ordinal | OneHot


@dataclass(frozen=True)
class Encoding:
    """The features of a table: its columns in order, and where their constants come from.

    Attributes:
        columns: one entry for each raw column that is used. Where a column has ``missing``, a blank
            is a value of its own: the column's features are 0, the mean of a number, and one more,
            called "NAME is missing", is 1.
        source: a sentence on where the constants come from and why they may be published.
        unknown: what becomes of a category that is not listed, a column that is not there, and a
            blank where the column has no ``missing``: ``"refuse"``, or ``"base"``, the column's
            features are 0.

    Raises:
        ValueError: if there are no columns, or a name repeats.

    >>> sexes = OneHot("sex", ("F", "M"))
    >>> encoding = Encoding((Numeric("age", mean=40.0, sd=10.0), sexes), "Census tables.")
    >>> encoding.feature_names
    ('age', 'sex=F', 'sex=M')
    >>> encoding.apply(pd.DataFrame({"sex": ["M", "F"], "age": [30, 45]})).tolist()
    [[-1.0, 0.0, 1.0], [0.5, 1.0, 0.0]]
    >>> Encoding.from_dict(encoding.to_dict()) == encoding
    True
    >>> lenient = Encoding(encoding.columns, "Census tables.", unknown="base")
    >>> lenient.counted(pd.DataFrame({"sex": ["X"], "age": [30]}))
    (tensor([[-1.,  0.,  0.]], dtype=torch.float64), {'sex': 1})
    >>> encoding.apply(pd.DataFrame({"sex": ["X"], "age": [30]}))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: column 'sex' has the value 'X' in row 0, which is not among its categories ...
    """

    columns: tuple[Column, ...]
    source: str
    unknown: str = "refuse"

    def __post_init__(self) -> None:
        validate.choice("unknown", self.unknown, UNKNOWN)
        _distinct("columns", tuple(c.name for c in self.columns))
        _distinct("feature_names", self.feature_names)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the d features."""
        return tuple(
            name
            for column in self.columns
            for name in (*column.features, *([f"{column.name} is missing"] * column.missing))
        )

    def apply(self, frame: pd.DataFrame) -> Tensor:
        """Return the features of raw rows, (N, d) float64; columns not known are ignored.

        Warns:
            UserWarning: with the number of values that ``unknown="base"`` made 0 in each column.

        Raises:
            ValueError: as :meth:`counted`.
        """
        features, counts = self.counted(frame)
        if counts:
            warnings.warn(f"not known, features are 0: {said(counts)}", UserWarning, stacklevel=2)
        return features

    def counted(self, frame: pd.DataFrame) -> tuple[Tensor, dict[str, int]]:
        """Return the features of raw rows, and how many values of each column were not known.

        Raises:
            ValueError: with one line for each problem, naming the column: it occurs twice or has a
                value that is not a finite number; or, unless ``unknown`` is ``"base"``, is not
                there or has a value that is blank or not among its categories.
        """
        frame = with_text_names(frame)
        parts: list[Floats] = []
        counts: dict[str, int] = {}
        problems, unknown = [], []
        absent = tuple(c.name for c in self.columns if c.name not in frame.columns)
        if absent:
            unknown.append(f"the table has no column {_some(absent)}")
        for column in self.columns:
            width = len(column.features)
            if column.name in absent:
                parts.append(np.zeros((len(frame), width + column.missing)))
                counts[column.name] = len(frame)
                continue
            values = frame[column.name]
            try:
                features = column.encode(values)
            except ValueError as error:
                problems.append(str(error))
                continue
            blank = values.isna().to_numpy()
            odd = np.asarray(np.isnan(features[:, 0]))
            features[odd] = 0.0
            if column.missing:
                features, odd = np.column_stack([features, blank]), odd & ~blank
            parts.append(features)
            if odd.any():
                counts[column.name] = int(odd.sum())
                unknown += _not_known(column, values, odd)
        if self.unknown == "refuse":
            help_ = "unknown='base' (--unknown base) would make its features 0"
            problems += [f"{line}; {help_}" for line in unknown]
        if problems:
            raise ValueError("\n".join(problems))
        return torch.from_numpy(np.hstack(parts)), counts

    def to_dict(self) -> dict[str, Any]:
        """Return the encoding in plain JSON types."""
        columns = [{"kind": c.kind, **_plain(asdict(c))} for c in self.columns]
        return {"columns": columns, "source": self.source, "unknown": self.unknown}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Encoding:
        """Return what :meth:`to_dict` wrote down.

        Raises:
            ValueError: if the dictionary does not describe an encoding.
        """
        try:
            columns = tuple(map(_column, values["columns"]))
            return cls(columns, str(values["source"]), values.get("unknown", "refuse"))
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not the dictionary of an encoding: {error!r}") from error


def _column(values: Mapping[str, Any]) -> Column:
    kinds: dict[str, Callable[..., Column]] = {c.kind: c for c in (Numeric, Ordinal, OneHot)}
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    del arguments["kind"]
    return kinds[values["kind"]](**arguments)


def with_text_names(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table with its column names as text.

    Raises:
        ValueError: if it is none, or a name occurs twice.
    """
    if not isinstance(frame, pd.DataFrame):
        raise ValueError(
            f"frame must be a pandas DataFrame, got {type(frame).__name__}; for arrays of numbers "
            "there is Dataset.of"
        )
    frame = frame.set_axis([str(c).strip() for c in frame.columns], axis=1)
    if not frame.columns.is_unique:
        name = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(f"the column name {name!r} occurs more than once")
    return frame


def categories_of(values: pd.Series[Any]) -> tuple[str, ...]:
    """Return the names of the values that occur, sorted as text."""
    return tuple(sorted({label(v) for v in values.dropna().unique()}))


def said(counts: Mapping[str, int]) -> str:
    """Return how many values of each column were not known, in words.

    >>> said({"age": 1, "sex": 2})
    "1 of 'age', 2 of 'sex'"
    """
    return ", ".join(f"{count} of {name!r}" for name, count in counts.items())


def blanks(values: pd.Series[Any], blank: NDArray[np.bool_]) -> str:
    """Return where a column's blanks are, in words."""
    return (
        f"column {values.name!r} has {int(blank.sum())} missing values, the first in row "
        f"{values.index[int(blank.argmax())]}"
    )


def _not_known(column: Column, values: pd.Series[Any], odd: NDArray[np.bool_]) -> list[str]:
    """Return what a column has that its encoding does not know: blanks and categories."""
    blank = odd & values.isna().to_numpy()
    lines = [blanks(values, blank)] if blank.any() else []
    strange = odd & ~blank
    if strange.any() and isinstance(column, OneHot | Ordinal):
        row = int(strange.argmax())
        others = values[strange].nunique() - 1
        lines.append(
            f"column {column.name!r} has the value {label(values.iloc[row])!r} in row "
            f"{values.index[row]}, which "
            f"is not among its categories {_some(column.categories)}"
            + (f", and {others} further values" if others else "")
        )
    return lines


def _numbers(values: pd.Series[Any], name: str) -> Floats:
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(~np.isfinite(numbers) & values.notna().to_numpy())
    if len(bad):
        raise ValueError(
            f"column {name!r} has {len(bad)} values that are not finite numbers, "
            f"the first is {label(values.iloc[bad[0]])!r} in row {values.index[bad[0]]}"
        )
    return np.asarray(numbers, dtype=np.float64)


def _truth(name: str, missing: object) -> None:
    if not isinstance(missing, bool):
        raise ValueError(f"missing of column {name!r} must be true or false, got {missing!r}")


def _distinct(name: str, values: tuple[str, ...]) -> None:
    if not (isinstance(values, tuple) and all(isinstance(v, str) for v in values)):
        raise ValueError(f"{name} must be texts, got {values!r:.80}")
    if not values or len(set(values)) != len(values):
        raise ValueError(f"{name} must have at least one entry and none twice, got {_some(values)}")


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

"""How the columns of a raw table become features, written down so that new rows follow.

An :class:`Encoding` holds every constant that the features depend on. A model is released together
with it, so its constants count as public; ``source`` says where they come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from bdpvi import _validate

Floats = NDArray[np.float64]


def label(value: object) -> str:
    """Return the name of a category, the same whether a file spelt a number as 1 or as 1.0.

    >>> label("M"), label(True), label(1), label(1.0), label(0.5)
    ('M', 'True', '1', '1', '0.5')
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _codes(values: pd.Series[Any], name: str, categories: tuple[str, ...]) -> NDArray[np.intp]:
    """Return the position of each value among the categories."""
    _complete(values, name)
    found, distinct = pd.factorize(values)
    position = {category: code for code, category in enumerate(categories)}
    for value in distinct:
        if label(value) not in position:
            raise ValueError(
                f"column {name!r} has the value {label(value)!r}, which is not among its "
                f"categories {_some(categories)}"
            )
    return np.array([position[label(v)] for v in distinct], dtype=np.intp)[found]


def _complete(values: pd.Series[Any], name: str) -> None:
    missing = np.flatnonzero(values.isna())
    if len(missing):
        raise ValueError(
            f"column {name!r} has {len(missing)} missing values, the first in row {missing[0]}"
        )


def _some(values: tuple[str, ...], most: int = 8) -> str:
    shown = ", ".join(repr(v) for v in values[:most])
    return f"({shown}{', …' if len(values) > most else ''})"


@dataclass(frozen=True)
class Numeric:
    """A number, standardised: one feature, (value - mean) / sd."""

    kind: ClassVar[str] = "numeric"
    name: str
    mean: float
    sd: float

    def __post_init__(self) -> None:
        _validate.positive(f"sd of column {self.name!r}", self.sd)
        if not math.isfinite(self.mean):
            raise ValueError(f"mean of column {self.name!r} must be finite, got {self.mean!r}")

    @classmethod
    def measured(cls, values: pd.Series[Any]) -> Numeric:
        """Return the column with the mean and the population standard deviation of its values."""
        name = str(values.name)
        numbers = _numbers(values, name)
        mean, sd = float(numbers.mean()), float(numbers.std())
        if not (math.isfinite(mean) and math.isfinite(sd) and sd > 0):
            raise ValueError(f"column {name!r} cannot be standardised: mean {mean!r}, sd {sd!r}")
        return cls(name, mean, sd)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features it makes."""
        return (self.name,)

    def encode(self, values: pd.Series[Any]) -> Floats:
        """Return the features, (N, 1)."""
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
        codes = Numeric.measured(pd.Series(_codes(values, name, categories), name=name))
        return cls(name, codes.mean, codes.sd, categories)

    def encode(self, values: pd.Series[Any]) -> Floats:
        """Return the features, (N, 1)."""
        return super().encode(pd.Series(_codes(values, self.name, self.categories)))


@dataclass(frozen=True)
class OneHot:
    """A category as one 0/1 feature for each possible value, none left out.

    The features of one column sum to 1. That makes their weights interchangeable with an
    intercept, which is harmless under a proper prior and keeps every category readable.
    """

    kind: ClassVar[str] = "onehot"
    name: str
    categories: tuple[str, ...]

    def __post_init__(self) -> None:
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
        """Return the features, (N, categories)."""
        codes = _codes(values, self.name, self.categories)
        return np.asarray(np.eye(len(self.categories))[codes], dtype=np.float64)


Column = Numeric | Ordinal | OneHot


@dataclass(frozen=True)
class Encoding:
    """The features of a table: its columns in order, and where their constants come from.

    Attributes:
        columns: one entry for each raw column that is used.
        source: a sentence on where the constants come from and why they may be published.

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
    >>> encoding.apply(pd.DataFrame({"sex": ["X"], "age": [30]}))
    Traceback (most recent call last):
        ...
    ValueError: column 'sex' has the value 'X', which is not among its categories ('F', 'M')
    """

    columns: tuple[Column, ...]
    source: str

    def __post_init__(self) -> None:
        _distinct("columns", tuple(c.name for c in self.columns))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the d features."""
        return tuple(name for column in self.columns for name in column.features)

    def apply(self, frame: pd.DataFrame) -> Tensor:
        """Return the features of raw rows, (N, d) float64; columns not known are ignored.

        Raises:
            ValueError: naming the column, if it is missing or occurs twice, or if one of its
                values is missing, not a finite number, or not among its categories.
        """
        frame = with_text_names(frame)
        absent = tuple(c.name for c in self.columns if c.name not in frame.columns)
        if absent:
            raise ValueError(f"the table has no column {_some(absent)}")
        return torch.from_numpy(np.hstack([c.encode(frame[c.name]) for c in self.columns]))

    def to_dict(self) -> dict[str, Any]:
        """Return the encoding in plain JSON types."""
        columns = [{"kind": c.kind, **_plain(asdict(c))} for c in self.columns]
        return {"columns": columns, "source": self.source}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Encoding:
        """Return what :meth:`to_dict` wrote down.

        Raises:
            ValueError: if the dictionary does not describe an encoding.
        """
        try:
            return cls(tuple(map(_column, values["columns"])), str(values["source"]))
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
        ValueError: if a name occurs twice.
    """
    frame = frame.set_axis([str(c).strip() for c in frame.columns], axis=1)
    if not frame.columns.is_unique:
        name = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(f"the column name {name!r} occurs more than once")
    return frame


def categories_of(values: pd.Series[Any]) -> tuple[str, ...]:
    """Return the names of the values that occur, sorted as text."""
    return tuple(sorted({label(v) for v in values.dropna().unique()}))


def _numbers(values: pd.Series[Any], name: str) -> Floats:
    _complete(values, name)
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        raise ValueError(
            f"column {name!r} has {len(bad)} values that are not finite numbers, "
            f"the first is {label(values.iloc[bad[0]])!r} in row {bad[0]}"
        )
    return np.asarray(numbers, dtype=np.float64)


def _distinct(name: str, values: tuple[str, ...]) -> None:
    if not values or len(set(values)) != len(values):
        raise ValueError(f"{name} must have at least one entry and none twice, got {_some(values)}")


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

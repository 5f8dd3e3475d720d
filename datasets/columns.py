"""Encodings of one column of a raw table as features."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi.datasets.cells import Cells, places_of, read_cells
from bdpvi.datasets.types import ColumnType
from bdpvi.score.reading import CellType, buckets_of, common, levels_of

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Encoded = tuple[Floats, NDArray[np.bool_]]
FARTHEST = 1e12
"""Numbers are clipped at this many standard deviations, far beyond any model's limit."""

_MOST_BUCKETS = 2**16
_NAME = ColumnType(kind="category", blank=())


def label(value: object) -> str:
    """Return the name of a category; a number has the same name whether written as 1 or 1.0.

    >>> label("M"), label(True), label(1), label(1.0), label(0.5)
    ('M', 'True', '1', '1', '0.5')
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _places(
    names: tuple[str, ...],
    values: pd.Series[Any],
    type: CellType | None = None,
    guess: CellType | None = None,
) -> Encoded:
    """Return each cell's index among names of categories, NaN if it is none, and the blanks."""
    type, places = levels_of(names, type)
    cells = read_cells(values, type or guess, declared=frozenset(names))
    each = (places.get(common(name, type), np.nan) for name in cells.names)
    return np.array([*each, np.nan], dtype=np.float64)[cells.codes], cells.blank


def some(values: tuple[str, ...], most: int = 8) -> str:
    """Return the first of several names, in words."""
    shown = ", ".join(repr(v) for v in values[:most])
    return f"({shown}{', …' if len(values) > most else ''})"


def distinct_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of which no two are alike: repeated ones are numbered.

    >>> distinct_names(["a", "a", "a (2)"])
    ('a', 'a (2)', 'a (2) (2)')
    """
    found: dict[str, None] = {}
    for name in names:
        one, number = name, 1
        while one in found:
            number += 1
            one = f"{name} ({number})"
        found[one] = None
    return tuple(found)


@dataclass(frozen=True)
class Numeric:
    """A standardised number: one feature, (value - mean) / sd.

    ``missing`` says whether a blank is a separate value; see :class:`Encoding`. ``type`` is the
    declared type by which cells are read, if any. Of each class of columns ``named`` says whether
    it has names of categories, and ``scaled`` whether its feature is a standardised number.

    >>> import pandas as pd
    >>> OneHot("smokes", ("none", "some")).encode(pd.Series(["none", 7, "NA"]))[0].tolist()
    [[1.0, 0.0], [nan, nan], [nan, nan]]
    """

    kind: ClassVar[str] = "numeric"
    named: ClassVar[bool] = False
    scaled: ClassVar[bool] = True
    name: str
    mean: float
    sd: float
    missing: bool = field(default=False, kw_only=True)
    type: ColumnType | None = field(default=None, kw_only=True, metadata={"absent": None})

    def __post_init__(self) -> None:
        validate.positive(f"sd of column {self.name!r}", self.sd)
        if not math.isfinite(self.mean):
            raise ValueError(f"mean of column {self.name!r} must be finite, got {self.mean!r}")

    @classmethod
    def of_values(cls, values: pd.Series[Any]) -> Numeric:
        """Return the column with the mean and the population standard deviation of its values.

        Blanks are ignored.
        """
        name, values = str(values.name), values.dropna()
        numbers = read_cells(values, ColumnType(kind="number")).numbers
        if (bad := ~np.isfinite(numbers)).any():
            raise ValueError(no_numbers(values, bad))
        mean, sd = float(numbers.mean()), float(numbers.std())
        if not (math.isfinite(mean) and math.isfinite(sd) and sd > 0):
            raise ValueError(f"column {name!r} cannot be standardised: mean {mean!r}, sd {sd!r}")
        return cls(name, mean, sd)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features it makes."""
        return (self.name,)

    @property
    def scales(self) -> tuple[tuple[float, float], ...]:
        """Centre and scale of the number behind each of the first features."""
        return ((self.mean, self.sd),)

    def encode(self, values: pd.Series[Any], guess: ColumnType | None = None) -> Encoded:
        """Return the features of raw cells, each from its own cell alone, and which are blank.

        Args:
            values: (N,), of any types.
            guess: the type by which a column without one is read; None for the usual signs.

        Returns:
            Features, NaN for cells it cannot encode, blanks among them; and a mask of the blanks.
        """
        numbers, blank = self._numbers(values, guess)
        with np.errstate(over="ignore"):
            found = ((numbers - self.mean) / self.sd)[:, None]
        return np.where(np.isfinite(found), found, np.nan), blank

    def _numbers(self, values: pd.Series[Any], guess: ColumnType | None) -> Encoded:
        cells = read_cells(values, self.type or guess)
        return cells.numbers, cells.blank

    def encode_cells(self, cells: Cells) -> Floats:
        """Return the features, (N, 2): the number or 0, and whether it is missing."""
        made = np.empty((2, len(cells)))  # column by column, as features are computed
        with np.errstate(over="ignore"):
            np.subtract(cells.numbers, self.mean, out=made[0])
            made[0] /= self.sd
        np.clip(made[0], -FARTHEST, FARTHEST, out=made[0])
        if (missing := np.isnan(made[0])).any():
            made[0, missing] = 0.0
        made[1] = missing
        return made.T


@dataclass(frozen=True)
class Ordinal(Numeric):
    """A category as its index in a list, standardised as a number: one feature."""

    kind: ClassVar[str] = "ordinal"
    named: ClassVar[bool] = True
    categories: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        distinct(self.name, self.categories)

    def _numbers(self, values: pd.Series[Any], guess: ColumnType | None) -> Encoded:
        return _places(self.categories, values, self.type, guess)

    @classmethod
    def of_values(cls, values: pd.Series[Any], categories: tuple[str, ...] = ()) -> Ordinal:
        """Return the column with the mean and the population standard deviation of its indices.

        Args:
            values: the raw column.
            categories: in the order of their indices; by default sorted as text.
        """
        import pandas as pd

        name, categories = str(values.name), categories or categories_of(values)
        codes = Numeric.of_values(pd.Series(_places(categories, values)[0], name=name))
        return cls(name, codes.mean, codes.sd, categories)


@dataclass(frozen=True)
class OneHot:
    """A category as one 0/1 feature for each possible value, without a reference level.

    The features of one column sum to 1, so they are collinear with an intercept. This is harmless
    under a proper prior and keeps every category's weight interpretable.
    """

    kind: ClassVar[str] = "onehot"
    scales: ClassVar[tuple[tuple[float, float], ...]] = ()
    named: ClassVar[bool] = True
    scaled: ClassVar[bool] = False
    name: str
    categories: tuple[str, ...]
    missing: bool = field(default=False, kw_only=True)
    type: ColumnType | None = field(default=None, kw_only=True, metadata={"absent": None})

    def __post_init__(self) -> None:
        if self.categories != ():  # no names are needed where all others are one level
            distinct(self.name, self.categories)

    @classmethod
    def of_values(cls, values: pd.Series[Any]) -> OneHot:
        """Return the column with its own values, sorted, as categories."""
        return cls(str(values.name), categories_of(values))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features it makes."""
        return tuple(f"{self.name}={category}" for category in self.categories)

    def encode(self, values: pd.Series[Any], guess: ColumnType | None = None) -> Encoded:
        """See :meth:`Numeric.encode`."""
        places, blank = _places(self.categories, values, self.type, guess)
        found = np.eye(len(self.categories))[np.nan_to_num(places).astype(np.int64)]
        found[np.isnan(places)] = np.nan
        return found, blank

    def encode_cells(self, cells: Cells) -> Floats:
        """Return the features, (N, categories + 2): also ``other``, and whether it is a blank."""
        width = len(self.categories)
        places = places_of(self.categories, self.type)
        # The last index is for the code -1.
        known = [*(places.get(name, width) for name in cells.names), width + 1]
        each = np.array(known, dtype=np.int64)[cells.codes]
        return np.asarray(each[:, None] == np.arange(width + 2), dtype=np.float64)


@dataclass(frozen=True)
class Hashed:
    """A category by its hash: each sets two of the features, so that no names have to be known.

    The features of a category are 1/√2 at two indices given by SHA-256 of its name; a blank has one
    more feature. Nothing is learned from the table, but the weights have no names either.
    """

    kind: ClassVar[str] = "hashed"
    scales: ClassVar[tuple[tuple[float, float], ...]] = ()
    named: ClassVar[bool] = False
    scaled: ClassVar[bool] = False
    name: str
    buckets: int = 64
    missing: bool = field(default=True, kw_only=True)
    type: ColumnType | None = field(default=None, kw_only=True, metadata={"absent": None})

    def __post_init__(self) -> None:
        name = f"buckets of column {self.name!r}"
        validate.at_most(name, validate.positive_int(name, self.buckets, least=2), _MOST_BUCKETS)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features it makes."""
        return tuple(f"{self.name}#{place}" for place in range(self.buckets))

    def encode(self, values: pd.Series[Any], guess: ColumnType | None = None) -> Encoded:
        """See :meth:`Numeric.encode`."""
        cells = read_cells(values, self.type or guess)
        found = self.encode_cells(cells)[:, :-1]
        found[cells.blank] = np.nan
        return found, cells.blank

    def encode_cells(self, cells: Cells) -> Floats:
        """Return the features, (N, buckets + 1), the last of which is for a blank."""
        table = np.zeros((len(cells.names) + 1, self.buckets + 1))
        for row, name in enumerate(cells.names):
            for place in buckets_of(name, self.buckets):
                table[row, place] += math.sqrt(0.5)
        table[-1, -1] = 1.0  # for the code -1
        return np.asarray(table[cells.codes])


Column = Numeric | Ordinal | OneHot | Hashed


def categories_of(values: pd.Series[Any]) -> tuple[str, ...]:
    """Return the names of the values that occur, sorted as text; what looks blank is one too."""
    return read_cells(values.dropna(), _NAME).names


def no_numbers(values: pd.Series[Any], bad: NDArray[np.bool_]) -> str:
    """Return how many of a column's values are no numbers, and the first, in words."""
    at = int(bad.argmax())
    return (
        f"column {values.name!r} has {several(int(bad.sum()), 'value')} no finite number, "
        f"the first is {label(values.iloc[at])!r} in row {values.index[at]}"
    )


def blanks(values: pd.Series[Any], blank: NDArray[np.bool_]) -> str:
    """Return the positions of a column's blanks, in words."""
    return (
        f"column {values.name!r} has {several(int(blank.sum()), 'missing value')}, the first in "
        f"row {values.index[int(blank.argmax())]}"
    )


def not_known(column: Column, values: pd.Series[Any], strange: NDArray[np.bool_]) -> str:
    """Return the values of a column that are unknown to its encoding, in words."""
    at = int(strange.argmax())
    others = values[strange].nunique() - 1
    return (
        f"column {column.name!r} has the value {label(values.iloc[at])!r} in row "
        f"{values.index[at]}, which is not among its categories "
        f"{some(getattr(column, 'categories', ()))}"
        + (f", and {several(others, 'further value')}" if others else "")
    )


def distinct(name: str, values: tuple[str, ...]) -> None:
    """Raise ValueError unless these are strings, at least one and all distinct."""
    if not (isinstance(values, tuple) and all(isinstance(v, str) for v in values)):
        raise ValueError(f"{name} must be texts, got {values!r:.80}")
    if not values or len(set(values)) != len(values):
        raise ValueError(f"{name} must have at least one entry and none twice, got {some(values)}")


def with_text_names(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table with its column names as text, without control characters.

    Raises:
        ValueError: if it is not a table, or a name occurs twice.
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise ValueError(
            f"frame must be a pandas DataFrame, got {type(frame).__name__}; for arrays of numbers "
            "there is Dataset.of"
        )
    names = ["".join(c if c.isprintable() else "\ufffd" for c in str(n)) for n in frame.columns]
    frame = frame.set_axis([name.strip() for name in names], axis=1)
    if not frame.columns.is_unique:
        name = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(f"the column name {name!r} occurs more than once")
    return frame


def words_of_counts(counts: Mapping[str, int]) -> str:
    """Return the numbers of unknown values in each column, in words.

    >>> words_of_counts({"age": 1, "sex": 2})
    "1 of 'age', 2 of 'sex'"
    """
    return ", ".join(f"{count} of {name!r}" for name, count in counts.items())

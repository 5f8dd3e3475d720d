"""Encodings of one column of a raw table as features."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi.datasets.cells import Cells, places_of, read_cells
from bdpvi.datasets.types import ColumnType

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
FARTHEST = 1e12
"""Numbers are clipped at this many standard deviations, far beyond any model's limit."""

_MOST_BUCKETS = 2**16


def label(value: object) -> str:
    """Return the name of a category; a number has the same name whether written as 1 or 1.0.

    >>> label("M"), label(True), label(1), label(1.0), label(0.5)
    ('M', 'True', '1', '1', '0.5')
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _codes(values: pd.Series[Any], categories: tuple[str, ...]) -> Floats:
    """Return the index of each value among the categories, (N,), NaN for other values."""
    import pandas as pd

    found, distinct = pd.factorize(values)  # a blank is -1, the last index
    position = {category: float(code) for code, category in enumerate(categories)}
    positions = [position.get(label(v), np.nan) for v in distinct]
    return np.array([*positions, np.nan], dtype=np.float64)[found]


def known(column: Column, values: pd.Series[Any]) -> Floats:
    """Return a column's features, each from its own cell alone, NaN for cells it cannot encode.

    Args:
        column: the encoding, made from public knowledge.
        values: (N,), of any types.

    >>> import pandas as pd
    >>> known(OneHot("smokes", ("none", "some")), pd.Series(["none", 7, "NA"])).tolist()
    [[1.0, 0.0], [nan, nan], [nan, nan]]
    """
    if isinstance(column, Hashed):
        return column.encode(values)
    cells, places = _cells(column, values, column.type)
    if not isinstance(column, OneHot | Ordinal):
        with np.errstate(over="ignore"):
            features = (cells.numbers - column.mean) / column.sd
        return np.asarray(np.where(np.isfinite(features), features, np.nan))[:, None]
    each = (places.get(_common(name, column.type), np.nan) for name in cells.names)
    at = np.array([*each, np.nan])[cells.codes]
    if isinstance(column, Ordinal):
        return np.asarray((at - column.mean) / column.sd)[:, None]
    found: Floats = np.eye(len(column.categories))[np.nan_to_num(at).astype(np.int64)]
    found[np.isnan(at)] = np.nan
    return found


def as_named(
    column: Column, values: pd.Series[Any], guess: ColumnType | None = None
) -> pd.Series[Any]:
    """Return a column of a file as its encoding takes it, each cell read by itself.

    Args:
        column: an encoding without a type.
        values: (N,), of any types.
        guess: the type of kind ``any`` that has the file's signs; None for the usual ones.

    Returns:
        Numbers, categories as the encoding spells them, other cells as text; None for a blank.

    >>> import pandas as pd
    >>> as_named(OneHot("b", ("False", "True")), pd.Series(["TRUE", "x", "NA"])).tolist()
    ['True', 'x', None]
    """
    import pandas as pd

    cells, places = _cells(column, values, guess)
    made: dict[str, Any] = {"index": values.index, "name": values.name}
    numbers = not isinstance(column, OneHot | Ordinal | Hashed)
    good = ~np.isnan(cells.numbers)
    if numbers and (good | cells.blank).all():
        return pd.Series(cells.numbers, dtype=np.float64, **made)
    categories: tuple[str, ...] = getattr(column, "categories", ())
    at = [places.get(_common(one, None)) for one in cells.names]
    pairs = zip(cells.names, at, strict=True)
    names = [one if place is None else categories[int(place)] for one, place in pairs]
    found = np.array([*names, None], dtype=object)[cells.codes]
    if numbers:
        found[good] = cells.numbers[good]
    return pd.Series(found, dtype=object, **made)


def _cells(
    column: Column, values: pd.Series[Any], type: ColumnType | None
) -> tuple[Cells, dict[str, float]]:
    """Return a column's cells, and the place of each category by its common spelling."""
    names: tuple[str, ...] = getattr(column, "categories", ())
    each = places_of(names, column.type, names).items()
    places = {_common(label, column.type): float(at) for label, at in each}
    return read_cells(values, type, declared=frozenset(names)), places


def _common(name: str, type: ColumnType | None) -> str:
    """Return a name in a common spelling: files may have TRUE where pandas has True."""
    return name.capitalize() if type is None and name.lower() in ("true", "false") else name


def some(values: tuple[str, ...], most: int = 8) -> str:
    """Return the first of several names, in words."""
    shown = ", ".join(repr(v) for v in values[:most])
    return f"({shown}{', …' if len(values) > most else ''})"


def told_apart(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of which no two are alike: repeated ones are numbered.

    >>> told_apart(["a", "a", "a (2)"])
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
    declared type by which cells are read, if any.
    """

    kind: ClassVar[str] = "numeric"
    name: str
    mean: float
    sd: float
    missing: bool = field(default=False, kw_only=True)
    type: ColumnType | None = field(default=None, kw_only=True, metadata={"absent": None})

    def __post_init__(self) -> None:
        truth(self.name, self.missing)
        validate.positive(f"sd of column {self.name!r}", self.sd)
        if not math.isfinite(self.mean):
            raise ValueError(f"mean of column {self.name!r} must be finite, got {self.mean!r}")

    @classmethod
    def measured(cls, values: pd.Series[Any]) -> Numeric:
        """Return the column with the mean and the population standard deviation of its values.

        Blanks are ignored.
        """
        name = str(values.name)
        numbers = numbers_of(values.dropna(), name)
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
        return ((numbers_of(values, self.name) - self.mean) / self.sd)[:, None]

    def encode_cells(self, cells: Cells) -> Floats:
        """Return the features, (N, 2): the number or 0, and whether it is missing."""
        with np.errstate(over="ignore"):
            features = np.clip((cells.numbers - self.mean) / self.sd, -FARTHEST, FARTHEST)
        return np.column_stack([np.nan_to_num(features), np.isnan(features)])


@dataclass(frozen=True)
class Ordinal(Numeric):
    """A category as its index in a list, standardised as a number: one feature."""

    kind: ClassVar[str] = "ordinal"
    categories: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        distinct(self.name, self.categories)

    @classmethod
    def measured(cls, values: pd.Series[Any], categories: tuple[str, ...] = ()) -> Ordinal:
        """Return the column with the mean and the population standard deviation of its indices.

        Args:
            values: the raw column.
            categories: in the order of their indices; by default sorted as text.
        """
        import pandas as pd

        name, categories = str(values.name), categories or categories_of(values)
        codes = Numeric.measured(pd.Series(_codes(values, categories), name=name))
        return cls(name, codes.mean, codes.sd, categories)

    def encode(self, values: pd.Series[Any]) -> Floats:
        """Return the features, (N, 1), NaN where the value is not among the categories."""
        import pandas as pd

        return super().encode(pd.Series(_codes(values, self.categories)))


@dataclass(frozen=True)
class OneHot:
    """A category as one 0/1 feature for each possible value, without a reference level.

    The features of one column sum to 1, so they are collinear with an intercept. This is harmless
    under a proper prior and keeps every category's weight interpretable.
    """

    kind: ClassVar[str] = "onehot"
    name: str
    categories: tuple[str, ...]
    missing: bool = field(default=False, kw_only=True)
    type: ColumnType | None = field(default=None, kw_only=True, metadata={"absent": None})

    def __post_init__(self) -> None:
        truth(self.name, self.missing)
        if self.categories != ():  # no names are needed where all others are one level
            distinct(self.name, self.categories)

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

    def encode_cells(self, cells: Cells) -> Floats:
        """Return the features, (N, categories + 2): also ``other``, and whether it is a blank."""
        width = len(self.categories)
        places = places_of(self.categories, self.type)
        # The last index is for the code -1.
        known = [*(places.get(one, width) for one in cells.names), width + 1]
        each = np.array(known, dtype=np.int64)[cells.codes]
        return np.asarray(each[:, None] == np.arange(width + 2), dtype=np.float64)


@dataclass(frozen=True)
class Hashed:
    """A category by its hash: each sets two of the features, so that no names have to be known.

    The features of a category are 1/√2 at two indices given by SHA-256 of its name; a blank has one
    more feature. Nothing is learned from the table, but the weights have no names either.
    """

    kind: ClassVar[str] = "hashed"
    name: str
    buckets: int = 64
    missing: bool = field(default=True, kw_only=True)
    type: ColumnType | None = field(default=None, kw_only=True, metadata={"absent": None})

    def __post_init__(self) -> None:
        truth(self.name, self.missing)
        name = f"buckets of column {self.name!r}"
        validate.at_most(name, validate.positive_int(name, self.buckets, least=2), _MOST_BUCKETS)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features it makes."""
        return tuple(f"{self.name}#{place}" for place in range(self.buckets))

    def encode(self, values: pd.Series[Any]) -> Floats:
        """Return the features, (N, buckets), NaN where the value is blank."""
        cells = read_cells(values, self.type)
        features = self.encode_cells(cells)[:, :-1]
        features[cells.blank] = np.nan
        return features

    def encode_cells(self, cells: Cells) -> Floats:
        """Return the features, (N, buckets + 1), the last of which is for a blank."""
        table = np.zeros((len(cells.names) + 1, self.buckets + 1))
        for row, name in enumerate(cells.names):
            digest = hashlib.sha256(name.encode()).digest()
            for part in (digest[:8], digest[8:16]):
                table[row, int.from_bytes(part, "big") % self.buckets] += math.sqrt(0.5)
        table[-1, -1] = 1.0  # for the code -1
        return np.asarray(table[cells.codes])


Column = Numeric | Ordinal | OneHot | Hashed


def categories_of(values: pd.Series[Any]) -> tuple[str, ...]:
    """Return the names of the values that occur, sorted as text."""
    return tuple(sorted({label(v) for v in values.dropna().unique()}))


def numbers_of(values: pd.Series[Any], name: str) -> Floats:
    """Return numbers, (N,), NaN for a blank; raise ValueError if one is not a finite number."""
    import pandas as pd

    numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(~np.isfinite(numbers) & values.notna().to_numpy())
    if len(bad):
        raise ValueError(
            f"column {name!r} has {several(len(bad), 'value')} no finite number, "
            f"the first is {label(values.iloc[bad[0]])!r} in row {values.index[bad[0]]}"
        )
    return np.asarray(numbers, dtype=np.float64)


def truth(name: str, missing: object) -> None:
    """Raise ValueError unless ``missing`` is a Boolean."""
    if not isinstance(missing, bool):
        raise ValueError(f"missing of column {name!r} must be true or false, got {missing!r}")


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

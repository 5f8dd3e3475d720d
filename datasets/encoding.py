"""The encoding of a raw table's columns as features, stored so that new rows are encoded alike.

An :class:`Encoding` holds every constant that the features depend on. A model is released together
with it, so its constants count as public; ``origin`` says where they come from.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bdpvi._ground import validate
from bdpvi._ground.schema import from_json, to_json
from bdpvi.datasets.cells import Columns, read_columns
from bdpvi.datasets.columns import (
    Column,
    Floats,
    Numeric,
    Ordinal,
    blanks,
    distinct,
    distinct_names,
    no_numbers,
    not_known,
    some,
    words_of_counts,
)
from bdpvi.datasets.columns import with_text_names as with_text_names
from bdpvi.datasets.origin import Origin
from bdpvi.datasets.terms import Features, Term, check_terms, joined, of_columns, references_of
from bdpvi.datasets.types import ColumnType

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from bdpvi.datasets.feature_rows import FeatureRows

UNKNOWN = ("refuse", "base", "other")
OTHER, MISSING = "other", "missing"
MEASURED = "Computed from the rows of the data; treated as public."
"""Source of constants computed from the table itself."""
_BASE = "unknown='base' (--unknown base) would make its features 0"
_PURCHASE = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Encoding:
    """The features of a table: its columns in order, and where their constants come from.

    Attributes:
        columns: one entry for each raw column in use. If a column has ``missing``, a blank is a
            separate value: the column's features are 0, the mean of a number, and an additional
            feature, "NAME is missing", is 1.
        source: a sentence about the constants, for people. It has no effect.
        unknown: treatment of unlisted categories, missing columns, and blanks in columns without
            ``missing``: ``"refuse"``, or ``"base"``, which sets the column's features to 0. With
            ``"other"`` only missing columns are refused: in every column unlisted categories become
            the level ``other``, and blanks and non-numbers the level ``missing``. Each cell is then
            read by itself.
        origin: where the constants come from; if there are several origins, the least covered.
        besides: the other origins.
        purchases: digests of the charges for privately estimated constants, as in
            :attr:`bdpvi.privacy.entry.Entry.purchase`.
        terms: the terms of a formula; by default each column is one. Each number has its sign of
            a blank once.

    Raises:
        ValueError: if there are no columns, a name repeats, or origins and purchases do not fit.

    >>> import pandas as pd
    >>> from bdpvi.datasets.columns import Numeric, OneHot
    >>> sexes = OneHot("sex", ("F", "M"))
    >>> encoding = Encoding((Numeric("age", mean=40.0, sd=10.0), sexes), "Census tables.")
    >>> encoding.feature_names
    ('age', 'sex=F', 'sex=M')
    >>> encoding.apply(pd.DataFrame({"sex": ["M", "F"], "age": [30, 45]})).tolist()
    [[-1.0, 0.0, 1.0], [0.5, 1.0, 0.0]]
    >>> Encoding.from_dict(encoding.to_dict()) == encoding
    True
    >>> lenient = Encoding(encoding.columns, "Census tables.", unknown="base")
    >>> lenient.encode_and_count(pd.DataFrame({"sex": ["X"], "age": [30]}))
    (array([[-1.,  0.,  0.]]), {'sex': 1})
    >>> encoding.apply(pd.DataFrame({"sex": ["X"], "age": [30]}))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: column 'sex' has the value 'X' in row 0, which is not among its categories ...
    """

    columns: tuple[Column, ...]
    source: str
    unknown: str = "refuse"
    origin: Origin = Origin.PUBLIC
    besides: tuple[Origin, ...] = ()
    purchases: tuple[str, ...] = ()
    terms: tuple[Term, ...] = field(default=(), metadata={"absent": ()})

    def __post_init__(self) -> None:
        validate.choice("unknown", self.unknown, UNKNOWN)
        if list(self.origins) != sorted(set(self.origins), key=list(Origin).index):
            raise ValueError(f"origin and besides must be in order, got {self.origins!r:.200}")
        digests = all(_PURCHASE.fullmatch(purchase) for purchase in self.purchases)
        if not digests or bool(self.purchases) != (Origin.ESTIMATED_HERE in self.origins):
            raise ValueError(
                f"purchases must be digests, and of origin "
                f"{Origin.ESTIMATED_HERE.value!r} only, got {self.purchases!r:.80}"
            )
        if self.unknown == "other" and any(c.kind == Ordinal.kind for c in self.columns):
            raise ValueError("unknown='other' goes with numbers and one-hot categories only")
        distinct("columns", tuple(c.name for c in self.columns))
        # With "other" names of categories may come from private counts.
        if none := [c.name for c in self.columns if self.unknown != "other" and not c.features]:
            raise ValueError(f"column {none[0]!r} must have at least one category")
        if self.terms:
            check_terms(self.terms, self.columns)
            _ = self.blocks

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the d features, for printing: a feature is known by its place.

        >>> from bdpvi.datasets.columns import Numeric, OneHot
        >>> Encoding((OneHot("a", ("b",)), Numeric("a=b", 0.0, 1.0)), "By law.").feature_names
        ('a=b', 'a=b (2)')
        """
        return distinct_names(name for block in self.blocks for name in block.names)

    @cached_property
    def blocks(self) -> tuple[Features, ...]:
        """The features of each column, or of each term, in order."""
        every = self.unknown == "other"
        named = ((c, self.of_column(c), every or c.missing) for c in self.columns)
        return of_columns(self.terms, tuple(named))

    @property
    def groups(self) -> tuple[tuple[Features, tuple[int, ...]], ...]:
        """Each block with the numbers of its features."""
        ends = accumulate((len(block.names) for block in self.blocks), initial=0)
        pairs = zip(self.blocks, pairwise(ends), strict=True)
        return tuple((block, tuple(range(*end))) for block, end in pairs)

    @property
    def references(self) -> dict[str, str]:
        """Reference levels of a formula's categories: those stated, and those of products."""
        return references_of(self.terms, self.columns)

    @property
    def places(self) -> dict[str, tuple[int, ...]]:
        """Numbers of the features of each column that is a term, in order."""
        return {b.column.name: places for b, places in self.groups if b.column is not None}

    @property
    def one_hot(self) -> tuple[tuple[int, ...], ...]:
        """Column numbers of each one-hot category's features, in order.

        >>> from bdpvi.datasets.columns import OneHot
        >>> Encoding((OneHot("sex", ("F", "M")), OneHot("job", ("a",))), "By law.").one_hot
        ((0, 1), (2,))
        """
        return tuple(
            places
            for block, places in self.groups
            if block.column is not None and block.column.named and not block.column.scaled
        )

    @property
    def numbers(self) -> tuple[int, ...]:
        """Column numbers of the features that are standardised numbers, in order.

        >>> from bdpvi.datasets.columns import Numeric, OneHot
        >>> age = Numeric("age", 40.0, 10.0)
        >>> Encoding((OneHot("sex", ("F", "M")), age), "By law.", unknown="other").numbers
        (4,)
        """
        return tuple(
            places[0]
            for block, places in self.groups
            if block.column is not None and block.column.scaled
        )

    @property
    def smooth(self) -> tuple[int, ...]:
        """Column numbers of the features of terms of numbers alone, such as splines, in order."""
        scaled = {column.name for column in self.columns if column.scaled}
        return tuple(
            place
            for block, places in self.groups
            for place in places
            if block.term and all(factor.column in scaled for factor in block.term)
        )

    @property
    def scales(self) -> tuple[tuple[float, float], ...]:
        """Centre and scale of the number behind each feature, (d, 2); 0 and 1 where there is none.

        >>> from bdpvi.datasets.columns import Numeric, OneHot
        >>> Encoding((Numeric("age", 40.0, 10.0), OneHot("sex", ("F", "M"))), "By law.").scales
        ((40.0, 10.0), (0.0, 1.0), (0.0, 1.0))
        """
        return tuple(scale for block in self.blocks for scale in block.scales)

    def of_column(self, column: Column) -> tuple[str, ...]:
        """Return the names of a column's features."""
        every = self.unknown == "other"
        other = f"{column.name}={OTHER}" if every and column.named else ""
        missing = f"{column.name} is {MISSING}" if every or column.missing else ""
        return (*column.features, *filter(None, (other, missing)))

    @property
    def types(self) -> dict[str, ColumnType]:
        """The declared types of columns, by which their cells are read."""
        return {column.name: column.type for column in self.columns if column.type is not None}

    def typed(self, types: Mapping[str, ColumnType]) -> Encoding:
        """Return the encoding whose columns are read by these types, others as before."""
        columns = (
            replace(column, type=types.get(column.name, column.type)) for column in self.columns
        )
        return replace(self, columns=tuple(columns))

    @property
    def origins(self) -> tuple[Origin, ...]:
        """All origins of the constants, the least covered first."""
        return (self.origin, *self.besides)

    def of(self, origins: Iterable[Origin], purchases: Iterable[str] = ()) -> Encoding:
        """Return the encoding with these origins, in any order, and purchases."""
        first, *others = sorted(set(origins), key=list(Origin).index)
        purchases = tuple(dict.fromkeys(purchases))
        return replace(self, origin=first, besides=tuple(others), purchases=purchases)

    def counting(self, paid: Collection[str]) -> Encoding:
        """Return the encoding for a release whose ε covers exactly these purchases.

        >>> from bdpvi.datasets.columns import Numeric
        >>> one = Encoding((Numeric("age", 40.0, 10.0),), "Noisy means.")
        >>> one = one.of([Origin.ESTIMATED_HERE], [64 * "0"])
        >>> one.counting({64 * "0"}).origin.value, one.counting(()).origin.value
        ('bought here', 'from another release')
        """
        kept = [purchase for purchase in self.purchases if purchase in paid]
        origins = {*self.origins}
        if len(kept) < len(self.purchases):
            origins.add(Origin.FROM_ANOTHER_RELEASE)
        return self.of(origins if kept else origins - {Origin.ESTIMATED_HERE}, kept)

    def apply(self, frame: pd.DataFrame) -> Tensor:
        """Return the features of raw rows, (N, d) float64; unknown columns are ignored.

        Warns:
            UserWarning: with the number of values that ``unknown="base"`` set to 0 in each column.

        Raises:
            ValueError: as in :meth:`encode_and_count`.
        """
        features, counts = self.encode_and_count(frame)
        if counts:
            warnings.warn(
                f"not known, features are 0: {words_of_counts(counts)}", UserWarning, stacklevel=2
            )
        return _tensor(features)

    def encode_and_count(
        self, frame: pd.DataFrame, guess: ColumnType | None = None
    ) -> tuple[Floats, dict[str, int]]:
        """Return the features of raw rows, and the number of unknown values in each column.

        Args:
            frame: the rows.
            guess: the type by which columns without one are read; None for the usual signs.

        Raises:
            ValueError: with one line for each problem, naming the column: it occurs twice or has a
                value that is not a finite number; or, unless ``unknown`` is ``"base"``, is missing
                or has a value that is blank or not among its categories.
        """
        frame = with_text_names(frame)
        if self.unknown == "other":
            return self.rows_of(read_columns(frame, self.types)).whole(), {}
        features, blank, odd = self._each(frame, guess)
        lines = (
            [f"the table has no column {some(absent)}"] if (absent := self._absent(frame)) else []
        )
        problems = []
        for column in self.columns:
            if (name := column.name) in absent:
                continue
            gone, strange = odd[name] & blank[name], odd[name] & ~blank[name]
            if gone.any():
                lines.append(blanks(frame[name], gone))
            if strange.any() and column.kind == Numeric.kind:
                problems.append(no_numbers(frame[name], strange))
            elif strange.any():
                lines.append(not_known(column, frame[name], strange))
        if self.unknown == "refuse":
            problems += [f"{line}; {_BASE}" for line in lines]
        if problems:
            raise ValueError("\n".join(problems))
        return features, _counts(odd)

    def row_by_row(self, frame: pd.DataFrame) -> tuple[Tensor, NDArray[np.bool_], dict[str, int]]:
        """Return features, (N, d), a mask of complete rows, (N,), and counts of values set to 0.

        Each cell is read by itself. A row with an unknown cell, or without a finite number where
        one is expected, is incomplete unless ``unknown`` says how to treat the cell.

        Raises:
            ValueError: naming missing columns, unless ``unknown`` is ``"base"``.

        >>> import pandas as pd
        >>> from bdpvi.datasets.columns import Numeric
        >>> encoding = Encoding((Numeric("age", mean=40.0, sd=10.0),), "By law.")
        >>> encoding.row_by_row(pd.DataFrame({"age": [50, "x"]}))[1].tolist()
        [True, False]
        """
        frame = with_text_names(frame)
        good = np.full(len(frame), True)
        if self.unknown == "other":
            return self.whole(read_columns(frame, self.types)), good, {}
        if self.unknown == "refuse" and (absent := self._absent(frame)):
            raise ValueError(f"the table has no column {some(absent)}; {_BASE}")
        features, _, odd = self._each(frame)
        if self.unknown == "base":
            return _tensor(features), good, _counts(odd)
        return _tensor(features), ~np.any([*odd.values()], axis=0), {}

    def _absent(self, table: Any) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.name not in table)

    def _each(
        self, frame: pd.DataFrame, guess: ColumnType | None = None
    ) -> tuple[Floats, dict[str, NDArray[np.bool_]], dict[str, NDArray[np.bool_]]]:
        """Return the features of rows, 0 for what is unknown; by column the blanks, and what is."""
        parts: dict[str, NDArray[np.float64]] = {}
        blank, odd = {}, {}
        for column in self.columns:
            name = column.name
            if name in frame:
                features, blank[name] = column.encode(frame[name], guess)
            else:
                features = np.full((len(frame), len(column.features)), np.nan)
                blank[name] = np.full(len(frame), False)
            odd[name] = np.isnan(features[:, 0])
            features[odd[name]] = 0.0
            if column.missing:
                features = np.column_stack([features, blank[name]])
                odd[name] &= ~blank[name]
            parts[name] = features
        return joined(self.blocks, parts, self.columns), blank, odd

    def whole(self, table: Columns) -> Tensor:
        """Return the features of cells, (N, d), if ``unknown`` is ``"other"``: no row is refused.

        Raises:
            ValueError: naming missing columns.
        """
        return _tensor(self.rows_of(table).whole())

    def rows_of(self, table: Columns) -> FeatureRows:
        """Return what :meth:`whole` does, made when it is asked for; the same errors."""
        from bdpvi.datasets.feature_rows import FeatureRows  # late: releases come without rows

        if absent := self._absent(table):
            raise ValueError(f"the table has no column {some(absent)}")
        return FeatureRows(self.columns, self.blocks, table)

    def to_dict(self) -> dict[str, Any]:
        """Return the encoding in plain JSON types."""
        return to_json(self)  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Encoding:
        """Return the encoding from the result of :meth:`to_dict`.

        Raises:
            ValueError: if the dictionary does not describe an encoding.
        """
        try:
            return from_json(cls, values, partial=True)
        except ValueError as error:
            raise ValueError(f"not the dictionary of an encoding: {error}") from error


def _tensor(values: Floats) -> Tensor:
    import torch  # late: new rows are predicted without it

    return torch.from_numpy(values)


def _counts(odd: Mapping[str, NDArray[np.bool_]]) -> dict[str, int]:
    return {name: int(one.sum()) for name, one in odd.items() if one.any()}

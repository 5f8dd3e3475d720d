"""What an estimator's ``fit`` is given: X as a table, y as a column of it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline as Steps
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.validation import validate_data

from bdpvi._ground import validate
from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.datasets import made_up
from bdpvi.datasets.cells import Cells, Columns, read_cells, read_columns
from bdpvi.datasets.encoding import Encoding, with_text_names
from bdpvi.datasets.estimates import CATEGORY, NUMBER
from bdpvi.datasets.given import REMEDY, warn_of_signs
from bdpvi.datasets.objects import in_memory, rows_of
from bdpvi.datasets.records import Held
from bdpvi.datasets.schema import Schema, declared_by
from bdpvi.datasets.types import ColumnType
from bdpvi.datasets.units import at_most, persons_of
from bdpvi.datasets.weights import shares_of
from bdpvi.score.reading import NUMBERS
from bdpvi.tables.encoded import Perform, encode
from bdpvi.tables.request import Public
from bdpvi.tables.rows import Encoded, Floats, Rows
from bdpvi.tables.validation import purchase

if TYPE_CHECKING:
    from bdpvi.releases.route import Allowance
    from bdpvi.tables.request import Request

AS_NUMBER = ColumnType(kind="number")
"""The type of each column of an X that declares none."""
Constants = tuple[Encoded, tuple[float, float] | None]
"""Constants of the features, and centre and scale of the target if they are estimated."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """The columns of X.

    Attributes:
        columns: their cells, in order.
        types: how they are encoded as :func:`bdpvi.private` encodes a table, of which every row is
            used; None if each is a number and one feature, and a row without one is left out.
        names: if types are None, their names; ``columns`` then has their places, so that a seed has
            the same noise whatever carries the numbers.
        target: name of the target, if its centre and scale are estimated too; "" otherwise.
        device: where the fit is computed.
        weights: how often each row counts, (N,), from 0 to 1, NaN if unknown; None for once.
        groups: the group of each row, (N,), if groups are records; None otherwise.
        held: what holds rows whose constants are estimated.
    """

    columns: Columns
    types: Schema | None = None
    names: tuple[str, ...] = ()
    target: str = ""
    device: str = "cpu"
    weights: Floats | None = None
    groups: NDArray[np.int64] | None = None
    held: Callable[[Rows], Held[Rows]] = Held

    def __len__(self) -> int:
        return max(map(len, self.columns.values()), default=0)

    @property
    def _read_by(self) -> Mapping[str, ColumnType]:
        return {} if self.types is None else self.types.read_by

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns of numbers without declared bounds."""
        known = {} if self.types is None else self.types.bounded
        kinds = {name: one.kind for name, one in self._read_by.items()}
        open_ones = (column for column in self.columns if column not in (*known, self.target))
        return tuple(one for one in open_ones if kinds.get(one, NUMBERS[0]) in NUMBERS)

    @cached_property
    def values(self) -> Floats:
        """The numbers of these columns, (N, d)."""
        found = [self.columns[name].numbers for name in self.numbers]
        return np.column_stack(found) if found else np.empty((len(self), 0))

    @property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """The declared kinds of columns, in words."""
        return {} if self.types is None else self.types.kinds

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Mask of the rows that are used, (N,)."""
        kept = np.full(len(self), True) if self.weights is None else np.isfinite(self.weights)
        if self.types is not None:
            return kept
        return np.asarray(kept & np.isfinite(self.values).all(axis=1))

    def some(self) -> tuple[NDArray[Any], ...]:
        """Return the columns, by which the rows are known again."""
        return tuple(
            column.numbers
            if self.types is None or np.isfinite(column.numbers).any()
            else np.asarray([*column.names, None], dtype=object)[column.codes]
            for column in self.columns.values()
        )

    def select(self, rows: NDArray[Any]) -> Inputs:
        """Return some of the rows."""
        of_rows = {"weights": self.weights, "groups": self.groups}
        some: Any = {name: one[rows] for name, one in of_rows.items() if one is not None}
        columns = {name: one.select(rows) for name, one in self.columns.items()}
        return replace(self, columns=columns, **some)

    def made_up(self) -> Inputs:
        """Return made-up rows."""
        groups = None if self.groups is None else np.arange(made_up.ROWS) // 2
        if self.types is None:
            values = np.random.default_rng(0).normal(size=(len(self.columns), made_up.ROWS))
            values[:, :3] = [0.0, 1e15, -1e300]
            columns = dict(zip(self.columns, map(Cells, values), strict=True))
            return Inputs(columns, names=self.names, groups=groups)
        numbers, known = self.numbers, self.types.bounded
        kinds = {name: NUMBER if name in numbers else CATEGORY for name in self.columns}
        levels = {name: one.names or one.bounds or () for name, one in known.items()}
        frame = next(made_up.frames(kinds, levels, {}))
        cells = read_columns(frame, self._read_by)
        return Inputs(cells, self.types, groups=groups, held=made_up.Copies)

    def beside(self, target: Floats) -> Inputs:
        """Return the columns with a target whose centre and scale are estimated too."""
        name = self.unlike("target")
        return replace(self, columns={**self.columns, name: Cells(target)}, target=name)

    @property
    def label(self) -> str:
        """A name of the target that no column has."""
        return self.unlike("y")

    def unlike(self, name: str) -> str:
        """Return the name, with underscores if a column has it."""
        while name in self.columns:
            name += "_"
        return name

    def header(self, asked: Request) -> list[str]:
        """Return the names of the columns, of the target and of any weights."""
        return [*self.columns, asked.target, *filter(None, [asked.public.weights])]

    def public(self, constants: Encoding | None, **given: Any) -> Public:
        """Return what is known of the columns, some of whose constants may be public."""
        numbers = (*self.numbers, *filter(None, [self.target]))
        numeric = [number for number in numbers if number not in self._read_by]
        return Public(types=self.types, constants=constants, numeric=numeric, **given)

    def public_constants(self, asked: Request) -> Encoded | None:
        """Return all constants if they are public, None if some are to be estimated."""
        empty = purchase(asked, self.header(asked)).empty
        return self._preprocessing(Encoded(_public(asked))) if empty else None

    def fewest_features(self, asked: Request) -> int:
        """Return the least number of features."""
        if self.types is None:
            return len(self.columns)
        return purchase(asked, self.header(asked)).fewest_features

    def estimate_constants(self, asked: Request, perform: Perform, left: Allowance) -> Constants:
        """Return all constants, those that are not public estimated privately."""
        rows = Rows(self.columns, np.zeros(len(self)))
        header = self.header(asked)
        found = encode(self.held(rows), header, asked, perform, left=left, feasible=False)
        if not self.target:
            return self._preprocessing(found), None
        *columns, last = found.encoding.columns
        target: Any = last
        if [*purchase(asked, header).estimated_kinds] == [self.target]:
            encoding = _public(asked)  # what was estimated is no feature's
        else:
            encoding = replace(found.encoding, columns=tuple(columns))
        return self._preprocessing(replace(found, encoding=encoding)), (target.mean, target.sd)

    def features(self, encoding: Encoding) -> Floats:
        """Return the features, (N, d)."""
        if encoding.unknown == "other":
            return encoding.whole(self.columns).numpy()
        each = zip(encoding.columns, self.columns.values(), strict=True)
        return np.column_stack([one.encode_cells(cells)[:, 0] for one, cells in each])

    def _preprocessing(self, found: Encoded) -> Encoded:
        """Return the preprocessing; where each column is one feature, without those of blanks."""
        if self.types is not None:
            return found
        each = zip(found.encoding.columns, self.names, strict=True)
        columns = tuple(replace(one, name=name) for one, name in each)
        encoding = replace(found.encoding, columns=columns, unknown="refuse")
        return replace(found, encoding=encoding)


def _public(asked: Request) -> Encoding:
    """Return the public constants, of all columns."""
    assert asked.constants is not None
    return replace(asked.constants, unknown="other", terms=asked.terms)


def warn_of_made(values: Floats) -> None:
    """Warn the owner if features were made from their own rows, by a pipeline or visibly."""
    before = _earlier_transformers()
    if before:
        warnings.warn(
            f"for the owner only: {before[0]} was fitted to the same rows before; {REMEDY}",
            PrivacyUtilityWarning,
            stacklevel=4,
        )
    else:
        warn_of_signs(4, X=values)


def _earlier_transformers() -> list[str]:
    """Return the transformers that a pipeline fitted to the rows which this ``fit`` is given."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        pipeline = frame.f_locals.get("self")
        if isinstance(pipeline, Steps):
            before = [one for _, one in pipeline.steps[:-1] if hasattr(one, "fit")]
            if result := [type(one).__name__ for one in before if _fits(one)]:
                return result
        frame = frame.f_back
    return []


def _fits(transformer: Any) -> bool:
    """Return whether a transformer learns from rows; without a declaration it counts as if so."""
    if hasattr(transformer, "__sklearn_tags__"):
        return bool(transformer.__sklearn_tags__().requires_fit)
    tags: dict[str, Any] = getattr(transformer, "_get_tags", dict)()  # before 1.6
    return bool(tags.get("requires_fit", True))


def read(
    estimator: Any, X: Any, y: Any, unit: Any = None, weights: Any = None
) -> tuple[Inputs, pd.Series[Any]]:
    """Return N rows and their targets, (N,), with valid shapes and arbitrary values.

    Of each person only the first ``rows_per_unit`` rows are returned.

    Raises:
        ValueError: for wrong shapes or types only, never because of a record's values.
    """
    if y is None:
        validate_data(estimator, X, y)  # refuses
    estimator.unit_ = name = unit if isinstance(unit, str) else None
    frame, schema = table_of(estimator, X)
    named = None
    if name is not None:
        schema = None if schema is None else schema.of_unit(name)[1]
        named = None if estimator.types is None else estimator.types.of_unit(name)[0]
        persons, frame = column_of(frame[name].astype(object)), frame.drop(columns=name)
    columns = read_columns(frame, as_numbers(frame) if schema is None else schema.read_by)
    names: tuple[str, ...] = ()
    if schema is None:
        names, places = tuple(columns), map(str, range(len(columns)))
        columns = dict(zip(places, columns.values(), strict=True))
    device = str(X.device) if getattr(X, "is_cuda", False) else "cpu"
    rows = Inputs(columns, schema, names, device=device)
    warn_of_made(rows.values)
    number = len(X) if isinstance(X, list | tuple) else len(frame)
    kept = np.arange(number) if len(frame) == number else frame.index.to_numpy()
    targets = column_of(y)
    check_consistent_length(range(number), targets)
    if targets.dtype.kind == "c":
        raise ValueError(f"y: Complex data not supported, got {targets.dtype}")
    if weights is not None:
        given = column_of(weights)
        check_consistent_length(range(number), given)
        numbers = torch.tensor(read_cells(given.iloc[kept], AS_NUMBER).numbers)
        rows = replace(rows, weights=shares_of(numbers, estimator.largest_weight).numpy())
    if unit is None:
        return rows, targets.iloc[kept]
    if name is None:
        persons = column_of(unit)
        check_consistent_length(range(number), persons)
        persons = persons.iloc[kept].reset_index(drop=True)
    people, most = persons.to_frame("unit"), estimator.rows_per_unit
    chosen = at_most(people, "unit", most, type=named).index.to_numpy()
    if name is not None and name == estimator.group:
        rows = replace(rows, groups=pd.factorize(persons_of(persons, named))[0])
    return rows.select(chosen), targets.iloc[kept[chosen]]


def table_of(estimator: Any, X: Any, *, reset: bool = True) -> tuple[pd.DataFrame, Schema | None]:
    """Return X as a frame with the names of ``fit``, and the types of its columns.

    Types are None if all columns are numbers and none is declared otherwise. The dtypes of a frame
    are declarations, those of cells in lists and arrays are not.

    Args:
        estimator: it keeps the names.
        X: a table.
        reset: whether this is ``fit``.

    Raises:
        ValueError: if it is no table; because of header, dtypes or types only.
    """
    X = X.compute() if hasattr(X, "compute") else X  # a frame of Dask
    try:
        frame = _frame_of(X)
        named = with_text_names(frame)
    except ValueError as error:
        if hasattr(X, "shape") or isinstance(X, list | tuple):
            validate_data(estimator, X, reset=reset, dtype=None)  # refuses in the usual words
        raise ValueError(f"X: {error}") from None
    types = estimator.types if reset else None
    declares = isinstance(X, pd.DataFrame) or hasattr(X, "__arrow_c_stream__")
    declares |= type(X).__name__ == "LazyFrame"
    for argument, name in (("group", estimator.group), ("unit", estimator.unit_)):
        if reset and name is not None:
            validate.columns(argument, [name], [*named])
            types = _with_names(name, named, types)
    if reset and declares:
        types = declared_by(named, types)
    elif types is not None:
        types.of_header([*named.columns])
    if reset and types is None and estimator.formula:
        types = Schema(as_numbers(named), "a formula's columns")
    encoded = types is not None if reset else estimator.encoding_ is not None
    usual = [f"x{at}" for at in range(frame.shape[1])]
    shown: Any = np.zeros(frame.shape)
    if declares or [*frame] != usual:
        shown = pd.DataFrame(shown, columns=frame.columns)
    validate_data(estimator, shown, reset=reset, skip_check_array=encoded)
    if not reset:
        fitted = getattr(estimator, "feature_names_in_", usual)
        named = with_text_names(frame.set_axis([*fitted], axis=1))
    return named, types


def _with_names(name: str, frame: pd.DataFrame, types: Schema | None) -> Schema | None:
    """Return the types with a column of names, whose levels are not public unless declared."""
    known = {} if types is None else types.columns
    if name in known or isinstance(frame[name].dtype, pd.CategoricalDtype):
        return types
    source = f"names in {name!r}" if types is None else types.source
    return Schema({**known, name: ColumnType(kind="category")}, source)


def _frame_of(X: Any) -> pd.DataFrame:
    """Return X as a frame; the index of one made of a list has the places of the list's rows."""
    if len(getattr(X, "shape", (0, 0))) != 2:
        raise ValueError("it must have shape (records, columns)")
    X = [*X] if isinstance(X, tuple) else X
    made = X if hasattr(X, "__next__") else in_memory(X)
    if not isinstance(made, pd.DataFrame) and hasattr(made, "__array__"):
        made = in_memory(np.asarray(made))
    if not isinstance(made, pd.DataFrame):
        raise ValueError(
            f"{type(X).__name__} is none of a data frame, an array and a list of rows; of a file "
            "give its columns, or give it to bdpvi.private"
        )
    return made


def as_numbers(names: Iterable[object]) -> dict[str, ColumnType]:
    """Return the types of columns of which none is declared."""
    return dict.fromkeys(map(str, names), AS_NUMBER)


def column_of(values: Any) -> pd.Series[Any]:
    """Return one column, (N,), of which each cell stays what it is.

    Args:
        values: an array, a tensor, a list, a column of any frame; or a table with one column.

    Raises:
        ValueError: for another shape.
    """
    values = values.compute() if hasattr(values, "compute") else values
    if hasattr(values, "__array__") and not hasattr(values, "__len__"):
        values = np.asarray(values)
    if len(getattr(values, "shape", (0,))) == 2 or rows_of(values):
        frame = _frame_of(values)
        column_or_1d(np.empty(frame.shape), warn=True)
        if rows_of(values):
            return frame.iloc[:, 0].reindex(range(len(values)))
        return frame.iloc[:, 0].reset_index(drop=True)
    if len(getattr(values, "shape", (0,))) != 1 or not hasattr(values, "__len__"):
        column_or_1d(values)  # refuses
    found: pd.Series[Any] = in_memory({"": values}).iloc[:, 0]
    return found.reset_index(drop=True)

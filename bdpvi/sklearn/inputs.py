"""What an estimator's ``fit`` is given: X as a table, y as a column of it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline as Steps
from sklearn.utils import column_or_1d

from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.datasets import made_up
from bdpvi.datasets.bought import CATEGORY, NUMBER, public_encoding
from bdpvi.datasets.cells import Cells, Columns, read_columns
from bdpvi.datasets.dtypes import declared_by
from bdpvi.datasets.encoding import with_text_names
from bdpvi.datasets.given import REMEDY, warn_of_signs
from bdpvi.datasets.objects import in_memory, rows_of
from bdpvi.datasets.records import Held
from bdpvi.datasets.types import NUMBERS, ColumnType
from bdpvi.tables.arrays import Floats, Standard
from bdpvi.tables.encoded import Perform, encode
from bdpvi.tables.rows import Encoded, Rows

if TYPE_CHECKING:
    from bdpvi.datasets.schema import Schema
    from bdpvi.tables.pipeline import Pipeline, Remaining

AS_NUMBER = ColumnType(kind="number")
"""The type of each column of an X that declares none."""
Constants = tuple[Standard, tuple[float, float] | None]
"""Constants of the features, and centre and scale of the target if they are estimated."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """The columns of X.

    Attributes:
        columns: their cells, in order.
        types: how they are encoded as :func:`bdpvi.private` encodes a table, of which every row is
            used; None if each is a number and one feature, and a row without one is left out.
        target: name of the target, if its centre and scale are estimated too; "" otherwise.
        device: where the fit is computed.
    """

    columns: Columns
    types: Schema | None
    target: str = ""
    device: str = "cpu"

    @classmethod
    def of(cls, frame: pd.DataFrame, types: Schema | None, device: str = "cpu") -> Inputs:
        """Return a frame's columns, read by their declared types."""
        read_by = dict.fromkeys(frame, AS_NUMBER) if types is None else types.read_by
        return cls(read_columns(frame, read_by), types, device=device)

    def __len__(self) -> int:
        return max(map(len, self.columns.values()), default=0)

    @property
    def _read_by(self) -> Mapping[str, ColumnType]:
        return {} if self.types is None else self.types.read_by

    @property
    def _numbers(self) -> tuple[str, ...]:
        """Columns of numbers without declared bounds."""
        known = {} if self.types is None else self.types.bounded
        kinds = {name: one.kind for name, one in self._read_by.items()}
        open_ones = (one for one in self.columns if one not in (*known, self.target))
        return tuple(one for one in open_ones if kinds.get(one, NUMBERS[0]) in NUMBERS)

    @property
    def width(self) -> int:
        """Number of columns that need a centre and a scale."""
        return len(self._numbers)

    @cached_property
    def values(self) -> Floats:
        """The numbers of these columns, (N, width)."""
        found = [self.columns[name].numbers for name in self._numbers]
        return np.column_stack(found) if found else np.empty((len(self), 0))

    @property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """The declared kinds of columns, in words."""
        return {} if self.types is None else self.types.kinds

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Mask of the rows that are used, (N,)."""
        if self.types is not None:
            return np.full(len(self), True)
        return np.asarray(np.isfinite(self.values).all(axis=1))

    def some(self) -> tuple[NDArray[Any], ...]:
        """Return the columns, by which the rows are known again."""
        return tuple(
            one.numbers
            if self.types is None or np.isfinite(one.numbers).any()
            else np.asarray([*one.names, None], dtype=object)[one.codes]
            for one in self.columns.values()
        )

    def select(self, rows: NDArray[Any]) -> Inputs:
        """Return some of the rows."""
        return replace(self, columns={name: one.select(rows) for name, one in self.columns.items()})

    def made_up(self) -> Inputs:
        """Return made-up rows."""
        if self.types is None:
            values = np.random.default_rng(0).normal(size=(self.width, made_up.ROWS))
            values[:, :3] = [0.0, 1e15, -1e300]
            return Inputs(dict(zip(self.columns, map(Cells, values), strict=True)), None)
        numbers, known = self._numbers, self.types.bounded
        kinds = {name: NUMBER if name in numbers else CATEGORY for name in self.columns}
        levels = {name: one.names or one.bounds or () for name, one in known.items()}
        return Inputs.of(next(made_up.frames(kinds, levels, {})), self.types)

    def beside(self, target: Floats) -> Inputs:
        """Return the columns with a target whose centre and scale are estimated too."""
        name = _unlike("target", self.columns)
        return replace(self, columns={**self.columns, name: Cells(target)}, target=name)

    def options(self, public: Standard | None) -> dict[str, Any]:
        """Return the options of a pipeline for the constants, some of which may be public."""
        numbers = (*self._numbers, *filter(None, [self.target]))
        return {
            "target": _unlike("y", self.columns),
            "numeric": [one for one in numbers if one not in self._read_by],
            "types": self.types,
            "constants": public.encoding(self._numbers) if public and self._numbers else None,
        }

    def known(self, public: Standard | None, pipeline: Pipeline) -> Standard | None:
        """Return all constants if they are public, None if some are to be estimated."""
        if not pipeline.purchase([*self.columns, pipeline.target]).empty:
            return None
        return self._given(public, pipeline)

    def fewest_features(self, pipeline: Pipeline) -> int:
        """Return the least number of features."""
        if self.types is None:
            return self.width
        return pipeline.purchase([*self.columns, pipeline.target]).fewest_features

    def estimated(
        self, public: Standard | None, pipeline: Pipeline, perform: Perform, left: Remaining
    ) -> Constants:
        """Return all constants, those that are not public estimated privately."""
        rows = Rows(self.columns, np.zeros(len(self)))
        header = [*self.columns, pipeline.target]
        found = encode(Held(rows), header, pipeline, perform, left=left, feasible=False)
        columns: Any = found.encoding.columns
        target = None
        if self.target:
            *columns, last = columns
            target = last.mean, last.sd
        if [*pipeline.purchase(header).bought] == [self.target]:
            # Only the target was estimated, and its constants are no features'.
            return replace(self._given(public, pipeline), found=found), target
        used = replace(found, encoding=replace(found.encoding, columns=tuple(columns)))
        made = Standard.of_numbers if self.types is None else Standard.of_table
        return made(used), target

    def features(self, standard: Standard) -> Floats:
        """Return the features, (N, d)."""
        if standard.table is None:
            return standard.applied(self.values)
        return standard.table.whole(self.columns).numpy()

    def _given(self, public: Standard | None, pipeline: Pipeline) -> Standard:
        """Return the public constants, of all columns."""
        if public is not None and self.types is None:
            return public
        assert pipeline.public is not None
        return Standard.of_table(Encoded(public_encoding(pipeline.public)))


def warn_of_made(values: Floats) -> None:
    """Warn the owner if features were made from their own rows, by a pipeline or visibly."""
    before = _fitted_before()
    if before:
        warnings.warn(
            f"for the owner only: {before[0]} was fitted to the same rows before; {REMEDY}",
            PrivacyUtilityWarning,
            stacklevel=4,
        )
    else:
        warn_of_signs(4, X=values)


def _fitted_before() -> list[str]:
    """Return the transformers that a pipeline fitted to the rows which this ``fit`` is given."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        pipeline = frame.f_locals.get("self")
        if isinstance(pipeline, Steps):
            before = [one for _, one in pipeline.steps[:-1] if hasattr(one, "fit")]
            if found := [type(one).__name__ for one in before if _fits(one)]:
                return found
        frame = frame.f_back
    return []


def _fits(transformer: Any) -> bool:
    """Return whether a transformer learns from rows; without a declaration it counts as if so."""
    if hasattr(transformer, "__sklearn_tags__"):
        return bool(transformer.__sklearn_tags__().requires_fit)
    tags: dict[str, Any] = getattr(transformer, "_get_tags", dict)()  # before 1.6
    return bool(tags.get("requires_fit", True))


def frame_of(X: Any) -> pd.DataFrame:
    """Return X as a frame; the index of one made of a list has the places of the list's rows.

    Raises:
        ValueError: if it is no table in memory.
    """
    if hasattr(X, "compute"):  # a frame of Dask
        X = X.compute()
    if len(getattr(X, "shape", (0, 0))) != 2:
        raise ValueError("it must have shape (records, columns)")
    made = in_memory(X)
    if not isinstance(made, pd.DataFrame) and hasattr(made, "__array__"):
        made = in_memory(np.asarray(made))
    if not isinstance(made, pd.DataFrame):
        raise ValueError(
            f"{type(X).__name__} is none of a data frame, an array and a list of rows; of a file "
            "give its columns, or give it to bdpvi.private"
        )
    with_text_names(made)  # refuses equal names
    return made


def declares(X: Any) -> bool:
    """Return whether the dtypes of X are its owner's: those of a frame are, those of cells not."""
    frame = isinstance(X, pd.DataFrame) or type(X).__name__ == "LazyFrame"
    return frame or hasattr(X, "__arrow_c_stream__")


def schema_of(X: Any, frame: pd.DataFrame, types: Schema | None) -> Schema | None:
    """Return the types of X's columns; None if all are numbers, and none was declared.

    Raises:
        ValueError: because of header, dtypes or types only.
    """
    if declares(X):
        return declared_by(frame, types)
    if types is not None:
        types.of_header([*with_text_names(frame).columns])
    return types


def column_of(values: Any) -> pd.Series[Any]:
    """Return one column, (N,), of which each cell stays what it is.

    Args:
        values: an array, a tensor, a list, a column of any frame; or a table with one column.

    Raises:
        ValueError: for another shape.
    """
    if hasattr(values, "compute"):
        values = values.compute()
    if hasattr(values, "__array__") and not hasattr(values, "__len__"):
        values = np.asarray(values)
    if len(getattr(values, "shape", (0,))) == 2 or rows_of(values):
        frame = frame_of(values)
        column_or_1d(np.empty(frame.shape), warn=True)
        found = frame.iloc[:, 0]
        return found.reindex(range(len(values))) if rows_of(values) else _renumbered(found)
    if len(getattr(values, "shape", (0,))) != 1 or not hasattr(values, "__len__"):
        column_or_1d(values)  # refuses
    return _renumbered(in_memory({"": values}).iloc[:, 0])


def _renumbered(column: pd.Series[Any]) -> pd.Series[Any]:
    return column.reset_index(drop=True)


def device_of(given: Any) -> str:
    """Return the device of a CUDA tensor; the CPU for anything else."""
    return str(given.device) if getattr(given, "is_cuda", False) else "cpu"


def _unlike(name: str, taken: Mapping[str, object]) -> str:
    """Return the name, with underscores if it is taken."""
    while name in taken:
        name += "_"
    return name

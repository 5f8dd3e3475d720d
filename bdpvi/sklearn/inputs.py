"""What an estimator's ``fit`` is given as X: an array of numbers, or a data frame's columns."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline as Steps

from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.datasets import made_up
from bdpvi.datasets.bought import CATEGORY, NUMBER, public_encoding
from bdpvi.datasets.cells import Cells, Columns, read_cells, read_columns
from bdpvi.datasets.dtypes import declared_by, plain
from bdpvi.datasets.encoding import with_text_names
from bdpvi.datasets.given import REMEDY, warn_of_signs
from bdpvi.datasets.looks import tell_of_unclear, unclear
from bdpvi.datasets.records import Held
from bdpvi.datasets.types import NUMBERS
from bdpvi.tables import arrays
from bdpvi.tables.arrays import Floats, Standard
from bdpvi.tables.encoded import Perform, encode
from bdpvi.tables.rows import Encoded, Rows

if TYPE_CHECKING:
    from torch import Tensor

    from bdpvi.datasets.encoding import Encoding
    from bdpvi.datasets.schema import Schema
    from bdpvi.tables.pipeline import Pipeline, Remaining


class Constants(NamedTuple):
    """Constants of an estimator's features, and centre and scale of its target if estimated."""

    standard: Standard
    target: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class Numbers:
    """Columns of numbers, each one feature. A row without a finite number is left out.

    Attributes:
        values: (N, d).
        target: (N,), if its centre and scale are estimated too.
        device: where the fit is computed.
    """

    values: Floats
    target: Floats | None = None
    device: str = "cpu"

    def __len__(self) -> int:
        return len(self.values)

    @property
    def width(self) -> int:
        """Number of columns that need a centre and a scale."""
        return int(self.values.shape[1])

    @property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """The declared kinds of columns, in words."""
        return {}

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Mask of the rows that are used, (N,)."""
        return np.asarray(np.isfinite(self.values).all(axis=1))

    def some(self) -> tuple[NDArray[Any], ...]:
        """Return the rows, by which they are known again."""
        return (self.values,)

    def select(self, rows: NDArray[Any]) -> Numbers:
        """Return some of the rows."""
        return Numbers(self.values[rows], device=self.device)

    def made_up(self) -> Numbers:
        """Return made-up rows."""
        values = np.random.default_rng(0).normal(size=(made_up.ROWS, self.width))
        values[:3] = [[0.0], [1e15], [-1e300]]
        return Numbers(values)

    def beside(self, target: Floats) -> Numbers:
        """Return the columns with a target whose centre and scale are estimated too."""
        return replace(self, target=target)

    def options(self, public: Standard | None) -> dict[str, Any]:
        """Return the options of a pipeline for the constants, some of which may be public."""
        bought = self.width * (public is None) + (self.target is not None)
        return {"target": "y", "numeric": tuple(map(str, range(bought)))}

    def known(self, public: Standard | None, pipeline: Pipeline) -> Standard | None:
        """Return all constants if they are public, None if some are to be estimated."""
        return public if self.target is None else None

    def fewest_features(self, pipeline: Pipeline) -> int:
        """Return the least number of features."""
        return self.width

    def estimated(
        self, public: Standard | None, pipeline: Pipeline, perform: Perform, left: Remaining
    ) -> Constants:
        """Return all constants, those that are not public estimated privately."""
        wanted = [] if public else [self.values]
        wanted += [] if self.target is None else [self.target[:, None]]
        found = arrays.bought(np.hstack(wanted), pipeline, perform, left)
        if self.target is None:
            return Constants(found)
        target = float(found.center[-1]), float(found.scale[-1])
        if public:
            return Constants(replace(public, found=found.found), target)
        center, scale = found.center[: self.width], found.scale[: self.width]
        return Constants(replace(found, center=center, scale=scale), target)

    def features(self, standard: Standard) -> Floats:
        """Return the features, (N, d)."""
        return standard.applied(self.values)


@dataclass(frozen=True, eq=False)
class Table:
    """A data frame's columns, encoded as :func:`bdpvi.private` encodes a table: every row is used.

    Attributes:
        columns: cells of the columns, in order.
        types: declared types of columns; others are numbers.
        target: its name, if its centre and scale are estimated too; "" otherwise.
        rows: N.
        device: where the fit is computed.
    """

    columns: Columns
    types: Schema | None
    rows: int
    target: str = ""
    device: ClassVar[str] = "cpu"

    def __len__(self) -> int:
        return self.rows

    @property
    def _numbers(self) -> tuple[str, ...]:
        """Columns of numbers without declared bounds."""
        levels = {} if self.types is None else self.types.bounded
        read_by = {} if self.types is None else self.types.read_by
        kinds = {name: one.kind for name, one in read_by.items()}
        open_ones = (one for one in self.columns if one not in (*levels, self.target))
        return tuple(one for one in open_ones if kinds.get(one, NUMBERS[0]) in NUMBERS)

    @property
    def width(self) -> int:
        """Number of columns that need a centre and a scale."""
        return len(self._numbers)

    @property
    def values(self) -> Floats:
        """The numbers of these columns, (N, width)."""
        found = [self.columns[name].numbers for name in self._numbers]
        return np.column_stack(found) if found else np.empty((self.rows, 0))

    @property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """The declared kinds of columns, in words."""
        return {} if self.types is None else self.types.kinds

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Mask of the rows that are used, (N,): all of them."""
        return np.full(self.rows, True)

    def some(self) -> tuple[NDArray[Any], ...]:
        """Return the columns, by which the rows are known again."""
        return tuple(
            one.numbers
            if np.isfinite(one.numbers).any()
            else np.asarray([*one.names, None], dtype=object)[one.codes]
            for one in self.columns.values()
        )

    def select(self, rows: NDArray[Any]) -> Table:
        """Return some of the rows."""
        columns = {name: one.select(rows) for name, one in self.columns.items()}
        return replace(self, columns=columns, rows=len(np.arange(self.rows)[rows]))

    def made_up(self) -> Table:
        """Return made-up rows."""
        numbers, known = self._numbers, {} if self.types is None else self.types.bounded
        kinds = {name: NUMBER if name in numbers else CATEGORY for name in self.columns}
        levels = {name: one.names or one.bounds or () for name, one in known.items()}
        frame = next(made_up.frames(kinds, levels, {}))
        read_by = {} if self.types is None else self.types.read_by
        return Table(read_columns(frame, read_by), self.types, len(frame))

    def beside(self, target: Floats) -> Table:
        """Return the columns with a target whose centre and scale are estimated too."""
        cells = Cells(target, ("",), np.zeros(self.rows, dtype=np.int64))
        name = _unlike("target", self.columns)
        return replace(self, columns={**self.columns, name: cells}, target=name)

    def options(self, public: Standard | None) -> dict[str, Any]:
        """Return the options of a pipeline for the constants, some of which may be public."""
        read_by = {} if self.types is None else self.types.read_by
        names = [one for one in (*self._numbers, self.target) if one and one not in read_by]
        given = public.encoding(self._numbers) if public and self._numbers else None
        target = _unlike("y", self.columns)
        return {"target": target, "numeric": names, "types": self.types, "constants": given}

    def known(self, public: Standard | None, pipeline: Pipeline) -> Standard | None:
        """Return all constants if they are public, None if some are to be estimated."""
        header = [*self.columns, pipeline.target]
        return self._public(pipeline) if pipeline.purchase(header).empty else None

    def fewest_features(self, pipeline: Pipeline) -> int:
        """Return the least number of features."""
        return pipeline.purchase([*self.columns, pipeline.target]).fewest_features

    def estimated(
        self, public: Standard | None, pipeline: Pipeline, perform: Perform, left: Remaining
    ) -> Constants:
        """Return all constants, those that are not public estimated privately."""
        rows = Rows(self.columns, np.zeros(self.rows))
        header = [*self.columns, pipeline.target]
        found = encode(Held(rows), header, pipeline, perform, left=left, feasible=False)
        if not self.target:
            return Constants(Standard.of_table(found))
        *columns, last = found.encoding.columns
        alone = [*pipeline.purchase(header).bought] == [self.target]
        used = replace(found, encoding=replace(found.encoding, columns=tuple(columns)))
        target: Any = last
        standard = Standard.of_table(used)
        if alone:  # only the target was estimated, and its constants are no features'
            standard = replace(self._public(pipeline), found=found)
        return Constants(standard, (target.mean, target.sd))

    def features(self, standard: Standard) -> Floats:
        """Return the features, (N, d)."""
        assert standard.table is not None
        return standard.table.whole(self.columns).numpy()

    def _public(self, pipeline: Pipeline) -> Standard:
        """Return the public constants, of all columns."""
        assert pipeline.public is not None
        return Standard.of_table(Encoded(public_encoding(pipeline.public)))


Inputs = Numbers | Table


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


def tabular(X: object, types: Schema | None) -> bool:
    """Return whether X is encoded as a table: its types or dtypes declare more than numbers.

    Raises:
        ValueError: if types are given for what is no data frame.
    """
    if not isinstance(X, pd.DataFrame):
        if types is not None:
            raise ValueError(
                f"types: they are for columns with names, and X is of type {type(X).__name__}, "
                "not a pandas DataFrame"
            )
        return False
    return types is not None or not all(map(plain, X.dtypes))


def table_of(X: Any, types: Schema | None) -> Table:
    """Return a data frame's columns, read by declared types and dtypes.

    Raises:
        ValueError: because of header, dtypes or types only.
    """
    found, frame = declared_by(X, types), with_text_names(X)
    return Table(read_columns(frame, {} if found is None else found.read_by), found, len(X))


def encoded(X: Any, names: Any, encoding: Encoding) -> Tensor:
    """Return the features of new rows, (N, d), of a data frame or with its columns' names.

    Raises:
        ValueError: naming a missing column.
    """
    frame = X if isinstance(X, pd.DataFrame) else pd.DataFrame(np.asarray(X, object), columns=names)
    table = read_columns(with_text_names(frame), encoding.types)
    features = encoding.whole(table)
    tell_of_unclear(unclear(encoding, table), encoding, 6)
    return features


def device_of(given: Any) -> str:
    """Return the device of a CUDA tensor; the CPU for anything else."""
    return str(given.device) if getattr(given, "is_cuda", False) else "cpu"


def on_host(given: Any) -> Any:
    """Return a tensor on the CPU; anything else as it is."""
    return given.cpu() if hasattr(given, "cpu") else given


def numbers(X: Any) -> Any:
    """Return a table with text cells read as numbers, NaN where that fails.

    Each cell is read separately, so that one stray word does not affect the others. A frame of
    sparse columns becomes dense, as scikit-learn refuses it like a sparse matrix.
    """
    if isinstance(X, pd.DataFrame):
        if all(isinstance(kind, pd.SparseDtype) for kind in X.dtypes):
            accessor: Any = X.sparse
            X = accessor.to_dense()
        of_text = [pd.api.types.is_numeric_dtype(kind) for kind in X.dtypes]
        columns = {
            place: X.iloc[:, place] if number else read_cells(X.iloc[:, place]).numbers
            for place, number in enumerate(of_text)
        }
        return pd.DataFrame(columns, index=X.index).set_axis(X.columns, axis=1)
    if isinstance(X, list | tuple):
        X = _of_list(X)
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "OUS" and X.shape[1]:
        return np.column_stack([read_cells(pd.Series(one, dtype=object)).numbers for one in X.T])
    return X


_ROW = (list, tuple, np.ndarray)


def _of_list(rows: Sequence[Any]) -> Any:
    """Return a list of rows as an array; all cells of rows with an unusual length are blank.

    NumPy would refuse the whole list for one such row, and spell all numbers for one word.
    """
    try:
        made = np.asarray(rows)
    except (ValueError, TypeError, OverflowError):
        made = np.empty(0, dtype=object)
    if made.dtype.kind in "biuf":
        return made
    widths = Counter(len(one) if isinstance(one, _ROW) else -1 for one in rows)
    width = max(widths, key=lambda one: (widths[one], one), default=-1)
    if width < 1:
        return rows
    found = np.full((len(rows), width), None, dtype=object)
    for place, row in enumerate(rows):
        if isinstance(row, _ROW) and len(row) == width:
            for at, one in enumerate(row):
                found[place, at] = int(one) if isinstance(one, bool | np.bool_) else one
    return found


def _unlike(name: str, taken: Mapping[str, object]) -> str:
    """Return the name, with underscores if it is taken."""
    while name in taken:
        name += "_"
    return name

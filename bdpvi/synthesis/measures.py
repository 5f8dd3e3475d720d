"""Compares synthetic with real rows: binned shares, and classifiers trained on either, "students".

All of it uses real rows, so its results are for the table's owner only.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bdpvi.datasets import grid
from bdpvi.datasets.cells import read_cells
from bdpvi.datasets.encoding import with_text_names
from bdpvi.datasets.grid import OTHER, Codes
from bdpvi.datasets.schema import Schema
from bdpvi.datasets.types import ColumnType
from bdpvi.synthesis.counts import Floats

Bins = NDArray[np.int32]
BINS = 16
"""Bins of a numeric column, by quantiles of the real rows."""
CLASSES = 10
"""Largest number of classes for students: the most common, and all others as one."""
LEAST = 1e-6
"""Least probability in a log score, so that an unseen class keeps it finite."""
BOOSTED, LOGISTIC = "boosted trees", "logistic regression"
_FEWEST = 5
"""Fewest rows of a class that a student learns."""


def read(frame: pd.DataFrame, schema: Schema, what: str = "rows") -> Floats:
    """Return a table as numbers, (N, d), in the order of the schema.

    Numeric cells keep their numbers, NaN if blank; cells of levels become codes.

    Raises:
        ValueError: if a column is missing.

    >>> sex, age = ColumnType(levels=("F", "M")), ColumnType(low=0, high=99)
    >>> people = Schema({"sex": sex, "age": age}, "law")
    >>> read(pd.DataFrame({"age": ["31", "old"], "sex": ["M", ""]}), people).tolist()
    [[1.0, 31.0], [2.0, nan]]
    """
    frame = with_text_names(frame)
    values = np.empty((len(frame), len(schema.columns)), order="F")
    for at, (name, type_) in enumerate(schema.columns.items()):
        if name not in frame:
            raise ValueError(f"{what}: the table lacks the column {name!r} of the schema")
        values[:, at] = _column(frame[name], type_)
    return values


def _column(column: pd.Series[Any], type: ColumnType) -> Floats:
    cells = read_cells(column, type.reading)
    if type.bounds is not None:
        return cells.numbers
    names = pd.Series([*cells.names, None], dtype=object)
    codes, _ = grid.encode(type, names)
    return codes[cells.codes].astype(np.float64)  # a blank is -1, the last


@dataclass(frozen=True, eq=False)
class Scale:
    """Bins of one column.

    Attributes:
        labels: labels of the bins; one last bin of numbers, or two of levels, for blank or unknown.
        cuts: for numbers, left ends of all bins but the first; None for levels.
    """

    labels: tuple[str, ...]
    cuts: Floats | None

    @classmethod
    def of(cls, values: Floats, type: ColumnType, bins: int) -> Scale:
        """Return the bins of a column; for numbers, by quantiles of these values, (N,)."""
        if type.names is not None:
            return cls((*type.names, "blank", OTHER), None)
        there = values[~np.isnan(values)]
        ends = np.linspace(0, 1, bins + 1)[1:-1]
        cuts = np.unique(np.quantile(there, ends)) if len(there) else np.zeros(0)
        words = [f"{math.ceil(cut)}" if type.integer else f"{cut:.6g}" for cut in cuts]
        inside = [f"{a} to {b}" for a, b in itertools.pairwise(words)]
        labels = ["any number"]
        if words:
            labels = [f"below {words[0]}", *inside, f"{words[-1]} and more"]
        return cls((*labels, "no number"), cuts)

    def bins(self, values: Floats) -> Codes:
        """Return the bin of each value, (N,)."""
        if self.cuts is None:
            return values.astype(np.int64)
        blank = np.isnan(values)
        return np.where(blank, len(self.cuts) + 1, np.searchsorted(self.cuts, values, "right"))


def scales(real: Floats, schema: Schema, bins: int = BINS) -> tuple[Scale, ...]:
    """Return the bins of all columns; for numbers, by quantiles of the real rows."""
    types = schema.columns.values()
    return tuple(Scale.of(real[:, at], one, bins) for at, one in enumerate(types))


def binned(values: Floats, by: Sequence[Scale]) -> Bins:
    """Return the bins of a table, (N, d)."""
    result = np.empty(values.shape, dtype=np.int32, order="F")
    for at, one in enumerate(by):
        result[:, at] = one.bins(values[:, at])
    return result


def shares(bins: Bins, columns: Sequence[int], sizes: Sequence[int]) -> Floats:
    """Return the share of rows in each cell of some columns; zeros for a table without rows.

    >>> shares(np.array([[0, 1], [0, 0], [1, 1], [0, 1]]), (0, 1), (2, 2)).tolist()
    [[0.25, 0.5], [0.0, 0.25]]
    """
    shape = tuple(sizes[at] for at in columns)
    places = np.zeros(len(bins), dtype=np.int64)
    for at, size in zip(columns, shape, strict=True):
        places = places * size + bins[:, at]
    counts = np.bincount(places, minlength=math.prod(shape)) / max(len(bins), 1)
    return np.asarray(counts.reshape(shape))


def total_variation(p: Floats, q: Floats) -> float:
    """Return the largest difference in probability over all sets of cells: ½ Σ |p − q|.

    >>> total_variation(np.array([0.5, 0.5]), np.array([0.25, 0.75]))
    0.25
    """
    return float(np.abs(p - q).sum() / 2)


def dependence(p: Floats) -> Floats:
    """Return the deviation of a pair's shares, (A, B), from independence: p − p₁ p₂ᵀ."""
    return p - np.outer(p.sum(1), p.sum(0))


def variation(a: Bins, b: Bins) -> float:
    """Return the mean total variation distance over all pairs of columns of two binned tables."""
    sizes = (np.maximum(a.max(axis=0, initial=0), b.max(axis=0, initial=0)) + 1).tolist()
    found = [
        total_variation(shares(a, two, sizes), shares(b, two, sizes))
        for two in itertools.combinations(range(a.shape[1]), 2)
    ]
    return float(np.mean(found)) if found else 0.0


@dataclass(frozen=True, eq=False)
class Task:
    """Training or test data for students.

    Attributes:
        x: numbers and codes of levels, (N, d).
        y: classes 0 … k − 1, (N,).
        levels: whether each column holds codes, (d,).
        classes: names of the k classes.
    """

    x: Floats
    y: Codes
    levels: NDArray[np.bool_]
    classes: tuple[str, ...]

    @classmethod
    def of(cls, values: Floats, schema: Schema, target: str, real: Floats) -> Task:
        """Return the task to predict the target's class from the other columns.

        Levels are classes; beyond :data:`CLASSES`, the most common levels in the real rows and all
        others as one class. So are numbers with few distinct values in the real rows. Otherwise the
        class is whether a number exceeds the real rows' median.
        """
        names, types = list(schema.columns), list(schema.columns.values())
        at = names.index(target)
        y, classes = _classes(values[:, at], real[:, at], types[at])
        levels = np.array([kind.names is not None for kind in types])
        return cls(np.delete(values, at, 1), y, np.delete(levels, at), classes)


def _classes(values: Floats, real: Floats, type: ColumnType) -> tuple[Codes, tuple[str, ...]]:
    number = type.names is None
    occur, counts = np.unique(real[~np.isnan(real)], return_counts=True)
    if number and len(occur) > CLASSES:
        middle = float(np.median(real[~np.isnan(real)]))
        return (values > middle).astype(np.int64), (f"{middle:g} or less", f"above {middle:g}")
    names = Scale.of(real, type, 1).labels
    kept = occur if len(occur) <= CLASSES else np.sort(occur[np.argsort(-counts)[: CLASSES - 1]])
    words = [f"{one:g}" if number else names[int(one)] for one in kept]
    known = np.isin(values, kept)
    y = np.where(known, np.searchsorted(kept, np.where(known, values, 0)), len(kept))
    return y.astype(np.int64), (*words, "others")


def students(train: Task, test: Task) -> dict[str, Floats]:
    """Return each student's class probabilities, (M, k), trained on one table, for another.

    Classes with fewer than five rows are not learned.

    Raises:
        ValueError: if fewer than two classes, or no columns, remain.
    """
    counts = np.bincount(train.y, minlength=len(train.classes))
    rows = (counts >= _FEWEST)[train.y]
    if (counts >= _FEWEST).sum() < 2:
        raise ValueError(f"fewer than two classes have {_FEWEST} rows")
    if not train.x.shape[1]:
        raise ValueError("the target is the only column")
    empty = np.isnan(train.x[rows]).all(0)
    x, tested = (np.where(empty, 0.0, one) for one in (train.x[rows], test.x))
    result = {}
    with one_thread():
        for name, student in _students(train.levels).items():
            student.fit(x, train.y[rows])
            given = np.zeros((len(tested), len(train.classes)))
            if len(tested):
                given[:, student.classes_] = student.predict_proba(tested)
            result[name] = given
    return result


@contextmanager
def one_thread() -> Iterator[None]:
    """Give students one thread, and silence convergence warnings: they are scored as they are.

    Several threads wait for one another at every split of a tree, which is a hundred times slower
    as soon as the machine has other work.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def boosted() -> Any:
    """Return gradient-boosted trees with scikit-learn's default settings."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=0)


def _students(levels: NDArray[np.bool_]) -> dict[str, Any]:
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    parts = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), np.flatnonzero(levels)),
        (make_pipeline(SimpleImputer(), StandardScaler()), np.flatnonzero(~levels)),
    )
    logistic = make_pipeline(parts, LogisticRegression(max_iter=1000))
    return {BOOSTED: boosted(), LOGISTIC: logistic}


def area(y: Codes, given: Floats) -> float | None:
    """Return the area under the ROC curve, averaged over classes against all others.

    For two classes it is the usual area. Classes with no row or all rows are left out; None if none
    remains.

    Args:
        y: classes, (M,).
        given: a student's class probabilities, (M, k).
    """
    from sklearn.metrics import roc_auc_score

    there = [one for one in np.unique(y) if 0 < (y == one).sum() < len(y)]
    areas = [roc_auc_score(y == one, given[:, one]) for one in there]
    return float(np.mean(areas)) if areas else None


def log_score(y: Codes, given: Floats) -> float:
    """Return the mean log-likelihood of rows, in nats; probabilities are at least 1e-6.

    >>> round(log_score(np.array([0, 1]), np.array([[0.5, 0.5], [1.0, 0.0]])), 3)
    -7.254
    """
    return float(np.log(np.maximum(given[np.arange(len(y)), y], LEAST)).mean())


def copies(rows: Floats, real: Floats) -> float:
    """Return the share of rows that equal a real row in all columns; 0 without rows.

    >>> copies(np.array([[1.0, np.nan], [1.0, 2.0]]), np.array([[1.0, np.nan]]))
    0.5
    """
    if not len(rows):
        return 0.0
    return float(np.isin(_digests(rows), _digests(real)).mean())


def _digests(values: Floats) -> NDArray[np.uint64]:
    """Return a 64-bit hash of every row; among 10⁶ rows some collide with probability 3e-8."""
    same = np.where(np.isnan(values), np.inf, values + 0.0)  # −0 is 0, and any NaN the same
    return np.asarray(pd.util.hash_pandas_object(pd.DataFrame(same), index=False).to_numpy())

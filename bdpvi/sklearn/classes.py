"""Private multinomial regression, used by the classifier for more than two classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets

from bdpvi.sklearn.base import Floats

if TYPE_CHECKING:  # torch is not loaded before a fit
    import pandas as pd

    from bdpvi import Release
    from bdpvi.tables.rows import Encoded
    from bdpvi.tables.setup import Setup

STEPS = 1000
"""Number of training steps."""
_OF_TWO = ("guarantee", "base_rate", "largest_weight", "group")
"""Arguments for two classes only."""


def settings(
    estimator: Any,
    classes: int,
    found: Encoded | None = None,
    weights: tuple[float, ...] | None = None,
) -> Setup:
    """Return model and route for the estimator's arguments.

    Args:
        estimator: the estimator.
        classes: number of classes.
        found: the encoding of a data frame, whose levels the model is told.
        weights: public weight of each class.

    Raises:
        ValueError: naming an argument that is for two classes only.
    """
    from bdpvi import DPVI, BayesianMultinomialRegression
    from bdpvi.tables.setup import Setup

    given = {name: getattr(estimator, name) for name in _OF_TWO}
    wrong = {name: value for name, value in given.items() if value is not None}
    wrong |= {"intervals": True} if estimator.intervals else {}
    wrong |= {} if estimator.fit_intercept else {"fit_intercept": False}
    if wrong:
        name, value = next(iter(wrong.items()))
        raise ValueError(
            f"{name}={value!r} is for two classes, and there are {classes}; leave it out"
        )
    more: Any = {} if estimator.prior_scale is None else {"prior_scale": estimator.prior_scale}
    more |= {} if weights is None else {"class_weights": weights}
    more |= {} if found is None else {"levels": found.encoding.one_hot}
    return Setup(
        model=BayesianMultinomialRegression(classes=classes, limit=estimator.limit, **more),
        route=DPVI(rows=estimator.expected_rows, draws=estimator.draws, steps=STEPS),
    )


def labels(given: ArrayLike | None, y: pd.Series[Any]) -> NDArray[Any]:
    """Return the classes, sorted: those given, or those of y.

    Raises:
        ValueError: if there are fewer than two; without given classes, also unless y has labels.
    """
    if given is not None:
        classes = np.unique(np.asarray(given))
    else:
        plain = isinstance(y.dtype, np.dtype) and y.dtype.kind != "O"
        found = np.asarray(y.to_numpy() if plain else y.tolist())
        if found.dtype.kind == "f":
            assert_all_finite(found, input_name="y")
        check_classification_targets(found)
        classes = np.unique(found)
    if len(classes) < 2:
        if given is None:
            raise ValueError(
                f"y has one class, {classes.tolist()}; give classes=(one, other) if a table "
                "may have one of them alone"
            )
        raise ValueError(f"classes must have two classes or more, got {given!r}")
    return classes


def coefficients(release: Release, center: Floats, scale: Floats) -> tuple[Floats, Floats]:
    """Return slopes on the scale of X, (k, K, d), and intercepts, (k, K), for each draw."""
    weights = release.latents["w"].numpy()
    slopes = np.swapaxes(weights[:, :-1], 1, 2) / scale
    return slopes, weights[:, -1] - slopes @ center


def places(y: pd.Series[Any], classes: NDArray[Any]) -> Floats:
    """Return each label's index among the classes, (N,), NaN for other labels.

    Numbers are read as numbers, and names as the levels of a declared category.

    >>> import pandas as pd
    >>> places(pd.Series(["0", "x", 1, True]), np.array([0, 1])).tolist()
    [0.0, nan, 1.0, 1.0]

    Raises:
        ValueError: if two classes are read as one label.
    """
    from bdpvi.datasets.cells import read_cell, read_cells
    from bdpvi.datasets.types import ColumnType
    from bdpvi.score.spelling import spell
    from bdpvi.sklearn.inputs import AS_NUMBER

    kind = AS_NUMBER
    try:
        if classes.dtype.kind not in "biuf":
            texts = tuple(spell(one) or "" for one in classes.tolist())
            kind = ColumnType(kind="category", levels=texts)
    except ValueError as error:
        raise ValueError(f"classes={classes.tolist()!r:.200}: {error}") from None
    at = {read_cell(one, kind)[1]: float(place) for place, one in enumerate(classes.tolist())}
    cells = read_cells(y, kind)
    return np.array([*(at.get(name, np.nan) for name in cells.names), np.nan])[cells.codes]

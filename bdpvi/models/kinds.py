"""The library's regressions, by the names that files use."""

from __future__ import annotations

from typing import Any, get_args

import torch

from bdpvi.models.linear import BayesianLinearRegression
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.models.mixed import MixedRegression
from bdpvi.models.multinomial import BayesianMultinomialRegression
from bdpvi.models.negative_binomial import BayesianNegativeBinomialRegression
from bdpvi.models.ordinal import BayesianOrdinalRegression
from bdpvi.models.poisson import BayesianPoissonRegression
from bdpvi.models.survival import BayesianSurvivalRegression

OfNumbers = (
    BayesianLinearRegression
    | BayesianPoissonRegression
    | BayesianNegativeBinomialRegression
    | BayesianSurvivalRegression
)
"""Regressions with a numeric target, times among them."""
OfClasses = BayesianMultinomialRegression | BayesianOrdinalRegression
"""Regressions with a target of several labels."""
Known = BayesianLogisticRegression | OfNumbers | OfClasses | MixedRegression
NAMED: dict[str, Any] = {
    family.kind.replace(" ", "-"): family for family in get_args(OfNumbers | OfClasses)
}
"""Regressions by the names that commands use; each makes one of the value of its ``option``."""

MIXED = ("logistic", "linear", "poisson")
"""Regressions whose intercept may differ from group to group, by the same names."""


def is_regression(model: object) -> bool:
    """Whether a model is one of the regressions itself: a subclass may observe anything."""
    return type(model) in get_args(Known)


def shapes(model: Known, features: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a regression's latent variables, by name, for records of features.

    Raises:
        ValueError: if the model names a column that there is not.

    >>> shapes(BayesianOrdinalRegression(classes=4), 2)
    {'w': (3,), 'log_gaps': (2,)}
    """
    x = torch.zeros(1, features)
    model.design(x)  # refuses columns that are not there
    return {name: tuple(prior.mean.shape) for name, prior in model.priors(x).items()}

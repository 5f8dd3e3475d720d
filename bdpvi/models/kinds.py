"""The library's models, by the names that files and commands use."""

from __future__ import annotations

import torch

from bdpvi.models.classes import BayesianMultinomialRegression, BayesianOrdinalRegression
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.models.regression import (
    BayesianLinearRegression,
    BayesianNegativeBinomialRegression,
    BayesianPoissonRegression,
)

OfNumbers = (
    BayesianLinearRegression | BayesianPoissonRegression | BayesianNegativeBinomialRegression
)
"""Regressions with a numeric target."""
OfClasses = BayesianMultinomialRegression | BayesianOrdinalRegression
"""Regressions with a target of several labels."""
Known = BayesianLogisticRegression | OfNumbers | OfClasses


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

"""The library's models, by the names that files and commands use."""

from __future__ import annotations

import torch

from bdpvi.models.classes import BayesianMultinomialRegression, BayesianOrdinalRegression
from bdpvi.models.design import Design
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.models.regression import (
    BayesianLinearRegression,
    BayesianNegativeBinomialRegression,
    BayesianPoissonRegression,
)
from bdpvi.models.weighing import Weighing

OfNumbers = (
    BayesianLinearRegression | BayesianPoissonRegression | BayesianNegativeBinomialRegression
)
"""Regressions with a numeric target."""
OfClasses = BayesianMultinomialRegression | BayesianOrdinalRegression
"""Regressions with a target of several labels."""
Known = BayesianLogisticRegression | OfNumbers | OfClasses
Smooth = BayesianLogisticRegression | OfNumbers
"""Regressions whose ELBO may need integrals over one predictor alone: see :func:`smooth`."""


def weighing(model: object) -> Weighing | None:
    """Return a regression whose loss has public bounds, None for any other model.

    >>> weighing(BayesianLogisticRegression(clip=0.5)) is None
    True
    >>> weighing(BayesianPoissonRegression.bounded(largest=9)).loss.bound
    LossBound(score=9.0, curvature=4.5, concordance=1.0)
    """
    if isinstance(model, BayesianLogisticRegression | Design) and model.loss is not None:
        return model
    return None


def smooth(model: object) -> Smooth | None:
    """Return a regression with a convex loss of one predictor and no other unknown, None otherwise.

    >>> smooth(BayesianLogisticRegression(clip=0.5)) is None
    False
    >>> smooth(BayesianPoissonRegression(largest=9)) is None
    True
    """
    if type(model) is BayesianLogisticRegression:
        return model
    if isinstance(model, OfNumbers) and model.loss is not None:
        return model
    return None


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

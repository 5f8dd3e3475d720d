"""The library's models, by the names that files and commands use."""

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

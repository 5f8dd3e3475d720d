"""The library's models, which files and commands can say."""

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
"""Regressions of a target that is a number."""
OfClasses = BayesianMultinomialRegression | BayesianOrdinalRegression
"""Regressions of a target that is one of several labels."""
Known = BayesianLogisticRegression | OfNumbers | OfClasses

"""Private variational inference on Pyro, accounted by Bayesian differential privacy."""

from bdpvi.accountants import BayesianAccountant
from bdpvi.fit import Fit, fit
from bdpvi.models import BayesianLogisticRegression
from bdpvi.neighbours import Add, Coupled, Remove
from bdpvi.optimum import Optimum
from bdpvi.release import Release, calibrate, rehearse, release, spent
from bdpvi.types import (
    Budget,
    BudgetExceededError,
    Dataset,
    Diagnostics,
    Spent,
    Split,
    WorstCase,
)

__all__ = [
    "Add",
    "BayesianAccountant",
    "BayesianLogisticRegression",
    "Budget",
    "BudgetExceededError",
    "Coupled",
    "Dataset",
    "Diagnostics",
    "Fit",
    "Optimum",
    "Release",
    "Remove",
    "Spent",
    "Split",
    "WorstCase",
    "calibrate",
    "fit",
    "rehearse",
    "release",
    "spent",
]

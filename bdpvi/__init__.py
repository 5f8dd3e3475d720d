"""Private variational inference on Pyro, accounted by Bayesian differential privacy."""

import logging
from typing import TYPE_CHECKING

from bdpvi._runtime.lazy import lazy

if TYPE_CHECKING:
    from bdpvi import accounting as accounting
    from bdpvi import datasets as datasets
    from bdpvi import dp as dp
    from bdpvi import guides as guides
    from bdpvi import models as models
    from bdpvi import neighbours as neighbours
    from bdpvi import recipes as recipes
    from bdpvi import releasing as releasing
    from bdpvi import synthesis as synthesis
    from bdpvi._fit import Fit, Training, fit
    from bdpvi.accounting.component import BayesianAccountant
    from bdpvi.accounting.cost import Bound, Cost
    from bdpvi.accounting.ledger import Ledger
    from bdpvi.dp.networks.deep import make_private
    from bdpvi.dp.programs.private_svi import PrivateSVI
    from bdpvi.guides.checks import check
    from bdpvi.models.classes import BayesianMultinomialRegression, BayesianOrdinalRegression
    from bdpvi.models.logistic import BayesianLogisticRegression
    from bdpvi.models.regression import (
        BayesianLinearRegression,
        BayesianNegativeBinomialRegression,
        BayesianPoissonRegression,
    )
    from bdpvi.neighbours.coupled import Coupled
    from bdpvi.neighbours.optimum.route import Optimum
    from bdpvi.neighbours.optimum.tables import Table
    from bdpvi.recipes.dpvi import DPVI
    from bdpvi.recipes.private import private
    from bdpvi.recipes.recommended import recommended
    from bdpvi.recipes.routes import fit_private
    from bdpvi.releasing.guarantees import BayesianDP, TypicalRecord, WorstCaseDP
    from bdpvi.releasing.released import Release
    from bdpvi.releasing.releases import cost, release
    from bdpvi.releasing.storage import load_fit, load_release, save_fit, save_release
    from bdpvi.synthesis.released import synthesize
    from bdpvi.types import (
        Budget,
        BudgetExceededError,
        Dataset,
        NotCertifiedWarning,
        PrivacyUtilityWarning,
        TooFewRecordsError,
    )
else:
    __getattr__ = lazy(
        __name__,
        {
            "_fit": ("Fit", "Training", "fit"),
            "accounting.component": ("BayesianAccountant",),
            "accounting.cost": ("Bound", "Cost"),
            # Dataset from there too: it carries a ledger.
            "accounting.ledger": ("Dataset", "Ledger"),
            "dp.networks.deep": ("make_private",),
            "dp.programs.private_svi": ("PrivateSVI",),
            "guides.checks": ("check",),
            "models.classes": ("BayesianMultinomialRegression", "BayesianOrdinalRegression"),
            "models.logistic": ("BayesianLogisticRegression",),
            "models.regression": (
                "BayesianLinearRegression",
                "BayesianNegativeBinomialRegression",
                "BayesianPoissonRegression",
            ),
            "neighbours.coupled": ("Coupled",),
            "neighbours.optimum.route": ("Optimum",),
            "neighbours.optimum.tables": ("Table",),
            "recipes.dpvi": ("DPVI",),
            "recipes.private": ("private",),
            "recipes.recommended": ("recommended",),
            "recipes.routes": ("fit_private",),
            "releasing.guarantees": ("BayesianDP", "TypicalRecord", "WorstCaseDP"),
            "releasing.released": ("Release",),
            "releasing.releases": ("cost", "release"),
            "releasing.storage": ("load_fit", "load_release", "save_fit", "save_release"),
            "synthesis.released": ("synthesize",),
            "types": (
                "Budget",
                "BudgetExceededError",
                "NotCertifiedWarning",
                "PrivacyUtilityWarning",
                "TooFewRecordsError",
            ),
        },
        packages=(
            "accounting",
            "datasets",
            "dp",
            "guides",
            "models",
            "neighbours",
            "recipes",
            "releasing",
            "sklearn",
            "synthesis",
        ),
    )

logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "DPVI",
    "BayesianAccountant",
    "BayesianDP",
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianMultinomialRegression",
    "BayesianNegativeBinomialRegression",
    "BayesianOrdinalRegression",
    "BayesianPoissonRegression",
    "Bound",
    "Budget",
    "BudgetExceededError",
    "Cost",
    "Coupled",
    "Dataset",
    "Fit",
    "Ledger",
    "NotCertifiedWarning",
    "Optimum",
    "PrivacyUtilityWarning",
    "PrivateSVI",
    "Release",
    "Table",
    "TooFewRecordsError",
    "Training",
    "TypicalRecord",
    "WorstCaseDP",
    "check",
    "cost",
    "fit",
    "fit_private",
    "load_fit",
    "load_release",
    "make_private",
    "private",
    "recommended",
    "release",
    "save_fit",
    "save_release",
    "synthesize",
]


def __dir__() -> list[str]:
    return __all__

"""Private variational inference on Pyro, accounted by Bayesian differential privacy."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bdpvi._fit import Fit, Training, fit
    from bdpvi.accounting.accountant import Accounting, cost_of
    from bdpvi.accounting.book import Charge
    from bdpvi.accounting.component import BayesianAccountant
    from bdpvi.accounting.conceivable import Influence
    from bdpvi.accounting.cost import Assumption, Bound, Cost, Exposure
    from bdpvi.accounting.ledger import Ledger
    from bdpvi.dp.federated_vi import FederatedFit, fit_federated
    from bdpvi.dp.networks.deep import DPSGDSettings, make_private
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
    from bdpvi.neighbours.route import Add, Remove
    from bdpvi.recipes.dpvi import DPVI
    from bdpvi.recipes.noisy_scores import NoisyScores
    from bdpvi.recipes.objective import ObjectivePerturbation
    from bdpvi.recipes.private import private
    from bdpvi.recipes.recipe import Recipe
    from bdpvi.recipes.recommended import recommended
    from bdpvi.recipes.routes import fit_private
    from bdpvi.releasing.guarantees import BayesianDP, TypicalRecord, WorstCaseDP
    from bdpvi.releasing.prepared import Prepared
    from bdpvi.releasing.released import Release
    from bdpvi.releasing.releases import calibrate, cost, preview, release
    from bdpvi.releasing.storage import load_fit, load_release, save_fit, save_release
    from bdpvi.synthesis.released import synthesize
    from bdpvi.types import (
        Budget,
        BudgetExceededError,
        Dataset,
        NotCertifiedWarning,
        PrivacyUtilityWarning,
        Split,
        TooFewRecordsError,
    )

_WHERE = {
    "_fit": ("Fit", "Training", "fit"),
    "accounting.accountant": ("Accounting", "cost_of"),
    "accounting.component": ("BayesianAccountant",),
    "accounting.conceivable": ("Influence",),
    "accounting.cost": ("Assumption", "Bound", "Cost", "Exposure"),
    # Dataset from there too: it carries a ledger.
    "accounting.ledger": ("Charge", "Dataset", "Ledger"),
    "dp.networks.deep": ("DPSGDSettings", "make_private"),
    "dp.federated_vi": ("FederatedFit", "fit_federated"),
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
    "neighbours.route": ("Add", "Remove"),
    "recipes.dpvi": ("DPVI",),
    "recipes.noisy_scores": ("NoisyScores",),
    "recipes.private": ("private",),
    "recipes.recipe": ("Recipe",),
    "recipes.recommended": ("recommended",),
    "recipes.objective": ("ObjectivePerturbation",),
    "recipes.routes": ("fit_private",),
    "releasing.guarantees": ("BayesianDP", "TypicalRecord", "WorstCaseDP"),
    "releasing.prepared": ("Prepared",),
    "releasing.released": ("Release",),
    "releasing.releases": ("calibrate", "cost", "preview", "release"),
    "releasing.storage": ("load_fit", "load_release", "save_fit", "save_release"),
    "synthesis.released": ("synthesize",),
}
logging.getLogger(__name__).addHandler(logging.NullHandler())

_HOME = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "DPVI",
    "Accounting",
    "Add",
    "Assumption",
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
    "Charge",
    "Cost",
    "Coupled",
    "DPSGDSettings",
    "Dataset",
    "Exposure",
    "FederatedFit",
    "Fit",
    "Influence",
    "Ledger",
    "NoisyScores",
    "NotCertifiedWarning",
    "ObjectivePerturbation",
    "Optimum",
    "Prepared",
    "PrivacyUtilityWarning",
    "PrivateSVI",
    "Recipe",
    "Release",
    "Remove",
    "Split",
    "Table",
    "TooFewRecordsError",
    "Training",
    "TypicalRecord",
    "WorstCaseDP",
    "calibrate",
    "check",
    "cost",
    "cost_of",
    "fit",
    "fit_federated",
    "fit_private",
    "load_fit",
    "load_release",
    "make_private",
    "preview",
    "private",
    "recommended",
    "release",
    "save_fit",
    "save_release",
    "synthesize",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: nothing heavy is loaded before it is needed."""
    if name not in __all__:
        raise AttributeError(f"module 'bdpvi' has no attribute {name!r}")
    return getattr(import_module(f"bdpvi.{_HOME.get(name, 'types')}"), name)


def __dir__() -> list[str]:
    return __all__

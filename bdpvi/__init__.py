"""Private variational inference on Pyro, accounted by Bayesian differential privacy."""

import logging
import os
from typing import TYPE_CHECKING

from bdpvi._ground.lazy import lazy

_ABOVE = os.path.dirname(__path__[0])
if os.path.exists(os.path.join(_ABOVE, "pyproject.toml")) and not os.path.exists(
    os.path.join(__path__[0], "datasets")
):
    __path__.append(_ABOVE)  # a checkout: guides and datasets lie beside this folder

if TYPE_CHECKING:
    from bdpvi import bayesian as bayesian
    from bdpvi import datasets as datasets
    from bdpvi import federated as federated
    from bdpvi import guides as guides
    from bdpvi import models as models
    from bdpvi import networks as networks
    from bdpvi import privacy as privacy
    from bdpvi import programs as programs
    from bdpvi import regression as regression
    from bdpvi import releases as releases
    from bdpvi import score as score
    from bdpvi import synthesis as synthesis
    from bdpvi import tables as tables
    from bdpvi._ground.types import (
        Budget,
        BudgetExceededError,
        NotCertifiedWarning,
        PrivacyUtilityWarning,
        TooFewRecordsError,
    )
    from bdpvi.bayesian.accounting.component import BayesianAccountant
    from bdpvi.bayesian.fit import Fit, Training, fit
    from bdpvi.bayesian.gated.route import PosteriorDraws
    from bdpvi.bayesian.guarantees import BayesianDP, TypicalRecord, WorstCaseDP
    from bdpvi.bayesian.neighbours.coupled import Coupled
    from bdpvi.bayesian.optimum.route import Optimum
    from bdpvi.bayesian.releases import cost, release
    from bdpvi.bayesian.storage import load_fit, save_fit
    from bdpvi.datasets.dataset import Dataset
    from bdpvi.datasets.table import Table
    from bdpvi.guides.checks import check
    from bdpvi.models.linear import BayesianLinearRegression
    from bdpvi.models.logistic import BayesianLogisticRegression
    from bdpvi.models.multinomial import BayesianMultinomialRegression
    from bdpvi.models.negative_binomial import BayesianNegativeBinomialRegression
    from bdpvi.models.ordinal import BayesianOrdinalRegression
    from bdpvi.models.poisson import BayesianPoissonRegression
    from bdpvi.models.survival import BayesianSurvivalRegression
    from bdpvi.networks.deep import make_private
    from bdpvi.privacy.cost import Bound, Cost
    from bdpvi.privacy.ledger import Ledger
    from bdpvi.programs.dpvi import DPVI
    from bdpvi.programs.private_svi import PrivateSVI
    from bdpvi.releases.released import Release
    from bdpvi.releases.shared_file import load_release, save_release
    from bdpvi.synthesis.released import describe, synthesize
    from bdpvi.tables.compared import compare_models
    from bdpvi.tables.prepared import fit_private
    from bdpvi.tables.private import private
else:
    __getattr__ = lazy(
        __name__,
        {
            "_ground.version": ("__version__",),
            "_ground.types": (
                "Budget",
                "BudgetExceededError",
                "NotCertifiedWarning",
                "PrivacyUtilityWarning",
                "TooFewRecordsError",
            ),
            "bayesian.accounting.component": ("BayesianAccountant",),
            "bayesian.fit": ("Fit", "Training", "fit"),
            "bayesian.gated.route": ("PosteriorDraws",),
            "bayesian.guarantees": ("BayesianDP", "TypicalRecord", "WorstCaseDP"),
            "bayesian.neighbours.coupled": ("Coupled",),
            "bayesian.optimum.route": ("Optimum",),
            "bayesian.releases": ("cost", "release"),
            "bayesian.storage": ("load_fit", "save_fit"),
            "datasets.dataset": ("Dataset",),
            "datasets.table": ("Table",),
            "guides.checks": ("check",),
            "models.linear": ("BayesianLinearRegression",),
            "models.logistic": ("BayesianLogisticRegression",),
            "models.multinomial": ("BayesianMultinomialRegression",),
            "models.negative_binomial": ("BayesianNegativeBinomialRegression",),
            "models.ordinal": ("BayesianOrdinalRegression",),
            "models.poisson": ("BayesianPoissonRegression",),
            "models.survival": ("BayesianSurvivalRegression",),
            "networks.deep": ("make_private",),
            "privacy.cost": ("Bound", "Cost"),
            "privacy.ledger": ("Ledger",),
            "programs.dpvi": ("DPVI",),
            "programs.private_svi": ("PrivateSVI",),
            "releases.shared_file": ("load_release", "save_release"),
            "releases.released": ("Release",),
            "synthesis.released": ("describe", "synthesize"),
            "tables.compared": ("compare_models",),
            "tables.private": ("private",),
            "tables.prepared": ("fit_private",),
        },
        packages=(
            "bayesian",
            "datasets",
            "federated",
            "guides",
            "models",
            "networks",
            "privacy",
            "programs",
            "regression",
            "releases",
            "score",
            "sklearn",
            "synthesis",
            "tables",
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
    "BayesianSurvivalRegression",
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
    "PosteriorDraws",
    "PrivacyUtilityWarning",
    "PrivateSVI",
    "Release",
    "Table",
    "TooFewRecordsError",
    "Training",
    "TypicalRecord",
    "WorstCaseDP",
    "check",
    "compare_models",
    "cost",
    "describe",
    "fit",
    "fit_private",
    "load_fit",
    "load_release",
    "make_private",
    "private",
    "release",
    "save_fit",
    "save_release",
    "synthesize",
]


def __dir__() -> list[str]:
    return __all__

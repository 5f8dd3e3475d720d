"""Private regressions as scikit-learn estimators."""

from bdpvi.sklearn.base import PrivacyLeakWarning
from bdpvi.sklearn.logistic import PrivateLogisticRegression
from bdpvi.sklearn.regressors import PrivateLinearRegression, PrivatePoissonRegressor

__all__ = [
    "PrivacyLeakWarning",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivatePoissonRegressor",
]

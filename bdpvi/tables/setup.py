"""A model, and the route by which it is released; both are fixed before a record is seen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bdpvi._ground import validate
from bdpvi.models.kinds import Known
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.programs.dpvi import DPVI
from bdpvi.regression.noisy_scores import NoisyScores
from bdpvi.regression.objective import ObjectivePerturbation
from bdpvi.tables.inference import Intervals

if TYPE_CHECKING:  # settings need not load the fitting code
    from bdpvi.datasets.dataset import Data
    from bdpvi.privacy.ledger import Ledger
    from bdpvi.tables.prepared import Prepared

WEAK_PRIOR_SCALE = 5.0
"""The prior's standard deviation for intervals."""
LIMIT = 2.0
"""Standardised features of draws from a posterior are clamped to ± this."""
_SHORT = 2
"""Steps of a training that is only tried."""


@dataclass(frozen=True)
class Setup:
    """A model and its route. It counts as public, so do not choose it by the rows.

    Attributes:
        model: the model.
        route: the mechanism whose noise is part of the fit; None for a draw from the posterior of
            :class:`bdpvi.guides.Laplace`, under a Bayesian guarantee.
    """

    model: Known
    route: ObjectivePerturbation | NoisyScores | DPVI | Intervals | None = None

    @property
    def trains(self) -> bool:
        """Whether a release may be trained step by step, for which a device is worth its copy."""
        return isinstance(self.route, DPVI | Intervals)

    @property
    def short(self) -> Setup:
        """The same with two steps of training."""
        return self._training(steps=_SHORT)

    def prepared(self, data: Data, *, ledger: Ledger | None = None, **kept: Any) -> Prepared:
        """Return the rows with the route, which a release solves or trains.

        Args:
            data: the rows.
            ledger: as for :func:`bdpvi.fit`.
            kept: of a training, ``progress`` and ``checkpoint``.
        """
        from bdpvi.tables.prepared import Prepared

        made = self._training(**kept)
        assert made.route is not None
        return Prepared.of(self.model, data, made.route, ledger=ledger)

    def _training(self, **given: Any) -> Setup:
        route = self.route
        if isinstance(route, DPVI):
            return replace(self, route=replace(route, **given))
        if isinstance(route, Intervals):
            trained = replace(route.trained, **given)
            return replace(self, route=replace(route, trained=trained))
        return self


def logistic(
    base_rate: float | None = None, prior_scale: float | None = None
) -> BayesianLogisticRegression:
    """Return logistic regression without weights of records.

    Args:
        base_rate: a public guess of the fraction of class 1: the intercept is shrunk to its logit
            instead of 0.
        prior_scale: the prior's standard deviation, where it is used.
    """
    return BayesianLogisticRegression.unweighted(
        intercept=True,
        intercept_mean=_logit(base_rate),
        **({} if prior_scale is None else {"prior_scale": prior_scale}),
    )


def posterior(base_rate: float | None = None) -> BayesianLogisticRegression:
    """Return logistic regression whose draws have a certified Bayesian ε."""
    return BayesianLogisticRegression(intercept=True, limit=LIMIT, intercept_mean=_logit(base_rate))


def _logit(base_rate: float | None) -> float:
    if base_rate is None:
        return 0.0
    rate = validate.probability("base_rate", base_rate)
    return math.log(rate) - math.log1p(-rate)

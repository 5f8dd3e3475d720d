"""A model, its route, and what a ledger leaves for them: fixed before a record is seen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bdpvi._ground import validate
from bdpvi._ground.types import Budget, BudgetExceededError
from bdpvi.datasets import estimates
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy.book import Book
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.left import SPENT, together
from bdpvi.programs.dpvi import DPVI
from bdpvi.regression.noisy_scores import NoisyScores
from bdpvi.regression.objective import ObjectivePerturbation
from bdpvi.releases.row_counts import FEWEST, MOST
from bdpvi.tables.inference import Intervals
from bdpvi.tables.request import Request
from bdpvi.tables.rows import Encoded

WEAK_PRIOR_SCALE = 5.0
"""The prior's standard deviation for intervals."""
LIMIT = 2.0
"""Standardised features of draws from a posterior are clamped to ± this."""
_DRAWS = 1000


class Setup(NamedTuple):
    """A model and its route. It counts as public, so do not choose it by the rows.

    Attributes:
        model: the model.
        route: the mechanism whose noise is part of the fit; None for a draw from the posterior of
            :class:`bdpvi.guides.Laplace`, under a Bayesian guarantee.
    """

    model: Any
    route: Any = None

    @property
    def trains(self) -> bool:
        """Whether a release may be trained step by step, for which a device is worth its copy."""
        return hasattr(self.route, "training")

    def training(self, **given: Any) -> Setup:
        """Return the same with these settings of a training, if there may be one."""
        return self._replace(route=self.route.training(**given)) if self.trains else self


def setup(asked: Request, found: Encoded | None = None) -> Setup:
    """Return the model and its route.

    They may depend on the noisy number of records; the charge does not
    (:mod:`bdpvi.privacy.dominating`).

    Args:
        asked: the request.
        found: the private preprocessing.
    """
    public, model = asked.public, asked.model
    if asked.bayesian:
        return Setup(posterior(public.base_rate))
    route: Any = asked.draws
    if isinstance(route, int):
        route = ObjectivePerturbation(rows=public.rows, draws=route)
    else:
        route = replace(route, rows=public.rows or route.rows)
    if asked.uses_dpvi or asked.uses_noisy_scores:
        draws = _DRAWS if asked.number == 1 else asked.number
        route = DPVI(rows=public.rows, draws=draws)
        if asked.uses_noisy_scores:
            route = Intervals(scores=NoisyScores(rows=public.rows, draws=draws), trained=route)
    if model is None:
        made: Any = logistic(
            public.base_rate, WEAK_PRIOR_SCALE if asked.uses_noisy_scores else None
        )
    else:
        made = model
    if found is None:
        return Setup(made, route)
    if model is None and asked.uses_noisy_scores:
        made = replace(made, one_hot=found.encoding.one_hot)
    elif model is not None:
        made = replace(made, levels=found.encoding.one_hot)
        if public.exposure:
            made = replace(made, exposure=found.encoding.places[public.exposure][0])
    if public.rows is None and found.records is not None:
        route = route.of_rows(min(max(found.records, FEWEST), MOST))
    return Setup(made, route)


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
        intercept=True, intercept_mean=_logit(base_rate), prior_scale=prior_scale
    )


def posterior(base_rate: float | None = None) -> BayesianLogisticRegression:
    """Return logistic regression whose draws have a certified Bayesian ε."""
    return BayesianLogisticRegression(intercept=True, limit=LIMIT, intercept_mean=_logit(base_rate))


def _logit(base_rate: float | None) -> float:
    if base_rate is None:
        return 0.0
    rate = validate.probability("base_rate", base_rate)
    return math.log(rate) - math.log1p(-rate)


@dataclass(frozen=True)
class Remaining:
    """The allowance of a work under its ledger.

    Attributes:
        distance: μ of one row.
        rows: k, the most rows of one unit.
        budget: budget of the ledger, if it has one.
    """

    distance: float
    rows: int = 1
    budget: Budget | None = None

    @classmethod
    def whole(cls, distance: float, rows: int) -> Remaining:
        """Return the allowance before any charge, for units of at most this many rows.

        Args:
            distance: μ of one unit.
            rows: k.
        """
        return cls(distance / rows, rows)

    @classmethod
    def of(cls, asked: Request, ledger: Ledger, before: Book) -> Remaining:
        """Return what a ledger has left for a request.

        Args:
            asked: the request.
            ledger: ledger of the table.
            before: charges before this work.

        Raises:
            BudgetExceededError: if nothing remains, or ε is beyond the ledger's budget.
            ValueError: if earlier charges have no worst-case price.
        """
        spent = 0.0
        if before.entries:
            found = together(before, asked.delta, {})
            if found is None:
                raise ValueError(
                    f"epsilon={asked.epsilon:g}: an earlier release of this table has no "
                    f"worst-case guarantee, so the remaining budget is unknown; {ledger.history()}"
                )
            spent = found.distance or 0.0
            if not spent and found.epsilon:
                spent = math.sqrt(largest_variance(found.epsilon, asked.delta))
        rest = asked.distance**2 - spent**2
        if rest < SPENT * asked.distance**2:
            raise BudgetExceededError(
                f"epsilon={asked.epsilon:g} is already spent on this table; {ledger.history()}. ε "
                "is the total of all releases, so a further one needs a larger ε"
            )
        limit = before.budget
        if limit is not None:
            whole = gaussian_epsilon(asked.distance**2, (1 - estimates.NAMES) * limit.delta)
            if whole > limit.epsilon * (1 + 1e-9):
                raise BudgetExceededError(
                    f"epsilon={asked.epsilon:g} at δ = {asked.delta:g} is over the budget of "
                    f"ε = {limit.epsilon:g} at δ = {limit.delta:g}; {ledger.history()}"
                )
        return cls(math.sqrt(rest) / before.rows, before.rows, limit)

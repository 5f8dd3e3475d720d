"""A model, its route, and what a ledger leaves for them: fixed before a record is seen."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from bdpvi._ground import validate
from bdpvi._ground.types import BudgetExceededError
from bdpvi.datasets import estimates
from bdpvi.datasets.dataset import Data
from bdpvi.models.contract import Model
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.models.mixed import MixedRegression
from bdpvi.privacy.book import Book
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.left import SPENT, together
from bdpvi.programs.dpvi import DPVI
from bdpvi.regression.noisy_groups import NoisyGroups
from bdpvi.regression.noisy_scores import NoisyScores
from bdpvi.regression.objective import ObjectivePerturbation
from bdpvi.regression.score_release import ScorePlan
from bdpvi.releases.route import Allowance
from bdpvi.releases.row_counts import FEWEST, MOST
from bdpvi.tables.request import Request
from bdpvi.tables.rows import Encoded

if TYPE_CHECKING:
    from bdpvi.noise.keys import Key
    from bdpvi.releases.estimate import Output

WEAK_PRIOR_SCALE = 5.0
"""The prior's standard deviation for intervals."""
LIMIT = 2.0
"""Standardised features of draws from a posterior are clamped to ± this."""
_DRAWS = 1000
ENOUGH = 7.0
"""Signal of noisy scores (:meth:`ScorePlan.signal`) from which they measure at least as many
coefficients as DPVI does. From simulated tables: see ``benchmarks/inference.py``."""
WORTH = 300.0
"""μN/√k, for k weights, from which DPVI measures about half of the coefficients or more."""


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """Noisy scores for few features, DPVI for many.

    Noisy scores release a matrix of k² numbers for k weights, whose noise outweighs the records if
    features are many for N and ε; DPVI releases gradients alone. The number of records (declared or
    a noisy count), k and ε decide, so the choice is public. Only logistic regression is trained by
    DPVI: intervals from a guide of numbers or counts have too low a coverage.

    Attributes:
        scores: noisy scores.
        trained: DPVI; once suited to a model, its training.
    """

    kind: ClassVar[str] = "intervals"

    scores: NoisyScores
    trained: Any

    @property
    def draws(self) -> int:
        """Number of draws in a release."""
        return self.scores.draws

    @property
    def count(self) -> float:
        """Share of μ² for a noisy number of records."""
        return self.scores.count

    def of_rows(self, rows: float) -> Intervals:
        """Return the route for a table of about ``rows`` records."""
        return Intervals(scores=self.scores.of_rows(rows), trained=self.trained.of_rows(rows))

    def of_columns(self, columns: int | None) -> Intervals:
        """Return the route for features that encode this many raw columns."""
        return replace(self, scores=self.scores.of_columns(columns))

    def training(self, **given: Any) -> Intervals:
        """Return the route with these settings of a training."""
        return replace(self, trained=replace(self.trained, **given))

    def adapt(self, model: Model, data: Data, guide: object) -> Intervals:
        """Return the route for a model; errors as for both of its routes."""
        scores = self.scores.adapt(model, data, guide)
        return Intervals(scores=scores, trained=self.trained.adapt(model, data, guide))

    def plan(self, model: Model, features: int, left: Allowance) -> Any:
        """Return the settings of the route that suits these public numbers.

        Raises:
            TooFewRecordsError: if neither would measure much.
        """
        made, rows = replace(self.scores, least=0.0).plan(model, features, left), self.scores.rows
        # WORTH is known for one row of a person only
        either = left.rows == 1 and isinstance(model, BayesianLogisticRegression)
        if not either or rows is None or made.signal(rows) >= ENOUGH:
            return self.scores.plan(model, features, left)
        if rows / (made.event.noise_multiplier * math.sqrt(made.columns)) < WORTH:
            return self.scores.plan(model, features, left)
        return _sized(self.trained, features).plan(model, features, left)

    def of(self, plan: Any) -> Any:
        """Return the route that a plan is for."""
        return self.scores if isinstance(plan, ScorePlan) else self.trained

    def predicting(self, model: Model, plan: Any) -> Model:
        """Return the model for predictions from the draws."""
        return self.of(plan).predicting(model, plan)  # type: ignore[no-any-return]

    def words(self, plan: Any) -> str:
        """Return the number of rows that the settings are for, and its source."""
        return self.of(plan).words(plan)  # type: ignore[no-any-return]

    def caution(self, plan: Any, delta: float) -> str:
        """Return reasons against the release, from public facts; "" if there are none."""
        return self.of(plan).caution(plan, delta)  # type: ignore[no-any-return]

    def draw(self, model: Model, data: Data, plan: Any, key: Key) -> Output:
        """Return the posterior, with the noise of a key."""
        return self.of(plan).draw(model, data, plan, key)  # type: ignore[no-any-return]


def _sized(trained: Any, features: int) -> Any:
    """Return DPVI with the size of its gradients: known once it is suited, two a weight before."""
    if not isinstance(trained, DPVI):
        return trained
    from bdpvi.programs.training import SuitedDPVI

    given = {one.name: getattr(trained, one.name) for one in fields(trained)}
    return SuitedDPVI(**given, guide=None, size=2 * (features + 1), start={})


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
    if public.group:
        return _mixed(asked, found)
    route: Any = asked.draws
    if isinstance(route, int):
        route = ObjectivePerturbation(rows=public.rows, draws=route)
    else:
        route = replace(route, rows=public.rows or route.rows)
    if asked.uses_dpvi or asked.uses_noisy_scores:
        draws = _DRAWS if asked.number == 1 else asked.number
        route = DPVI(rows=public.rows, draws=draws)
        if asked.uses_noisy_scores:
            scores = NoisyScores(rows=public.rows, draws=draws)
            route = scores if public.weights else Intervals(scores=scores, trained=route)
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


def _mixed(asked: Request, found: Encoded | None) -> Setup:
    """Return a mixed model and its route."""
    public, of = asked.public, asked.model
    draws = _DRAWS if asked.number == 1 else asked.number
    made: Any = logistic(public.base_rate, WEAK_PRIOR_SCALE) if of is None else of
    groups: tuple[int, ...] = ()
    columns = None
    if found is not None:
        places, columns = found.encoding.places, len(found.encoding.columns)
        groups = places[public.group] if asked.groups_are_features else ()
        levels = tuple(one for one in found.encoding.one_hot if one != groups)
        made = replace(made, **{"one_hot" if of is None else "levels": levels})
        columns -= bool(groups)
    mixed = MixedRegression(of=made, column=public.group, groups=groups)
    if asked.groups_are_records:
        from pyro.infer import JitTrace_ELBO  # late: settings need no Pyro

        return Setup(mixed, DPVI(draws=draws, loss=JitTrace_ELBO()))
    return Setup(mixed, NoisyGroups(draws=draws, columns=columns))


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


def remaining(asked: Request, ledger: Ledger, before: Book) -> Allowance:
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
    if asked.distance**2 - spent**2 < SPENT * asked.distance**2:
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
    return Allowance(asked.epsilon, asked.delta, spent**2, limit, before.rows)

"""The route for intervals, chosen by public facts: few features or many."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from bdpvi.datasets.dataset import Data
from bdpvi.models.contract import Model
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.programs.dpvi import DPVI
from bdpvi.regression.noisy_scores import NoisyScores
from bdpvi.regression.score_release import ScorePlan

if TYPE_CHECKING:
    from bdpvi.noise.keys import Key
    from bdpvi.releases.estimate import Output
    from bdpvi.releases.route import Allowance

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
        return replace(self, scores=replace(self.scores, columns=columns))

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

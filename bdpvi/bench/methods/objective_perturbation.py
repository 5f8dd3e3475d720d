"""Objective perturbation: a minimum of an objective with a random slope, settings by rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from bdpvi.bayesian.guarantees import WORST_CASE
from bdpvi.bench.methods.method import MODEL_SPACE, Outcome
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.noise.keys import Key
from bdpvi.privacy import worst_case
from bdpvi.privacy.cost import Cost
from bdpvi.regression.objective_plan import Facts, ObjectivePlan, Rule, plan
from bdpvi.regression.perturbed_objective import perturbed_minima
from bdpvi.releases.row_counts import FEWEST


@dataclass(frozen=True, kw_only=True)
class PerturbedMinimum:
    """A private minimum; see :mod:`bdpvi.regression.objective_plan` for the settings.

    Args:
        model: has an intercept. It makes the features and predicts; of its prior only
            ``intercept_mean`` is used, as the rule determines the ridge.
        rule: the numbers of the rule.

    Raises:
        ValueError: if the model has no intercept.
    """

    model: BayesianLogisticRegression = field(
        default_factory=lambda: BayesianLogisticRegression.unweighted(intercept=True, limit=2.0)
    )
    rule: Rule = field(default_factory=Rule)

    name: ClassVar[str] = "objective-perturbation"
    label: ClassVar[str] = "objective perturbation"
    guarantee: ClassVar[str] = WORST_CASE
    note: ClassVar[str] = (
        "A random linear term is added to the objective, and the minimum is published with a "
        "little noise that hides the optimisation error; the seeds are those of both. The ridge "
        "and the noise follow from ε, the number of columns and the declared number of rows, "
        "rounded to 1, 2 or 5 times a power of ten."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        "model.limit": (1.0, 1.5, 2.0, 3.0, 4.0),
        "model.correlation": MODEL_SPACE["model.correlation"],
        "rule.scale": (0.25, 0.35, 0.5, 0.75, 1.0, 1.5),
        "rule.residual": (0.01, 0.02, 0.05),
        "rule.shrinkage": (0.0, 1.0, 2.0, 4.0, 8.0),
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", self.model.plain)
        if not self.model.intercept:
            raise ValueError("model must have intercept=True: the ridge holds the intercept too")

    def prepare(self, train: Dataset, delta: float) -> PreparedObjective:
        """Return the table, ready for a search at any ε."""
        self.model.check(train)
        return PreparedObjective(self, train.to("cpu"), delta)


@dataclass(frozen=True, eq=False)
class PreparedObjective:
    """A table, with a new search for every outcome.

    Args:
        method: the settings.
        train: the records.
        delta: δ of every cost.
    """

    method: PerturbedMinimum
    train: Dataset
    delta: float
    plans: dict[float, ObjectivePlan] = field(default_factory=dict)

    @cached_property
    def features(self) -> Tensor:
        """The model's features, without the column of ones."""
        return self.method.model.design(self.train.x.double())[:, :-1]

    def calibrate(self, epsilon: float) -> float:
        """Return the noise multiplier of the plan for ε; the plan is stored."""
        facts = Facts(
            columns=self.features.shape[1],
            rows=max(FEWEST, len(self.train)),
            centre=self.method.model.intercept_mean,
        )
        made = plan(facts, epsilon=epsilon, delta=self.delta, rule=self.method.rule)
        made = replace(made, limit=math.inf)  # the model has clipped them
        return self.plans.setdefault(made.event.noise_multiplier, made).event.noise_multiplier

    def outcomes(self, settings: Sequence[float], seeds: Sequence[int]) -> list[Outcome]:
        """Return a minimum for each noise multiplier and seed."""
        result = []
        for setting, seed in zip(settings, seeds, strict=True):
            made = self.plans[setting]
            w = perturbed_minima(made, self.features, self.train.y, Key.of_seed(seed))
            result.append(Outcome({"w": w.to(self.train.x)}, self._cost(made)))
        return result

    def _cost(self, made: ObjectivePlan) -> Cost | None:
        return Cost.of(worst_case.epsilon([made.event], self.delta))

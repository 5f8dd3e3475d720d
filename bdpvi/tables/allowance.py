"""What is left for a request under its ledger, and the model and route that it pays for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bdpvi._ground.types import Budget, BudgetExceededError
from bdpvi.datasets import estimates
from bdpvi.privacy.book import Book
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.left import SPENT, together
from bdpvi.programs.dpvi import DPVI
from bdpvi.regression.noisy_scores import NoisyScores
from bdpvi.regression.objective import ObjectivePerturbation
from bdpvi.regression.objective_plan import FEWEST, MOST
from bdpvi.tables.inference import Intervals
from bdpvi.tables.request import Request
from bdpvi.tables.setup import WEAK_PRIOR_SCALE, Setup, logistic, posterior

if TYPE_CHECKING:
    from bdpvi.tables.rows import Encoded

_DRAWS = 1000


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
            spent = found.distance or math.sqrt(_variance(found.epsilon, asked.delta))
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


def _variance(epsilon: float, delta: float) -> float:
    return largest_variance(epsilon, delta) if epsilon else 0.0


def setup(asked: Request, found: Encoded | None = None) -> Setup:
    """Return the model and its route.

    They may depend on the noisy number of records; the charge does not
    (:mod:`bdpvi.privacy.dominating`).

    Args:
        asked: the request.
        found: the private preprocessing.
    """
    public = asked.public
    rows, one_hot, counted = public.rows, None, False
    if found is not None:
        one_hot = found.encoding.one_hot
        if counted := rows is None and found.records is not None:
            assert found.records is not None
            rows = found.records
    if asked.bayesian:
        return Setup(posterior(public.base_rate))
    if asked.trained:
        model: Any = asked.model
        if found is not None:
            model = replace(model, levels=one_hot)
            if public.exposure:
                model = replace(model, exposure=found.encoding.places[public.exposure][0])
        training = DPVI(rows=public.rows, draws=_draws(asked))
        return Setup(model, training.of_rows(_within(rows)) if counted else training)
    if asked.scored:
        route = Intervals(
            scores=NoisyScores(rows=public.rows, draws=_draws(asked)),
            trained=DPVI(rows=public.rows, draws=_draws(asked)),
        )
        model = asked.model or logistic(public.base_rate, WEAK_PRIOR_SCALE)
        levels: dict[str, Any] = {"one_hot" if asked.model is None else "levels": one_hot}
        model = model if found is None else replace(model, **levels)
        return Setup(model, route.of_rows(_within(rows)) if counted else route)
    solved = ObjectivePerturbation(rows=public.rows, draws=asked.draws)
    made = logistic(public.base_rate)
    return Setup(made, solved.of_rows(float(rows)) if counted and rows is not None else solved)


def _draws(asked: Request) -> int:
    return _DRAWS if asked.draws == 1 else asked.draws


def _within(rows: float | None) -> float:
    assert rows is not None
    return min(max(rows, FEWEST), MOST)

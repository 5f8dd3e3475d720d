"""What is left for a request under its ledger."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bdpvi._ground.types import Budget, BudgetExceededError
from bdpvi.datasets import estimates
from bdpvi.privacy.book import Book
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.left import SPENT, together
from bdpvi.tables.request import Request


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

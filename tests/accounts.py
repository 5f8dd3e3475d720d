"""Charging events one by one, and the bounds of a cost that tests know to be there."""

from __future__ import annotations

from typing import Any

from bdpvi.bayesian.accounting import estimators
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.charges import Charged
from bdpvi.bayesian.accounting.estimators import Estimator
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.privacy import process
from bdpvi.privacy.assumptions import Evidence
from bdpvi.privacy.cost import Bound, Cost
from bdpvi.privacy.event import Event


class Accountant:
    """An :class:`Account` that grows."""

    def __init__(self, *, estimator: Estimator = estimators.student_t, **settings: Any) -> None:
        self.accounting, self.estimator = Accounting(**settings), estimator
        self.events: list[Charged] = []

    def step(self, event: Event, *, count: int = 1) -> None:
        """Charge an event."""
        Account([*self.events, (event, count)])  # refuses what does not go with the others
        self.events.append((event, count))

    def account(self) -> Account:
        """Return everything so far."""
        return Account(self.events, self.accounting, estimator=self.estimator)

    def cost(self, delta: float) -> Cost:
        """Return what everything costs."""
        return self.account().cost(delta)

    def get_epsilon(self, *, delta: float) -> float:
        """Return the Bayesian ε."""
        return bayes(self.cost(delta)).epsilon

    def __getattr__(self, name: str) -> Any:
        return getattr(self.account(), name)


def elsewhere() -> None:
    """Go on as if in another process, which does not know what this one spent on any rows."""
    process._accounts.clear()


def bayes(cost: Cost) -> Bound:
    """Return the Bayesian bound."""
    assert cost.bayesian is not None
    return cost.bayesian


def worst_of(cost: Cost) -> Bound:
    """Return the worst case."""
    assert cost.worst_case is not None
    return cost.worst_case


def path_of(cost: Cost) -> Bound:
    """Return the path's bound, of a cost that has no Bayesian one."""
    assert cost.path is not None
    assert cost.bayesian is None
    return cost.path


def typical_of(cost: Cost) -> Bound:
    """Return the statement on typical records."""
    assert cost.typical is not None
    return cost.typical


def evidence_of(bound: Bound) -> Evidence:
    """Return the estimate behind a bound."""
    assert bound.evidence is not None
    return bound.evidence

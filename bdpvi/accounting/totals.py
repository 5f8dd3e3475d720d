"""What events have cost so far: kept event by event, or added up as they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from bdpvi.accounting.composition import Composition, Estimator
from bdpvi.accounting.conversions import REAL_ORDERS, Orders
from bdpvi.accounting.estimators import Estimate
from bdpvi.accounting.events import View

Views = Mapping[str, View]


class Totals(Protocol):
    """The cost of all events, direction by direction."""

    @property
    def orders(self) -> Orders:
        """The orders at which the cost is known."""

    def add(self, views: Views, count: int) -> None:
        """Add ``count`` events with these views."""

    def cost(self, direction: str, order: Tensor) -> Estimate:
        """Return the bound on c(λ) at orders (K,)."""

    def state(self, direction: str, order: Tensor) -> Any:
        """Return the composition's state at orders (K,): by panel the sum per record, (K, m)."""


class Recorded:
    """Keeps every event, so that its cost can be had at any order that all of them know.

    Attributes:
        events: the views of every event, and how many times it was charged.
    """

    def __init__(self, composition: Composition[Any], estimator: Estimator) -> None:
        self.composition, self.estimator = composition, estimator
        self.events: list[tuple[Views, int]] = []

    def add(self, views: Views, count: int) -> None:
        """Keep the event."""
        self.events.append((views, count))

    @property
    def orders(self) -> Orders:
        """The real orders, unless an event knows its cost at fewer."""
        known = [v.orders.values for views, _ in self.events for v in views.values() if v.orders]
        if not known:
            return REAL_ORDERS
        common = known[0]
        for other in known[1:]:
            common = common[torch.isin(common, other)]
        return Orders(common)

    def cost(self, direction: str, order: Tensor) -> Estimate:
        """Return the bound on c(λ) at orders (K,)."""
        return self.composition.total(self.state(direction, order), self.estimator)

    def state(self, direction: str, order: Tensor) -> Any:
        """Return the composition's state at orders (K,)."""
        state = None
        for views, count in self.events:
            cost = views[direction].log_moment(order)
            state = self.composition.add(state, cost, count, self.estimator)
        return state


class Streamed:
    """Adds events up at orders fixed beforehand: memory for records × orders, never for steps.

    Attributes:
        states: the composition's state of each direction.
    """

    def __init__(self, composition: Composition[Any], estimator: Estimator, orders: Orders) -> None:
        self.composition, self.estimator, self.orders = composition, estimator, orders
        self.states: dict[str, Any] = {}

    def add(self, views: Views, count: int) -> None:
        """Add the event up and forget it."""
        for direction, view in views.items():
            cost = view.log_moment(self.orders.values)
            state = self.states.get(direction)
            self.states[direction] = self.composition.add(state, cost, count, self.estimator)

    def cost(self, direction: str, order: Tensor) -> Estimate:
        """Return the bound on c(λ) at orders (K,), each one of ``orders``."""
        chosen = self.orders.index(order)
        total = self.composition.total(self.states[direction], self.estimator)
        return total.at(chosen)

    def state(self, direction: str, order: Tensor) -> Any:
        """Return the sum per record at orders (K,), each one of ``orders``: by panel only."""
        return self.states[direction][self.orders.index(order)]

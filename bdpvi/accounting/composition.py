"""How the costs of several events become the cost of all of them, c(λ)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi.accounting.conversions import REAL_ORDERS, Orders
from bdpvi.accounting.estimators import Estimate
from bdpvi.accounting.events import Event, PosteriorDraws
from bdpvi.accounting.panel import Panel
from bdpvi.accounting.record_costs import event_cost

S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class Tally:
    """Many events, already added up per record at fixed orders: memory does not grow with them.

    Attributes:
        ids: the records, (m,).
        orders: λ, (K,), the only ones at which the cost is known.
        totals: for each direction the sum of the costs, (K, m).
        rounding, from_data: of all events together.
    """

    ids: Tensor
    orders: Orders
    totals: Mapping[str, Tensor]
    rounding: float = 0.0
    from_data: bool = False

    @property
    def records(self) -> Mapping[str, Tensor]:
        """The records, in every direction that was added up."""
        return dict.fromkeys(self.totals, self.ids)


@event_cost.register
def _(event: Tally, direction: str, order: Tensor) -> Tensor:
    return event.totals[direction][event.orders.index(order)]


class Composition(Protocol[S]):
    """A rule that bounds c(λ) = log E_x′ exp(λ Σ_t D_{λ+1}^(t)(x′)), event by event.

    Its state S after some events needs memory for records × orders at the most. ``bound`` is an
    estimator at a fixed failure probability: from log y (K, m) to a bound on log E y.
    """

    @property
    def name(self) -> str:
        """The rule's name in reports."""

    @property
    def limit(self) -> int | None:
        """The number of events agreed on beforehand, if the rule needs one."""

    def bounds(self, events: int) -> int:
        """Return how many bounds by the estimator one order takes after distinct ``events``."""

    def add(
        self, state: S | None, cost: Tensor, count: int, bound: Callable[[Tensor], Estimate]
    ) -> S:
        """Return the state after ``count`` more events.

        Args:
            state: after the events before; None at the start.
            cost: λ·D_{λ+1} of one such event for each record, (K, m).
            count: how many.
            bound: bounds an expectation.
        """

    def total(self, state: S, bound: Callable[[Tensor], Estimate]) -> Estimate:
        """Return the bound on c(λ), (K,)."""


@dataclass(frozen=True)
class ByPanel:
    """Follow the same records through every event and add up before the expectation: exact.

    No inequality is spent, and the number of events need not be known beforehand. Source: the
    definition of c(λ), with a per-record cost that does not depend on what was released before.
    """

    name = "panel"
    limit = None

    def bounds(self, events: int) -> int:
        """Return 1: the expectation is taken once, at the end."""
        return 1

    def add(
        self, state: Tensor | None, cost: Tensor, count: int, bound: Callable[[Tensor], Estimate]
    ) -> Tensor:
        """Return the sum per record."""
        return count * cost if state is None else torch.add(state, cost, alpha=count)

    def total(self, state: Tensor, bound: Callable[[Tensor], Estimate]) -> Estimate:
        """Return the estimate of log E_x′ exp(λ Σ_t D^(t))."""
        return bound(state)


@dataclass(frozen=True)
class ByHolder:
    """Hölder's inequality, for records that differ from event to event.

    c(λ) ≤ Σ_t (1/T) log E_x′ exp(T λ D_{λ+1}^(t)(x′)) (Triastcyn & Faltings 2020, Theorem 1).

    Args:
        steps: T, fixed before the first event. One event more is an error.
    """

    steps: int
    name = "Hölder"

    def __post_init__(self) -> None:
        validate.positive_int("steps", self.steps)

    @property
    def limit(self) -> int | None:
        """T."""
        return self.steps

    def bounds(self, events: int) -> int:
        """Return one for each distinct event."""
        return events

    def add(
        self, state: Estimate | None, cost: Tensor, count: int, bound: Callable[[Tensor], Estimate]
    ) -> Estimate:
        """Return the sum of the bounds, with the diagnostics of the worst of them."""
        return added(state, bound(self.steps * cost), count / self.steps)

    def total(self, state: Estimate, bound: Callable[[Tensor], Estimate]) -> Estimate:
        """Return the sum."""
        return state


def added(total: Estimate | None, one: Estimate, weight: float) -> Estimate:
    """Return ``total`` + ``weight`` · ``one``, with the worse diagnostics of the two."""
    bound, mean = weight * one.log_bound, weight * one.log_mean
    if total is None:
        return replace(one, log_bound=bound, log_mean=mean)
    return Estimate(
        log_bound=total.log_bound + bound,
        log_mean=total.log_mean + mean,
        sample_size=one.sample_size,
        constant=total.constant | one.constant,
        top_share=torch.maximum(total.top_share, one.top_share),
        effective_size=torch.minimum(total.effective_size, one.effective_size),
        pareto_k=torch.maximum(total.pareto_k, one.pareto_k),
        skewness=torch.maximum(total.skewness, one.skewness),
        distribution_free=total.distribution_free and one.distribution_free,
    )


class Totals:
    """The cost of all events so far, direction by direction.

    With orders fixed beforehand an event is added up when it comes and forgotten: memory for
    records × orders, never for steps. Otherwise every event is kept, so that its cost can be
    computed at any order that all of them know.

    Attributes:
        composition: how costs add up.
        bound: an estimator at a fixed failure probability; takes log y and how many records each
            stands for, if not one, ``{"counts": …}``.
        fixed: the orders fixed beforehand, if any.
        events: every event, and the number of times it was charged; none with fixed orders.
        states: the composition's state of each direction, with fixed orders.
    """

    def __init__(
        self,
        composition: Composition[Any],
        bound: Callable[[Tensor, Mapping[str, Tensor]], Estimate],
        fixed: Orders | None,
    ) -> None:
        self.composition, self.bound, self.fixed = composition, bound, fixed
        self.panels: Mapping[str, Panel] = {}
        self.events: list[tuple[Event, int]] = []
        self.states: dict[str, Any] = {}

    def add(self, event: Event, count: int) -> None:
        """Add ``count`` such events."""
        if isinstance(event, PosteriorDraws):
            self.panels = {name: event.panel(name) for name in event.records}
        if self.fixed is None:
            self.events.append((event, count))
            return
        for direction in event.records:
            cost = event_cost(event, direction, self.fixed.values)
            state, bound = self.states.get(direction), self._bound(direction)
            self.states[direction] = self.composition.add(state, cost, count, bound)

    def check(self, event: Event) -> None:
        """Raise ValueError if the event's records or those before are counts, and of other fits."""
        for name in event.records:
            now = event.panel(name) if isinstance(event, PosteriorDraws) else None
            before = self.panels.get(name)
            if now is not before and any(one and one.counts is not None for one in (now, before)):
                raise ValueError(
                    "event: counts of records do not know who is who, so they price releases of "
                    "one fit; for two together there is the worst case"
                )

    def counted(self, direction: str) -> dict[str, Tensor]:
        """Return how many records each cost stands for, if not one: ``{"counts": (m,)}``."""
        panel = self.panels.get(direction)
        return {} if panel is None or panel.counts is None else {"counts": panel.counts}

    def _bound(self, direction: str) -> Callable[[Tensor], Estimate]:
        return lambda values: self.bound(values, self.counted(direction))

    @property
    def orders(self) -> Orders:
        """The fixed orders, or the real ones, unless an event knows its cost at fewer."""
        known = [event.orders.values for event, _ in self.events if event.orders]
        if self.fixed is not None or not known:
            return self.fixed or REAL_ORDERS
        common = known[0]
        for other in known[1:]:
            common = common[torch.isin(common, other)]
        return Orders(common)

    def state(self, direction: str, order: Tensor) -> Any:
        """Return the composition's state at orders (K,): by panel the sum per record, (K, m)."""
        if self.fixed is not None:
            return self.states[direction][self.fixed.index(order)]
        state = None
        for event, count in self.events:
            cost = event_cost(event, direction, order)
            state = self.composition.add(state, cost, count, self._bound(direction))
        return state

    def cost(self, direction: str, order: Tensor) -> Estimate:
        """Return the bound on c(λ) at orders (K,)."""
        bound = self._bound(direction)
        if self.fixed is None:
            return self.composition.total(self.state(direction, order), bound)
        total = self.composition.total(self.states[direction], bound)
        return total.at(self.fixed.index(order))

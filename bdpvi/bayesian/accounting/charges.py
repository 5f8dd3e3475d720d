"""Charged events of the same records, and their properties before any ε."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.host import on_host
from bdpvi.bayesian.accounting.losses import total_error
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.conversions import REAL_ORDERS, Orders
from bdpvi.privacy.event import Event, check_same_records

Charged = tuple[Event, int]
"""An event, and the number of times it was charged."""


class Charges:
    """Events of the same records and the same unit.

    Args:
        events: events, or pairs of an event and the number of times that it was charged.

    Raises:
        ValueError: if there is no event, a number is not a count, or records or units differ.
    """

    def __init__(self, events: Iterable[Event | Charged]) -> None:
        self.events = tuple(e if isinstance(e, tuple) else (e, 1) for e in events)
        if not self.events:
            raise ValueError("events: nothing has been charged yet, so there is no ε to report")
        for _, count in self.events:
            validate.positive_int("count", count)
        first = self.events[0][0]
        for (before, _), (event, _) in zip(self.events, self.events[1:], strict=False):
            check_same_records(first.records, event.records)
            _check_counted(before, event)
            if self.unit != event.unit:
                raise ValueError(
                    f"event: its unit is {event.unit!r}, the unit of earlier events {self.unit!r}"
                )

    @property
    def directions(self) -> tuple[str, ...]:
        """Directions of the neighbours, such as "remove D‖D′"."""
        return tuple(self.events[0][0].records)

    @property
    def unit(self) -> str:
        """The unit that is added, removed or replaced."""
        return self.events[0][0].unit

    @property
    def rounding(self) -> float:
        """Total variation between all releases and exact ones."""
        return math.fsum(count * event.rounding for event, count in self.events)

    @property
    def error(self) -> float:
        """Total variation between the priced pairs and the true ones, for the worst record."""
        found = [total_error(self.events, name) for name in self.directions]
        return max((float(one.max()) for one in found if one is not None and len(one)), default=0.0)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What the events' prices assume."""
        found = {assumption for event, _ in self.events for assumption in event.assumptions}
        return tuple(one for one in Assumption if one in found)

    @property
    def only_draws(self) -> bool:
        """Whether all are draws, for which a bound on any record's cost is enough."""
        return all(event.losses == "pairs" for event, _ in self.events)

    @property
    def sample_size(self) -> int:
        """Records in the panel, 0 without one."""
        return min(map(len, self.events[0][0].records.values()), default=0)

    @property
    def reference_records(self) -> int:
        """Records in the smallest panel, each level of a panel with counts as often as it has."""
        counts = (self.record_counts(name).get("counts") for name in self.directions)
        return min(self.sample_size if count is None else int(count.sum()) for count in counts)

    @property
    def path(self) -> bool:
        """Whether costs were observed on the path of a training run."""
        return any(event.on_path for event, _ in self.events)

    @cached_property
    def orders(self) -> Orders:
        """The real orders, unless an event's cost is known at fewer only."""
        known = [event.orders.values for event, _ in self.events if event.orders]
        if not known:
            return REAL_ORDERS
        common = known[0]
        for other in known[1:]:
            common = common[torch.isin(common, other)]
        return Orders(common)

    @on_host
    def each(self, direction: str, order: Tensor) -> Tensor:
        """Return each record's cost over all events at orders (K,), (K, m)."""
        total: Tensor | None = None
        for event, count in self.events:
            cost = event.cost(direction, order)
            total = count * cost if total is None else total.add_(cost, alpha=count)
        assert total is not None
        return total

    def record_counts(self, *directions: str) -> Mapping[str, Tensor]:
        """Return how many records share each cost, if not one: ``{"counts": (m,)}``."""
        panels = [self.events[-1][0].panel(name) for name in directions]
        each = [
            torch.ones_like(panel.ids) if panel.counts is None else panel.counts
            for panel in panels
            if panel
        ]
        some = any(panel is not None and panel.counts is not None for panel in panels)
        return {"counts": torch.cat(each)} if some else {}

    def need_panel(self) -> None:
        """Raise ValueError if there are no reference records."""
        if self.sample_size == 0:
            raise ValueError("event has no reference records: ask for the worst case")


def _check_counted(before: Event, now: Event) -> None:
    """Raise ValueError if one of two events has counts of records and they belong to two fits."""
    for name in now.records:
        one, two = (event.panel(name) for event in (before, now))
        if one is two or not any(panel and panel.counts is not None for panel in (one, two)):
            continue
        if not (one and two and one.counts is two.counts and (one.constant or two.constant)):
            raise ValueError(
                "event: counts of records do not identify them, so they give the cost of one fit "
                "only; ask for the worst case of two fits together"
            )

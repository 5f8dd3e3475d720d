"""What was released, as frozen facts whose meaning never changes; accountants say what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from bdpvi import _validate
from bdpvi.divergences import GaussianPairs
from bdpvi.mechanisms import posterior_draws_cost
from bdpvi.panel import Panel


@dataclass(frozen=True, eq=False)
class View:
    """One direction of one neighbour relation: the cost of an event for each of m records.

    Attributes:
        ids: the records, (m,). Costs of several events add up record by record.
        log_moment: from orders λ (K,) to λ·D_{λ+1} per record, (K, m).
    """

    ids: Tensor
    log_moment: Callable[[Tensor], Tensor]


class Event(Protocol):
    """Anything that the Bayesian accountant can charge."""

    def views(self) -> Mapping[str, View]:
        """Return the event's directions, named alike for all events of the same relation."""


@dataclass(frozen=True, eq=False)
class PosteriorDraws:
    """Samples drawn from N(μ, τΣ), the guide at a temperature.

    Attributes:
        panels: the guide against its neighbours.
        draws: number of samples k.
        temperature: τ.
    """

    panels: tuple[Panel, ...]
    draws: int
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _validate.positive_int("draws", self.draws)
        _validate.positive("temperature", self.temperature)

    def views(self) -> Mapping[str, View]:
        """Return the costs of D against D′ and of D′ against D for every kind of neighbour."""
        views = {}
        for panel in self.panels:
            for arrow, pairs in (("D‖D′", panel.pairs), ("D′‖D", panel.pairs.reverse())):
                views[f"{panel.kind} {arrow}"] = View(panel.ids, self._cost(pairs))
        return views

    def _cost(self, pairs: GaussianPairs) -> Callable[[Tensor], Tensor]:
        return lambda order: posterior_draws_cost(pairs, order, self.draws, self.temperature)

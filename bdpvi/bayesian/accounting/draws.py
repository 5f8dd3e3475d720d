"""Samples from a guide, as an event that an accountant can charge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from bdpvi._ground import validate
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.event import WITH, WITHOUT, Event


@dataclass(frozen=True, eq=False)
class GuideDraws(Event):
    """Samples drawn from N(μ, τΣ), the guide at a temperature.

    Attributes:
        panels: the guide and its neighbours.
        draws: number of samples k.
        temperature: τ.
        rounding: total variation between the k samples and exact ones, jointly.
    """

    panels: tuple[Panel, ...]
    draws: int = 1
    temperature: float = 1.0
    rounding: float = 0.0

    losses: ClassVar[str] = "pairs"

    def __post_init__(self) -> None:
        validate.positive_int("draws", self.draws)
        validate.positive("temperature", self.temperature)
        validate.non_negative("rounding", self.rounding)

    @property
    def records(self) -> Mapping[str, Tensor]:
        """The records of every panel, in both directions."""
        return {
            f"{panel.kind} {way}": panel.ids for panel in self.panels for way in (WITH, WITHOUT)
        }

    def panel(self, direction: str) -> Panel:
        """Return the panel of the neighbour kind of ``direction``."""
        return next(panel for panel in self.panels if panel.kind == direction.split()[0])

    def pairs(self, direction: str) -> GaussianPairs:
        """Return the pairs of one direction, at temperature 1."""
        pairs = self.panel(direction).pairs
        return pairs if direction.endswith(WITH) else pairs.reverse()

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Assumptions about the bounds on any record."""
        stated = any(
            panel.influence is not None and panel.influence.stated for panel in self.panels
        )
        return (Assumption.STATED_BOUNDS,) * stated

    @property
    def squared_distance(self) -> float | None:
        """μ² of a Gaussian mechanism no more private; None if nothing bounds a record."""
        bounds = [panel.largest for panel in self.panels]
        if any(bound is None for bound in bounds):
            return None
        return self.draws * max(bound for bound in bounds if bound is not None) / self.temperature

    def cost(self, direction: str, order: Tensor) -> Tensor:
        """Return each record's log-moments, (K, m); +inf where the divergence is infinite.

        Draws are independent given the record, so k of them cost k times one. At temperature τ
        they come from N(μ, τΣ): the squared distance between the means shrinks to b²/τ, but the
        ratio r of the covariances stays, a floor that no temperature lowers.

        >>> import torch
        >>> pairs = GaussianPairs(r=torch.ones(3, 2), b2=torch.full((3, 2), 0.01))
        >>> panel = Panel("add", torch.arange(3), pairs)
        >>> made = GuideDraws((panel,), draws=2, temperature=4.0)
        >>> made.cost("add D‖D′", torch.tensor([3.0])).numpy().round(4)
        array([[0.06, 0.06, 0.06]])
        """
        return self.draws * self.pairs(direction).log_moment(order, self.temperature)

    def error(self, direction: str) -> Tensor | None:
        """Return each record's total variation between all draws and the priced ones, (m,)."""
        off = self.panel(direction).error
        return None if off is None else self.draws * max(1.0, self.temperature**-0.5) * off

    def times(self, count: int) -> tuple[Event, ...]:
        """Return as many samples in one event."""
        return (replace(self, draws=count * self.draws, rounding=count * self.rounding),)

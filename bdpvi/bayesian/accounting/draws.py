"""Samples from a guide, as an event that an accountant can charge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bdpvi._ground import validate
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.privacy.events import WITH, WITHOUT


@dataclass(frozen=True, eq=False)
class PosteriorDraws:
    """Samples drawn from N(μ, τΣ), the guide at a temperature.

    Attributes:
        panels: the guide and its neighbours.
        draws: number of samples k.
        temperature: τ.
        rounding: total variation between the k samples and exact ones, jointly.
        from_data: whether the temperature was computed from the records. It is then not public, and
            no worst-case guarantee holds.
    """

    panels: tuple[Panel, ...]
    draws: int = 1
    temperature: float = 1.0
    rounding: float = 0.0
    from_data: bool = False

    orders: ClassVar[None] = None

    def __post_init__(self) -> None:
        validate.positive_int("draws", self.draws)
        validate.positive("temperature", self.temperature)
        validate.non_negative("rounding", self.rounding)

    @property
    def records(self) -> Mapping[str, Tensor]:
        """The records of every panel, in both directions."""
        return {f"{one.kind} {way}": one.ids for one in self.panels for way in (WITH, WITHOUT)}

    def panel(self, direction: str) -> Panel:
        """Return the panel of the neighbour kind of ``direction``."""
        return next(one for one in self.panels if one.kind == direction.split()[0])

    def pairs(self, direction: str) -> GaussianPairs:
        """Return the pairs of one direction, at temperature 1."""
        pairs = self.panel(direction).pairs
        return pairs if direction.endswith(WITH) else pairs.reverse()

    @property
    def squared_distance(self) -> float | None:
        """μ² of a Gaussian mechanism no more private; None if nothing bounds a record."""
        bounds = [one.largest for one in self.panels]
        if self.from_data or any(bound is None for bound in bounds):
            return None
        return self.draws * max(bound for bound in bounds if bound is not None) / self.temperature

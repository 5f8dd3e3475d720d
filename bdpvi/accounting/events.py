"""Releases, as frozen data: what an accountant needs to know to compute their cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from bdpvi import _validate
from bdpvi.accounting.conversions import INTEGER_ORDERS, Orders
from bdpvi.accounting.gaussian_pairs import GaussianPairs
from bdpvi.accounting.panel import Panel

WITH, WITHOUT = "D‖D′", "D′‖D"
"""The two directions of a divergence: the data against its neighbour, and the neighbour first."""


class Event(Protocol):
    """Anything that an accountant can charge.

    What an event costs is what :func:`bdpvi.accounting.record_costs.event_cost` computes for its
    type; a type of event that is new has to be registered there.
    """

    @property
    def records(self) -> Mapping[str, Tensor]:
        """The ids of the records, (m,), by direction, such as "remove D‖D′".

        Costs of several events add up record by record, so all events of the same relation have
        directions of the same names and the same records.
        """

    @property
    def orders(self) -> Orders | None:
        """The only orders λ at which the cost is known; None where every λ > 0 will do."""

    @property
    def rounding(self) -> float:
        """Total variation between the release and the exact one that is charged; see
        :mod:`bdpvi.neighbours.rounding`."""

    @property
    def from_data(self) -> bool:
        """Whether a number that should be public was found from the records."""


@dataclass(frozen=True, eq=False)
class PosteriorDraws:
    """Samples drawn from N(μ, τΣ), the guide at a temperature.

    Attributes:
        panels: the guide against its neighbours.
        draws: number of samples k.
        temperature: τ.
        rounding: total variation between the samples and exact ones, of all k together.
        from_data: whether the temperature was found from the records. It is then not public, and
            no worst-case guarantee holds.
    """

    panels: tuple[Panel, ...]
    draws: int = 1
    temperature: float = 1.0
    rounding: float = 0.0
    from_data: bool = False

    orders: ClassVar[None] = None

    def __post_init__(self) -> None:
        _validate.positive_int("draws", self.draws)
        _validate.positive("temperature", self.temperature)
        _validate.non_negative("rounding", self.rounding)

    @property
    def records(self) -> Mapping[str, Tensor]:
        """The records of every panel, in both directions."""
        return {f"{one.kind} {way}": one.ids for one in self.panels for way in (WITH, WITHOUT)}

    def panel(self, direction: str) -> Panel:
        """Return the panel of the kind of neighbour that ``direction`` is about."""
        return next(one for one in self.panels if one.kind == direction.split()[0])

    def pairs(self, direction: str) -> GaussianPairs:
        """Return the pairs of one direction, before the temperature."""
        pairs = self.panel(direction).pairs
        return pairs if direction.endswith(WITH) else pairs.reverse()


@dataclass(frozen=True, eq=False)
class SubsampledGaussian:
    """One step that releases a sum over a Poisson sample with Gaussian noise.

    Attributes:
        ids: the records, (m,).
        distances: how far each moves the sum, ‖g − g′‖, (m,).
        noise: standard deviation of the noise, in the units of the distances.
        rate: Poisson sampling rate q.
    """

    ids: Tensor
    distances: Tensor
    noise: float
    rate: float

    orders: ClassVar[Orders] = INTEGER_ORDERS
    rounding: ClassVar[float] = 0.0
    from_data: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _validate.same_length("distances", self.distances, "ids", self.ids)
        _validate.finite("distances", self.distances)
        if bool((self.distances < 0).any()):
            raise ValueError(f"distances must be at least 0, got {self.distances.min().item()}")
        _validate.positive("noise", self.noise)
        _validate.rate("rate", self.rate)

    @property
    def records(self) -> Mapping[str, Tensor]:
        """The records, in both directions, which have the same cost: the larger of the two."""
        return {f"remove {WITH}": self.ids, f"remove {WITHOUT}": self.ids}


@dataclass(frozen=True, eq=False)
class SubsampledDraw:
    """One sample from a guide fitted to a Poisson sample of the records.

    Attributes:
        panel: the guide on a batch with each record against the guide on the batch without it.
        rate: Poisson sampling rate q.
    """

    panel: Panel
    rate: float

    orders: ClassVar[Orders] = INTEGER_ORDERS
    rounding: ClassVar[float] = 0.0
    from_data: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _validate.rate("rate", self.rate)

    @property
    def records(self) -> Mapping[str, Tensor]:
        """The panel's records, in both directions."""
        return {f"{self.panel.kind} {way}": self.panel.ids for way in (WITH, WITHOUT)}


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

"""A step of the Gaussian mechanism on a Poisson sample, with every record's own distance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bdpvi._ground import validate
from bdpvi.privacy.conversions import INTEGER_ORDERS, Orders
from bdpvi.privacy.event import WITH, WITHOUT, Event
from bdpvi.privacy.sampled_moments import subsampled_gaussian_cost


@dataclass(frozen=True, eq=False)
class SampledDistances(Event):
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

    def __post_init__(self) -> None:
        validate.same_length("distances", self.distances, "ids", self.ids)
        validate.finite("distances", self.distances)
        validate.every("distances", self.distances, self.distances >= 0, "be at least 0")
        validate.positive("noise", self.noise)
        validate.rate("rate", self.rate)

    @property
    def records(self) -> Mapping[str, Tensor]:
        """The records, in both directions, which have the same cost: the larger of the two."""
        return {f"remove {WITH}": self.ids, f"remove {WITHOUT}": self.ids}

    def cost(self, direction: str, order: Tensor) -> Tensor:
        """Return each record's log-moments."""
        return subsampled_gaussian_cost(self.distances, self.noise, self.rate, order)

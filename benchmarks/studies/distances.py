"""A step of the Gaussian mechanism on a Poisson sample, with every record's own distance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bdpvi._ground import validate
from bdpvi.bayesian.accounting.record_costs import event_cost, subsampled_gaussian_cost
from bdpvi.privacy.conversions import INTEGER_ORDERS, Orders
from bdpvi.privacy.events import WITH, WITHOUT


@dataclass(frozen=True, eq=False)
class SampledDistances:
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
        validate.same_length("distances", self.distances, "ids", self.ids)
        validate.finite("distances", self.distances)
        validate.every("distances", self.distances, self.distances >= 0, "be at least 0")
        validate.positive("noise", self.noise)
        validate.rate("rate", self.rate)

    @property
    def records(self) -> Mapping[str, Tensor]:
        """The records, in both directions, which have the same cost: the larger of the two."""
        return {f"remove {WITH}": self.ids, f"remove {WITHOUT}": self.ids}


@event_cost.register
def _(event: SampledDistances, direction: str, order: Tensor) -> Tensor:
    return subsampled_gaussian_cost(event.distances, event.noise, event.rate, order)

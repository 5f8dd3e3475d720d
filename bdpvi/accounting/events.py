"""What was released, as frozen facts whose meaning never changes; accountants say what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

from torch import Tensor

from bdpvi import _validate
from bdpvi.accounting.conversions import INTEGER_ORDERS, Orders
from bdpvi.accounting.gaussian_pairs import GaussianPairs
from bdpvi.accounting.panel import Panel
from bdpvi.accounting.record_costs import (
    posterior_draws_cost,
    subsampled_gaussian_cost,
    subsampled_pairs_add,
    subsampled_pairs_remove,
)

WITH, WITHOUT = "D‖D′", "D′‖D"
"""The two directions of a divergence: the data against its neighbour, and the neighbour first."""


@dataclass(frozen=True, eq=False)
class View:
    """One direction of one neighbour relation: the cost of an event for each of m records.

    Attributes:
        ids: the records, (m,). Costs of several events add up record by record.
        log_moment: from orders λ (K,) to λ·D_{λ+1} per record, (K, m).
        orders: the only orders at which the cost is known; None where every λ > 0 will do.
        log_mgf_of: from the positions of n records to the function that maps s, (J,) or (J, n)
            with real parts above 0, to log E exp(s L), (J, n), where the privacy loss L has a
            known moment generating function; as exact as inverting it takes.
        variance: of the privacy loss, (m,), where it is Gaussian (equal covariances).
        largest: what that variance is at most for any record whatever, if anything.
    """

    ids: Tensor
    log_moment: Callable[[Tensor], Tensor]
    orders: Orders | None = None
    log_mgf_of: Callable[[Tensor | slice], Callable[[Tensor], Tensor]] | None = None
    variance: Tensor | None = None
    largest: float | None = None


class Event(Protocol):
    """Anything that an accountant can charge."""

    @property
    def rounding(self) -> float:
        """How far in total variation what was released is from what is charged; see
        :mod:`bdpvi.neighbours.rounding`."""

    @property
    def from_data(self) -> bool:
        """Whether a number that should be public was found from the records."""

    def views(self) -> Mapping[str, View]:
        """Return the event's directions, named alike for all events of the same relation."""

    @property
    def worst_case(self) -> SampledGaussian | None:
        """The event as worst-case accountants know it; None if no record's influence is bounded."""


@dataclass(frozen=True)
class SampledGaussian:
    """A Gaussian mechanism of sensitivity 1 on a Poisson sample.

    Attributes:
        noise_multiplier: standard deviation of the noise over the clipping norm.
        rate: Poisson sampling rate q.
    """

    noise_multiplier: float
    rate: float


@dataclass(frozen=True, eq=False)
class PosteriorDraws:
    """Samples drawn from N(μ, τΣ), the guide at a temperature.

    Attributes:
        panels: the guide against its neighbours.
        draws: number of samples k.
        temperature: τ.
        rounding: total variation between the samples and exact ones, of all k together.
        from_data: whether the temperature was found from the records. It is then not public, and
            nothing holds for any record whatever.
    """

    panels: tuple[Panel, ...]
    draws: int = 1
    temperature: float = 1.0
    rounding: float = 0.0
    from_data: bool = False

    def __post_init__(self) -> None:
        _validate.positive_int("draws", self.draws)
        _validate.positive("temperature", self.temperature)
        _validate.non_negative("rounding", self.rounding)

    @property
    def worst_case(self) -> SampledGaussian | None:
        """One Gaussian mechanism for all draws, if a bound holds for any record whatever."""
        if self.from_data:
            return None
        largest = [self._largest(panel) for panel in self.panels]
        bounds = [bound for bound in largest if bound is not None]
        if len(bounds) < len(largest) or not max(bounds, default=0.0) > 0:
            return None
        return SampledGaussian(max(bounds) ** -0.5, 1.0)

    def views(self) -> Mapping[str, View]:
        """Return the costs of D against D′ and of D′ against D for every kind of neighbour."""
        views = {}
        for panel in self.panels:
            for direction, pairs in ((WITH, panel.pairs), (WITHOUT, panel.pairs.reverse())):
                cost = partial(
                    posterior_draws_cost, pairs, draws=self.draws, temperature=self.temperature
                )
                views[f"{panel.kind} {direction}"] = View(
                    panel.ids,
                    cost,
                    log_mgf_of=partial(self._log_mgf_of, pairs),
                    variance=self._variance(pairs),
                    largest=self._largest(panel),
                )
        return views

    def _log_mgf_of(
        self, pairs: GaussianPairs, records: Tensor | slice
    ) -> Callable[[Tensor], Tensor]:
        log_mgf = pairs.select(records).log_mgf_for_inversion(self.temperature)
        return lambda s: self.draws * log_mgf(s)

    def _largest(self, panel: Panel) -> float | None:
        return None if panel.largest is None else self.draws * panel.largest / self.temperature

    def _variance(self, pairs: GaussianPairs) -> Tensor | None:
        if not bool((pairs.r == 1).all()):
            return None
        return self.draws * pairs.b2.sum(1) / self.temperature


@dataclass(frozen=True, eq=False)
class SubsampledGaussian:
    """One step that releases a sum over a Poisson sample with Gaussian noise.

    Attributes:
        ids: the records, (m,).
        distances: how far each moves the sum, ‖g − g′‖, (m,).
        noise: standard deviation of the noise, in the units of the distances.
        rate: Poisson sampling rate q.
        clip: clipping norm, which no record whatever can exceed; None if there is none.
    """

    ids: Tensor
    distances: Tensor
    noise: float
    rate: float
    clip: float | None = None

    rounding: ClassVar[float] = 0.0
    from_data: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _validate.same_length("distances", self.distances, "ids", self.ids)
        _validate.finite("distances", self.distances)
        if bool((self.distances < 0).any()):
            raise ValueError(f"distances must be at least 0, got {self.distances.min().item()}")
        _validate.positive("noise", self.noise)
        _validate.rate("rate", self.rate)
        if self.clip is not None:
            largest = float(self.distances.max())
            if not largest <= _validate.positive("clip", self.clip) * (1 + 1e-12):
                raise ValueError(f"distances must be at most clip={self.clip}, got {largest}")

    @property
    def worst_case(self) -> SampledGaussian | None:
        """The mechanism, if a clipping norm bounds every record."""
        return None if self.clip is None else SampledGaussian(self.noise / self.clip, self.rate)

    def views(self) -> Mapping[str, View]:
        """Return one cost for both directions: the larger of the two."""
        view = View(
            self.ids,
            lambda order: subsampled_gaussian_cost(self.distances, self.noise, self.rate, order),
            orders=INTEGER_ORDERS,
        )
        return {f"remove {WITH}": view, f"remove {WITHOUT}": view}


@dataclass(frozen=True, eq=False)
class SubsampledDraw:
    """One sample from a guide fitted to a Poisson sample of the records.

    Attributes:
        panel: the guide on a batch with each record against the guide on the batch without it.
        rate: Poisson sampling rate q.
    """

    panel: Panel
    rate: float

    worst_case = None
    rounding: ClassVar[float] = 0.0
    from_data: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _validate.rate("rate", self.rate)

    def views(self) -> Mapping[str, View]:
        """Return the costs in both directions."""
        pairs, kind = self.panel.pairs, self.panel.kind
        costs = {WITH: subsampled_pairs_remove, WITHOUT: subsampled_pairs_add}
        return {
            f"{kind} {direction}": View(
                self.panel.ids, partial(cost, pairs, self.rate), orders=INTEGER_ORDERS
            )
            for direction, cost in costs.items()
        }


@dataclass(frozen=True, eq=False)
class Tally:
    """Many events, already added up per record at fixed orders: memory does not grow with them.

    Attributes:
        ids: the records, (m,).
        orders: λ, (K,).
        totals: for each direction the sum of the costs, (K, m).
        rounding, from_data: of all events together.
    """

    ids: Tensor
    orders: Orders
    totals: Mapping[str, Tensor]
    rounding: float = 0.0
    from_data: bool = False

    worst_case = None

    def views(self) -> Mapping[str, View]:
        """Return the totals, which exist at the tallied orders only."""
        return {
            name: View(self.ids, partial(self._at, total), self.orders)
            for name, total in self.totals.items()
        }

    def _at(self, total: Tensor, order: Tensor) -> Tensor:
        return total[self.orders.index(order)]

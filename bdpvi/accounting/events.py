"""Releases, as frozen data: what an accountant needs to know to compute their cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi.accounting.conversions import INTEGER_ORDERS, Orders
from bdpvi.accounting.gaussian_pairs import GaussianPairs
from bdpvi.accounting.panel import Panel
from bdpvi.types import Relation, Scope

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
        validate.positive_int("draws", self.draws)
        validate.positive("temperature", self.temperature)
        validate.non_negative("rounding", self.rounding)

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
        validate.same_length("distances", self.distances, "ids", self.ids)
        validate.finite("distances", self.distances)
        if bool((self.distances < 0).any()):
            raise ValueError(f"distances must be at least 0, got {self.distances.min().item()}")
        validate.positive("noise", self.noise)
        validate.rate("rate", self.rate)

    @property
    def records(self) -> Mapping[str, Tensor]:
        """The records, in both directions, which have the same cost: the larger of the two."""
        return {f"remove {WITH}": self.ids, f"remove {WITHOUT}": self.ids}


UNITS = ("record", "client")


@dataclass(frozen=True, eq=False)
class SampledGaussianSteps:
    """A whole run of noisy clipped sums, each over a Poisson sample: DP-SGD, in one event.

    What a record costs depends only on how often its sensitivity was how large. Sensitivities are
    counted at a few levels, rounded up so that no cost comes out too small, and memory does not
    grow with the steps. :class:`bdpvi.accounting.levels.LevelCounts` counts.

    The units of ``levels`` are the clip C, and the noise has standard deviation
    ``noise_multiplier`` · C.

    Attributes:
        ids: the records of the panel, (m,) int64; of the pairs, where one record is replaced.
        levels: sensitivities, (L,) float64, increasing. The last is the largest that clipping
            permits: 1 to add or remove (‖ḡ‖ ≤ C), 2 to replace (‖ḡ − ḡ′‖ ≤ 2C).
        counts: in how many steps each record was at each level, (m, L) int64. Secret.
        noise_multiplier: z.
        rate: Poisson sampling rate q in (0, 1]; 1 where a record is replaced, since otherwise the
            distance between two gradients does not decide the cost.
        steps: number of steps, T.
        relation: between neighbouring data sets.
        scope: STATIC where the sensitivities depend on nothing but the record; PATH where they
            were met on the way, as gradient norms are.
        unit: "record" or "client": what is added or removed.
        presence: probability with which a step concerns the record at all, by a coin of every step
            that the observer sees or may guess: that of its client, in federated learning.

    Raises:
        ValueError: if an argument is out of range, shapes do not agree, or a row of ``counts``
            does not add up to ``steps``.

    >>> import torch
    >>> levels = torch.tensor([0.5, 1.0], dtype=torch.float64)
    >>> counts = torch.tensor([[9, 1], [0, 10], [5, 5]])
    >>> run = SampledGaussianSteps(torch.arange(3), levels, counts, 1.0, rate=0.01, steps=10)
    >>> run.scope.value, run.relation.value
    ('path', 'add or remove')
    """

    ids: Tensor
    levels: Tensor
    counts: Tensor
    noise_multiplier: float
    rate: float
    steps: int
    relation: Relation = Relation.ADD_OR_REMOVE
    scope: Scope = Scope.PATH
    unit: str = "record"
    presence: float = 1.0

    orders: ClassVar[Orders] = INTEGER_ORDERS
    rounding: ClassVar[float] = 0.0
    from_data: ClassVar[bool] = False

    def __post_init__(self) -> None:
        validate.rate("presence", self.presence)
        validate.choice("relation", self.relation, [one.value for one in Relation])
        validate.choice("scope", self.scope, [Scope.STATIC.value, Scope.PATH.value])
        validate.choice("unit", self.unit, UNITS)
        object.__setattr__(self, "relation", Relation(self.relation))
        object.__setattr__(self, "scope", Scope(self.scope))
        validate.positive("noise_multiplier", self.noise_multiplier)
        validate.positive_int("steps", self.steps)
        if validate.rate("rate", self.rate) < 1 and self.relation is Relation.REPLACE:
            raise ValueError(
                f"rate must be 1 with relation='replace', got {self.rate!r}: in a Poisson sample "
                "the cost of a replacement does not follow from the distance of two gradients. "
                "Use relation='add or remove'"
            )
        object.__setattr__(self, "levels", check_levels(self.levels, self.relation))
        self._check_counts()

    def _check_counts(self) -> None:
        counts = self.counts
        if counts.shape != (len(self.ids), len(self.levels)):
            raise ValueError(
                f"counts must have shape (records, levels) = {(len(self.ids), len(self.levels))}, "
                f"got {tuple(counts.shape)}"
            )
        if counts.is_floating_point() or counts.is_complex():
            raise ValueError(f"counts must be whole numbers, got dtype {counts.dtype}")
        validate.every("counts", counts, counts >= 0, "be at least 0")
        sums = counts.sum(1)
        rule = f"add up to steps={self.steps} in every row: charge each record in each step"
        validate.every("counts", sums, sums == self.steps, rule)
        if len(counts) < 3:
            raise ValueError(f"ids has {len(counts)} records; an estimate needs at least 3")

    @property
    def largest(self) -> float:
        """The largest sensitivity that clipping permits, in units of the clip."""
        return LARGEST[self.relation]

    @property
    def records(self) -> Mapping[str, Tensor]:
        """The records, in both directions."""
        kind = "replace" if self.relation is Relation.REPLACE else "add-or-remove"
        return {f"{kind} {way}": self.ids for way in (WITH, WITHOUT)}


LARGEST: Mapping[Relation, float] = {
    Relation.ADD_OR_REMOVE: 1.0,
    Relation.REPLACE: 2.0,
    Relation.ZERO_OUT: 1.0,
}
"""How far one change moves a sum of vectors clipped to norm 1."""


def check_levels(levels: Tensor, relation: Relation) -> Tensor:
    """Return the levels as float64, (L,), if they increase from above 0 to the largest there is.

    Raises:
        ValueError: if they do not.
    """
    if levels.ndim != 1 or len(levels) == 0:
        raise ValueError(f"levels must have shape (L,), got {tuple(levels.shape)}")
    levels = levels.double()
    rises = levels.diff(prepend=levels.new_zeros(1)) > 0
    validate.every("levels", levels, rises, "increase, from above 0")
    if levels[-1] != LARGEST[relation]:
        raise ValueError(
            f"levels must end at {LARGEST[relation]:g}, the largest sensitivity to "
            f"{relation.value!r} in units of the clip, got {levels[-1].item()}"
        )
    return levels


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


def check_same_records(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless events have the same directions and the same records."""
    if set(before) != set(now):
        raise ValueError(f"event: has directions {sorted(now)}, not {sorted(before)}")
    for name, ids in now.items():
        if not torch.equal(ids, before[name]):
            raise ValueError(
                f"event: its record ids in {name!r} are not those of the events before it"
            )

"""Noisy sums over samples, choices by noisy scores, and outputs that rarely reveal a record."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi._ground.types import Relation, Scope
from bdpvi.privacy.conversions import INTEGER_ORDERS, Orders
from bdpvi.privacy.event import SAMPLED, WITH, WITHOUT, Event
from bdpvi.privacy.norms import LARGEST, NormCounts

UNITS = ("record", "client")


@dataclass(frozen=True, kw_only=True)
class SampledGaussian(Event):
    """Steps, each of which releases a clipped sum over a Poisson sample plus Gaussian noise.

    An example is a run of DP-SGD. At rate 1, one step is any noisy sum that is no worse than a
    Gaussian mechanism of distance μ = 1 / ``noise_multiplier``.

    Attributes:
        noise_multiplier: z; the noise has a standard deviation of z times the clip C.
        rate: Poisson sampling rate q in (0, 1]; 1 if a record is replaced, since otherwise the
            distance between two gradients does not determine the cost.
        steps: number of steps, T.
        presence: probability that a step involves the record at all, by a coin per step that the
            observer sees or may guess: in federated learning the coin of its client.
        relation: relation between neighbouring data sets.
        unit: "record" or "client": the unit that is added, removed or replaced.
        rounding: total variation between all steps' outputs and the priced ones.
        norms: norms of the reference records. With None only the worst case is known.
        rows: k, the rows of the unit, each sampled by a coin of its own, below rate 1.

    Raises:
        ValueError: if an argument is out of range, or ``norms`` have another number of steps or
            another largest level.

    >>> import torch
    >>> levels = torch.tensor([0.5, 1.0], dtype=torch.float64)
    >>> norms = NormCounts(torch.arange(3), torch.tensor([[9, 1], [0, 10], [5, 5]]), levels)
    >>> run = SampledGaussian(noise_multiplier=1.0, rate=0.01, steps=10, norms=norms)
    >>> run.norms.scope.value, run.relation.value
    ('path', 'add or remove')
    """

    noise_multiplier: float
    rate: float = 1.0
    steps: int = 1
    presence: float = 1.0
    relation: Relation = Relation.ADD_OR_REMOVE
    unit: str = "record"
    rounding: float = 0.0
    norms: NormCounts | None = None
    rows: int = field(default=1, metadata={"absent": 1})

    orders: ClassVar[Orders] = INTEGER_ORDERS
    losses: ClassVar[str] = "counts"
    what: ClassVar[str] = "steps with seen coins of clients have no known cost"

    def __post_init__(self) -> None:
        if validate.positive_int("rows", self.rows) > 1 and self.rate * self.presence == 1:
            raise ValueError(f"rows={self.rows}: at rate 1 they are one row of {self.rows} times C")
        validate.rate("presence", self.presence)
        validate.choice("relation", self.relation, [one.value for one in Relation])
        validate.choice("unit", self.unit, UNITS)
        object.__setattr__(self, "relation", Relation(self.relation))
        validate.positive("noise_multiplier", self.noise_multiplier)
        validate.positive_int("steps", self.steps)
        validate.non_negative("rounding", self.rounding)
        if validate.rate("rate", self.rate) < 1 and self.relation is Relation.REPLACE:
            raise ValueError(
                f"rate must be 1 with relation='replace', got {self.rate!r}: in a Poisson sample "
                "the cost of a replacement does not follow from the distance of two gradients. "
                "Use relation='add or remove'"
            )
        if self.norms is None:
            return
        if self.rows > 1:
            raise ValueError(f"norms are those of single rows, and rows={self.rows}")
        if self.norms.levels[-1] != self.largest:
            raise ValueError(
                f"norms: levels must end at {self.largest:g}, the largest sensitivity to "
                f"{self.relation.value!r} in units of the clip, got {self.norms.levels[-1].item()}"
            )
        if self.norms.steps != self.steps:
            raise ValueError(
                f"norms has {several(self.norms.steps, 'step')}, and steps={self.steps} are "
                "charged: count each step once, with add_largest() where norms are not known"
            )

    @property
    def largest(self) -> float:
        """The largest sensitivity that clipping permits, in units of the clip."""
        return LARGEST[self.relation]

    @property
    def records(self) -> Mapping[str, Tensor]:
        """The records, in both directions."""
        kind = "replace" if self.relation is Relation.REPLACE else "add-or-remove"
        none = torch.zeros(0, dtype=torch.int64)
        ids, own = (none, "") if self.norms is None else (self.norms.ids, self.norms.kind)
        return {f"{own or kind} {way}": ids for way in (WITH, WITHOUT)}

    @property
    def on_path(self) -> bool:
        """Whether its norms were observed during training."""
        return self.norms is not None and self.norms.scope is Scope.PATH

    @property
    def form(self) -> str:
        """A loss distribution, unless every step uses all records."""
        return "" if self.rate == self.presence == 1 else SAMPLED

    @property
    def squared_distance(self) -> float:
        """μ² of all steps, if every one uses all records; else 0."""
        moved = 0.0 if self.form else self.largest / self.noise_multiplier
        return self.steps * moved * moved  # ** 2 would raise where this is +inf

    @property
    def run(self) -> SampledGaussian:
        """All steps, for the largest sensitivity."""
        return self.at(self.largest, self.steps)

    def cost(self, direction: str, order: Tensor) -> Tensor:
        """Return each record's log-moments, by its norms."""
        from bdpvi.privacy.sampled_moments import seen_coin_cost, subsampled_gaussian_cost

        if self.norms is None:
            return order.new_zeros(len(order), 0)
        one = subsampled_gaussian_cost(self.norms.levels, self.noise_multiplier, self.rate, order)
        return seen_coin_cost(one, self.presence) @ self.norms.counts.to(one).T

    def for_rows(self, rows: int) -> Event:
        """Return the steps as they count for k rows.

        For k rows a Gaussian mechanism of distance μ costs at most what one of distance kμ costs
        for one row (Dong, Roth and Su 2022, Theorem 2.14). Steps that sample rows are those of k
        rows, :func:`.loss_distribution.step`.
        """
        alone = self if self.norms is None else replace(self, norms=None)
        if rows == 1:
            return alone
        if self.presence < 1:
            return super().for_rows(rows)
        if self.rate < 1:
            return replace(alone, rows=rows * self.rows)
        return replace(alone, noise_multiplier=self.noise_multiplier / rows)

    def times(self, count: int) -> tuple[Event, ...]:
        """Return as many steps in one event."""
        if count == 1 and self.norms is None:
            return (self,)
        steps, rounding = count * self.steps, count * self.rounding
        return (replace(self, steps=steps, rounding=rounding, norms=None),)

    def total(self) -> Total | None:
        """Return the sum of steps that are alike."""
        return None if self.whole_units else Total(self)

    def with_noise(self, scale: float) -> SampledGaussian:
        """Return it with ``scale`` times the noise."""
        return replace(self, noise_multiplier=self.noise_multiplier * scale, norms=None)

    def to_dict(self) -> dict[str, Any]:
        """Return it without the panel's norms, which are secret."""
        content = super().to_dict()
        del content["norms"]
        return content

    def at(self, level: float, steps: int = 1) -> SampledGaussian:
        """Return the steps for a record of sensitivity ``level``, as steps of sensitivity 1."""
        return SampledGaussian(
            noise_multiplier=self.noise_multiplier / level,
            rate=self.rate,
            steps=steps,
            presence=self.presence,
            rows=self.rows,
        )


_LARGEST = sys.float_info.max
"""What an infinite distance counts as: its sum is an OverflowError, and never an ε."""


@dataclass(frozen=True)
class Total:
    """Steps whose numbers, or whose squared distances, add up.

    The squared distances of Gaussian mechanisms do (Dong, Roth and Su 2022, Corollary 2). Sums are
    exact: no order of charges changes a bit.

    Attributes:
        first: one of them.
        steps: number of steps.
        precision: sum of their squared distances.
        rounding: sum of theirs.
        equal: whether all are equal.
    """

    first: SampledGaussian
    steps: int = 0
    precision: Fraction = Fraction(0)
    rounding: Fraction = Fraction(0)
    equal: bool = True

    @property
    def key(self) -> tuple[Any, ...]:
        """What events that are alike share."""
        one = self.first
        noise = one.noise_multiplier if one.form else 0.0
        return one.relation.value, one.unit, one.rate, one.presence, one.rows, noise

    def plus(self, one: SampledGaussian, count: int) -> Total:
        """Return them with another, repeated."""
        steps = count * one.steps
        return Total(
            self.first,
            self.steps + steps,
            self.precision + steps * Fraction(min(1 / one.noise_multiplier, _LARGEST)) ** 2,
            self.rounding + count * Fraction(one.rounding),
            self.equal and one == self.first,
        )

    @cached_property
    def together(self) -> SampledGaussian:
        """One event of their joint cost."""
        steps, noise = self.steps, self.first.noise_multiplier
        if not (self.equal or self.first.form):
            steps, noise = 1, float(self.precision) ** -0.5
        rounding = float(self.rounding)
        return replace(self.first, noise_multiplier=noise, steps=steps, rounding=rounding)


@dataclass(frozen=True)
class ExponentialMechanism(Event):
    """A choice by noisy scores: the privacy loss lies in an interval of length η.

    Attributes:
        range: η, twice the sensitivity of the scores in units of the temperature; once the
            sensitivity if a record moves all scores in the same direction.
    """

    range: float

    def __post_init__(self) -> None:
        validate.positive("range", self.range)

    @property
    def squared_distance(self) -> float:
        """μ² of a Gaussian mechanism no more private."""
        moved = _OF_RANGE * self.range
        return moved * moved

    def for_rows(self, rows: int) -> ExponentialMechanism:
        """Return a choice of ``rows`` times the range."""
        return ExponentialMechanism(rows * self.range)


_OF_RANGE = math.sqrt(math.pi / 8) * (1 + 1e-15)
"""μ of a Gaussian mechanism no more private than one whose loss lies in an interval of length 1.

The least private mechanism of range η has two outcomes with losses t and t − η (Dong, Durfee and
Rogers 2020, Lemma 3.1). At t = η/2 its total variation is tanh(η/4), which is less than
2Φ(μ/2) − 1 at μ = η √(π/8). A test checks the same at all other ε.
"""


@dataclass(frozen=True)
class Threshold(Event):
    """An output that reveals a record with probability at most δ, such as a rare category.

    Attributes:
        delta: δ.
    """

    delta: float = field()

    squared_distance: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        validate.probability("delta", self.delta)

    def for_rows(self, rows: int) -> Threshold:
        """Return it as it is: it covers all rows of a unit."""
        return self

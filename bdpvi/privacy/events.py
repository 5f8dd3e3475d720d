"""Releases as frozen data: everything an accountant needs to compute their cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi._ground.types import Relation, Scope
from bdpvi.privacy.conceivable import WITHOUT as WITHOUT
from bdpvi.privacy.conceivable import Influence
from bdpvi.privacy.conversions import INTEGER_ORDERS, Orders

WITH = "D‖D′"
"""The direction of a divergence from the neighbour; WITHOUT is the reverse."""
UNITS = ("record", "client")
LARGEST: Mapping[Relation, float] = {
    Relation.ADD_OR_REMOVE: 1.0,
    Relation.REPLACE: 2.0,
    Relation.ZERO_OUT: 1.0,
}
"""The sensitivity of a sum of vectors clipped to norm 1, by relation."""
LEVELS = torch.arange(1, 65, dtype=torch.float64, device="cpu") / 64
"""64 levels; rounding up to them adds at most 1/64 of the clip to a sensitivity."""


class Event(Protocol):
    """Anything that an accountant can charge.

    An accountant knows events by their type.
    """

    @property
    def records(self) -> Mapping[str, Tensor]:
        """The ids of the records, (m,), by direction, such as "remove D‖D′".

        Costs of several events add up record by record, so all events of one relation share the
        names of directions and the records.
        """

    @property
    def orders(self) -> Orders | None:
        """The only orders λ at which the cost is known; None if it is known at every λ > 0."""

    @property
    def rounding(self) -> float:
        """Total variation between the release and the exact one that was priced; see
        :mod:`bdpvi.bayesian.neighbours.rounding`."""

    @property
    def from_data(self) -> bool:
        """Whether a number that should be public was computed from the records."""


@dataclass(frozen=True, eq=False)
class NormCounts:
    """The number of steps that each record's clipped norm spent at each level.

    A record's cost depends on nothing else. Norms are rounded up to a few levels, so that no cost
    is too small and memory does not grow with the steps.

    Attributes:
        ids: ids of the reference records, (m,) int64; of pairs, if one record is replaced.
        counts: number of steps of each record at each level, (m, L) int64. Secret.
        levels: in units of the clip, (L,), increasing. The last is the largest that clipping
            permits: 1, or 2 if records are replaced.
        scope: STATIC for norms that depend on the record only; PATH for norms observed during
            training, such as gradient norms.

    Raises:
        ValueError: if shapes do not agree, levels do not increase from above 0 to 1 or 2, or counts
            are not whole numbers with the same total for all records.

    >>> counts = NormCounts.none(torch.arange(3), torch.tensor([0.5, 1.0]))
    >>> for norms in ([0.0, 0.5, 0.6], [0.1, 0.7, 30.0]):
    ...     counts = counts.add(torch.tensor(norms))
    >>> counts.counts.tolist(), counts.steps
    ([[2, 0], [1, 1], [0, 2]], 2)
    """

    ids: Tensor
    counts: Tensor
    levels: Tensor = LEVELS
    scope: Scope = Scope.PATH

    def __post_init__(self) -> None:
        validate.choice("scope", self.scope, [Scope.STATIC.value, Scope.PATH.value])
        object.__setattr__(self, "scope", Scope(self.scope))
        if self.levels.ndim != 1 or len(self.levels) == 0:
            raise ValueError(f"levels must have shape (L,), got {tuple(self.levels.shape)}")
        levels = self.levels.cpu().double()
        rises = levels.diff(prepend=levels.new_zeros(1)) > 0
        validate.every("levels", levels, rises, "increase, from above 0")
        object.__setattr__(self, "levels", levels)
        if levels[-1] not in LARGEST.values():
            raise ValueError(
                "levels must end at the largest sensitivity in units of the clip, 1, or to replace "
                f"a record 2, got {levels[-1].item()}"
            )
        counts, shape = self.counts, (len(self.ids), len(levels))
        if counts.shape != shape:
            raise ValueError(
                f"counts must have shape (records, levels) = {shape}, got {tuple(counts.shape)}"
            )
        if counts.is_floating_point() or counts.is_complex():
            raise ValueError(f"counts must be whole numbers, got dtype {counts.dtype}")
        if len(counts) < 3:
            raise ValueError(
                f"ids has {several(len(counts), 'record')}; an estimate needs at least 3"
            )
        validate.every("counts", counts, counts >= 0, "be at least 0")
        rule = f"add up to steps={self.steps} in every row: charge each record in each step"
        validate.every("counts", counts.sum(1), counts.sum(1) == self.steps, rule)

    @classmethod
    def none(cls, ids: Tensor, levels: Tensor = LEVELS, scope: Scope = Scope.PATH) -> NormCounts:
        """Return the counts before the first step."""
        return cls(ids, torch.zeros(len(ids), len(levels), dtype=torch.int64), levels, scope)

    @property
    def steps(self) -> int:
        """The number of counted steps."""
        return int(self.counts[0].sum())

    def add(self, norms: Tensor, steps: int = 1) -> NormCounts:
        """Return the counts after one more step, or several.

        Args:
            norms: norms of the records' gradients in units of the clip, (m,), before or after
                clipping; of the differences, if records are replaced. Each is rounded up to a
                level. Norms above the last level count there, as clipping bounds them.
            steps: number of steps with these norms.

        Raises:
            ValueError: if the shape is wrong, or a norm is not finite or below 0.
        """
        if norms.shape != (len(self.counts),):
            raise ValueError(
                f"norms must have shape ({len(self.counts)},), got {tuple(norms.shape)}"
            )
        norms = norms.detach().to("cpu", torch.float64)
        holds = (norms >= 0) & norms.isfinite()
        validate.every("norms", norms, holds, "be finite and at least 0")
        at = torch.bucketize(norms.clamp(max=float(self.levels[-1])), self.levels)
        more = torch.nn.functional.one_hot(at, len(self.levels))
        return replace(self, counts=self.counts + validate.positive_int("steps", steps) * more)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of counts on a path, for ``NormCounts(**state)``. Secret."""
        return {"ids": self.ids, "counts": self.counts, "levels": self.levels}

    def add_largest(self, steps: int = 1) -> NormCounts:
        """Return the counts after steps at the largest norm for all records, for unknown norms.

        Raises:
            ValueError: if ``steps`` is negative.
        """
        counts = self.counts.clone()
        counts[:, -1] += validate.positive_int("steps", steps, least=0)
        return replace(self, counts=counts)


@dataclass(frozen=True, kw_only=True)
class SampledGaussian:
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
    from_data: ClassVar[bool] = False

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
        ids = torch.zeros(0, dtype=torch.int64) if self.norms is None else self.norms.ids
        return {f"{kind} {way}": ids for way in (WITH, WITHOUT)}

    def at(self, level: float, steps: int = 1) -> SampledGaussian:
        """Return the steps for a record of sensitivity ``level``, as steps of sensitivity 1."""
        return SampledGaussian(
            noise_multiplier=self.noise_multiplier / level,
            rate=self.rate,
            steps=steps,
            presence=self.presence,
            rows=self.rows,
        )


@dataclass(frozen=True)
class ExponentialMechanism:
    """A choice by noisy scores: the privacy loss lies in an interval of length η.

    Attributes:
        range: η, twice the sensitivity of the scores in units of the temperature; once the
            sensitivity if a record moves all scores in the same direction.
    """

    range: float

    def __post_init__(self) -> None:
        validate.positive("range", self.range)


@dataclass(frozen=True)
class Threshold:
    """An output that reveals a record with probability at most δ, such as a rare category.

    Attributes:
        delta: δ.
    """

    delta: float

    def __post_init__(self) -> None:
        validate.probability("delta", self.delta)


@dataclass(frozen=True, kw_only=True)
class PerturbedObjective:
    """Minima of logistic regression's objective plus a random linear term, one for each draw.

    See :mod:`bdpvi.privacy.perturbed_objective` for the mechanism and its price.

    Attributes:
        noise_multiplier: σ/C, the slope's standard deviation over the bound on ω‖z‖.
        curvature: R, the bound on ω‖z‖² over the ridge λ.
        residual: k, the clip of residuals; 1 means no clipping.
        draws: number of minima, each with its own slope.
        hiding: ν, distance of the Gaussian noise that hides the error of each search.
        rounding: total variation between all released draws and their exact law.

    Raises:
        ValueError: if an argument is out of range.
    """

    noise_multiplier: float
    curvature: float
    residual: float = 1.0
    draws: int = 1
    hiding: float = 0.0
    rounding: float = 0.0

    def __post_init__(self) -> None:
        validate.positive("noise_multiplier", self.noise_multiplier)
        validate.non_negative("curvature", self.curvature)
        validate.rate("residual", self.residual)
        validate.positive_int("draws", self.draws)
        validate.non_negative("hiding", self.hiding)
        validate.non_negative("rounding", self.rounding)

    @property
    def variance(self) -> float:
        """Squared distance of the noise that hides the searches' errors, over all draws."""
        return self.draws * self.hiding**2


@dataclass(frozen=True, kw_only=True)
class ModeDraws:
    """Samples from N(m, τH⁻¹) at the mode of a posterior, for any table.

    Attributes:
        influence: how far any added record moves m and H of any table. Over all tables this covers
            each pair of neighbours, in both orders; public.
        draws: number of samples k.
        temperature: τ.
        rounding: total variation between the k samples and exact ones, jointly.

    Raises:
        ValueError: if a number is out of range, or the influence is for a removed record.
    """

    influence: Influence
    draws: int = 1
    temperature: float = 1.0
    rounding: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.influence, Influence):  # as in a ledger
            object.__setattr__(self, "influence", Influence(**self.influence))
        if self.influence.added is not True:
            raise ValueError(f"influence must be of an added record, got {self.influence}")
        validate.positive_int("draws", self.draws)
        validate.positive("temperature", self.temperature)
        validate.non_negative("rounding", self.rounding)


Priced = SampledGaussian | PerturbedObjective | ModeDraws | ExponentialMechanism | Threshold
"""Events with a worst-case price."""


def check_same_records(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless events have the same directions and the same records."""
    if set(before) != set(now):
        raise ValueError(f"event: has directions {sorted(now)}, not {sorted(before)}")
    for name, ids in now.items():
        if not torch.equal(ids, before[name]):
            raise ValueError(
                f"event: its record ids in {name!r} differ from the ids of earlier events"
            )

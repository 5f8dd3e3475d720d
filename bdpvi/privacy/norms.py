"""How much each record moved each step: counts of clipped norms, at a few levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi._ground.types import Relation, Scope

LARGEST: Mapping[Relation, float] = {
    Relation.ADD_OR_REMOVE: 1.0,
    Relation.REPLACE: 2.0,
    Relation.ZERO_OUT: 1.0,
}
"""The sensitivity of a sum of vectors clipped to norm 1, by relation."""
LEVELS = torch.arange(1, 65, dtype=torch.float64, device="cpu") / 64
"""64 levels; rounding up to them adds at most 1/64 of the clip to a sensitivity."""


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
        kind: kind of the neighbours, "remove" or "add", together with draws; "" for both.

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
    kind: str = ""

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

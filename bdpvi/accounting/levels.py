"""How often every record's sensitivity was how large: all that a run of DP-SGD has to remember."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi.accounting.events import SampledGaussianSteps, check_levels
from bdpvi.types import Relation

LEVELS = torch.arange(1, 65, dtype=torch.float64) / 64
"""64 levels; rounding up to them adds at most 1/64 of the clip to a sensitivity."""


def counted(counts: Tensor, levels: Tensor, norms: Tensor) -> Tensor:
    """Return the counts after one more step.

    Args:
        counts: (m, L) int64.
        levels: (L,), increasing.
        norms: of the records' gradients in units of the clip, (m,), before clipping or after; to
            replace, of the differences. Each is rounded up to a level. What lies above the last
            level counts there, as clipping bounds it.

    Raises:
        ValueError: if the shape is another, or a norm is not finite or below 0.

    >>> levels = torch.tensor([0.5, 1.0])
    >>> counted(torch.zeros(3, 2, dtype=torch.int64), levels, torch.tensor([0, 0.6, 9])).tolist()
    [[1, 0], [0, 1], [0, 1]]
    """
    if norms.shape != (len(counts),):
        raise ValueError(f"norms must have shape ({len(counts)},), got {tuple(norms.shape)}")
    norms = norms.detach().to("cpu", torch.float64)
    holds = (norms >= 0) & norms.isfinite()
    validate.every("norms", norms, holds, "be finite and at least 0")
    levels = levels.double()
    at = torch.bucketize(norms.clamp(max=float(levels[-1])), levels)
    return counts + torch.nn.functional.one_hot(at, len(levels))


class LevelCounts:
    """Counts, step by step, the level of every record's sensitivity.

    Args:
        levels: see :class:`~bdpvi.accounting.events.SampledGaussianSteps`; fixed beforehand.
        m: number of records.
        relation: between neighbouring data sets.

    Raises:
        ValueError: if the levels do not increase from above 0 to the largest sensitivity, or m is
            not a whole number of at least 3.

    >>> counts = LevelCounts(torch.tensor([0.5, 1.0]), m=3)
    >>> for norms in ([0.0, 0.5, 0.6], [0.1, 0.7, 30.0]):
    ...     counts.add(torch.tensor(norms))
    >>> counts.counts.tolist(), counts.steps
    ([[2, 0], [1, 1], [0, 2]], 2)
    """

    def __init__(self, levels: Tensor, m: int, relation: Relation = Relation.ADD_OR_REMOVE) -> None:
        self.relation = Relation(relation)
        self.levels = check_levels(levels, self.relation).cpu()
        validate.positive_int("m", m, least=3)
        self.counts = torch.zeros(m, len(self.levels), dtype=torch.int64)
        self.steps = 0

    def add(self, norms: Tensor) -> None:
        """Count one step; see :func:`counted`. Where it raises, nothing was counted."""
        self.counts = counted(self.counts, self.levels, norms)
        self.steps += 1

    def add_largest(self, steps: int = 1) -> None:
        """Count steps at the largest sensitivity for everybody, as when norms are not known.

        Raises:
            ValueError: if ``steps`` is negative.
        """
        validate.positive_int("steps", steps, least=0)
        self.counts[:, -1] += steps
        self.steps += steps

    def event(
        self, ids: Tensor, noise_multiplier: float, rate: float, **options: Any
    ) -> SampledGaussianSteps:
        """Return the run so far as an event.

        Args:
            ids: of the records, (m,).
            noise_multiplier: z.
            rate: q.
            options: ``scope`` and ``unit`` of the event.

        Raises:
            ValueError: if nothing was counted, or an argument is out of range.
        """
        return SampledGaussianSteps(
            ids,
            self.levels,
            self.counts.clone(),
            noise_multiplier,
            rate,
            self.steps,
            self.relation,
            **options,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` takes. Secret."""
        return {"levels": self.levels.clone(), "counts": self.counts.clone(), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from where ``state`` was taken.

        Raises:
            ValueError: if its levels or its number of records are others, or its counts do not add
                up. Nothing is then changed.
        """
        counts, steps = state["counts"], int(state["steps"])
        if not torch.equal(state["levels"], self.levels) or counts.shape != self.counts.shape:
            raise ValueError(
                f"state has counts of shape {tuple(counts.shape)} at other levels or records; "
                f"these are {tuple(self.counts.shape)}. Make LevelCounts as it was made before"
            )
        holds = (counts.sum(1) == steps) & (counts >= 0).all(1)
        validate.every("state['counts']", counts.sum(1), holds, f"add up to steps={steps}")
        self.counts, self.steps = counts.clone(), steps

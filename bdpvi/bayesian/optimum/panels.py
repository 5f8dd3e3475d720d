"""How a fit's neighbours become a panel: pairs with proven errors, and the range of any record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bdpvi._ground.checkpoint import Checkpoint
from bdpvi._ground.progress import Track
from bdpvi._ground.threads import each, slices
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.inference.guide import Guide
from bdpvi.bayesian.inference.svi import Problem
from bdpvi.bayesian.optimum.displacements import NUMERICS, Moves, norms
from bdpvi.bayesian.optimum.elbo import Point
from bdpvi.bayesian.optimum.enclosing import enclosing
from bdpvi.bayesian.optimum.expansion import Expansion
from bdpvi.bayesian.optimum.influence import of_optimum


@dataclass(frozen=True, eq=False)
class Job:
    """The inputs for computing neighbours, once the guide is fitted.

    Attributes:
        problem: the fit's problem.
        point: the optimum.
        tolerance: bound on the norm of the gradient there.
        most: bound on every conceivable record's Σb², if :func:`largest` gives one.
        track: shows progress.
        kept: storage for finished parts.
        longest: the longest row in units of the fit, if any record's influence is bounded by it.
    """

    problem: Problem
    point: Point
    tolerance: float
    most: float | None
    track: Track[Any]
    kept: Checkpoint
    longest: float | None = None

    @cached_property
    def expansion(self) -> Expansion:
        """The ELBO near the optimum; it needs passes over the records."""
        return Expansion(self.point, self.tolerance)

    @property
    def bounded(self) -> bool:
        """Whether any conceivable record's influence is bounded."""
        return self.most is not None or self.longest is not None

    @property
    def nobody(self) -> dict[str, Tensor]:
        """What :meth:`pairs` returns of no records."""
        n = len(self.point.mean)
        width = 2 * n + 1 if self.longest is None else n
        if self.problem.guide.noise_scale is not None:
            width = 1
        none = torch.empty(0, width, dtype=torch.float64)
        error = {} if self.longest is None else {"error": none[:, 0]}
        return {"ids": none[:, 0].long(), "r": none, "b2": none, **error}

    def pairs(self, moves: Moves) -> dict[str, Tensor]:
        """Return r and b² of neighbours; and their errors if a range is known without them."""
        if self.longest is None:
            found, error = pairs(self.expansion, moves, self.problem.guide, self.most), {}
        else:
            found, off = pairs_with_errors(self.expansion, moves)
            error = {"error": off.cpu()}
        return {"r": found.r.cpu(), "b2": found.b2.cpu(), **error}

    def panel(self, kind: str, found: Mapping[str, Tensor]) -> Panel:
        """Return the panel of ids and :meth:`pairs`."""
        some = GaussianPairs(found["r"], found["b2"])
        influence = None
        if self.longest is not None:
            known = len(some) and not self.point.objective.diagonal
            bends = self.expansion.bends if known else None
            model, added = self.problem.model, kind == "add"
            influence = of_optimum(model, self.point, self.longest, bends, added=added)
        error = found.get("error")
        return Panel(kind, found["ids"], some, self.most, influence=influence, error=error)


def pairs(
    expansion: Expansion, moves: Moves, guide: Guide, most: float | None = None
) -> GaussianPairs:
    """Return the fit against every neighbour as ``guide`` releases them, with proven errors added.

    In units of Σ + ridge·Σ² the error of the mean is at most that in units of Σ. With a public,
    isotropic covariance only the distance of the means matters, one number per record, bounded by
    ``most`` if it is given, see :func:`largest`.
    """
    coordinates, ridge = expansion.coordinates, guide.ridge
    if guide.noise_scale is not None:
        frame = coordinates.frame
        distance = torch.linalg.vector_norm(frame @ moves.m, dim=0)
        distance = distance + moves.error * torch.linalg.matrix_norm(frame, 2)
        b2 = (distance / guide.noise_scale).square().unsqueeze(1)
        if most is not None:
            b2 = b2.nan_to_num(most, most).clamp(max=most)
        return GaussianPairs(torch.ones_like(b2), b2)

    def some(columns: slice) -> GaussianPairs:
        part = moves.select(columns)
        bare = coordinates.pairs(part.m, part.y, ridge)
        covariance = coordinates.spill(part.y, math.sqrt(2) * part.error, ridge)
        return enclosing(bare, part.error * coordinates.stretch, covariance)

    # LAPACK processes one small matrix at a time and leaves the other cores idle.
    blocks = list(each(some, slices(len(moves.error), expansion.columns)))
    return GaussianPairs(torch.cat([b.r for b in blocks]), torch.cat([b.b2 for b in blocks]))


def pairs_with_errors(expansion: Expansion, moves: Moves) -> tuple[GaussianPairs, Tensor]:
    """Return the fit against every neighbour, and bounds on their distance from the truth.

    A Gaussian within e of another in (m, y), ‖δ‖² + ½‖E‖² ≤ e² where the mean is off by δ and the
    covariance by E, in units of the fit, is within ½e/(1 − s) of it in total variation, by
    Pinsker's inequality, where all its variances are at least 1 − s; 1 % covers third powers of
    e ≤ 10⁻³.
    """
    narrow = 1 - math.sqrt(2) * norms(moves.y)
    known = (moves.error <= NUMERICS.ball) & (narrow > 0.5)
    error = moves.error * expansion.coordinates.stretch
    off = torch.where(known, 1.01 * error / (2 * narrow), 1.0).clamp(max=1.0)
    parts = map(moves.select, slices(len(off), expansion.columns))
    found = [expansion.coordinates.pairs(part.m, part.y) for part in parts]
    r, b2 = (torch.cat(one) for one in zip(*((b.r, b.b2) for b in found), strict=True))
    return GaussianPairs(r, b2), off

"""Added or removed records, one for each neighbour, and the displacements that they cause."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bdpvi.bayesian.optimum.newton import Steps, settle
from bdpvi.bayesian.optimum.packed import pack
from bdpvi.bayesian.optimum.weighted import Weighted

TINY = 1e-13
"""Limit on the total variation distance of a neighbour's Gaussian from the true one, for one that
needs no pass over the records."""
_SETTLED = TINY / 8


class OwnTerms:
    """The added or removed record's part of each neighbour's F, in units of the mode.

    Its curvature at the mode is J − I = ± ω UᵀL″U with U (J, n); J⁻¹ is by Woodbury's identity.

    Args:
        records: one for each neighbour.
        point: the mode, (n,).
        root: L with L Lᵀ = F″⁻¹ there, (n, n).
        sign: 1 for added records, −1 for removed ones.

    Attributes:
        least: the least eigenvalue of F″ of the neighbour at the mode, at most 1, (m,).
    """

    def __init__(self, records: Weighted, point: Tensor, root: Tensor, sign: float) -> None:
        self.records, self.weight = records, sign * records.weight
        self.u, self.b = records.directions(root), records.predictors(point)
        bend = self.weight[:, None, None] * records.curvature(self.b)
        gram = self.u @ self.u.mT
        eye = torch.eye(gram.shape[1]).double()
        # Eigenvalues of ± ω UᵀL″U are those of the square root of UUᵀ times the rest.
        size, axes = torch.linalg.eigh(gram)
        half = (axes * size.clamp(min=0).sqrt().unsqueeze(1)) @ axes.mT
        grown: Tensor = 1 + torch.linalg.eigvalsh(half @ bend @ half)[:, 0]
        self.least = grown.clamp(min=0.0, max=1.0)
        near = torch.where(grown > 0.05, 1.0, 0.5)[:, None, None]  # shorter, so it exists
        self.inverse = torch.linalg.solve(eye + near * bend @ gram, near * bend)

    @property
    def start(self) -> Tensor:
        """The first Newton step of every neighbour, (m, n)."""
        return -self.step(self.pull(torch.zeros_like(self.u[:, 0])))

    def _along(self, shift: Tensor) -> Tensor:
        return (self.u * shift.unsqueeze(1)).sum(2)

    def _across(self, inner: Tensor) -> Tensor:
        return (self.u * inner.unsqueeze(2)).sum(1)

    def pull(self, shift: Tensor) -> Tensor:
        """Return ± ω UᵀL′ at displacements (m, n): the record's part of F′, with its sign."""
        slope = self.records.score(self.b + self._along(shift))
        return self._across(self.weight.unsqueeze(1) * slope)

    def bend(self, shift: Tensor) -> Tensor:
        """Return ± ω UᵀL″U at displacements (m, n), packed: its part of F″, with its sign."""
        second = self.records.curvature(self.b + self._along(shift))
        return pack(self.u.mT @ (self.weight[:, None, None] * second) @ self.u)

    def step(self, gradient: Tensor) -> Tensor:
        """Return J⁻¹G, limited for long steps."""
        inner = (self.inverse * self._along(gradient).unsqueeze(1)).sum(2)
        return gradient - self._across(inner)


def solve_shifts(
    records: Weighted, place: tuple[Tensor, Tensor, float], pull: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the displacements (m, n), and norms of the remaining gradients, (m,).

    Args:
        records: the added or removed records.
        place: point, root and sign, as for :class:`OwnTerms`.
        pull: the gradient of the data's part of F, minus its value at 0.
    """

    def problem(at: Tensor) -> Steps:
        own = OwnTerms(records.select(at), *place)
        return (lambda x: pull(x) + own.pull(x)), own.step

    start = OwnTerms(records, *place).start
    return settle(problem, start, torch.full_like(start[:, 0], _SETTLED), 1)

"""The neighbours' own records: their part of F′ and F″, and the steps to the neighbours' modes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

TINY = 1e-13
"""Limit on the total variation distance of a neighbour's Gaussian from the true one, for one that
needs no pass over the records."""
_TURNS = 60
_SETTLED = TINY / 8


class OwnCurvature:
    """Added or removed records, one for each neighbour, in units of the mode."""

    def pull(self, shift: Tensor) -> Tensor:
        """Return the record's part of F′ at displacements (m, n), with its sign."""
        raise NotImplementedError

    def bend(self, shift: Tensor) -> Tensor:
        """Return the record's part of F″ at displacements (m, n), packed, with its sign."""
        raise NotImplementedError

    @property
    def start(self) -> Tensor:
        """No displacement, (m, n)."""
        raise NotImplementedError

    @property
    def least(self) -> Tensor:
        """The least eigenvalue of F″ of the neighbour at the mode, at most 1, (m,)."""
        raise NotImplementedError

    def step(self, gradient: Tensor) -> Tensor:
        """Return J⁻¹G, J the neighbour's F″ at the mode, limited for long steps."""
        raise NotImplementedError

    def first(self) -> Tensor:
        """Return the first step of every neighbour, (m, n)."""
        return -self.step(self.pull(self.start))

    def solved(self, pull: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Return the displacements (m, n), and norms of the remaining gradients, (m,).

        Args:
            pull: the gradient of the data's part of F, minus its value at 0.
        """
        shift = self.first()
        best, result = torch.full_like(shift[:, 0], math.inf), shift
        for _ in range(_TURNS):
            gradient = pull(shift) + self.pull(shift)
            size = torch.linalg.vector_norm(gradient, dim=1)
            better = size < best
            result = torch.where(better.unsqueeze(1), shift, result)
            gained = bool((size[better] < best[better] / 2).any())
            best = torch.minimum(best, size)
            if not gained or bool((best < _SETTLED).all()):
                break
            shift = shift - self.step(gradient)
        return result, best

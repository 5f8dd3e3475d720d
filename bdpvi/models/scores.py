"""A record's contribution to noisy scores, and its largest length.

A round releases Σ s x, Σ h xxᵀ and, where the dispersion is unknown, Σ q, each with noise. A
record's contribution (s x, c h xxᵀ, e q), with the Frobenius norm of the matrix, has a length of at
most B. Records beyond the radius R, a multiple of √k with k columns, are weighted down. Weights
depend on x alone, so at the truth scores have mean 0; clipped scores do not. The bounds of each
likelihood stand in its own file.

**Robust.** The last round releases Σ q xxᵀ too, q = min(|s|, v/|x|)², the middle of a sandwich
covariance (Huber 1967, "The behavior of maximum likelihood estimates under nonstandard
conditions"). As q|x|² ≤ v² for a public v ≤ B, the contribution fq xxᵀ with f = B/2v² is at most
B/2 long, and the bound of the round becomes B√(1 + ¼).

**Weights.** A record that counts ω ≤ 1 times adds ωs, ωh and ωq, and so ω²s² to the middle (Binder
1983, "On the variances of asymptotically normal estimators from complex surveys").
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from bdpvi._ground.types import BELOW

_MIDDLE = 0.5
ROBUST = math.hypot(1, _MIDDLE)
"""The bound of a round with the middle of a sandwich, over the bound of one without."""


class Parts(NamedTuple):
    """The records' contributions to a round.

    Attributes:
        score, curvature: s and h, (N,).
        square: q, (N,), or None.
        bound: B, bound on the length of a record's contribution.
        ratio, square_ratio: c and e.
        middle, middle_ratio: q of the sandwich, (N,), or None, and f.
    """

    score: Tensor
    curvature: Tensor
    square: Tensor | None
    bound: float
    ratio: float
    square_ratio: float = 1.0
    middle: Tensor | None = None
    middle_ratio: float = 1.0

    def times(self, weights: Tensor) -> Parts:
        """Return the parts of records that count ω times, from 0 to 1, (N,): none gets longer.

        >>> parts = Parts(torch.ones(2), torch.ones(2), None, 2.0, 1.0)
        >>> parts.times(torch.tensor([0.5, 1.0])).score.tolist()
        [0.5, 1.0]
        """
        square = None if self.square is None else weights * self.square
        return self._replace(
            score=weights * self.score, curvature=weights * self.curvature, square=square
        )

    def robust(self, x: Tensor, longest: float) -> Parts:
        """Return the parts with the middle of a sandwich; scores longer than v count as v.

        >>> parts = Parts(torch.ones(1), torch.zeros(1), None, 2.0, 1.0)
        >>> made = parts.robust(torch.tensor([[2.0]]), 1.0)
        >>> made.middle.tolist(), made.middle_ratio, made.bound
        ([0.25], 1.0, 2.23606797749979)
        """
        lengths = torch.linalg.vector_norm(x, dim=1)
        return self._replace(
            middle=torch.minimum(self.score.abs(), longest / lengths).square(),
            middle_ratio=_MIDDLE * self.bound / longest**2,
            bound=ROBUST * self.bound,
        )

    def lengths(self, x: Tensor) -> Tensor:
        """Return the length of each record's contribution, (N,), at most B; secret."""
        size = x.square().sum(1)
        squared = self.score**2 * size + (self.ratio * self.curvature * size) ** 2
        if self.square is not None:
            squared = squared + (self.square_ratio * self.square) ** 2
        if self.middle is not None:
            squared = squared + (self.middle_ratio * self.middle * size) ** 2
        return squared.sqrt()


class ScoreParts:
    """What a round takes from each record; see the module.

    Attributes:
        link: of the generalised linear model, which decides how the first point is found; the
            dispersion is unknown for "identity".
        shares: share of μ² for each round.
        furthest: the longest step to a new point, in standardised units.
        typical: approximate least eigenvalue of Σ h xxᵀ/N, for standardised features.
        widest: the largest R over √k.
        largest: the bound on the size of targets.
    """

    link: ClassVar[Literal["logit", "log", "identity"]]
    shares: ClassVar[tuple[float, ...]] = (0.1, 0.15, 0.25, 0.5)
    furthest: ClassVar[float]
    typical: ClassVar[float]
    widest: ClassVar[float] = 1.25
    largest: float = 1.0

    def first(self, x: Tensor, y: Tensor, radius: float) -> Parts:
        """Return the parts of the first round, which knows no parameters yet."""
        raise NotImplementedError

    def parts(self, x: Tensor, y: Tensor, radius: float, point: Tensor, clip: float) -> Parts:
        """Return the parts at a released point; ``clip`` is κ where there is one."""
        raise NotImplementedError

    def longest(self, radius: float, clip: float, variance: float) -> float:
        """Return v, the length at which scores are cut in the sandwich; ``variance`` is mean h."""
        raise NotImplementedError

    def unit(self, columns: int, radius: float) -> float:
        """Return B/c, the scale of the matrix's noise."""
        raise NotImplementedError

    def clip(self, variance: float) -> float:
        """Return κ for residuals of this variance, which includes the error of the point."""
        return math.inf


def row_weights(x: Tensor, radius: float) -> Tensor:
    """Return min(1, R²/|x|²), (N,)."""
    return BELOW * (radius**2 / x.square().sum(1)).clamp(max=1)

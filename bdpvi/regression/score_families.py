"""A record's contribution to noisy scores of generalised linear models, and its largest length.

A round releases Σ s x, Σ h xxᵀ and, where the dispersion is unknown, Σ q, each with noise. A
record's contribution (s x, c h xxᵀ, e q), with the Frobenius norm of the matrix, has a length of at
most B. Records beyond the radius R, a multiple of √k with k columns, are weighted down. Weights
depend on x alone, so at the truth scores have mean 0; clipped scores do not.

**Logistic.** With p the probability of the label that was observed, |s| = w(1 − p), h = wp(1 − p),
and its length is w|x|(1 − p)√(1 + a²p²), a = c|x|. (1 − p)²(1 + a²p²) is at most 1 for all p iff
a² ≤ min (2 − p)/(p(1 − p)²) = (11 + 5√5)/2, at p = (3 − √5)/2. Let A be the root of that, c = A/R.
The matrix is then free: up to |x| = R the length is at most |x|. Beyond R, the maximum m(a) is at
p = (1 + √(1 − 8/a²))/4, and w = R/(|x| m(a)). At β = 0 every record has |s| = w/2 and h = w/4.

**Poisson.** s = w(min(y, b) − E min(Y, b)), of mean 0; h = w dE min(Y, b)/dη = wμP(Y < b), which is
at least w Var min(Y, b) (the Poincaré inequality). Here w = min(1, R²/|x|²), so w|x| ≤ R and
w|x|² ≤ R², and the matrix is free for c = A/R, A² the least of (b² − max(m, b − m)²)/h² over all
means μ, m = E min(Y, b).

**Linear.** s = wψ(r), r the residual of y clipped to its bound, ψ clips at ± κ, h = w, q = wψ²; the
length is at most κR√(1 + ¼ + 1/k) for c = κ/2R and e = R/(κ√k). κ comes from earlier rounds.

**Robust.** The last round releases Σ q xxᵀ too, q = min(|s|, v/|x|)², the middle of a sandwich
covariance (Huber 1967, "The behavior of maximum likelihood estimates under nonstandard
conditions"). As q|x|² ≤ v² for a public v ≤ B, the contribution fq xxᵀ with f = B/2v² is at most
B/2 long, and the bound of the round becomes B√(1 + ¼).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple, Protocol

import torch
from scipy.special import pdtr
from torch import Tensor

from bdpvi.releases.noisy_sum import BELOW

FREE = math.sqrt((11 + 5 * math.sqrt(5)) / 2)
"""A of logistic regression."""
_HUBER = 2.5
"""κ in standard deviations of the residuals."""
_FAR_OUT = 8.0
"""Residuals of counts that are larger, in standard deviations, are cut in the sandwich."""
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


class Family(Protocol):
    """A family of generalised linear models; see the module.

    Attributes:
        squares: whether rounds release Σ q.
        shares: share of μ² for each round.
        furthest: the longest step to a new point, in standardised units.
        typical: approximate least eigenvalue of Σ h xxᵀ/N, for standardised features.
        widest: the largest R over √k.
    """

    squares: ClassVar[bool]
    shares: ClassVar[tuple[float, ...]]
    furthest: ClassVar[float]
    typical: ClassVar[float]
    widest: ClassVar[float]

    def first(self, x: Tensor, y: Tensor, radius: float) -> Parts:
        """Return the parts of the first round, which knows no parameters yet."""

    def parts(self, x: Tensor, y: Tensor, radius: float, point: Tensor, clip: float) -> Parts:
        """Return the parts at a released point; ``clip`` is κ where there is one."""

    def longest(self, radius: float, clip: float, variance: float) -> float:
        """Return v, the length at which scores are cut in the sandwich; ``variance`` is mean h."""

    def unit(self, columns: int, radius: float) -> float:
        """Return B/c, the scale of the matrix's noise."""


@dataclass(frozen=True)
class Logistic:
    """Labels 0 and 1."""

    squares: ClassVar[bool] = False
    shares: ClassVar[tuple[float, ...]] = (0.1, 0.15, 0.25, 0.5)
    furthest: ClassVar[float] = 3.0
    typical: ClassVar[float] = 0.115
    widest: ClassVar[float] = 2.5

    def first(self, x: Tensor, y: Tensor, radius: float) -> Parts:
        """Return the parts at 0."""
        bound, ratio = radius / math.sqrt(2), 2 / radius
        lengths = torch.linalg.vector_norm(x, dim=1)
        long = lengths / 2 * (1 + (ratio * lengths / 2) ** 2).sqrt()
        w = BELOW * (bound / long).clamp(max=1)
        return Parts(w * (y - 0.5), w / 4, None, bound, ratio)

    def parts(self, x: Tensor, y: Tensor, radius: float, point: Tensor, clip: float) -> Parts:
        """Return the parts at a point."""
        lengths, p = torch.linalg.vector_norm(x, dim=1), torch.sigmoid(x @ point)
        w = BELOW * (radius / (lengths * largest_logistic(FREE * lengths / radius))).clamp(max=1)
        return Parts(w * (y - p), w * p * (1 - p), None, radius, FREE / radius)

    def longest(self, radius: float, clip: float, variance: float) -> float:
        """Return v = R: no score is cut."""
        return radius

    def unit(self, columns: int, radius: float) -> float:
        """Return B/c."""
        return radius**2 / FREE


@dataclass(frozen=True)
class Poisson:
    """Counts, clipped at ``largest``, b."""

    largest: float
    squares: ClassVar[bool] = False
    shares: ClassVar[tuple[float, ...]] = (0.1, 0.15, 0.25, 0.5)
    furthest: ClassVar[float] = 0.7
    typical: ClassVar[float] = 0.94
    widest: ClassVar[float] = 1.25

    def first(self, x: Tensor, y: Tensor, radius: float) -> Parts:
        """Return the parts of moments: min(y, b)x/b and xxᵀ/R."""
        w = _weights(x, radius)
        cut = y.clamp(0, self.largest) / self.largest
        return Parts(w * cut, w, None, radius * math.sqrt(2), 1 / radius)

    def parts(self, x: Tensor, y: Tensor, radius: float, point: Tensor, clip: float) -> Parts:
        """Return the parts at a point."""
        b, w = self.largest, _weights(x, radius)
        mean, slope = cut_poisson((x @ point).clamp(-_REACH, _REACH).exp(), b)
        score = w * (y.clamp(0, b) - mean)
        return Parts(score, w * slope, None, radius * b, free_poisson(b) / radius)

    def longest(self, radius: float, clip: float, variance: float) -> float:
        """Return v: R times 8 standard deviations of a count, and at most R b."""
        return radius * min(max(_FAR_OUT * math.sqrt(variance), 1.0), self.largest)

    def unit(self, columns: int, radius: float) -> float:
        """Return B/c."""
        return radius**2 * self.largest / free_poisson(self.largest)


@dataclass(frozen=True)
class Linear:
    """Numbers, clipped at ± ``largest``, with normal errors of unknown variance."""

    largest: float
    squares: ClassVar[bool] = True
    shares: ClassVar[tuple[float, ...]] = (0.25, 0.15, 0.2, 0.4)
    furthest: ClassVar[float] = math.inf
    typical: ClassVar[float] = 0.75
    widest: ClassVar[float] = 1.25

    def first(self, x: Tensor, y: Tensor, radius: float) -> Parts:
        """Return the parts of moments of (x, uy), with u = R over the largest y."""
        w = _weights(x, radius)
        cut = y.clamp(-self.largest, self.largest) * (radius / self.largest)
        return Parts(w * math.sqrt(2) * cut, w, w * cut**2, 2 * radius**2, 1.0)

    def parts(self, x: Tensor, y: Tensor, radius: float, point: Tensor, clip: float) -> Parts:
        """Return the parts at a point."""
        w, root = _weights(x, radius), math.sqrt(x.shape[1])
        left = (y.clamp(-self.largest, self.largest) - x @ point).clamp(-clip, clip)
        bound = radius * clip * math.sqrt(1.25 + 1 / x.shape[1])
        scale = radius / (clip * root)
        return Parts(w * left, w, w * left**2, bound, clip / (2 * radius), scale)

    def longest(self, radius: float, clip: float, variance: float) -> float:
        """Return v = κR: no score is cut."""
        return radius * clip

    def unit(self, columns: int, radius: float) -> float:
        """Return B/c."""
        return 2 * radius**2 * math.sqrt(1.25 + 1 / columns)

    def clip(self, variance: float) -> float:
        """Return κ for residuals of this variance, which includes the error of the point."""
        return min(_HUBER * math.sqrt(variance), 2 * self.largest)


_REACH = 20.0
"""Linear predictors of counts are clipped at ± this."""


def largest_logistic(a: Tensor) -> Tensor:
    """Return m(a) = max over p of (1 − p)√(1 + a²p²).

    >>> largest_logistic(torch.tensor([1.0, FREE, 8.0], dtype=torch.float64))
    tensor([1.0000, 1.0000, 2.0635], dtype=torch.float64)
    """
    at = (1 + (1 - 8 / (a * a).clamp(min=8)).sqrt()) / 4
    return ((1 - at) * (1 + (a * at) ** 2).sqrt()).clamp(min=1)


def cut_poisson(mean: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Return E min(Y, b) for Poisson Y, and its derivative in the logarithm of the mean.

    >>> mean, slope = cut_poisson(torch.tensor([2.0], dtype=torch.float64), 1.0)
    >>> bool(((mean - (1 - math.exp(-2.0))).abs() < 1e-12).all()), round(float(slope), 4)
    (True, 0.2707)
    """
    mu = mean.numpy()
    below = pdtr(largest - 1, mu)  # P(Y < b)
    two = pdtr(largest - 2, mu) if largest > 1 else 0 * mu
    cut = mu * two + largest * (1 - below)
    return torch.from_numpy(cut), torch.from_numpy(mu * below)


@cache
def free_poisson(largest: float) -> float:
    """Return a lower bound on A for counts clipped at b.

    It is within 2 % of A up to b = 1000 and half of A at 10⁶; beyond, the grid is too coarse.

    Between two grid means μ₁ < μ₂, m lies in [m₁, m₂] and h is at most μ₂P(Y < b | μ₁). Below the
    grid m ≥ μ(1 − μ/2) and h ≤ μ, so the ratio is at least b/2μ. Everywhere b − m ≥ P(Y < b), so
    the ratio is at least b/(μ²P(Y < b)): where that exceeds 100 it cannot be the minimum.

    >>> round(free_poisson(10.0), 2)
    1.06
    """
    grid = torch.logspace(-3, math.log10(largest + 30 * math.sqrt(largest) + 60), 20_001).double()
    m, _ = cut_poisson(grid, largest)
    below = torch.from_numpy(pdtr(largest - 1, grid.numpy()))
    far = torch.maximum(m[1:], largest - m[:-1])
    steepest = grid[1:] * below[:-1]
    ratio = (largest**2 - far**2) / steepest.square()
    near = grid[1:] * steepest > largest / 100
    return BELOW * math.sqrt(float(ratio[near].min()))


def _weights(x: Tensor, radius: float) -> Tensor:
    """Return min(1, R²/|x|²), (N,)."""
    return BELOW * (radius**2 / x.square().sum(1)).clamp(max=1)

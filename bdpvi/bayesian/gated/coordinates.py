"""Coordinates in which all directions of a table are about equally curved, released with noise.

With z = (x, 2), x clipped at ±2, and ω = min(1, C/‖z‖), a record adds ω²zzᵀ to the second moments
S, of Frobenius norm at most C²: they are a Gaussian mechanism of distance μ if the noise has the
standard deviation s = C²/μ on the diagonal and s/√2 beside it. What follows is public: the weighted
mean and covariance of x, its eigenvectors, and new coordinates u = A(x − mean) of unit variance in
every direction that stands out. The spectral norm of the noise in n rows is about √(2n) s (the
semicircle law); over the weighted number of records it is the least variance that counts, times
:data:`_EDGE`, measured on five tables.

Rows u are shortened to length R = 1.25 √k, so that B² = R² + 4: of a ball, not of a box, as no
direction is special any more. M is then 1.3 to 1.9 times what it is with a box
(``benchmarks/worst_case_draws.py``). Only the fit sees shortened rows. Its weights are a linear
function of x, so a release predicts as any regression does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bdpvi._ground.types import BELOW
from bdpvi.bayesian.gated.gate import Shape
from bdpvi.bayesian.optimum.weighted import Weighted
from bdpvi.datasets.records import Records
from bdpvi.models.family import CONSTANT, LIMIT
from bdpvi.models.logistic import LogisticLoss
from bdpvi.noise.keys import Key
from bdpvi.releases.exact_sums import exact_sum, symmetric, triangle_weights
from bdpvi.releases.noisy_sum import noisy_total

_EDGE = 0.7
_RADIUS = 1.25


_LEAST = 0.05
"""The variance of a direction, in that of a column, that should stand out from the noise."""


def enough(columns: int, rows: float) -> float:
    """Return μ of coordinates in which a direction of variance 0.05 stands out.

    The weighted number of records is about a quarter of N, as ω is about ½.

    >>> round(enough(5, 1e5), 4)
    0.0044
    """
    return 4 * _edge(columns + 1) * norm(columns) ** 2 / (_LEAST * rows)


def _edge(weights: int) -> float:
    """Return what the least variance must exceed, times the number of records, over s."""
    return _EDGE * math.sqrt(2 * weights)


def norm(columns: int) -> float:
    """Return C, the largest norm of a weighted row of d columns and the intercept's."""
    return math.sqrt(columns + CONSTANT**2) / 2


def _weights(z: Tensor, columns: int) -> Tensor:
    """Return ω, (N,)."""
    lengths = torch.linalg.vector_norm(z, dim=1)
    result: Tensor = BELOW * (norm(columns) / lengths).clamp(max=1)
    return result


def _moments(part: tuple[Tensor, Tensor]) -> Tensor:
    """Return the second moments of some records as a vector of the same norm."""
    x = part[0].double().cpu().clamp(-LIMIT, LIMIT)
    z = torch.cat([x, torch.full_like(x[:, :1], CONSTANT)], 1)
    total = exact_sum(z * _weights(z, x.shape[1]).square()[:, None], z)
    above = torch.triu_indices(*total.shape)
    return triangle_weights(above) * total[above[0], above[1]]


@dataclass(frozen=True, eq=False)
class Coordinates:
    """u = A(x − mean), shortened to R, with the intercept's column. Public.

    Attributes:
        matrix: A, (k, d).
        mean: (d,).
    """

    matrix: Tensor
    mean: Tensor

    @classmethod
    def released(
        cls, records: Records[tuple[Tensor, Tensor]], columns: int, multiplier: float, key: Key
    ) -> Coordinates:
        """Return coordinates of a table, from its noisy second moments.

        Args:
            records: features and targets.
            columns: d.
            multiplier: 1/μ.
            key: source of the noise.
        """
        n = columns + 1
        above = torch.triu_indices(n, n)
        total, bound = records.sum(_moments), norm(columns) ** 2
        flat, deviation = noisy_total(total, bound, multiplier, key)
        return cls.of(symmetric(flat / triangle_weights(above), n), deviation)

    @classmethod
    def of(cls, moments: Tensor, deviation: float) -> Coordinates:
        """Return the coordinates for noisy second moments, (n, n), and the noise's deviation s.

        >>> made = Coordinates.of(torch.diag(torch.tensor([50.0, 1.0, 400.0]).double()), 1.0)
        >>> made.matrix.abs().round(decimals=3)
        tensor([[1.4140, 0.0000]], dtype=torch.float64)
        """
        count = max(float(moments[-1, -1]) / CONSTANT**2, 1.0)
        mean = moments[:-1, -1] / (CONSTANT * count)
        covariance = moments[:-1, :-1] / count - torch.outer(mean, mean)
        sizes, axes = torch.linalg.eigh(covariance)
        kept = sizes > _edge(len(moments)) * deviation / count
        return cls((axes[:, kept] / sizes[kept].sqrt()).T, mean)

    @property
    def columns(self) -> int:
        """k."""
        return len(self.matrix)

    def shape(self, draws: int, temperature: float) -> Shape:
        """Return the draws as a gate sees them."""
        return Shape(self.columns + 1, norm(self.columns) / self.longest, draws, temperature)

    @property
    def longest(self) -> float:
        """B."""
        return math.sqrt(_RADIUS**2 * self.columns + CONSTANT**2)

    @property
    def ridge(self) -> float:
        """λ₀ = 4CB."""
        return 4 * norm(self.columns) * self.longest

    def rows(self, part: tuple[Tensor, Tensor]) -> Weighted:
        """Return records, x and y, as a posterior takes them."""
        x, y = (values.double().cpu() for values in part)
        u = (x.clamp(-LIMIT, LIMIT) - self.mean) @ self.matrix.T
        lengths = torch.linalg.vector_norm(u, dim=1).clamp(min=1e-300)
        longest = BELOW * _RADIUS * math.sqrt(self.columns)
        u = u * (longest / lengths).clamp(max=1)[:, None]
        z = torch.cat([u, torch.full((len(u), 1), CONSTANT, dtype=torch.float64)], 1)
        return Weighted(z * (2 * y - 1)[:, None], y, _weights(z, self.columns), LogisticLoss())

    def weights(self, w: Tensor) -> Tensor:
        """Return weights of x and a column of ones for weights of u, (draws, k + 1)."""
        slopes = w[:, :-1] @ self.matrix
        return torch.cat([slopes, CONSTANT * w[:, -1:] - slopes @ self.mean[:, None]], 1)

"""Coordinates of Gaussians near a fitted one, in units in which the ELBO's Hessian is about 1.

A Gaussian near the fit N(μ, Σ) is z = (m, y): its mean is μ + F m, its covariance Σ + F S Fᵀ with S
linear in y. Columns are records.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.optimum.elbo import Point, inverse_root
from bdpvi.bayesian.optimum.packed import indices, pack, unpack


class Coordinates(Protocol):
    """A parametrisation of a guide family's means and covariances."""

    frame: Tensor
    """F, (d, d)."""
    level: Tensor
    """Gradient of the entropy in y at the fit, (q,); its Hessian there is -1."""
    stretch: float
    """Largest ratio of a gradient's norm in these units to that in the guide's, and of the length
    of a mean in the guide's units to that of m; at least 1."""

    def features(self, x: Tensor) -> Tensor:
        """Return the gradient of xᵀSx/2 in y for the columns of x (d, m): (q, m)."""

    def matrix(self, y: Tensor) -> Tensor:
        """Return S, packed."""

    def vector(self, matrix: Tensor) -> Tensor:
        """Return the gradient in y of a function whose gradient in S is matrix/2, (q,)."""

    def entropy(self, y: Tensor) -> Tensor:
        """Return the entropy's gradient in y, minus its value and linear part at 0, (q, m)."""

    def growth(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return the sums over the columns of x (d, m) that :meth:`spread` needs, (k, ...).

        Args:
            x: records.
            weights: k sets of weights, (k, m).
        """

    def spread(self, growth: Tensor) -> float:
        """Return a bound on the largest eigenvalue of Σ weight · features featuresᵀ."""

    def locate(self, point: Point) -> tuple[Tensor, Tensor]:
        """Return m (d, 1) and y (q, 1) of another point."""

    def pairs(self, m: Tensor, y: Tensor, ridge: float = 0.0) -> GaussianPairs:
        """Return the fit against each Gaussian, either with covariance Σ + ridge·Σ² for Σ."""

    def spill(self, y: Tensor, error: Tensor, ridge: float) -> Tensor:
        """Bound the error of the covariance Σ + ridge·Σ², in units of the fit's, (m,).

        Args:
            y: of each Gaussian, (q, m).
            error: of its own covariance in units of the fit's, spectral norm, (m,).
            ridge: κ.
        """


class FullCovariance:
    """F Fᵀ = Σ, and y the upper triangle of S, scaled so that ‖S‖ = √2 ‖y‖."""

    def __init__(self, point: Point) -> None:
        self.frame, self.mean = point.root, point.mean
        d = len(self.frame)
        self.index = indices(d, 2).to(self.frame.device)
        self.unit = (self.index[0] == self.index[1]).to(self.frame).unsqueeze(1)
        self.scale = 1 + (math.sqrt(2) - 1) * self.unit
        self.level = self.vector(self._eye)
        self.stretch = 1.0

    @property
    def _eye(self) -> Tensor:
        return torch.eye(len(self.frame), dtype=self.frame.dtype, device=self.frame.device)

    def features(self, x: Tensor) -> Tensor:  # noqa: D102
        return x[self.index[0]] * x[self.index[1]] / self.scale

    def matrix(self, y: Tensor) -> Tensor:  # noqa: D102
        return y * self.scale

    def vector(self, matrix: Tensor) -> Tensor:  # noqa: D102
        return matrix[self.index[0], self.index[1]] / self.scale.squeeze(1)

    def entropy(self, y: Tensor) -> Tensor:  # noqa: D102
        # If an iteration diverges a matrix may be singular: its column is then not finite.
        inverse = pack(torch.linalg.inv_ex(unpack(torch.addcmul(self.unit, y, self.scale))).inverse)
        return inverse.div_(self.scale).sub_(self.level.unsqueeze(1)).add_(y)

    def growth(self, x: Tensor, weights: Tensor) -> Tensor:  # noqa: D102
        return weighted(x, weights * x.square().sum(0)) / 2

    def spread(self, growth: Tensor) -> float:  # noqa: D102
        return float(torch.linalg.eigvalsh(growth)[-1])

    def locate(self, point: Point) -> tuple[Tensor, Tensor]:  # noqa: D102
        m = torch.linalg.solve(self.frame, point.mean - self.mean)
        ratio = torch.linalg.solve(self.frame, point.root)
        return m.unsqueeze(1), self.vector(ratio @ ratio.T - self._eye).unsqueeze(1)

    def pairs(self, m: Tensor, y: Tensor, ridge: float = 0.0) -> GaussianPairs:  # noqa: D102
        change = self.matrix(y)
        if ridge:
            # Σ + κΣ² is F(I + κK)Fᵀ, K = FᵀF, and W = (I + κK)^-½ whitens it.
            squared, whole = self.frame.T @ self.frame, unpack(change)
            size, axes = torch.linalg.eigh(squared)
            unit = (axes * (1 + ridge * size).rsqrt()) @ axes.T
            cross = whole @ squared
            change = pack(unit @ (whole + ridge * (cross + cross.mT + cross @ whole)) @ unit)
            m = unit @ m
        size, axes = torch.linalg.eigh(unpack(change))
        grown = 1 + size
        return GaussianPairs(1 / grown, (axes.mT @ m.T.unsqueeze(2)).squeeze(2).square() / grown)

    def spill(self, y: Tensor, error: Tensor, ridge: float) -> Tensor:  # noqa: D102
        largest_square = float(torch.linalg.matrix_norm(self.frame, 2)) ** 2
        return _spill(math.sqrt(2) * y.norm(dim=0), error, ridge * largest_square)


class DiagonalCovariance:
    """F Fᵀ the inverse curvature, and y the relative change of the variances over √2."""

    def __init__(self, point: Point) -> None:
        self.frame, self.mean = inverse_root(point.curvature), point.mean
        self.deviation = deviation = point.root.diagonal()
        self.columns = torch.linalg.solve(self.frame, torch.diag(deviation))
        self.back = self.frame / deviation.unsqueeze(1)
        self.level = torch.full_like(deviation, 1 / math.sqrt(2))
        self.stretch = max(1.0, float(torch.linalg.matrix_norm(self.back, 2)))

    def features(self, x: Tensor) -> Tensor:  # noqa: D102
        along: Tensor = self.columns.T @ x
        return along.square() / math.sqrt(2)

    def matrix(self, y: Tensor) -> Tensor:  # noqa: D102
        row, column = indices(len(self.frame), 2)
        products: Tensor = self.columns[row] * self.columns[column]
        return products @ (y * math.sqrt(2))

    def vector(self, matrix: Tensor) -> Tensor:  # noqa: D102
        return torch.einsum("ak,ab,bk->k", self.columns, matrix, self.columns) / math.sqrt(2)

    def entropy(self, y: Tensor) -> Tensor:  # noqa: D102
        change = y * math.sqrt(2)
        rest: Tensor = change.square() / (1 + change) / math.sqrt(2)
        return rest

    def growth(self, x: Tensor, weights: Tensor) -> Tensor:  # noqa: D102
        squares = (self.columns.T @ x).square()
        sums: Tensor = (weights * squares.sum(0)) @ squares.T / 2
        return sums

    def spread(self, growth: Tensor) -> float:  # noqa: D102
        return float(growth.max())

    def locate(self, point: Point) -> tuple[Tensor, Tensor]:  # noqa: D102
        m = torch.linalg.solve(self.frame, point.mean - self.mean)
        change = (point.root.diagonal() / self.deviation).square() - 1
        return m.unsqueeze(1), change.unsqueeze(1) / math.sqrt(2)

    def pairs(self, m: Tensor, y: Tensor, ridge: float = 0.0) -> GaussianPairs:  # noqa: D102
        part = ridge * self.deviation.square()
        change = y.T * math.sqrt(2)
        grown = 1 + change * (1 + part * (2 + change)) / (1 + part)
        return GaussianPairs(1 / grown, (self.back @ m).T.square() / (1 + part) / grown)

    def spill(self, y: Tensor, error: Tensor, ridge: float) -> Tensor:  # noqa: D102
        largest_square = float(self.deviation.max()) ** 2
        return _spill(math.sqrt(2) * y.norm(dim=0), error, ridge * largest_square)


def weighted(x: Tensor, weights: Tensor) -> Tensor:
    """Return Σ weight · x xᵀ over the columns of x (d, m) for k sets of weights (k, m)."""
    return torch.stack([(x * weight) @ x.T for weight in weights])


def _spill(size: Tensor, error: Tensor, ridge: float) -> Tensor:
    """Bound ‖W(δ + κ(δK(I+Y) + (I+Y)Kδ + δKδ))W‖ for ‖δ‖ ≤ error, ‖Y‖ ≤ size and κ‖K‖ = ridge.

    ‖W‖ ≤ 1 and κ‖KW‖ ≤ √(κ‖K‖), W being (I + κK)^-½.
    """
    return error * (1 + 2 * math.sqrt(ridge) + ridge * (2 * size + error))

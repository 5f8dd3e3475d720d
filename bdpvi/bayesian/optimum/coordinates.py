"""Coordinates of Gaussians near a fitted one, in units in which the ELBO's Hessian is about 1.

A Gaussian near the fit N(μ, Σ) is z = (m, y): its mean is μ + F m, its covariance Σ + F S Fᵀ with S
linear in y. Columns are records.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.optimum.elbo import Point, inverse_root
from bdpvi.bayesian.optimum.packed import indices, pack, unpack


class _Frame:
    """What both parametrisations of means and covariances have.

    Attributes:
        frame: F, (d, d).
        mean: μ.
        level: gradient of the entropy in y at the fit, (q,); its Hessian there is -1.
        stretch: largest ratio of a gradient's norm in these units to that in the guide's, and of
            the length of a mean in the guide's units to that of m; at least 1.
    """

    frame: Tensor
    mean: Tensor
    level: Tensor
    stretch: float

    def away(self, point: Point) -> Tensor:
        """Return m of another point, (d, 1)."""
        found: Tensor = torch.linalg.solve(self.frame, point.mean - self.mean)
        return found.unsqueeze(1)

    def spill(self, y: Tensor, error: Tensor, ridge: float) -> Tensor:
        """Bound the error of the covariance Σ + ridge·Σ², in units of the fit's, (m,).

        It is ‖W(δ + κ(δK(I+Y) + (I+Y)Kδ + δKδ))W‖ with ‖W‖ ≤ 1 and κ‖KW‖ ≤ √(κ‖K‖), W being
        (I + κK)^-½.

        Args:
            y: of each Gaussian, (q, m).
            error: of its own covariance in units of the fit's, spectral norm, ‖δ‖, (m,).
            ridge: κ.
        """
        size: Tensor = math.sqrt(2) * y.norm(dim=0)
        ridge *= self.widest
        spilled: Tensor = error * (1 + 2 * math.sqrt(ridge) + ridge * (2 * size + error))
        return spilled

    @property
    def widest(self) -> float:
        """The largest variance of the fit in any direction: ‖K‖."""
        raise NotImplementedError


class FullCovariance(_Frame):
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

    def features(self, x: Tensor) -> Tensor:
        """Return the gradient of xᵀSx/2 in y for the columns of x (d, m): (q, m)."""
        return x[self.index[0]] * x[self.index[1]] / self.scale

    def matrix(self, y: Tensor) -> Tensor:
        """Return S, packed."""
        return y * self.scale

    def vector(self, matrix: Tensor) -> Tensor:
        """Return the gradient in y of a function whose gradient in S is matrix/2, (q,)."""
        return matrix[self.index[0], self.index[1]] / self.scale.squeeze(1)

    def entropy(self, y: Tensor) -> Tensor:
        """Return the entropy's gradient in y, minus its value and linear part at 0, (q, m)."""
        # If an iteration diverges a matrix may be singular: its column is then not finite.
        inverse = pack(torch.linalg.inv_ex(unpack(torch.addcmul(self.unit, y, self.scale))).inverse)
        return inverse.div_(self.scale).sub_(self.level.unsqueeze(1)).add_(y)

    def growth(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return the sums over the columns of x (d, m) that :meth:`spread` needs, (k, ...).

        Args:
            x: records.
            weights: k sets of weights, (k, m).
        """
        return weighted(x, weights * x.square().sum(0)) / 2

    def spread(self, growth: Tensor) -> float:
        """Return a bound on the largest eigenvalue of Σ weight · features featuresᵀ."""
        return float(torch.linalg.eigvalsh(growth)[-1])

    def locate(self, point: Point) -> tuple[Tensor, Tensor]:
        """Return m (d, 1) and y (q, 1) of another point."""
        ratio = torch.linalg.solve(self.frame, point.root)
        return self.away(point), self.vector(ratio @ ratio.T - self._eye).unsqueeze(1)

    def pairs(self, m: Tensor, y: Tensor, ridge: float = 0.0) -> GaussianPairs:
        """Return the fit against each Gaussian, either with covariance Σ + ridge·Σ² for Σ."""
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

    @property
    def widest(self) -> float:  # noqa: D102
        return float(torch.linalg.matrix_norm(self.frame, 2)) ** 2


class DiagonalCovariance(_Frame):
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
        change = (point.root.diagonal() / self.deviation).square() - 1
        return self.away(point), change.unsqueeze(1) / math.sqrt(2)

    def pairs(self, m: Tensor, y: Tensor, ridge: float = 0.0) -> GaussianPairs:  # noqa: D102
        part = ridge * self.deviation.square()
        change = y.T * math.sqrt(2)
        grown = 1 + change * (1 + part * (2 + change)) / (1 + part)
        return GaussianPairs(1 / grown, (self.back @ m).T.square() / (1 + part) / grown)

    @property
    def widest(self) -> float:  # noqa: D102
        return float(self.deviation.max()) ** 2


Coordinates = FullCovariance | DiagonalCovariance


def weighted(x: Tensor, weights: Tensor) -> Tensor:
    """Return Σ weight · x xᵀ over the columns of x (d, m) for k sets of weights (k, m)."""
    return torch.stack([(x * weight) @ x.T for weight in weights])

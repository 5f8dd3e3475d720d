"""Neighbours' displacements from the fit, the records that cause them, and numerical settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bdpvi.bayesian.optimum.series import changes
from bdpvi.models.losses import PredictorLoss


@dataclass(frozen=True)
class Numerics:
    """Numerical settings of the algorithm, and their trade-offs.

    Attributes:
        series: largest degree of a record's own Taylor series, odd. Higher degrees can prove longer
            displacements (15: up to about 1.5 standard deviations) but take longer.
        bends: degree up to which the change of J and the truncation error of the polynomial are
            bounded by sums over the data; higher degrees use the bound on all derivatives. Odd, at
            most ``series - 2``.
        ball: radius around an approximate optimum within which the certificate places the true one,
            so also the largest provable error. A larger radius lowers the bound on J.
        strength: smallest lower bound on the eigenvalues of J that counts as positive.
        settled: gradient, relative to the first displacement, at which a neighbour stays.
        rounding: the same, absolute.
        negligible: relative error of the polynomial of degree 2 at the mean displacement below
            which the tensor of degree 3 is not formed.
        entries: largest number of entries of the polynomial's tensors, 2^25 in 256 MiB: for degree
            3 and a full covariance, d up to about 50.
        scarce: fewest records per column of the tensor, for degrees 2 and 3; with fewer records,
            passes over the data are as cheap.
        parameters: largest number of guide parameters. J needs its square, eigenvalues its cube.
        cells: size of a block of displacements, monomials or pairs. Blocks should fit in the cache,
            but be large enough to make the overhead of calls small.
    """

    series: int = 15
    bends: int = 9
    ball: float = 1e-3
    strength: float = 0.05
    settled: float = 3e-9
    rounding: float = 1e-14
    negligible: float = 1e-6
    entries: int = 1 << 25
    scarce: tuple[float, float] = (0.5, 8.0)
    parameters: int = 6000
    cells: int = 1 << 18


NUMERICS = Numerics()


@dataclass(frozen=True, eq=False)
class Terms:
    """Records in the coordinates of the expansion, one per column.

    Attributes:
        x: directions in the frame, over the standard deviation of the predictor, (d, n).
        e: the features for y, (q, n).
        mean, variance: moments of the predictor, (n,).
        mark: of each record, see :class:`bdpvi.bayesian.optimum.weighted.Weighted`, (n,).
        weight: ω of the log-likelihood, at most 1, (n,).
        slopes: ω times derivatives of the expected log-likelihood in units of that standard
            deviation.
        loss: of the records.
    """

    x: Tensor
    e: Tensor
    mean: Tensor
    variance: Tensor
    mark: Tensor
    weight: Tensor
    slopes: Tensor
    loss: PredictorLoss

    def __len__(self) -> int:
        return len(self.variance)

    def select(self, columns: Tensor | slice) -> Terms:
        """Return the records in these columns."""
        return self._of(field[..., columns] for field in self._fields())

    @property
    def curved(self) -> Tensor:
        """κ v, the largest curvature of the predictor in its own units, (n,)."""
        return self.loss.bound.curvature * self.variance

    @staticmethod
    def joined(blocks: Sequence[Terms]) -> Terms:
        """Return the records of all blocks."""
        if len(blocks) == 1:
            return blocks[0]
        fields = zip(*(block._fields() for block in blocks), strict=True)
        return blocks[0]._of(torch.cat(field, -1) for field in fields)

    def _of(self, fields: Iterable[Tensor]) -> Terms:
        """Return records of the same loss with other tensors."""
        x, e, mean, variance, mark, weight, slopes = fields
        return Terms(x, e, mean, variance, mark, weight, slopes, self.loss)

    def _fields(self) -> tuple[Tensor, ...]:
        return self.x, self.e, self.mean, self.variance, self.mark, self.weight, self.slopes

    def coefficients(self, degree: int) -> Tensor:
        """Return the coefficient of each record's terms of this degree in the gradient, (p, n)."""
        return torch.cat([self.x * self.slopes[degree + 1], self.e * self.slopes[degree + 2]])

    def gradient_change(self, z: Tensor, degree: int, far: Tensor) -> Tensor:
        """Return the change of the gradient of the records' terms from the fit to z, (p, k).

        Args:
            z: displacements, (p, k).
            degree: degree of the series.
            far: columns beyond the range of every series; their integrals use quadrature.
        """
        d = len(self.x)
        a, s = self.x.T @ z[:d], 2 * self.e.T @ z[d:]
        rows = self._of(field.unsqueeze(-1) for field in self._fields())
        first, second = rows.changes(a, s, degree, far)
        return torch.cat([self.x @ first, self.e @ second])

    def changes(self, a: Tensor, s: Tensor, degree: int, far: Tensor) -> tuple[Tensor, Tensor]:
        """Return the changes of D_1 and D_2, see :func:`bdpvi.bayesian.optimum.series.changes`.

        Args:
            a, s: changes of mean and variance, (n,), or (n, k) for records of shape (n, 1).
            degree: degree of the series.
            far: last indices of a beyond the range of every series; their integrals use quadrature.
        """
        first, second = changes(self.slopes, a, s, degree)
        if len(far):
            fields = self.mean, self.variance, self.mark, self.weight, *self.slopes[1:3]
            mean, v, mark, weight, one, other = (f.expand_as(a)[..., far] for f in fields)
            # Nothing is proven for a Gaussian with variances below half of the fit's.
            grown = (1 + s[..., far]).clamp(min=0.5)
            moved = (mean + v.sqrt() * a[..., far]).flatten()
            new = self.loss.smoothed(moved, (v * grown).flatten(), mark.flatten(), 2)
            new = new.view(3, *mean.shape) * weight
            first[..., far] = new[1] / grown.sqrt() - one
            second[..., far] = new[2] / grown - other
        return first, second

    def newton(self, inverse: Tensor, sign: float) -> Callable[[Tensor], Tensor]:
        """Return the function J'⁻¹G of gradients G, where −J' includes the record's own term.

        By Woodbury: J' = J - UBUᵀ with the columns (x, 0) and (0, e) of U and B of the record's
        derivatives D_2, D_3, D_4. Where J' is not clearly positive it is J⁻¹G.
        """
        d = len(self.x)
        in_x, in_e = inverse[:, :d] @ self.x, inverse[:, d:] @ self.e

        def along(z: Tensor) -> Tensor:
            return torch.stack([(self.x * z[:d]).sum(0), (self.e * z[d:]).sum(0)], 1)

        b = sign * self.slopes[torch.tensor([[2, 3], [3, 4]])].permute(2, 0, 1)
        inner = torch.eye(2).to(b) - b @ torch.stack([along(in_x), along(in_e)], 2)
        clear = (torch.linalg.det(inner) > NUMERICS.strength)[:, None, None]
        weight = torch.linalg.solve(torch.where(clear, inner, torch.eye(2).to(b)), b) * clear

        def step(gradient: Tensor) -> Tensor:
            plain = inverse @ gradient
            c = (weight @ along(plain).unsqueeze(2)).squeeze(2)
            whole: Tensor = plain + in_x * c[:, 0] + in_e * c[:, 1]
            return whole

        return step


@dataclass(frozen=True, eq=False)
class Moves:
    """Displacements of the neighbours' optima from the fit, one per column.

    Attributes:
        m: of the mean, (d, n).
        y: of the covariance, (q, n).
        error: bound on the distance of (m, y) from the neighbour's optimum, (n,); inf if unproven.
    """

    m: Tensor
    y: Tensor
    error: Tensor

    def select(self, columns: Tensor | slice) -> Moves:
        """Return these columns."""
        return Moves(self.m[:, columns], self.y[:, columns], self.error[columns])

    @classmethod
    def joined(cls, blocks: Sequence[Moves]) -> Moves:
        """Return the displacements of all blocks."""
        m, y, error = zip(*((b.m, b.y, b.error) for b in blocks), strict=True)
        return cls(torch.cat(m, 1), torch.cat(y, 1), torch.cat(error))

    def write_at(self, columns: Tensor | slice, other: Moves) -> None:
        """Set these columns to the displacements in ``other``."""
        self.m[:, columns], self.y[:, columns] = other.m, other.y
        self.error[columns] = other.error


def reach(far: Tensor | float, wide: Tensor | float) -> Tensor | float:
    """Bound the distance in (m, y) of two Gaussians that are ``far`` apart in units of the fit.

    ``far`` is the larger distance of their means or of their roots L, ΔΣ = LΔᵀ + ΔLᵀ + ΔΔᵀ, and
    ``wide`` is the norm of L in those units.
    """
    return far * (1 + math.sqrt(2) * wide + far)


def norm(matrix: Tensor) -> float:
    """Return the spectral norm."""
    return float(torch.linalg.matrix_norm(matrix, 2))


def norms(columns: Tensor) -> Tensor:
    """Return the norms of the columns."""
    # Several times faster than torch's norm over a leading dimension.
    return columns.square().sum(0).sqrt_()

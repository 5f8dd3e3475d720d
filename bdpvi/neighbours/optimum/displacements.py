"""Neighbours' displacements from the fit, the records that cause them, constants of the search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Numerics:
    """Constants of the algorithm, and what each trades.

    Attributes:
        series: largest degree of a record's own Taylor series, odd. Higher ones prove longer
            displacements (at 15 of up to about 1.5 standard deviations) and take longer.
        bends: degree up to which the change of J, and what the polynomial leaves out, are bounded
            by sums over the data; beyond it by the bound on all derivatives. Odd, at most
            ``series - 2``.
        ball: radius around an approximate optimum in which the certificate looks for the true one,
            so also the largest error that can be proven. A larger one lowers the bound on J.
        strength: smallest lower bound on the eigenvalues of J that is taken for more than 0.
        steps: of an iteration, at most.
        settled: change of the gradient's error, relative to the displacement, below which another
            step is not worth taking.
        rounding: the same, absolute.
        negligible: error of the polynomial of degree 2 at the mean displacement, relative to it,
            below which the tensor of degree 3 is not formed.
        entries: most entries of the tensor of degree 3, 2^25 in 256 MiB: d up to about 50 for a
            full covariance.
        scarce: records that there are for each of its columns, at least; with fewer, passes over
            the data cost no more.
        parameters: of the guide, at most. J takes the square of it, its eigenvalues the cube.
        cells: numbers of a block of displacements, of monomials or of pairs. Blocks should stay in
            the cache, and be large enough for calls to cost little.
    """

    series: int = 15
    bends: int = 9
    ball: float = 1e-3
    strength: float = 0.05
    steps: int = 20
    settled: float = 1e-8
    rounding: float = 1e-14
    negligible: float = 1e-6
    entries: int = 1 << 25
    scarce: int = 8
    parameters: int = 6000
    cells: int = 1 << 18


NUMERICS = Numerics()


@dataclass(frozen=True, eq=False)
class Terms:
    """Records as the expansion sees them, one per column.

    Attributes:
        x: directions in the frame, over the standard deviation of the logit, (d, n).
        e: the features that go with y, (q, n).
        variance: of the logit, (n,).
        slopes: derivatives of the expected log-likelihood in units of that standard deviation.
    """

    x: Tensor
    e: Tensor
    variance: Tensor
    slopes: Tensor

    def __len__(self) -> int:
        return len(self.variance)

    def select(self, columns: Tensor | slice) -> Terms:
        """Return the records in these columns."""
        return Terms(
            self.x[:, columns], self.e[:, columns], self.variance[columns], self.slopes[:, columns]
        )

    @classmethod
    def joined(cls, blocks: Sequence[Terms]) -> Terms:
        """Return the records of all blocks."""
        if len(blocks) == 1:
            return blocks[0]
        fields = zip(*((b.x, b.e, b.variance, b.slopes) for b in blocks), strict=True)
        return cls(*(torch.cat(field, -1) for field in fields))

    def coefficients(self, degree: int) -> Tensor:
        """Return what multiplies each record's terms of this degree in the gradient, (p, n)."""
        return torch.cat([self.x * self.slopes[degree + 1], self.e * self.slopes[degree + 2]])

    def blocks(self, size: int) -> Iterator[Terms]:
        """Iterate over blocks of columns."""
        for start in range(0, len(self), size):
            yield self.select(slice(start, start + size))


@dataclass(frozen=True, eq=False)
class Moves:
    """Displacements of the neighbours' optima from the fit, one per column.

    Attributes:
        m: of the mean, (d, n).
        y: of the covariance, (q, n).
        error: bound on the distance of (m, y) from the neighbour's optimum, (n,); inf where none
            is proven.
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

    def put(self, columns: Tensor | slice, other: Moves) -> None:
        """Set these columns to the displacements in ``other``."""
        self.m[:, columns], self.y[:, columns] = other.m, other.y
        self.error[columns] = other.error

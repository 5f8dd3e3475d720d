"""Small problems side by side, one a column.

Symmetric matrices are packed: the upper triangle column by column, (d(d + 1)/2, m), which is the
order of :func:`bdpvi.neighbours.optimum.monomials.indices`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from bdpvi._runtime import machine_code
from bdpvi.neighbours.optimum import monomials
from bdpvi.neighbours.optimum.series import changes

_BLOCK = 1024
"""Columns whose moments do not take much memory."""

_CELLS = 1 << 15
"""Pairs of a record and a column whose series stay in the cache."""


class Columns:
    """What is done to many columns, by torch."""

    def inverses(self, packed: Tensor) -> Tensor:
        """Return the inverse of every symmetric matrix, packed too.

        They should be positive definite; of others it may be inaccurate, or not finite.

        >>> Columns().inverses(torch.tensor([[4.0], [0.0], [2.0]]))
        tensor([[0.2500],
                [0.0000],
                [0.5000]])
        """
        return pack(torch.linalg.inv(unpack(packed)))

    def spectra(self, packed: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return every symmetric matrix's eigenvalues, and a vector's parts along each, squared.

        Args:
            packed: matrices.
            vectors: one for each matrix, (d, m).

        Returns:
            Both (d, m), the eigenvalues in any order.

        >>> matrix, vector = torch.ones(3, 1), torch.tensor([[1.0], [0.0]])
        >>> values, squares = Columns().spectra(matrix, vector)
        >>> [round(float(x), 6) for x in values.flatten().sort().values]
        [0.0, 2.0]
        >>> [round(float(x), 6) for x in squares.flatten()]
        [0.5, 0.5]
        """
        values, axes = torch.linalg.eigh(unpack(packed))
        parts = (axes.mT @ vectors.T.unsqueeze(2)).squeeze(2)
        return values.T, parts.square().T

    def expected(self, tensors: Mapping[int, Tensor], mean: Tensor, covariance: Tensor) -> Tensor:
        """Return Σ_k T_k E(monomials of degree k of u), u ~ N(mean, covariance).

        Args:
            tensors: T_k by degree k, each (rows, monomials), all of one precision.
            mean: of that precision, (d, m).
            covariance: too, packed.

        Returns:
            (rows, m), of that precision.

        >>> one = torch.ones(1, 1)
        >>> float(Columns().expected({2: one, 4: one}, one, one))  # of N(1, 1)
        12.0
        """
        total = mean.new_zeros(len(next(iter(tensors.values()))), mean.shape[1])
        place = positions(len(covariance)).to(mean.device)
        parts = (part.split(_BLOCK, -1) for part in (total, mean, covariance))
        for sums, some, around in zip(*parts, strict=True):
            moments = monomials.moments(some, around[place], max(tensors))
            for k, tensor in tensors.items():
                monomials.add_product(sums, tensor, moments[k - 1])
        return total

    def changes(
        self, slopes: Tensor, a: Tensor, s: Tensor, degree: int, lowest: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Return what ``series.changes`` returns for every record and every column.

        Args:
            slopes: of n records, (degree + 3, n).
            a, s: of every record in every column, (n, m); they may be overwritten.
            degree, lowest: as there.
        """
        cells = _CELLS if a.device.type == "cpu" else a.numel()
        records = max(1, cells // max(1, a.shape[1]))
        parts = slopes.unsqueeze(2).split(records, 1), a.split(records), s.split(records)
        for own, some, share in zip(*parts, strict=True):
            first, second = changes(own, some, share, degree, lowest)
            some.copy_(first)
            share.copy_(second)
        return a, s


def columns_for(many: int, d: int, device: torch.device) -> Columns:
    """Return what suits so many columns of d variables: machine code, if it pays to load it.

    >>> type(columns_for(100, 3, torch.device("cpu"))).__name__
    'Columns'
    """

    def compiled() -> Columns:
        from bdpvi.neighbours.optimum.columns_compiled import CompiledColumns

        return CompiledColumns()

    return machine_code.where_it_pays(many * d, device, compiled, Columns)


def pack(matrices: Tensor) -> Tensor:
    """Return symmetric matrices (m, d, d), packed.

    >>> pack(torch.tensor([[[1.0, 2.0], [2.0, 3.0]]])).flatten()
    tensor([1., 2., 3.])
    """
    row, column = monomials.indices(matrices.shape[-1], 2).to(matrices.device)
    packed: Tensor = matrices.flatten(1).T.index_select(0, row * matrices.shape[-1] + column)
    return packed


def unpack(packed: Tensor) -> Tensor:
    """Return packed matrices as (m, d, d).

    >>> unpack(torch.tensor([[1.0], [2.0], [3.0]]))
    tensor([[[1., 2.],
             [2., 3.]]])
    """
    place = positions(len(packed)).to(packed.device)
    # LAPACK wants one matrix after the other; transposing twice costs less than it would.
    entries: Tensor = packed.index_select(0, place.flatten()).T.contiguous()
    return entries.view(-1, *place.shape)


@cache
def positions(size: int) -> Tensor:
    """Return where each entry of a matrix is among the ``size`` of its packed form, (d, d)."""
    d = dimension(size)
    row, column = monomials.indices(d, 2)
    place = torch.empty(d, d, dtype=torch.long)
    place[row, column] = place[column, row] = torch.arange(size)
    return place


def dimension(size: int) -> int:
    """Return d, where a packed matrix has ``size`` = d(d + 1)/2 entries.

    >>> [dimension(d * (d + 1) // 2) for d in (1, 2, 50)]
    [1, 2, 50]
    """
    return int((2 * size) ** 0.5)

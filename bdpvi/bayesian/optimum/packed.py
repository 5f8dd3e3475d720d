"""Symmetric matrices and tensors with every entry stored once, one matrix or tensor per column.

A packed symmetric matrix (d, d) has d(d + 1)/2 entries, those with row ≤ column, in the order of
:func:`indices`. Symmetric tensors of degree 3 are stored likewise.
"""

from __future__ import annotations

import math
from functools import cache, reduce
from itertools import combinations_with_replacement, pairwise

import torch
from torch import Tensor


@cache
def indices(dimension: int, degree: int) -> Tensor:
    """Return all index tuples a ≤ b ≤ … below ``dimension``, one per column, (degree, n).

    >>> indices(2, 2)
    tensor([[0, 0, 1],
            [0, 1, 1]])
    """
    return torch.tensor(list(combinations_with_replacement(range(dimension), degree))).T


@cache
def positions(dimension: int) -> Tensor:
    """Return the index of each entry of a symmetric matrix in its packed form, (d, d)."""
    row, column = indices(dimension, 2)
    place = torch.empty(dimension, dimension, dtype=torch.long)
    place[row, column] = place[column, row] = torch.arange(len(row))
    return place


def pack(matrices: Tensor) -> Tensor:
    """Return symmetric matrices (m, d, d) packed, (d(d + 1)/2, m).

    >>> pack(torch.tensor([[[1.0, 2.0], [2.0, 3.0]]])).flatten()
    tensor([1., 2., 3.])
    """
    row, column = indices(matrices.shape[-1], 2).to(matrices.device)
    packed: Tensor = matrices[:, row, column].T
    return packed


def unpack(packed: Tensor) -> Tensor:
    """Return packed matrices as (m, d, d).

    >>> unpack(torch.tensor([[1.0], [2.0], [3.0]]))
    tensor([[[1., 2.],
             [2., 3.]]])
    """
    place = positions(int((2 * len(packed)) ** 0.5)).to(packed.device)
    # LAPACK needs each matrix contiguous in memory.
    return packed[place.flatten()].T.contiguous().view(-1, *place.shape)


def monomials(x: Tensor, degree: int) -> Tensor:
    """Return the products x_a x_b … of every column of ``x`` (d, m), in the order of ``indices``.

    >>> monomials(torch.tensor([[2.0], [3.0]]), 2).flatten()
    tensor([4., 6., 9.])
    """
    if degree == 2:
        return squares(x)
    return reduce(torch.mul, (x[i] for i in indices(len(x), degree).to(x.device)))


def squares(x: Tensor) -> Tensor:
    """Return xxᵀ of every column of ``x`` (d, m), packed: without copies of its rows.

    >>> squares(torch.tensor([[2.0], [3.0]])).flatten()
    tensor([4., 6., 9.])
    """
    d, at = len(x), 0
    result = x.new_empty(d * (d + 1) // 2, *x.shape[1:])
    for a in range(d):
        torch.mul(x[a:], x[a], out=result[at : at + d - a])
        at += d - a
    return result


def taylor_weights(dimension: int, degree: int) -> Tensor:
    """Return the coefficients of the monomials in (Σ x)^degree/degree!: 1/Π counts!, (n,).

    >>> taylor_weights(2, 3).tolist() == [1 / 6, 1 / 2, 1 / 2, 1 / 6]
    True
    """
    index = indices(dimension, degree)
    run = weight = torch.ones(index.shape[1], dtype=torch.float64)
    for one, other in pairwise(index):
        run = torch.where(one == other, run + 1, 1)
        weight = weight / run
    return weight


def third_moments(mean: Tensor, covariance: Tensor) -> Tensor:
    """Return E u_a u_b u_c for u ~ N(mean, covariance), a ≤ b ≤ c (Isserlis 1918).

    It is an identity of polynomials, so the covariance need not be positive.

    Args:
        mean: (d, m).
        covariance: packed, (d(d + 1)/2, m).

    Returns:
        (n, m), in the order of ``indices(d, 3)``.

    >>> one = torch.ones(1, 1)
    >>> float(third_moments(one, one))  # of N(1, 1)
    4.0
    """
    d = len(mean)
    place = positions(d).to(mean.device)
    a, b, c = indices(d, 3).to(mean.device)
    second = covariance + monomials(mean, 2)
    result = second[place[a, b]].mul_(mean[c])
    result.addcmul_(mean[a], covariance[place[b, c]])
    return result.addcmul_(mean[b], covariance[place[a, c]])


def outer(u: Tensor) -> Tensor:
    """Return the packed squares of rows (m, n): uuᵀ, (m, n(n + 1)/2)."""
    return squares(u.T.contiguous()).T


def width(n: int, degree: int) -> int:
    """Return the number of monomials of a degree in n variables."""
    return math.comb(n + degree - 1, degree)

"""Sums of records with a proven rounding, and symmetric matrices as vectors of the same norm."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 256
SLACK = 2.0**-18
"""Relative error that rounding of sums of up to 5e7 records adds to a bound, also in blocks: it is
u(256 + log₂N + B)N for :func:`exact_sum` and at most B further additions in pairs, u = 2⁻⁵³."""


def exact_sum(left: Tensor, rows: Tensor) -> Tensor:
    """Return leftᵀ rows, summed over blocks of 256 records whose sums are added in pairs.

    Args:
        left: (N,), or (N, a).
        rows: (N, b).

    Returns:
        (b,), or (a, b).
    """
    matrix = left if left.ndim == 2 else left[:, None]
    whole = len(left) // BLOCK * BLOCK
    blocks = matrix[:whole].reshape(-1, BLOCK, matrix.shape[1]).transpose(1, 2)
    sums = torch.bmm(blocks, rows[:whole].reshape(-1, BLOCK, rows.shape[1]))
    sums = torch.cat([sums, (matrix[whole:].T @ rows[whole:])[None]])
    while len(sums) > 1:
        if len(sums) % 2:
            sums = torch.cat([sums, torch.zeros_like(sums[:1])])
        sums = sums[::2] + sums[1::2]
    return sums[0] if left.ndim == 2 else sums[0, 0]


def triangle_weights(above: Tensor) -> Tensor:
    """Return the weights of a matrix's upper triangle whose norm is that of the matrix."""
    return torch.where(above[0] == above[1], 1.0, math.sqrt(2)).double()


def symmetric(upper: Tensor, k: int) -> Tensor:
    """Return the symmetric (k, k) matrix with these entries on and above the diagonal."""
    made = torch.zeros(k, k, dtype=torch.float64)
    made[tuple(torch.triu_indices(k, k))] = upper
    return made + made.triu(1).T

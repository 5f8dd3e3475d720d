"""The tail of a sample: the shape of a generalised Pareto distribution fitted to it.

The fit is that of Pareto-smoothed importance sampling (Vehtari et al. 2024, §3).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LEAST_TAIL = 5
"""The least number of values to fit."""
_PRIOR_SIZE = 10
"""Weight of the prior at 1/2, in values."""
_CHUNK = 2**21
"""Values × grid points at a time, which limits memory."""


def pareto_shape(tail: Tensor) -> Tensor:
    """Return the shape k̂ of the generalised Pareto distribution fitted to each sample's tail.

    The tail is the largest values, minus the largest value below them.

    Args:
        tail: (..., n + 1), descending: n values of the tail and the largest below them.

    Returns:
        (...); −inf if all values are equal, +inf if fewer than five exceed the one below them,
        too few to fit.
    """
    if tail.shape[-1] <= _LEAST_TAIL:
        return torch.full(tail.shape[:-1], math.inf, dtype=torch.float64, device=tail.device)
    excess = (tail - tail[..., -1:]).reshape(-1, tail.shape[-1]).cpu()
    counts = (excess > 0).sum(-1)
    shapes = torch.full(counts.shape, math.inf, dtype=torch.float64)
    shapes[counts == 0] = -math.inf
    for count in counts[counts >= _LEAST_TAIL].unique().tolist():
        rows = (counts == count).nonzero()[:, 0]
        for chunk in rows.split(max(1, _CHUNK // (count * _profile_size(count)))):
            row = excess[chunk, :count].flip(-1)
            shapes[chunk] = _generalised_pareto_shape(row / row[:, -1:])
    # Tails that span more than the range of a float give NaN.
    shapes = torch.where(shapes.isnan(), math.inf, shapes)
    return shapes.reshape(tail.shape[:-1]).to(tail.device)


def _generalised_pareto_shape(tail: Tensor) -> Tensor:
    """Return k̂ of Zhang and Stephens (2009), shrunk to 1/2 as in Vehtari et al. (2024).

    ``tail`` ascends to 1 in every row. The profile likelihood in b = −k/σ is averaged over a grid,
    weighted by itself.
    """
    n, size = tail.shape[-1], _profile_size(tail.shape[-1])
    spread = 1 - torch.sqrt(size / (torch.arange(1, size + 1, dtype=torch.float64) - 0.5))
    b = 1 + spread / (3 * tail[:, int(n / 4 - 0.5), None])
    k = torch.log1p(-b[..., None] * tail[:, None, :]).mean(-1)
    weight = torch.softmax(n * (torch.log(-b / k) - k), dim=-1)
    best = (weight * b).sum(-1, keepdim=True)
    shape = torch.log1p(-best * tail).mean(-1)
    return (n * shape + _PRIOR_SIZE / 2) / (n + _PRIOR_SIZE)


def _profile_size(count: int) -> int:
    return 30 + math.isqrt(count)

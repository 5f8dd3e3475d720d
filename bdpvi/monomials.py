"""Symmetric tensors as vectors of monomials, one column per record."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from itertools import combinations_with_replacement

import torch
from torch import Tensor


@cache
def indices(dimension: int, degree: int) -> Tensor:
    """Return the index tuples a ≤ b ≤ … of the monomials of one degree, (degree, n).

    They are in the order of their last factor, then the one before, and so on: those that end in
    x_j are x_j times the first monomials of the degree below.
    """
    descending = combinations_with_replacement(range(dimension)[::-1], degree)
    return torch.tensor(list(descending)).flip(0, 1).T


@cache
def taylor_weights(dimension: int, degree: int) -> Tensor:
    """Return how often each monomial occurs in (Σ x)^degree, over degree!: 1/Π counts!."""
    counts = (Counter(column) for column in indices(dimension, degree).T.tolist())
    factorials = [math.prod(map(math.factorial, count.values())) for count in counts]
    return torch.tensor(factorials, dtype=torch.float64).reciprocal()


@cache
def _positions(dimension: int, degree: int) -> dict[tuple[int, ...], int]:
    return {tuple(t): i for i, t in enumerate(indices(dimension, degree).T.tolist())}


@cache
def _without(dimension: int, degree: int, *dropped: int) -> Tensor:
    """Return where each monomial's rest is once the factors at these places are dropped."""
    position = _positions(dimension, degree - len(dropped))
    kept = [k for k in range(degree) if k not in dropped]
    return torch.tensor([position[tuple(t)] for t in indices(dimension, degree)[kept].T.tolist()])


def powers(x: Tensor, degree: int) -> list[Tensor]:
    """Return the monomials of degree 1 … ``degree`` of each column of ``x`` (d, m).

    >>> [u.flatten().tolist() for u in powers(torch.tensor([[2.0], [3.0]]), 2)]
    [[2.0, 3.0], [4.0, 6.0, 9.0]]
    """
    result = [x]
    for k in range(2, degree + 1):
        shorter = [math.comb(j + k - 1, k - 1) for j in range(len(x))]
        result.append(torch.cat([x[j] * result[-1][:n] for j, n in enumerate(shorter)]))
    return result


def moments(mean: Tensor, covariance: Tensor, degree: int) -> list[Tensor]:
    """Return E of the monomials of u of degree 1 … ``degree``, u ~ N(mean, covariance).

    ``E u_a Π u_b = mean_a E Π u_b + Σ_b cov_ab E Π_{c≠b} u_c`` (Isserlis 1918); it holds as an
    identity of polynomials, so the covariance need not be positive.

    Args:
        mean: (d, m).
        covariance: (d, d, m).
        degree: largest degree.

    Returns:
        For each degree (n, m).

    >>> one = torch.ones(1, 1)
    >>> [float(u) for u in moments(one, one.unsqueeze(0), 4)]  # of N(1, 1)
    [1.0, 2.0, 4.0, 10.0]
    """
    d, device = len(mean), mean.device
    flat, result = covariance.flatten(0, 1), [mean]
    for k in range(2, degree + 1):
        index = indices(d, k).to(device)
        shorter = [math.comb(j + k - 1, k - 1) for j in range(d)]
        value = torch.cat([mean[j] * result[-1][:n] for j, n in enumerate(shorter)])
        for place in range(k - 1):
            pair = flat.index_select(0, index[place] * d + index[-1])
            if k > 2:
                pair *= result[-2].index_select(0, _without(d, k, place, k - 1).to(device))
            value += pair
        result.append(value)
    return result

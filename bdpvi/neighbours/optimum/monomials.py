"""Symmetric tensors as vectors of monomials, one column per record."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from itertools import combinations_with_replacement

import torch
from torch import Tensor

SUMMANDS = 2400
"""How many products :func:`add_product` adds up before it adds them to what was there."""
_ROWS = 16
"""Rows from which on a matrix product runs at a processor's speed."""
_PAIRS = 1 << 20
"""How many products are looked for at a time."""


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


def powers(x: Tensor, degree: int) -> list[Tensor]:
    """Return the monomials of degree 1 … ``degree`` of each column of ``x`` (d, m).

    >>> [u.flatten().tolist() for u in powers(torch.tensor([[2.0], [3.0]]), 2)]
    [[2.0, 3.0], [4.0, 6.0, 9.0]]
    """
    sizes = [number(len(x), k) for k in range(1, degree + 1)]
    result = list(x.new_empty(sum(sizes), x.shape[1]).split(sizes))
    result[0].copy_(x)
    for k in range(2, degree + 1):
        shorter, longer = result[k - 2 : k]
        counts = [number(j + 1, k - 1) for j in range(len(x))]
        for factor, n, products in zip(x, counts, longer.split(counts), strict=True):
            torch.mul(factor, shorter[:n], out=products)
    return result


def summed(halves: tuple[Tensor, Tensor], weights: Tensor, d: int, degree: int) -> Tensor:
    """Return weighted sums over all columns of the monomials of one degree, (k, n).

    A monomial is the product of a first half and of a second one that begins no earlier than the
    first ends. First halves of neighbouring ends make one matrix product, with all second halves
    that go with the earliest: some monomials are summed twice, but thinner products are slower.

    Args:
        halves: the first from ``powers(x)``, the second from ``powers(x.flip(0))``, (n, m) each.
        weights: k sets of weights, (k, m).
        d: dimension of x.
        degree: of the monomials, the sum of those of the halves.

    Returns:
        The sums, where :func:`places` says.
    """
    half, second = degree // 2, halves[1]
    first = halves[0].unsqueeze(1) * weights
    blocks = []
    for start, end in _ends(d, half):
        some = first[number(start, half) : number(end, half)].flatten(0, 1)
        # The longer factor first, which is faster.
        block = second[: number(d - start, degree - half)] @ some.T
        blocks.append(block.unflatten(1, (-1, len(weights))).permute(2, 1, 0).flatten(1))
    return torch.cat(blocks, 1)


@cache
def _ends(d: int, degree: int) -> list[tuple[int, int]]:
    """Return ranges of the last factor, each with enough monomials of one degree."""
    ranges, start = [], 0
    for end in range(1, d + 1):
        if end == d or number(end, degree) - number(start, degree) >= _ROWS:
            ranges.append((start, end))
            start = end
    return ranges


@cache
def places(d: int, one: int, other: int) -> Tensor:
    """Return where in :func:`summed` monomials of degree ``one`` times those of ``other`` are.

    >>> x = torch.tensor([[2.0], [3.0]])
    >>> sums = summed((x, powers(x.flip(0), 2)[1]), torch.ones(1, 1), 2, 3)
    >>> sums[0, places(2, 1, 2)]
    tensor([[ 8., 12., 18.],
            [12., 18., 27.]])
    """
    left, right = indices(d, one), indices(d, other)
    parts = left.split(max(1, _PAIRS // right.shape[1]), 1)
    return torch.cat([_places(part, right, d) for part in parts])


def _places(left: Tensor, right: Tensor, d: int) -> Tensor:
    """Return where products of monomials with these factors, (one, n) and (other, m), are."""
    shape, degree = (left.shape[1], right.shape[1]), len(left) + len(right)
    pairs = left.unsqueeze(2).expand(-1, *shape), right.unsqueeze(1).expand(-1, *shape)
    factors = torch.cat(pairs).sort(0).values
    half, rest = degree // 2, degree - degree // 2
    # Of each end: where its range starts, and how many sums come before those of the range.
    begins, befores = [], []
    before = 0
    for begin, end in _ends(d, half):
        begins += [begin] * (end - begin)
        befores += [before] * (end - begin)
        before += (number(end, half) - number(begin, half)) * number(d - begin, rest)
    last = factors[half - 1]
    start = torch.tensor(begins)[last]
    row = _rank(factors[:half], d) - _counts(d, half)[start]
    column = _rank((d - 1 - factors[half:]).flip(0), d)
    return torch.tensor(befores)[last] + row * _counts(d, rest)[d - start] + column


def moments(mean: Tensor, covariance: Tensor, degree: int) -> list[Tensor]:
    """Return E of the monomials of u of degree 1 … ``degree``, u ~ N(mean, covariance).

    ``E u_a Π u_b = mean_a E Π u_b + Σ_b cov_ab E Π_{c≠b} u_c`` (Isserlis 1918); it holds as an
    identity of polynomials, so the covariance need not be positive. Its sums are taken over blocks
    of neighbouring monomials, several times as fast as looking each of them up.

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
    d, below, last = len(mean), torch.ones_like(mean[:1]), mean
    result = [last]
    for k in range(2, degree + 1):
        blocks = []
        for c in range(d):
            # All x_a … x_c x_j with a ≤ … ≤ c ≤ j, for every j at once.
            block = mean[c:].unsqueeze(1) * last[_ending(c, k - 1)]
            _add_products(block, covariance[c:], below, c, k - 1)
            blocks.append(block)
        below, last = last, torch.cat([blocks[c][j - c] for j in range(d) for c in range(j + 1)])
        result.append(last)
    return result


def add_product(sums: Tensor, tensor: Tensor, values: Tensor) -> None:
    """Add ``tensor @ values`` to ``sums``, up to :data:`SUMMANDS` products at a time.

    A sum in blocks has fewer roundings than there are products.
    """
    for part, of in zip(tensor.split(SUMMANDS, 1), values.split(SUMMANDS), strict=True):
        sums.addmm_(part, of)


def number(variables: int, degree: int) -> int:
    """Return how many monomials of one degree there are."""
    return math.comb(variables + degree - 1, degree) if degree else 1


def _ending(c: int, degree: int) -> slice:
    """Return where the monomials of one degree are that end in x_c."""
    return slice(number(c, degree), number(c + 1, degree))


def _rank(factors: Tensor, d: int) -> Tensor:
    """Return where the monomials with these factors, in order, (degree, ...), are."""
    ranks = [_counts(d, k)[factor] for k, factor in enumerate(factors, start=1)]
    return torch.stack(ranks).sum(0)


def _counts(d: int, degree: int) -> Tensor:
    return torch.tensor([number(variables, degree) for variables in range(d + 1)])


def _add_products(sums: Tensor, factors: Tensor, rest: Tensor, c: int, degree: int) -> None:
    """Add ``Σ_b factor_b rest_{without b}`` to ``sums``, b running over the factors of a monomial.

    Args:
        sums: for k sets of factors and all monomials of this degree that end in x_c, (k, n, m).
        factors: (k, d, m).
        rest: of the monomials of one degree less, (n, m).
        c: the last factor.
        degree: of the monomials.
    """
    sums.addcmul_(factors[:, c : c + 1], rest[: sums.shape[1]])
    if degree == 2:
        sums.addcmul_(factors[:, : c + 1], rest[c])
    elif degree > 2:
        # Each monomial of one degree less that ends in x_b, times x_c.
        ending = rest[_ending(c, degree - 1)]
        for b in range(c + 1):
            _add_products(sums[:, _ending(b, degree - 1)], factors, ending, b, degree - 1)

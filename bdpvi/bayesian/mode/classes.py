r"""Records of a multinomial regression, whose loss has several predictors.

With z the row, V the weights (n, K − 1) and Q an orthonormal basis of the vectors that sum to 0,
the predictors are QVᵀz, and the loss is the log of the sum of their exponentials minus that of the
target's class. Along a displacement the predictors' range R changes the logarithm of the loss's
curvature at most by R: with p the probabilities, the third derivative is E x²v, v within R of its
mean 0 (Bach, EJS 4, 2010). R is the largest difference of two predictors, so h is the largest
length of (e_c − e_c′)Q ⊗ z in the norm of F″⁻¹, at most √2‖z‖.

*Remainders*, for x and v of mean 0, E x² = 1 and v's range 1. Derivatives of E x² along v are the
joint cumulants of x, x and k times v:

- k = 2: E x²v² − E v² − 2(E xv)², within [−¾, 1].
- k = 3: E x²v³ − E v³ − 3 E v² E x²v − 6 E xv E xv², at most 1 + 0.1 + ¾ + 6/4 < 3.4.
- k = 4: E x²v⁴ − E v⁴ − 8 E xv E xv³ − 6 E v² E x²v² − 4 E x²v E v³ − 6(E xv²)² + 6(E v²)² +
  24 E v²(E xv)², at most 1 + 0.09 + 2 + 1.5 + 0.4 + 1.5 + 0.4 + 1.5 < 8.4,

as E v² ≤ ¼, |E v³| ≤ 1/(6√3), E v⁴ ≤ 1/12, and E xv, E xv², E xv³ are at most ½, half a range.
Those of E xv are E xv², E xv(v² − 3 E v²) and E xv⁴ − 4 E xv E v³ − 6 E v² E xv²: at most the
product of the standard deviations, for the third 2.9 times that. So the remainders of
:mod:`bdpvi.bayesian.mode.expansion` hold, times 1, 3.4 and 8.4 for degrees 1, 2 and 3.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations

import torch
from torch import Tensor

from bdpvi.bayesian.optimum.packed import indices, monomials, outer, unpack, width
from bdpvi.bayesian.optimum.weighted import Weighted, blocks
from bdpvi.models.family import Family

_NARROW = 24
"""Largest number of weights for tensors of degree 3."""


def weigh(part: tuple[Tensor, Tensor], model: Family) -> Weighted:
    """Return records, x and y, transformed by ``model``, in float64 on the host."""
    kind = WeightedClasses if model.target == "class" else Weighted
    return kind.of_rows(model, *(values.double().cpu() for values in part))


class WeightedClasses(Weighted):
    """Records of several predictors; marks are classes."""

    @property
    def cost(self) -> float:
        """Work of a pass over a record and a packed entry of F″."""
        return 20.0

    @property
    def most(self) -> int:
        """Largest degree of F″ in displacements: 3, or 2 where tensors would be too large."""
        return 3 if self.x.shape[1] * self.loss.predictors <= _NARROW else 2

    def predictors(self, w: Tensor) -> Tensor:
        """Return zᵀV, (N, K − 1)."""
        return self.x @ w.view(self.x.shape[1], -1)

    def directions(self, root: Tensor) -> Tensor:
        """Return the rows in units of the mode, one for each predictor, (N, K − 1, n)."""
        by_row = root.view(self.x.shape[1], -1, root.shape[1])
        return torch.einsum("mn,njr->mjr", self.x, by_row)

    def score(self, b: Tensor) -> Tensor:
        """Return the loss's gradient at predictors (..., N, K − 1)."""
        found: Tensor = self.loss.score(b, self.mark.long())
        return found

    def curvature(self, b: Tensor) -> Tensor:
        """Return the loss's second derivatives at predictors (N, K − 1), (N, K − 1, K − 1)."""
        return unpack(moments(b, self.loss.basis, 2).T)

    def sums_at(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the records' part of F(w), F′(w) and F″(w)."""
        value, pull, n = torch.zeros(()).double(), torch.zeros_like(w), self.x.shape[1]
        basis = self.loss.basis
        bend = torch.zeros(width(n, 2), width(basis.shape[1], 2)).double()
        for some in blocks(len(self), width(n, 2) + 2 * self.loss.classes):
            part = self.select(some)
            b = part.predictors(w)
            logs = (b @ basis.T).log_softmax(1)
            value = value - part.weight @ logs.gather(1, part.mark.long().unsqueeze(1)).squeeze(1)
            scaled = part.weight.unsqueeze(1) * part.score(b)
            pull += (part.x.T @ scaled).flatten()
            second = moments(b, basis, 2) * part.weight.unsqueeze(1)
            bend += outer(part.x).T @ second
        return value, pull, _whole(bend, n, basis.shape[1], 2)

    def lengths(self, root: Tensor) -> Tensor:
        """Return the largest length of (e_c − e_c′)Q ⊗ z, (N,)."""
        u, longest = self.directions(root), torch.zeros(len(self)).double()
        for one, other in combinations(self.loss.basis, 2):
            along = torch.einsum("mjr,j->mr", u, one - other)
            longest = torch.maximum(longest, torch.linalg.vector_norm(along, dim=1))
        return longest

    def excess(self, degree: int) -> float:
        """Return the factor of the remainder."""
        return (1.0, 3.4, 8.4)[degree - 1]

    def norm(self, columns: int) -> float:
        """Return √n, as the bound is one on eigenvalues."""
        return math.sqrt(columns)

    def tensors(self, point: Tensor, root: Tensor, degree: int, reach: float) -> tuple[Tensor, ...]:
        """Return the records' part of T₃, T₄, … of F″ up to a degree, each (n(n + 1)/2, ·)."""
        n, basis = self.x.shape[1], self.loss.basis
        orders, inner = range(3, degree + 3), basis.shape[1]
        raw = {k: torch.zeros(width(n, k), width(inner, k)).double() for k in orders}
        for some in blocks(
            len(self), width(n, degree + 2) + self.loss.classes * width(inner, degree + 2)
        ):
            part = self.select(some)
            b = part.predictors(point)
            for k in orders:
                scaled = moments(b, basis, k) * part.weight.unsqueeze(1)
                raw[k] += monomials(part.x.T, k) @ scaled
        size = len(point)
        bends = []
        row, column = indices(size, 2)
        for k in orders:
            whole = _in_root_units(_whole(raw.pop(k), n, inner, k), root)
            index = indices(size, k - 2)
            at = (row[:, None], column[:, None], *(one[None] for one in index))
            bends.append(whole[at])
        return tuple(bends)

    def _moved_predictors(self, point: Tensor, root: Tensor, x: Tensor) -> Tensor:
        """Return predictors at displacements (m, n), (m, N, K − 1)."""
        moves = (x @ root.T).view(len(x), self.x.shape[1], -1)
        return self.predictors(point) + self.x @ moves

    def pulls(self, point: Tensor, root: Tensor, x: Tensor) -> Tensor:
        """Return the records' part of the change of F′ at displacements (m, n)."""
        still = self.score(self.predictors(point))
        change = self.score(self._moved_predictors(point, root, x)) - still
        scaled = self.weight.unsqueeze(1) * change
        return (self.x.T @ scaled).flatten(1) @ root

    def bends(self, point: Tensor, root: Tensor, x: Tensor) -> Tensor:
        """Return the records' part of F″ at displacements (m, n), packed, (m, n(n + 1)/2)."""
        basis, n = self.loss.basis, self.x.shape[1]
        square, found, (row, column) = outer(self.x).T, [], indices(len(point), 2)
        for b in self._moved_predictors(point, root, x):
            second = moments(b, basis, 2) * self.weight.unsqueeze(1)
            bend = root.T @ _whole(square @ second, n, basis.shape[1], 2) @ root
            found.append(bend[row, column])
        return torch.stack(found)


def moments(b: Tensor, basis: Tensor, degree: int) -> Tensor:
    """Return the derivatives of the log of the sum of exponentials: joint cumulants, packed.

    Args:
        b: predictors in the basis, (N, J).
        basis: Q, (K, J).
        degree: 2 to 5.

    Returns:
        (N, J(J + 1)…/degree!).

    >>> from bdpvi.models.multinomial import Softmax
    >>> basis = Softmax(2).basis
    >>> [round(float(moments(torch.zeros(1, 1).double(), basis, k)), 4) for k in (2, 3, 4)]
    [0.5, 0.0, -0.5]
    """
    p = (b @ basis.T).softmax(1)
    away = basis - (p @ basis).unsqueeze(1)  # (N, K, J)
    by_variable = away.permute(2, 0, 1)
    central = (monomials(by_variable, degree) * p).sum(2).T
    if degree < 4:
        return central
    lower = [_dense((monomials(by_variable, k) * p).sum(2).T, k) for k in range(2, degree - 1)]
    index, whole = indices(basis.shape[1], degree), set(range(degree))
    for two in combinations(range(degree), 2):
        rest = sorted(whole - set(two))
        if degree == 5 or two[0] == 0:  # of four each split in pairs counts once
            pair, other = (..., *index[list(two)]), (..., *index[rest])
            central = central - lower[0][pair] * lower[-1][other]
    return central


def _dense(packed: Tensor, degree: int) -> Tensor:
    """Return packed symmetric tensors (N, …) with every entry, (N, J, J, …)."""
    size, inner = packed.shape[1], 1
    while width(inner, degree) < size:
        inner += 1
    return packed[:, _places(inner, degree)]


@cache
def _places(dimension: int, degree: int) -> Tensor:
    """Return the index of each entry of a symmetric tensor in its packed form."""
    index = torch.cartesian_prod(*[torch.arange(dimension)] * degree).view(-1, degree)
    index = index.sort(1).values
    weights = dimension ** torch.arange(degree - 1, -1, -1)
    codes, packed = index @ weights, weights @ indices(dimension, degree)
    return torch.searchsorted(packed, codes).view([dimension] * degree)


def _whole(packed: Tensor, rows: int, inner: int, degree: int) -> Tensor:
    """Return a symmetric tensor of n = rows · inner variables from its packed Kronecker form."""
    of_rows, of_inner = _places(rows, degree), _places(inner, degree)
    shape = [part for _ in range(degree) for part in (rows, inner)]
    first = of_rows.view([part if at % 2 == 0 else 1 for at, part in enumerate(shape)])
    second = of_inner.view([part if at % 2 else 1 for at, part in enumerate(shape)])
    whole: Tensor = packed[first, second].reshape([rows * inner] * degree)
    return whole


def _in_root_units(tensor: Tensor, root: Tensor) -> Tensor:
    """Return a tensor with every index in units of the mode."""
    for _ in range(tensor.ndim):
        tensor = torch.tensordot(tensor, root, dims=([0], [0]))
    return tensor

"""Every neighbour's mode and curvature, from derivatives at the mode.

In units of the mode's own Gaussian, u = Lᵀz, a displacement Δ of the neighbour's mode solves

    Δ + Σ_{k ≥ 2} T_{k+1}[Δ^k]/k! ± ω ℓ′(z·m + u·Δ) u = 0,   T_k = Σ ωᵢ ℓ⁽ᵏ⁾ uᵢ^{⊗k},

with + for an added record and − for a removed one, and its precision is
K = I + Σ_{k ≥ 1} T_{k+2}[Δ^k]/k! ± ω ℓ″ u uᵀ. The sum for K is truncated at k = j, that for Δ at
g = max(j, 2), as T₃ serves both. As |ℓ⁽ᵏ⁾| ≤ M^{k−2} ℓ″ for k up to 6, with t = ‖Δ‖ the truncation
error of the gradient is at most e^{ht} (ht)^g t/(g + 1)!. That of K is a sum of matrices
ωᵢ ℓ″ uᵢuᵢᵀ times at most e^{ht} |M uᵢ·Δ|^{j+1}/(j + 1)!, and Σ ωᵢ ℓ″ (uᵢ·Δ)² ≤ t², M‖uᵢ‖ ≤ h: its
trace norm, hence its Frobenius norm, is at most e^{ht} (ht)^{j+1}/(j + 1)!. Each neighbour uses the
smallest j with a negligible error; neighbours too far for any degree are computed by passes over
all records. If a loss has a kink, rows that some neighbour's displacement may carry across it are
left out of the tensors, and summed exactly for every neighbour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from operator import methodcaller

import torch
from torch import Tensor

from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.mode.objective import Peak
from bdpvi.bayesian.mode.rows import TINY, OwnTerms, solve_shifts
from bdpvi.bayesian.neighbours.rows import Piece, each_piece
from bdpvi.bayesian.optimum.packed import (
    indices,
    monomials,
    pack,
    positions,
    taylor_weights,
    unpack,
    width,
)
from bdpvi.bayesian.optimum.weighted import Weighted, blocks

NEGLIGIBLE, TOLERABLE = 1e-10, 1e-7
"""Limits on the total variation distance of a neighbour's Gaussian from the true one: to accept a
degree, for one neighbour or the mean of all, as δ is a mean; to need no passes, because δ pays e^ε
times as much; and to need none where passes are too much work."""
_WORK = 1e9
"""Largest number of products in passes over all records, for neighbours above the limit."""
FAR = 1.2
"""Largest expected displacement, over the first Newton step."""
_ENTRIES = 1 << 24
"""Largest number of entries of a tensor."""
_PIECE = 1 << 22
"""Entries of all precisions of the neighbours that are computed at once."""
_AT_ONCE = 1 << 23
"""Numbers of a pass over all records: those of every record and neighbour."""
_REACH = 1.5
"""Largest displacement, over the largest expected one, for which rows are known to keep to their
side of a kink; a neighbour that is further is computed by a pass."""


@dataclass(frozen=True, eq=False)
class Moved:
    """Neighbours, with the fit against each.

    Attributes:
        r, b2: as of :class:`~bdpvi.bayesian.accounting.gaussian_pairs.GaussianPairs`, (m, n).
        error: bound on each Gaussian's total variation distance from the true one, (m,).
    """

    r: Tensor
    b2: Tensor
    error: Tensor

    @classmethod
    def of(cls, shift: Tensor, precision: Tensor, error: Tensor) -> Moved:
        """Return neighbours by Δ, (m, n), and K, packed, (n(n + 1)/2, m), in units of the mode."""
        size, axes = torch.linalg.eigh(unpack(precision))
        return cls(size, size * (axes.mT @ shift.unsqueeze(2)).squeeze(2).square(), error)

    @classmethod
    def none(cls, count: int, columns: int) -> Moved:
        """Return room for neighbours."""
        r, b2 = torch.empty(2, count, columns, dtype=torch.float64)
        return cls(r, b2, torch.full((count,), math.inf, dtype=torch.float64))

    def write_at(self, at: Tensor | slice, some: Moved) -> None:
        """Write neighbours to these places."""
        self.r[at], self.b2[at], self.error[at] = some.r, some.b2, some.error

    def pairs(self) -> GaussianPairs:
        """Return the fit against each neighbour."""
        return GaussianPairs(self.r, self.b2)


@dataclass(frozen=True, eq=False)
class ModeExpansion:
    """The derivatives of F at the mode, which give neighbours without the records.

    Attributes:
        point, root, longest: as of :class:`~bdpvi.bayesian.mode.objective.Peak`.
        near: rows that may cross a kink.
        reach: the largest displacement for which the others do not.
        bends: T_{k+2}/k! for k = 1, 2, …, packed, (n(n + 1)/2, ·).
    """

    point: Tensor
    root: Tensor
    longest: float
    near: Weighted
    reach: float
    bends: tuple[Tensor, ...]

    @classmethod
    def around(cls, mode: Peak, far: Tensor) -> ModeExpansion:
        """Return the derivatives up to the degree that displacements need.

        Args:
            mode: the mode.
            far: displacements to cover, (m,), unless tensors would be too large.
        """
        n, near, degree = len(mode.point), mode.none, 1
        reach = _REACH * float(far.max()) if len(far) else 0.0
        if math.isfinite(near.loss.kink):
            near = mode.posterior.near(mode.point, mode.root, reach)

        def lacks(degree: int) -> bool:
            off = missing(mode.longest * far, far, degree, n, near)
            return not bool((off <= TOLERABLE).all()) or bool(off.mean() > NEGLIGIBLE)

        def fits(degree: int) -> bool:
            return width(n, 2) * width(n, degree) <= _ENTRIES

        while degree < near.most and fits(degree + 1) and lacks(degree):
            degree += 1
        tensors = methodcaller("tensors", mode.point, mode.root, degree, reach)
        bends = enumerate(mode.posterior.records.sum(tensors), 1)
        weighted = tuple(one * taylor_weights(n, k) for k, one in bends)
        return cls(mode.point, mode.root, mode.longest, near, reach, weighted)

    @property
    def degree(self) -> int:
        """The largest degree j."""
        return len(self.bends)

    @cached_property
    def gradients(self) -> dict[int, Tensor]:
        """T_{k+1}/k! by degree k, (n, ·), from k = 2 on."""
        return {k: self._gradient(k) for k in range(2, max(self.degree, 2) + 1)}

    def _gradient(self, degree: int) -> Tensor:
        n = len(self.point)
        place, (first, *rest) = positions(n), indices(n, degree)
        column = rest[0] if degree == 2 else place[rest[0], rest[1]]
        raw = self.bends[degree - 2] / taylor_weights(n, degree - 1)
        return raw[place[:, first], column] * taylor_weights(n, degree)

    def pull(self, moves: Tensor, degree: int) -> Tensor:
        """Return the change of F′ at displacements (m, n), by the polynomial for a degree j.

        The part of rows near a kink is exact beyond first order, that of :meth:`bend` beyond F″.
        """
        total, near = moves.T.clone(), self.near
        for k in range(2, max(degree, 2) + 1):
            total += self.gradients[k] @ monomials(moves.T, k)
        result: Tensor = total.T
        if len(near):
            u = near.x @ self.root
            _, bend = near.slopes(near.x @ self.point, 2)
            result = result + near.pulls(self.point, self.root, moves)
            result = result - (near.weight * bend * (moves @ u.T)) @ u
        return result

    def bend(self, moves: Tensor, degree: int) -> Tensor:
        """Return F″ at displacements (m, n), packed, (n(n + 1)/2, m)."""
        row, column = indices(len(self.point), 2)
        total: Tensor = (row == column).double().unsqueeze(1).repeat(1, len(moves))
        for k in range(1, degree + 1):
            total += self.bends[k - 1] @ monomials(moves.T, k)
        if len(self.near):
            both = torch.cat([moves, torch.zeros_like(moves[:1])])
            bends = self.near.bends(self.point, self.root, both).T
            total += bends[:, :-1] - bends[:, -1:]
        return total

    def neighbours(self, records: Weighted, sign: float) -> Moved:
        """Return the neighbours with one of the records added (``sign`` 1) or removed (−1)."""
        count, n = len(records), len(self.point)
        moved, todo = Moved.none(count, n), torch.ones(count, dtype=torch.bool)
        far = FAR * _first_steps(records, self.point, self.root, sign)
        for degree in range(1, self.degree + 1):
            serves = missing(self.longest * far, far, degree, n, self.near) <= NEGLIGIBLE
            mine = (todo & (serves | (degree == self.degree))).nonzero()[:, 0]
            todo[mine] = False
            for part in blocks(len(mine), width(n, 2) + width(n, degree) + len(self.near)):
                at = mine[part]
                moved.write_at(at, self._solve(records.select(at), sign, degree))
        return moved

    def _solve(self, records: Weighted, sign: float, degree: int) -> Moved:
        """Return neighbours computed by the polynomial of a degree, with their error bounds."""
        n, place = len(self.point), (self.point, self.root, sign)
        shift, left = solve_shifts(records, place, lambda x: self.pull(x, degree))
        own = OwnTerms(records, *place)
        bent = self.bend(shift, degree) + own.bend(shift)
        length = torch.linalg.vector_norm(shift, dim=1)
        off = missing(self.longest * length, length, degree, n, self.near)
        if math.isfinite(self.near.loss.kink):
            off = off.where(length <= self.reach, math.inf)
        return Moved.of(shift, bent, (off + remaining_error(left, self.longest, n)) / own.least)


def neighbours(mode: Peak, expansion: ModeExpansion, records: Weighted, sign: float) -> Moved:
    """Return the neighbours with one of the records added (``sign`` 1) or removed (−1).

    They are computed some at a time, of a table in blocks by its workers.

    Args:
        mode: the mode.
        expansion: around it.
        records: the records; in the data where ``sign`` is −1.
        sign: 1 or −1.
    """
    n, data, count = len(mode.point), mode.posterior.records, mode.posterior.count
    places, moved = blocks(len(records), width(n, 2), _PIECE), Moved.none(len(records), n)
    pieces = [Piece(f"{len(one)} neighbours", one) for one in map(records.select, places)]
    found = each_piece(data, pieces, expansion.neighbours, sign)
    for place, some in zip(places, found, strict=True):
        moved.write_at(place, some)
    rough = (~(moved.error <= TINY)).nonzero()[:, 0]
    if len(rough) * count * width(n, 2) * records.cost > _WORK:
        rough = (~(moved.error <= TOLERABLE)).nonzero()[:, 0]
    for part in blocks(len(rough), count, _AT_ONCE):
        moved.write_at(rough[part], _pass(mode, records.select(rough[part]), sign))
    return replace(moved, error=moved.error.nan_to_num(1.0).clamp(max=1.0))


def _pass(mode: Peak, records: Weighted, sign: float) -> Moved:
    """Return neighbours computed by passes over all records."""
    place, data, n = (mode.point, mode.root), mode.posterior.records, len(mode.point)
    prior = mode.posterior.precision * mode.root.T @ mode.root

    def pull(x: Tensor) -> Tensor:
        pulled: Tensor = data.sum(methodcaller("pulls", *place, x)) + x @ prior
        return pulled

    shift, left = solve_shifts(records, (*place, sign), pull)
    bent = data.sum(methodcaller("bends", *place, shift)) + pack(prior[None])[:, 0]
    own = OwnTerms(records, *place, sign)
    error = remaining_error(left, mode.longest, n) / own.least
    return Moved.of(shift, bent.T + own.bend(shift), error)


def missing(ht: Tensor, t: Tensor, degree: int, columns: int, rows: Weighted) -> Tensor:
    """Return the total variation distance due to truncation, for displacements of length t."""
    end = max(degree, 2)
    gradient = rows.excess(end) * ht.exp() * ht.pow(end) * t / math.factorial(end + 1)
    curvature = rows.excess(degree) * ht.exp() * ht.pow(degree + 1) / math.factorial(degree + 1)
    return _variation(gradient, rows.norm(columns) * curvature, ht)


def remaining_error(gradient: Tensor, longest: float, columns: int) -> Tensor:
    """Return the total variation distance due to a remaining gradient in mode and curvature."""
    return 2 * gradient * (1 + longest * math.sqrt(columns))


def first_steps(mode: Peak, records: Weighted, sign: float) -> Tensor:
    """Return the length of every neighbour's first Newton step, about its displacement, (m,)."""
    places = blocks(max(len(records), 1), len(mode.point), _PIECE)
    place = mode.point, mode.root, sign
    return torch.cat([_first_steps(records.select(at), *place) for at in places])


def _first_steps(records: Weighted, point: Tensor, root: Tensor, sign: float) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(OwnTerms(records, point, root, sign).start, dim=1)
    return length


def _variation(gradient: Tensor, curvature: Tensor, ht: Tensor) -> Tensor:
    """Bound the total variation of N(0, I) from a Gaussian with inexact mode and precision.

    By Pinsker it is at most ½(ρ² + η²)^½ for a mean ρ standard deviations and a precision η away in
    Frobenius norm, with η small; with a gradient of g the mode is within g/((1 − a) e^{−ht}). This
    function takes a = 0: callers divide by 1 − a, the neighbour's own least curvature.
    """
    rho = 2 * gradient * ht.exp()
    return 0.5 * (rho.square() + (2 * curvature).square()).sqrt()

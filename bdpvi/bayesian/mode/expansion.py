"""Every neighbour's mode and curvature, from derivatives at the mode.

In units of the mode's own Gaussian, u = Lᵀz, a displacement Δ of the neighbour's mode solves

    Δ + Σ_{k ≥ 2} T_{k+1}[Δ^k]/k! ± ω ℓ′(z·m + u·Δ) u = 0,   T_k = Σ ωᵢ ℓ⁽ᵏ⁾ uᵢ^{⊗k},

with + for an added record and − for a removed one, and its precision is
K = I + Σ_{k ≥ 1} T_{k+2}[Δ^k]/k! ± ω ℓ″ u uᵀ. The sums are truncated at k = j. As |ℓ⁽ᵏ⁾| ≤
M^{k−2} ℓ″ for k up to 6, with t = ‖Δ‖ the truncation error of the gradient is at most
e^{ht} (ht)^j t/(j + 1)!, and that of K at most e^{ht} (ht)^{j+1}/(j + 1)!. Each neighbour uses the
smallest j with a negligible error; neighbours too far for any degree are computed by passes over
all records. If a loss has a kink, rows that some neighbour's displacement may carry across it are
left out of the tensors from T₃ on, and summed exactly for every neighbour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.mode.objective import Peak
from bdpvi.bayesian.mode.own import TINY, OwnCurvature
from bdpvi.bayesian.mode.rows import Beyond, Rows, blocks, width
from bdpvi.bayesian.optimum.packed import indices, monomials, taylor_weights, unpack

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
_REACH = 1.5
"""Largest displacement, over the largest expected one, for which rows are known to keep to their
side of a kink; a neighbour that is further is computed by a pass."""


@dataclass(frozen=True, eq=False)
class Moved:
    """Neighbours in units of the mode.

    Attributes:
        shift: Δ, (m, n).
        precision: K, packed, (n(n + 1)/2, m).
        error: bound on each Gaussian's total variation distance from the true one, (m,).
    """

    shift: Tensor
    precision: Tensor
    error: Tensor

    def pairs(self) -> GaussianPairs:
        """Return the fit against each neighbour."""
        r, b2 = torch.empty_like(self.shift), torch.empty_like(self.shift)
        for part in blocks(len(self.shift), self.shift.shape[1] ** 2):
            size, axes = torch.linalg.eigh(unpack(self.precision[:, part]))
            r[part] = size
            b2[part] = size * (axes.mT @ self.shift[part].unsqueeze(2)).squeeze(2).square()
        return GaussianPairs(r, b2)


class ModeExpansion:
    """The derivatives of F at the mode, up to the degree that displacements need.

    Args:
        mode: the mode.
        far: displacements to cover, (m,), unless tensors would be too large.
    """

    def __init__(self, mode: Peak, far: Tensor) -> None:
        self.mode, self.n = mode, len(mode.point)
        self.reach = _REACH * float(far.max()) if len(far) else 0.0
        self.near = mode.posterior.records.sum(_near, mode.point, mode.root, self.reach)
        self.degree = 1
        while self.degree < self.near.most and self._fits(self.degree + 1) and self._short(far):
            self.degree += 1
        records, degrees = mode.posterior.records, range(1, self.degree + 1)
        gradients, bends = records.sum(_tensors, mode.point, mode.root, self.degree, self.reach)
        weights = [taylor_weights(self.n, k) for k in degrees]
        self.gradients = [one * w for one, w in zip(gradients, weights, strict=True)]
        self.bends = [one * w for one, w in zip(bends, weights, strict=True)]
        row, column = indices(self.n, 2)
        self.eye = (row == column).double().unsqueeze(1)

    def _width(self, degree: int) -> int:
        return width(self.n, degree)

    def _fits(self, degree: int) -> bool:
        return self._width(2) * self._width(degree) <= _ENTRIES

    def _short(self, far: Tensor) -> bool:
        missing = self._missing(far, self.degree)
        return not bool((missing <= TOLERABLE).all()) or bool(missing.mean() > NEGLIGIBLE)

    def _missing(self, t: Tensor, degree: int) -> Tensor:
        """Return the total variation distance due to truncation, for displacements of length t."""
        ht = self.mode.longest * t
        factor = math.factorial(degree + 1) / self.near.excess(degree)
        curvature = ht.exp() * ht.pow(degree + 1) / factor
        gradient = ht.exp() * ht.pow(degree) * t / factor
        return _variation(gradient, curvature, ht, self.n)

    def neighbours(self, records: Rows, sign: float) -> Moved:
        """Return the neighbours with one of the records added (``sign`` 1) or removed (−1).

        Args:
            records: the records; in the data where ``sign`` is −1.
            sign: 1 or −1.
        """
        count = len(records)
        moved = Moved(
            torch.empty(count, self.n).double(),
            torch.empty(self._width(2), count).double(),
            torch.full((count,), math.inf).double(),
        )
        far = FAR * first_steps(self.mode, records, sign)
        todo = torch.ones(count, dtype=torch.bool)
        for degree in range(1, self.degree + 1):
            serves = self._missing(far, degree) <= NEGLIGIBLE
            mine = (todo & (serves | (degree == self.degree))).nonzero()[:, 0]
            todo[mine] = False
            entries = self._width(2) + self._width(degree) + len(self.near)
            for part in blocks(len(mine), entries):
                self._solve(records, sign, moved, mine[part], degree)
        rough, all_of_them = (~(moved.error <= TINY)).nonzero()[:, 0], self.mode.posterior.count
        if len(rough) * all_of_them * self._width(2) * records.cost > _WORK:
            rough = (~(moved.error <= TOLERABLE)).nonzero()[:, 0]
        for part in blocks(len(rough), all_of_them):
            self._pass(records, sign, moved, rough[part])
        return replace(moved, error=moved.error.nan_to_num(1.0).clamp(max=1.0))

    def _solve(self, records: Rows, sign: float, moved: Moved, at: Tensor, degree: int) -> None:
        """Write neighbours computed by the polynomial into ``moved``, with their error bounds."""
        own = self._own(records.select(at), sign)
        near = Beyond(self.near, self.mode.point, self.mode.root)

        def pull(x: Tensor) -> Tensor:
            total = x.T.clone()
            for k in range(2, degree + 1):
                total += self.gradients[k - 1] @ monomials(x.T, k)
            return total.T + near.pulls(x)

        shift, left = own.solved(pull)
        bent = self.eye.expand(-1, len(at)).clone()
        for k in range(1, degree + 1):
            bent += self.bends[k - 1] @ monomials(shift.T, k)
        length = torch.linalg.vector_norm(shift, dim=1)
        missing = self._missing(length, degree)
        if math.isfinite(self.near.loss.kink):
            missing = missing.where(length <= self.reach, math.inf)
        moved.shift[at] = shift
        moved.precision[:, at] = bent + near.bends(shift) + own.bend(shift)
        moved.error[at] = (missing + self._left(left)) / own.least

    def _own(self, records: Rows, sign: float) -> OwnCurvature:
        return records.own(self.mode.point, self.mode.root, sign)

    def _pass(self, records: Rows, sign: float, moved: Moved, at: Tensor) -> None:
        """Write neighbours computed by passes over all records into ``moved``."""
        own, data = self._own(records.select(at), sign), self.mode.posterior.records
        point, root = self.mode.point, self.mode.root
        prior = self.mode.posterior.precision * root.T @ root

        def pull(x: Tensor) -> Tensor:
            return data.sum(_pulls, point, root, x) + x @ prior

        shift, left = own.solved(pull)
        row, column = indices(self.n, 2)
        bent = data.sum(_bends, point, root, shift) + prior[row, column]
        moved.shift[at] = shift
        moved.precision[:, at] = bent.T + own.bend(shift)
        moved.error[at] = self._left(left) / own.least

    def _left(self, gradient: Tensor) -> Tensor:
        """Return the total variation distance due to a remaining gradient in mode and curvature."""
        return 2 * gradient * (1 + self.mode.longest * math.sqrt(self.n))


def _near(part: Rows, point: Tensor, root: Tensor, reach: float) -> Rows:
    return part.select(part.crossing(point, root, reach))


def _tensors(
    part: Rows, point: Tensor, root: Tensor, degree: int, reach: float
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    return part.tensors(point, root, degree, reach)


def _pulls(part: Rows, point: Tensor, root: Tensor, x: Tensor) -> Tensor:
    return part.pulls(point, root, x)


def _bends(part: Rows, point: Tensor, root: Tensor, x: Tensor) -> Tensor:
    return part.bends(point, root, x)


def first_steps(mode: Peak, records: Rows, sign: float) -> Tensor:
    """Return the length of every neighbour's first Newton step, about its displacement, (m,)."""
    own = records.own(mode.point, mode.root, sign)
    length: Tensor = torch.linalg.vector_norm(own.first(), dim=1)
    return length


def _variation(gradient: Tensor, curvature: Tensor, ht: Tensor, columns: int) -> Tensor:
    """Bound the total variation of N(0, I) from a Gaussian with inexact mode and precision.

    By Pinsker it is at most ½(ρ² + n η²)^½ for a mean ρ standard deviations and a precision η away,
    with η small; with a gradient of g the mode is within g/((1 − a) e^{−ht}). This function takes
    a = 0: callers divide by 1 − a, the neighbour's own least curvature.
    """
    rho = 2 * gradient * ht.exp()
    return 0.5 * (rho.square() + columns * (2 * curvature).square()).sqrt()

"""Records as a posterior takes them, and their parts of its derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from bdpvi._ground.threads import slices
from bdpvi.bayesian.optimum.newton import Steps, settle
from bdpvi.bayesian.optimum.packed import monomials, squares
from bdpvi.models.family import Family
from bdpvi.models.losses import PredictorLoss

if TYPE_CHECKING:
    from typing_extensions import Self

_ENTRIES = 1 << 20
TINY = 1e-13
"""Limit on the total variation distance of a neighbour's Gaussian from the true one, for one that
needs no pass over the records."""
_SETTLED = TINY / 8


@dataclass(frozen=True, eq=False)
class Weighed:
    """Input of the likelihood: rows of the design (N, n), weights ω and targets, (N,) each.

    A sum has the records of both. Functions of records take ``point``, the mode, (n,), n the number
    of weights in all, and ``root``, L with L Lᵀ = F″⁻¹ there; displacements are in units of L.
    """

    z: Tensor
    weight: Tensor
    y: Tensor
    loss: Any

    def __len__(self) -> int:
        return len(self.z)

    def __add__(self, other: Weighed) -> Self:
        z, weight = torch.cat([self.z, other.z]), torch.cat([self.weight, other.weight])
        return replace(self, z=z, weight=weight, y=torch.cat([self.y, other.y]))

    def select(self, index: Tensor | slice) -> Self:
        """Return the records at ``index``."""
        return replace(self, z=self.z[index], weight=self.weight[index], y=self.y[index])


@dataclass(frozen=True, eq=False)
class Weighted(Weighed):
    """Records of one predictor. For logistic regression rows are times 2y − 1."""

    loss: PredictorLoss

    most: ClassVar[int] = 3
    """Largest degree of F″ in displacements."""

    @property
    def cost(self) -> float:
        """Work of a pass over a record and a packed entry of F″; automatic derivatives are slow."""
        return 100.0 if self.loss.stated else 1.0

    @classmethod
    def of(cls, part: tuple[Tensor, Tensor], model: Family) -> Weighted:
        """Return records, x and y, transformed by ``model``, in float64 on the host."""
        x, y = (values.double().cpu() for values in part)
        rows, target = model.terms(x, y)
        return cls(
            rows, model.record_weights(rows), target, model.loss
        )  # a row's sign is no matter

    def slopes(self, a: Tensor, degree: int) -> list[Tensor]:
        """Return the derivatives of the loss at predictors (..., N)."""
        return self.loss.slopes(a, self.y, degree)

    def derivatives(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the records' part of F(w), F′(w) and F″(w)."""
        logit = self.z @ w
        slope, bend = self.slopes(logit, 2)
        loss = self.loss.value(logit, self.y)
        scaled = self.z * (self.weight * bend).unsqueeze(1)
        return self.weight @ loss, self.z.T @ (self.weight * slope), scaled.T @ self.z

    def lengths(self, root: Tensor) -> Tensor:
        """Return M‖z‖ in the norm of F″(m)⁻¹ = root rootᵀ, (N,)."""
        found: Tensor = torch.linalg.vector_norm(self.z @ root, dim=1)
        return self.loss.bound.concordance * found

    def crossing(self, point: Tensor, root: Tensor, reach: float) -> Tensor:
        """Return which rows a displacement of at most ``reach`` may carry across the kink, (N,)."""
        if math.isinf(self.loss.kink):
            return torch.zeros(len(self), dtype=torch.bool)
        lengths = torch.linalg.vector_norm(self.z @ root, dim=1)
        crosses: Tensor = (self.z @ point - self.loss.kink).abs() <= reach * lengths
        return crosses

    def excess(self, degree: int) -> float:
        """Return the factor of the remainder of the tensors: 1, as |ℓ⁽ᵏ⁾| ≤ M^{k−2} ℓ″."""
        return 1.0

    def norm(self, columns: int) -> float:
        """Return the Frobenius norm of the remainder of F″ over its bound: one on the trace."""
        return 1.0

    def tensors(self, point: Tensor, root: Tensor, degree: int, reach: float) -> tuple[Tensor, ...]:
        """Return the records' part of T₃, T₄, … of F″ up to a degree, each (n(n + 1)/2, ·).

        Rows near the kink are left out.
        """
        n, degrees = len(point), range(1, degree + 1)
        bends = tuple(torch.zeros(width(n, 2), width(n, k)).double() for k in degrees)
        smooth = self
        if math.isfinite(self.loss.kink):
            smooth = self.select(~self.crossing(point, root, reach))
        for some in blocks(len(smooth), width(n, degree) + width(n, 2)):
            part = smooth.select(some)
            z, weight = part.z, part.weight
            u = (z @ root).T.contiguous()
            every, square = part.slopes(z @ point, degree + 2), squares(u)
            for k in degrees:
                powers = square if k == 2 else monomials(u, k)
                bends[k - 1].add_(square @ (powers * (weight * every[k + 1])).T)
        return bends

    def pulls(self, point: Tensor, root: Tensor, x: Tensor) -> Tensor:
        """Return the records' part of the change of F′ at displacements (m, n)."""
        rows, logits = self.z @ root, self.z @ point
        (still,), (slope,) = self.slopes(logits, 1), self.slopes(logits + x @ rows.T, 1)
        return (self.weight * slope - self.weight * still) @ rows

    def bends(self, point: Tensor, root: Tensor, x: Tensor) -> Tensor:
        """Return the records' part of F″ at displacements (m, n), packed, (m, n(n + 1)/2)."""
        rows = self.z @ root
        _, bend = self.slopes(self.z @ point + x @ rows.T, 2)
        return (self.weight * bend) @ outer(rows)

    def own_curvature(self, point: Tensor, root: Tensor, sign: float) -> OwnCurvature:
        """Return the neighbours with one of the records each added (1) or removed (−1)."""
        return _Own(self.z @ root, self.z @ point, sign * self.weight, self)


class OwnCurvature(Protocol):
    """Added or removed records, one for each neighbour, in units of the mode.

    Attributes:
        start: no displacement, (m, n).
        least: the least eigenvalue of F″ of the neighbour at the mode, at most 1, (m,).
    """

    start: Tensor
    least: Tensor

    def pull(self, shift: Tensor) -> Tensor:
        """Return the record's part of F′ at displacements (m, n), with its sign."""

    def bend(self, shift: Tensor) -> Tensor:
        """Return the record's part of F″ at displacements (m, n), packed, with its sign."""

    def step(self, gradient: Tensor) -> Tensor:
        """Return J⁻¹G, J the neighbour's F″ at the mode, limited for long steps."""


def first(own: OwnCurvature) -> Tensor:
    """Return the first step of every neighbour, (m, n)."""
    return -own.step(own.pull(own.start))


def solve_shifts(
    records: Any, place: tuple[Tensor, Tensor, float], pull: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the displacements (m, n), and norms of the remaining gradients, (m,).

    Args:
        records: the added or removed records.
        place: arguments of their ``own``.
        pull: the gradient of the data's part of F, minus its value at 0.
    """

    def problem(at: Tensor) -> Steps:
        own = records.select(at).own_curvature(*place)
        return (lambda x: pull(x) + own.pull(x)), own.step

    start = first(records.own_curvature(*place))
    return settle(problem, start, torch.full_like(start[:, 0], _SETTLED), 1)


class _Own:
    """Rows in units of the mode, logits there, ±ω: J = I ± ω ℓ″ uuᵀ, by Sherman and Morrison."""

    def __init__(self, u: Tensor, logit: Tensor, weight: Tensor, records: Weighted) -> None:
        self.u, self.logit, self.weight, self.records = u, logit, weight, records
        _, bend = records.slopes(logit, 2)
        grown = 1 + weight * bend * u.square().sum(1)
        self.start, self.least = torch.zeros_like(u), grown.clamp(min=0.0, max=1.0)
        # The factor of uuᵀ in J⁻¹; for long steps it would be smaller.
        self.inverse = (weight * bend / grown.clamp(min=0.05)).unsqueeze(1)

    def pull(self, shift: Tensor) -> Tensor:
        """Return ±ω ℓ′ u."""
        (slope,) = self.records.slopes(self.logit + (self.u * shift).sum(1), 1)
        return (self.weight * slope).unsqueeze(1) * self.u

    def bend(self, shift: Tensor) -> Tensor:
        """Return ±ω ℓ″ uuᵀ, packed."""
        _, second = self.records.slopes(self.logit + (self.u * shift).sum(1), 2)
        return (outer(self.u) * (self.weight * second).unsqueeze(1)).T

    def step(self, gradient: Tensor) -> Tensor:
        """Return J⁻¹G."""
        return gradient - self.inverse * (self.u * gradient).sum(1, keepdim=True) * self.u


@dataclass(frozen=True, eq=False)
class Beyond:
    """Rows near the kink: their part of F′ beyond first order, and of F″ beyond its value."""

    records: Weighed
    point: Tensor
    root: Tensor

    def pulls(self, x: Tensor) -> Tensor:
        """Return the part of F′ at displacements (m, n)."""
        some = self.records
        if not isinstance(some, Weighted) or not len(some):
            return x.new_zeros(())
        u, logit = some.z @ self.root, some.z @ self.point
        _, bend = some.slopes(logit, 2)
        return some.pulls(self.point, self.root, x) - (some.weight * bend * (x @ u.T)) @ u

    def bends(self, x: Tensor) -> Tensor:
        """Return the part of F″ at displacements (m, n), packed, (n(n + 1)/2, m)."""
        some = self.records
        if not isinstance(some, Weighted) or not len(some):
            return x.new_zeros(())
        still = some.bends(self.point, self.root, torch.zeros_like(x[:1]))
        return (some.bends(self.point, self.root, x) - still).T


def outer(u: Tensor) -> Tensor:
    """Return the packed squares of rows (m, n): uuᵀ, (m, n(n + 1)/2)."""
    return squares(u.T.contiguous()).T


def blocks(rows: int, width: int, entries: int = _ENTRIES) -> list[slice]:
    """Return slices of rows, each of at most ``entries`` numbers: a million stay in a cache."""
    return slices(rows, max(1, entries // max(1, width))) if rows else []


def width(n: int, degree: int) -> int:
    """Return the number of monomials of a degree in n variables."""
    return math.comb(n + degree - 1, degree)

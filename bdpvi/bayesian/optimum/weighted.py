"""Records as a posterior takes them, and their parts of its sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from bdpvi._ground.threads import slices
from bdpvi.bayesian.optimum.packed import monomials, outer, squares, width
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.family import Family
from bdpvi.models.logistic import LogisticLoss

if TYPE_CHECKING:
    from typing_extensions import Self

_LOGISTIC, _ENTRIES = LogisticLoss(), 1 << 20


class Source(Protocol):
    """Records that come in blocks, the same blocks in every pass over them.

    Attributes:
        in_memory: whether they are one block, which stays in memory.
    """

    in_memory: ClassVar[bool]

    def rows(self) -> Iterator[Weighted]:
        """Yield the blocks, by one pass."""

    def __len__(self) -> int:
        """Return the number of records."""


@dataclass(frozen=True, eq=False)
class Weighted:
    """Input of the likelihood: rows of the design, (N, n), marks and weights, (N,) each.

    Rows of logistic regression are times 2y - 1, and marks are bounds on the loss's slope; other
    records have the target as a mark. A sum has the records of both. As a source they are one
    block. Some functions take ``point``, the mode, (n,), n the number of weights in all, and
    ``root``, L with L Lᵀ = F″⁻¹ there; displacements are in units of L.
    """

    in_memory: ClassVar[bool] = True

    x: Tensor
    mark: Tensor
    weight: Tensor
    loss: Any = _LOGISTIC

    @classmethod
    def of(cls, model: Family, data: Dataset) -> Self:
        """Return the records of ``data`` transformed by ``model``, in float64."""
        return cls.of_rows(model, data.x.double(), data.y.double())

    @classmethod
    def of_rows(cls, model: Family, x: Tensor, y: Tensor) -> Self:
        """Return records transformed by ``model``: features (N, d), targets (N,)."""
        rows, y = model.terms(x, y)
        loss = model.loss or _LOGISTIC  # clipped scores have no loss of their own
        return cls(rows, model.mark(rows, y), model.record_weights(rows), loss)

    def __len__(self) -> int:
        return len(self.x)

    def __add__(self, other: Weighted) -> Self:
        weight = torch.cat([self.weight, other.weight])
        x, mark = torch.cat([self.x, other.x]), torch.cat([self.mark, other.mark])
        return replace(self, x=x, mark=mark, weight=weight)

    def rows(self) -> Iterator[Weighted]:
        """Yield all records, as one block."""
        yield self

    def select(self, index: Tensor | slice) -> Self:
        """Return the records at ``index``."""
        return replace(self, x=self.x[index], mark=self.mark[index], weight=self.weight[index])

    def smoothed(self, mean: Tensor, variance: Tensor, order: int) -> Tensor:
        """Return :meth:`.PredictorLoss.smoothed` times the weights."""
        result: Tensor = self.loss.smoothed(mean, variance, self.mark, order).mul_(self.weight)
        return result

    def equal(self, record: Weighted) -> Tensor:
        """Return a mask of the records equal to one record, (N,)."""
        return (self.x == record.x).all(1) & (self.mark == record.mark)

    def without(self, index: int) -> Weighted:
        """Return all records but one."""
        keep = torch.arange(len(self), device=self.x.device) != index
        return self.select(keep)

    @property
    def most(self) -> int:
        """Largest degree of F″ in displacements."""
        return 3

    @property
    def cost(self) -> float:
        """Work of a pass over a record and a packed entry of F″; automatic derivatives are slow."""
        return 100.0 if self.loss.stated else 1.0

    def slopes(self, a: Tensor, degree: int) -> list[Tensor]:
        """Return the derivatives of the loss at predictors (..., N)."""
        found: list[Tensor] = self.loss.slopes(a, self.mark, degree)
        return found

    def predictors(self, w: Tensor) -> Tensor:
        """Return each record's predictors, (N, J)."""
        return (self.x @ w).unsqueeze(1)

    def directions(self, root: Tensor) -> Tensor:
        """Return the rows in units of the mode, one for each predictor, (N, J, n)."""
        return (self.x @ root).unsqueeze(1)

    def score(self, b: Tensor) -> Tensor:
        """Return ℓ′ at predictors (N, J)."""
        return self.slopes(b[:, 0], 1)[0].unsqueeze(1)

    def curvature(self, b: Tensor) -> Tensor:
        """Return ℓ″ at predictors (N, J), (N, J, J)."""
        return self.slopes(b[:, 0], 2)[1][:, None, None]

    def sums_at(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the records' part of F(w), F′(w) and F″(w)."""
        logit = self.x @ w
        slope, bend = self.slopes(logit, 2)
        loss = self.loss.value(logit, self.mark)
        scaled = self.x * (self.weight * bend).unsqueeze(1)
        return self.weight @ loss, self.x.T @ (self.weight * slope), scaled.T @ self.x

    def lengths(self, root: Tensor) -> Tensor:
        """Return M‖x‖ in the norm of F″(m)⁻¹ = root rootᵀ, (N,)."""
        found: Tensor = torch.linalg.vector_norm(self.x @ root, dim=1)
        return float(self.loss.bound.concordance) * found

    def crossing(self, point: Tensor, root: Tensor, reach: float) -> Tensor:
        """Return which rows a displacement of at most ``reach`` may carry across the kink, (N,)."""
        if math.isinf(self.loss.kink):
            return torch.zeros(len(self), dtype=torch.bool)
        lengths = torch.linalg.vector_norm(self.x @ root, dim=1)
        crosses: Tensor = (self.x @ point - self.loss.kink).abs() <= reach * lengths
        return crosses

    def near(self, point: Tensor, root: Tensor, reach: float) -> Self:
        """Return the rows of :meth:`crossing`."""
        return self.select(self.crossing(point, root, reach))

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
            z, weight = part.x, part.weight
            u = (z @ root).T.contiguous()
            every, square = part.slopes(z @ point, degree + 2), squares(u)
            for k in degrees:
                powers = square if k == 2 else monomials(u, k)
                bends[k - 1].add_(square @ (powers * (weight * every[k + 1])).T)
        return bends

    def pulls(self, point: Tensor, root: Tensor, x: Tensor) -> Tensor:
        """Return the records' part of the change of F′ at displacements (m, n)."""
        rows, logits = self.x @ root, self.x @ point
        (still,), (slope,) = self.slopes(logits, 1), self.slopes(logits + x @ rows.T, 1)
        return (self.weight * slope - self.weight * still) @ rows

    def bends(self, point: Tensor, root: Tensor, x: Tensor) -> Tensor:
        """Return the records' part of F″ at displacements (m, n), packed, (m, n(n + 1)/2)."""
        rows = self.x @ root
        _, bend = self.slopes(self.x @ point + x @ rows.T, 2)
        return (self.weight * bend) @ outer(rows)


@dataclass(frozen=True, eq=False)
class Changed:
    """The records of a source with one added (``sign`` 1) or one of them removed (-1).

    A removed record is skipped rather than subtracted, to avoid cancellation.
    """

    in_memory: ClassVar[bool] = False

    source: Source
    record: Weighted
    sign: float

    def rows(self) -> Iterator[Weighted]:
        """Yield the blocks without the record, or with one more."""
        sought = self.sign < 0
        for block in self.source.rows():
            same = block.equal(self.record).nonzero().flatten().tolist() if sought else []
            sought = sought and not same
            yield block.without(same[0]) if same else block
        if self.sign > 0:
            yield self.record

    def __len__(self) -> int:
        return len(self.source) + (1 if self.sign > 0 else -1)


def total(blocks: Iterable[tuple[Tensor, ...]]) -> list[Tensor]:
    """Return the sums of the blocks' tensors, one by one, over all blocks."""
    sums: list[Tensor] | None = None
    for block in blocks:
        if sums is None:
            sums = [tensor.clone() for tensor in block]
        else:
            for one, more in zip(sums, block, strict=True):
                one += more
    return sums or []


def blocks(rows: int, width: int, entries: int = _ENTRIES) -> list[slice]:
    """Return slices of rows, each of at most ``entries`` numbers: a million stay in a cache."""
    return slices(rows, max(1, entries // max(1, width))) if rows else []

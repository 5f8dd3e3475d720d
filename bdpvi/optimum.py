"""The optimum route: the guide at the one maximum of the ELBO, and so every neighbour's.

For logistic regression with a Gaussian guide the full-batch ELBO, its integrals done by quadrature,
has one maximiser. The mechanism is then D ↦ argmax ELBO: no batches, no base noise, nothing that
depends on where the search starts. One record moves the maximiser a little, so all neighbours
follow from derivatives at the fit (:mod:`bdpvi.perturbation`), each with a proven error.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bdpvi import _validate
from bdpvi.divergences import GaussianPairs
from bdpvi.models import BayesianLogisticRegression
from bdpvi.neighbours import Add, Remove, Trained
from bdpvi.objective import Objective, Records, climb, start
from bdpvi.panel import Panel
from bdpvi.perturbation import Expansion, Hessian, Moves
from bdpvi.progress import Track
from bdpvi.rows import Rows
from bdpvi.svi import Convergence, Problem, isolated
from bdpvi.types import Dataset

HIGHEST_ORDER = 100_001
"""Rényi order up to which a panel bounds the divergences; the accountant's end there."""
_BLOCK = 512
_PART = 256
_PASSES = 3


class Optimum:
    """The maximiser of the full-batch ELBO, and that of every neighbour.

    For :class:`~bdpvi.models.BayesianLogisticRegression`, plain or clipped, with a full-rank or a
    mean-field guide. The plan's steps, seed and optimiser are not used. What a record costs is an
    upper bound: the proven error of the neighbour's optimum is added to the difference of the means
    and of the covariances, see :func:`enclosing`.

    Args:
        kinds: :class:`Remove` or :class:`Add` or both; by default every record is left out once.
        tolerance: norm of the ELBO's gradient, in units of the guide's standard deviations, that
            the fit ends below. It is also granted to a fit of each neighbour, and added to its
            error.
        precision: proven error of a neighbour's optimum, relative to the median neighbour's
            distance from the fit, above which passes over the data are spent on this neighbour.
    """

    def __init__(
        self, *kinds: Remove | Add, tolerance: float = 1e-12, precision: float = 1e-7
    ) -> None:
        self.kinds = kinds or (Remove(),)
        self.tolerance = _validate.positive("tolerance", tolerance)
        self.precision = _validate.positive("precision", precision)

    def train(
        self, problem: Problem, track: Track[Any], *, account_training: bool = False
    ) -> Trained:
        """Fit the guide, then find every neighbour's optimum.

        The convergence has the norm of the gradient in units of the guide's standard deviations.

        Raises:
            ValueError: if the model or the guide is another one, the rate is not 1, training is to
                be accounted for, or a record is the only one of its class, so that the data without
                it would be refused.
            FloatingPointError: if rounding keeps the gradient above the tolerance.
        """
        if account_training:
            raise ValueError("account_training: an optimum has no steps that samples could follow")
        model, scale = _checked(problem)
        with isolated(problem.data):
            problem.guide.setup(problem.data.x, problem.data.y)
        neighbours = [kind.rows(problem.data) for kind in self.kinds]
        for rows in neighbours:
            _check_classes(problem.data, rows)
        path = climb(start(objective(problem)), self.tolerance)
        convergence = Convergence(
            torch.tensor([p.elbo for p in path], dtype=torch.float64),
            torch.tensor([p.gradient_norm for p in path], dtype=torch.float64),
        )
        expansion = Expansion(path[-1], self.tolerance)
        panels = []
        for rows in neighbours:
            moves = self.moves(expansion, Records.of(model, rows.records), rows, track)
            panels.append(Panel(rows.kind, rows.records.ids.cpu(), _pairs(expansion, moves)))
        parameters = {"loc": path[-1].mean, scale: path[-1].scale}
        return Trained(parameters, convergence, tuple(panels))

    def moves(self, expansion: Expansion, records: Records, rows: Rows, track: Track[Any]) -> Moves:
        """Return every neighbour's optimum: by the expansion, by passes, by a new search."""
        whole = rows.sign < 0 and len(records) == len(expansion.data)
        terms = expansion.data if whole else expansion.terms(records)
        blocks = list(terms.blocks(_BLOCK))
        moves = Moves.join([expansion.solve(b, rows.sign) for b in track(blocks, rows.kind)])

        def rough() -> Tensor:
            distance = moves.m.norm(dim=0).nanmedian()
            wanted = self.precision * distance + 2 * expansion.slack / expansion.least
            worse: Tensor = ~(moves.error <= wanted)
            return worse.nonzero()[:, 0]

        for _ in range(_PASSES):
            for part in rough().split(_PART):
                better = expansion.refine(terms.select(part), rows.sign, moves.select(part))
                moves = moves.put(part, better)
        for column in track(rough().tolist(), f"{rows.kind}, anew"):
            found = self._search(expansion, records.select(slice(column, column + 1)), rows, column)
            moves = moves.put(torch.tensor([column], device=moves.m.device), found)
        return moves

    def _search(self, expansion: Expansion, record: Records, rows: Rows, column: int) -> Moves:
        """Return the optimum of one neighbour by a search of its own, from the fit."""
        point = expansion.point
        data = point.objective.records
        if rows.sign > 0:
            changed = data.joined(record)
        else:
            same = (data.x == record.x).all(1).nonzero()[0, 0]
            changed = data.without(int(same))
        objective = replace(point.objective, records=changed)
        best = climb(objective.at(point.mean, point.metric), self.tolerance)[-1]
        hessian = Hessian(best)
        m, y = expansion.coordinates.locate(best)
        strength = float(hessian.strength(torch.zeros_like(m), torch.zeros_like(y)))
        if not strength > 0:
            raise FloatingPointError(
                f"the optimum of the data with record {int(rows.records.ids[column])} "
                f"{'added' if rows.sign > 0 else 'removed'} cannot be certified; use a smaller "
                "prior scale or smaller features"
            )
        slack = 2 * self.tolerance * hessian.coordinates.stretch
        error = (float(hessian.gradient.norm()) + slack) / strength
        # From its own units to those of the fit.
        wider = max(
            float(torch.linalg.matrix_norm(torch.linalg.solve(a, b), 2)) ** 2
            for a, b in (
                (point.root, best.root),
                (expansion.coordinates.frame, hessian.coordinates.frame),
            )
        )
        return Moves(m, y, torch.full_like(m[0], error * max(1.0, wider)))


def enclosing(pairs: GaussianPairs, mean_error: Tensor, covariance_error: Tensor) -> GaussianPairs:
    """Return pairs whose divergences bound those of all pairs within the errors.

    With 1/r = 1 + e, e moves away from 0 by twice the ``covariance_error`` (once would not do where
    the sign of e is in doubt) and the mean by ``mean_error`` along every axis. A larger |e| costs
    more by the covariances, in either direction, but in one of the two weighs b² less: by at most
    (1 + α(|e| + 2 error))/(1 + α(|e| - error)). That grows with α, and b² is multiplied by its
    value at α = :data:`HIGHEST_ORDER`.

    Args:
        pairs: fit against neighbours, m pairs.
        mean_error: of the neighbour's mean in standard deviations of the fit, (m, d) or (m, 1).
        covariance_error: of its covariance in units of the fit's, spectral norm, (m, 1).

    Returns:
        Pairs that bound the divergence in either direction, at orders up to the highest.

    >>> pairs = GaussianPairs(torch.ones(1, 1), torch.ones(1, 1))
    >>> float(enclosing(pairs, torch.full((1, 1), 0.5), torch.zeros(1, 1)).b2)
    2.25
    """
    change = 1 / pairs.r - 1
    size = change.abs()
    pushed = change + torch.where(change < 0, -2, 2) * covariance_error
    less = 1 / HIGHEST_ORDER + size - covariance_error
    if not bool(((pushed > -1) & (less > 0)).all()):
        raise FloatingPointError(
            f"covariance_error={covariance_error.max().item():.3g} is too large for a bound"
        )
    weight = (1 / HIGHEST_ORDER + size + 2 * covariance_error) / less
    r = 1 / (1 + pushed)
    b = (pairs.b2 / pairs.r).sqrt() + mean_error
    return GaussianPairs(r, b.square() * torch.maximum(r, pairs.r) * weight)


def objective(problem: Problem) -> Objective:
    """Return the ELBO of a problem.

    Raises:
        ValueError: if it is not one that :class:`Optimum` can maximise.
    """
    model, scale = _checked(problem)
    records = Records.of(model, problem.data)
    return Objective(records, model.prior_scale**-2, diagonal=scale == "scale")


def _pairs(expansion: Expansion, moves: Moves) -> GaussianPairs:
    """Return the fit against every neighbour, with the proven errors added."""
    coordinates = expansion.coordinates

    def some(columns: Tensor) -> GaussianPairs:
        part = moves.select(columns)
        error = part.error.unsqueeze(1)
        pairs = coordinates.pairs(part.m, part.y)
        return enclosing(pairs, error * coordinates.reach, math.sqrt(2) * error)

    # LAPACK works on one small matrix at a time and leaves the other cores idle.
    columns = torch.arange(len(moves.error), device=moves.m.device).split(_BLOCK)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        blocks = list(pool.map(some, columns))
    return GaussianPairs(
        torch.cat([b.r for b in blocks]).cpu(), torch.cat([b.b2 for b in blocks]).cpu()
    )


def _checked(problem: Problem) -> tuple[BayesianLogisticRegression, str]:
    """Return the model and the name of the guide's scale parameter, if this route can have them."""
    model = problem.model
    if type(model) is not BayesianLogisticRegression:
        raise ValueError(
            f"model={model!r} is not BayesianLogisticRegression; use Coupled for other models"
        )
    names = set(problem.guide.constraints)
    if names not in ({"loc", "scale_tril"}, {"loc", "scale"}):
        raise ValueError(
            f"guide has parameters {sorted(names)}; Optimum takes full-rank and mean-field ones"
        )
    if problem.plan.rate != 1:
        raise ValueError(f"rate={problem.plan.rate} must be 1: the optimum is that of all records")
    model.check(problem.data)
    (scale,) = names - {"loc"}
    return model, scale


def _check_classes(data: Dataset, rows: Rows) -> None:
    """Refuse records that are the only one of their class: without them no fit is allowed."""
    if rows.sign > 0:
        return
    for value, count in zip(*torch.unique(data.y, return_counts=True), strict=True):
        if count == 1 and bool((rows.records.y == value).any()):
            record = int(rows.records.ids[rows.records.y == value][0])
            raise ValueError(
                f"y has class {value.item():g} once, in record {record}: the data without it have "
                "one class only and would be refused, so leaving it out cannot be accounted for"
            )

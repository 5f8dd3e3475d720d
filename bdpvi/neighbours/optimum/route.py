"""The optimum route: the guide at the one maximum of the ELBO, and so every neighbour's.

For logistic regression with a Gaussian guide the full-batch ELBO, its integrals done by quadrature,
has one maximiser. The mechanism is then D ↦ argmax ELBO: no batches, no base noise, nothing that
depends on where the search starts. One record moves the maximiser a little, so all neighbours
follow from derivatives at the fit (:mod:`bdpvi.neighbours.optimum.expansion`), each with a proven
error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch

from bdpvi._runtime import log, validate
from bdpvi._runtime.keys import Key
from bdpvi._runtime.progress import Track, silent
from bdpvi._runtime.threads import each, slices
from bdpvi._runtime.workers import Alone, Reduction, shared
from bdpvi.accounting.gaussian_pairs import GaussianPairs
from bdpvi.accounting.panel import Panel
from bdpvi.inference.guide import Guide
from bdpvi.inference.svi import Convergence, Problem, isolated
from bdpvi.models.contract import Model
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.neighbours.optimum.displacements import Moves, Terms, norm, reach
from bdpvi.neighbours.optimum.elbo import Changed, Objective, Point, Records, climb, start
from bdpvi.neighbours.optimum.enclosing import enclosing
from bdpvi.neighbours.optimum.expansion import Expansion
from bdpvi.neighbours.optimum.sizes import PART, Size, free_memory
from bdpvi.neighbours.route import Add, Remove, Trained
from bdpvi.neighbours.rows import Rows
from bdpvi.types import Dataset

ROOM = 1e-5
"""Fraction of what a record can move the mean by that rounding may move it by."""
PASSES = 30
"""Passes over the data for one neighbour, at most; they end where they improve nobody."""
FARTHEST = 0.01
"""Distance of a search's end from the optimum, in standard deviations, from which on it is refused:
what a record costs would say little."""


class Optimum:
    """The maximiser of the full-batch ELBO, and that of every neighbour.

    For :class:`~bdpvi.models.logistic.BayesianLogisticRegression`, plain or clipped, with a
    full-rank or a mean-field guide. The plan's steps, seed and optimiser are not used. What a
    record costs is an upper bound: the proven error of the neighbour's optimum is added to the
    difference of the means and of the covariances.

    Args:
        kinds: :class:`Remove` or :class:`Add` or both; by default every record is left out once.
        tolerance: norm of the ELBO's gradient, in units of the guide's standard deviations, that
            the fit ends below. It is also granted to a fit of each neighbour, and added to its
            error.
        precision: proven error of a neighbour's optimum, relative to its distance from the fit or,
            if that is larger, to the mean distance of all to first order, above which more is spent
            on this neighbour: passes over the data, at last a search of its own. What is left of
            the error adds about its power ⅔ to what a record costs, see
            :func:`~bdpvi.neighbours.optimum.enclosing.enclosing`: 0.04 % of ε at most
            by CKS at the default, on Abalone and Adult.
        reduction: what several workers do together, each with records of its own in ``problem``:
            disjoint rows whose ids are unique among all workers. All of them get the fit and the
            panel of all records. By default one worker has all records.
    """

    def __init__(
        self,
        *kinds: Remove | Add,
        tolerance: float = 1e-12,
        precision: float = 1e-5,
        reduction: Reduction | None = None,
    ) -> None:
        self.kinds = kinds or (Remove(),)
        self.reduction = reduction or Alone()
        self.tolerance = validate.positive("tolerance", tolerance)
        self.precision = validate.positive("precision", precision)

    @staticmethod
    def takes(model: Model, guide: Guide, rate: float = 1.0) -> bool:
        """Return whether this route applies to the model, the guide and the sampling rate."""
        try:
            scale_name(model, guide)
        except ValueError:
            return False
        return rate == 1

    @staticmethod
    def bounds(model: Model, guide: Guide) -> bool:
        """Return whether clip and noise scale bound what any record does: see :func:`largest`."""
        return isinstance(model, BayesianLogisticRegression) and largest(model, guide) is not None

    def key(self) -> Key:
        """Return a new key: there are no batches, so it decides nothing about the fit."""
        return shared(Key.fresh(), self.reduction)

    def train(self, problem: Problem, track: Track[Any]) -> Trained:
        """Fit the guide, then find every neighbour's optimum.

        The convergence has the norm of the gradient in units of the guide's standard deviations.
        A warning says beforehand what a long or large job needs.

        Raises:
            ValueError: if the model or the guide is another one, the rate is not 1, or memory or
                this route does not suffice for so wide a table.
            FloatingPointError: if rounding keeps the gradient above the tolerance, or a neighbour
                from being proven. Where :func:`largest` knows a bound, a gradient will do that
                leaves the optimum within the room of it, and the bound stands for such a neighbour.
        """
        model, scale = _checked(problem, self.reduction)
        with isolated(problem.data.x):
            some = problem.data.x.new_zeros(1, problem.data.x.shape[1])  # a table may have none
            problem.guide.setup(some, some.new_zeros(1))
        neighbours = [kind.rows(problem.data) for kind in self.kinds]
        data = Records.of(model, problem.data)
        everyone = sum(len(rows.records) for rows in neighbours)
        self._check_size(data, everyone, diagonal=scale == "scale")
        objective = Objective(
            data, model.prior_scale**-2, scale == "scale", self.reduction, model.intercept_mean
        )
        most = largest(model, problem.guide)

        def enough(point: Point) -> bool:
            return most is not None and point.distance <= room(model)

        with log.step("fit"):
            path = climb(start(objective), self.tolerance, enough=enough)
        if most is not None and not enough(path[-1]):
            raise FloatingPointError(
                f"the fit is only known to within {path[-1].distance:.3g} of the optimum, more "
                f"than the {room(model):.3g} that its sensitivity allows for; use a larger clip"
            )
        convergence = Convergence(
            torch.tensor([p.elbo for p in path], dtype=torch.float64),
            torch.tensor([p.gradient_norm for p in path], dtype=torch.float64),
        )
        parameters = {"loc": path[-1].mean, scale: path[-1].scale}
        if most is not None and not int(self.reduction.sum(torch.tensor(everyone))):
            nobody = GaussianPairs(*(path[-1].mean.new_ones(2, 0, 1)))
            panels = [self._panel(rows, nobody, most) for rows in neighbours]
            return Trained(parameters, convergence, tuple(panels))
        expansion = Expansion(path[-1], max(self.tolerance, path[-1].gradient_norm))
        panels = []
        for rows in neighbours:
            every = rows.records is problem.data
            records = data if every else Records.of(model, rows.records)
            ids = rows.records.ids.tolist()
            with log.step(f"neighbours ({rows.kind})"):
                moves = self.moves(
                    expansion, records, rows.sign, track, rows.kind, ids, bounded=most is not None
                )
            panels.append(self._panel(rows, pairs(expansion, moves, problem.guide, most), most))
        return Trained(parameters, convergence, tuple(panels))

    def _check_size(self, data: Records, neighbours: int, *, diagonal: bool) -> None:
        """Warn of a long job, and refuse one that there is no memory for, at all workers alike."""
        free = free_memory() if data.x.is_cpu else math.inf
        mine = torch.tensor([len(data), -free], dtype=torch.float64)
        records, free = self.reduction.max(mine).tolist()
        everyone = int(self.reduction.sum(torch.tensor(neighbours)))
        d = data.x.shape[1]
        Size.of(int(records), everyone, d, diagonal=diagonal).check(
            d, diagonal=diagonal, available=-free
        )

    def _panel(self, rows: Rows, pairs: GaussianPairs, largest: float | None) -> Panel:
        """Return the panel of all workers' neighbours."""
        ids, r, b2 = map(self.reduction.join, (rows.records.ids, pairs.r, pairs.b2))
        return Panel(rows.kind, ids.cpu(), GaussianPairs(r.cpu(), b2.cpu()), largest)

    def moves(
        self,
        expansion: Expansion,
        records: Records,
        sign: float,
        track: Track[Any] = silent,
        kind: str = "",
        ids: Sequence[int] = (),
        kept: KeptMoves | None = None,
        *,
        bounded: bool = False,
    ) -> Moves:
        """Return every neighbour's optimum: by a polynomial, by passes over the data, by a search.

        Each is tried on those that the one before has left with too large an error. What happens to
        one neighbour does not depend on the others. All workers must call it together.

        Args:
            expansion: of the ELBO at the fit.
            records: ``sign`` times one of them is added to the data each time.
            sign: 1 or -1; where it is -1 they are of the data.
            track: shows progress.
            kind: what to call it there.
            ids: what messages call the records, by default their positions.
            kept: what an earlier call with the same arguments finished.
            bounded: whether a neighbour may be left without a proven error, because something else
                bounds how far it is.

        Raises:
            FloatingPointError: if nothing is proven of a neighbour that is not bounded.
        """
        terms, named = expansion.terms(records), partial(_named, track, kind)
        stage, moves = (kept and kept.moves()) or (0, None)
        if moves is None:
            moves = expansion.solve_all(terms, sign, named)
            if kept is not None:
                kept.moved(1, moves)
        if stage < 2:
            self._passes(expansion, terms, sign, moves, named)
            if kept is not None:
                kept.moved(2, moves)
        columns = expansion.rough(moves, self.precision)
        counts = self.reduction.join(torch.tensor([len(columns)], device=columns.device))
        for worker, count in enumerate(counts.tolist()):
            mine = columns.tolist() if worker == self.reduction.rank else [None] * count
            for column in named(mine, "search"):
                record = None if column is None else records.select(slice(column, column + 1))
                name = "" if column is None else f" {ids[column] if ids else column}"
                try:
                    found = search(expansion, record, sign, name)
                except (FloatingPointError, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
                    if not bounded:
                        raise
                    continue
                if column is not None:
                    moves.put(torch.tensor([column], device=columns.device), found)
                if kept is not None:
                    kept.moved(2, moves)
        return moves

    def _passes(
        self, expansion: Expansion, terms: Terms, sign: float, moves: Moves, track: Track[Any]
    ) -> None:
        """Improve what is rough by passes over the data, until they improve nobody."""
        columns = expansion.rough(moves, self.precision)
        for number in range(1, PASSES + 1):
            most = int(self.reduction.max(torch.tensor(len(columns), device=columns.device)))
            if not most:
                break
            better = []
            for turn in track(range(-(-most // PART)), f"pass {number}"):
                part = columns[turn * PART : (turn + 1) * PART]
                found, more = expansion.refine(
                    terms.select(part), sign, moves.select(part), self.precision
                )
                moves.put(part, found)
                better.append(part[more])
            columns = torch.cat(better)
            columns = columns[torch.isin(columns, expansion.rough(moves, self.precision))]


def search(expansion: Expansion, record: Records | None, sign: float, name: str) -> Moves:
    """Return the optimum of one neighbour by a search of its own, from the fit.

    The negative ELBO is strongly convex in (μ, L), by the prior alone, so the last gradient bounds
    how far the optimum is (:attr:`bdpvi.neighbours.optimum.elbo.Point.distance`).

    Args:
        expansion: of the ELBO at the fit.
        record: what is left out or added; None at workers that have no part in the change.
        sign: 1 or -1.
        name: what messages call the record.

    Raises:
        FloatingPointError: if the distance may be more than :data:`FARTHEST`.
    """
    point = expansion.point
    changed = point.objective.records
    if record is not None:
        changed = Changed(changed, record, sign)
    objective = replace(point.objective, records=changed)
    best = climb(objective.at(point.mean, point.metric), expansion.tolerance)[-1]
    m, y = expansion.coordinates.locate(best)
    # Of the fit that the neighbour would have: its gradient may be as large as the tolerance.
    granted = 2 * expansion.tolerance * norm(torch.linalg.inv(best.root)) / objective.precision
    back = torch.linalg.inv(point.root)
    far = expansion.unit * (best.distance + granted)
    error = float(reach(far, norm(back @ best.root)))
    if not error <= FARTHEST:
        raise FloatingPointError(
            f"the optimum of the data with record{name} {'added' if sign > 0 else 'removed'} "
            f"cannot be certified, it is only known to {error:.3g} standard deviations; use a "
            "smaller prior scale or smaller features"
        )
    return Moves(m, y, m.new_tensor([error]))


def _named(track: Track[Any], kind: str, items: Sequence[Any], description: str) -> Iterable[Any]:
    return track(items, f"{kind}, {description}")


class KeptMoves(Protocol):
    """Where the neighbours of a long job are kept, so that it can go on.

    Stage 1 is the polynomial, stage 2 the passes; searches follow one by one.
    """

    def moves(self) -> tuple[int, Moves] | None:
        """Return how many stages were finished, and where the neighbours were then."""

    def moved(self, stages: int, moves: Moves) -> None:
        """Keep where the neighbours are after this stage."""


def pairs(
    expansion: Expansion, moves: Moves, guide: Guide, most: float | None = None
) -> GaussianPairs:
    """Return the fit against every neighbour as ``guide`` releases them, proven errors added.

    With the covariance Σ + ridge·Σ² the mean is known at least as well in its units as in those of
    Σ. With a public, isotropic one only the distance of the means counts, one number a record, and
    it is never more than ``most`` says where that is known, see :func:`largest`.
    """
    coordinates, ridge = expansion.coordinates, guide.ridge
    if guide.noise_scale is not None:
        frame = coordinates.frame
        distance = torch.linalg.vector_norm(frame @ moves.m, dim=0)
        distance = distance + moves.error * torch.linalg.matrix_norm(frame, 2)
        b2 = (distance / guide.noise_scale).square().unsqueeze(1)
        if most is not None:
            b2 = b2.nan_to_num(most, most).clamp(max=most)
        return GaussianPairs(torch.ones_like(b2), b2)

    def some(columns: slice) -> GaussianPairs:
        part = moves.select(columns)
        bare = coordinates.pairs(part.m, part.y, ridge)
        covariance = coordinates.spill(part.y, math.sqrt(2) * part.error, ridge)
        return enclosing(bare, part.error * coordinates.stretch, covariance)

    # LAPACK works on one small matrix at a time and leaves the other cores idle.
    blocks = list(each(some, slices(len(moves.error), expansion.columns)))
    return GaussianPairs(torch.cat([b.r for b in blocks]), torch.cat([b.b2 for b in blocks]))


def room(model: BayesianLogisticRegression) -> float:
    """Return how far from the optimum a fit may end, in the units of the weights.

    Public, so that fits to all tables keep within it. With the whole of it ε grows by about 2e-5 of
    itself.
    """
    assert model.clip is not None
    return ROOM * model.clip * model.prior_scale**2


def largest(model: BayesianLogisticRegression, guide: Guide) -> float | None:
    """Return what Σb² is at most for any record whatever, if the model and the guide bound it.

    The negative ELBO is convex in (μ, L), Σ = LLᵀ, and by the prior strongly so with 1/s² (Challis
    and Barber 2013). The gradient of a record's term E ℓ(xᵀ(μ + Lz)) is x (E ℓ′, E ℓ′zᵀ); 1 and the
    coordinates of z are orthonormal under z ~ N(0, I), so by Bessel's inequality its norm is at
    most ‖x‖ (E ℓ′²)^½ ≤ C. With the record or without it, the maximiser is then within Cs² of the
    other one (as for strongly convex losses in general: Chaudhuri, Monteleoni and Sarwate, JMLR
    2011, Lemma 7). Each of the two fits is within the :func:`room` of its maximiser.

    Args:
        model: with C its clip and s its prior scale.
        guide: whose noise scale the distance is measured in.

    Returns:
        None where nothing bounds it: without a clip or a noise scale.

    >>> from bdpvi.guides import FullRank
    >>> model = BayesianLogisticRegression(clip=0.5, prior_scale=2.0)
    >>> round(largest(model, FullRank(model, noise_scale=10.0)), 5)
    0.04
    """
    if model.clip is None or guide.noise_scale is None:
        return None
    distance = model.clip * model.prior_scale**2 + 2 * room(model)
    return (distance / guide.noise_scale) ** 2


def scale_name(model: Model, guide: Guide) -> str:
    """Return the name of the guide's scale parameter.

    Raises:
        ValueError: if this route cannot have the model or the guide.
    """
    if type(model) is not BayesianLogisticRegression:
        raise ValueError(
            f"model={model!r} is not BayesianLogisticRegression; use Coupled for other models"
        )
    names = set(guide.constraints)
    if names not in ({"loc", "scale_tril"}, {"loc", "scale"}):
        raise ValueError(
            f"guide has parameters {sorted(names)}; Optimum takes full-rank and mean-field ones"
        )
    (scale,) = names - {"loc"}
    return scale


def _checked(problem: Problem, reduction: Reduction) -> tuple[BayesianLogisticRegression, str]:
    """Return the model and the name of the guide's scale parameter, if this route can have them."""
    model = problem.model
    scale = scale_name(model, problem.guide)
    assert isinstance(model, BayesianLogisticRegression)
    if problem.plan.rate != 1:
        raise ValueError(f"rate={problem.plan.rate} must be 1: the optimum is that of all records")
    values = reduction.join(torch.unique(problem.data.y))
    model.check(Dataset(values.new_zeros(len(values), 1), values))
    return model, scale

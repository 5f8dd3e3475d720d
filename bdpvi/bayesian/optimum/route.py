"""The optimum route: the unique maximum of the ELBO for the data and for every neighbour.

For a regression with a convex loss and a Gaussian guide the full-batch ELBO, its integrals computed
by quadrature, has one maximiser. The mechanism is then D ↦ argmax ELBO, without batches or base
noise, independent of the start of the search. One record moves the maximiser slightly, so all
neighbours can be computed from derivatives at the fit (:mod:`bdpvi.bayesian.optimum.expansion`),
each with a proven error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bdpvi._ground import log, validate
from bdpvi._ground.checkpoint import NOWHERE, Checkpoint
from bdpvi._ground.progress import Track, silent
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.inference.fingerprint import identity
from bdpvi.bayesian.inference.guide import Guide
from bdpvi.bayesian.inference.svi import Convergence, Problem, isolated
from bdpvi.bayesian.neighbours.route import (
    Add,
    Neighbours,
    Remove,
    TrainedNeighbours,
    check_rate,
)
from bdpvi.bayesian.neighbours.rows import RowFits
from bdpvi.bayesian.optimum.displacements import Moves
from bdpvi.bayesian.optimum.elbo import Objective, Point, start
from bdpvi.bayesian.optimum.expansion import Expansion
from bdpvi.bayesian.optimum.influence import EXACT, certifies, residual
from bdpvi.bayesian.optimum.newton import climb
from bdpvi.bayesian.optimum.panels import Job
from bdpvi.bayesian.optimum.search import search
from bdpvi.bayesian.optimum.sensitivity import largest, room, scale_name
from bdpvi.bayesian.optimum.sizes import PART, Size, memory
from bdpvi.bayesian.optimum.weighted import Source, Weighted
from bdpvi.guides.full_rank import FullRank
from bdpvi.models.contract import Model
from bdpvi.models.family import Family, smooth


class Optimum(Neighbours):
    """The maximiser of the full-batch ELBO, and that of every neighbour.

    It is for :class:`~bdpvi.models.logistic.BayesianLogisticRegression`, weighted or not, and for
    regressions of numbers and counts made by their ``bounded``, with a full-rank or a mean-field
    guide. The plan's steps, seed and optimiser are not used. A record's
    cost is an upper bound: the proven error of the neighbour's optimum is added to the difference
    of the means and of the covariances. Of weighted logistic regression with
    :class:`bdpvi.guides.FullRank` the influence of any conceivable record is bounded
    (:mod:`bdpvi.bayesian.optimum.influence`), so that the cost of draws is certified; with
    :class:`bdpvi.guides.MeanField` for the table at hand, without a worst case for all.

    Args:
        kinds: :class:`Remove` or :class:`Add` or both; by default every record is left out once.
        tolerance: the fit stops when the norm of the ELBO's gradient, in units of the guide's
            standard deviations, is below it. A fit of each neighbour may stop there too, so it is
            added to the neighbour's error.
        precision: target for the proven error of a neighbour's optimum, relative to its distance
            from the fit or, if that is larger, to the mean first-order distance of all. Neighbours
            above it get passes over the data, and finally their own search. The remaining error
            adds about its power ⅔ to a record's cost, see
            :func:`~bdpvi.bayesian.optimum.enclosing.enclosing`: at the default at most 0.04 % of
            ε by CKS, on Abalone and Adult.
        checkpoint: folder for finished parts, so that an interrupted run with the same settings
            can resume. Secret; delete it when the result is saved.
    """

    def __init__(
        self,
        *kinds: Remove | Add,
        tolerance: float = 1e-12,
        precision: float = 1e-5,
        checkpoint: str | Path | None = None,
    ) -> None:
        self.kinds = kinds or (Remove(),)
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
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

    @classmethod
    def bounds(cls, model: Model, guide: Guide, features: int = 1) -> bool:  # noqa: D102
        known = smooth(model)
        if known is None:
            return False
        bounded = guide.noise_scale is not None and math.isfinite(known.score_bound(1))
        full = isinstance(guide, FullRank) and certifies(model, guide, known.weights(features))
        return bounded or full

    @classmethod
    def certifies(cls, model: Model, guide: Guide, features: int = 1) -> bool:  # noqa: D102
        known = smooth(model)
        ranged = known is not None and certifies(model, guide, known.weights(features))
        return ranged or cls.bounds(model, guide, features)

    def train(self, problem: Problem, track: Track[Any]) -> TrainedNeighbours:
        """Fit the guide, then find every neighbour's optimum.

        The convergence has the norm of the gradient in units of the guide's standard deviations.
        A warning announces the time or memory of a long or large job.

        Raises:
            ValueError: if the model or the guide is not supported, the rate is not 1, or the table
                is too wide for the memory or for this route.
            FloatingPointError: if rounding keeps the gradient above the tolerance, or prevents a
                neighbour's proof. If :func:`largest` gives a bound, it suffices that the fit is
                within :func:`room` of the optimum, and the bound replaces unproven neighbours.
        """
        model, scale = _check_problem(problem)
        with isolated(problem.data.x):
            some = problem.data.x.new_zeros(1, problem.data.x.shape[1])  # a table may be empty
            problem.guide.setup(some, some.new_zeros(1))
        source, neighbours = self._source(problem, track), self._neighbours(problem)
        weights = model.design(some).shape[1]
        self._check_size(problem, neighbours, weights, diagonal=scale == "scale")
        last = -float(model.departure(torch.zeros(weights, dtype=torch.float64))[-1])
        precision, allowed = model.precision(weights), room(model, weights)
        objective = Objective(source, precision, scale == "scale", last)
        most, kept = largest(model, problem.guide, weights), self._storage(problem, neighbours)

        certified = certifies(problem.model, problem.guide, weights)

        def enough(point: Point) -> bool:
            near = most is not None and point.distance <= allowed
            return near or (certified and point.gradient_norm <= EXACT)

        with log.step("fit"):
            point, convergence = self._search_optimum(problem, objective, enough, kept)
        if most is not None and not enough(point):
            raise FloatingPointError(
                f"the fit is only known to within {point.distance:.3g} of the optimum, more "
                f"than the {allowed:.3g} that its sensitivity allows for; use a larger clip or "
                "weight_norm"
            )
        tolerance, longest = max(self.tolerance, point.gradient_norm), None
        if certified:
            tolerance, longest = EXACT, _longest_row(point)
        job = Job(problem, point, tolerance, most, track, kept, longest)
        panels = tuple(self._panel(job, rows) for rows in neighbours)
        return TrainedNeighbours({"loc": point.mean, scale: point.scale}, convergence, panels)

    def _source(self, problem: Problem, track: Track[Any]) -> Source:
        """Return the records transformed by the model."""
        model = smooth(problem.model)
        assert model is not None
        return Weighted.of(model, problem.data)

    def _neighbours(self, problem: Problem) -> list[Any]:
        """Return the neighbours of each panel."""
        return [kind.rows(problem.data, problem.model) for kind in self.kinds]

    def _check_size(
        self, problem: Problem, neighbours: Sequence[RowFits], weights: int, *, diagonal: bool
    ) -> None:
        """Warn of a long job, and refuse one without enough memory."""
        free = memory() if problem.data.x.is_cpu else math.inf
        everyone = sum(len(rows.records) for rows in neighbours)
        size = Size.of(len(problem.data), everyone, weights, diagonal=diagonal)
        size.check(weights, diagonal=diagonal, available=free)

    def _storage(self, problem: Problem, neighbours: Sequence[Any]) -> Checkpoint:
        """Return the storage for finished parts, identified by everything they depend on."""
        if self.checkpoint is None:
            return NOWHERE
        settings = {**identity(problem), **self._settings(neighbours)}
        numerics = {"tolerance": repr(self.tolerance), "precision": repr(self.precision)}
        return Checkpoint(self.checkpoint, settings | numerics)

    def _settings(self, neighbours: Sequence[RowFits]) -> dict[str, str]:
        return {
            f"{neighbour.kind} records": neighbour.records.fingerprint() for neighbour in neighbours
        }

    def _start(self, objective: Objective) -> Point:
        """Return the start of the search."""
        return start(objective)

    def _search_optimum(
        self,
        problem: Problem,
        objective: Objective,
        enough: Callable[[Point], bool],
        kept: Checkpoint,
    ) -> tuple[Point, Convergence]:
        """Return the optimum and the search path, resuming an interrupted run."""
        begun = kept.unfinished_part("fit")
        state = begun.state()
        course: list[tuple[float, float]] = [] if state is None else state["course"]

        def note(point: Point) -> None:
            course.append((point.value, point.gradient_norm))
            begun.save_if_due(
                lambda: {"mean": point.mean, "metric": point.metric, "course": course}
            )

        if state is None:
            first = self._start(objective)
            note(first)
        else:
            device = problem.data.x.device
            first = objective.at(state["mean"].to(device), state["metric"].to(device))
        point = climb(first, self.tolerance, note, enough)[-1]
        return point, Convergence.of(course)

    def _panel(self, job: Job, rows: RowFits) -> Panel:
        """Return the panel of the neighbours of one kind."""
        if job.bounded and not len(rows.records):
            return job.panel(rows.kind, job.nobody)
        return job.panel(
            rows.kind, job.kept.once(rows.kind, lambda: self._solve_neighbours(job, rows))
        )

    def _solve_neighbours(self, job: Job, rows: RowFits) -> dict[str, Tensor]:
        """Return the neighbours' ids and :meth:`Job.pairs`."""
        expansion, problem = job.expansion, job.problem
        records: Any = expansion.point.objective.records
        if rows.records is not problem.data:
            model = smooth(problem.model)
            assert model is not None
            records = Weighted.of(model, rows.records)
        ids, bounded = rows.records.ids.tolist(), job.most is not None
        with log.step(f"neighbours ({rows.kind})"):
            moves = self.moves(
                expansion, records, rows.sign, job.track, rows.kind, ids, bounded=bounded
            )
        return {"ids": rows.records.ids.cpu(), **job.pairs(moves)}

    def moves(
        self,
        expansion: Expansion,
        records: Weighted,
        sign: float,
        track: Track[Any] = silent,
        kind: str = "",
        ids: Sequence[int] = (),
        *,
        bounded: bool = False,
    ) -> Moves:
        """Return every neighbour's optimum: by a polynomial, by passes over the data, by a search.

        Each method is tried where the previous one left too large an error. The result for one
        neighbour does not depend on the others.

        Args:
            expansion: expansion of the ELBO at the fit.
            records: records to add or remove, one at a time.
            sign: 1 to add them, -1 to remove them from the data.
            track: shows progress.
            kind: label of the progress bar.
            ids: names of the records in messages, by default their positions.
            bounded: whether neighbours may remain unproven, because their distance is bounded in
                another way.

        Raises:
            FloatingPointError: if a neighbour is neither proven nor bounded.
        """
        terms, named = expansion.terms(records), partial(_track_items, track, kind)
        moves = expansion.solve_all(terms, sign, named)
        for part in named(expansion.rough(moves, self.precision).split(PART), "passes"):
            found = expansion.refined(terms.select(part), sign, moves.select(part), self.precision)
            better = found.error < moves.error[part]
            moves.write_at(part[better], found.select(better))
        for column in named(expansion.rough(moves, self.precision).tolist(), "search"):
            record, name = records.select(slice(column, column + 1)), ids[column] if ids else column
            try:
                found = search(expansion, record, sign, f" {name}")
            except (FloatingPointError, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
                if not bounded:
                    raise
                continue
            moves.write_at(slice(column, column + 1), found)
        return moves


def _track_items(
    track: Track[Any], kind: str, items: Sequence[Any], description: str
) -> Iterable[Any]:
    return track(items, f"{kind}, {description}")


def _longest_row(point: Point) -> float:
    """Return the longest row in units of the fit.

    Raises:
        FloatingPointError: if the fit is not proven to be near enough to the optimum.
    """
    away, longest = residual(point)
    if not away <= EXACT:
        raise FloatingPointError(
            f"the fit is only known to within a gradient of {away:.3g} standard deviations of the "
            f"optimum, more than {EXACT:g}, because of rounding: guides.Laplace is certified for "
            "larger tables"
        )
    return longest


def _check_problem(problem: Problem) -> tuple[Family, str]:
    """Return the model and the name of the guide's scale parameter, if this route supports them."""
    scale, model = scale_name(problem.model, problem.guide), smooth(problem.model)
    assert model is not None
    check_rate(problem)
    model.check(problem.data)
    return model, scale

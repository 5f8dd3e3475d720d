"""The optimum route: the guide at the one maximum of the ELBO, and so every neighbour's.

For logistic regression with a Gaussian guide the full-batch ELBO, its integrals done by quadrature,
has one maximiser. The mechanism is then D ↦ argmax ELBO: no batches, no base noise, nothing that
depends on where the search starts. One record moves the maximiser a little, so all neighbours
follow from derivatives at the fit (:mod:`bdpvi.neighbours.optimum.expansion`), each with a proven
error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from bdpvi import _validate
from bdpvi._runtime.progress import Track, silent
from bdpvi._runtime.threads import each, slices
from bdpvi._runtime.workers import Alone, Reduction
from bdpvi.accounting.gaussian_pairs import GaussianPairs
from bdpvi.accounting.panel import Panel
from bdpvi.inference.svi import Convergence, Guide, Problem, isolated
from bdpvi.models.logistic import BayesianLogisticRegression, Model
from bdpvi.neighbours.optimum.elbo import Changed, Objective, Point, Records, climb, start
from bdpvi.neighbours.optimum.expansion import Expansion, Hessian, Moves, Terms, proven
from bdpvi.neighbours.route import Add, Remove, Trained
from bdpvi.neighbours.rows import Rows
from bdpvi.types import Dataset

ROOM = 1e-5
"""Share of what a record can move the mean by that rounding may move it by."""
_PART = 512
_PASSES = 20
"""Passes over the data in double precision, at most; they end where they improve nobody."""
_DEEP = 0.01
"""Share of the precision that passes aim at where one is needed at all."""


class Optimum:
    """The maximiser of the full-batch ELBO, and that of every neighbour.

    For :class:`~bdpvi.models.logistic.BayesianLogisticRegression`, plain or clipped, with a
    full-rank or a mean-field guide. The plan's steps, seed and optimiser are not used. What a
    record costs is an upper bound: the proven error of the neighbour's optimum is added to the
    difference of the means and of the covariances, see :func:`enclosing`.

    Args:
        kinds: :class:`Remove` or :class:`Add` or both; by default every record is left out once.
        tolerance: norm of the ELBO's gradient, in units of the guide's standard deviations, that
            the fit ends below. It is also granted to a fit of each neighbour, and added to its
            error.
        precision: proven error of a neighbour's optimum, relative to its distance from the fit or,
            if that is larger, to the mean distance of all to first order, above which more is spent
            on this neighbour: polynomials of a higher degree, passes over the data, at last a
            search of its own. What is left of the error adds about its power ⅔ to
            what a record costs: 1e-4 of it at the default, see :func:`enclosing`.
        reduction: what several workers do together, each with records of its own in ``problem``:
            disjoint rows whose ids are unique among all workers. All of them get the fit and the
            panel of all records. By default one worker has all records.
    """

    def __init__(
        self,
        *kinds: Remove | Add,
        tolerance: float = 1e-12,
        precision: float = 1e-7,
        reduction: Reduction | None = None,
    ) -> None:
        self.kinds = kinds or (Remove(),)
        self.reduction = reduction or Alone()
        self.tolerance = _validate.positive("tolerance", tolerance)
        self.precision = _validate.positive("precision", precision)

    def train(
        self, problem: Problem, track: Track[Any], *, account_training: bool = False
    ) -> Trained:
        """Fit the guide, then find every neighbour's optimum.

        The convergence has the norm of the gradient in units of the guide's standard deviations.

        Raises:
            ValueError: if the model or the guide is another one, the rate is not 1, or training is
                to be accounted for.
            FloatingPointError: if rounding keeps the gradient above the tolerance, or a neighbour
                from being proven. Where :func:`largest` knows a bound, a gradient will do that
                leaves the optimum within the room of it, and the bound stands for such a neighbour.
        """
        if account_training:
            raise ValueError("account_training: an optimum has no steps that samples could follow")
        model, scale = _checked(problem, self.reduction)
        with isolated(problem.data):
            problem.guide.setup(problem.data.x, problem.data.y)
        neighbours = [kind.rows(problem.data) for kind in self.kinds]
        data = Records.of(model, problem.data)
        objective = Objective(data, model.prior_scale**-2, scale == "scale", self.reduction)
        most = largest(model, problem.guide)

        def enough(point: Point) -> bool:
            return most is not None and point.distance <= room(model)

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
        expansion = Expansion(path[-1], max(self.tolerance, path[-1].gradient_norm))
        panels = []
        for rows in neighbours:
            every = rows.records is problem.data
            records = data if every else Records.of(model, rows.records)
            ids = rows.records.ids.tolist()
            moves = self.moves(
                expansion, records, rows.sign, track, rows.kind, ids, bounded=most is not None
            )
            panels.append(self._panel(rows, pairs(expansion, moves, problem.guide, most), most))
        parameters = {"loc": path[-1].mean, scale: path[-1].scale}
        return Trained(parameters, convergence, tuple(panels))

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
        """Return every neighbour's optimum: by polynomials, by passes over the data, by a search.

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
        terms = expansion.terms(records)
        stage, moves = (kept and kept.moves()) or (0, Moves.none(len(expansion.jacobian), terms))
        work = _Work(expansion, records, terms, sign, moves, self.precision, track, kind)
        stages: list[Callable[[], None]] = [
            lambda: self._settle(work),
            *(partial(self._polynomial, work, degree) for degree in expansion.degrees),
            *(partial(self._single, work) for _ in range(expansion.single)),
            lambda: self._passes(work),
        ]
        for number, run in enumerate(stages[stage:], start=stage + 1):
            run()
            if kept is not None:
                kept.moved(number, moves)
        for _ in self._anew(work, ids, bounded):
            if kept is not None:
                kept.moved(len(stages), moves)
        return moves

    def _settle(self, work: _Work) -> None:
        expansion, terms = work.expansion, work.terms
        parts = slices(len(terms), expansion.columns)
        settled = each(lambda part: expansion.settle(terms.select(part), work.sign), parts)
        for part, found in zip(parts, settled, strict=True):
            work.moves.put(part, found)

    def _polynomial(self, work: _Work, degree: int) -> None:
        expansion, columns = work.expansion, work.rough(cheap=True)
        if not self._anywhere(columns):
            return
        expansion.prepare(degree)

        def solve(part: Tensor) -> tuple[Tensor, Moves]:
            near = work.moves.select(part)
            if degree < expansion.degrees[-1]:
                hopeful = expansion.hopeful(near, degree, self.precision)
                part, near = part[hopeful], near.select(hopeful)
            return part, expansion.solve(work.terms.select(part), work.sign, degree, near)

        parts = columns.split(expansion.columns)
        shown = work.track(parts, f"{work.kind}, degree {degree}")
        for _, (part, found) in zip(shown, each(solve, parts), strict=True):
            work.moves.put(part, found)

    def _single(self, work: _Work) -> None:
        columns = work.rough(cheap=True)
        if self._anywhere(columns):
            work.expansion.prepare(work.expansion.degrees[-1])
            self._refine(work, columns, "single precision", single=True)

    def _passes(self, work: _Work) -> None:
        columns = work.rough()
        for number in range(1, _PASSES + 1):
            if not self._anywhere(columns):
                break
            # A pass does so much for a column that the last one may well go further than it must.
            columns = self._refine(work, columns, f"pass {number}")
            columns = columns[torch.isin(columns, work.rough(_DEEP))]

    def _refine(self, work: _Work, columns: Tensor, shown: str, *, single: bool = False) -> Tensor:
        """Improve these columns by one pass; return those that another one may still improve."""
        turns, better = range(-(-self._anywhere(columns) // _PART)), []
        for turn in work.track(turns, f"{work.kind}, {shown}"):
            part = columns[turn * _PART : (turn + 1) * _PART]
            own, near = work.terms.select(part), work.moves.select(part)
            found, more = work.expansion.refine(own, work.sign, near, single=single)
            work.moves.put(part, found)
            better.append(part[more])
        return torch.cat(better)

    def _anew(self, work: _Work, ids: Sequence[int], bounded: bool) -> Iterator[None]:
        """Search for the optima that are still rough, one after the other."""
        columns = work.rough()
        counts = self.reduction.join(torch.tensor([len(columns)], device=columns.device))
        for worker, count in enumerate(counts.tolist()):
            mine = columns.tolist() if worker == self.reduction.rank else [None] * count
            for column in work.track(mine, f"{work.kind}, anew"):
                record = None if column is None else work.records.select(slice(column, column + 1))
                name = "" if column is None else f" {ids[column] if ids else column}"
                try:
                    found = self._search(work.expansion, record, work.sign, name)
                except (FloatingPointError, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
                    if not bounded:
                        raise
                    continue
                if column is not None:
                    work.moves.put(torch.tensor([column], device=columns.device), found)
                yield

    def _anywhere(self, columns: Tensor) -> int:
        """Return the largest number of columns that a worker has."""
        return int(self.reduction.max(torch.tensor(len(columns), device=columns.device)))

    def _search(
        self, expansion: Expansion, record: Records | None, sign: float, name: str
    ) -> Moves:
        """Return the optimum of one neighbour by a search of its own, from the fit.

        ``record`` is None at workers that have no part in the change.
        """
        point = expansion.point
        changed = point.objective.records
        if record is not None:
            changed = Changed(changed, record, sign)
        objective = replace(point.objective, records=changed)
        best = climb(objective.at(point.mean, point.metric), expansion.tolerance)[-1]
        hessian = Hessian(best)
        m, y = expansion.coordinates.locate(best)
        nowhere = m.new_zeros(1)
        slack = 2 * expansion.tolerance * hessian.coordinates.stretch
        gradient = hessian.gradient.norm() + slack
        error = proven(gradient, hessian.strength(nowhere, nowhere))
        if not bool(error.isfinite()):
            raise FloatingPointError(
                f"the optimum of the data with record{name} "
                f"{'added' if sign > 0 else 'removed'} cannot be certified; use a smaller "
                "prior scale or smaller features"
            )
        # From its own units to those of the fit.
        wider = max(
            float(torch.linalg.matrix_norm(torch.linalg.solve(a, b), 2)) ** 2
            for a, b in (
                (point.root, best.root),
                (expansion.coordinates.frame, hessian.coordinates.frame),
            )
        )
        return Moves(m, y, error * max(1.0, wider))


class KeptMoves(Protocol):
    """Where the neighbours of a long job are kept, so that it can go on."""

    def moves(self) -> tuple[int, Moves] | None:
        """Return how many stages were finished, and where the neighbours were then."""

    def moved(self, stages: int, moves: Moves) -> None:
        """Keep that so many stages are finished."""


@dataclass(frozen=True, eq=False)
class _Work:
    """The neighbours that are sought together; what is found is written to ``moves``."""

    expansion: Expansion
    records: Records
    terms: Terms
    sign: float
    moves: Moves
    precision: float
    track: Track[Any]
    kind: str

    def rough(self, share: float = 1.0, *, cheap: bool = False) -> Tensor:
        """Return the columns that are not proven to a share of the precision."""
        return self.expansion.rough(self.moves, share * self.precision, cheap=cheap)


def enclosing(pairs: GaussianPairs, mean_error: Tensor, covariance_error: Tensor) -> GaussianPairs:
    """Return pairs from which a common channel makes each of those within the errors.

    What a channel makes of two distributions is no easier to tell apart (Blackwell 1953): δ(ε) at
    every ε, Rényi divergences of every order, those of several draws and at any temperature are
    then at least as large, in either direction.

    In units of the fit a pair is N(β, I) against N(0, I + E), E = diag(1/r - 1), and what is sought
    N(β + ω, I) against N(0, I + E + Δ), ‖ω‖ ≤ ρ, ‖Δ‖ ≤ η. With shares κ and κ′, independent are

    - u: N(β, I)/√a against N(0, I + (E + ηI)/a), a = 1 - κ - κ′ (the mean alone over √a);
    - v: N(0, I) against N(0, (1 - h)I), h = 2η/κ;
    - w: N(ρ/√κ′, 1) against N(0, 1).

    The channel returns √a u + Bv + cw + noise, B = ((ηI - Δ)/h)^½, c = √κ′ ω/ρ, the noise of
    covariance K = I - aI - BBᵀ - ccᵀ, which is no less than 0 as BBᵀ ≤ 2η/h = κ and ccᵀ ≤ κ′. The
    first of the pair becomes N(β + ω, I); the second has the covariance
    K + aI + E + ηI + (1 - h)BBᵀ + ccᵀ = I + E + ηI - (ηI - Δ). (B v can lower a variance and √a u
    raise it: of the sign of an eigenvalue of E + Δ near 0 nothing is known.)

    To lowest order κ costs as much as the share κ of S = ‖β‖² + ‖E‖², v as d h²/2: least where
    h³ = 2ηS/d. κ′ is about ρ/√S.

    Args:
        pairs: fit against neighbours, m pairs of d variables.
        mean_error: ρ, of the neighbour's mean in standard deviations of the fit, (m,).
        covariance_error: η, of its covariance in units of the fit's, spectral norm, (m,).

    Returns:
        Pairs of 2d + 1 variables.

    Raises:
        FloatingPointError: if the errors are too large for this.

    >>> pairs = GaussianPairs(torch.ones(1, 1), torch.ones(1, 1))
    >>> some = enclosing(pairs, torch.full((1,), 1e-3), torch.full((1,), 1e-9))
    >>> some.r.shape, round(float(some.b2.sum()), 4)
    (torch.Size([1, 3]), 1.002)
    """
    change, beta2 = 1 / pairs.r - 1, pairs.b2 / pairs.r
    rho, eta = mean_error.unsqueeze(1), covariance_error.unsqueeze(1)
    size = (beta2 + change.square()).sum(1, keepdim=True)
    h = (2 * eta * size / change.shape[1]).pow(1 / 3).maximum(8 * eta)
    kappa = torch.where(eta > 0, 2 * eta / h, 0)
    for_mean = torch.where(rho > 0, rho / (size.sqrt() + 2 * rho), 0)
    a = 1 - kappa - for_mean
    pushed = (change + eta) / a
    if not bool(((pushed > -1) & (h < 1)).all()):
        raise FloatingPointError(
            f"covariance_error={covariance_error.max().item():.3g} is too large for a bound"
        )
    grown = torch.cat([1 + pushed, (1 - h).expand_as(change), torch.ones_like(h)], 1)
    far = torch.where(rho > 0, rho.square() / for_mean, 0)
    beta2 = torch.cat([beta2 / a, torch.zeros_like(change), far], 1)
    return GaussianPairs(1 / grown, beta2 / grown)


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

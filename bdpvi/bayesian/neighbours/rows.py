"""Many guides trained side by side, as rows of one parameter matrix, each on its own data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import pyro
import torch
from torch import Tensor
from torch.distributions import transform_to

from bdpvi._ground.host import HOST, onto
from bdpvi.bayesian.inference.guide import Free, Reparameterised
from bdpvi.bayesian.inference.optimisers import decay, fresh, fused
from bdpvi.bayesian.inference.svi import Problem, isolated
from bdpvi.bayesian.neighbours.row_gradients import (
    ALIGNED,
    LogisticGradient,
    RowGradient,
    Step,
    TracedGradient,
)
from bdpvi.datasets.dataset import Dataset
from bdpvi.datasets.records import Records, Spread
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.noise.batches import batches

T = TypeVar("T")
S = TypeVar("S")

_LEAST_ROWS = 256
"""Fewest rows that make another thread worthwhile."""


@dataclass(frozen=True, eq=False)
class RowFits:
    """The neighbours: each row is trained on the data plus ``sign`` times one record.

    Removing a record means adding it with sign −1: the two terms cancel in the batch.
    """

    kind: str
    records: Dataset
    sign: float

    def parts(self, size: int) -> Iterator[RowFits]:
        """Yield consecutive rows, each ``size`` of them; the last part may be smaller."""
        for index in torch.arange(len(self.records), device=self.records.x.device).split(size):
            yield replace(self, records=self.records.select(index))


@dataclass(frozen=True, eq=False)
class Piece(Generic[T]):
    """Rows in memory, to be sent to a worker."""

    name: str
    rows: T

    def read(self) -> Iterator[T]:
        """Yield the rows, together."""
        yield self.rows


def each_piece(
    data: Records[Any], pieces: Sequence[Piece[Any]], f: Callable[..., S], *public: Any
) -> Iterator[S]:
    """Yield ``f(rows, *public)`` of each piece, by the workers of records in blocks."""
    if data.in_memory:
        return (f(piece.rows, *public) for piece in pieces)
    spread: Any = data
    made: Spread[Any] = replace(spread, parts=pieces, steps=(), ahead=8, what="neighbours")
    return made.each(f, *public)


def train_rows(
    problem: Problem,
    rows: RowFits,
    tick: Callable[[], object] = lambda: None,
) -> dict[str, Tensor]:
    """Train one guide per row along the fit's own plan; return constrained parameters, (m, ...).

    Rows are independent, so each of several threads trains a part of the rows through all steps:
    threads that wait for one another in every operation are slow as soon as the machine has other
    work.

    Args:
        problem: the fit's problem.
        rows: the neighbours.
        tick: called after every step.
    """
    data, records = problem.data, rows.records
    with isolated(data.x), pyro.validation_enabled(False):
        problem.guide.setup(data.x, data.y)
        course = Trajectory(problem, max(int(data.ids.max()), int(records.ids.max())) + 1)
        parts = 1
        if course.gradient.threads and not data.x.is_cuda:
            parts = min(torch.get_num_threads(), max(1, len(records) // _LEAST_ROWS))
        if parts == 1:
            return course.follow(rows, tick)
        size = -(-len(records) // (parts * ALIGNED)) * ALIGNED
        done = _side_by_side(course, list(rows.parts(size)), tick)
        return {name: torch.cat([part[name] for part in done]) for name in done[0]}


def _side_by_side(
    course: Trajectory, pieces: Sequence[RowFits], tick: Callable[[], object]
) -> list[dict[str, Tensor]]:
    """Train each piece in its own thread; if one fails, all stop with its error."""
    failed: list[BaseException] = []
    threads = torch.get_num_threads()

    def follow(piece: RowFits) -> dict[str, Tensor]:
        def go_on() -> None:
            if failed:
                raise failed[0]
            if piece is pieces[0]:
                tick()

        try:
            return course.follow(piece, go_on)
        except BaseException as error:
            failed.append(error)
            raise

    pool = ThreadPoolExecutor(len(pieces), initializer=torch.set_num_threads, initargs=(1,))
    try:
        with pool:
            parts = [pool.submit(follow, piece) for piece in pieces]
            try:
                return [part.result() for part in parts]
            except BaseException as error:  # including an interruption of this thread
                failed.append(error)
                raise failed[0] from None
    finally:
        torch.set_num_threads(threads)


def row_gradient(problem: Problem) -> RowGradient:
    """Return the closed form where there is one, otherwise the traced model's gradient."""
    model, guide, rate = problem.model, problem.guide, problem.plan.rate
    if type(model) is not BayesianLogisticRegression or not isinstance(guide, Reparameterised):
        return TracedGradient(problem)
    return LogisticGradient(model, guide, rate)


class Trajectory:
    """What all rows share: the batches, and the data in the form that the gradient needs.

    Args:
        problem: the fit's problem.
        limit: a number above every id.
    """

    def __init__(self, problem: Problem, limit: int) -> None:
        self.problem, self.limit = problem, limit
        self.batches, self.gradient = batches(problem.plan, limit), row_gradient(problem)
        self.data, self.index = self.gradient.see(problem.data), _index(problem.data, limit)

    def follow(self, rows: RowFits, tick: Callable[[], object]) -> dict[str, Tensor]:
        """Train rows; arguments and result as for :func:`train_rows`."""
        guide, x = self.problem.guide, self.problem.data.x
        transforms = {name: transform_to(c) for name, c in guide.constraints.items()}
        start = {name: transforms[name].inv(v) for name, v in guide.initial(x).items()}
        shapes = {name: value.shape for name, value in start.items()}
        first = torch.cat([value.flatten() for value in start.values()])
        flat = first.unsqueeze(1).repeat(1, len(rows.records))
        flat.grad = torch.empty_like(flat)
        free, gradient = _parameters(flat, shapes), _parameters(flat.grad, shapes)

        extra = tuple(_adjacent(part) for part in self.gradient.see(rows.records))
        optim, generator = fused(fresh(self.problem.optim)), torch.Generator()
        index = _index(rows.records, self.limit)
        for step in range(self.problem.plan.steps):
            ids = self.batches[step]
            here, mine = (_present(every[ids], flat.device) for every in (self.index, index))
            weight = flat.new_zeros(len(rows.records))
            weight[mine] = rows.sign
            batch = tuple(part[here] for part in self.data)
            generator.manual_seed(self.batches.noise_seeds[step])
            self.gradient(free, Step(extra, weight, batch, generator), gradient)
            optim([flat])
            decay(optim)
            tick()
        return {name: transforms[name](value).contiguous() for name, value in free.items()}


def _present(index: Tensor, device: torch.device) -> Tensor:
    """Return the indices of the records that there are."""
    return onto(index[index >= 0], device)


def _parameters(flat: Tensor, shapes: Mapping[str, torch.Size]) -> Free:
    """Return views of (entries, m) as parameters: each entry is contiguous over all rows."""
    parts = flat.split([shape.numel() for shape in shapes.values()])
    return {
        name: part.view(*shape, flat.shape[1]).movedim(-1, 0)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def _adjacent(part: Tensor) -> Tensor:
    """Return the same (m, ...) tensor laid out as :func:`_parameters`."""
    return part.movedim(0, -1).contiguous().movedim(-1, 0)


def _index(records: Dataset, limit: int) -> Tensor:
    """Return the index of the record with each id below ``limit``, -1 where there is none.

    It is on the host, as batches are.
    """
    index = torch.full((limit,), -1, device=HOST)
    index[records.ids.to(HOST)] = torch.arange(len(records), device=HOST)
    return index

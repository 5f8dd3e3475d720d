"""Many guides trained side by side, as rows of one parameter matrix, each on its own data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

import pyro
import torch
from torch import Tensor
from torch.distributions import transform_to

from bdpvi._ground.host import HOST, onto
from bdpvi.bayesian.inference.guide import Free, Reparameterised
from bdpvi.bayesian.inference.optimisers import decay, fresh, fused
from bdpvi.bayesian.inference.svi import Observer, Problem, isolated
from bdpvi.bayesian.neighbours.row_gradients import (
    ALIGNED,
    LogisticGradient,
    RowGradient,
    RowSteps,
    Seen,
    Step,
    TakesSteps,
    TracedGradient,
)
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.noise.batches import Batches, batches

_RUN = 2**20
"""Bytes of the batches in one run of compiled steps; they should stay in the L2 cache."""

_LONGEST_RUN = 32
"""Largest number of steps of a run: progress is shown only between runs."""

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


def train_rows(
    problem: Problem,
    rows: RowFits,
    tick: Callable[[], object] = lambda: None,
    observe: Observer | None = None,
) -> dict[str, Tensor]:
    """Train one guide per row along the fit's own plan; return constrained parameters, (m, ...).

    Rows are independent, so each of several threads trains a part of the rows through all steps:
    threads that wait for one another in every operation are slow as soon as the machine has other
    work.

    Args:
        problem: the fit's problem.
        rows: the neighbours.
        tick: called after every step.
        observe: called after every step with the rows' constrained parameters, (m, ...).
    """
    data, records = problem.data, rows.records
    with isolated(data.x), pyro.validation_enabled(False):
        problem.guide.setup(data.x, data.y)
        course = Trajectory.of(problem, max(int(data.ids.max()), int(records.ids.max())) + 1)
        parts = 1
        if course.gradient.threads and observe is None and not data.x.is_cuda:
            parts = min(torch.get_num_threads(), max(1, len(records) // _LEAST_ROWS))
        if parts == 1:
            return course.follow(rows, tick, observe)
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
    compilable = not model.intercept_mean and not model.weighs
    if problem.data.x.device.type == "cpu" and compilable:
        with suppress(ImportError):  # numba is optional
            from bdpvi.bayesian.neighbours.rows_compiled import CompiledGradient

            if CompiledGradient.knows(guide):
                return CompiledGradient(model, guide, rate)
    return LogisticGradient(model, guide, rate)


Now = Callable[[], Free]
"""Returns the current parameters of the rows."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The state shared by all rows: the batches, and the data in the gradient's form.

    Attributes:
        problem: the fit's problem.
        batches: batches of its plan.
        gradient: gradient of the rows.
        adam: coefficients of Adam's steps, see :attr:`Problem.adam`, if the gradient uses them.
        seen: the data.
        index: index in the data of the record with each id, -1 if there is none.
    """

    problem: Problem
    batches: Batches
    gradient: RowGradient
    adam: Tensor | None
    seen: Seen
    index: Tensor

    @classmethod
    def of(cls, problem: Problem, limit: int) -> Trajectory:
        """Return the course of a problem; ``limit`` is above every id."""
        gradient = row_gradient(problem)
        return cls(
            problem,
            batches(problem.plan, limit),
            gradient,
            problem.adam if isinstance(gradient, TakesSteps) else None,
            gradient.see(problem.data),
            _index(problem.data, limit),
        )

    def follow(
        self,
        rows: RowFits,
        tick: Callable[[], object] = lambda: None,
        observe: Observer | None = None,
    ) -> dict[str, Tensor]:
        """Train rows; arguments and result as for :func:`train_rows`."""
        guide, x = self.problem.guide, self.problem.data.x
        transforms = {name: transform_to(c) for name, c in guide.constraints.items()}
        start = {name: transforms[name].inv(v) for name, v in guide.initial(x).items()}

        def constrained(now: Now) -> dict[str, Tensor]:
            return {name: transforms[name](value).contiguous() for name, value in now().items()}

        if isinstance(self.gradient, TakesSteps) and self.adam is not None:
            longest = 1 if observe is not None else _LONGEST_RUN
            steps = self._run_by_run(self.gradient, self.adam, start, rows, longest)
        else:
            steps = self._step_by_step(start, rows)
        for step, now in steps:
            tick()
            if observe is not None:
                observe(step, constrained(now))
        return constrained(now)

    def _step_by_step(self, start: Free, rows: RowFits) -> Iterator[tuple[int, Now]]:
        """Train by the optimiser; yield each finished step with the parameters after it."""
        shapes = {name: value.shape for name, value in start.items()}
        flat = _repeated(torch.cat([value.flatten() for value in start.values()]), rows)
        flat.grad = torch.empty_like(flat)
        free, gradient = _parameters(flat, shapes), _parameters(flat.grad, shapes)
        extra = tuple(_adjacent(part) for part in self.gradient.see(rows.records))
        optim, generator = fused(fresh(self.problem.optim)), torch.Generator()
        index = _index(rows.records, len(self.index))
        for step in range(self.problem.plan.steps):
            here, mine = self._batch(step, index)
            weight = flat.new_zeros(len(rows.records))
            weight[mine] = rows.sign
            batch = tuple(part[here] for part in self.seen)
            generator.manual_seed(self.batches.noise_seeds[step])
            self.gradient(free, Step(extra, weight, batch, generator), gradient)
            optim([flat])
            decay(optim)
            yield step, lambda: free

    def _run_by_run(
        self, gradient: TakesSteps, adam: Tensor, start: Free, rows: RowFits, longest: int
    ) -> Iterator[tuple[int, Now]]:
        """Do the same by runs of steps, whose batches stay in the cache for all rows."""
        plan = self.problem.plan
        flat = _repeated(gradient.packed(start), rows)
        state = (flat, torch.zeros_like(flat), torch.zeros_like(flat))
        extra = gradient.see(rows.records)
        index = _index(rows.records, len(self.index))
        bytes_each = max(1, math.ceil(plan.rate * self.seen[0].nbytes))
        length = min(longest, max(1, _RUN // bytes_each))
        for first in range(0, plan.steps, length):
            steps = range(first, min(first + length, plan.steps))
            here, mine = zip(*(self._batch(step, index) for step in steps), strict=True)
            seeds = self.batches.noise_seeds[steps.start : steps.stop]
            run = RowSteps(self.seen, here, mine, seeds, adam[steps.start : steps.stop])
            gradient.train(state, extra, rows.sign, run)
            yield from ((step, lambda: gradient.unpacked(flat)) for step in steps)

    def _batch(self, step: int, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices of the batch's records in the data, and among the rows' own."""
        ids, device = self.batches[step], self.seen[0].device
        here, mine = self.index[ids], index[ids]
        return onto(here[here >= 0], device), onto(mine[mine >= 0], device)


def _repeated(start: Tensor, rows: RowFits) -> Tensor:
    """Return (entries, m), the same parameters for all rows."""
    return start.unsqueeze(1).repeat(1, len(rows.records))


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

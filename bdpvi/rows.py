"""Many guides trained side by side, as rows of one parameter matrix, each on data of its own."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, Protocol, runtime_checkable

import pyro
import torch
from pyro import poutine
from pyro.optim import PyroOptim
from torch import Tensor
from torch.distributions import transform_to

from bdpvi.models import (
    BayesianLogisticRegression,
    RecordWeights,
    likelihood_slope_,
    log_likelihood,
)
from bdpvi.plan import Batches, batches
from bdpvi.svi import Observer, Problem, decay, fresh, isolated
from bdpvi.types import Dataset


@dataclass(frozen=True, eq=False)
class Rows:
    """What the rows are trained on: the data plus ``sign`` times one record each.

    Removing a record is adding it with the sign −1: its term cancels the one in the batch.
    """

    kind: str
    records: Dataset
    sign: float


Free = dict[str, Tensor]
"""Unconstrained parameters of m rows, each (m, ...)."""


Seen = tuple[Tensor, ...]
"""Records as a gradient wants them; the first dimension is the records."""


class RowGradient(Protocol):
    """Gradient of every row's negative ELBO on one batch."""

    threads: bool
    """Whether rows may be trained in several threads."""

    def see(self, data: Dataset) -> Seen:
        """Return what the gradient needs of every record."""

    def __call__(
        self, free: Free, extra: Seen, weight: Tensor, batch: Seen, generator: torch.Generator
    ) -> Free:
        """Return the gradients.

        Args:
            free: parameters of m rows.
            extra: one extra record for each row.
            weight: of the extra record in each row, (m,); 0 where it is not in the batch.
            batch: the batch that all rows share.
            generator: of the base noise, seeded for this step.
        """


def train_rows(
    problem: Problem,
    rows: Rows,
    tick: Callable[[], object] = lambda: None,
    observe: Observer | None = None,
) -> dict[str, Tensor]:
    """Train one guide per row along the fit's own plan; return constrained parameters, (m, ...).

    Args:
        problem: the fit's.
        rows: the neighbours.
        tick: called after every step.
        observe: called after every step with the rows' constrained parameters, (m, ...).
    """
    data, records = problem.data, rows.records
    with isolated(data), pyro.validation_enabled(False):
        problem.guide.setup(data.x, data.y)
        course = Course.of(problem, max(int(data.ids.max()), int(records.ids.max())) + 1)
        parts = 1
        if course.gradient.threads and observe is None and not data.x.is_cuda:
            parts = min(torch.get_num_threads(), max(1, len(records) // _LEAST_ROWS))
        if parts == 1:
            return course.follow(rows, tick, observe)
        pieces = [replace(rows, records=records.select(i)) for i in _split(records, parts)]
        done = _side_by_side(course, pieces, tick)
        return {name: torch.cat([part[name] for part in done]) for name in done[0]}


def _side_by_side(
    course: Course, pieces: Sequence[Rows], tick: Callable[[], object]
) -> list[dict[str, Tensor]]:
    """Train each piece in a thread of its own; where one fails, the others stop.

    Rows never meet, so each thread follows the whole course alone: threads that wait for one
    another in every operation crawl as soon as the machine has anything else to do.
    """
    stopped, before = Event(), torch.get_num_threads()

    def follow(piece: Rows) -> dict[str, Tensor]:
        def go_on() -> None:
            if stopped.is_set():
                raise InterruptedError("another part of the rows was interrupted")
            if piece is pieces[0]:
                tick()

        try:
            return course.follow(piece, go_on)
        except BaseException:
            stopped.set()
            raise

    try:
        with ThreadPoolExecutor(
            len(pieces), initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            parts = [pool.submit(follow, piece) for piece in pieces]
            try:
                errors = [part.exception() for part in parts]  # waits for all of them
            except BaseException:
                stopped.set()
                raise
        for error in errors:
            if error is not None and not isinstance(error, InterruptedError):
                raise error
        return [part.result() for part in parts]
    finally:
        torch.set_num_threads(before)


_LEAST_ROWS = 256
"""Rows below which another thread is not worth starting."""


def _split(records: Dataset, parts: int) -> Sequence[Tensor]:
    return torch.arange(len(records), device=records.x.device).tensor_split(parts)


@dataclass(frozen=True, eq=False)
class Course:
    """What all rows go through: the batches, and the data as the gradient sees them.

    Attributes:
        problem: the fit's.
        batches: of its plan.
        gradient: of the rows.
        seen: the data.
        place: of the record with each id in the data, -1 where it is not there.
    """

    problem: Problem
    batches: Batches
    gradient: RowGradient
    seen: Seen
    place: Tensor

    @classmethod
    def of(cls, problem: Problem, limit: int) -> Course:
        """Return the course of a problem, ``limit`` being above every id."""
        gradient = row_gradient(problem)
        place = _places(problem.data, limit)
        return cls(
            problem, batches(problem.plan, limit), gradient, gradient.see(problem.data), place
        )

    def follow(
        self,
        rows: Rows,
        tick: Callable[[], object] = lambda: None,
        observe: Observer | None = None,
    ) -> dict[str, Tensor]:
        """Train rows; arguments and result as of :func:`train_rows`."""
        guide, plan, x = self.problem.guide, self.problem.plan, self.problem.data.x
        optim = fused(fresh(self.problem.optim))
        transforms = {name: transform_to(c) for name, c in guide.constraints.items()}
        free = {
            name: transforms[name].inv(value).expand(len(rows.records), *value.shape).clone()
            for name, value in guide.initial(x).items()
        }
        extra, place = self.gradient.see(rows.records), _places(rows.records, len(self.place))
        generator = torch.Generator(x.device)
        for step in range(plan.steps):
            ids = self.batches[step].to(x.device)
            here, mine = self.place[ids], place[ids]
            weight = x.new_zeros(len(rows.records))
            weight[mine[mine >= 0]] = rows.sign
            batch = tuple(part[here[here >= 0]] for part in self.seen)
            generator.manual_seed(plan.noise_seed(step))
            grads = self.gradient(free, extra, weight, batch, generator)
            for name, value in free.items():
                value.grad = grads[name]
            optim(free.values())
            decay(optim)
            tick()
            if observe is not None:
                observe(step, {name: transforms[name](value) for name, value in free.items()})
        return {name: transforms[name](value) for name, value in free.items()}


def _places(records: Dataset, limit: int) -> Tensor:
    place = torch.full((limit,), -1, device=records.ids.device)
    place[records.ids] = torch.arange(len(records), device=records.ids.device)
    return place


def row_gradient(problem: Problem) -> RowGradient:
    """Return the closed form where there is one, else the gradient through the traced model."""
    if type(problem.model) is BayesianLogisticRegression and isinstance(
        problem.guide, Reparameterised
    ):
        return LogisticGradient(problem.model, problem.guide, problem.plan.rate)
    return TracedGradient(problem)


class TracedGradient:
    """For any Pyro model: ``torch.func`` over the traced model and guide."""

    threads = False  # Pyro's handlers are global

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.transforms = {n: transform_to(c) for n, c in problem.guide.constraints.items()}
        self.vmapped = torch.vmap(
            torch.func.grad(self._loss), in_dims=(0, 0, 0, 0, None, None), randomness="same"
        )

    def see(self, data: Dataset) -> Seen:
        """Return features and targets."""
        return data.x, data.y

    def __call__(
        self, free: Free, extra: Seen, weight: Tensor, batch: Seen, generator: torch.Generator
    ) -> Free:
        """Return the gradients, see :class:`RowGradient`."""
        torch.manual_seed(generator.initial_seed())  # Pyro draws from the global generator
        (x_extra, y_extra), (x, y) = extra, batch
        return self.vmapped(free, x_extra, y_extra, weight, x, y)  # type: ignore[no-any-return]

    def _loss(
        self, free: Free, x_extra: Tensor, y_extra: Tensor, weight: Tensor, x: Tensor, y: Tensor
    ) -> Tensor:
        model, guide, rate = self.problem.model, self.problem.guide, self.problem.plan.rate
        values = {name: self.transforms[name](value) for name, value in free.items()}
        q = poutine.trace(poutine.substitute(guide, data=values)).get_trace(x, y)
        with RecordWeights(1 / rate):
            p = poutine.trace(poutine.replay(model, trace=q)).get_trace(x, y)
        latents = {name: p.nodes[name]["value"] for name in p.stochastic_nodes if name in q.nodes}
        extra = log_likelihood(model, latents, x_extra[None], y_extra[None]).sum()
        return q.log_prob_sum() - p.log_prob_sum() - weight / rate * extra  # type: ignore[no-any-return]


@runtime_checkable
class Reparameterised(Protocol):
    """A guide that knows the derivative of its own draws; see ``bdpvi.guides``."""

    @property
    def dim(self) -> int:
        """Length of the flat vector."""

    def pushforward(self, free: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """Return the latents of many guides for one base noise."""

    def pullback(self, free: Mapping[str, Tensor], noise: Tensor, gradient: Tensor) -> Free:
        """Return the gradient of a loss of the latents minus the entropy."""


@dataclass(frozen=True)
class LogisticGradient:
    """For logistic regression: two matrix products and a sigmoid per pair of row and record."""

    model: BayesianLogisticRegression
    guide: Reparameterised
    rate: float

    threads = True

    def see(self, data: Dataset) -> Seen:
        """Return (1 − 2y)·design, so that y never appears again, and the slope bounds, (n, 1)."""
        design = self.model.design(data.x)
        bound = self.model.slope_bound(design).unsqueeze(1)
        return (1 - 2 * data.y).unsqueeze(1) * design, bound

    def __call__(
        self, free: Free, extra: Seen, weight: Tensor, batch: Seen, generator: torch.Generator
    ) -> Free:
        """Return the gradients, see :class:`RowGradient`."""
        like, device = batch[0], batch[0].device
        noise = torch.randn(self.guide.dim, generator=generator, dtype=like.dtype, device=device)
        w = self.guide.pushforward(free, noise)
        x, bound = extra
        slope = weight * likelihood_slope_((w * x).sum(1, keepdim=True), bound).squeeze(1)
        gradient = self._loss_gradient(w, batch).addcmul_(slope.unsqueeze(1), x)
        gradient.div_(self.rate).add_(w, alpha=self.model.prior_scale**-2)
        return self.guide.pullback(free, noise, gradient)

    def _loss_gradient(self, w: Tensor, batch: Seen) -> Tensor:
        """Return the sum over the batch for every row, (m, d), tile by tile in the cache.

        Slopes are kept as (records, rows): both products then run along the long side.
        """
        result = torch.empty_like(w)
        size = len(w) if w.is_cuda else _TILE
        tiles = [
            (x, x.T.contiguous(), bound)
            for x, bound in zip(*(part.split(size) for part in batch), strict=True)
        ]
        width = len(w) if w.is_cuda else max(32, _TILE**2 // max(1, len(batch[0])))
        space = w.new_empty(min(size, len(batch[0])) * min(width, len(w)))
        for start in range(0, len(w), width):
            rows = w[start : start + width]
            total = w.new_zeros(w.shape[1], len(rows))
            for x, across, bound in tiles:
                slope = space[: len(x) * len(rows)].view(len(x), len(rows))
                torch.mm(x, rows.T, out=slope)
                likelihood_slope_(slope, bound)
                torch.addmm(total, across, slope, out=total)
            result[start : start + width] = total.T
        return result


_TILE = 256
"""Rows and records at a time: their slopes stay in the processor's cache."""


ELEMENTWISE = {
    "Adadelta", "Adagrad", "AdagradRMSProp", "Adam", "AdamW", "Adamax", "ASGD", "ClippedAdam",
    "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
}  # fmt: skip


def check_elementwise(optim: PyroOptim) -> None:
    """Raise unless the optimiser acts on every entry alone, so that rows do not mix."""
    name = getattr(optim.pt_optim_constructor, "__name__", repr(optim.pt_optim_constructor))
    schedule = getattr(optim, "pt_scheduler_constructor", None)
    if name not in ELEMENTWISE:
        raise ValueError(f"optim={name} may mix rows; use one of {sorted(ELEMENTWISE)}")
    if schedule is torch.optim.lr_scheduler.ReduceLROnPlateau:
        raise ValueError("optim: ReduceLROnPlateau follows one row's loss; use another schedule")
    if optim.pt_clip_args:
        raise ValueError("optim: clip_args would clip all rows by one common norm")
    if callable(optim.pt_optim_args):
        raise ValueError("optim: per-parameter optim_args cannot be used with coupled neighbours")


def fused(optim: PyroOptim) -> PyroOptim:
    """Return the optimiser with torch's one-pass implementation where it has one."""
    constructor: Callable[..., Any] = optim.pt_optim_constructor
    if "fused" not in inspect.signature(constructor).parameters:
        return optim
    faster = copy.copy(optim)
    faster.pt_optim_args = {"fused": True, **optim.pt_optim_args}
    return faster

"""Many guides trained side by side, as rows of one parameter matrix, each on data of its own."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import pyro
import torch
from pyro import poutine
from pyro.optim import PyroOptim
from torch import Tensor
from torch.distributions import transform_to

from bdpvi.inference.plan import Batches, batches
from bdpvi.inference.svi import Observer, Problem, decay, fresh, isolated
from bdpvi.models.logistic import (
    BayesianLogisticRegression,
    RecordWeights,
    likelihood_slope_,
    log_likelihood,
)
from bdpvi.types import Dataset

_RUN = 2**20
"""Bytes of the batches of a run of steps that compiled rows take at a time."""

_LONGEST_RUN = 32
"""Steps of a run, at most: all its ticks come at its end."""

_ADAM_OPTIONS = ("amsgrad", "maximize", "weight_decay")
"""What a step of plain Adam does without."""


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

    def packed(self, start: Free) -> Free:
        """Return parameters, (...), as the gradient takes them: without what it does not read."""

    def unpacked(self, free: Free) -> Free:
        """Return parameters of m rows, (m, ...), as the guide's transforms take them."""

    def __call__(
        self,
        free: Free,
        extra: Seen,
        weight: Tensor,
        batch: Seen,
        generator: torch.Generator,
        out: Free,
    ) -> None:
        """Write the gradients into ``out``.

        Args:
            free: parameters of m rows.
            extra: one extra record for each row.
            weight: of the extra record in each row, (m,); 0 where it is not in the batch.
            batch: the batch that all rows share.
            generator: of the base noise, seeded for this step.
            out: like ``free``.
        """


@runtime_checkable
class TakesSteps(Protocol):
    """A :class:`RowGradient` that can also train by Adam, many steps at a time."""

    def noise(self, generator: torch.Generator, like: Tensor) -> Tensor:
        """Return a step's base noise."""

    def train(
        self,
        free: Tensor,
        moments: tuple[Tensor, Tensor],
        extra: Seen,
        weight: Tensor,
        seen: Seen,
        here: Sequence[Tensor],
        mine: Sequence[Tensor],
        noise: Tensor,
        adam: Tensor,
    ) -> None:
        """Overwrite parameters and moments by those after some steps.

        Args:
            free: parameters of m rows, (entries, m).
            moments: the first and the second, like ``free``.
            extra: one extra record for each row.
            weight: of the extra record in each row where it is in the batch, (m,).
            seen: all records of the data.
            here: places in the data of each step's batch.
            mine: rows whose extra record is in each step's batch.
            noise: base noise of each step.
            adam: of each step, see :func:`adam_factors`.
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
    """Return the rows of every part, which begin where vectors do: no part has a ragged middle."""
    size = -(-len(records) // (parts * _VECTOR)) * _VECTOR
    rows = torch.arange(len(records), device=records.x.device)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


@dataclass(frozen=True, eq=False)
class Course:
    """What all rows go through: the batches, and the data as the gradient sees them.

    Attributes:
        problem: the fit's.
        batches: of its plan.
        gradient: of the rows.
        adam: what its steps multiply by, where the gradient's kernels can take them.
        seen: the data.
        place: of the record with each id in the data, -1 where it is not there.
    """

    problem: Problem
    batches: Batches
    gradient: RowGradient
    adam: Tensor | None
    seen: Seen
    place: Tensor

    @classmethod
    def of(cls, problem: Problem, limit: int) -> Course:
        """Return the course of a problem, ``limit`` being above every id."""
        gradient = row_gradient(problem)
        compiled = isinstance(gradient, TakesSteps)
        return cls(
            problem,
            batches(problem.plan, limit),
            gradient,
            _factors(problem) if compiled else None,
            gradient.see(problem.data),
            _places(problem.data, limit),
        )

    def follow(
        self,
        rows: Rows,
        tick: Callable[[], object] = lambda: None,
        observe: Observer | None = None,
    ) -> dict[str, Tensor]:
        """Train rows; arguments and result as of :func:`train_rows`."""
        guide, x = self.problem.guide, self.problem.data.x
        transforms = {name: transform_to(c) for name, c in guide.constraints.items()}
        start = self.gradient.packed(
            {name: transforms[name].inv(v) for name, v in guide.initial(x).items()}
        )
        shapes = {name: value.shape for name, value in start.items()}
        flat = torch.cat([value.flatten() for value in start.values()])
        flat = flat.unsqueeze(1).repeat(1, len(rows.records))
        extra = tuple(_adjacent(part) for part in self.gradient.see(rows.records))

        def constrained() -> dict[str, Tensor]:
            whole = self.gradient.unpacked(_parameters(flat, shapes))
            return {name: transforms[name](value).contiguous() for name, value in whole.items()}

        gradient = self.gradient
        if isinstance(gradient, TakesSteps) and self.adam is not None and observe is None:
            steps = self._run_by_run(gradient, self.adam, flat, rows, extra)
        else:
            steps = self._step_by_step(flat, shapes, rows, extra)
        for step in steps:
            tick()
            if observe is not None:
                observe(step, constrained())
        return constrained()

    def _step_by_step(
        self, flat: Tensor, shapes: Mapping[str, torch.Size], rows: Rows, extra: Seen
    ) -> Iterator[int]:
        """Train ``flat``, (entries, m), by the optimiser; yield every step when it is done."""
        optim = fused(fresh(self.problem.optim))
        flat.grad = torch.empty_like(flat)
        free, slope = _parameters(flat, shapes), _parameters(flat.grad, shapes)
        place = _places(rows.records, len(self.place))
        generator = torch.Generator(flat.device)
        for step in range(self.problem.plan.steps):
            here, mine = self._batch(step, place)
            weight = flat.new_zeros(len(rows.records))
            weight[mine] = rows.sign
            batch = tuple(part[here] for part in self.seen)
            generator.manual_seed(self.batches.noise_seeds[step])
            self.gradient(free, extra, weight, batch, generator, slope)
            optim([flat])
            decay(optim)
            yield step

    def _run_by_run(
        self, gradient: TakesSteps, adam: Tensor, flat: Tensor, rows: Rows, extra: Seen
    ) -> Iterator[int]:
        """Do the same by runs of steps, whose batches stay in the cache while all rows pass."""
        plan, like = self.problem.plan, self.seen[0]
        moments = torch.zeros_like(flat), torch.zeros_like(flat)
        weight = flat.new_full((len(rows.records),), rows.sign)
        place = _places(rows.records, len(self.place))
        generator = torch.Generator()
        bytes_each = max(1, math.ceil(plan.rate * like.nbytes))
        length = min(_LONGEST_RUN, max(1, _RUN // bytes_each))
        for start in range(0, plan.steps, length):
            run = range(start, min(start + length, plan.steps))
            here, mine = zip(*(self._batch(step, place) for step in run), strict=True)
            noise = []
            for step in run:
                generator.manual_seed(self.batches.noise_seeds[step])
                noise.append(gradient.noise(generator, like))
            gradient.train(
                flat, moments, extra, weight, self.seen, here, mine, torch.stack(noise),
                adam[run.start : run.stop],
            )  # fmt: skip
            yield from run

    def _batch(self, step: int, place: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the batch's records are in the data, and among the rows' own."""
        ids = self.batches[step].to(place.device)
        here, mine = self.place[ids], place[ids]
        return here[here >= 0], mine[mine >= 0]


def _parameters(flat: Tensor, shapes: Mapping[str, torch.Size]) -> Free:
    """Return views of (entries, m) as parameters: adjacent in memory is one entry of all rows."""
    parts = flat.split([shape.numel() for shape in shapes.values()])
    return {
        name: part.view(*shape, flat.shape[1]).movedim(-1, 0)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def _adjacent(part: Tensor) -> Tensor:
    """Return the same (m, ...) tensor laid out as :func:`_parameters`."""
    return part.movedim(0, -1).contiguous().movedim(-1, 0)


def _places(records: Dataset, limit: int) -> Tensor:
    place = torch.full((limit,), -1, device=records.ids.device)
    place[records.ids] = torch.arange(len(records), device=records.ids.device)
    return place


def row_gradient(problem: Problem) -> RowGradient:
    """Return the closed form where there is one, else the gradient through the traced model."""
    model, guide, rate = problem.model, problem.guide, problem.plan.rate
    if type(model) is not BayesianLogisticRegression or not isinstance(guide, Reparameterised):
        return TracedGradient(problem)
    if problem.data.x.device.type == "cpu":
        with suppress(ImportError):  # numba is optional
            from bdpvi.neighbours.rows_compiled import CompiledGradient

            if CompiledGradient.knows(guide):
                return CompiledGradient(model, guide, rate)
    return LogisticGradient(model, guide, rate)


class Unpacked:
    """A gradient that takes parameters as they are."""

    def packed(self, start: Free) -> Free:
        """Return the same."""
        return start

    def unpacked(self, free: Free) -> Free:
        """Return the same."""
        return free


class TracedGradient(Unpacked):
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
        self,
        free: Free,
        extra: Seen,
        weight: Tensor,
        batch: Seen,
        generator: torch.Generator,
        out: Free,
    ) -> None:
        """Write the gradients, see :class:`RowGradient`."""
        torch.manual_seed(generator.initial_seed())  # Pyro draws from the global generator
        alone = {name: value.contiguous() for name, value in free.items()}  # one row after another
        x_extra, y_extra = (part.contiguous() for part in extra)
        for name, value in self.vmapped(alone, x_extra, y_extra, weight, *batch).items():
            out[name].copy_(value)

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

    def pushforward(
        self, free: Mapping[str, Tensor], noise: Tensor
    ) -> tuple[Tensor, Callable[[Tensor], Free]]:
        """Return the latents of many guides for one base noise, and the chain rule back."""


@dataclass(frozen=True)
class LogisticGradient(Unpacked):
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
        self,
        free: Free,
        extra: Seen,
        weight: Tensor,
        batch: Seen,
        generator: torch.Generator,
        out: Free,
    ) -> None:
        """Write the gradients, see :class:`RowGradient`."""
        like, m = batch[0], len(weight)
        noise = torch.randn(
            self.guide.dim, generator=generator, dtype=like.dtype, device=like.device
        )
        height, width = (len(like), m) if like.is_cuda else _tile(like)
        tiles = list(zip(*(part.split(max(1, height)) for part in batch), strict=True))
        space = like.new_empty(min(height, len(like)) * min(width, m))
        for start in range(0, m, width):
            rows = slice(start, start + width)
            w, pullback = self.guide.pushforward({n: v[rows] for n, v in free.items()}, noise)
            gradient = self._loss_gradient(w, tiles, space)
            x, bound = (part[rows] for part in extra)
            slope = likelihood_slope_((w * x).sum(1, keepdim=True), bound)
            slope.mul_(weight[rows].unsqueeze(1))
            gradient.addcmul_(slope, x, value=1 / self.rate)
            for name, value in pullback(gradient).items():
                out[name][rows] = value

    def _loss_gradient(self, w: Tensor, batch: Sequence[Seen], space: Tensor) -> Tensor:
        """Return the sum over the batch and the prior for every row, (m, d).

        Slopes are kept as (records, rows): both products then run along the long side.
        """
        result = w * self.model.prior_scale**-2
        across, total = w.T, result.T
        for x, bound in batch:
            slope = space[: len(x) * len(w)].view(len(x), len(w))
            likelihood_slope_(torch.mm(x, across, out=slope), bound)
            torch.addmm(total, x.T, slope, alpha=1 / self.rate, out=total)
        return result


def _tile(batch: Tensor) -> tuple[int, int]:
    """Return how many records and rows to take at a time on a processor.

    Tiles are as large as the last cache allows, since torch's overhead is by the tile, and rows
    begin where vectors do.
    """
    height = min(256, len(batch))
    width = _SLOPES // (max(1, height) * batch.itemsize)
    return height, max(_VECTOR, width // _VECTOR * _VECTOR)


_VECTOR = 64
"""Rows that any vector instruction divides."""


_SLOPES = 2**21
"""Bytes of a tile's slopes."""


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


def adam_factors(optim: PyroOptim, steps: int) -> Tensor | None:
    """Return the numbers in Adam's steps, (steps, 5); None if the optimiser is not plain Adam.

    With step size η and moments m and v the parameter falls by η'm / (r√v + ε). A row is
    (η', 1 − β₁, 1 − β₂, r, ε), where η' = η/(1 − β₁ᵗ) and r = (1 − β₂ᵗ)^-½. Settings are read off a
    run of the optimiser on one parameter, so any schedule will do.

    >>> adam_factors(PyroOptim(torch.optim.Adam, {"lr": 0.1, "betas": (0.5, 0.75)}), 1).tolist()
    [[0.2, 0.5, 0.25, 2.0, 1e-08]]
    """
    if optim.pt_optim_constructor is not torch.optim.Adam:
        return None
    optim, probe, factors = fresh(optim), torch.zeros(1), []
    probe.grad = torch.zeros(1)
    for step in range(1, steps + 1):
        optim([probe])
        held = optim.optim_objs[probe]
        (group,) = getattr(held, "optimizer", held).param_groups
        if any(group.get(name) for name in _ADAM_OPTIONS):
            return None
        one, two = group["betas"]
        rate = float(group["lr"]) / (1 - one**step)
        factors.append([rate, 1 - one, 1 - two, (1 - two**step) ** -0.5, group["eps"]])
        decay(optim)
    return torch.tensor(factors, dtype=torch.float64)


_KNOWN: WeakKeyDictionary[Problem, Tensor | None] = WeakKeyDictionary()


def _factors(problem: Problem) -> Tensor | None:
    """Return the problem's :func:`adam_factors`; the run that gives them is made once."""
    if problem not in _KNOWN:
        _KNOWN[problem] = adam_factors(problem.optim, problem.plan.steps)
    return _KNOWN[problem]


def fused(optim: PyroOptim) -> PyroOptim:
    """Return the optimiser with torch's one-pass implementation where it has one."""
    constructor: Callable[..., Any] = optim.pt_optim_constructor
    if "fused" not in inspect.signature(constructor).parameters:
        return optim
    faster = copy.copy(optim)
    faster.pt_optim_args = {"fused": True, **optim.pt_optim_args}
    return faster

"""Neighbours: the posterior as it would be with one record fewer or one record more."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from bdpvi import _validate
from bdpvi._runtime import secure
from bdpvi._runtime.checkpoint import Checkpoint, Once, always
from bdpvi._runtime.progress import Track
from bdpvi._runtime.workers import Alone, Reduction
from bdpvi.accounting.gaussian_pairs import GaussianPairs, summarise
from bdpvi.accounting.panel import Panel
from bdpvi.inference.fingerprint import described, identity
from bdpvi.inference.plan import Plan
from bdpvi.inference.svi import Convergence, Kept, Problem, isolated, run_svi
from bdpvi.neighbours.memory import rows_within
from bdpvi.neighbours.published import Training, TrainingAccount
from bdpvi.neighbours.rounding import Reach, rounding_error
from bdpvi.neighbours.route import Kind, Remove, Trained
from bdpvi.neighbours.rows import Rows, TracedGradient, check_elementwise, row_gradient, train_rows

AT_ONCE = 2**15
"""Rows of the closed form on a processor: what a step costs whatever their number is small then."""


class Coupled:
    """Neighbours trained beside the fit: same batches, same base noise, one record different.

    Works for any Pyro model: all neighbours are rows of one parameter matrix, the per-row gradient
    is ``torch.func`` over the traced model, and an elementwise optimiser trains every row as if it
    were alone. Source: the definition itself; nothing is approximated.

    Args:
        kinds: :class:`Remove` or :class:`Add` or both; by default every record is left out once.
        memory: GiB that the tensors of the rows trained at one time may take, with their batch and
            the results of all rows.
        chunk: rows trained at a time; None is as many as ``memory`` holds, and for logistic
            regression on a processor no more than 32,768.
        checkpoint: folder for the fit and every finished chunk, so that an interrupted run with the
            same settings goes on from there, to the same bits. Secret; delete it when the result is
            saved (:func:`bdpvi._runtime.checkpoint.forget`).
        reduction: the workers that find neighbours of the same problem together; all of them then
            have the whole panels.

    Raises:
        ValueError: from :meth:`train`, if one row does not fit into ``memory`` or the checkpoint is
            that of another run.
    """

    def __init__(
        self,
        *kinds: Kind,
        memory: float = 0.5,
        chunk: int | None = None,
        checkpoint: str | Path | None = None,
        reduction: Reduction | None = None,
    ) -> None:
        self.kinds = kinds or (Remove(),)
        self.memory = _validate.positive("memory", memory)
        self.chunk = None if chunk is None else _validate.positive_int("chunk", chunk)
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.reduction = reduction or Alone()

    def train(
        self, problem: Problem, track: Track[Any], *, account_training: bool = False
    ) -> Trained:
        """Fit the guide by SVI, then train every neighbour along the same plan."""
        check_elementwise(problem.optim)
        neighbours = [kind.rows(problem.data) for kind in self.kinds]
        if account_training:
            return self._train_charging(problem, neighbours, track)
        workers = self.reduction
        chunk, least = self.chunk or self._rows_at_once(problem, neighbours), _least(problem)
        parts = self._parts(problem, neighbours, chunk)
        once = always if parts is None else parts.once
        begun = None if parts is None else parts.begun("fit")
        workers.sum(torch.zeros(1))  # all have looked at the checkpoint before anybody writes
        fitted = workers.first(
            partial(once, "fit", partial(_fitted, problem, track, begun), _like_fit(problem))
        )
        panels = []
        for rows in neighbours:
            blocks = _blocks(len(rows.records), chunk, least, workers.size)
            panels.append(_panel(problem, rows, fitted, track, blocks, once, workers))
        fit = fitted()
        convergence = Convergence(fit["elbo"], fit["gradient_norm"])
        return Trained(_parameters(problem, fit), convergence, tuple(panels))

    def _rows_at_once(self, problem: Problem, neighbours: Sequence[Rows]) -> int:
        work = _rehearsal(problem, neighbours[0])
        result = work(3)
        kept = (result.r.nbytes + result.b2.nbytes) / 3 + neighbours[0].records.ids.itemsize
        budget = self.memory * 2**30 - kept * sum(len(rows.records) for rows in neighbours)
        fits = rows_within(budget, work)
        if fits < 1:
            raise ValueError(
                f"memory={self.memory} GiB does not hold one row, its batch and the results of all "
                "rows; allow more, or use a lower rate"
            )
        return min(fits, AT_ONCE) if _by_the_row(problem) else fits

    def _parts(self, problem: Problem, neighbours: Sequence[Rows], chunk: int) -> Checkpoint | None:
        if self.checkpoint is None:
            return None
        kinds = {
            f"{rows.kind} records": f"{len(rows.records)} of {rows.records.fingerprint()}"
            for rows in neighbours
        }
        size = self.reduction.size
        share = {"workers": str(size)} if size > 1 else {}
        about = {**identity(problem), "kinds": described(kinds), "chunk": str(chunk), **share}
        return Checkpoint(self.checkpoint, about)

    def _train_charging(
        self, problem: Problem, neighbours: Sequence[Rows], track: Track[Any]
    ) -> Trained:
        """Train all rows side by side, and charge a fresh sample of the guide after every step."""
        if len(neighbours) > 1:
            raise ValueError(
                f"account_training: {len(neighbours)} kinds of neighbours were given; account for "
                "one kind at a time"
            )
        if self.checkpoint is not None:
            raise ValueError(
                f"checkpoint={str(self.checkpoint)!r} cannot be used with account_training: its "
                "accountants need all rows in every step"
            )
        (rows,) = neighbours
        path: list[Distribution] = []
        parameters, convergence = run_svi(
            problem, track, lambda _, now: path.append(problem.guide.released(now))
        )
        posterior = problem.guide.released(parameters)
        account = TrainingAccount(problem.plan.steps)
        ids = rows.records.ids.cpu()

        def charge(step: int, now: dict[str, Tensor]) -> None:
            panel = Panel(rows.kind, ids, _pairs(problem, path[step], now))
            account.step(panel, rounding_error(problem.guide, path[step], Reach.of(panel.pairs)))

        ticks = iter(track(range(problem.plan.steps), rows.kind))
        trained = train_rows(problem, rows, lambda: next(ticks), charge)
        next(ticks, None)  # the bar ends when it is asked for one more
        panel = Panel(rows.kind, ids, _pairs(problem, posterior, trained))
        lattice = problem.guide.lattice(1.0)
        samples = torch.cat([secure.sample(one, lattice=lattice) for one in path])
        training = Training(samples, account.panel, account.holder)
        return Trained(parameters, convergence, (panel,), training)


def _fitted(problem: Problem, track: Track[Any], begun: Kept | None) -> dict[str, Tensor]:
    parameters, convergence = run_svi(problem, track, kept=begun)
    return {**parameters, "elbo": convergence.elbo, "gradient_norm": convergence.gradient_norm}


def _like_fit(problem: Problem) -> dict[str, Tensor]:
    """Return tensors of the types and shapes that :func:`_fitted` returns."""
    curve = torch.empty(problem.plan.steps, device="meta")
    parameters = {name: value.to("meta") for name, value in _initial(problem).items()}
    return {**parameters, "elbo": curve, "gradient_norm": curve}


def _like_block(ids: Tensor, latents: int) -> dict[str, Tensor]:
    """Return tensors of the types and shapes that :func:`_compared` returns for these records."""
    distances = torch.empty(len(ids), latents, dtype=torch.float64, device="meta")
    return {"ids": ids.to("meta"), "r": distances, "b2": distances}


def _initial(problem: Problem) -> dict[str, Tensor]:
    with isolated(problem.data):
        problem.guide.setup(problem.data.x, problem.data.y)
        return problem.guide.initial(problem.data.x)


def _parameters(problem: Problem, fitted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: fitted[name].to(problem.data.x.device) for name in problem.guide.constraints}


def _posterior(problem: Problem, fitted: Mapping[str, Tensor]) -> Distribution:
    return problem.guide.released(_parameters(problem, fitted))


def _by_the_row(problem: Problem) -> bool:
    """Return whether rows cost the same, however few they are."""
    closed = not isinstance(row_gradient(problem), TracedGradient)
    return closed and problem.data.x.device.type == "cpu"


def _least(problem: Problem) -> int | None:
    """Return how few rows a worker may take at a time; None for its whole share."""
    return 256 if _by_the_row(problem) else None


def _blocks(count: int, chunk: int, least: int | None, workers: int) -> list[range]:
    """Return the rows in blocks, for workers to take in turn.

    Each is a worker's share of half of what is left, so that all end together however fast they are
    (guided self-scheduling; Polychronopoulos and Kuck, 1987).

    >>> [len(block) for block in _blocks(100, 1000, 10, 2)]
    [25, 19, 14, 11, 10, 10, 10, 1]
    >>> _blocks(100, 80, 10, 1)
    [range(0, 80), range(80, 100)]
    """
    blocks, start = [], 0
    while start < count:
        size = -(-(count - start) // (2 * workers)) if least else -(-count // workers)
        size = chunk if workers == 1 else min(chunk, max(size, least or 1))
        blocks.append(range(start, min(start + size, count)))
        start += size
    return blocks


def _panel(
    problem: Problem,
    rows: Rows,
    fitted: Callable[[], dict[str, Tensor]],
    track: Track[Any],
    blocks: Sequence[range],
    once: Once,
    workers: Reduction,
) -> Panel:
    """Train the rows by blocks, as many as fall to this worker; return all, compared to the fit."""
    steps = problem.plan.steps
    ticks = iter(track(range(len(blocks) * steps), rows.kind))
    ids = rows.records.ids.cpu()
    found, passed = [], 0
    latents = problem.guide.released(_initial(problem)).event_shape[0]
    for turn in workers.turns(len(blocks)):
        deque(islice(ticks, (turn - passed) * steps), maxlen=0)  # other workers' blocks
        block, mine = blocks[turn], islice(ticks, steps)
        make = partial(_compared, problem, _some(rows, block), fitted, partial(next, mine))
        expected = ids[block.start : block.stop]
        name, like = f"{rows.kind}-{block.start:09}", _like_block(expected, latents)
        part = once(name, make, like)
        if not torch.equal(part["ids"], expected):
            raise ValueError("checkpoint: it holds other records than the run; delete the folder")
        found.append({**part, "place": torch.arange(block.start, block.stop)})
        deque(mine, maxlen=0)  # the steps of a block that was kept
        passed = turn + 1
    deque(ticks, maxlen=0)  # the bar ends when it is asked for one more
    none = torch.empty(0, latents, dtype=torch.float64)
    found.append({"place": ids[:0], "ids": ids[:0], "r": none, "b2": none})
    names = ("place", "ids", "r", "b2")
    place, *parts = (workers.join(torch.cat([part[name] for part in found])) for name in names)
    order = place.argsort()
    ids, r, b2 = (part[order] for part in parts)
    return Panel(rows.kind, ids, GaussianPairs(r, b2))


def _compared(
    problem: Problem,
    rows: Rows,
    fitted: Callable[[], dict[str, Tensor]],
    tick: Callable[[], object],
) -> dict[str, Tensor]:
    """Train the rows; return how far each is from the posterior, by tensors (m, ...)."""
    trained = train_rows(problem, rows, tick)
    pairs = _pairs(problem, _posterior(problem, fitted()), trained)
    return {"ids": rows.records.ids.cpu(), "r": pairs.r, "b2": pairs.b2}


def _pairs(problem: Problem, against: Distribution, trained: dict[str, Tensor]) -> GaussianPairs:
    pairs = summarise(against, problem.guide.released(trained))
    return GaussianPairs(pairs.r.cpu(), pairs.b2.cpu())


def _some(rows: Rows, which: range) -> Rows:
    index = torch.arange(which.start, which.stop, device=rows.records.x.device)
    return replace(rows, records=rows.records.select(index))


def _rehearsal(problem: Problem, rows: Rows) -> Callable[[int], GaussianPairs]:
    """Return work as large as any step of training m rows can be, for any m.

    Two steps, for in the second the gradients of the first are still there; on the largest batch
    that will come up but for a chance of 1e-9 a step, as a full batch.
    """
    data, rate = problem.data, problem.plan.rate
    largest = rate * len(data) + 6 * math.sqrt(rate * (1 - rate) * len(data)) + 6
    index = torch.arange(min(len(data), math.ceil(largest)), device=data.x.device)
    small = replace(problem, data=data.select(index), plan=Plan(steps=2))
    initial = _initial(problem)

    def work(m: int) -> GaussianPairs:
        trained = train_rows(small, _some(rows, range(m)))
        for name, value in trained.items():  # a divergent run is the fit's to report
            value.copy_(initial[name])
        return _pairs(small, problem.guide.released(initial), trained)

    return work

"""Coupled training of a fit and its neighbours, which have one record fewer or more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from bdpvi._ground import log, validate
from bdpvi._ground.checkpoint import NOWHERE, Checkpoint, KeptState
from bdpvi._ground.progress import Track
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs, summarise
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.inference.fingerprint import described, identity
from bdpvi.bayesian.inference.optimisers import check_elementwise
from bdpvi.bayesian.inference.svi import Convergence, Problem, run_svi
from bdpvi.bayesian.neighbours.route import Add, Neighbours, Remove, TrainedNeighbours
from bdpvi.bayesian.neighbours.rows import Piece, RowFits, train_rows
from bdpvi.datasets.records import Spread

CHUNK = 2048
"""Rows trained at a time: fewer make a step's fixed cost matter more; more need more memory."""


class Coupled(Neighbours):
    """Neighbours trained beside the fit: same batches, same base noise, one record different.

    It works for any Pyro model: all neighbours are rows of one parameter matrix, ``torch.func``
    over the traced model gives each row's gradient, and an elementwise optimiser trains every row
    as if it were alone. Source: the definition itself; nothing is approximated. The bar of progress
    shows the time that is left; :class:`bdpvi.Optimum`, for models that it takes, needs far less.

    Args:
        kinds: :class:`Remove` or :class:`Add` or both; by default every record is left out once.
        chunk: rows trained at a time. A model without a closed form needs about chunk × batch × 150
            bytes, so use fewer for full batches of many records, more on a GPU.
        checkpoint: folder for the fit and every finished chunk, so that an interrupted run with the
            same settings resumes bit for bit. Secret; delete it when the result is saved.
        executor: workers that train the chunks: a :class:`concurrent.futures.ProcessPoolExecutor`,
            or Dask's ``client.get_executor()``. The model must be importable there. They are sent
            the data and the key of the batches, so each is as secret as this process. The result
            is the same to the bit for any number of workers of one kind.

    Raises:
        ValueError: from :meth:`train`, if the checkpoint belongs to another run.
    """

    def __init__(
        self,
        *kinds: Remove | Add,
        chunk: int = CHUNK,
        checkpoint: str | Path | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.kinds = kinds or (Remove(),)
        self.chunk = validate.positive_int("chunk", chunk)
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.executor = executor

    def train(self, problem: Problem, track: Track[Any]) -> TrainedNeighbours:
        """Fit the guide by SVI, then train every neighbour along the same plan."""
        check_elementwise(problem.optim)
        neighbours = [kind.rows(problem.data, problem.model) for kind in self.kinds]
        parts = self._parts(problem, neighbours)
        begun = parts.unfinished_part("fit")
        with log.step("fit"):
            fit = parts.once("fit", partial(_train_posterior, problem, track, begun))
        parameters = {
            name: fit[name].to(problem.data.x.device) for name in problem.guide.constraints
        }
        posterior = problem.guide.released(parameters)
        panels = []
        for rows in neighbours:
            with log.step(f"neighbours ({rows.kind})"):
                train = self._train_chunks if self.executor is None else self._by_workers
                found = train(problem, rows, parameters, track, parts)
                none = torch.empty(0, posterior.event_shape[0], dtype=torch.float64)
                every = [{"ids": rows.records.ids[:0].cpu(), "r": none, "b2": none}, *found]
            ids, r, b2 = (torch.cat([one[name] for one in every]) for name in ("ids", "r", "b2"))
            panels.append(Panel(rows.kind, ids, GaussianPairs(r, b2)))
        convergence = Convergence(fit["elbo"], fit["gradient_norm"])
        return TrainedNeighbours(parameters, convergence, tuple(panels))

    def _train_chunks(
        self,
        problem: Problem,
        rows: RowFits,
        parameters: Mapping[str, Tensor],
        track: Track[Any],
        parts: Checkpoint,
    ) -> Iterator[dict[str, Tensor]]:
        """Train the rows by chunks; yield ids, r and b² of each chunk."""
        chunks, steps = self._chunks(rows), problem.plan.steps
        ticks = iter(track(range(len(chunks) * steps), rows.kind))
        for chunk in chunks:
            step = islice(ticks, steps)
            yield parts.once(
                chunk.name,
                partial(_compare_rows, chunk.rows, problem, parameters, partial(next, step)),
            )
            deque(step, maxlen=0)  # the steps of a saved chunk
        deque(ticks, maxlen=0)  # asking for one more ends the bar

    def _by_workers(
        self,
        problem: Problem,
        rows: RowFits,
        parameters: Mapping[str, Tensor],
        track: Track[Any],
        parts: Checkpoint,
    ) -> Iterator[dict[str, Tensor]]:
        """Do :meth:`_train_chunks` in the executor."""
        chunks = self._chunks(rows)
        lacking = [chunk for chunk in chunks if not parts.has(chunk.name)]
        spread = Spread[RowFits](lacking, executor=self.executor, track=track, what=rows.kind)
        made = spread.each(_compare_rows, problem, parameters)
        for chunk in chunks:
            yield parts.once(chunk.name, partial(next, made))

    def _chunks(self, rows: RowFits) -> list[Piece[RowFits]]:
        return [
            Piece(f"{rows.kind}-{at * self.chunk:09}", part)
            for at, part in enumerate(rows.parts(self.chunk))
            if len(part.records)
        ]

    def _parts(self, problem: Problem, neighbours: Sequence[RowFits]) -> Checkpoint:
        if self.checkpoint is None:
            return NOWHERE
        kinds = {
            f"{rows.kind} records": f"{len(rows.records)} of {rows.records.fingerprint()}"
            for rows in neighbours
        }
        about = {**identity(problem), "kinds": described(kinds), "chunk": str(self.chunk)}
        return Checkpoint(self.checkpoint, about)


def _train_posterior(problem: Problem, track: Track[Any], begun: KeptState) -> dict[str, Tensor]:
    parameters, convergence = run_svi(problem, track, kept=begun)
    return {**parameters, "elbo": convergence.elbo, "gradient_norm": convergence.gradient_norm}


def _compare_rows(
    rows: RowFits,
    problem: Problem,
    parameters: Mapping[str, Tensor],
    tick: Callable[[], object] = lambda: None,
) -> dict[str, Tensor]:
    """Train the rows; return each row's distance from the posterior, as tensors (m, ...)."""
    pairs = _pairs(problem, problem.guide.released(parameters), train_rows(problem, rows, tick))
    return {"ids": rows.records.ids.cpu(), "r": pairs.r, "b2": pairs.b2}


def _pairs(problem: Problem, against: Distribution, trained: dict[str, Tensor]) -> GaussianPairs:
    pairs = summarise(against, problem.guide.released(trained))
    return GaussianPairs(pairs.r.cpu(), pairs.b2.cpu())

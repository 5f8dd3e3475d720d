"""Neighbours: the posterior as it would be with one record fewer or one record more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from bdpvi import _validate, secure
from bdpvi.divergences import GaussianPairs, summarise
from bdpvi.panel import Panel
from bdpvi.progress import Track
from bdpvi.rows import Rows, check_elementwise, train_rows
from bdpvi.svi import Convergence, Problem, run_svi
from bdpvi.training import Training, TrainingAccount
from bdpvi.types import Dataset


@dataclass(frozen=True, eq=False)
class Trained:
    """What training gave.

    Attributes:
        parameters: the guide's, constrained and detached. Secret.
        convergence: how the fit went. Secret.
        panels: how far single records move the posterior, one panel per kind. Secret.
        training: the samples published while training, if they were asked for.
    """

    parameters: dict[str, Tensor]
    convergence: Convergence
    panels: tuple[Panel, ...]
    training: Training | None = None


@dataclass(frozen=True)
class Remove:
    """Leave-one-out neighbours.

    Args:
        records: how many records to leave out in turn, drawn at random; None is all of them.
        seed: of that choice.
    """

    records: int | None = None
    seed: int = 0

    def rows(self, data: Dataset) -> Rows:
        """Return the neighbours of ``data``."""
        return Rows("remove", _sample("records", data, self.records, self.seed), -1.0)


@dataclass(frozen=True, eq=False)
class Add:
    """Neighbours with one held-out record more: x' ~ μ as the definition has it.

    Args:
        heldout: records that are not in the data, with ids of their own.
        records: how many of them to add in turn; None is all.
        seed: of that choice.
    """

    heldout: Dataset
    records: int | None = None
    seed: int = 0

    def rows(self, data: Dataset) -> Rows:
        """Return the neighbours of ``data``."""
        shared = torch.isin(self.heldout.ids.cpu(), data.ids.cpu())
        if bool(shared.any()):
            first = int(self.heldout.ids.cpu()[shared][0])
            raise ValueError(f"heldout has record id {first}, which is in the data already")
        if self.heldout.x.shape[1] != data.x.shape[1]:
            raise ValueError(
                f"heldout has {self.heldout.x.shape[1]} features, the data {data.x.shape[1]}"
            )
        heldout = self.heldout.to(data.x.device, data.x.dtype)
        return Rows("add", _sample("records", heldout, self.records, self.seed), 1.0)


def _sample(name: str, data: Dataset, records: int | None, seed: int) -> Dataset:
    size = len(data) if records is None else _validate.positive_int(name, records)
    if not 3 <= size <= len(data):
        raise ValueError(f"{name}={size} must be between 3 and the {len(data)} that there are")
    if size == len(data):
        return data
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:size]
    return data.select(chosen.sort().values.to(data.x.device))


class Coupled:
    """Neighbours trained beside the fit: same batches, same base noise, one record different.

    Works for any Pyro model: all neighbours are rows of one parameter matrix, the per-row gradient
    is ``torch.func`` over the traced model, and an elementwise optimiser trains every row as if it
    were alone. Source: the definition itself; nothing is approximated.

    Args:
        kinds: :class:`Remove` or :class:`Add` or both; by default every record is left out once.
        chunk: rows trained at a time; small chunks stay in the processor's cache.
    """

    def __init__(self, *kinds: Remove | Add, chunk: int = 1024) -> None:
        self.kinds = kinds or (Remove(),)
        self.chunk = _validate.positive_int("chunk", chunk)

    def train(
        self, problem: Problem, track: Track[Any], *, account_training: bool = False
    ) -> Trained:
        """Fit the guide by SVI, then train every neighbour along the same plan."""
        check_elementwise(problem.optim)
        if account_training and len(self.kinds) > 1:
            raise ValueError(
                f"account_training: {len(self.kinds)} kinds of neighbours were given; account for "
                "one kind at a time"
            )
        path: list[Distribution] = []
        follow = None
        if account_training:
            follow = lambda _, now: path.append(problem.guide.posterior(now))  # noqa: E731
        parameters, convergence = run_svi(problem, track, follow)
        posterior = problem.guide.posterior(parameters)
        if account_training:
            account = TrainingAccount(problem.plan.steps)
            (rows,) = (kind.rows(problem.data) for kind in self.kinds)
            panel = _train_panel(problem, rows, posterior, track, len(rows.records), path, account)
            samples = torch.cat([secure.sample(one) for one in path])
            training = Training(samples, account.panel, account.holder)
            return Trained(parameters, convergence, (panel,), training)
        panels = (
            _train_panel(problem, kind.rows(problem.data), posterior, track, self.chunk)
            for kind in self.kinds
        )
        return Trained(parameters, convergence, tuple(panels))


def _train_panel(
    problem: Problem,
    rows: Rows,
    posterior: Distribution,
    track: Track[Any],
    chunk: int,
    path: Sequence[Distribution] = (),
    account: TrainingAccount | None = None,
) -> Panel:
    """Train the rows chunk by chunk and compare them with the fit; charge every step if asked."""
    ids = rows.records.ids.cpu()

    def compare(against: Distribution, parameters: dict[str, Tensor]) -> GaussianPairs:
        pairs = summarise(against, problem.guide.posterior(parameters))
        return GaussianPairs(pairs.r.cpu(), pairs.b2.cpu())

    def charge(step: int, parameters: dict[str, Tensor]) -> None:
        if account is not None:
            account.step(Panel(rows.kind, ids, compare(path[step], parameters)))

    starts = range(0, len(ids), chunk)
    ticks = iter(track(range(len(starts) * problem.plan.steps), rows.kind))
    blocks = []
    for start in starts:
        index = torch.arange(start, min(start + chunk, len(ids)), device=rows.records.x.device)
        block = Rows(rows.kind, rows.records.select(index), rows.sign)
        trained = train_rows(problem, block, partial(next, ticks), charge if account else None)
        blocks.append(compare(posterior, trained))
    next(ticks, None)  # the bar ends when it is asked for one more
    pairs = GaussianPairs(torch.cat([b.r for b in blocks]), torch.cat([b.b2 for b in blocks]))
    return Panel(rows.kind, ids, pairs)

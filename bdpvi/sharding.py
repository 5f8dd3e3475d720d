"""Neighbours shared out among workers, who join what they found once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from bdpvi.divergences import GaussianPairs
from bdpvi.fit import Neighbours
from bdpvi.neighbours import Kind, Remove, Trained
from bdpvi.panel import Panel
from bdpvi.progress import Track
from bdpvi.reduction import Reduction
from bdpvi.rows import Rows
from bdpvi.svi import Problem
from bdpvi.types import Dataset

_LEAST = 3
_AGREEMENT = 1e-9


@dataclass(frozen=True, eq=False)
class Share:
    """One worker's part of a kind's neighbours: a run of consecutive rows.

    Args:
        kind: all neighbours.
        rank: the worker's number, from 0.
        size: how many workers there are.

    >>> from bdpvi.neighbours import Remove
    >>> data = Dataset(torch.zeros(7, 1), torch.zeros(7))
    >>> [Share(Remove(), rank, 2).rows(data).records.ids.tolist() for rank in (0, 1)]
    [[0, 1, 2], [3, 4, 5, 6]]
    """

    kind: Kind
    rank: int
    size: int

    def rows(self, data: Dataset) -> Rows:
        """Return this worker's neighbours of ``data``."""
        rows = self.kind.rows(data)
        count = len(rows.records)
        if count < _LEAST * self.size:
            raise ValueError(
                f"workers={self.size} are too many for {count} neighbours: each needs {_LEAST}"
            )
        start, stop = (count * rank // self.size for rank in (self.rank, self.rank + 1))
        index = torch.arange(start, stop, device=rows.records.x.device)
        return replace(rows, records=rows.records.select(index))


@dataclass(frozen=True, eq=False)
class Given:
    """Neighbours that are chosen already."""

    chosen: Rows

    def rows(self, data: Dataset) -> Rows:
        """Return them, whatever ``data`` is."""
        return self.chosen


class Sharded:
    """A way to find neighbours, its rows shared out among workers.

    All workers hold the same data and train the same fit from the shared seed, so nothing is
    exchanged until each has its panel; then all have the whole one.

    Args:
        route: makes the way of one worker from its kinds, such as :class:`~bdpvi.Coupled`.
        kinds: what all workers do together.
        workers: see :mod:`bdpvi.reduction`. Every worker must make the same calls.
    """

    def __init__(self, route: Callable[..., Neighbours], *kinds: Kind, workers: Reduction) -> None:
        self.route, self.kinds, self.workers = route, kinds, workers

    def train(
        self, problem: Problem, track: Track[Any], *, account_training: bool = False
    ) -> Trained:
        """Train the fit and this worker's neighbours; return them with all workers' neighbours.

        Raises:
            ValueError: if training is to be accounted for, or there are too few neighbours.
            RuntimeError: if the workers have different fits, or if the joined records are not
                exactly those that were asked for.
        """
        if account_training and self.workers.size > 1:
            raise ValueError("account_training: the accountants of one worker need all neighbours")
        shares = [Share(kind, self.workers.rank, self.workers.size) for kind in self.kinds]
        trained = self.route(*shares).train(problem, track, account_training=account_training)
        self._agree(trained)
        return _checked(self.kinds, problem, replace(trained, panels=self._join(trained.panels)))

    def _agree(self, trained: Trained) -> None:
        """Raise unless all workers have the same fit: their panels would not belong together."""
        for name, value in sorted(trained.parameters.items()):
            value = value.double()
            spread = self.workers.max(value) + self.workers.max(-value)
            if not bool((spread <= _AGREEMENT * value.abs().max().clamp(min=1)).all()):
                raise RuntimeError(
                    f"the workers' fits differ by {spread.max().item():.3g} in {name}; they must "
                    "read the same data with the same settings"
                )

    def _join(self, panels: Sequence[Panel]) -> tuple[Panel, ...]:
        whole = []
        for panel in panels:
            parts = (panel.ids, panel.pairs.r, panel.pairs.b2)
            ids, r, b2 = (self.workers.join(part) for part in parts)
            whole.append(Panel(panel.kind, ids, GaussianPairs(r, b2)))
        return tuple(whole)


class ShardedRecords:
    """A way to find neighbours, the records of the data shared out among workers too.

    No worker works with all records: sums over them go through the workers.

    Args:
        route: makes the way from the kinds and a ``reduction``, such as :class:`~bdpvi.Optimum`.
        kinds: what all workers do together.
        workers: see :mod:`bdpvi.reduction`. Every worker must make the same calls.
    """

    def __init__(self, route: Callable[..., Neighbours], *kinds: Kind, workers: Reduction) -> None:
        self.route, self.kinds, self.workers = route, kinds, workers

    def train(
        self, problem: Problem, track: Track[Any], *, account_training: bool = False
    ) -> Trained:
        """Fit the guide and find all neighbours, together.

        Raises:
            ValueError: if there are too few neighbours, or as the route does.
            RuntimeError: if the joined records are not exactly those that were asked for.
        """
        rank, size = self.workers.rank, self.workers.size
        shares = [Given(Share(kind, rank, size).rows(problem.data)) for kind in self.kinds]
        mine = Share(Remove(), rank, size).rows(problem.data).records
        route = self.route(*shares, reduction=self.workers)
        part = replace(problem, data=mine)
        return _checked(
            self.kinds, problem, route.train(part, track, account_training=account_training)
        )


def _checked(kinds: Sequence[Kind], problem: Problem, trained: Trained) -> Trained:
    """Raise unless the panels have the records that were asked for, in their order."""
    for kind, panel in zip(kinds, trained.panels, strict=True):
        expected = kind.rows(problem.data).records.ids.cpu()
        if not torch.equal(panel.ids, expected):
            raise RuntimeError(
                f"the workers' {len(panel.ids)} neighbours are not the {len(expected)} asked for"
            )
    return trained

"""Routes with neighbours, or records too, divided among workers, for ``bdpvi.distributed``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from bdpvi._ground.outputs import several
from bdpvi._ground.progress import Track
from bdpvi.bayesian.inference.fingerprint import identity
from bdpvi.bayesian.inference.svi import Problem
from bdpvi.bayesian.neighbours.route import Change, Neighbours, Remove, TrainedNeighbours
from bdpvi.bayesian.neighbours.rows import RowFits
from bdpvi.bayesian.workers import Reduction, share
from bdpvi.datasets.dataset import Dataset
from bdpvi.noise.keys import Key

_LEAST = 3
"""Fewest neighbours of a worker: a smaller panel gives no bound."""


def part(kind: Change, data: Dataset, workers: Reduction) -> RowFits:
    """Return this worker's consecutive part of the neighbours of ``data``.

    Raises:
        ValueError: if these are too few for a panel.

    >>> from bdpvi.bayesian.workers import Alone
    >>> data = Dataset(torch.zeros(7, 1), torch.zeros(7))
    >>> part(Remove(), data, Alone()).records.ids.tolist()
    [0, 1, 2, 3, 4, 5, 6]
    """
    rows = kind.rows(data)
    count = len(rows.records)
    if count < _LEAST * workers.size:
        raise ValueError(
            f"workers={workers.size} are too many for {count} neighbours: each needs {_LEAST}"
        )
    return rows.select(share(count, workers))


@dataclass(frozen=True, eq=False)
class Given:
    """Neighbours already chosen."""

    chosen: RowFits

    def rows(self, data: Dataset) -> RowFits:
        """Return them, whatever ``data`` is."""
        return self.chosen


class Sharded:
    """A route with its rows divided among workers.

    All workers hold the same data, and each trains the fit and an equal part of the rows. They need
    the same kind of processor and library versions for bitwise identical fits.

    Args:
        route: builds the route from kinds and a ``reduction``, such as :class:`~bdpvi.Coupled`.
        kinds: kinds of neighbours, shared by all workers.
        workers: see :mod:`bdpvi.bayesian.workers`. Every worker must make the same calls.
    """

    def __init__(
        self, route: Callable[..., Neighbours], *kinds: Change, workers: Reduction
    ) -> None:
        self.route, self.kinds, self.workers = route, kinds, workers

    def key(self) -> Key:
        """Return the route's key, the same for all workers."""
        return self.route(*self.kinds, reduction=self.workers).key()

    def train(self, problem: Problem, track: Track[Any]) -> TrainedNeighbours:
        """Train the fit and all neighbours, together.

        Raises:
            RuntimeError: if the workers have different problems, or the joined records are not
                exactly the requested ones.
        """
        self._agree(problem)
        route = self.route(*self.kinds, reduction=self.workers)
        trained = route.train(problem, track)
        return self._checked(problem, trained)

    def _checked(self, problem: Problem, trained: TrainedNeighbours) -> TrainedNeighbours:
        """Raise unless the panels have the requested records, in order."""
        for kind, panel in zip(self.kinds, trained.panels, strict=True):
            expected = kind.rows(problem.data).records.ids.cpu()
            if not torch.equal(panel.ids, expected):
                raise RuntimeError(
                    f"the workers found {several(len(panel.ids), 'neighbour')}, not the "
                    f"{len(expected)} that they were asked for, in that order"
                )
        return trained

    def _agree(self, problem: Problem) -> None:
        """Raise unless all workers have the same problem; otherwise rows must not be combined."""
        if self.workers.size == 1:
            return
        for name, text in identity(problem).items():
            digest = torch.tensor(list(hashlib.sha256(text.encode()).digest()))
            if bool((self.workers.max(digest) + self.workers.max(-digest)).any()):
                raise RuntimeError(
                    f"the workers differ in {name}; they must read the same data with the same "
                    "settings"
                )


class ShardedRecords(Sharded):
    """A route with the data's records divided among workers too.

    No worker holds all records: sums over records are reduced over workers. Arguments are as for
    :class:`Sharded`, with a route such as :class:`~bdpvi.Optimum`.
    """

    def train(self, problem: Problem, track: Track[Any]) -> TrainedNeighbours:
        """Fit the guide and find all neighbours, together.

        Raises:
            ValueError: if there are too few neighbours, or as in the route.
            RuntimeError: if the joined records are not exactly the requested ones.
        """
        shares = [Given(part(kind, problem.data, self.workers)) for kind in self.kinds]
        mine = replace(problem, data=part(Remove(), problem.data, self.workers).records)
        route = self.route(*shares, reduction=self.workers)
        trained = route.train(mine, track)
        return self._checked(problem, trained)

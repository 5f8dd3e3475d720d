"""Neighbours shared out among workers: each trains the fit and its share, and all join once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from bdpvi.divergences import GaussianPairs
from bdpvi.fit import Neighbours
from bdpvi.neighbours import Kind, Trained
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


class Sharded:
    """A way to find neighbours, done by several workers at once.

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
        panels = (
            self._whole(kind.rows(problem.data), panel)
            for kind, panel in zip(self.kinds, trained.panels, strict=True)
        )
        return replace(trained, panels=tuple(panels))

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

    def _whole(self, rows: Rows, panel: Panel) -> Panel:
        """Join all workers' panels; the records must be those of ``rows``, in their order."""
        ids, r, b2 = (self.workers.join(v) for v in (panel.ids, panel.pairs.r, panel.pairs.b2))
        if not torch.equal(ids, rows.records.ids.cpu()):
            raise RuntimeError(
                f"the workers' {len(ids)} neighbours are not the {len(rows.records)} asked for"
            )
        return Panel(panel.kind, ids, GaussianPairs(r, b2))

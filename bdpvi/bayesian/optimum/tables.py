"""Records in blocks of one size, read anew in every pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground.progress import Track
from bdpvi.bayesian.optimum.weighted import Weighted
from bdpvi.datasets.dataset import BlockData
from bdpvi.models.logistic import BayesianLogisticRegression

ROWS = 1 << 14
"""Records of a block; the last block of a pass may be shorter."""


class ModelTable:
    """Records transformed by a model, as :class:`bdpvi.bayesian.optimum.elbo.Objective`'s source.

    Args:
        table: the records.
        model: the model.
        device: where blocks are read to.
        track: shows the progress of every pass, block by block.
    """

    in_memory: ClassVar[bool] = False

    def __init__(
        self,
        table: BlockData,
        model: BayesianLogisticRegression,
        device: torch.device,
        track: Track[Any],
    ) -> None:
        self.table, self.model, self.device, self.track = table, model, device, track
        self._passes = 0

    def __len__(self) -> int:
        return len(self.table)

    @property
    def blocks(self) -> int:
        """The number of blocks, at least 1."""
        return max(1, -(-len(self) // ROWS))

    def read(self, first: int = 0) -> Iterator[Weighted]:
        """Iterate over the blocks from number ``first``."""
        for x, y in of_one_size(self.table, first * ROWS):
            yield Weighted.of_rows(
                self.model, x.to(self.device).double(), y.to(self.device).double()
            )

    def rows(self) -> Iterator[Weighted]:
        """Yield all blocks, by one pass whose progress is shown."""
        self._passes += 1
        turns = self.track(range(self.blocks), f"pass {self._passes}")
        for _, records in zip(turns, self.read(), strict=False):
            yield records


def of_one_size(table: BlockData, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield features (n, d) and targets (n,) in blocks of :data:`ROWS` records, at least one.

    Args:
        table: the records.
        skip: number of records that are left out at first.
    """
    parts: list[tuple[Tensor, ...]] = []
    held = 0
    for x, y in table.parts.rows():
        drop = min(skip, len(y))
        skip -= drop
        parts.append((x[drop:], y[drop:]))
        held += len(y) - drop
        while held >= ROWS:
            x, y = (torch.cat(one) for one in zip(*parts, strict=True))
            yield x[:ROWS], y[:ROWS]
            parts, held = [(x[ROWS:], y[ROWS:])], held - ROWS
    if held or not len(table):
        x, y = (torch.cat(one) for one in zip(*parts, strict=True))
        yield x, y

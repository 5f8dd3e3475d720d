"""The training plan: the batch and the base noise of each step.

A plan, a pure function of its seed, determines all randomness in training (the papers' auxiliary
input ξ), so that a fit and its neighbours can share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bdpvi._ground import validate

Coins = Callable[[int], NDArray[np.int64]]
_AT_ONCE = 1 << 16
"""Coins tossed at once: they fit in a processor's cache."""


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Poisson batches and base noise for ``steps`` steps.

    A record's coin depends only on the seed, the step and the record's *id*. So without record i
    every step has the same batch except for record i, and adding a record changes no other coin.

    Args:
        steps: number of optimiser steps.
        rate: Poisson sampling rate q in (0, 1]; 1 is full batch.
        seed: any non-negative integer.
        secret: whether the seed, and so the coins, are secret. Otherwise a run with batches is an
            experiment: row numbers decide who is in a batch, and removing a row shifts them.

    >>> plan = BatchPlan(steps=10, rate=0.5, seed=0)
    >>> ids = torch.arange(100)
    >>> rest = ids[ids != 7]
    >>> bool((plan.batch(3, ids)[ids != 7] == plan.batch(3, rest)).all())
    True
    """

    steps: int
    rate: float = 1.0
    seed: int = field(default=0, metadata={"bits": 256})
    secret: bool = False

    def __post_init__(self) -> None:
        validate.positive_int("steps", self.steps)
        validate.rate("rate", self.rate)
        validate.positive_int("seed", self.seed, least=0)

    @property
    def experiment(self) -> bool:
        """Whether batches are drawn with a public seed."""
        return self.rate < 1 and not self.secret

    def batch(self, step: int, ids: Tensor) -> Tensor:
        """Return a boolean mask of the records ``ids`` in the batch of ``step``."""
        if self.rate == 1:
            return torch.ones_like(ids, dtype=torch.bool)
        coins = self._stream(step).random(int(ids.max()) + 1 if len(ids) else 0) < self.rate
        return torch.from_numpy(coins).to(ids.device)[ids]

    def batch_ids(self, step: int, limit: int) -> Tensor:
        """Return the ids below ``limit`` that are in the batch of ``step``, in order."""
        following = self.coins(step)
        starts = range(0, limit, _AT_ONCE)
        found = [start + following(min(_AT_ONCE, limit - start)) for start in starts]
        return torch.from_numpy(np.concatenate(found) if found else np.zeros(0, dtype=np.int64))

    def coins(self, step: int) -> Coins:
        """Return a function of n: which of the next n ids, from 0, are in the batch of ``step``.

        So the batch of a table that is read in parts is that of the table, whatever the parts.

        >>> plan = BatchPlan(steps=1, rate=0.5, seed=0)
        >>> following = plan.coins(0)
        >>> [*following(3), *(3 + following(7))] == plan.batch_ids(0, 10).tolist()
        True
        """
        if self.rate == 1:
            return np.arange
        stream = self._stream(step)
        return lambda count: np.flatnonzero(stream.random(count) < self.rate)

    def noise_seed(self, step: int) -> int:
        """Return the seed of the base noise of step ``step``."""
        return int(self._stream(step, purpose=1).integers(2**63))

    def _stream(self, step: int, purpose: int = 0) -> np.random.Generator:
        return np.random.Generator(
            np.random.Philox(np.random.SeedSequence((self.seed, step, purpose)))
        )


_KEPT = 1 << 23
"""Largest number of record ids that :class:`Batches` keeps, over all steps."""


class Batches:
    """The batches of a plan, drawn once for all runs that share it.

    Args:
        plan: the plan.
        limit: a number above every record's id.

    Attributes:
        noise_seeds: noise seed of every step, see :meth:`BatchPlan.noise_seed`.

    >>> Batches(BatchPlan(steps=3, rate=0.5, seed=1), 6)[0].tolist()
    [0, 1, 2, 4, 5]
    """

    def __init__(self, plan: BatchPlan, limit: int) -> None:
        self.plan, self.limit = plan, limit
        self.noise_seeds = [plan.noise_seed(step) for step in range(plan.steps)]
        small = plan.rate < 1 and plan.rate * limit * plan.steps <= _KEPT
        self._kept = [plan.batch_ids(step, limit) for step in range(plan.steps)] if small else None

    def __getitem__(self, step: int) -> Tensor:
        """Return the ids in the batch of ``step``."""
        return self.plan.batch_ids(step, self.limit) if self._kept is None else self._kept[step]


batches = lru_cache(maxsize=1)(Batches)
"""Returns a plan's :class:`Batches`; keeps those of the latest plan."""

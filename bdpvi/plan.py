"""The training plan: which records each step sees and which base noise it uses.

Everything random in training (the papers' auxiliary input ξ) follows from a plan, a pure function
of its seed, so that a fit and its neighbours can share it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bdpvi import _validate


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Poisson batches and base noise for ``steps`` steps.

    A record's coin depends on the seed, the step and the record's *id* alone. So the data without
    record i meet, in every step, the same batch without record i; and a record that joins changes
    nobody else's coin.

    Args:
        steps: number of optimiser steps.
        rate: Poisson sampling rate q in (0, 1]; 1 is full batch.
        seed: any non-negative integer.

    >>> plan = Plan(steps=10, rate=0.5, seed=0)
    >>> ids = torch.arange(100)
    >>> rest = ids[ids != 7]
    >>> bool((plan.batch(3, ids)[ids != 7] == plan.batch(3, rest)).all())
    True
    """

    steps: int
    rate: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.positive_int("steps", self.steps)
        _validate.rate("rate", self.rate)
        _validate.positive_int("seed", self.seed, least=0)

    def batch(self, step: int, ids: Tensor) -> Tensor:
        """Return which of the records ``ids`` are in the batch of ``step``, a boolean mask."""
        if self.rate == 1:
            return torch.ones_like(ids, dtype=torch.bool)
        coins = self._stream(step).random(int(ids.max()) + 1 if len(ids) else 0)
        return torch.from_numpy(coins < self.rate).to(ids.device)[ids]

    def noise_seed(self, step: int) -> int:
        """Return the seed of the base noise of step ``step``."""
        return int(self._stream(step, purpose=1).integers(2**63))

    def _stream(self, step: int, purpose: int = 0) -> np.random.Generator:
        return np.random.Generator(
            np.random.Philox(np.random.SeedSequence((self.seed, step, purpose)))
        )

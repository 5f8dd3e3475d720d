"""Records whose distribution is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bdpvi import Dataset
from bdpvi.bench.methods.runs import Run
from bdpvi.privacy.cost import Outcome


def logistic_data(records: int, features: int, seed: int = 0) -> Dataset:
    """Return records from a logistic regression with weights from -1 to 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, features, generator=generator, dtype=torch.float64)
    logits = x @ torch.linspace(-1, 1, features, dtype=torch.float64)
    y = torch.rand(records, generator=generator, dtype=torch.float64) < torch.sigmoid(logits)
    return Dataset(x, y.double())


def single(several: Callable[..., tuple[Outcome, ...]]) -> Callable[..., Outcome]:
    """Return a function of one training run from that of several side by side."""

    def one(
        *arguments: Any, noise_multiplier: float, seed: int | None = None, **options: Any
    ) -> Outcome:
        runs = [Run(noise_multiplier=noise_multiplier, seed=seed)]
        (outcome,) = several(*arguments, runs=runs, **options)
        return outcome

    return one

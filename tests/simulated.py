"""Records whose distribution is known."""

from __future__ import annotations

import torch

from bdpvi import Dataset


def logistic_data(records: int, features: int, seed: int = 0) -> Dataset:
    """Return records from a logistic regression with weights from -1 to 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, features, generator=generator, dtype=torch.float64)
    logits = x @ torch.linspace(-1, 1, features, dtype=torch.float64)
    y = torch.rand(records, generator=generator, dtype=torch.float64) < torch.sigmoid(logits)
    return Dataset(x, y.double())

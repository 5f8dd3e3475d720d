"""Records whose distribution is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import bdpvi
from bdpvi import BayesianLogisticRegression, Dataset, Fit
from bdpvi.bench.methods.method import Outcome
from bdpvi.bench.methods.runs import Run
from bdpvi.guides import GaussianGuide, MeanField


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


GUIDED = BayesianLogisticRegression(clip=1.0, prior_scale=0.16, limit=2.0, intercept=True)
"""Logistic regression whose clip bounds a record's influence."""


def guided(data: Dataset, kind: type[GaussianGuide] = MeanField, **given: Any) -> Fit:
    """Return a fit of a guide with public noise of a tenth, which has a worst case."""
    guide = kind(GUIDED, noise_scale=0.1)
    return bdpvi.fit(GUIDED, guide, data, progress=False, **given)

"""Variational inference without privacy: what privacy is measured against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bdpvi.compare.methods.method import MODEL_SPACE, NONE
from bdpvi.dp.dpvi import DPVISettings, dpvi_runs
from bdpvi.dp.noise import Run
from bdpvi.guides import MeanField
from bdpvi.inference.svi import default_optimiser
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.types import Dataset, Outcome


@dataclass(frozen=True, kw_only=True)
class NonPrivate:
    """SVI of a mean-field guide, nothing clipped, no noise.

    Args:
        model: the model.
        steps: optimiser steps.
        rate: Poisson sampling rate q of the batches.
        learning_rate: of Adam at the first step; it decays to a hundredth.
        draws: samples that predict; None predicts by the guide's mean.
    """

    model: BayesianLogisticRegression = field(default_factory=BayesianLogisticRegression)
    steps: int = 1000
    rate: float = 0.1
    learning_rate: float = 0.1
    draws: int | None = 100

    name: ClassVar[str] = "non-private"
    label: ClassVar[str] = "VI, not private"
    guarantee: ClassVar[str] = NONE
    note: ClassVar[str] = "The seeds are those of batches, base noise and draws."
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        **MODEL_SPACE,
        "model.prior_scale": (1.0, 3.0),
        "steps": (500, 1000, 2000),
        "rate": (0.05, 0.2),
        "learning_rate": (0.03, 0.1),
    }

    def prepare(self, train: Dataset, delta: float) -> PreparedNonPrivate:
        """Keep the records."""
        return PreparedNonPrivate(self, train)


@dataclass(frozen=True)
class PreparedNonPrivate:
    """The training records, in full view."""

    method: NonPrivate
    train: Dataset

    def calibrate(self, epsilon: float) -> float:
        """Return 0: no noise at any ε."""
        return 0.0

    def outcomes(self, settings: Sequence[float], seeds: Sequence[int]) -> list[Outcome]:
        """Train once for each seed; there is nothing to set."""
        method = self.method
        training = DPVISettings(
            steps=method.steps,
            rate=method.rate,
            clip=None,
            optim=default_optimiser(method.steps, method.learning_rate),
            draws=method.draws,
        )
        runs = [Run(noise_multiplier=0.0, seed=seed) for seed in seeds]
        guide = MeanField(method.model)
        return list(dpvi_runs(method.model, guide, self.train, runs=runs, settings=training))

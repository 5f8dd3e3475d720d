"""DPVI: one training, two accountants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bdpvi.accounting.worst_case import (
    MomentsAccountant,
    PrivacyLossAccountant,
    WorstCaseAccountant,
)
from bdpvi.compare.methods.method import MODEL_SPACE
from bdpvi.compare.methods.noisy import NoisyTraining
from bdpvi.dp.dpvi import DPVISettings, dpvi_runs
from bdpvi.dp.noise import Run
from bdpvi.guides import MeanField
from bdpvi.inference.svi import default_optimiser
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.releasing.guarantees import WORST_CASE
from bdpvi.types import Dataset, Outcome


@dataclass(frozen=True, kw_only=True)
class DPVI:
    """Differentially private variational inference of a mean-field guide, see :mod:`bdpvi.dp.dpvi`.

    Args:
        model: the model.
        steps: optimiser steps.
        rate: Poisson sampling rate q of the batches.
        clip: C, bound on each record's gradient.
        learning_rate: of Adam at the first step.
        decay: the learning rate at the end over that at the start.
        draws: samples that predict; None predicts by the guide's mean.
    """

    model: BayesianLogisticRegression = field(default_factory=BayesianLogisticRegression)
    steps: int = 1000
    rate: float = 0.05
    clip: float = 1.0
    learning_rate: float = 0.1
    decay: float = 0.01
    draws: int | None = 100

    accountant: ClassVar[WorstCaseAccountant]
    guarantee: ClassVar[str] = WORST_CASE
    note: ClassVar[str] = (
        "The seeds are those of batches, base noise, privacy noise and draws. Sums over a batch "
        "are divided by the sampling rate, never by a number of records."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        **MODEL_SPACE,
        "steps": (50, 200, 500, 1000),
        "rate": (0.002, 0.005, 0.05, 0.2),
        "clip": (0.1, 0.25, 0.5, 1.0, 2.0),
        "learning_rate": (0.01, 0.03, 0.1, 0.3),
        "draws": (100, None),
    }

    def prepare(self, train: Dataset, delta: float) -> NoisyTraining:
        """Keep the records."""
        settings = DPVISettings(
            steps=self.steps,
            rate=self.rate,
            clip=self.clip,
            optim=default_optimiser(self.steps, self.learning_rate, self.decay),
            draws=self.draws,
        )

        def run(runs: Sequence[Run]) -> Sequence[Outcome]:
            return dpvi_runs(
                self.model,
                MeanField(self.model),
                train,
                runs=runs,
                settings=settings,
                delta=delta,
                accountant=self.accountant,
            )

        return NoisyTraining(self.accountant, self.rate, self.steps, delta, run)


class DPVIMoments(DPVI):
    """:class:`DPVI` as its authors accounted for it."""

    name: ClassVar[str] = "dpvi-ma"
    label: ClassVar[str] = "DPVI, moments accountant"
    accountant: ClassVar[WorstCaseAccountant] = MomentsAccountant()


class DPVILosses(DPVI):
    """:class:`DPVI` under the tightest known worst-case accountant."""

    name: ClassVar[str] = "dpvi-pld"
    label: ClassVar[str] = "DPVI, privacy loss distributions"
    accountant: ClassVar[WorstCaseAccountant] = PrivacyLossAccountant()

"""Variational inference of a mean-field guide: without privacy, and DPVI under two accountants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from bdpvi._runtime import validate
from bdpvi.accounting.worst_case import PrivacyLossAccountant, WorstCaseAccountant
from bdpvi.bench.methods.method import MODEL_SPACE, NONE
from bdpvi.bench.methods.moments import MomentsAccountant
from bdpvi.bench.methods.noisy import NoisyTraining
from bdpvi.dp.dpvi import DPVISettings, dpvi_runs
from bdpvi.guides import MeanField
from bdpvi.inference.svi import default_optimiser
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.releasing.guarantees import WORST_CASE
from bdpvi.types import Dataset


@dataclass(frozen=True, kw_only=True)
class Variational:
    """SVI of a mean-field guide, see :mod:`bdpvi.dp.dpvi`.

    Args:
        model: what is fitted.
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

    accountant: ClassVar[WorstCaseAccountant] = PrivacyLossAccountant()

    def __post_init__(self) -> None:
        validate.positive("learning_rate", self.learning_rate)
        self._settings()

    def prepare(self, train: Dataset, delta: float) -> NoisyTraining:
        """Return the training, ready to be run at any noise."""
        optim = default_optimiser(self.steps, self.learning_rate)
        settings = replace(self._settings(), optim=optim)
        train_runs = partial(
            dpvi_runs, self.model, MeanField(self.model), train,
            settings=settings, delta=delta, accountant=self.accountant,
        )  # fmt: skip
        return NoisyTraining(self.accountant, self.rate, self.steps, delta, train_runs)

    def _settings(self) -> DPVISettings:
        return DPVISettings(steps=self.steps, rate=self.rate, clip=None, draws=self.draws)


class NonPrivate(Variational):
    """Nothing clipped, no noise: what privacy is measured against."""

    name: ClassVar[str] = "non-private"
    label: ClassVar[str] = "VI, not private"
    guarantee: ClassVar[str] = NONE
    note: ClassVar[str] = "The seeds are those of batches, base noise and draws."
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        **MODEL_SPACE,
        "steps": (500, 1000, 2000),
        "rate": (0.05, 0.2, 1.0),
        "learning_rate": (0.03, 0.1),
    }


@dataclass(frozen=True, kw_only=True)
class DPVI(Variational):
    """Differentially private variational inference.

    Args:
        clip: C, bound on the norm of each record's gradient.
        model, steps, rate, learning_rate, draws: see :class:`Variational`.
    """

    rate: float = 0.05
    clip: float = 1.0

    guarantee: ClassVar[str] = WORST_CASE
    note: ClassVar[str] = (
        "The seeds are those of batches, base noise, privacy noise and draws. Sums over a batch "
        "are divided by the sampling rate, never by a number of records."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        **MODEL_SPACE,
        "steps": (50, 200, 500, 1000),
        "rate": (0.002, 0.005, 0.05, 0.2, 1.0),
        "clip": (0.1, 0.25, 0.5, 1.0, 2.0),
        "learning_rate": (0.01, 0.03, 0.1, 0.3),
        "draws": (100, None),
    }

    def _settings(self) -> DPVISettings:
        return replace(super()._settings(), clip=self.clip)


class DPVIMoments(DPVI):
    """:class:`DPVI` as its authors accounted for it."""

    name: ClassVar[str] = "dpvi-ma"
    label: ClassVar[str] = "DPVI, moments accountant"
    accountant: ClassVar[WorstCaseAccountant] = MomentsAccountant()


class DPVILosses(DPVI):
    """:class:`DPVI` under the tightest known worst-case accountant."""

    name: ClassVar[str] = "dpvi-pld"
    label: ClassVar[str] = "DPVI, privacy loss distributions"

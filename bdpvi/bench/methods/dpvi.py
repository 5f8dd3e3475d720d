"""Variational inference of a mean-field guide: without privacy, and DPVI under two accountants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from pyro.optim import SGD, PyroOptim

from bdpvi._ground import validate
from bdpvi.bayesian.guarantees import WORST_CASE
from bdpvi.bayesian.inference.svi import default_optimiser
from bdpvi.bench.methods.method import MODEL_SPACE, NONE
from bdpvi.bench.methods.moments import MomentsAccountant
from bdpvi.bench.methods.noisy import NoisyTraining
from bdpvi.bench.methods.pace import LIMIT, clip_of, steps_for, weights_of
from bdpvi.bench.methods.variational import DPVISettings, dpvi_runs
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant, WorstCaseAccountant


@dataclass(frozen=True, kw_only=True)
class Variational:
    """SVI of a mean-field guide, see :mod:`bdpvi.bench.methods.variational`.

    Args:
        model: what is fitted.
        steps: optimiser steps.
        rate: Poisson sampling rate q of the batches.
        draws: number of samples used to predict; None predicts by the guide's mean.
    """

    model: BayesianLogisticRegression = field(
        default_factory=lambda: BayesianLogisticRegression.unweighted(intercept=True)
    )
    steps: int = 1000
    rate: float = 0.1
    draws: int | None = 100

    accountant: ClassVar[WorstCaseAccountant] = PrivacyLossAccountant()

    def prepare(self, train: Dataset, delta: float) -> NoisyTraining:
        """Return the training, ready to run at any noise multiplier."""
        train_runs = partial(dpvi_runs, self.model, train, delta=delta, accountant=self.accountant)
        how = self._how(train)
        return NoisyTraining(self.accountant, self.rate, self.steps, delta, how, train_runs)

    def _how(self, train: Dataset) -> Callable[[float], DPVISettings]:
        """Return the settings as a function of the noise multiplier."""
        raise NotImplementedError

    def _settings(
        self, clip: float | None, optim: PyroOptim | None = None, last: float = 1.0
    ) -> DPVISettings:
        return DPVISettings(
            steps=self.steps, rate=self.rate, clip=clip, draws=self.draws, optim=optim, last=last
        )


@dataclass(frozen=True, kw_only=True)
class NonPrivate(Variational):
    """No clipping, no noise: the baseline without privacy for variational inference.

    Args:
        learning_rate: Adam's learning rate at the first step; it decays to a hundredth.
        model, steps, rate, draws: see :class:`Variational`.
    """

    learning_rate: float = 0.1

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

    def __post_init__(self) -> None:
        validate.positive("learning_rate", self.learning_rate)
        self._settings(None)

    def _how(self, train: Dataset) -> Callable[[float], DPVISettings]:
        fixed = self._settings(None, default_optimiser(self.steps, self.learning_rate))
        return lambda _: fixed


@dataclass(frozen=True, kw_only=True)
class VariationalInference(Variational):
    """Differentially private variational inference.

    Args:
        clip: C, bound on the norm of each record's gradient.
        learning_rate: Adam's learning rate at the first step; it decays to a hundredth. None means
            plain gradient descent. Its step size, and a ``clip`` of None, use the rule of
            :mod:`bdpvi.bench.methods.pace`, by the noise and the table's size.
        model, steps, rate, draws: see :class:`Variational`.
    """

    model: BayesianLogisticRegression = field(
        default_factory=lambda: BayesianLogisticRegression.unweighted(intercept=True, limit=LIMIT)
    )
    steps: int = 100
    rate: float = 0.2
    draws: int | None = None
    clip: float | None = None
    learning_rate: float | None = None

    guarantee: ClassVar[str] = WORST_CASE
    note: ClassVar[str] = (
        "The seeds are those of batches, base noise, privacy noise and draws. Sums over a batch "
        "are divided by the sampling rate, never by a number of records. Without a learning_rate "
        "the step follows from ε, the columns and the declared number of rows."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        **MODEL_SPACE,
        "steps": (50, 100, 200, 500, 1000),
        "rate": (0.002, 0.005, 0.05, 0.2, 1.0),
        "clip": (None, 0.1, 0.25, 0.5, 1.0, 2.0),
        "learning_rate": (None, 0.01, 0.03, 0.1, 0.3),
        "draws": (100, None),
    }

    def __post_init__(self) -> None:
        validate.positive("learning_rate", self.learning_rate or 1.0)
        self._settings(self.clip or 1.0)

    def _how(self, train: Dataset) -> Callable[[float], DPVISettings]:
        if self.learning_rate is not None:
            optim = default_optimiser(self.steps, self.learning_rate)
            fixed = self._settings(self.clip or clip_of(weights_of(self.model, train)), optim)
            return lambda _: fixed
        found = steps_for(self.model, train, steps=self.steps, rate=self.rate, clip=self.clip)

        def settings(noise_multiplier: float) -> DPVISettings:
            made = found(noise_multiplier)
            # The gradient is of a sum over records, not of a mean.
            optim = SGD({"lr": made["step_size"] / len(train)})
            return self._settings(made["clip"], optim, made["last"])

        return settings


class DPVIMoments(VariationalInference):
    """:class:`VariationalInference` as its authors accounted for it."""

    name: ClassVar[str] = "dpvi-ma"
    label: ClassVar[str] = "DPVI, moments accountant"
    accountant: ClassVar[WorstCaseAccountant] = MomentsAccountant()


class DPVILosses(VariationalInference):
    """:class:`VariationalInference` under the tightest known worst-case accountant."""

    name: ClassVar[str] = "dpvi-pld"
    label: ClassVar[str] = "DPVI, privacy loss distributions"

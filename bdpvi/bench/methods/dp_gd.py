"""DP-GD and DP-SGLD: noisy ascent on all records, and on batches with Langevin's noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from bdpvi.bayesian.guarantees import WORST_CASE
from bdpvi.bench.methods.ascent import AscentSettings, SGLDAccountant, noisy_ascent
from bdpvi.bench.methods.method import MODEL_SPACE
from bdpvi.bench.methods.noisy import NoisyTraining
from bdpvi.bench.methods.pace import LIMIT, steps_for
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy.sampled_steps import (
    GaussianAccountant,
    PrivacyLossAccountant,
    WorstCaseAccountant,
)


@dataclass(frozen=True, kw_only=True)
class NoisyAscent:
    """Noisy ascent of the log density.

    Args:
        model: what is fitted.
        steps: see :class:`~bdpvi.bench.methods.ascent.AscentSettings`.
        clip, step_size: see there; None uses the rule of :mod:`bdpvi.bench.methods.pace`, by the
            noise and the table's size.
    """

    model: BayesianLogisticRegression = field(
        default_factory=lambda: BayesianLogisticRegression.unweighted(intercept=True, limit=LIMIT)
    )
    steps: int = 20
    clip: float | None = None
    step_size: float | None = None

    rate: ClassVar[float] = 1.0
    accountant: ClassVar[WorstCaseAccountant]
    guarantee: ClassVar[str] = WORST_CASE

    def __post_init__(self) -> None:
        self._settings({"clip": self.clip or 1.0, "step_size": self.step_size or 1.0})

    def prepare(self, train: Dataset, delta: float) -> NoisyTraining:
        """Return the training, ready to run at any noise multiplier."""
        found = steps_for(
            self.model, train,
            steps=self.steps, rate=self.rate, clip=self.clip, step_size=self.step_size,
        )  # fmt: skip
        return NoisyTraining(
            self.accountant, self.rate, self.steps, delta,
            lambda noise: self._settings(found(noise)),
            partial(noisy_ascent, self.model, train, delta=delta, accountant=self.accountant),
        )  # fmt: skip

    def _settings(self, found: Mapping[str, Any]) -> AscentSettings:
        """Return the settings with this clip, step size and multiplier of the last weight."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class DPGD(NoisyAscent):
    """Private gradient descent on all records.

    Args:
        tail: fraction of the iterates, the last ones, to average; 0 takes the last iterate.
        model, steps, clip, step_size: see :class:`NoisyAscent`.
    """

    tail: float = 0.25

    accountant: ClassVar[WorstCaseAccountant] = GaussianAccountant()
    name: ClassVar[str] = "dp-gd"
    label: ClassVar[str] = "DP-GD, Gaussian DP"
    note: ClassVar[str] = (
        "Every step sees all records; the seeds are those of the noise. A step is step_size over "
        "the number of training records, which ε treats as a public constant; without a "
        "step_size it follows from ε, the columns and the declared number of rows."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        **MODEL_SPACE,
        "steps": (1, 2, 5, 10, 20, 30, 100, 200, 500),
        "clip": (None, 0.05, 0.1, 0.25, 0.5, 1.0),
        "step_size": (None, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0),
        "tail": (0.25, 0.5, 0.75),
    }

    def _settings(self, found: Mapping[str, Any]) -> AscentSettings:
        if not 0 <= self.tail <= 1:
            raise ValueError(f"tail must lie in [0, 1], got {self.tail!r}")
        averaged = max(1, round(self.tail * self.steps))
        return AscentSettings(steps=self.steps, first=self.steps - averaged, **found)


@dataclass(frozen=True, kw_only=True)
class DPSGLD(NoisyAscent):
    """Private Langevin dynamics.

    Args:
        burn_in: fraction of initial iterates that are not released.
        model, steps, rate, clip, step_size, decay, draws: see :class:`NoisyAscent` and
            :class:`~bdpvi.bench.methods.ascent.AscentSettings`.
    """

    steps: int = 100
    rate: float = 0.2  # type: ignore[misc]
    decay: float = 0.0
    burn_in: float = 0.75
    draws: int = 20

    note: ClassVar[str] = (
        "The seeds are those of batches and noise. A step is step_size over the number of "
        "training records, which ε treats as a public constant; without a step_size it follows "
        "from ε, the columns and the declared number of rows."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        **MODEL_SPACE,
        "steps": (100, 200, 500, 1000),
        "rate": (0.005, 0.01, 0.05, 0.2, 1.0),
        "clip": (None, 0.25, 0.5, 1.0),
        "step_size": (None, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        "decay": (0.0, 0.33),
        "burn_in": (0.25, 0.5, 0.75),
    }

    def _settings(self, found: Mapping[str, Any]) -> AscentSettings:
        if not 0 <= self.burn_in < 1:
            raise ValueError(f"burn_in must lie in [0, 1), got {self.burn_in!r}")
        return AscentSettings(
            steps=self.steps, rate=self.rate, decay=self.decay, langevin=True,
            first=math.floor(self.burn_in * self.steps), draws=self.draws, **found,
        )  # fmt: skip


class DPSGLDOriginal(DPSGLD):
    """:class:`DPSGLD` as its authors calibrated it."""

    name: ClassVar[str] = "dp-sgld"
    label: ClassVar[str] = "DP-SGLD, original calibration"
    note: ClassVar[str] = (
        f"{DPSGLD.note} The authors' theorem is for batches of fixed size and a record replaced."
    )
    accountant: ClassVar[WorstCaseAccountant] = SGLDAccountant()


class DPSGLDLosses(DPSGLD):
    """:class:`DPSGLD` under the tightest known worst-case accountant."""

    name: ClassVar[str] = "dp-sgld-pld"
    label: ClassVar[str] = "DP-SGLD, privacy loss distributions"
    accountant: ClassVar[WorstCaseAccountant] = PrivacyLossAccountant()

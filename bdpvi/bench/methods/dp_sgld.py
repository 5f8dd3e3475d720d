"""DP-SGLD: one sampler with two accountants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from bdpvi.bayesian.guarantees import WORST_CASE
from bdpvi.bench.methods.method import MODEL_SPACE
from bdpvi.bench.methods.noisy import NoisyTraining
from bdpvi.bench.methods.pace import LIMIT, steps_for
from bdpvi.bench.methods.sgld import DPSGLDSettings, SGLDAccountant, dp_sgld_runs
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant, WorstCaseAccountant


@dataclass(frozen=True, kw_only=True)
class DPSGLD:
    """Private Langevin dynamics.

    Args:
        model: what is fitted.
        steps, rate, decay, burn_in, draws: see
            :class:`~bdpvi.bench.methods.sgld.DPSGLDSettings`.
        clip, step_size: see there; None uses the rule of :mod:`bdpvi.bench.methods.pace`, by the
            noise and the table's size.
    """

    model: BayesianLogisticRegression = field(
        default_factory=lambda: BayesianLogisticRegression.unweighted(intercept=True, limit=LIMIT)
    )
    steps: int = 100
    rate: float = 0.2
    clip: float | None = None
    step_size: float | None = None
    decay: float = 0.0
    burn_in: float = 0.75
    draws: int = 20

    accountant: ClassVar[WorstCaseAccountant]
    guarantee: ClassVar[str] = WORST_CASE
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
            partial(dp_sgld_runs, self.model, train, delta=delta, accountant=self.accountant),
        )  # fmt: skip

    def _settings(self, found: Mapping[str, float]) -> DPSGLDSettings:
        return DPSGLDSettings(
            steps=self.steps, rate=self.rate, decay=self.decay, burn_in=self.burn_in,
            draws=self.draws, **found,
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

"""DP-SGLD: one sampler, two accountants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bdpvi.accounting.worst_case import PrivacyLossAccountant, WorstCaseAccountant
from bdpvi.compare.methods.method import MODEL_SPACE
from bdpvi.compare.methods.noisy import NoisyTraining
from bdpvi.dp.dp_sgld import DPSGLDSettings, SGLDAccountant, dp_sgld_runs
from bdpvi.dp.noise import Run
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.releasing.guarantees import WORST_CASE
from bdpvi.types import Dataset, Outcome


@dataclass(frozen=True, kw_only=True)
class DPSGLD:
    """Private Langevin dynamics, see :mod:`bdpvi.dp.dp_sgld`.

    Args:
        model: the model.
        steps: number of steps.
        rate: Poisson sampling rate q of the batches.
        clip: L, bound on each record's score.
        step_size: Nη of the first step, see :class:`~bdpvi.dp.dp_sgld.DPSGLDSettings`.
        decay: step t has η_t = η (1 + t)^−decay.
        burn_in: share of the first iterates that do not predict.
        draws: iterates that predict.
    """

    model: BayesianLogisticRegression = field(default_factory=BayesianLogisticRegression)
    steps: int = 500
    rate: float = 0.05
    clip: float = 0.5
    step_size: float = 1.0
    decay: float = 0.0
    burn_in: float = 0.5
    draws: int = 100

    accountant: ClassVar[WorstCaseAccountant]
    guarantee: ClassVar[str] = WORST_CASE
    note: ClassVar[str] = (
        "The seeds are those of batches and noise. A step is step_size over the number of training "
        "records, which ε takes for a public constant."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        **MODEL_SPACE,
        "steps": (200, 500, 1000),
        "rate": (0.005, 0.01, 0.05, 0.2),
        "clip": (0.25, 0.5, 1.0),
        "step_size": (0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        "decay": (0.0, 0.33),
        "burn_in": (0.25, 0.5),
    }

    def prepare(self, train: Dataset, delta: float) -> NoisyTraining:
        """Keep the records."""
        settings = DPSGLDSettings(
            steps=self.steps,
            rate=self.rate,
            clip=self.clip,
            step_size=self.step_size,
            decay=self.decay,
            burn_in=self.burn_in,
            draws=self.draws,
        )

        def run(runs: Sequence[Run]) -> Sequence[Outcome]:
            return dp_sgld_runs(
                self.model,
                train,
                runs=runs,
                settings=settings,
                delta=delta,
                accountant=self.accountant,
            )

        return NoisyTraining(self.accountant, self.rate, self.steps, delta, run)


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

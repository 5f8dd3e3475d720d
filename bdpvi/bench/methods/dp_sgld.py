"""DP-SGLD: one sampler, two accountants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from bdpvi.accounting.worst_case import PrivacyLossAccountant, WorstCaseAccountant
from bdpvi.bench.methods.method import MODEL_SPACE
from bdpvi.bench.methods.noisy import NoisyTraining
from bdpvi.bench.methods.sgld import DPSGLDSettings, SGLDAccountant, dp_sgld_runs
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.releasing.guarantees import WORST_CASE
from bdpvi.types import Dataset


@dataclass(frozen=True, kw_only=True)
class DPSGLD(DPSGLDSettings):
    """Private Langevin dynamics: its settings, with a model.

    Args:
        model: what is fitted.
        steps, rate, clip, step_size, decay, burn_in, draws: see
            :class:`~bdpvi.bench.methods.sgld.DPSGLDSettings`.
    """

    model: BayesianLogisticRegression = field(default_factory=BayesianLogisticRegression)
    steps: int = 500
    clip: float = 0.5
    step_size: float = 1.0

    accountant: ClassVar[WorstCaseAccountant]
    guarantee: ClassVar[str] = WORST_CASE
    note: ClassVar[str] = (
        "The seeds are those of batches and noise. A step is step_size over the number of training "
        "records, which ε takes for a public constant."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        **MODEL_SPACE,
        "steps": (200, 500, 1000),
        "rate": (0.005, 0.01, 0.05, 0.2, 1.0),
        "clip": (0.25, 0.5, 1.0),
        "step_size": (0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        "decay": (0.0, 0.33),
        "burn_in": (0.25, 0.5),
    }

    def prepare(self, train: Dataset, delta: float) -> NoisyTraining:
        """Return the training, ready to be run at any noise."""
        train_runs = partial(
            dp_sgld_runs, self.model, train,
            settings=self, delta=delta, accountant=self.accountant,
        )  # fmt: skip
        return NoisyTraining(self.accountant, self.rate, self.steps, delta, train_runs)


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

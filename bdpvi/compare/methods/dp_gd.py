"""DP-GD: full-batch gradient descent with exact Gaussian DP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from bdpvi.accounting.worst_case import GaussianAccountant
from bdpvi.compare.methods.method import MODEL_SPACE
from bdpvi.compare.methods.noisy import NoisyTraining
from bdpvi.dp.dp_gd import DPGDSettings, dp_gd_runs
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.releasing.guarantees import WORST_CASE
from bdpvi.types import Dataset


@dataclass(frozen=True, kw_only=True)
class DPGD(DPGDSettings):
    """Private gradient descent on all records: its settings, with a model.

    Args:
        model: what is fitted.
        steps, clip, step_size, tail: see :class:`~bdpvi.dp.dp_gd.DPGDSettings`.
    """

    model: BayesianLogisticRegression = field(default_factory=BayesianLogisticRegression)
    clip: float = 0.5
    step_size: float = 32.0

    name: ClassVar[str] = "dp-gd"
    label: ClassVar[str] = "DP-GD, Gaussian DP"
    guarantee: ClassVar[str] = WORST_CASE
    note: ClassVar[str] = (
        "Every step sees all records; the seeds are those of the noise. A step is step_size over "
        "the number of training records, which ε takes for a public constant."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        **MODEL_SPACE,
        "steps": (1, 2, 5, 10, 30, 100, 200, 500),
        "clip": (0.05, 0.1, 0.25, 0.5, 1.0),
        "step_size": (4.0, 8.0, 16.0, 32.0, 64.0, 128.0),
        "tail": (0.25, 0.5, 0.75),
    }

    def prepare(self, train: Dataset, delta: float) -> NoisyTraining:
        """Return the training, ready to be run at any noise."""
        train_runs = partial(dp_gd_runs, self.model, train, settings=self, delta=delta)
        return NoisyTraining(GaussianAccountant(), 1.0, self.steps, delta, train_runs)

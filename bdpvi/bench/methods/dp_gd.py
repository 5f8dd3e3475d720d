"""DP-GD: full-batch gradient descent, with exact Gaussian DP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from bdpvi.bayesian.guarantees import WORST_CASE
from bdpvi.bench.methods.descent import DPGDSettings, dp_gd_runs
from bdpvi.bench.methods.method import MODEL_SPACE
from bdpvi.bench.methods.noisy import NoisyTraining
from bdpvi.bench.methods.pace import LIMIT, steps_for
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy.sampled_steps import GaussianAccountant


@dataclass(frozen=True, kw_only=True)
class DPGD:
    """Private gradient descent on all records.

    Args:
        model: what is fitted.
        steps, tail: see :class:`~bdpvi.bench.methods.descent.DPGDSettings`.
        clip, step_size: see there; None uses the rule of :mod:`bdpvi.bench.methods.pace`, by the
            noise and the table's size.
    """

    model: BayesianLogisticRegression = field(
        default_factory=lambda: BayesianLogisticRegression.unweighted(intercept=True, limit=LIMIT)
    )
    steps: int = 20
    clip: float | None = None
    step_size: float | None = None
    tail: float = 0.25

    name: ClassVar[str] = "dp-gd"
    label: ClassVar[str] = "DP-GD, Gaussian DP"
    guarantee: ClassVar[str] = WORST_CASE
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

    def __post_init__(self) -> None:
        self._settings({"clip": self.clip or 1.0, "step_size": self.step_size or 1.0})

    def prepare(self, train: Dataset, delta: float) -> NoisyTraining:
        """Return the training, ready to run at any noise multiplier."""
        found = steps_for(
            self.model, train, steps=self.steps, rate=1.0, clip=self.clip, step_size=self.step_size
        )
        return NoisyTraining(
            GaussianAccountant(), 1.0, self.steps, delta,
            lambda noise: self._settings(found(noise)),
            partial(dp_gd_runs, self.model, train, delta=delta),
        )  # fmt: skip

    def _settings(self, found: Mapping[str, float]) -> DPGDSettings:
        return DPGDSettings(steps=self.steps, tail=self.tail, **found)

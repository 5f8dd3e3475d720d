"""Objective perturbation: one mode, of a log density with a random slope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from bdpvi.bench.methods.method import CLIPS, MODEL_SPACE
from bdpvi.bench.methods.noisy import NoisyTraining
from bdpvi.dp.objective_perturbation import (
    ObjectivePerturbationSettings,
    objective_perturbation_runs,
)
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.releasing.guarantees import WORST_CASE
from bdpvi.types import Dataset


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(ObjectivePerturbationSettings):
    """A private mode of the posterior: its settings, with a model.

    Args:
        model: with the clip that bounds a record's gradient.
        radius, share, tolerance: see
            :class:`~bdpvi.dp.objective_perturbation.ObjectivePerturbationSettings`.
    """

    model: BayesianLogisticRegression = field(
        default_factory=lambda: BayesianLogisticRegression(clip=0.5)
    )

    name: ClassVar[str] = "objective-perturbation"
    label: ClassVar[str] = "objective perturbation"
    guarantee: ClassVar[str] = WORST_CASE
    note: ClassVar[str] = (
        "The log density gets a random slope and its mode is published, with a little noise that "
        "hides the search's error; the seeds are those of both. Where ε is small the prior is "
        "narrower than prior_scale, by public constants alone."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        **MODEL_SPACE,
        "model.clip": CLIPS,
        "radius": (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0),
        "share": (0.1, 0.2, 0.5, 1.0, 2.0),
    }

    def prepare(self, train: Dataset, delta: float) -> NoisyTraining:
        """Return the search, ready to be run at any noise."""
        train_runs = partial(
            objective_perturbation_runs, self.model, train, settings=self, delta=delta
        )
        return NoisyTraining(self.accountant(self.model), 1.0, 1, delta, train_runs)

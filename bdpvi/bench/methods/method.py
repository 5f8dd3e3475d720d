"""The interface of compared methods: from settings to outcomes at a target ε."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from bdpvi.bayesian.guarantees import BAYESIAN, WORST_CASE
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy.cost import Cost, Kind, meaning

NONE = "none"

SENTENCES: Mapping[str, str] = {
    BAYESIAN: meaning(Kind.BAYESIAN, "remove"),
    WORST_CASE: meaning(Kind.WORST_CASE),
    NONE: "No privacy: the output may reveal any record",
}
"""The meaning of each guarantee."""


MODEL_SPACE: Mapping[str, Sequence[Any]] = {
    "model.prior_scale": (0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0),
    "model.intercept": (False, True),
    "model.limit": (None, 2.0, 1.0, 0.7, 0.5),
    "model.correlation": (0.0, 0.5, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995),
}
"""For tuning: every method's prior and transformations of features. All of it is public."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """A method's output and its cost.

    Attributes:
        latents: released values of the model's latent variables, each (k, ...): posterior samples,
            or the single iterate that a method publishes.
        cost: None if there is no guarantee.
    """

    latents: Mapping[str, Tensor]
    cost: Cost | None


class PreparedMethod(Protocol):
    """A method prepared on the training records, at one δ."""

    def calibrate(self, epsilon: float) -> float:
        """Return the setting, a noise multiplier or a temperature, that costs ``epsilon``.

        Raises:
            ValueError: if no setting reaches ``epsilon``; the message says why.
        """

    def outcomes(self, settings: Sequence[float], seeds: Sequence[int]) -> list[Outcome]:
        """Return the method's output and its cost, for each setting with its seed."""


class Method(Protocol):
    """A frozen dataclass whose fields are the hyper-parameters.

    Attributes:
        name: name in files and on the command line.
        label: name in figures.
        guarantee: :data:`BAYESIAN`, :data:`WORST_CASE` or :data:`NONE`.
        note: for the report: what the seeds determine, which randomness of training (ξ) is public.
        space: for tuning, the possible values of each hyper-parameter. A dot denotes a nested
            field: "model.clip".
        model: the model for fitting and prediction.

    A method may have ``one_shot``, True if another outcome is just a draw from the prepared fit and
    costs almost nothing: a comparison then takes many.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    guarantee: ClassVar[str]
    note: ClassVar[str]
    space: ClassVar[Mapping[str, Sequence[Any]]]

    @property
    def model(self) -> BayesianLogisticRegression:
        """Return the model for fitting and prediction."""

    def prepare(self, train: Dataset, delta: float) -> PreparedMethod:
        """Do the work that is the same for every ε.

        Args:
            train: N training records.
            delta: δ of every cost.
        """


@dataclass(frozen=True, eq=False)
class WithoutNoise:
    """A method without privacy, prepared: its outcome is always the same.

    Args:
        latents: the model's latent variables, (1, ...) each.
    """

    latents: Mapping[str, Tensor]

    def calibrate(self, epsilon: float) -> float:
        """Return 0: there is no noise."""
        return 0.0

    def outcomes(self, settings: Sequence[float], seeds: Sequence[int]) -> list[Outcome]:
        """Return the same for every seed."""
        return [Outcome(self.latents, None) for _ in seeds]

"""Draws from the posterior itself, at a public temperature, under a certified Bayesian ε."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bdpvi.bayesian.fit import Training, fit
from bdpvi.bayesian.guarantees import BAYESIAN, BayesianDP
from bdpvi.bench.methods.method import PreparedMethod
from bdpvi.bench.methods.posterior import PreparedRelease
from bdpvi.datasets.dataset import Dataset
from bdpvi.guides import Laplace
from bdpvi.models.logistic import BayesianLogisticRegression


@dataclass(frozen=True, kw_only=True)
class CertifiedDraws:
    """Draws from :class:`bdpvi.guides.Laplace` at the temperature planned for ε.

    Args:
        model: weights its records, as a certificate requires.
        draws: number of samples of each release.
    """

    model: BayesianLogisticRegression = field(default_factory=BayesianLogisticRegression)
    draws: int = 1

    name: ClassVar[str] = "posterior-draws"
    label: ClassVar[str] = "posterior draws"
    guarantee: ClassVar[str] = BAYESIAN
    one_shot: ClassVar[bool] = True
    note: ClassVar[str] = (
        "Draws from the mode and the curvature of the posterior, with the library's defaults; "
        "nothing was searched, and the seeds are those of the draws. The temperature is public: "
        "it follows from ε, δ, the columns and the number of training records as the declared N. "
        "Its cost is then computed from the records: where this is above the target, the row is "
        "not certified at the target, its ε is the certified one, and a release at the target "
        "would be refused."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {}

    def prepare(self, train: Dataset, delta: float) -> PreparedMethod:
        """Find the mode of the data and of every neighbour."""
        training = Training(device=str(train.x.device))
        fitted = fit(self.model, Laplace(self.model), train, training=training, progress=False)
        return PreparedDraws.of(fitted, self.draws, delta)


class PreparedDraws(PreparedRelease):
    """A mode to draw at; see :class:`~bdpvi.bench.methods.posterior.PreparedRelease`."""

    def calibrate(self, epsilon: float) -> float:
        """Return the temperature planned for ε, from public numbers only."""
        rule = BayesianDP(rows=self.fit.records)
        return rule.temperature(self.fit, self.draws, epsilon, self.delta)

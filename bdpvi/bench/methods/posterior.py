"""Draws from a fitted guide at a temperature planned from public numbers, with their Bayesian ε."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from bdpvi.bayesian.fit import Fit, Training, fit
from bdpvi.bayesian.guarantees import BAYESIAN, BayesianDP
from bdpvi.bayesian.pricing import table
from bdpvi.bayesian.releases import preview
from bdpvi.bench.methods.method import Outcome
from bdpvi.datasets.dataset import Dataset
from bdpvi.guides import FullRank, GaussianGuide, Laplace, MeanField
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy.cost import Cost
from bdpvi.privacy.entry import Charge


@dataclass(frozen=True, kw_only=True)
class LaplaceDraws:
    """Draws from :class:`bdpvi.guides.Laplace` at the temperature planned for ε.

    Args:
        model: weights its records, as a certificate requires.
        draws: number of samples of each release.
    """

    model: BayesianLogisticRegression = field(default_factory=BayesianLogisticRegression)
    draws: int = 1

    name: ClassVar[str] = "posterior-draws"
    label: ClassVar[str] = "posterior draws"
    guide: ClassVar[type[GaussianGuide]] = Laplace
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

    def prepare(self, train: Dataset, delta: float) -> PreparedDraws:
        """Fit the guide to the data and to every neighbour."""
        training = Training(device=str(train.x.device))
        fitted = fit(self.model, self.guide(self.model), train, training=training, progress=False)
        return PreparedDraws(fitted, self.draws, delta)


class FullRankDraws(LaplaceDraws):
    """The same from a full-rank Gaussian at the ELBO's optimum."""

    name: ClassVar[str] = "bdp-vi-full-rank"
    label: ClassVar[str] = "BDP-VI, full-rank"
    guide: ClassVar[type[GaussianGuide]] = FullRank
    note: ClassVar[str] = (
        "Fitted by full batch to the one optimum, so there is no randomness ξ in training; the "
        "seeds are those of the draws. Temperature and certificate are as of the posterior draws."
    )


class MeanFieldDraws(FullRankDraws):
    """The same from a Gaussian with a diagonal covariance."""

    name: ClassVar[str] = "bdp-vi-mean-field"
    label: ClassVar[str] = "BDP-VI, mean-field"
    guide: ClassVar[type[GaussianGuide]] = MeanField


@dataclass(frozen=True, eq=False)
class PreparedDraws:
    """A fit to draw from.

    Args:
        fit: the fit.
        draws: number of samples of each outcome.
        delta: δ of the cost.
    """

    fit: Fit
    draws: int
    delta: float

    @cached_property
    def _prices(self) -> dict[float, Cost]:
        return {}

    def calibrate(self, epsilon: float) -> float:
        """Return the temperature planned for ε, from public numbers only.

        Raises:
            ValueError: if draws there have no finite ε.
        """
        rule = BayesianDP(rows=self.fit.records)
        planned = rule.temperature(self.fit, self.draws, epsilon, self.delta)
        found = self.price(planned).bayesian
        if found is None or not math.isfinite(found.epsilon):
            raise ValueError(f"draws at the temperature {planned:.3g} have no finite ε")
        return planned

    def price(self, temperature: float) -> Cost:
        """Return the cost of draws at a temperature, as if there were no others."""
        if temperature not in self._prices:
            planned = Charge(self.draws, temperature)
            self._prices[temperature] = table(self.fit, planned).accounts[0].cost(self.delta)
        return self._prices[temperature]

    def outcomes(self, settings: Sequence[float], seeds: Sequence[int]) -> list[Outcome]:
        """Draw at each temperature with its seed."""
        pairs = zip(settings, seeds, strict=True)
        return [Outcome(self._preview(tau, seed), self.price(tau)) for tau, seed in pairs]

    def _preview(self, temperature: float, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return preview(self.fit, self.draws, temperature=temperature, generator=generator)

"""BDP-VI: draws from the fitted guide at a temperature, with Bayesian accounting."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.bayesian.asked import calibrate
from bdpvi.bayesian.fit import Fit, Training, fit
from bdpvi.bayesian.guarantees import BAYESIAN, WORST_CASE, BayesianDP, WorstCaseDP
from bdpvi.bayesian.inference.guide import check_steps
from bdpvi.bayesian.neighbours.route import Remove
from bdpvi.bayesian.optimum.route import Optimum
from bdpvi.bayesian.pricing import table, worst_case
from bdpvi.bayesian.releases import preview
from bdpvi.bench.methods.method import CLIPS, MODEL_SPACE, PreparedMethod
from bdpvi.bench.methods.pace import LIMIT
from bdpvi.bench.methods.temperature import COLDEST, bayesian, reliable_from, within
from bdpvi.datasets.dataset import Dataset
from bdpvi.guides import FullRank, GaussianGuide, MeanField
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy import sampled_steps
from bdpvi.privacy.book import Charge, TemperatureOrigin
from bdpvi.privacy.cost import Bound, Cost, Outcome
from bdpvi.regression.objective_plan import FEWEST, magnitude

NAMED = {"names": {"full-rank": FullRank, "mean-field": MeanField}}
"""Metadata of a field with a guide class, which JSON stores by name."""
ENOUGH = 300.0
"""μN above which the noise of a guide's release decreases with N."""


@dataclass(frozen=True, kw_only=True)
class PosteriorRelease:
    """A fit at the ELBO's optimum, with its leave-one-out neighbours, and draws from it.

    Args:
        model: the model, with the clip or weights that bound a record's influence.
        guide: kind of the guide.
        noise_scale: noise scale of the guide; a number gives a covariance that no record can move.
        ridge: κ of the guide, which shapes the covariance of released samples.
        draws: number k of released samples.
        accounting: how a Bayesian ε is computed; None means the default.
        records: number of records left out in turn; None means all.
    """

    model: BayesianLogisticRegression = field(default_factory=BayesianLogisticRegression)
    guide: type[GaussianGuide] = field(default=MeanField, metadata=NAMED)
    noise_scale: float | None = None
    ridge: float = 0.0
    draws: int = 1
    accounting: Accounting | None = None
    records: int | None = None

    one_shot: ClassVar[bool] = True
    guarantee: ClassVar[str] = BAYESIAN
    note: ClassVar[str] = (
        "Fitted by full batch to the one optimum, so there is no randomness ξ in training; the "
        "seeds are those of the draws. An experiment: the temperature is chosen from the "
        "training records, on a coarse public grid, and nothing is charged for publishing it, so "
        "there is no worst-case guarantee. Where ε is not reliable at its target, a higher "
        "temperature is taken at which it is, if there is one."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        **MODEL_SPACE,
        "model.clip": CLIPS,
        "noise_scale": (None, 1.0),
    }

    def __post_init__(self) -> None:
        check_steps(self.guide)
        validate.positive_int("draws", self.draws)
        validate.non_negative("ridge", self.ridge)
        if self.noise_scale is not None:
            validate.positive("noise_scale", self.noise_scale)

    def fitted(self, train: Dataset, records: int | None) -> Fit:
        """Return the guide's fit, and as many of its neighbours."""
        return fit(
            self.model,
            self.guide(self.model, ridge=self.ridge, noise_scale=self.noise_scale),
            train,
            training=Training(device=str(train.x.device)),
            neighbours=Optimum(Remove(records)),
            accounting=self.accounting,
            progress=False,
        )

    def prepare(self, train: Dataset, delta: float) -> PreparedMethod:
        """Fit the guide and its neighbours."""
        fitted = self.fitted(train, self.records)
        return PreparedRelease.of(fitted, self.draws, delta, TemperatureOrigin.DATA)


@dataclass(frozen=True, kw_only=True)
class FullRankRelease(PosteriorRelease):
    """:class:`PosteriorRelease` from a full-rank Gaussian."""

    name: ClassVar[str] = "bdp-vi-full-rank"
    label: ClassVar[str] = "BDP-VI, full-rank (experiment)"
    guide: type[GaussianGuide] = field(default=FullRank, metadata=NAMED)


@dataclass(frozen=True, kw_only=True)
class MeanFieldRelease(PosteriorRelease):
    """:class:`PosteriorRelease` from a Gaussian with a diagonal covariance."""

    name: ClassVar[str] = "bdp-vi-mean-field"
    label: ClassVar[str] = "BDP-VI, mean-field (experiment)"
    guide: type[GaussianGuide] = field(default=MeanField, metadata=NAMED)


@dataclass(frozen=True, kw_only=True)
class WorstCaseRelease(PosteriorRelease):
    """:class:`PosteriorRelease` under worst-case DP, at a temperature from public constants.

    Args:
        model: without a clip, the default, only its transformation of features is used: clip, prior
            scale and noise scale are those of :meth:`at`.
    """

    model: BayesianLogisticRegression = field(
        default_factory=lambda: BayesianLogisticRegression.unweighted(intercept=True, limit=LIMIT)
    )

    guarantee: ClassVar[str] = WORST_CASE
    note: ClassVar[str] = (
        "Clip, prior scale and noise scale follow from ε and the declared number of rows, "
        "rounded to 1, 2 or 5 times a power of ten. With a clip of its own it is the release of "
        "the row above with the same hyper-parameters, at a temperature that follows from clip, "
        "prior scale and noise scale alone; without a noise scale there is none."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {}

    def prepare(self, train: Dataset, delta: float) -> PreparedMethod:
        """Fit the guide; a few neighbours are enough, as the cost does not depend on them."""
        if self.model.clip is None:
            rows = len(train)
            return PreparedByRule(cache(lambda e: self.at(e, delta, rows).prepare(train, delta)))
        fitted = self.fitted(train, 3)

        @cache
        def price(temperature: float) -> Cost | None:
            planned = Charge(self.draws, temperature, TemperatureOrigin.CONSTANTS)
            return Cost.of(worst_case(fitted, delta, planned))

        return PreparedWorstCase(fitted, self.draws, delta, price)

    def at(self, epsilon: float, delta: float, rows: int) -> WorstCaseRelease:
        """Return the method with clip, prior scale and noise scale by a rule for ε and N.

        With a noise ν and a clip C the prior's variance is s² = νμ/C for draws of total distance μ.
        With r = μN/300 for one draw,

            C = r^⅓,    ν = 0.1 min(1, r^−¼),

        so that for large N noise and prior become negligible, and no record is clipped: the release
        is consistent. 300 and the powers were chosen on simulated tables of 5 and 20 columns.
        """
        accountant = sampled_steps.GaussianAccountant()
        multiplier = sampled_steps.calibrate(
            accountant, epsilon=epsilon, delta=delta, rate=1.0, steps=self.draws
        )
        ratio = magnitude(max(FEWEST, rows)) / multiplier / ENOUGH
        noise, clip = min(0.1, _rounded(0.1 * ratio**-0.25)), _rounded(ratio ** (1 / 3))
        scale = _rounded(math.sqrt(noise / multiplier / clip))
        model = replace(self.model, clip=clip, prior_scale=scale)
        return replace(self, model=model, noise_scale=noise)


def _rounded(value: float) -> float:
    """Return the number to two digits."""
    return float(f"{value:.2g}")


@dataclass(frozen=True, kw_only=True)
class FullRankWorstCase(WorstCaseRelease):
    """:class:`WorstCaseRelease` from a full-rank Gaussian's mean."""

    name: ClassVar[str] = "vi-full-rank-worst-case"
    label: ClassVar[str] = "VI release, full-rank, worst case"
    guide: type[GaussianGuide] = field(default=FullRank, metadata=NAMED)
    settings_of: ClassVar[str] = FullRankRelease.name


@dataclass(frozen=True, kw_only=True)
class MeanFieldWorstCase(WorstCaseRelease):
    """:class:`WorstCaseRelease` from the mean of a Gaussian with a diagonal covariance."""

    name: ClassVar[str] = "vi-mean-field-worst-case"
    label: ClassVar[str] = "VI release, mean-field, worst case"
    guide: type[GaussianGuide] = field(default=MeanField, metadata=NAMED)
    settings_of: ClassVar[str] = MeanFieldRelease.name


@dataclass(frozen=True, eq=False)
class PreparedWorstCase:
    """A fit to draw from, with a cost from public constants.

    Args:
        fit: the fit.
        draws: number of samples of each outcome.
        delta: δ of the cost.
        price: maps a temperature to the cost of draws there, as if there were no others.
    """

    fit: Fit
    draws: int
    delta: float
    price: Callable[[float], Cost | None]

    def calibrate(self, epsilon: float) -> float:
        """Return the lowest temperature that costs ``epsilon``."""
        return calibrate(
            self.fit, self.draws, epsilon=epsilon, delta=self.delta, guarantee=WorstCaseDP()
        ).temperature

    def outcomes(self, settings: Sequence[float], seeds: Sequence[int]) -> list[Outcome]:
        """Draw at each temperature with its seed."""
        pairs = zip(settings, seeds, strict=True)
        return [Outcome(self._draws(tau, seed), self.price(tau)) for tau, seed in pairs]

    def _draws(self, temperature: float, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return preview(self.fit, self.draws, temperature=temperature, generator=generator)


@dataclass(frozen=True, eq=False)
class PreparedByRule:
    """A new fit for every ε, by rule.

    Args:
        fitted: maps ε to the fit with its settings, which it keeps.
    """

    fitted: Callable[[float], PreparedMethod]

    def calibrate(self, epsilon: float) -> float:
        """Return ε, which determines all settings, once they have been found to reach it."""
        self.fitted(epsilon)
        return epsilon

    def outcomes(self, settings: Sequence[float], seeds: Sequence[int]) -> list[Outcome]:
        """Draw from each fit, at the lowest temperature that costs its ε, with its seed."""
        taus = {epsilon: self.fitted(epsilon).calibrate(epsilon) for epsilon in set(settings)}
        pairs = zip(settings, seeds, strict=True)
        return [one for e, seed in pairs for one in self.fitted(e).outcomes([taus[e]], [seed])]


@dataclass(frozen=True, eq=False)
class PreparedRelease(PreparedWorstCase):
    """A fit to draw from, with Bayesian accounting.

    Args:
        fit, draws, delta, price: see :class:`PreparedWorstCase`.
        account: maps a temperature to the account of draws there.
    """

    price: Callable[[float], Cost]
    account: Callable[[float], Account]

    @classmethod
    def of(cls, fit: Fit, draws: int, delta: float, origin: TemperatureOrigin) -> PreparedRelease:
        """Return the fit with the cost of draws at temperatures of an origin."""

        def charged(temperature: float) -> Account:
            return table(fit, Charge(draws, temperature, origin)).accounts[0]

        @cache
        def price(temperature: float) -> Cost:
            return charged(temperature).cost(delta)

        return cls(fit, draws, delta, price, charged)

    def calibrate(self, epsilon: float) -> float:
        """Return the first temperature of the grid that costs ``epsilon``, or a higher one that is
        reliable.

        An unreliable estimate at this ε may be reliable at a smaller ε, which meets the target too.
        """
        rule: dict[str, Any] = {"delta": self.delta, "guarantee": BayesianDP(), "least": COLDEST}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "delta=")  # a comparison releases nothing
            found = calibrate(self.fit, self.draws, epsilon=epsilon, **rule).temperature
        return reliable_from(self._bayesian, within(self._bayesian, epsilon, found))

    def _bayesian(self, temperature: float) -> Bound:
        return bayesian(self.price(temperature))

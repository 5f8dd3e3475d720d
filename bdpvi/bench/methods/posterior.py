"""BDP-VI: draws from the fitted guide at a temperature, with Bayesian accounting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.draws import PosteriorDraws
from bdpvi.bayesian.fit import Fit
from bdpvi.bayesian.guarantees import BAYESIAN, WORST_CASE, WorstCaseDP
from bdpvi.bayesian.neighbours.route import Remove
from bdpvi.bayesian.optimum.route import Optimum
from bdpvi.bayesian.pricing import table, worst_case
from bdpvi.bayesian.releases import preview
from bdpvi.bench.methods.method import CLIPS, MODEL_SPACE, PreparedMethod
from bdpvi.bench.methods.pace import LIMIT
from bdpvi.bench.methods.temperature import bayesian, coldest, reliable_from
from bdpvi.datasets.dataset import Dataset
from bdpvi.guides import FullRank, GaussianGuide, MeanField
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy.book import Charge
from bdpvi.privacy.cost import Bound, Cost, Outcome
from bdpvi.regression.objective_plan import FEWEST
from bdpvi.tables.recipe import NAMED, Recipe
from bdpvi.tables.recommended import recommended


@dataclass(frozen=True, kw_only=True)
class PosteriorRelease(Recipe):
    """A fit at the ELBO's optimum, with its leave-one-out neighbours, and draws from it.

    Args:
        records: number of records left out in turn; None means all.
    """

    model: BayesianLogisticRegression = field(default_factory=BayesianLogisticRegression)
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

    def prepare(self, train: Dataset, delta: float) -> PreparedMethod:
        """Fit the guide and its neighbours."""
        fitted = self.fit_guide(train, neighbours=Optimum(Remove(self.records)), progress=False)
        return PreparedRelease.of(fitted, self.draws, delta, from_data=True)


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
            scale and noise scale are those of :func:`bdpvi.recommended` for a guide.
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
        fitted = self.fit_guide(train, neighbours=Optimum(Remove(3)), progress=False)

        @cache
        def price(temperature: float) -> Cost | None:
            planned = Charge(self.draws, temperature)
            return Cost.of(worst_case(fitted, delta, planned))

        return PreparedWorstCase(fitted, self.draws, delta, price)

    def at(self, epsilon: float, delta: float, rows: int) -> WorstCaseRelease:
        """Return the method with clip, prior scale and noise scale by rule."""
        rule = recommended(
            epsilon, delta=delta, draws=self.draws, guide=self.guide,
            expected_rows=max(FEWEST, rows),
        )  # fmt: skip
        assert isinstance(rule.model, BayesianLogisticRegression)
        model = replace(self.model, clip=rule.model.clip, prior_scale=rule.model.prior_scale)
        return replace(self, model=model, noise_scale=rule.noise_scale)


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
        return WorstCaseDP().temperature(self.fit, self.draws, epsilon, self.delta)

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
    def of(cls, fit: Fit, draws: int, delta: float, *, from_data: bool = False) -> PreparedRelease:
        """Return the fit with the cost of draws, at temperatures that may be ``from_data``."""

        def charged(temperature: float) -> Account:
            found = table(fit, Charge(draws, temperature)).accounts[0]
            if not from_data:
                return found
            events = [
                (replace(cast("PosteriorDraws", e), from_data=True), n) for e, n in found.events
            ]
            return Account(events, found.accounting)

        @cache
        def price(temperature: float) -> Cost:
            return charged(temperature).cost(delta)

        return cls(fit, draws, delta, price, charged)

    def calibrate(self, epsilon: float) -> float:
        """Return the first temperature of the grid that costs ``epsilon``, or a higher one that is
        reliable.

        An unreliable estimate at this ε may be reliable at a smaller ε, which meets the target too.
        """
        return reliable_from(self._bayesian, coldest(self._bayesian, epsilon))

    def _bayesian(self, temperature: float) -> Bound:
        return bayesian(self.price(temperature))

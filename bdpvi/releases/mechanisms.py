"""The steps of model releases, as mechanisms of a transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bdpvi.datasets import exact
from bdpvi.datasets.dataset import Data
from bdpvi.models.contract import Model
from bdpvi.noise.keys import Key
from bdpvi.privacy import left
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.whole_units import UnitSteps
from bdpvi.releases import basis, transaction
from bdpvi.releases.estimate import Output
from bdpvi.releases.route import Suited, planned
from bdpvi.releases.transaction import Before


@dataclass(frozen=True)
class CountRows:
    """A noisy number of records, for planning the settings.

    Attributes:
        records: N.
        share: its price, as a share of the remaining μ².
        epsilon, delta: ε and δ of the total.
        units: whether each record is all rows of a unit.
    """

    step: ClassVar[str] = "rows"

    records: int
    share: float
    epsilon: float
    delta: float
    units: bool = False

    def plan(self, before: Before) -> transaction.Plan[float]:
        """Return the standard deviation of the noise."""
        room = left.room(before.book, self.epsilon, self.delta)
        rows = 1 if self.units else before.book.rows
        deviation = rows * (self.share * room) ** -0.5
        kind = UnitSteps if self.units else SampledGaussian
        event = kind(noise_multiplier=deviation, rounding=exact.count_rounding(deviation))
        return transaction.Plan(
            kind="constants", what="a number of records", events=(event,), settings=deviation
        )

    def draw(self, plan: transaction.Plan[float], key: Key) -> float:
        """Return a noisy N."""
        return self.records + float(exact.count_noise(1, plan.settings, key)[0])


@dataclass(frozen=True, eq=False)
class Solve:
    """A model fitted with noise, by a route whose settings use the remaining ε.

    Attributes:
        model, data, route: the model, its data, and how it is fitted.
        epsilon, delta: ε and δ of the total.
    """

    step: ClassVar[str] = "release"

    model: Model
    data: Data
    route: Suited[Any]
    epsilon: float
    delta: float

    def plan(self, before: Before) -> transaction.Plan[Any]:
        """Return the route's settings."""
        shape = self.model, len(self.data.feature_names)
        settings = planned(self.route, *shape, before, self.epsilon, self.delta)
        return transaction.Plan(
            kind="release",
            what=f"ε = {self.epsilon:g}",
            events=settings.events,
            settings=settings,
            assumptions=basis.assumptions_of(self.data.preprocessing, before.book.entries),
        )

    def draw(self, plan: transaction.Plan[Any], key: Key) -> Output:
        """Fit."""
        return self.route.draw(self.model, self.data, plan.settings, key)

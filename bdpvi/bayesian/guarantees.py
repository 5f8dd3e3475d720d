"""The four guarantees of a release, and the temperature that each takes for an ε.

An outsider may know the temperature, so it follows from public numbers: computed from the records'
costs, it would be one more output that depends on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi._ground.types import BudgetExceededError
from bdpvi.bayesian.mode.plan import planned_temperature
from bdpvi.bayesian.pricing import (
    bounded,
    of_any,
    require_worst_case,
    usual_kind,
    without_worst_case,
    worst_case,
)
from bdpvi.models.family import weighing
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy.cost import Bound, Cost, Kind
from bdpvi.privacy.entry import Charge
from bdpvi.privacy.gaussian_dp import gaussian_distance
from bdpvi.privacy.left import SPENT

if TYPE_CHECKING:
    from bdpvi.bayesian.fit import Fit

BAYESIAN = Kind.BAYESIAN.value
GROUP = Kind.GROUP.value
TYPICAL = Kind.TYPICAL.value
WORST_CASE = Kind.WORST_CASE.value


class Guarantee(Protocol):
    """A guarantee: the public temperature of its draws, and which ε it limits."""

    @property
    def name(self) -> str:
        """Its name in receipts."""

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the population of which every group is covered; none for other kinds."""

    def temperature(self, fit: Fit, draws: int, epsilon: float, delta: float) -> float:
        """Return the temperature of draws for ε, from public numbers only."""

    def price(self, total: Cost) -> Bound:
        """Return the bound that a budget limits.

        Raises:
            ValueError: if the releases have no such guarantee.
        """


@dataclass(frozen=True)
class WorstCaseDP:
    """Worst-case DP: the temperature follows from public numbers, the same for every data set.

    It applies to a fit at the optimum of a model with a clip or record weights whose guide has a
    public noise scale: the temperature follows from these, the prior scale, draws and δ. It also
    applies to ``guides.Laplace``: there it follows from the number of weights, weight norm, limit,
    prior scale, draws and δ, and the covariance has a cost at every temperature. Earlier releases
    count too, and must have had public temperatures.

    Args:
        epsilon: for :func:`bdpvi.release` from ``guides.Laplace``: draws at the given temperature,
            by default 1, come behind a gate (:mod:`bdpvi.bayesian.gated.gate`) that keeps
            everything spent on the table within this ε, or are refused, at the same price.
            :class:`bdpvi.PosteriorDraws` reaches a far smaller ε where columns correlate.
    """

    epsilon: float | None = None

    name: ClassVar[str] = WORST_CASE
    shares: ClassVar[tuple[float, ...]] = ()

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            validate.epsilon(self.epsilon)

    def temperature(self, fit: Fit, draws: int, epsilon: float, delta: float) -> float:
        """Return the smallest temperature that keeps ε within ``epsilon``, within 0.1 %.

        ε covers everything spent on the table, also by other fits.

        Raises:
            BudgetExceededError: if ``epsilon`` is spent.
            ValueError: if no temperature reaches ``epsilon``; it says why. Or if the fit cannot
                give the guarantee.
        """
        require_worst_case(fit)
        ledger, before = fit.ledger, worst_case(fit, delta)

        def total_at(log_temperature: float) -> Bound | None:
            return worst_case(fit, delta, Charge(draws, math.exp(log_temperature)))

        def suffices(log_temperature: float) -> bool:
            found = total_at(log_temperature)
            return found is not None and found.epsilon <= epsilon

        if before is not None and _is_spent(before, epsilon, delta):
            raise BudgetExceededError(
                f"epsilon={epsilon:g} is spent: {before} so far; {ledger.history()}"
            )
        low, high = math.log(_COLDEST), math.log(_HOTTEST)
        if suffices(low):
            return _COLDEST
        if not suffices(high):
            floor = "rounding uses up δ"
            if found := of_any(fit) and total_at(high):
                floor = f"with {several(draws, 'draw')} the covariances alone bring it to {found}"
            if before is not None:
                count = sum(entry.count for entry in ledger.entries())
                floor = (
                    f"{several(count, 'earlier release')} cost {before}; for this release, {floor}"
                )
            raise ValueError(f"epsilon={epsilon:g} cannot be reached: {floor}")
        while high - low > 1e-4:  # ε changes with the root of the temperature, or slower
            middle = (low + high) / 2
            low, high = (low, middle) if suffices(middle) else (middle, high)
        return math.exp(high)

    def price(self, total: Cost) -> Bound:
        """Return the worst-case guarantee."""
        if total.worst_case is None:
            raise ValueError(f"guarantee={WORST_CASE}: these releases have none: {total}")
        return total.worst_case


@dataclass(frozen=True)
class BayesianDP:
    """Bayesian DP: certified if the fit has a range for any conceivable record's cost.

    Otherwise its ε is that of an experiment and is marked as not certified.

    Args:
        rows: N as declared by the owner. The temperature of draws from
            :class:`bdpvi.guides.Laplace` then follows from N and the target ε
            (:mod:`bdpvi.bayesian.mode.plan`); without it the temperature is 1. N counts as
            public, and the temperature reveals about two digits of it: declare a round number.
        for_groups_of: share ρ of the population. The guarantee is then the every-group one, with
            words of its own: ε holds for each group of at least this share, not only for the mean
            over everybody, as for :func:`bdpvi.cost`. The temperature is planned for ρN records.

    Raises:
        ValueError: if ``for_groups_of`` is not in (0, 1].
    """

    rows: float | None = None
    for_groups_of: float | None = None

    def __post_init__(self) -> None:
        if self.for_groups_of is not None:
            validate.rate("for_groups_of", self.for_groups_of)

    @property
    def name(self) -> str:
        """Its name in receipts."""
        return BAYESIAN if self.for_groups_of is None else GROUP

    @property
    def shares(self) -> tuple[float, ...]:
        """The share that was asked for, if any."""
        return () if self.for_groups_of is None else (self.for_groups_of,)

    def temperature(self, fit: Fit, draws: int, epsilon: float, delta: float) -> float:
        """Return the temperature planned for a declared N, 1 without one."""
        own = fit.model
        model = own if isinstance(own, BayesianLogisticRegression) else weighing(own)
        if self.rows is None or model is None:
            return 1.0
        return planned_temperature(
            model,
            model.weights(len(fit.feature_names)),
            rows=self.rows * (self.for_groups_of or 1.0),
            epsilon=epsilon,
            delta=delta,
            draws=draws,
        )

    def price(self, total: Cost) -> Bound:
        """Return the Bayesian or every-group guarantee."""
        if self.shares:
            return total.groups[0]
        if total.bayesian is None:
            other = ". Ask for guarantee=WorstCaseDP(), which they have" * bool(total.worst_case)
            raise ValueError(f"guarantee={BAYESIAN}: these releases have none: {total}{other}")
        return total.bayesian


@dataclass(frozen=True)
class TypicalRecord:
    """The typical-record guarantee: most of the population pay at most ε at δ, each by itself.

    With confidence 95 % it covers at least 99 % from 299 records on, 95 % from 59, 90 % from 29.
    Any Pyro model can have it: no bound on a record is needed. The other records are not covered
    and may be fully exposed. It is neither worst-case nor Bayesian DP.
    """

    name: ClassVar[str] = TYPICAL
    shares: ClassVar[tuple[float, ...]] = ()

    def temperature(self, fit: Fit, draws: int, epsilon: float, delta: float) -> float:
        """Return 1: draws are from the guide itself."""
        return 1.0

    def price(self, total: Cost) -> Bound:
        """Return the typical-record bound."""
        if total.typical is None:
            raise ValueError(f"guarantee={TYPICAL}: these releases have none: {total}")
        return total.typical


def check_unit(fit: Fit, name: str) -> None:
    """Raise ValueError if a guarantee of this name covers less than a unit of the table."""
    if (rows := fit.ledger.rows_per_unit) > 1 and name != WORST_CASE:
        raise ValueError(
            f"guarantee={name} covers one row, and a unit of this table has up to {rows} rows: "
            "ask for the worst case"
        )


_COLDEST, _HOTTEST = 1e-9, 2.0**40
"""Below, no temperature is of use; at the other, the means reveal nothing."""


def usual(fit: Fit) -> Guarantee:
    """Return the strongest guarantee that the fit can give, see :func:`.pricing.usual_kind`."""
    every: tuple[Guarantee, ...] = (WorstCaseDP(), BayesianDP(), TypicalRecord())
    return next(one for one in every if one.name == usual_kind(fit).value)


def by_default(fit: Fit) -> Guarantee:
    """Return the default guarantee of a release.

    Raises:
        ValueError: if it would differ in kind from that of the fit's first release.
    """
    result = usual(fit)
    if result.name == BAYESIAN and fit.guide.noise_scale is not None and bounded(fit):
        raise ValueError(
            f"guarantee must be given: {without_worst_case(fit)}, so this release can have no "
            f"{WORST_CASE} guarantee any more. guarantee=BayesianDP() (--guarantee bayesian) "
            "gives it a Bayesian one; a worst-case one needs a table of its own"
        )
    return result


def _is_spent(before: Bound, epsilon: float, delta: float) -> bool:
    """Return whether earlier charges leave too little for a draw."""
    if before.distance is None:
        return before.epsilon >= (1 - SPENT / 2) * epsilon
    return before.distance**2 > (1 - SPENT) * gaussian_distance(epsilon, delta) ** 2

"""The four guarantees of a release, and how each chooses a temperature.

An outsider may know the temperature. A worst-case guarantee holds only if the temperature follows
from public numbers; computed from the records' costs, it is one more output that depends on
them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NoReturn, Protocol

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi._ground.types import BudgetExceededError
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.bayesian.accounting.table import TableCost
from bdpvi.bayesian.fit import Fit
from bdpvi.bayesian.mode.plan import planned_temperature
from bdpvi.bayesian.pricing import (
    bounded,
    of_any,
    require_worst_case,
    table,
    total,
    usual_kind,
    without_worst_case,
    worst_case,
)
from bdpvi.models.family import weighing
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy.cost import Bound, Cost, Kind
from bdpvi.privacy.entry import Charge, TemperatureOrigin
from bdpvi.privacy.gaussian_dp import gaussian_distance
from bdpvi.privacy.left import SPENT

BAYESIAN = Kind.BAYESIAN.value
GROUP = Kind.GROUP.value
TYPICAL = Kind.TYPICAL.value
WORST_CASE = Kind.WORST_CASE.value


class Guarantee(Protocol):
    """A guarantee: how it chooses its temperature, and which ε it limits."""

    @property
    def name(self) -> str:
        """Its name in receipts."""

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the population of which every group is covered; none for other kinds."""

    def calibrated(
        self,
        fit: Fit,
        draws: int,
        *,
        epsilon: float,
        delta: float,
        least: float,
        accounting: Accounting | None,
    ) -> Charge:
        """Return ``draws`` more samples, at a temperature that keeps ε within ``epsilon``."""

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
    """

    name: ClassVar[str] = WORST_CASE
    shares: ClassVar[tuple[float, ...]] = ()

    def calibrated(
        self,
        fit: Fit,
        draws: int,
        *,
        epsilon: float,
        delta: float,
        least: float,
        accounting: Accounting | None,
    ) -> Charge:
        """Return the smallest temperature, within 0.1 %. ``accounting`` is not used.

        ε covers everything spent on the table, also by other fits.
        """
        require_worst_case(fit)
        ledger, before = fit.ledger, worst_case(fit, delta)

        def at(log_temperature: float) -> Charge:
            return Charge(draws, math.exp(log_temperature), TemperatureOrigin.CONSTANTS, ledger.id)

        def suffices(log_temperature: float) -> bool:
            found = worst_case(fit, delta, at(log_temperature))
            return found is not None and found.epsilon <= epsilon

        if before is not None and _is_spent(before, epsilon, delta):
            raise BudgetExceededError(
                f"epsilon={epsilon:g} is spent: {before} so far; {ledger.history()}"
            )
        low, high = math.log(least), math.log(_HOTTEST)
        if suffices(low):
            return at(low)
        if not suffices(high):
            words, floor = None if before is None else str(before), "rounding uses up δ"
            if found := of_any(fit) and worst_case(fit, delta, at(high)):
                floor = f"with {several(draws, 'draw')} the covariances alone bring it to {found}"
            _unreachable(fit, epsilon, words, floor)
        while high - low > 1e-4:  # ε changes with the root of the temperature, or slower
            middle = (low + high) / 2
            low, high = (low, middle) if suffices(middle) else (middle, high)
        return at(high)

    def price(self, total: Cost) -> Bound:
        """Return the worst-case guarantee."""
        if total.worst_case is None:
            raise ValueError(f"guarantee={WORST_CASE}: these releases have none: {total}")
        return total.worst_case


@dataclass(frozen=True)
class BayesianDP:
    """Bayesian DP: certified if the fit has a range for any conceivable record's cost.

    Otherwise, or at a temperature computed from the records, its ε is that of an experiment and is
    marked as not certified.

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

    def planned(self, fit: Fit, draws: int, epsilon: float, delta: float) -> float:
        """Return the temperature of draws for ε, from public numbers only."""
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

    def calibrated(
        self,
        fit: Fit,
        draws: int,
        *,
        epsilon: float,
        delta: float,
        least: float,
        accounting: Accounting | None,
    ) -> Charge:
        """Return the smallest temperature of the grid; ε is up to 4.5 % below ``epsilon``.

        For experiments: the temperature is computed from the records, and no δ covers it. With
        ``only_reliable`` some temperature at which ε is within ``epsilon``, if one per octave is.
        ε covers everything spent on the table. The ledger first records that the fit's temperatures
        depend on the data.
        """

        if self.shares:  # refuses a share that the records do not support
            hottest = Charge(draws, _HOTTEST, TemperatureOrigin.DATA)
            table(fit, hottest, accounting).groups(delta, self.shares)

        def suffices(spent: TableCost) -> bool:
            if self.shares:
                try:
                    return spent.groups(delta, self.shares)[0].epsilon <= epsilon
                except ValueError:  # δ covers no rounding at so low a temperature
                    return False
            return spent.get_delta(epsilon, near=delta) <= delta

        # With only_reliable the highest temperature may be less reliable than a lower one.
        every = (accounting or fit.accounting).only_reliable
        found = _from_records(self.name, fit, draws, least, suffices, accounting, every)
        if found is None:
            known = total(fit, delta, None, accounting).bayesian if fit.ledger.entries() else None
            before = None if known is None else str(known)
            _unreachable(fit, epsilon, before, self._floor(fit, draws, delta, accounting))
        return found

    def price(self, total: Cost) -> Bound:
        """Return the Bayesian or every-group guarantee."""
        if self.shares:
            return total.groups[0]
        if total.bayesian is None:
            other = ". Ask for guarantee=WorstCaseDP(), which they have" * bool(total.worst_case)
            raise ValueError(f"guarantee={BAYESIAN}: these releases have none: {total}{other}")
        return total.bayesian

    def _floor(self, fit: Fit, draws: int, delta: float, accounting: Accounting | None) -> str:
        hottest = total(fit, delta, Charge(draws, _HOTTEST, TemperatureOrigin.DATA), accounting)
        return _covariances(draws, hottest.bayesian)


@dataclass(frozen=True)
class TypicalRecord:
    """The typical-record guarantee: most of the population pay at most ε at δ, each by itself.

    With confidence 95 % it covers at least 99 % from 299 records on, 95 % from 59, 90 % from 29.
    Any Pyro model can have it: no bound on a record is needed. The other records are not covered
    and may be fully exposed. It is neither worst-case nor Bayesian DP.
    """

    name: ClassVar[str] = TYPICAL
    shares: ClassVar[tuple[float, ...]] = ()

    def calibrated(
        self,
        fit: Fit,
        draws: int,
        *,
        epsilon: float,
        delta: float,
        least: float,
        accounting: Accounting | None,
    ) -> Charge:
        """Return the smallest temperature of the grid that keeps ε within ``epsilon``.

        It is computed from the records, and no δ covers it; the ledger records this first.
        """
        floor = table(fit, Charge(draws, _HOTTEST, TemperatureOrigin.DATA), accounting).typical(
            delta
        )

        def suffices(spent: TableCost) -> bool:
            try:
                return spent.typical(delta).epsilon <= epsilon
            except ValueError:  # no ε is large enough at so low a temperature
                return False

        found = _from_records(self.name, fit, draws, least, suffices, accounting)
        if found is None:
            before = str(table(fit).typical(delta)) if fit.ledger.entries() else None
            _unreachable(fit, epsilon, before, _covariances(draws, floor))
        return found

    def price(self, total: Cost) -> Bound:
        """Return the typical-record bound."""
        if total.typical is None:
            raise ValueError(f"guarantee={TYPICAL}: these releases have none: {total}")
        return total.typical


def _from_records(
    name: str,
    fit: Fit,
    draws: int,
    least: float,
    suffices: Callable[[TableCost], bool],
    accounting: Accounting | None,
    every: bool = False,
) -> Charge | None:
    """Return draws at the smallest temperature of the grid that suffices, if any does.

    Args:
        name: name of the guarantee.
        fit, draws, least, accounting: as for :meth:`Guarantee.calibrated`.
        suffices: whether a cost is small enough.
        every: whether to try one per octave, not only the highest.
    """
    check_unit(fit, name)
    fit.ledger.mark(fit.kept.name)

    def at(place: int) -> Charge:
        return Charge(draws, on_grid(place), TemperatureOrigin.DATA, fit.ledger.id)

    def enough(place: int) -> bool:
        return suffices(table(fit, at(place), accounting))

    low, high = math.ceil(OCTAVE * math.log2(least)) - 1, math.ceil(OCTAVE * _HOTTEST_OCTAVE)
    places = [high, *range(low + 1, high, OCTAVE)] if every else [high]
    high = next((place for place in places if enough(place)), low)
    if high == low:
        return None
    return at(low + 1 + bisect_left(range(low + 1, high), True, key=enough))


def check_unit(fit: Fit, name: str) -> None:
    """Raise ValueError if a guarantee of this name covers less than a unit of the table."""
    if (rows := fit.ledger.rows_per_unit) > 1 and name != WORST_CASE:
        raise ValueError(
            f"guarantee={name} covers one row, and a unit of this table has up to {rows} rows: "
            "ask for the worst case"
        )


def _covariances(draws: int, hottest: Bound | None) -> str:
    """Return the part of the cost that a temperature cannot lower, in words."""
    return (
        f"with {several(draws, 'draw')} the covariances alone cost {hottest}. Fewer draws, a "
        "lower clip or a stronger prior lower this floor"
    )


OCTAVE = 8
"""Temperatures per factor of 2 of the public grid."""
_HOTTEST_OCTAVE = 40
_HOTTEST = 2.0**_HOTTEST_OCTAVE
"""A temperature at which the means reveal nothing."""


def on_grid(place: int) -> float:
    """Return a temperature of the public grid.

    >>> on_grid(0), on_grid(8)
    (1.0, 2.0)
    """
    return float(2.0 ** (place / OCTAVE))


def usual(fit: Fit) -> Guarantee:
    """Return the strongest guarantee that the fit can give, see :func:`.pricing.usual_kind`."""
    every: tuple[Guarantee, ...] = (WorstCaseDP(), BayesianDP(), TypicalRecord())
    return next(one for one in every if one.name == usual_kind(fit).value)


def by_default(fit: Fit) -> Guarantee:
    """Return the default guarantee of a release.

    Raises:
        ValueError: if it would differ in kind from that of the fit's first release.
    """
    found = usual(fit)
    if found.name == BAYESIAN and fit.guide.noise_scale is not None and bounded(fit):
        raise ValueError(
            f"guarantee must be given: {without_worst_case(fit)}, so this release can have no "
            f"{WORST_CASE} guarantee any more. guarantee=BayesianDP() (--guarantee bayesian) "
            "gives it a Bayesian one; a worst-case one needs a table of its own"
        )
    return found


def _is_spent(before: Bound, epsilon: float, delta: float) -> bool:
    """Return whether earlier charges leave too little for a draw."""
    if before.distance is None:
        return before.epsilon >= (1 - SPENT / 2) * epsilon
    return before.distance**2 > (1 - SPENT) * gaussian_distance(epsilon, delta) ** 2


def _unreachable(fit: Fit, epsilon: float, before: str | None, floor: str) -> NoReturn:
    count = sum(one.count for one in fit.ledger.entries())
    if before:
        floor = f"{several(count, 'earlier release')} cost {before}; for this release, {floor}"
    raise ValueError(f"epsilon={epsilon:g} cannot be reached: {floor}")

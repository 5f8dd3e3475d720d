"""What a release promises: worst-case or Bayesian differential privacy, and at which temperature.

The temperature is part of what an outsider may know. A worst-case guarantee holds only if it
follows from public numbers alone; found from what records cost, it is one more output that was
computed from them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from bdpvi._fit import Fit
from bdpvi._runtime import validate
from bdpvi._runtime.outputs import several
from bdpvi.accounting.accountant import Account, Accounting
from bdpvi.accounting.answer import nothing
from bdpvi.accounting.book import Charge, Entry, Origin, Priced
from bdpvi.accounting.bought import gaussian_distance
from bdpvi.accounting.conceivable import Influence
from bdpvi.accounting.cost import Assumption, Bound, Cost, Kind
from bdpvi.accounting.events import ModeDraws, PosteriorDraws, SampledGaussian
from bdpvi.accounting.left import SPENT
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.neighbours.mode.influence import of_any_table
from bdpvi.neighbours.rounding import Reach, public_rounding_error, rounding_error
from bdpvi.releasing.basis import assumptions_of
from bdpvi.types import BudgetExceededError

BAYESIAN = Kind.BAYESIAN.value
WORST_CASE = Kind.WORST_CASE.value


class Guarantee(Protocol):
    """A kind of promise: how its temperature is found, and which ε it is about."""

    @property
    def name(self) -> str:
        """What receipts call it."""

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
        """Return what a budget limits.

        Raises:
            ValueError: if the releases have no such guarantee.
        """


@dataclass(frozen=True)
class WorstCaseDP:
    """Worst-case DP: the temperature follows from public constants, the same for every data set.

    For a fit at the optimum of a clipped model whose guide releases a public noise scale, where the
    constants are clip, prior scale, noise scale, draws and δ; and for ``guides.Laplace``, where
    they are the number of weights, weight norm, limit, prior scale, draws and δ, and the covariance
    costs something at every temperature. What was released before counts too, and must have been at
    public temperatures.
    """

    name: ClassVar[str] = WORST_CASE

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
        """Return the smallest temperature, within 0.1 %. ``accounting`` has no part in it.

        ε is that of everything that was spent on the table, by other fits too.
        """
        require_worst_case(fit)
        ledger, before = fit.ledger, worst_case(fit, delta)

        def at(log_temperature: float) -> Charge:
            return Charge(draws, math.exp(log_temperature), Origin.CONSTANTS, ledger.id)

        def suffices(log_temperature: float) -> bool:
            found = worst_case(fit, delta, at(log_temperature))
            return found is not None and found.epsilon <= epsilon

        if before is not None and _is_spent(before, epsilon, delta):
            raise BudgetExceededError(
                f"epsilon={epsilon:g} is spent: {before} so far; {ledger.said()}"
            )
        low, high = math.log(least), math.log(_HOTTEST)
        if suffices(low):
            return at(low)
        if not suffices(high):
            words, floor = None if before is None else str(before), "rounding leaves nothing of δ"
            if found := of_any(fit) and worst_case(fit, delta, at(high)):
                floor = f"with {several(draws, 'draw')} the covariances alone bring it to {found}"
            _unreachable(fit, epsilon, words, floor)
        while high - low > 1e-4:  # ε goes with the root of the temperature, or slower
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
    """Bayesian DP: the temperature is found from what the panel's records cost.

    That is a choice made by looking at the data. It is taken from a coarse public grid, eight
    temperatures an octave, and said on the receipt; no worst-case guarantee holds for it.
    """

    name: ClassVar[str] = BAYESIAN

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

        With ``only_reliable`` some temperature at which ε is within ``epsilon``, if one in an
        octave is. ε is of this fit alone. That its temperatures may be known is written to the
        ledger first.
        """
        if (rows := fit.ledger.rows_per_unit) > 1:
            raise ValueError(
                f"guarantee={BAYESIAN} is of one row, and a unit of this table has up to {rows} "
                "rows: ask for the worst case"
            )
        fit.ledger.mark(fit.kept.name)

        def at(place: int) -> Charge:
            return Charge(draws, on_grid(place), Origin.DATA, fit.ledger.id)

        def suffices(place: int) -> bool:
            charged = account(fit, at(place), accounting)
            return charged.get_delta(epsilon, near=delta) <= delta

        low, high = math.ceil(OCTAVE * math.log2(least)) - 1, math.ceil(OCTAVE * _HOTTEST_OCTAVE)
        places = [high]
        if (
            accounting or fit.accounting
        ).only_reliable:  # the hottest may be less reliable than a colder one
            places += range(low + 1, high, OCTAVE)
        high = next((place for place in places if suffices(place)), low)
        if high == low:
            before = str(total(fit, delta, None, accounting)) if own(fit) else None
            _unreachable(fit, epsilon, before, self._floor(fit, draws, delta, accounting))
        colder = range(low + 1, high)
        return at(low + 1 + bisect_left(colder, True, key=suffices))

    def price(self, total: Cost) -> Bound:
        """Return the Bayesian guarantee."""
        if total.bayesian is None:
            raise ValueError(f"guarantee={BAYESIAN}: these releases have none: {total}")
        return total.bayesian

    def _floor(self, fit: Fit, draws: int, delta: float, accounting: Accounting | None) -> str:
        hottest = total(fit, delta, Charge(draws, _HOTTEST, Origin.DATA), accounting)
        return (
            f"with {several(draws, 'draw')} the covariances alone cost {hottest}. Fewer draws, a "
            "lower clip or a stronger prior lower that floor"
        )


OCTAVE = 8
"""Temperatures of the public grid between one and its double."""
_HOTTEST_OCTAVE = 40
_HOTTEST = 2.0**_HOTTEST_OCTAVE
"""A temperature at which no mean gives anything away."""


def on_grid(place: int) -> float:
    """Return a temperature of the public grid.

    >>> on_grid(0), on_grid(8)
    (1.0, 2.0)
    """
    return float(2.0 ** (place / OCTAVE))


def usual(fit: Fit) -> Guarantee:
    """Return worst-case DP where the fit can give it, Bayesian DP elsewhere.

    Draws from ``guides.Laplace`` have a certified Bayesian ε, and a worst case beside it.
    """
    bayesian = fit.guide.noise_scale is None or without_worst_case(fit)
    return BayesianDP() if bayesian else WorstCaseDP()


def by_default(fit: Fit) -> Guarantee:
    """Return what a release promises where nothing is said.

    Raises:
        ValueError: if that would be another kind of promise than that of the fit's first release.
    """
    found = usual(fit)
    if found.name == BAYESIAN and fit.guide.noise_scale is not None and bounded(fit):
        raise ValueError(
            f"guarantee must be said: {without_worst_case(fit)}, so this release can have no "
            f"{WORST_CASE} guarantee any more. guarantee=BayesianDP() (--guarantee bayesian) gives "
            "it a Bayesian one; a worst-case one needs a table of its own"
        )
    return found


def account(
    fit: Fit, planned: Charge | None = None, accounting: Accounting | None = None
) -> Account:
    """Return all draws from ``fit``, and ``planned`` on top, as ``accounting`` prices them.

    By default that is the fit's.
    """
    # Where a temperature comes from decides nothing here but whether one of them is from the data.
    counted = Counter([*own(fit), *([planned] if planned else [])])
    events = [(_event(fit, charge), count) for charge, count in counted.items()]
    return Account(events, accounting or fit.accounting)


def own(fit: Fit) -> tuple[Charge, ...]:
    """Return all draws from ``fit`` so far."""
    return fit.ledger.charges(fit.kept.name)


def priced(fit: Fit, charge: Charge) -> tuple[Priced, ...] | None:
    """Return draws as the worst case has them: a function of public constants; None without one."""
    if charge.from_data or not bounded(fit):
        return None
    if influence := of_any(fit):
        assert isinstance(fit.model, BayesianLogisticRegression)
        n, (k, tau) = influence.columns, (charge.draws, charge.temperature)
        error = public_rounding_error(fit.guide, n, fit.model.precision(n), k, tau)
        return (ModeDraws(influence=influence, draws=k, temperature=tau, rounding=error),)
    event = _event(fit, charge)
    variance = event.draws * max(one.largest or 0.0 for one in fit.panels) / event.temperature
    if not variance:
        return ()
    return (SampledGaussian(noise_multiplier=variance**-0.5, rounding=event.rounding),)


def constants_of(fit: Fit) -> tuple[Entry, ...]:
    """Return what was paid for the constants that the fit's features were made with."""
    name = fit.kept.name
    return tuple(one for one in fit.ledger.entries() if one.kind == "constants" and one.of == name)


def total(
    fit: Fit,
    delta: float,
    planned: Charge | None = None,
    accounting: Accounting | None = None,
) -> Cost:
    """Return what was spent, with ``planned`` on top.

    The worst case is that of everything spent on the table; the Bayesian ε is of this fit alone.
    """
    bound = worst_case(fit, delta, planned)
    if constants_of(fit):
        return Cost(worst_case=bound)
    if planned is None and not own(fit):
        found = nothing(delta, [panel.kind for panel in fit.panels])
        return replace(found, worst_case=bound) if fit.ledger.entries() else found
    found = account(fit, planned, accounting).cost(delta)
    return replace(found, worst_case=bound).each(lambda one: assuming(fit, one))


def worst_case(fit: Fit, delta: float, planned: Charge | None = None) -> Bound | None:
    """Return the guarantee of everything spent on the table: a function of public constants alone.

    None without any charge, or where there is no such guarantee.
    """
    if planned is None and not fit.ledger.entries():
        return None
    events = () if planned is None else priced(fit, planned)
    found = fit.ledger.worst_case(delta, events)
    return found and found.assuming(*assumptions_of(fit.preprocessing, fit.ledger.entries()))


def assuming(fit: Fit, bound: Bound) -> Bound:
    """Return a bound of draws from ``fit`` with what it rests on."""
    alone = all(one.of == fit.kept.name for one in fit.ledger.entries())
    more = [Assumption.THIS_FIT_ALONE] * (bound.kind is Kind.BAYESIAN and not alone)
    return bound.assuming(*assumptions_of(fit.preprocessing, counted(fit, bound.kind)), *more)


def counted(fit: Fit, kind: Kind) -> tuple[Entry, ...]:
    """Return the charges that an ε of this kind counts: a Bayesian one counts no purchase."""
    return () if kind is Kind.BAYESIAN else fit.ledger.entries()


def check_delta(fit: Fit, delta: float, guarantee: Guarantee) -> None:
    """Warn of a δ of 1/N or more for a Bayesian guarantee, see :func:`.validate.mean_delta`.

    A worst-case δ bounds what each record has to fear.
    """
    if guarantee.name == BAYESIAN:
        validate.mean_delta(delta, fit.records)


def without_worst_case(fit: Fit) -> str:
    """Return why no worst-case guarantee can be given for releases from ``fit``, "" if it can."""
    mode = any(panel.error is not None for panel in fit.panels)  # proven modes alone have one
    if fit.guide.noise_scale is None and not mode:
        return "the guide has no public noise_scale"
    if mode and (rows := fit.ledger.rows_per_unit) > 1:
        return f"draws at a posterior's mode have none for {rows} rows of one unit"
    if mode and not bounded(fit):
        return "nothing bounds a record's influence: it takes a strong prior, and neighbours=Mode()"
    if not bounded(fit):
        return "nothing bounds a record's influence: it takes a clip, and neighbours=Optimum()"
    if any(charge.from_data for charge in fit.ledger.charges()):
        return "an earlier release had a temperature that was found from the data"
    if fit.ledger.book().events is None:
        return "an earlier release from this table has none"
    return ""


def bounded(fit: Fit) -> bool:
    """Return whether public numbers bound what any record does to a release."""
    public = fit.guide.noise_scale is not None and all(p.largest is not None for p in fit.panels)
    return public or of_any(fit) is not None


def of_any(fit: Fit) -> Influence | None:
    """Return how far any added record moves the mode of any table, where draws are priced by that.

    It is where fits are proven modes, which have an influence in each panel, for units of one row.
    Whether a removed record's is bounded too is asked so that panels have one for every table.
    """
    model, known = fit.model, [panel.influence for panel in fit.panels]
    if not isinstance(model, BayesianLogisticRegression) or fit.ledger.rows_per_unit > 1:
        return None
    if not known or known[0] is None or None in known:
        return None
    added, removed = (of_any_table(model, known[0].columns, added=a) for a in (True, False))
    return removed and added


def require_worst_case(fit: Fit) -> None:
    """Raise ValueError, with the reason, if no worst-case guarantee can be given."""
    if reason := without_worst_case(fit):
        raise ValueError(f"guarantee={WORST_CASE} cannot be given: {reason}")


def _event(fit: Fit, charge: Charge) -> PosteriorDraws:
    reach = Reach.of(*(panel.pairs for panel in fit.panels))
    error = rounding_error(fit.guide, fit.released, reach, charge.draws, charge.temperature)
    return PosteriorDraws(
        fit.panels, charge.draws, charge.temperature, rounding=error, from_data=charge.from_data
    )


def _is_spent(before: Bound, epsilon: float, delta: float) -> bool:
    """Return whether what was spent leaves nothing that a draw could be worth."""
    if before.distance is None:
        return before.epsilon >= (1 - SPENT / 2) * epsilon
    return before.distance**2 > (1 - SPENT) * gaussian_distance(epsilon, delta) ** 2


def _unreachable(fit: Fit, epsilon: float, before: str | None, floor: str) -> None:
    count = sum(one.count for one in fit.ledger.entries())
    if before:
        floor = f"{several(count, 'earlier release')} cost {before}; of what is left, {floor}"
    raise ValueError(f"epsilon={epsilon:g} cannot be reached: {floor}")

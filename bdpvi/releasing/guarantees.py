"""What a release promises: worst-case or Bayesian differential privacy, and at which temperature.

The temperature is part of what an outsider may know. A worst-case guarantee holds only if it
follows from public numbers alone; found from what records cost, it is one more output that was
computed from them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Protocol

from bdpvi._fit import Fit
from bdpvi._runtime import validate
from bdpvi.accounting.answer import no_panel
from bdpvi.accounting.bayesian import BayesianAccountant
from bdpvi.accounting.book import ROW, Charge, Entry, Origin, Priced
from bdpvi.accounting.bought import gaussian_distance
from bdpvi.accounting.events import PosteriorDraws, SampledGaussian
from bdpvi.accounting.ledger import Ledger
from bdpvi.datasets.encoding import MEASURED
from bdpvi.neighbours.rounding import Reach, rounding_error
from bdpvi.types import GIVEN, BudgetExceededError, Spent, WorstCase

THIS_FIT_ALONE = (
    ". It is of this fit alone: what else was released from the table costs besides, and what all "
    "of it costs together is known of worst-case guarantees only"
)
BAYESIAN = "Bayesian DP"
WORST_CASE = "worst-case DP"
WORST_CASE_GUARANTEE = (
    "Worst-case differential privacy: for all data sets D and D′ that differ by one record added "
    "or removed, whatever that record is, Pr[S | D] ≤ e^ε Pr[S | D′] + δ for every set S of outputs"
)
AIMED = "aimed at"
PUBLIC = "computed from public constants"
COMPUTED = "computed from the data, rounded up to two digits"

Accountant = Callable[[], BayesianAccountant]


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What a release promises, in public words and numbers.

    Attributes:
        guarantee: "worst-case DP" or "Bayesian DP".
        meaning: the guarantee in words.
        relation: between neighbouring data sets.
        epsilon, delta: of all releases from the fit up to this one.
        source: whether ε was aimed at, computed from public constants or from the data.
        reliable: whether diagnostics support a Bayesian ε; None for a worst-case one.
        draws: number of samples k.
        temperature: τ; on a coarse grid if it was found from the data. None where the noise was
            in the fit itself.
        noise_scale: standard deviation of the noise in each coordinate, if it is public.
        step: the samples are multiples of this, if it is known.
        given: what the guarantee is conditional on, :data:`bdpvi.types.GIVEN` or nothing.
        experiment: whether the samples, the batches or the choice of training rows follow a seed:
            then nothing is promised at all.
    """

    guarantee: str
    meaning: str
    relation: str
    epsilon: float
    delta: float
    source: str
    reliable: bool | None
    draws: int
    temperature: float | None
    noise_scale: float | None
    step: float | None
    given: str = ""
    experiment: bool = False

    def __str__(self) -> str:
        if self.experiment:
            return "an EXPERIMENT: it follows a seed, so nothing is promised"
        trust = {None: "", True: ", reliable", False: ", NOT RELIABLE"}[self.reliable]
        return (
            f"{self.guarantee} ε = {self.epsilon:.4g} ({self.source}) at δ = {self.delta:g}, to "
            f"{self.relation}{self.given}{trust}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes, which are public, as JSON types."""
        return asdict(self)


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
        accountant: Accountant | None,
    ) -> Charge:
        """Return ``draws`` more samples, at a temperature that keeps ε within ``epsilon``."""

    def price(self, total: Spent) -> Spent | WorstCase:
        """Return what a budget limits.

        Raises:
            ValueError: if the releases have no such guarantee.
        """


@dataclass(frozen=True)
class WorstCaseDP:
    """Worst-case DP: the temperature follows from public constants, the same for every data set.

    For a fit at the optimum of a clipped model whose guide releases a public noise scale. The
    constants are clip, prior scale, noise scale, draws, δ, and what was released before, which must
    have been at public temperatures too.
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
        accountant: Accountant | None,
    ) -> Charge:
        """Return the smallest temperature, within 0.1 %. ``accountant`` has no part in it.

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
            words = None if before is None else str(before)
            _unreachable(fit, epsilon, words, "rounding leaves nothing of δ")
        while high - low > 1e-4:  # ε goes with the root of the temperature, or slower
            middle = (low + high) / 2
            low, high = (low, middle) if suffices(middle) else (middle, high)
        return at(high)

    def price(self, total: Spent) -> WorstCase:
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
        accountant: Accountant | None,
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
            spent = account(fit, at(place), accountant)
            return spent.get_delta(epsilon, near=delta) <= delta

        low, high = math.ceil(OCTAVE * math.log2(least)) - 1, math.ceil(OCTAVE * _HOTTEST_OCTAVE)
        places = [high]
        rule = (accountant or fit.accounting)()
        if rule.only_reliable:  # the hottest may be less reliable than a colder one
            places += range(low + 1, high, OCTAVE)
        high = next((place for place in places if suffices(place)), low)
        if high == low:
            before = str(total(fit, delta, None, accountant)) if own(fit) else None
            _unreachable(fit, epsilon, before, self._floor(fit, draws, delta, accountant))
        colder = range(low + 1, high)
        return at(low + 1 + bisect_left(colder, True, key=suffices))

    def price(self, total: Spent) -> Spent:
        """Return the Bayesian guarantee."""
        return total

    def _floor(self, fit: Fit, draws: int, delta: float, accountant: Accountant | None) -> str:
        hottest = total(fit, delta, Charge(draws, _HOTTEST, Origin.DATA), accountant)
        return (
            f"with {draws} draws the covariances alone cost {hottest}. Fewer draws, a "
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
    """Return worst-case DP where the fit can give it, Bayesian DP elsewhere."""
    return BayesianDP() if without_worst_case(fit) else WorstCaseDP()


def account(
    fit: Fit, planned: Charge | None = None, accountant: Accountant | None = None
) -> BayesianAccountant:
    """Return an accountant with all draws from ``fit`` charged, and ``planned`` on top.

    It is made by ``accountant``, by default as the fit's accounting says.
    """
    made = (accountant or fit.accounting)()
    # Where a temperature comes from decides nothing here but whether one of them is from the data.
    for charge, count in Counter([*own(fit), *([planned] if planned else [])]).items():
        made.step(_event(fit, charge), count=count)
    return made


def own(fit: Fit) -> tuple[Charge, ...]:
    """Return all draws from ``fit`` so far."""
    return fit.ledger.charges(fit.kept.name)


def priced(fit: Fit, charge: Charge) -> tuple[Priced, ...] | None:
    """Return draws as the worst case has them: a function of public constants; None without one."""
    if charge.from_data or not bounded(fit):
        return None
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
    accountant: Accountant | None = None,
) -> Spent:
    """Return what all releases have cost, with ``planned`` on top."""
    worst = worst_case(fit, delta, planned)
    if constants_of(fit):
        return no_panel(delta, worst)
    return replace(account(fit, planned, accountant).spent(delta), worst_case=worst)


def worst_case(fit: Fit, delta: float, planned: Charge | None = None) -> WorstCase | None:
    """Return the guarantee of everything spent on the table: a function of public constants alone.

    None without any charge, or where there is no such guarantee.
    """
    if planned is None and not fit.ledger.entries():
        return None
    events = () if planned is None else priced(fit, planned)
    return conditional(fit, fit.ledger.worst_case(delta, events))


def conditional(fit: Fit, found: WorstCase | None) -> WorstCase | None:
    """Return the guarantee with what it is conditional on."""
    return found and replace(found, given=given(fit.preprocessing))


def given(preprocessing: Mapping[str, Any]) -> str:
    """Return :data:`bdpvi.types.GIVEN` if the constants of the encoding were read from the rows."""
    encoding = preprocessing.get("encoding")
    return GIVEN if encoding and encoding["source"] == MEASURED else ""


def check_delta(fit: Fit, delta: float, guarantee: Guarantee, allowed: bool) -> None:
    """Warn of a δ of 1/N or more for a Bayesian guarantee, see :func:`.validate.mean_delta`.

    A worst-case δ bounds what each record has to fear.
    """
    if guarantee.name == BAYESIAN:
        validate.mean_delta(delta, fit.records, allowed)


def without_worst_case(fit: Fit) -> str:
    """Return why no worst-case guarantee can be given for releases from ``fit``, "" if it can."""
    if fit.guide.noise_scale is None:
        return "the guide has no public noise_scale"
    if not bounded(fit):
        return "nothing bounds a record's influence: it takes a clip, and neighbours=Optimum()"
    if any(charge.from_data for charge in fit.ledger.charges()):
        return "an earlier release had a temperature that was found from the data"
    if fit.ledger.book().events is None:
        return "an earlier release from this table has none"
    return ""


def bounded(fit: Fit) -> bool:
    """Return whether public noise bounds what any record does to a release."""
    return fit.guide.noise_scale is not None and all(one.largest is not None for one in fit.panels)


def require_worst_case(fit: Fit) -> None:
    """Raise ValueError, with the reason, if no worst-case guarantee can be given."""
    if reason := without_worst_case(fit):
        raise ValueError(f"guarantee={WORST_CASE} cannot be given: {reason}")


def unit_of(ledger: Ledger) -> str:
    """Return what is added or removed, in words."""
    if ledger.unit == ROW:
        return "one record"
    return f"all records, at most {ledger.rows_per_unit}, with one value of {ledger.unit!r}"


def meaning(fit: Fit, total: Spent, guarantee: Guarantee) -> str:
    """Return the guarantee in words, with what D is and where its constants come from."""
    if guarantee.name == WORST_CASE:
        return worst_case_meaning(fit.ledger, fit.preprocessing)
    alone = all(one.of == fit.kept.name for one in fit.ledger.entries())
    return total.guarantee + ("" if alone else THIS_FIT_ALONE) + _about(fit.preprocessing)


def worst_case_meaning(ledger: Ledger, preprocessing: Mapping[str, Any]) -> str:
    """Return :func:`meaning` of a worst-case guarantee, for whose records these are."""
    words = WORST_CASE_GUARANTEE.replace("one record", unit_of(ledger))
    return words + _about(preprocessing)


def _about(preprocessing: Mapping[str, Any]) -> str:
    words = ""
    if split := preprocessing.get("split"):
        words += f". D is the training part of a published table alone: {split}"
    if encoding := preprocessing.get("encoding"):
        words += f". Constants of the encoding: {encoding['source']}"
    return words


def _event(fit: Fit, charge: Charge) -> PosteriorDraws:
    reach = Reach.of(*(panel.pairs for panel in fit.panels))
    error = rounding_error(fit.guide, fit.released, reach, charge.draws, charge.temperature)
    return PosteriorDraws(
        fit.panels, charge.draws, charge.temperature, rounding=error, from_data=charge.from_data
    )


SPENT = 0.01
"""With less than this share of μ² left, ε counts as spent."""


def _is_spent(before: WorstCase, epsilon: float, delta: float) -> bool:
    """Return whether what was spent leaves nothing that a draw could be worth."""
    if before.distance is None:
        return before.epsilon >= (1 - SPENT / 2) * epsilon
    return before.distance**2 > (1 - SPENT) * gaussian_distance(epsilon, delta) ** 2


def _unreachable(fit: Fit, epsilon: float, before: str | None, floor: str) -> None:
    count = sum(one.count for one in fit.ledger.entries())
    if before:
        floor = f"the {count} earlier releases have cost {before}; of what is left, {floor}"
    raise ValueError(f"epsilon={epsilon:g} cannot be reached: {floor}")

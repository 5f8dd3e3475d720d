"""What draws from a fit cost, by each of the three statements that the fit can give."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from bdpvi._fit import Fit
from bdpvi._runtime import validate
from bdpvi.accounting.accountant import Account, Accounting
from bdpvi.accounting.answer import nothing
from bdpvi.accounting.book import Charge, Entry, Priced
from bdpvi.accounting.cost import Assumption, Bound, Cost, Kind
from bdpvi.accounting.events import PosteriorDraws, SampledGaussian
from bdpvi.accounting.typical import typical
from bdpvi.neighbours.rounding import Reach, rounding_error
from bdpvi.releasing.basis import assumptions_of


def usual_kind(fit: Fit) -> Kind:
    """Return the strongest statement that the fit can give.

    Worst-case DP where it can, Bayesian DP where the range of any conceivable record's cost is
    known, and the statement on typical records elsewhere.
    """
    if not without_worst_case(fit):
        return Kind.WORST_CASE
    return Kind.BAYESIAN if all(panel.ranged for panel in fit.panels) else Kind.TYPICAL


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
    kind: Kind | None = None,
) -> Cost:
    """Return what was spent, with ``planned`` on top.

    The worst case is that of everything spent on the table; the others are of this fit alone. The
    statement on typical records is there if it is the ``kind``, or without one the usual kind.

    Raises:
        ValueError: if there is no such guarantee, or none at all.
    """
    bound = worst_case(fit, delta, planned)
    if constants_of(fit):
        return Cost(worst_case=bound)
    if planned is None and not own(fit):
        found = nothing(delta, [panel.kind for panel in fit.panels])
        return replace(found, worst_case=bound) if fit.ledger.entries() else found
    spent, found, most = account(fit, planned, accounting), Cost(), None
    if (kind or usual_kind(fit)) is Kind.TYPICAL:
        try:
            most = typical(spent, delta)
        except ValueError:
            if kind is not None:
                raise
    try:
        found = spent.cost(delta)
    except ValueError:
        if most is None or kind is Kind.BAYESIAN:
            raise
    return replace(found, worst_case=bound, typical=most).each(lambda one: assuming(fit, one))


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
    more = [Assumption.THIS_FIT_ALONE] * (bound.kind is not Kind.WORST_CASE and not alone)
    return bound.assuming(*assumptions_of(fit.preprocessing, counted(fit, bound.kind)), *more)


def counted(fit: Fit, kind: Kind) -> tuple[Entry, ...]:
    """Return the charges that an ε of this kind counts: only a worst case counts purchases."""
    return fit.ledger.entries() if kind is Kind.WORST_CASE else ()


def check_delta(fit: Fit, delta: float, kind: Kind) -> None:
    """Warn of a δ of 1/N or more for a Bayesian guarantee, see :func:`.validate.mean_delta`.

    Any other δ bounds what each record has to fear that it speaks of.
    """
    if kind is Kind.BAYESIAN:
        validate.mean_delta(delta, fit.records)


def without_worst_case(fit: Fit) -> str:
    """Return why no worst-case guarantee can be given for releases from ``fit``, "" if it can."""
    if fit.guide.noise_scale is None:
        return "the guide has no public noise_scale"
    if not bounded(fit):
        return "nothing bounds what a record does: it takes a clip or weights, and Optimum()"
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
        raise ValueError(f"guarantee={Kind.WORST_CASE.value} cannot be given: {reason}")


def _event(fit: Fit, charge: Charge) -> PosteriorDraws:
    reach = Reach.of(*(panel.pairs for panel in fit.panels))
    error = rounding_error(fit.guide, fit.released, reach, charge.draws, charge.temperature)
    return PosteriorDraws(
        fit.panels, charge.draws, charge.temperature, rounding=error, from_data=charge.from_data
    )

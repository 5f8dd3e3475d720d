"""The cost of draws from a fit, for each of the four guarantees."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from bdpvi._ground import validate
from bdpvi.bayesian.accounting.answer import nothing
from bdpvi.bayesian.accounting.every_group import with_groups
from bdpvi.bayesian.accounting.membership import membership_of
from bdpvi.bayesian.accounting.record_losses import RecordLosses, losses_of_fit
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.bayesian.accounting.table import TableCost
from bdpvi.bayesian.accounting.table import total as of_table
from bdpvi.bayesian.mode.influence import of_any_table
from bdpvi.bayesian.neighbours.rounding import Reach, rounding_error
from bdpvi.bayesian.optimum.influence import of_any_table as of_any_optimum
from bdpvi.datasets.encoding import Encoding
from bdpvi.models.family import weighing
from bdpvi.models.kinds import Known
from bdpvi.privacy.conceivable import Influence
from bdpvi.privacy.cost import Bound, Cost, Kind
from bdpvi.privacy.entry import Charge, Entry
from bdpvi.privacy.event import Event
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.membership import Membership
from bdpvi.privacy.mode_draws import ModeDraws
from bdpvi.releases.basis import assumptions_of

if TYPE_CHECKING:
    from bdpvi.bayesian.fit import Fit


def usual_kind(fit: Fit) -> Kind:
    """Return the strongest guarantee that the fit can give.

    Worst-case DP if possible, Bayesian DP if the range of any conceivable record's cost is known,
    otherwise the typical-record guarantee. Draws from ``guides.Laplace``, and from
    ``guides.FullRank`` at the optimum, have a worst case as well as a Bayesian ε.
    """
    if fit.guide.noise_scale is not None and not without_worst_case(fit):
        return Kind.WORST_CASE
    return Kind.BAYESIAN if all(panel.ranged for panel in fit.panels) else Kind.TYPICAL


def table(
    fit: Fit, planned: Charge | None = None, accounting: Accounting | None = None
) -> TableCost:
    """Return everything spent on the table, and ``planned``.

    Args:
        fit: a fit of the table.
        planned: draws from ``fit``.
        accounting: how the ε is computed, by default as in the fit.

    Raises:
        ValueError: if no total for single records is known.
    """
    return TableCost.of(fit.ledger, accounting or fit.accounting, *_with(fit, planned))


def membership(fit: Fit, *, planned: Charge | None = None) -> Membership:
    """Return how well anybody tells whether a record is in the table, after everything spent on it.

    It is the certified mean over the population; ``cost(fit).membership`` has the worst case, from
    public numbers. It charges nothing, and takes a few seconds, as means are bounded at several ε.

    Args:
        fit: a fit of the table with a certified range, by ``guides.Laplace`` or
            ``guides.FullRank``.
        planned: a further release.

    Raises:
        ValueError: if nothing was spent or planned, no range is certified, or charges that are not
            Gaussian were made on the table: for these ``cost(fit).membership`` holds.
    """
    return _certified(table(fit, planned), fit.ledger)


def membership_in(ledger: Ledger) -> Membership | None:
    """Return :func:`membership` of everything in a ledger; None if none is certified."""
    try:
        return _certified(TableCost.of(ledger), ledger)
    except ValueError:
        return None


def _certified(found: TableCost, ledger: Ledger) -> Membership:
    if not found.accounts:
        raise ValueError(found.why or "planned=None: nothing was released from this table yet")
    if found.rest or ledger.others:
        raise ValueError(
            "fit: other charges on this table are not Gaussian, or are in another ledger; ask "
            "cost(fit).membership for a bound on everything"
        )
    return membership_of(found.accounts)


def _with(fit: Fit, planned: Charge | None) -> tuple[Entry | None, dict[str, RecordLosses]]:
    """Return the entry of planned draws, and each record's losses from draws of ``fit``."""
    name, losses = fit.kept.name, losses_of(fit, planned)
    if planned is None:
        return None, {name: losses}
    entry = Entry(kind="draws", of=name, charge=planned, events=worst_case_events(fit, planned))
    return entry, {name: losses}


def losses_of(fit: Fit, planned: Charge | None = None) -> RecordLosses:
    """Return each record's losses from draws of ``fit``, at all temperatures so far."""
    taus = {one.temperature for one in (*charges_so_far(fit), *([planned] if planned else []))}
    made = f"{fit.model!r} {type(fit.guide)} {fit.guide.noise_scale} {fit.fingerprint}"
    written = fit.preprocessing.get("encoding")
    return RecordLosses(
        fit.panels,
        fit.records,
        {tau: _rounding(fit, Charge(1, tau)) for tau in taus},
        hashlib.sha256(made.encode()).hexdigest() if isinstance(fit.model, Known) else "",
        Encoding.from_dict(written).purchases if written else (),
    )


def charges_so_far(fit: Fit) -> tuple[Charge, ...]:
    """Return all charges for draws from ``fit`` so far."""
    return fit.ledger.charges(fit.kept.name)


def keep_again(fit: Fit) -> None:
    """Write each record's losses from ``fit`` again if they are missing beside the ledger."""
    taus = {one.temperature for one in charges_so_far(fit)}
    try:
        if taus:
            losses_of_fit(fit.ledger, fit.kept.name, *taus)
    except ValueError:
        with suppress(OSError), fit.ledger.locked():  # a reader without write access may still ask
            losses_of(fit).keep(fit.ledger, fit.kept.name)


def worst_case_events(fit: Fit, charge: Charge) -> tuple[Event, ...] | None:
    """Return the worst-case events of draws, from public numbers only; None without any."""
    if not bounded(fit):
        return None
    if influence := of_any(fit):
        k, tau = charge.draws, charge.temperature
        return (ModeDraws(influence=influence, draws=k, temperature=tau),)
    variance = charge.draws * max(panel.largest or 0.0 for panel in fit.panels) / charge.temperature
    if not variance:
        return ()
    rounding = _rounding(fit, charge)
    return (SampledGaussian(noise_multiplier=variance**-0.5, rounding=rounding),)


def total(
    fit: Fit,
    delta: float,
    planned: Charge | None = None,
    accounting: Accounting | None = None,
    kind: Kind | None = None,
    shares: Sequence[float] = (),
) -> Cost:
    """Return the cost of everything spent on the table, with ``planned``.

    It includes the typical-record bound if that is the ``kind``, or without one the usual kind; and
    a bound for every group of at least each share.

    Raises:
        ValueError: if there is no such guarantee, or none at all.
    """
    if planned is None and not fit.ledger.entries():
        return nothing(delta, [panel.kind for panel in fit.panels], shares)
    bound, most = worst_case(fit, delta, planned), None
    if (kind or usual_kind(fit)) is Kind.TYPICAL:
        try:
            most = table(fit, planned, accounting).typical(delta)
        except ValueError:
            if kind is not None:
                raise
    try:
        of = (accounting or fit.accounting, *_with(fit, planned))
        found = of_table(fit.ledger, delta, bound, *of)
    except ValueError:
        if most is None or kind in (Kind.BAYESIAN, Kind.GROUP):
            raise
        found = Cost(worst_case=bound)
    if shares:
        found = with_groups(found, table(fit, planned, accounting).groups(delta, shares))
    return replace(found, typical=most).each(lambda one: assuming(fit, one))


def worst_case(fit: Fit, delta: float, planned: Charge | None = None) -> Bound | None:
    """Return the guarantee of everything spent on the table, from public numbers only.

    None without any charge, or if there is no such guarantee.
    """
    if planned is None and not fit.ledger.entries():
        return None
    events = () if planned is None else worst_case_events(fit, planned)
    found = fit.ledger.worst_case(delta, events)
    return found and assuming(fit, found)


def assuming(fit: Fit, bound: Bound) -> Bound:
    """Return a bound on everything spent on the table of ``fit`` with its assumptions."""
    more = assumptions_of(fit.preprocessing, fit.ledger.entries())
    return bound.assuming(*more, *fit.ledger.assumptions)


def check_delta(fit: Fit, delta: float, kind: Kind) -> None:
    """Warn of a δ of 1/N or more for a Bayesian guarantee, see :func:`.validate.mean_delta`.

    For other guarantees δ holds for each record that they cover.
    """
    if kind in (Kind.BAYESIAN, Kind.GROUP):
        validate.mean_delta(delta, fit.records)


def without_worst_case(fit: Fit) -> str:
    """Return why releases from ``fit`` have no worst-case guarantee, "" if they have one."""
    # Only proven modes and optima have one.
    mode = any(panel.error is not None for panel in fit.panels)
    if fit.guide.noise_scale is None and not mode:
        return "the guide has no public noise_scale"
    if mode and (rows := fit.ledger.rows_per_unit) > 1:
        return f"draws with the guide's own covariance have none for {rows} rows per unit"
    if mode and not bounded(fit):
        return (
            "the influence of a record is not bounded for all tables: this needs a strong prior, "
            "and guides.Laplace or guides.FullRank"
        )
    if not bounded(fit):
        return (
            "the influence of a record is not bounded: this needs a clip or weights, and Optimum()"
        )
    if fit.ledger.book().events is None:
        return "an earlier release from this table has none"
    return ""


def bounded(fit: Fit) -> bool:
    """Return whether public numbers bound any record's influence on a release."""
    public = fit.guide.noise_scale is not None and all(p.largest is not None for p in fit.panels)
    return public or of_any(fit) is not None


def of_any(fit: Fit) -> Influence | None:
    """Return how far any added record moves the fit to any table, if that prices the draws.

    It does for proven modes and optima, which have an influence in each panel, and units of one
    row. A bound for removed records is required too, so that panels have one for every table.
    """
    from bdpvi.guides import FullRank, Laplace  # late: they load Pyro

    model, known = weighing(fit.model), [panel.influence for panel in fit.panels]
    full = isinstance(fit.guide, FullRank)  # Laplace is one
    if model is None or fit.ledger.rows_per_unit > 1 or not full:
        return None
    if not known or known[0] is None or None in known:
        return None
    bounds = of_any_table if isinstance(fit.guide, Laplace) else of_any_optimum
    added, removed = (bounds(model, known[0].columns, added=a) for a in (True, False))
    return removed and added


def require_worst_case(fit: Fit) -> None:
    """Raise ValueError, with the reason, if no worst-case guarantee can be given."""
    if reason := without_worst_case(fit):
        raise ValueError(f"guarantee={Kind.WORST_CASE.value} cannot be given: {reason}")


def _rounding(fit: Fit, charge: Charge) -> float:
    reach = Reach.of(*(panel.pairs for panel in fit.panels))
    return rounding_error(fit.guide, fit.released, reach, charge.draws, charge.temperature)

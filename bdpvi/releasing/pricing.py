"""What draws from a fit cost, by each of the three statements that the fit can give."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace

from bdpvi._fit import Fit
from bdpvi._runtime import validate
from bdpvi.accounting.accountant import Accounting
from bdpvi.accounting.answer import nothing
from bdpvi.accounting.book import Charge, Entry, Priced
from bdpvi.accounting.conceivable import Influence
from bdpvi.accounting.cost import Bound, Cost, Kind
from bdpvi.accounting.events import ModeDraws, SampledGaussian
from bdpvi.accounting.kept import RecordLosses, keep, kept
from bdpvi.accounting.table import Table
from bdpvi.accounting.table import total as of_table
from bdpvi.datasets.encoding import Encoding
from bdpvi.models.kinds import Known
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.neighbours.mode.influence import of_any_table
from bdpvi.neighbours.rounding import Reach, public_rounding_error, rounding_error
from bdpvi.releasing.basis import assumptions_of


def usual_kind(fit: Fit) -> Kind:
    """Return the strongest statement that the fit can give.

    Worst-case DP where it can, Bayesian DP where the range of any conceivable record's cost is
    known, and the statement on typical records elsewhere. Draws from ``guides.Laplace`` have a
    worst case beside their Bayesian ε.
    """
    if fit.guide.noise_scale is not None and not without_worst_case(fit):
        return Kind.WORST_CASE
    return Kind.BAYESIAN if all(panel.ranged for panel in fit.panels) else Kind.TYPICAL


def table(fit: Fit, planned: Charge | None = None, accounting: Accounting | None = None) -> Table:
    """Return everything that was spent on the table, and ``planned`` on top.

    Args:
        fit: of the table.
        planned: draws from ``fit``.
        accounting: how it is priced, by default as the fit says.

    Raises:
        ValueError: if no total of single records is known.
    """
    return Table.of(fit.ledger, accounting or fit.accounting, *_with(fit, planned))


def _with(fit: Fit, planned: Charge | None) -> tuple[Entry | None, dict[str, RecordLosses]]:
    """Return draws that may be charged, and what those from ``fit`` cost each record."""
    name, losses = fit.kept.name, losses_of(fit, planned)
    if planned is None:
        return None, {name: losses}
    entry = Entry(kind="draws", of=name, charge=planned, events=priced(fit, planned))
    return entry, {name: losses}


def losses_of(fit: Fit, planned: Charge | None = None) -> RecordLosses:
    """Return what draws from ``fit`` cost each record, at all temperatures so far."""
    taus = {one.temperature for one in (*own(fit), *([planned] if planned else []))}
    made = f"{fit.model!r} {type(fit.guide)} {fit.guide.noise_scale} {fit.fingerprint}"
    written = fit.preprocessing.get("encoding")
    return RecordLosses(
        fit.panels,
        fit.records,
        {tau: _rounding(fit, Charge(1, tau)) for tau in taus},
        hashlib.sha256(made.encode()).hexdigest() if isinstance(fit.model, Known) else "",
        Encoding.from_dict(written).purchases if written else (),
    )


def own(fit: Fit) -> tuple[Charge, ...]:
    """Return all draws from ``fit`` so far."""
    return fit.ledger.charges(fit.kept.name)


def keep_again(fit: Fit) -> None:
    """Write what draws from ``fit`` cost each record, if it is not with their charges any more."""
    taus = {one.temperature for one in own(fit)}
    try:
        if taus:
            kept(fit.ledger, fit.kept.name, *taus)
    except ValueError:
        with suppress(OSError), fit.ledger.locked():  # who may not write there asks all the same
            keep(fit.ledger, fit.kept.name, losses_of(fit))


def priced(fit: Fit, charge: Charge) -> tuple[Priced, ...] | None:
    """Return draws as the worst case has them: a function of public constants; None without one."""
    if charge.from_data or not bounded(fit):
        return None
    if influence := of_any(fit):
        assert isinstance(fit.model, BayesianLogisticRegression)
        n, (k, tau) = influence.columns, (charge.draws, charge.temperature)
        error = public_rounding_error(fit.guide, n, fit.model.precision(n), k, tau)
        return (ModeDraws(influence=influence, draws=k, temperature=tau, rounding=error),)
    variance = charge.draws * max(one.largest or 0.0 for one in fit.panels) / charge.temperature
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
) -> Cost:
    """Return what everything on the table has cost, with ``planned`` on top.

    The statement on typical records is there if it is the ``kind``, or without one the usual kind.

    Raises:
        ValueError: if there is no such guarantee, or none at all.
    """
    if planned is None and not fit.ledger.entries():
        return nothing(delta, [panel.kind for panel in fit.panels])
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
        if most is None or kind is Kind.BAYESIAN:
            raise
        found = Cost(worst_case=bound)
    return replace(found, typical=most).each(lambda one: assuming(fit, one))


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
    """Return a bound of everything on the table of ``fit`` with what it rests on."""
    return bound.assuming(*assumptions_of(fit.preprocessing, fit.ledger.entries()))


def check_delta(fit: Fit, delta: float, kind: Kind) -> None:
    """Warn of a δ of 1/N or more for a Bayesian guarantee, see :func:`.validate.mean_delta`.

    Any other δ bounds what each record has to fear that it speaks of.
    """
    if kind is Kind.BAYESIAN:
        validate.mean_delta(delta, fit.records)


def without_worst_case(fit: Fit) -> str:
    """Return why no worst-case guarantee can be given for releases from ``fit``, "" if it can."""
    mode = any(panel.error is not None for panel in fit.panels)  # proven modes alone have one
    if fit.guide.noise_scale is None and not mode:
        return "the guide has no public noise_scale"
    if mode and (rows := fit.ledger.rows_per_unit) > 1:
        return f"draws at a posterior mode have none for {rows} rows per unit"
    if mode and not bounded(fit):
        return "the influence of a record is not bounded: this needs a strong prior, and Mode()"
    if not bounded(fit):
        return (
            "the influence of a record is not bounded: this needs a clip or weights, and Optimum()"
        )
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
        raise ValueError(f"guarantee={Kind.WORST_CASE.value} cannot be given: {reason}")


def _rounding(fit: Fit, charge: Charge) -> float:
    reach = Reach.of(*(panel.pairs for panel in fit.panels))
    return rounding_error(fit.guide, fit.released, reach, charge.draws, charge.temperature)

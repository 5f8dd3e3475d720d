"""The receipt of a release, and refusals and warnings because of its guarantee."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bdpvi._ground.outputs import two_digits
from bdpvi._ground.types import NotCertifiedWarning
from bdpvi.bayesian.accounting.answer import sampling_assumptions
from bdpvi.bayesian.accounting.panel import relation_of
from bdpvi.bayesian.fit import Fit
from bdpvi.privacy.cost import Bound, Cost, Kind
from bdpvi.privacy.entry import Charge
from bdpvi.releases import basis
from bdpvi.releases.receipt import AIMED, COMPUTED, OWNERS, PUBLIC, Receipt


def receipt(
    fit: Fit,
    charge: Charge,
    bound: Bound,
    aimed: float | None,
    seeded: bool,
    noted: Mapping[str, Any],
) -> Receipt:
    """Return the receipt of draws from a fit.

    A certified receipt has no number computed from the records: a table with one record less has
    the same receipt, word for word.

    Args:
        fit, charge: the fit and its draws.
        bound: the guarantee.
        aimed: the target ε.
        seeded: whether noise follows a seed.
        noted: the public description of how the records were made.
    """
    public = bound.kind is Kind.WORST_CASE
    if aimed is not None:
        source, epsilon = AIMED, aimed
    elif public:
        source, epsilon = PUBLIC, bound.epsilon
    elif bound.certified:
        source, epsilon = OWNERS, math.inf
    else:
        source, epsilon = COMPUTED, two_digits(bound.epsilon)
    said = bound.public(epsilon)
    if bound.certified:
        said = _alike(said, [panel.kind for panel in fit.panels])
    if seeded or fit.experiment:
        said = said.seeded()
    noise_scale = fit.guide.noise_scale
    return Receipt(
        worst_case=said if public else None,
        bayesian=said if bound.kind is Kind.BAYESIAN else None,
        group=said if bound.kind is Kind.GROUP else None,
        typical=said if bound.kind is Kind.TYPICAL else None,
        about=basis.about(noted),
        source=source,
        draws=charge.draws,
        temperature=charge.temperature,
        noise_scale=None if noise_scale is None else noise_scale * math.sqrt(charge.temperature),
        step=fit.guide.lattice(charge.temperature).step,
    )


def _alike(said: Bound, kinds: Sequence[str]) -> Bound:
    """Return a certified bound in the same words whether panel or worst case gave its ε."""
    own = sampling_assumptions(kinds)
    rest = tuple(assumption for assumption in said.assumptions if assumption not in own)
    return replace(
        said, by="betting or the worst case", relation=relation_of(kinds), assumptions=(*own, *rest)
    )


def check(price: Bound, epsilon: float) -> None:
    """Refuse a Bayesian or every-group ε that is not certified, if it was requested.

    Raises:
        ValueError: if it is not certified; it says why, and what else is possible.
    """
    if price.kind in (Kind.BAYESIAN, Kind.GROUP) and price.doubt:
        raise ValueError(
            f"epsilon={epsilon:g}: the {price.kind.value} ε is {price.mark}. Nothing was charged. "
            "Take guides.Laplace or, by Optimum(), guides.FullRank, or the worst case with a clip "
            "and a noise scale, or guarantee=TypicalRecord(), a guarantee for most records only"
        )


def warn(total: Cost, price: Bound) -> None:
    """Warn if nothing about the release is certified."""
    bayesian = total.bayesian
    what = f"a {price.kind.value} ε"
    most = price.kind is Kind.TYPICAL
    what += ", a guarantee for most records" if most else f", {price.mark}"
    if total.worst_case is None and not (bayesian and bayesian.certified):
        warnings.warn(
            f"the release has no worst-case ε and no certified Bayesian ε: it has {what}. Draws "
            "from guides.Laplace or, by Optimum(), guides.FullRank of logistic regression have a "
            "certified ε, and releases by bdpvi.fit_private a worst-case ε",
            NotCertifiedWarning,
            stacklevel=2,
        )

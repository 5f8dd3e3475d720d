"""How far one record, in the data or merely conceivable, moves the mode and the curvature."""

from __future__ import annotations

import math
from dataclasses import replace
from operator import methodcaller

import torch
from torch import Tensor

from bdpvi.bayesian.mode.objective import EXACT, Peak, distance
from bdpvi.bayesian.optimum.box import widest
from bdpvi.bayesian.optimum.packed import unpack
from bdpvi.models.family import Family
from bdpvi.privacy.conceivable import Influence

ROOM, _WIDEST = 10 * EXACT, 4.0
"""Addition to a record's pull as two fits end within :data:`EXACT` of their modes, and the largest
spread it covers: F′ at one is EXACT in its own norm, at the other (e^s + a)^½ < 9 times."""


def of_any_record(
    longest: float,
    pull: float,
    share: float,
    columns: int,
    *,
    added: bool,
    room: float = 0.0,
) -> Influence | None:
    """Return how far any conceivable record moves a mode.

    *Added* x: at the new mode F′ = −ωℓ′x, and |ℓ′| ≤ s, so t (1 − e^{−ht})/(ht) ≤ c = sω‖x‖. The
    record's own curvature there is at most a = κω‖x‖². *Removed* x: F without it has at least
    (1 − a) of the curvature at m, so the same holds with c/(1 − a). Norms are those of F″(m)⁻¹, so
    that c ≤ sC λ_min^{−½} and a ≤ κCB/λ_min, and h is the largest M‖z‖ of the data's rows.

    Args:
        longest: h of the data's rows; MB λ_min^{−½} bounds it for every table.
        pull: c.
        share: a.
        columns: n.
        added: whether the record is added.
        room: any other difference of F′ between the two fits, in the norm of F″(m)⁻¹.

    Returns:
        None where nothing is proven, because a record's pull is too strong for the ridge or its
        length has no bound.

    >>> found = of_any_record(0.2, 0.1, 0.005, 3, added=True)
    >>> round(found.shift, 4), round(found.spread, 4), found.share
    (0.101, 0.0202, 0.005)
    """
    pull += room
    if not added:
        pull = pull / (1 - share) if share < 1 else math.inf
    shift = distance(longest, pull)
    if not (math.isfinite(shift) and math.isfinite(share)):
        return None
    return Influence(added=added, columns=columns, shift=shift, spread=longest * shift, share=share)


def _of_widest(
    model: Family, columns: int, longest: float, widest: float, *, added: bool
) -> Influence | None:
    """Return the influence where zᵀF″(m)⁻¹z ≤ Λ‖z‖² for every row z, Λ being ``widest``."""
    assert model.loss is not None
    bound, n = model.loss.bound, columns // model.loss.predictors
    norm = model.weighted_norm(n)
    pull = bound.score * norm * math.sqrt(widest)
    share = bound.curvature * norm * model.longest(n) * widest
    found = of_any_record(longest, pull, share, columns, added=added, room=ROOM)
    return found and replace(found, stated=model.loss.stated)


def _of_all_ranks(model: Family, found: Influence | None) -> Influence | None:
    """Return the influence for a loss of any number of predictors."""
    return found if found is None or model.loss.predictors == 1 else _spread(found)


def _spread(found: Influence) -> Influence:
    """Return an influence that covers an own curvature of any rank.

    A record of several predictors has a curvature of as many ranks, each up to a. All precisions
    then lie from e^{−s} to e^{s} + a (added), or from e^{−s}(1 − a) to e^{s} (removed): within the
    factors e^{∓s′} of a larger spread s′ without own curvature.
    """
    s, a = found.spread, found.share
    wider = math.log(math.exp(s) + a) if found.added else s - math.log1p(-a)
    return replace(found, spread=wider, share=0.0)


def _change(mode: Peak, third: Tensor | None, shift: float) -> float:
    """Return a bound on the change of F″ over a shift, in units of F″(m): ‖T₃‖t + ½(ht)²e^{ht}.

    T₃ is the third derivative of F, ‖T₃‖ the spectral norm of it as a matrix (n, n²), so that
    ‖T₃[Δ]‖ ≤ ‖T₃‖t; the rest is the fourth, as |ℓ⁗| ≤ M²ℓ″ and ℓ″ grows by at most e^{ht}. Rows
    that the shift may carry across a kink are left out of T₃: theirs grows by at most e^{ht} − 1.
    """
    ht, near = mode.longest * shift, 0.0
    if third is None:
        records, eye = mode.posterior.records, torch.zeros(1, len(mode.point)).double()
        (third,) = records.sum(methodcaller("tensors", mode.point, mode.root, 1, shift))
        crossing = mode.posterior.near(mode.point, mode.root, shift)
        bend = unpack(crossing.bends(mode.point, mode.root, eye).T)[0]
        near = math.expm1(ht) * float(torch.linalg.eigvalsh(bend)[-1])
    flat = unpack(third).flatten(1)
    turned = float(torch.linalg.matrix_norm(flat, 2)) * shift
    return turned + near + 0.5 * mode.none.excess(1) * ht**2 * math.exp(ht)


def of_mode(
    model: Family, mode: Peak, third: Tensor | None = None, *, added: bool
) -> Influence | None:
    """Return how far any conceivable record moves this table's mode.

    Args:
        model: has a loss.
        mode: the fit.
        third: T₃, packed, (n(n + 1)/2, n); None if it is to be computed, as where rows near a kink
            are left out of it.
        added: whether the record is added.
    """
    most = min(widest(model, mode.root @ mode.root.T), 1 / mode.posterior.precision)
    found = _of_widest(model, len(mode.point), mode.longest, most, added=added)
    if found is None:
        return None
    change = _change(mode, third, found.shift)
    spread = -math.log1p(-change) if change < 1 else math.inf
    if spread < found.spread:
        # A removed record's own curvature is a share of F″ at the new mode.
        share = found.share if added else found.share * math.exp(spread)
        if added or share < 1:
            found = replace(found, spread=spread, share=share)
    return _of_all_ranks(model, found)


def of_any_table(model: Family, columns: int, *, added: bool) -> Influence | None:
    """Return how far any conceivable record moves the fit to any table, from public numbers.

    The fit is the computed N(m, H⁻¹) with H the Hessian at m, where m may be :data:`EXACT` standard
    deviations from the mode; rounding in F′ and H is far smaller.

    Args:
        model: weights its records; without weights, or with a weak prior, nothing is proven.
        columns: the number of weights, of all predictors.
        added: whether the record is added.

    Returns:
        None where nothing is proven.

    >>> from bdpvi.models.logistic import BayesianLogisticRegression
    >>> round(of_any_table(BayesianLogisticRegression(), 6, added=True).shift, 3)
    0.318
    """
    assert model.loss is not None
    n, size = columns // model.loss.predictors, model.loss.bound.concordance
    least = model.precision(n)
    longest = size * model.longest(n) / math.sqrt(least)
    found = _of_all_ranks(model, _of_widest(model, columns, longest, 1 / least, added=added))
    return found if found and found.spread < _WIDEST else None

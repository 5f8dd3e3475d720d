"""How far one record, in the data or merely conceivable, moves the mode and the curvature."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bdpvi.bayesian.mode.classes import part_of
from bdpvi.bayesian.mode.objective import EXACT, Peak, distance
from bdpvi.bayesian.optimum.packed import unpack
from bdpvi.models.family import Family
from bdpvi.privacy.conceivable import Influence

ROOM, _WIDEST = 10 * EXACT, 4.0
"""Addition to a record's pull as two fits end within :data:`EXACT` of their modes, and the largest
spread it covers: F′ at one is EXACT in its own norm, at the other (e^s + a)^½ < 9 times."""


_MANY = 400
"""The most weights for which the search of :func:`widest` is worth its time."""
_SHARPER = (1e1, 1e2, 1e3, 1e4)
"""How sharply the largest eigenvalue counts, in turn."""


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


def boxes(model: Family, weights: int) -> list[list[int]]:
    """Return groups of a row's columns that are at most ``limit`` long; none without a bound.

    A category is a group, as its columns are scaled together.

    >>> from bdpvi.models.poisson import BayesianPoissonRegression
    >>> boxes(BayesianPoissonRegression.bounded(largest=4, levels=((1, 2),)), 5)
    [[1, 2], [0], [3]]
    """
    if not model.intercept or math.isinf(model.longest(weights)):
        return []
    grouped = {at for group in model.levels for at in group}
    alone = [[at] for at in range(weights - 1) if at not in grouped]
    return [list(group) for group in model.levels] + alone


def widest(model: Family, covariance: Tensor) -> float:
    r"""Return Λ with zᵀAz ≤ Λ‖z‖² for the covariance A and every row z that is conceivable.

    A row's column c of ones times :attr:`.Family.constant` bounds its others: Σ_{j∈g} z_j² ≤ ρ z_c²
    for every group g of :func:`boxes`, ρ = (limit/constant)². So for every μ ≥ 0

        zᵀAz ≤ zᵀ(A + Σ_g μ_g (ρ e_c e_cᵀ − Σ_{j∈g} e_j e_jᵀ))z ≤ λ_max(…) ‖z‖²

    (the S-procedure; without it Λ is the largest eigenvalue of A, whose eigenvector may not be near
    any row). Any μ is rigorous; a search minimises the convex right side, smoothed. Of several
    predictors the rows are v ⊗ z, v the score, and each inequality is multiplied by ‖v‖².

    Args:
        model: has a loss.
        covariance: A, (n, n), n the number of weights in all.
    """
    from scipy.optimize import minimize  # takes a while to load

    top, predictors = float(torch.linalg.eigvalsh(covariance)[-1]), model.loss.predictors
    n = len(covariance) // predictors
    groups = boxes(model, n) if len(covariance) <= _MANY else []
    if not groups or model.limit is None:
        return top
    signs = torch.zeros(len(groups), n, dtype=torch.float64)
    signs[:, -1] = (model.limit / model.constant) ** 2
    for row, group in zip(signs, groups, strict=True):
        row[group] = -1
    signs, least, mu = signs.repeat_interleave(predictors, 1), 1.0, torch.zeros(len(groups)).numpy()

    def largest(mu: Any, sharp: float) -> tuple[float, Any]:
        size, axes = torch.linalg.eigh(covariance / top + (torch.tensor(mu) @ signs).diag())
        weights, value = (sharp * size).softmax(0), (sharp * size).logsumexp(0) / sharp
        return float(value), (signs @ (axes.square() @ weights)).numpy()

    for sharp in _SHARPER:
        mu = minimize(
            largest, mu, (sharp,), "L-BFGS-B", True, bounds=[(0, None)] * len(mu),
            options={"maxiter": 100},
        ).x  # fmt: skip
        exact = covariance / top + (torch.tensor(mu) @ signs).diag()
        least = min(least, float(torch.linalg.eigvalsh(exact)[-1]))
    return least * top * (1 + 1e-9)  # rounding of eigenvalues


def _change(mode: Peak, third: Tensor | None, shift: float) -> float:
    """Return a bound on the change of F″ over a shift, in units of F″(m): ‖T₃‖t + ½(ht)²e^{ht}.

    T₃ is the third derivative of F, ‖T₃‖ the spectral norm of it as a matrix (n, n²), so that
    ‖T₃[Δ]‖ ≤ ‖T₃‖t; the rest is the fourth, as |ℓ⁗| ≤ M²ℓ″ and ℓ″ grows by at most e^{ht}. Rows
    that the shift may carry across a kink are left out of T₃: theirs grows by at most e^{ht} − 1.
    """
    ht, near = mode.longest * shift, 0.0
    if third is None:
        records, eye = mode.posterior.records, torch.zeros(1, len(mode.point)).double()
        (third,) = records.sum(part_of, "tensors", mode.point, mode.root, 1, shift)
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

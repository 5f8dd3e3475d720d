r"""How far any conceivable record moves a full-rank Gaussian at the ELBO's optimum.

Of bounded logistic regression the optimum N(m, S) has Σ ωᵣz + λm = 0 and S⁻¹ = A = λI + Σ ωv zzᵀ,
with r, v = E ℓ′, E ℓ″ of each record under the Gaussian; let p, κ = E ℓ‴/v, E ℓ⁗/v. As
ℓ⁗/ℓ″ = −½ + (3/2)(ℓ‴/ℓ″)² and ℓ″ = |ℓ′|(1 − |ℓ′|), Jensen's inequality gives

    (i) |p|, |κ| ≤ 1,   (ii) κ ≥ −½ + (3/2)p²,   (iii) v ≤ |r|(1 − |r|).

*Path.* A record's weight goes from 0 to ω, or back. The optimum moves by θ ↦ θ + u + X(θ − m), X
symmetric, and in units of S, by Price's theorem, (u, X) is the minimum of ½M + ω(r zᵀu + v zᵀXz),

    M = uᵀAu + 2 Σ ωvp (zᵀu)(zᵀXz) + Σ ωvκ (zᵀXz)² + 2‖X‖²,   A = I.

*Lemma.* All rows are at most h ≤ √2 long, c = ω‖z‖ of the record: ‖u‖ ≤ (1 + h²/2)c and
‖X‖ ≤ hc/(2 − h²/2). For with α = zᵀu, β = zᵀXz/‖z‖ one has ‖X‖² ≥ Σ ωvβ². Minimised over each β,
M ≥ uᵀu − Σ ωvα² ‖z‖²p²/(2 + κ‖z‖²), by (ii) at least 2/(2 + h²) ‖u‖²; minimised over u,
M ≥ 2‖X‖² + Σ ωv(κ − p²)‖z‖²β² ≥ (2 − h²/2)‖X‖². By (iii) the record's pull is largest at |r| = 1,
v = 0. The conceivable record itself may be longer than h, and has at most the share a of A: hence
``taken``, ``bent`` and ``mixed`` in :meth:`Course.rates`.

*Theorem.* All other v change by d ln v/dt ≤ h‖u‖ + h²‖X‖ = ds/dt, so that their sum stays within
e^{±s}, and norms in S within (e^s/(1 − a))^½, without 1 − a of an added record. The shift in units
of S at the start grows by at most that times ‖u‖. At all times A ≥ λI and M ≥ λE|u + X(θ − m)|², so
the velocity is at most C/λ long. Rates rise with s: an upper sum bounds s and the shift at t = 1.

*Room.* A fit is within ν of its optimum: of its own units, g = E ∇U and R = A − S⁻¹ have
|g|² + ½‖R‖² ≤ ν². Let g and R fall to 0 in proportion. The same M, with A within 2ν of I, and
h² ≤ 2.01 give |u| ≤ 6.4ν and ‖X‖ ≤ 2.95ν in units that change by less than 1 %, for ν ≤ 10⁻³. The
optimum is hence within 10ν of the fit, and all precisions within e^{±10ν}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bdpvi.bayesian.inference.guide import Guide
from bdpvi.bayesian.optimum.box import widest
from bdpvi.bayesian.optimum.elbo import Point, Records
from bdpvi.guides.full_rank import FullRank
from bdpvi.models.contract import Model
from bdpvi.models.family import smooth
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy.conceivable import Influence

EXACT = 1e-8
"""Largest ν of a fit with a certificate."""
_ROOM = 10 * EXACT
_ROUNDING = 1e-13
"""Error of E ℓ′ and E ℓ″ by quadrature, and of their sums, over the sum of all terms' norms."""
_STEPS = 10_000


@dataclass(frozen=True)
class Course:
    """How a conceivable record moves an optimum, as its weight grows or falls.

    Attributes:
        norm: C, the largest ω‖z‖.
        row: B, the largest ‖z‖.
        precision: λ, at least B²/2.
        longest: h, of the data's rows in S at the start.
        widest: Λ with zᵀSz ≤ Λ‖z‖² for every row.
        added: whether the record is added.
    """

    norm: float
    row: float
    precision: float
    longest: float
    widest: float
    added: bool

    @property
    def share(self) -> float:
        """The record's own curvature is at most a = ¼CBΛ in units of A."""
        return self.norm * self.row * self.widest / 4

    @property
    def fastest(self) -> float:
        """The largest ds/dt of any table: B(C/λ)(1 + B²/λ)^½."""
        top = self.row**2 / self.precision
        return self.row * self.norm / self.precision * math.sqrt(1 + top)

    def rates(self, s: float) -> tuple[float, float]:
        """Return bounds on the speeds of s and of the shift where s is at most this.

        They do not fall as s rises. A record that is longer than h gets its own place in the lemma:
        Σ ωvα²‖z‖²/(2 + ‖z‖²) ≤ ``taken`` |u|², Σ ωvβ²‖z‖² ≤ ``bent`` ‖X‖² and
        Σ ωv|αβ|‖z‖ ≤ ``mixed`` |u| ‖X‖. Its pull on u is largest at |r| = 1, as ``own2 · taken``
        ≤ 2 − ``bent``/2; that on X at |r| = (``own`` + ``mixed``)/(2 ``own``).
        """
        grown = math.exp(s) / (1 if self.added else 1 - self.share)
        most = self.row**2 / self.precision
        length2 = min(grown * self.longest**2, most)
        own2 = min(grown * self.widest * self.row**2, most)
        pull = self.norm * math.sqrt(min(grown * self.widest, 1 / self.precision))
        share = min(grown * self.share, self.norm * self.row / (4 * self.precision))
        length, own = math.sqrt(length2), math.sqrt(own2)
        taken = length2 / (2 + length2)
        taken += share * (own2 / (2 + own2) - taken)
        bent = length2 + share * (own2 - length2)
        mixed = length + share * (own - length)
        u = pull / (1 - taken)
        x = pull * (own + mixed) ** 2 / (4 * own) / (2 - bent / 2)
        return min(length * u + length2 * x, self.fastest), math.sqrt(grown) * u

    def end(self) -> tuple[float, float]:
        """Return bounds on the shift and on s once the record is there, or gone.

        s rises in steps, each at the speeds of its end.

        >>> shift, s = Course(1.0, 2.0, 8.0, 0.2, 0.01, True).end()
        >>> round(shift, 4), round(s, 4)
        (0.1031, 0.021)
        """
        step, t, s, shift = self.fastest / _STEPS, 0.0, 0.0, 0.0
        while t < 1:
            s += step
            faster, moving = self.rates(s)
            part = 1 - t if faster * (1 - t) <= step else step / faster
            t, shift = t + part, shift + moving * part
        return shift, s


def _course(
    model: Model, weights: int, longest: float, wide: float, *, added: bool
) -> Course | None:
    """Return the course where zᵀSz ≤ Λ‖z‖² for every row; None for a model without the bounds."""
    known = smooth(model)
    if not isinstance(known, BayesianLogisticRegression) or not known.weighs:
        return None
    row, precision = known.longest(weights), known.precision(weights)
    norm = min(known.weighted_norm(weights), row)
    if not row**2 <= 2 * precision or not math.isfinite(row):
        return None
    wide = min(wide, 1 / precision)
    return Course(norm, row, precision, min(longest, row * math.sqrt(wide)), wide, added)


def _of_course(course: Course, columns: int) -> Influence:
    """Return the influence on fits that are within :data:`EXACT` of their optima.

    With ρ = 10ν for the room: the shift is at most e^{ρ/2} times that of the optima, and ρ of both
    fits more, of the other fit in units that are at most 1 + e^s times as large. Precisions change
    by ρ of both fits; against the other terms' that is at most 6ρe^{2s}.
    """
    shift, s = course.end()
    return Influence(
        added=course.added,
        columns=columns,
        shift=shift + _ROOM * (2 + shift + math.exp(s)),
        spread=s + 6 * _ROOM * math.exp(2 * s),
        share=course.share * (1 + 3 * _ROOM),
    )


def of_any_table(model: Model, columns: int, *, added: bool) -> Influence | None:
    """Return how far any conceivable record moves the optimum of any table, by public numbers.

    Args:
        model: weights its records.
        columns: n, the number of weights.
        added: whether the record is added.

    Returns:
        None where nothing is proven: for another model than bounded logistic regression, or a
        prior's precision below B²/2.

    >>> found = of_any_table(BayesianLogisticRegression(), 6, added=True)
    >>> round(found.shift, 3), round(found.spread, 3), round(found.share, 4)
    (0.424, 0.337, 0.0625)
    """
    course = _course(model, columns, math.inf, math.inf, added=added)
    return None if course is None else _of_course(course, columns)


def of_optimum(model: Model, point: Point, longest: float, *, added: bool) -> Influence | None:
    """Return how far any conceivable record moves this table's optimum.

    Args:
        model: weights its records.
        point: the fit, within :data:`EXACT` of the optimum.
        longest: h, of the data's rows in units of the fit.
        added: whether the record is added.
    """
    known = smooth(model)
    if known is None:
        return None
    wide = widest(known, point.root.cpu() @ point.root.cpu().T) * (1 + 2 * _ROOM)
    course = _course(model, len(point.mean), longest * (1 + _ROOM), wide, added=added)
    return None if course is None else _of_course(course, len(point.mean))


def certifies(model: Model, guide: Guide, columns: int) -> bool:
    """Return whether draws from the optimum have a range for any record of any table."""
    own = type(guide) is FullRank and guide.noise_scale is None and not guide.ridge
    return own and of_any_table(model, columns, added=False) is not None


def residual(point: Point) -> tuple[float, float]:
    """Return ν, with quadrature and rounding in it, and h, the longest row in units of the fit."""
    longest: list[float] = [0.0]

    def sizes(block: Records) -> tuple[Tensor]:
        length = torch.linalg.vector_norm(block.x @ point.root, dim=1)
        longest.append(float(length.max()) if len(length) else 0.0)
        return ((block.weight * (length + length.square())).sum(),)

    (total,) = point.objective.sums(sizes)
    return point.gradient_norm + _ROUNDING * float(total), max(longest)

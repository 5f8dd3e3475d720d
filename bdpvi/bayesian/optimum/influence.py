r"""How far any conceivable record moves a Gaussian at the ELBO's optimum.

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
``taken``, ``bent`` and ``mixed`` in :meth:`RecordPath.rates`.

*Theorem.* All other v change by d ln v/dt ≤ h‖u‖ + h²‖X‖ = ds/dt, so that their sum stays within
e^{±s}, and norms in S within (e^s/(1 − a))^½, without 1 − a of an added record. The shift in units
of S at the start grows by at most that times ‖u‖. At all times A ≥ λI and M ≥ λE|u + X(θ − m)|², so
the velocity is at most C/λ long. Rates rise with s: an upper sum bounds s and the shift at t = 1.

*The curvature turns slowly.* With T₃ = Σ ωvp z⊗z⊗z and T₄ = Σ ωvκ z⊗z⊗z⊗z at the start, A changes
by T₃[∫u] + T₄[∫X] and, as vp and vκ change by d(vp) ≤ v ds (|ℓ⁽⁵⁾|, |ℓ⁽⁶⁾| ≤ ℓ″), by at most
e^s − 1 − s more. T₃ and T₄ have a removed record's part too, at most a times its length and square.

*Room.* A fit is within ν of its optimum: of its own units, g = E ∇U and R = A − S⁻¹ have
|g|² + ½‖R‖² ≤ ν². Let g and R fall to 0 in proportion. The same M, with A within 2ν of I, and
h² ≤ 2.01 give |u| ≤ 6.4ν and ‖X‖ ≤ 2.95ν in units that change by less than 1 %, for ν ≤ 10⁻³. The
optimum is hence within 10ν of the fit, and all precisions within e^{±10ν}.

*Mean field.* S⁻¹ = D = diag A and X is diagonal. In units of S, tr XAX = ‖X‖², so M, the lemma, s
and the shift in units of A are the same where h bounds rows in A⁻¹ and in S, and c and a too. Draws
feel the shift in units of D. With μ = λ_min(D^{−½}AD^{−½}) it is at most μ^{−½} times as large, or
as u = −A_t⁻¹(ωrz + T[X]), at most Cσ/k + μ^{−½}(C√Λ(e^s − 1)/k + (e^s/k)^½ ``mixed`` ‖X‖), with
σ = |D^½A⁻¹| and k is 1, or 1 − a for a removed record: A_t⁻¹z is at most the other terms' inverse
times z, which is within e^s − 1 of that at the start. The record's own curvature may lie on any of
D's entries. The room is 10ν/μ. Nothing holds for all tables: with collinear columns S shrinks with
N, and the mean still moves by C/λ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bdpvi.bayesian.inference.guide import Guide
from bdpvi.bayesian.optimum.box import widest
from bdpvi.bayesian.optimum.displacements import norm
from bdpvi.bayesian.optimum.elbo import Point, inverse_root
from bdpvi.bayesian.optimum.weighted import Weighted
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
class RecordPath:
    """How a conceivable record moves an optimum, as its weight grows or falls.

    Attributes:
        norm: C, the largest ω‖z‖.
        row: B, the largest ‖z‖.
        precision: λ, at least B²/2.
        longest: h, of the data's rows in S at the start.
        widest: Λ with zᵀSz ≤ Λ‖z‖² for every row.
        added: whether the record is added.
        field: σ and μ of a mean-field Gaussian; its shift is in units of S, not of A⁻¹.
    """

    norm: float
    row: float
    precision: float
    longest: float
    widest: float
    added: bool
    field: tuple[float, float] | None = None

    @property
    def share(self) -> float:
        """The record's own curvature is at most a = ¼CBΛ in units of A."""
        return self.norm * self.row * self.widest / 4

    @property
    def fastest(self) -> float:
        """The largest ds/dt of any table: B(C/λ)(1 + B²/λ)^½."""
        top = self.row**2 / self.precision
        return self.row * self.norm / self.precision * math.sqrt(1 + top)

    def rates(self, s: float) -> tuple[float, float, float]:
        """Return bounds on the speeds of s, of the shift and of ∫‖X‖ where s is at most this.

        They do not fall as s rises. A record that is longer than h gets its own place in the lemma:
        Σ ωvα²‖z‖²/(2 + ‖z‖²) ≤ ``taken`` |u|², Σ ωvβ²‖z‖² ≤ ``bent`` ‖X‖² and
        Σ ωv|αβ|‖z‖ ≤ ``mixed`` |u| ‖X‖. Its pull on u is largest at |r| = 1, as ``own2 · taken``
        ≤ 2 − ``bent``/2; that on X at |r| = (``own`` + ``mixed``)/(2 ``own``).
        """
        keep = 1 if self.added else 1 - self.share
        grown = math.exp(s) / keep
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
        shift = math.sqrt(grown) * u
        if self.field is not None:
            wide, least = self.field[0], math.sqrt(self.field[1])
            turned = self.norm * math.sqrt(self.widest) * math.expm1(s) / keep
            turned += math.sqrt(grown) * mixed * x
            shift = min(shift / least, self.norm * wide / keep + turned / least)
        return min(length * u + length2 * x, self.fastest), shift, grown * x

    def end(self) -> tuple[float, float, float]:
        """Return bounds on the shift, on s and on ∫‖X‖ once the record is there, or gone.

        s rises in steps, each at the speeds of its end.

        >>> [round(one, 4) for one in RecordPath(1.0, 2.0, 8.0, 0.2, 0.01, True).end()]
        [0.1031, 0.021, 0.0103]
        """
        step, t, s, shift, turn = self.fastest / _STEPS, 0.0, 0.0, 0.0, 0.0
        while t < 1:
            s += step
            faster, moving, turning = self.rates(s)
            part = 1 - t if faster * (1 - t) <= step else step / faster
            t, shift, turn = t + part, shift + moving * part, turn + turning * part
        return shift, s, turn

    def change(self, end: tuple[float, float, float], bends: tuple[float, float]) -> float:
        """Return a bound on the change of the other terms' sum, over that sum at the start.

        Args:
            end: of :meth:`end`.
            bends: ‖T₃‖ and ‖T₄‖, as matrices with n and n² rows.

        >>> course = RecordPath(1.0, 2.0, 8.0, 0.2, 0.01, True)
        >>> round(course.change(course.end(), (0.02, 0.004)), 5)
        0.00233
        """
        shift, s, turn = end
        found = bends[0] * shift + bends[1] * turn + math.expm1(s) - s
        if self.added:
            return found
        own = self.row * math.sqrt(self.widest)
        return (found + self.share * (own * shift + own**2 * turn)) / (1 - self.share)


def _record_path(
    model: Model,
    weights: int,
    longest: float,
    wide: float,
    field: tuple[float, float] | None = None,
    *,
    added: bool,
) -> RecordPath | None:
    """Return the course where zᵀSz ≤ Λ‖z‖² for every row; None for a model without the bounds."""
    known = smooth(model)
    if not isinstance(known, BayesianLogisticRegression) or not known.weighs:
        return None
    row, precision = known.longest(weights), known.precision(weights)
    pull = min(known.weighted_norm(weights), row)
    if not row**2 <= 2 * precision or not math.isfinite(row):
        return None
    wide = min(wide, 1 / precision)
    return RecordPath(pull, row, precision, min(longest, row * math.sqrt(wide)), wide, added, field)


def _influence_of(course: RecordPath, columns: int, bends: tuple[float, float] | None) -> Influence:
    """Return the influence on fits that are within :data:`EXACT` of their optima.

    With ρ = 10ν for the room: the shift is at most e^{ρ/2} times that of the optima, and ρ of both
    fits more, of the other fit in units that are at most 1 + e^s times as large. Precisions change
    by ρ of both fits; against the other terms' that is at most 6ρe^{2s}. T₃ and T₄ are of the fit:
    their units change by less than 2ρ, and their v by less than 2ρ.
    """
    shift, s, turn = course.end()
    if bends is not None:
        change = course.change((shift, s, turn), bends) * (1 + 4 * _ROOM) + 2 * _ROOM * s
        s = min(s, -math.log1p(-change) if change < 1 else s)
    room, share = _ROOM, course.share
    if course.field is not None:  # of the other fit μ is at least e^{−2s}/3 times as large
        room *= 3 * math.exp(2 * s) / course.field[1]
        s, share = math.log(math.exp(s) + share) if course.added else s - math.log1p(-share), 0.0
    return Influence(
        added=course.added,
        columns=columns,
        shift=shift + room * (2 + shift + math.exp(s)),
        spread=s + 6 * room * math.exp(2 * s),
        share=share * (1 + 3 * room),
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
    course = _record_path(model, columns, math.inf, math.inf, added=added)
    return None if course is None else _influence_of(course, columns, None)


def of_optimum(
    model: Model,
    point: Point,
    longest: float,
    bends: tuple[float, float] | None = None,
    *,
    added: bool,
) -> Influence | None:
    """Return how far any conceivable record moves this table's optimum.

    Args:
        model: weights its records.
        point: the fit, within :data:`EXACT` of the optimum.
        longest: h, of the data's rows in units of the fit.
        bends: ‖T₃‖ and ‖T₄‖ there, if known.
        added: whether the record is added.
    """
    known = smooth(model)
    if known is None:
        return None
    covariance, field, room = (point.root @ point.root.T).cpu(), None, _ROOM
    wide = widest(known, covariance)
    if point.objective.diagonal:
        bends, deviation = None, covariance.diagonal().sqrt()
        inverse = torch.linalg.inv(point.curvature).cpu()  # A⁻¹
        least = float(
            torch.linalg.eigvalsh(deviation * point.curvature.cpu() * deviation[:, None])[0]
        )
        room, wide = _ROOM / least, max(wide, widest(known, inverse))
        across = norm(inverse / deviation[:, None])
        field = (
            across * (1 + room) + 2 * room / known.precision(len(deviation)) ** 0.5,
            least * (1 - 4 * room),
        )
    longest, wide = longest * (1 + room), wide * (1 + 2 * room)
    course = _record_path(model, len(point.mean), longest, wide, field, added=added)
    return None if course is None else _influence_of(course, len(point.mean), bends)


def certifies(model: Model, guide: Guide, columns: int) -> bool:
    """Return whether draws from the optimum have a range for any record, for the table at hand."""
    from bdpvi.guides import FullRank, MeanField  # late: they load Pyro

    if type(guide) not in (FullRank, MeanField) or guide.noise_scale is not None or guide.ridge:
        return False
    return of_any_table(model, columns, added=False) is not None


def residual(point: Point) -> tuple[float, float]:
    """Return ν, with quadrature and rounding in it, and h, the longest row in units of the fit.

    Of a mean-field fit it is the longest in A⁻¹ as well.
    """
    longest: list[float] = [0.0]
    other = inverse_root(point.curvature) if point.objective.diagonal else point.root

    def sizes(block: Weighted) -> tuple[Tensor]:
        lengths = [torch.linalg.vector_norm(block.x @ one, dim=1) for one in (point.root, other)]
        length = torch.maximum(*lengths)
        longest.append(float(length.max()) if len(length) else 0.0)
        return ((block.weight * (length + length.square())).sum(),)

    (total,) = point.objective.sums(sizes)
    return point.gradient_norm + _ROUNDING * float(total), max(longest)

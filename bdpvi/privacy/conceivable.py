r"""The cost of any conceivable record, given bounds on how it moves a Gaussian.

In units of the first Gaussian the pair is P = N(0, I) and Q = N(β, K⁻¹) in n coordinates, with
‖β‖ ≤ b. One record turns the precision I into K in two ways: it moves the mode, which changes the
curvature of all other terms by factors from lo = e^{−s} to hi = e^{s}, and it adds or removes its
own curvature, a matrix of rank one (:mod:`bdpvi.bayesian.mode.influence` and, of full-rank
Gaussians at an ELBO's optimum, :mod:`bdpvi.bayesian.optimum.influence` give b, s and a).

*Structure.* Take e₁ along β and reveal x_⊥, all other coordinates, first. Their means are 0 under
both; their precision under Q is K's Schur complement. Its eigenvalues lie between lo and hi, except
one, which by interlacing reaches up to k_x (added) or down to it (removed). A coordinate N(0, 1)
against N(0, 1/k), lo ≤ k ≤ hi, is the image of one with k = lo or k = hi under a channel, so the
true pair is no easier to tell apart than these extremes (Blackwell 1953). Given x_⊥, the first
coordinate is N(0, 1) against N(b + w·x_⊥, 1/K₁₁). Write x₂ for x_⊥ along w; then

    δ(ε) ≤ max E[δ₁(ε − L(y), b + w x₂, 1/K₁₁)],   L(y) = Σ ½((k_i − 1) y_i² − ln k_i),

y ~ N(0, I), x₂ ~ N(0, 1), corr(x₂, y_j) = ϱ for one j. With m, ρ = (hi ± lo)/2, φ ∈ [0, π] and
ψ ∈ [0, 1] the share of the record's own direction along β,

    |w| ≤ (ρ sin φ + a hi √(ψ(1 − ψ)))/K₁₁
    added:    K₁₁ = m + ρ cos φ + aψ,        k_x = hi + a(1 − ψ)
    removed:  K₁₁ = (m + ρ cos φ)(1 − aψ),   k_x = lo/(1 + a(1 − ψ)/(1 − a)).

Every choice of these numbers is itself a pair of Gaussians, so its δ is inverted with proven
error (:mod:`bdpvi.privacy.inversion`). A search finds the maximum over the choices, and its
result is raised by :data:`SLACK`. With the roles of P and Q exchanged the same holds for
1/hi, 1/lo; a removed record is then an added one with a/((1 − a) lo) and b² hi, an added one a
removed one with a/(hi + a) and b² (hi + a).

*Several draws.* A rotation turns k draws at temperatures τ into one block of n coordinates with the
mean b (Σ 1/τ)^½ and k − 1 blocks with the mean 0, each with lo or hi, in some of them with one
coordinate at hi + a or lo(1 − a).

*Closed form.* With e(v) = −½[ln(1 − λ(1/v − 1)) − λ ln v] for a variance v of Q, the log-moment of
every such pair is at most a sum over the ends of the eigenvalues' ranges
(:meth:`Influence.log_moment`). It needs no search and adds up over releases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Any

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.privacy import conversions
from bdpvi.privacy.event import WITHOUT
from bdpvi.privacy.gaussian import log_of
from bdpvi.privacy.inversion import LogMgf, largest_bound

SLACK = 0.02
"""Relative increase of the maximum that the search finds."""
_ORDERS = torch.logspace(-1, 5, 481, dtype=torch.float64, device="cpu")
_POINTS = 17
"""Points of the search in each of φ, ψ and w."""
_ROUNDS = 3
_AT_ONCE = 8
"""Orders at a time: few enough for a processor's cache."""
_SHARED = (0.0, 0.25, 0.5, 0.75, 1.0)
_COUNTS = 33
"""The most numbers of coordinates at hi to try."""


@dataclass(frozen=True)
class Influence:
    """How far any conceivable record moves a Gaussian N(m, H⁻¹), in units of that Gaussian.

    Attributes:
        added: whether the record is added to the data or removed.
        columns: n, the number of variables.
        shift: b, the largest distance of the means.
        spread: s: the precision of all other terms changes by factors from e^{−s} to e^{s}.
        share: a, the record's own curvature, below 1 for a removed record.
        stated: whether it follows from bounds that a model's author states, not from proven ones.

    Raises:
        ValueError: if a number is out of range.

    >>> one = Influence(added=True, columns=3, shift=0.1, spread=0.02, share=0.01)
    >>> f"{one.delta(0.3):.1e}"
    '7.7e-04'
    """

    added: bool
    columns: int
    shift: float
    spread: float
    share: float
    stated: bool = field(default=False, metadata={"absent": False})

    def __post_init__(self) -> None:
        validate.positive_int("columns", self.columns)
        for name in ("shift", "spread", "share"):
            validate.non_negative(name, getattr(self, name))
        if not self.added and not self.share < 1:
            raise ValueError(f"share must be below 1 where a record is removed, got {self.share}")

    def to_dict(self) -> dict[str, Any]:
        """Return its attributes as JSON types; ``stated`` only if it is true."""
        return {name: value for name, value in asdict(self).items() if name != "stated" or value}

    def delta(
        self, epsilon: float, direction: str = "", draws: int = 1, weight: float | None = None
    ) -> float:
        """Return a bound on δ(ε) of every conceivable record.

        Args:
            epsilon: ε ≥ 0.
            direction: order of the pair; if it ends in "D′‖D", the neighbour comes first.
            draws: k, over all releases.
            weight: Σ 1/τ over the draws, by default k.
        """
        weight = float(draws) if weight is None else weight
        closed = self._closed(epsilon, direction, draws, weight)
        case = _Case.of(self, direction.endswith(WITHOUT), draws, weight)
        return min(closed, (1 + SLACK) * _largest(case, epsilon), 1.0)

    def _closed(self, epsilon: float, direction: str, draws: int, weight: float) -> float:
        moments = self.log_moment(_ORDERS, direction, draws, weight)
        return float(conversions.delta(moments, _ORDERS, epsilon).min())

    def log_moment(
        self, order: Tensor, direction: str = "", draws: int = 1, weight: float | None = None
    ) -> Tensor:
        """Return a bound on λ D_{λ+1} of every conceivable record, by the closed form.

            g(λ) = k[(n − 1) max(e(v_lo), e(v_hi)) + max(e(v₁lo), e(v₁hi))]
                   + ½ λ(λ + 1) Σ1/τ b²/((1 + λ) v₁lo − λ),

        over the ranges of Q's variances in units of P, v₁ over all coordinates. e is convex with
        its minimum at v = 1, so its maximum over a range is at an end. If P is the neighbour, b² is
        multiplied by v₁lo, as k/((1 + λ)k − λ) decreases in the neighbour's precision k.

        Args:
            order: λ > 0, any shape.
            direction, draws, weight: as for :meth:`delta`.

        Returns:
            The bound, in the shape of ``order``; +inf where no moment is known.
        """
        reverse = direction.endswith(WITHOUT)
        case = _Case.of(self, reverse, draws, float(weight or draws))
        lo, hi, least, most = case.lo, case.hi, *case.ends
        shift2 = self.shift**2 / (most if reverse else 1.0)
        lam = order.double()

        def e(precision: float) -> Tensor:
            w = 1 - lam * (precision - 1)
            value = -0.5 * (w.clamp(min=0).log() + lam * math.log(precision))
            return value.where(w > 0, math.inf)

        own = torch.maximum(e(least), e(most))
        rest = (self.columns - 1) * torch.maximum(e(lo), e(hi)) if self.columns > 1 else 0.0
        w = (1 + lam) / most - lam
        of_means = 0.5 * lam * (lam + 1) * case.weight * shift2 / w.clamp(min=1e-300)
        return (draws * (own + rest) + of_means).where(w > 0, math.inf)


@dataclass(frozen=True)
class _Case:
    """One order of P and Q, with the form of the record's own curvature and its parameters."""

    added: bool
    columns: int
    shift2: float
    lo: float
    hi: float
    a: float
    draws: int
    weight: float

    @classmethod
    def of(cls, found: Influence, reverse: bool, draws: int, weight: float) -> _Case:
        lo, hi, a, b2 = math.exp(-found.spread), math.exp(found.spread), found.share, found.shift**2
        case = cls(found.added, found.columns, b2, lo, hi, a, draws, weight)
        if not reverse:
            return case
        case = replace(case, lo=1 / hi, hi=1 / lo)
        if found.added:
            return replace(case, added=False, a=a / (hi + a), shift2=b2 * (hi + a))
        return replace(case, added=True, a=a / ((1 - a) * lo), shift2=b2 * hi)

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest precision of any coordinate."""
        if self.added:
            return self.lo, self.hi + self.a
        return self.lo * (1 - self.a), self.hi

    @property
    def alone(self) -> float:
        """The precision of a coordinate that holds all of the record's own curvature."""
        return self.ends[1] if self.added else self.ends[0]


@lru_cache(maxsize=4096)
def _largest(case: _Case, epsilon: float) -> float:
    """Return the largest δ(ε) of a coordinate-wise search from several starts."""
    most = min(case.draws * case.columns, _COUNTS)
    counts = torch.linspace(0, 1, most, dtype=torch.float64).tolist()
    unit = torch.linspace(0, 1, _POINTS, dtype=torch.float64).tolist()
    angles = [math.pi * one for one in unit]
    bent = (0.0, 1.0) if case.draws > 1 else (1.0,)
    pairs = ((0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (0.0, 1.0), (1.0, 1.0))
    places = [(*pair, share) for pair in pairs for share in bent]
    starts = product(angles[::2], unit[::4], (1.0,), (1.0,), (0.0, 1.0), places)
    rows = [[*start[:5], *start[5]] for start in starts]
    best, value = _best(case, epsilon, rows)
    for _ in range(_ROUNDS):
        before = value
        for grids in (
            [
                *product(angles, unit, *([x] for x in best[2:])),
            ],
            [[*best[:2], w, shared, *best[4:]] for w in unit for shared in _SHARED],
            [[*best[:4], high, *place] for high in counts for place in places],
        ):
            found, reached = _best(case, epsilon, [list(row) for row in grids])
            if reached > value:
                best, value = found, reached
        if value <= before * (1 + 1e-4):
            break
    return value


def _best(
    case: _Case, epsilon: float, rows: Sequence[Sequence[float]]
) -> tuple[list[float], float]:
    """Return the row of choices with the largest δ(ε), and this δ."""
    choices = torch.tensor(rows, dtype=torch.float64).T
    index, delta = largest_bound(_log_mgf(case, choices), len(rows), epsilon)
    return [float(column[index]) for column in choices], delta


def _log_mgf(case: _Case, choices: Tensor) -> Callable[[Tensor | slice], LogMgf]:
    """Return the log moment generating function of every choice's privacy loss under P.

    Args:
        case: the influence.
        choices: (8, m), see the module: φ; ψ; w as a fraction of its maximum; ϱ; the share of the
            free coordinates that are at hi; 0 if y_j is at lo, 1 at hi, 2 at k_x; 1 if another
            coordinate is at k_x, which is not with 2; and the share of the other draws' blocks that
            have a coordinate with the own curvature.
    """
    phi, psi, share, rho, high, place, other, bent = choices
    middle, half, a = (case.hi + case.lo) / 2, (case.hi - case.lo) / 2, case.a
    first = middle + half * phi.cos()
    if case.added:
        first, k_x = first + a * psi, case.hi + a * (1 - psi)
    else:
        first, k_x = first * (1 - a * psi), case.lo / (1 + a * (1 - psi) / (1 - a))
    w = share * (half * phi.sin() + a * case.hi * (psi * (1 - psi)).clamp(min=0).sqrt()) / first
    y = torch.where(place == 2, k_x, torch.where(place == 1, case.hi, case.lo))
    alone = torch.ones_like(rho)
    # x₁ given y and z, where x₂ = ϱ y + (1 − ϱ²)^½ z: the precision of (x₁, y, z) under Q.
    pull = torch.stack([alone, -w * rho, -w * (1 - rho.square()).clamp(min=0).sqrt()], 1)
    own = torch.stack([torch.zeros_like(y), y, alone], 1)
    if case.columns == 1:  # no other coordinate
        pull, own = pull * torch.tensor([1.0, 0.0, 0.0]).to(pull), own.new_ones(own.shape)
        own[:, 0] = 0
    precision = first[:, None, None] * pull[:, :, None] * pull[:, None, :] + own.diag_embed()
    r, axes = torch.linalg.eigh(precision)
    b2 = r * axes[:, 0, :].square() * (case.weight * case.shift2)
    # Numbers of the other coordinates by precision: (m,) each.
    free = max(case.columns - 2, 0)
    with_kx = other * (free > 0)
    ups = ((free - with_kx) * high).round()
    single = ((case.draws - 1) * bent).round()
    blocks = (case.draws - 1) * case.columns - single
    more_up = (blocks * high).round()
    every = (
        (torch.full_like(y, case.hi), ups + more_up),
        (torch.full_like(y, case.lo), free - with_kx - ups + blocks - more_up),
        (k_x.expand_as(y), with_kx),
        (torch.full_like(y, case.alone), single),
    )
    many = [(k, count) for k, count in every if bool(count.any())]

    def of(rows: Tensor | slice) -> LogMgf:
        own = r[rows].T
        precisions = torch.cat([own, torch.stack([k[rows] for k, _ in many])]) if many else own
        x, logs, b = precisions - 1, precisions.log(), b2[rows].T
        count = torch.stack([*torch.ones_like(own), *(count[rows] for _, count in many)])

        def log_mgf(s: Tensor) -> Tensor:
            s = (s if s.ndim == 2 else s.unsqueeze(-1)).unsqueeze(1)  # (J, 1, m)
            weight = 1 - s * x
            known = weight.real > 0
            safe = torch.where(known, weight, 1.0)
            total = -count * (log_of(safe) + s * logs)
            total[:, : len(b)] += s * (s + 1) * b / safe[:, : len(b)]
            return torch.where((known | (count == 0)).all(1), 0.5 * total.sum(1), math.inf)

        return lambda s: torch.cat([*map(log_mgf, s.split(_AT_ONCE))])

    return of

"""The negative log posterior of a regression, its mode, and a proven distance from it.

F(w) = Σ ωᵢ ℓ(zᵢᵀw; yᵢ) + ½ λ‖w − w₀‖². For each loss |ℓ‴| ≤ Mℓ″ (:mod:`bdpvi.models.losses`), so
F″ changes slowly: with h the largest M‖zᵢ‖ in the norm of F″(m)⁻¹ and t a distance in that of
F″(m), F″ lies between e^{−ht} and e^{ht} of F″(m) within t (Bach, "Self-concordant analysis for
logistic regression", EJS 4, 2010, Proposition 1, for M = 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bdpvi.bayesian.mode.classes import Rows, part_of
from bdpvi.datasets.records import Records

EXACT = 1e-6
"""Largest distance of a fit from the mode, in standard deviations."""
_STEPS = 200


def _crossing(part: Rows, point: Tensor, root: Tensor, reach: float) -> Rows:
    return part.select(part.crossing(point, root, reach))


class _Largest(float):
    """A number whose sum with another is the larger of the two."""

    def __add__(self, other: float) -> _Largest:
        return _Largest(max(self, other))


def _longest(part: Rows, root: Tensor) -> tuple[_Largest, Rows]:
    lengths = part.lengths(root)
    return _Largest(lengths.max() if len(lengths) else 0.0), part.select(slice(0))


@dataclass(frozen=True, eq=False)
class LogPosterior:
    """F for some records.

    Attributes:
        records: input of the likelihood, :class:`Rows`, in memory or in blocks.
        count: N.
        precision: λ.
        centre: w₀, (n,).
    """

    records: Records[Any]
    count: int
    precision: float
    centre: Tensor

    def at(self, w: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return F(w), F′(w), (n,), and F″(w), (n, n), by one pass over the records."""
        value, pull, bend = self.records.sum(part_of, "derivatives", w)
        away = w - self.centre
        prior = self.precision * torch.eye(len(w), dtype=w.dtype)
        value = value + self.precision / 2 * away.square().sum()
        return float(value), pull + self.precision * away, bend + prior

    def near(self, point: Tensor, root: Tensor, reach: float) -> Rows:
        """Return the rows that a displacement of at most ``reach`` may carry across the kink."""
        found: Rows = self.records.sum(_crossing, point, root, reach)
        return found


@dataclass(frozen=True, eq=False)
class Peak:
    """The approximate mode of F.

    Attributes:
        posterior: F.
        point: m, (n,).
        root: L with L Lᵀ = F″(m)⁻¹, (n, n).
        longest: h, the largest M‖z‖ of the data's rows in the norm of F″(m)⁻¹.
        decrement: ν = ‖F′(m)‖ in that norm.
        course: F and ν of every step.
        none: no rows, of the kind of the data's.
    """

    posterior: LogPosterior
    point: Tensor
    root: Tensor
    longest: float
    decrement: float
    course: Tensor
    none: Rows

    @property
    def error(self) -> float:
        """Bound on the distance to the true mode, in standard deviations: −ln(1 − hν)/h."""
        return distance(self.longest, self.decrement)


def distance(longest: float, pull: float) -> float:
    """Return t with t (1 − e^{−ht})/(ht) = c: −ln(1 − hc)/h, +inf where hc ≥ 1.

    F′ rises by at least (1 − e^{−ht})/h over a distance t, so a pull of c moves the mode by at most
    this t.

    >>> round(distance(0.1, 1.0), 4), distance(1.0, 1.0)
    (1.0536, inf)
    """
    if not longest * pull < 1:
        return math.inf
    return pull if longest == 0 else -math.log1p(-longest * pull) / longest


def climbed(posterior: LogPosterior, start: Tensor, enough: float = 0.0) -> Peak:
    """Return the mode to rounding, by Newton steps that are halved until F falls.

    Args:
        posterior: F.
        start: where to begin, (n,).
        enough: ν from which on no further step is made.
    """
    w, course, best = start, [], math.inf
    here, gradient, curvature = posterior.at(w)
    for _ in range(_STEPS):
        factor = torch.linalg.cholesky(curvature)
        white = torch.linalg.solve_triangular(factor, gradient.unsqueeze(1), upper=False)
        decrement = float(white.norm())
        course.append([here, decrement])
        if decrement <= enough or (decrement < 1e-3 and decrement >= best / 2):
            break  # close enough, or only rounding error remains
        best = decrement if decrement < 1e-3 else math.inf
        step = torch.linalg.solve_triangular(factor.T, white, upper=True).squeeze(1)
        size, limit = 1.0, here + 1e-12 * abs(here)
        here, gradient, curvature = posterior.at(w - step)
        while here > limit and size > 1e-9:
            size /= 2
            here, gradient, curvature = posterior.at(w - size * step)
        w = w - size * step
    eye = torch.eye(len(w), dtype=w.dtype)
    root = torch.linalg.solve_triangular(factor, eye, upper=False).T
    longest, none = posterior.records.sum(_longest, root)
    made = torch.tensor(course, dtype=torch.float64)
    return Peak(posterior, w, root, float(longest), decrement, made, none)

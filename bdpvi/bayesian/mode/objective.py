"""The negative log posterior of a regression, its mode, and a proven distance from it.

F(w) = Σ ωᵢ ℓ(zᵢᵀw; yᵢ) + ½ λ‖w − w₀‖². For each loss |ℓ‴| ≤ Mℓ″ (:mod:`bdpvi.models.losses`), so
F″ changes slowly: with h the largest M‖zᵢ‖ in the norm of F″(m)⁻¹ and t a distance in that of
F″(m), F″ lies between e^{−ht} and e^{ht} of F″(m) within t (Bach, "Self-concordant analysis for
logistic regression", EJS 4, 2010, Proposition 1, for M = 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from operator import methodcaller

import torch
from torch import Tensor

from bdpvi._ground.types import Largest
from bdpvi.bayesian.optimum.newton import climb
from bdpvi.bayesian.optimum.weighted import Weighted
from bdpvi.datasets.records import Held, Spread

EXACT = 1e-6
"""Largest distance of a fit from the mode, in standard deviations."""


def _longest(part: Weighted, root: Tensor) -> tuple[Largest, Weighted]:
    lengths = part.lengths(root)
    return Largest(lengths.max() if len(lengths) else 0.0), part.select(slice(0))


@dataclass(frozen=True, eq=False)
class LogPosterior:
    """F for some records.

    Attributes:
        records: input of the likelihood, in memory or in blocks.
        count: N.
        precision: λ.
        centre: w₀, (n,).
    """

    records: Held[Weighted] | Spread[Weighted]
    count: int
    precision: float
    centre: Tensor

    def at(self, w: Tensor) -> Peak:
        """Return F and its derivatives at w, by one pass over the records."""
        value, pull, bend = self.records.sum(methodcaller("sums_at", w))
        away, eye = w - self.centre, torch.eye(len(w), dtype=w.dtype)
        factor = torch.linalg.cholesky(bend + self.precision * eye)
        root = torch.linalg.solve_triangular(factor, eye, upper=False).T
        value = float(value + self.precision / 2 * away.square().sum())
        return Peak(self, w, -value, root, root.T @ (pull + self.precision * away))

    def near(self, point: Tensor, root: Tensor, reach: float) -> Weighted:
        """Return the rows that a displacement of at most ``reach`` may carry across the kink."""
        found: Weighted = self.records.sum(methodcaller("near", point, root, reach))
        return found


@dataclass(frozen=True, eq=False)
class Peak:
    """A point at which F is known: at last the mode.

    Attributes:
        posterior: F.
        point: m, (n,).
        value: −F(m).
        root: L with L Lᵀ = F″(m)⁻¹, (n, n).
        white: LᵀF′(m), (n,).
    """

    posterior: LogPosterior
    point: Tensor
    value: float
    root: Tensor
    white: Tensor

    @property
    def gradient_norm(self) -> float:
        """ν = ‖F′(m)‖ in the norm of F″(m)⁻¹."""
        return float(self.white.norm())

    @cached_property
    def _longest(self) -> tuple[float, Weighted]:
        longest, none = self.posterior.records.sum(_longest, self.root)
        return float(longest), none

    @property
    def longest(self) -> float:
        """h, the largest M‖z‖ of the data's rows in the norm of F″(m)⁻¹."""
        return self._longest[0]

    @property
    def none(self) -> Weighted:
        """No rows, of the kind of the data's."""
        return self._longest[1]

    @property
    def error(self) -> float:
        """Bound on the distance to the true mode, in standard deviations: −ln(1 − hν)/h."""
        return distance(self.longest, self.gradient_norm)

    def step(self, size: float) -> Peak:
        """Return the point after this share of Newton's step."""
        return self.posterior.at(self.point - size * (self.root @ self.white))


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


def search_mode(posterior: LogPosterior, start: Tensor, enough: float = 0.0) -> list[Peak]:
    """Return the points of a search for the mode; the last is the mode to rounding.

    Args:
        posterior: F.
        start: where to begin, (n,).
        enough: ν from which on no further step is made.
    """
    return climb(posterior.at(start), enough, enough=lambda _: True, smallest=1.0)

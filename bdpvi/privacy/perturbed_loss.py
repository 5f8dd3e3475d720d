"""Objective perturbation of logistic regression: the privacy loss of one record in one minimum.

**Mechanism.** w = argmin over ℝᵈ of Σ_i ω_i l(y_i, z_iᵀw) + λ‖w − w₀‖²/2 + bᵀw, b ~ N(0, σ²I), y
in {0, 1}. A record's weight ω depends only on the record. l is the logistic loss with its residual
|y − p| clipped at k, 0 < k ≤ 1 (k = 1: no clipping). Public: λ, σ, k, w₀ and the bounds ω‖z‖ ≤ C
and ω‖z‖² ≤ λR. The intercept is one of the weights, so λ applies to it too. A public convex
quadratic in w may be added, as the proof needs DF ≽ λI only. μ = C/σ, m = μ²/2, G(μ, ε) is the
Gaussian mechanism's δ, φ the standard normal density.

**One record.** F(w), the gradient without b, is Lipschitz and λ-strongly monotone, and b = −F(w):
w has the density N(F(w); 0, σ²I) det DF(w) (change of variables, Evans and Gariepy, section 3.3).
One more record adds r ω‖z‖ u to F, u a unit vector given by (z, y) and r in [0, k] the residual at
w; and r(1 − r) ω zzᵀ to DF ≽ λI, or nothing where r is clipped. By the determinant lemma the log
ratio of the densities with and without it, w drawn *with* it, is at most

    r a + r²m + log(1 + r(1 − r)R),   a ~ N(0, 2m).

r depends on w and so on a; the largest value over r covers that. With h = k(1 − k)R, c = log(1 + h)
and R′ = R/(1 + h) the logarithm, being concave, is at most l₀ + r(1 − r)R′, l₀ = c − h/(1 + h). So
with Z = a + m and q = max(R′ − m, 0)

    loss ≤ Ψ(Z) = c + ka + k²m         where Z ≥ (2k − 1)q,
                  l₀ + (Z + q)²/4q     below that where Z > −q,
                  l₀                   elsewhere;

where q = 0, the larger of the first and the last. Drawn *without* the record the loss is at most
max(0, k²m − ka), less than Ψ(Z) in law. δ(ε) = E(1 − e^{ε−loss})₊ grows with the loss, so it is at
most that of Ψ (:meth:`.of_largest`), which from ε = l₀ + k²q on is G(kμ, ε − c). λ ≥ k² max
ω‖z‖²/ε is enough for that. For k = 1, where c = 0, the supremum over tables *is* G(μ, ε). Nothing
like this holds at a smaller ε: it is not Gaussian DP.

**A clipped residual** cannot stay both below the clip, where it has curvature, and large. In
units of σ along u let t ~ N(0, 1) be the slope of w with the record, and T(t) without it: T(t) =
t + μr, r falling with t, and T′ = 1 − v with v ≤ j/(1 + j), j = r(1 − r)R, by the determinant lemma
for H with the record in it; the other coordinates are the same on both sides, so δ is a mean over
them. Hence δ(ε) ≤ ∫ (φ(t) − e^ε φ(T)T′)₊ dt. Let W(t, r) = ∫_t^∞ (φ(s) − e^ε φ(s + μr))₊ ds, for
constant r: its integrand begins at s = α(r) = (ε − r²m)/rμ, and W(−∞, k) = G(kμ, ε).
Along the path the integrand plus dW/dt is 0 from t = α on; where t = α − x it is at most
v [g − φ(α) − (g − φ(t))/v]₊ with g = e^ε φ(t + μr) = φ(t)e^{rμx} ≥ φ(t), and, as v ≤ j/(1 + j) and
e^{rμx} ≥ 1 + rμx, at most v [φ(α − x)(1 − x/β) − φ(α)]₊, β = j/rμ. That is largest where
(α − x)(β − x) = 1. As ∫ v dt = μ∫|dr|,

    δ(ε) ≤ G(kμ, ε) + μ ∫₀ᵏ max_x [φ(α − x)(1 − x/β) − φ(α)]₊ dr.

With j the largest s(1 − s)R, r ≤ s ≤ k, in place of r(1 − r)R, the bound grows with both μ and R.
:meth:`.of_falling` bounds the integral from above on cells of r: φ(α − x)(1 − x/β) falls with α
> x and rises with β, and μ∫φ(α) dr is a difference of G. For k < 1 this is far below Ψ's: at the
least λ and k = ½ the noise is 18 % less, and 1 % above that for one interval of falling.

**Smaller records.** Let X ~ N(0, 1), f(l) = (1 − e^{ε−l})₊ or a mixture of such, and r(X) be where
l = r√(2m)X + r²m + J(r) is largest. By integration by parts the derivative of E f(l) in m is
E[(f″ + f′)r² + f′r′(X)/√(2m)] ≥ 0, as f″ + f′ is a point mass and r rises with X. So a record with
a smaller ω‖z‖ or ω‖z‖² costs less by either bound, and C and R cover all records.

The noise is 1.45 times less than by the bound of Redberg, Koskela and Wang (2023), where |a| costs
a factor of 2 and the determinant takes a part of ε: here a record's label fixes the
sign of its residual, and its curvature vanishes where its residual is largest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import erfcx, ndtr

from bdpvi.privacy.gaussian import equal_covariance
from bdpvi.privacy.loss_bounds import Array

_CELLS, _SPAN = 4000, 8.0
"""Cells of the residual, from k to e⁻⁸k, each 0.2 % of r wide; δ is then about 1 % too large."""
_AT_ONCE = 2**16
"""The most cells in memory at once, over all ε: few enough for a processor's cache."""
_FAR = 15.0
"""Cells farther out than this, in standard deviations, a δ of 1e-49 together, count as one."""


@dataclass(frozen=True)
class MinimumLoss:
    """The privacy loss of one record in one minimum; the module defines the symbols."""

    mu: float
    curvature: float
    k: float

    @property
    def m(self) -> float:
        """μ²/2."""
        return self.mu**2 / 2

    @property
    def c(self) -> float:
        """log(1 + h), the determinant's contribution at the clip."""
        return math.log1p(self._h)

    @property
    def least(self) -> float:
        """l₀, the least loss of Ψ."""
        return self.c - self._h / (1 + self._h)

    @property
    def q(self) -> float:
        """R′ − m, or 0."""
        return max(self.curvature / (1 + self._h) - self.m, 0.0)

    @property
    def top(self) -> float:
        """l₀ + k²q, the ε above which Ψ gives a Gaussian's δ."""
        return self.least + self.k**2 * self.q

    @property
    def at_zero(self) -> float:
        """Ψ(0), which remains however strong the noise."""
        q = self.curvature / (1 + self._h)
        return self.least + q / 4 if self.k > 0.5 else self.c

    @property
    def _h(self) -> float:
        return self.k * (1 - self.k) * self.curvature

    def delta(self, epsilon: Array) -> Array:
        """Return the smaller of the two bounds on δ, at ε of any sign."""
        result = self.of_largest(epsilon)
        if self.k == 1:  # no gain at or above the least λ
            return result
        positive = epsilon >= 0
        result[positive] = np.minimum(result[positive], self.of_falling(epsilon[positive]))
        return result

    def of_largest(self, epsilon: Array) -> Array:
        """Return E(1 − e^{ε−Ψ})₊, in closed form."""
        start = np.maximum(epsilon, self.least)
        gaussian = gaussian_delta(np.maximum(start, self.top) - self.c, (self.k * self.mu) ** 2)
        at = np.where(start >= self.top, gaussian, self._between(np.minimum(start, self.top)))
        below = np.minimum(epsilon - self.least, 0.0)
        return np.asarray(np.exp(below) * np.maximum(at, 0.0) - np.expm1(below))

    def _between(self, epsilon: Array) -> Array:
        """Return it if the tail begins in the parabola: e^{−Ψ} times Z's density is normal."""
        m, k, q = self.m, self.k, self.q
        if q == 0:
            return np.zeros_like(epsilon)
        narrow, end = math.sqrt(2 * m * q / (m + q)), (2 * k - 1) * q
        z = 2 * np.sqrt(q * (epsilon - self.least)) - q
        parabola = (
            math.sqrt(q / (m + q))
            * math.exp(-(m + q) / 4)
            * (ndtr(-z / narrow) - ndtr(-end / narrow))
        )
        tail = ndtr((m - end) / self.mu - k * self.mu)
        return np.asarray(
            ndtr((m - z) / self.mu)
            - np.exp(epsilon - self.c) * tail
            - np.exp(epsilon - self.least) * parabola
        )

    def of_falling(self, epsilon: Array) -> Array:
        """Return G(kμ, ε) and the bound on the integral, at ε ≥ 0."""
        parts = np.array_split(epsilon, 1 + len(epsilon) * _CELLS // _AT_ONCE)
        falls = np.concatenate([self._of_falling(part[:, None]) for part in parts])
        return np.asarray(gaussian_delta(epsilon, (self.k * self.mu) ** 2) + falls)

    def _of_falling(self, epsilon: Array) -> Array:
        """Return the bound on the integral."""
        mu, m = self.mu, self.m
        edges = self.k * np.exp(np.linspace(0, -_SPAN, _CELLS + 1))
        peak = min(self.k, 0.5)
        highest = self.curvature * peak * (1 - peak)
        upper, lower = edges[:-1], edges[1:]
        j = np.where(lower > peak, self.curvature * lower * (1 - lower), highest)
        beta, least = j / (lower * mu), epsilon.min(initial=np.inf)
        near = np.flatnonzero((least - upper**2 * m) / (upper * mu) - beta < _FAR)
        count = int(near[-1]) + 1 if len(near) else 1
        edges, upper, lower, beta = edges[: count + 1], upper[:count], lower[:count], beta[:count]
        last = edges[-1]
        alpha = (epsilon - upper**2 * m) / (upper * mu)
        x = (alpha + beta - np.sqrt((alpha - beta) ** 2 + 4)) / 2
        most = _density(alpha - x) * (1 - x / np.maximum(beta, 1e-300))
        root = edges * mu
        # With a = √v/2 − ε/√v and b = a − √v: e^ε Φ(b) = e^{−a²/2} erfcx(−b/√2)/2.
        a = root / 2 - epsilon / root
        stays = ndtr(a) - np.exp(-(a**2) / 2) * erfcx((root - a) / math.sqrt(2)) / 2
        with np.errstate(over="ignore"):  # next to no noise: +∞ is a bound too
            falls = mu * (upper - lower) * most - (stays[:, :-1] - stays[:, 1:])
        # Residuals below the smallest cell.
        nearest = (epsilon[:, 0] - last**2 * m - highest) / (last * mu)
        rest = mu * last * _density(np.maximum(nearest, 0.0))
        return np.asarray(np.where(x > 0, falls, 0.0).clip(min=0).sum(1) + rest)


def gaussian_delta(epsilon: Array, variance: Array | float) -> Array:
    """Return the δ of Gaussian mechanisms of these μ², at ε of any sign."""
    v, at = (torch.from_numpy(np.asarray(x, dtype=np.float64)) for x in (variance, epsilon))
    return equal_covariance(v, at).numpy()


def _density(x: Array) -> Array:
    return np.asarray(np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi))

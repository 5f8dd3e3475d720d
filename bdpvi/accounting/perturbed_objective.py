"""Worst-case privacy of objective perturbation of logistic regression: the Gaussian's own δ.

**Mechanism.** w = argmin over ℝᵈ of Σ_i ω_i l(y_i, z_iᵀw) + λ‖w − w₀‖²/2 + bᵀw, b ~ N(0, σ²I), y
in {0, 1}. The weight ω of a record depends on it alone. l is the logistic loss but for a residual
|y − p| that is clipped at k, 0 < k ≤ 1 (k = 1: not at all). Public: λ, σ, k, w₀ and the bounds
ω‖z‖ ≤ C and ω‖z‖² ≤ λR. The intercept is one of the weights, so λ holds it too. μ = C/σ.

**One record.** F(w), the gradient without b, is Lipschitz and λ-strongly monotone, and b = −F(w):
w has the density N(F(w); 0, σ²I) det DF(w) (change of variables, Evans and Gariepy, section 3.3).
One record more adds r ω‖z‖ u to F, u a unit vector that (z, y) fix and r in [0, k] the residual at
w; and r(1 − r) ω zzᵀ to DF ≽ λI, but nothing where r is clipped. By the determinant lemma the log
ratio of the densities with and without it, w drawn *with* it, is at most

    r a + r²m + log(1 + r(1 − r)R),   a ~ N(0, 2m),   m = μ²/2.

r depends on w and so on a; the largest value over r covers that. With h = k(1 − k)R, c = log(1 + h)
and R′ = R/(1 + h) the logarithm, being concave, is at most l₀ + r(1 − r)R′, l₀ = c − h/(1 + h). So
with Z = a + m and q = max(R′ − m, 0)

    loss ≤ Ψ(Z) = c + ka + k²m         where Z ≥ (2k − 1)q,
                  l₀ + (Z + q)²/4q     below that where Z > −q,
                  l₀                   elsewhere;

where q = 0, the larger of the first and the last. Drawn *without* the record the loss is at most
max(0, k²m − ka), less than Ψ(Z) in law. δ(ε) = E(1 − e^{ε−loss})₊ grows with the loss, so it is at
most that of Ψ, :func:`profile`, which from ε = l₀ + k²q on is G(kμ, ε − c), G the Gaussian
mechanism's δ. λ ≥ k² max ω‖z‖²/ε is enough for that. For k = 1, where c = 0, the supremum over
tables *is* G(μ, ε). Nothing of the kind holds at a smaller ε: it is not Gaussian DP.

**Smaller records.** Let X ~ N(0, 1), φ(l) = (1 − e^{ε−l})₊ or a mixture of such, and r(X) be where
l = r√(2m)X + r²m + J(r) is largest. By integration by parts the derivative of E φ(l) in m is
E[(φ″ + φ′)r² + φ′r′(X)/√(2m)] ≥ 0, as φ″ + φ′ is a point mass and r rises with X. So a record with
a smaller ω‖z‖ or ω‖z‖² costs less, and C and R cover all.

**Together** (:func:`delta`). Ψ(Z) bounds the loss whatever was released before, Z being independent
of that: δ(ε) ≤ E(1 − e^{ε−ΣΨ(Z_t)−Y})₊ with Y the loss of all other mechanisms before, between or
after. Ψ's law is put on a lattice that makes δ no smaller (:mod:`bdpvi.accounting.loss_bounds`);
Gaussian mechanisms stay exact. Float64 rounds by about 1e-11 of δ.

**An approximate minimum.** What is released is w̃ + N(0, s²I) with ‖F(w̃) + b‖ ≤ τ, so that w̃ is
within τ/λ of w. Were w known too, which costs more, w̃ would follow from D and w: one more Gaussian
mechanism, of distance ν = 2τ/(λs).

The noise is 1.45 times less than by the bound of Redberg, Koskela and Wang (2023), whose |a| costs
a factor of 2 and who set a part of ε aside for the determinant: here a record's label fixes the
sign of its residual, and its curvature vanishes where its residual is largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import ndtr

from bdpvi._runtime import validate
from bdpvi.accounting.events import PerturbedObjective
from bdpvi.accounting.gaussian import equal_covariance
from bdpvi.accounting.loss_bounds import Array, Deltas, LossBound
from bdpvi.accounting.search import smallest

_FINE = 100.0
"""Points of the lattice in a standard deviation of a loss: δ is then at most 3e-4 too large."""
_REACH = 9.5
_HIGHEST = 700.0
_BELOW = 2**13
"""Most points of the lattice below where the Gaussian's part begins."""


@dataclass(frozen=True)
class _Loss:
    """Ψ: the numbers of the module's proof."""

    m: float
    k: float
    c: float
    least: float
    q: float

    @classmethod
    def of(cls, event: PerturbedObjective, noise: float | None = None) -> _Loss:
        """Return it for one draw of the event, or at another σ/C."""
        k = event.residual
        m, h = (noise or event.noise_multiplier) ** -2 / 2, k * (1 - k) * event.curvature
        c = math.log1p(h)
        return cls(m, k, c, c - h / (1 + h), max(event.curvature / (1 + h) - m, 0.0))

    @property
    def top(self) -> float:
        """Where the Gaussian's part begins."""
        return self.least + self.k**2 * self.q

    def delta(self, epsilon: Array) -> Array:
        """Return E(1 − e^{ε−Ψ})₊."""
        start = np.maximum(epsilon, self.least)
        gaussian = _gaussian(np.maximum(start, self.top) - self.c, 2 * self.k**2 * self.m)
        at = np.where(start >= self.top, gaussian, self._between(np.minimum(start, self.top)))
        below = np.minimum(epsilon - self.least, 0.0)
        return np.asarray(np.exp(below) * np.maximum(at, 0.0) - np.expm1(below))

    def _between(self, epsilon: Array) -> Array:
        """Return it where the tail begins in the parabola: e^{−Ψ} times Z's density is normal."""
        m, k, q = self.m, self.k, self.q
        if q == 0:
            return np.zeros_like(epsilon)
        sd, narrow, end = math.sqrt(2 * m), math.sqrt(2 * m * q / (m + q)), (2 * k - 1) * q
        z = 2 * np.sqrt(q * (epsilon - self.least)) - q
        parabola = (
            math.sqrt(q / (m + q))
            * math.exp(-(m + q) / 4)
            * (ndtr(-z / narrow) - ndtr(-end / narrow))
        )
        tail = ndtr((m - end) / sd - k * sd)
        return np.asarray(
            ndtr((m - z) / sd)
            - np.exp(epsilon - self.c) * tail
            - np.exp(epsilon - self.least) * parabola
        )


def certain(event: PerturbedObjective) -> float:
    """Return l₀ + k²q, the ε from which on one exact minimum has a Gaussian's δ."""
    return _Loss.of(event).top


def surely(event: PerturbedObjective) -> float:
    """Return what all draws cost however strong the noise: Ψ(0) each."""
    loss = _Loss.of(event, math.inf)
    return event.draws * (loss.least + loss.q / 4 if event.residual > 0.5 else loss.c)


def profile(epsilon: float, event: PerturbedObjective) -> float:
    """Return the bound on δ(ε) of one exact minimum, E(1 − e^{ε−Ψ})₊, in closed form.

    >>> event = PerturbedObjective(noise_multiplier=3.73, curvature=1.0)
    >>> f"{profile(1.0, event):.2e} {profile(0.5, event):.2e}"
    '1.00e-05 6.28e-03'
    """
    loss = _Loss.of(event)
    return float(loss.delta(np.array([float(epsilon)]))[0])


def losses(events: Sequence[PerturbedObjective]) -> LossBound:
    """Return a law that bounds that of all draws' losses, but for ``hiding``."""
    finest = min(e.residual / e.noise_multiplier * e.draws**0.25 for e in events) / _FINE
    step = max(finest, min(max(map(certain, events)), _HIGHEST) / _BELOW)

    def of(event: PerturbedObjective) -> LossBound:
        loss = _Loss.of(event)
        sd = loss.k * math.sqrt(2 * loss.m)
        last = min(max(loss.c + sd**2 / 2 + _REACH * sd, loss.top), _HIGHEST)
        return LossBound.of(loss.delta, loss.least, last, step).repeated(event.draws)

    return reduce(LossBound.together, map(of, events))


def delta(
    events: Sequence[PerturbedObjective],
    epsilon: float,
    variance: float = 0.0,
    others: Deltas | None = None,
) -> float:
    """Return the bound on δ(ε), but for rounding, of several releases; see the module.

    Args:
        events: at least one.
        epsilon: ε, at least 0.
        variance: μ² of all Gaussian mechanisms that go with them: bought constants, noisy sums.
        others: instead of it, the δ of whatever goes with them and of the searches' hiding, at ε of
            any sign.

    >>> event = PerturbedObjective(noise_multiplier=4.17, curvature=1.0)
    >>> f"{delta([event], 1.0, variance=0.0144):.2e}"
    '1.15e-05'
    """
    return law(events, variance, others)(validate.non_negative("epsilon", epsilon))


def epsilon(
    events: Sequence[PerturbedObjective],
    delta: float,
    variance: float = 0.0,
    others: Deltas | None = None,
) -> float:
    """Return the least ε at which :func:`delta` is at most ``delta``; +inf from 700 on.

    Args:
        events, variance, others: see :func:`delta`.
        delta: δ, in (0, 1), less what rounding takes.
    """
    validate.probability("delta", delta)
    found = law(events, variance, others)
    if found(0.0) <= delta:
        return 0.0
    high = 1.0
    while found(high) > delta:
        if high == _HIGHEST:
            return math.inf
        high = min(2 * high, _HIGHEST)
    return float(brentq(lambda e: found(e) - delta, 0.0, high, xtol=1e-300)) * (1 + 1e-11)


def calibrate(
    event: PerturbedObjective, *, epsilon: float, delta: float, variance: float = 0.0
) -> PerturbedObjective:
    """Return ``event`` with the least noise at which all its draws cost at most ``epsilon``.

    ``hiding`` keeps its ratio to 1/``noise_multiplier``.

    Args:
        event: its ``noise_multiplier`` is where the search begins.
        epsilon, delta: of all draws and of the mechanisms of ``variance`` together.
        variance: see :func:`delta`.

    Raises:
        ValueError: if no noise is enough, as where the ridge is too small for ε.

    >>> event = PerturbedObjective(noise_multiplier=1.0, curvature=0.2)
    >>> round(calibrate(event, epsilon=0.2, delta=1e-5).noise_multiplier, 2)
    16.3
    """
    validate.positive("epsilon", epsilon)
    validate.probability("delta", delta)

    def at(noise: float) -> PerturbedObjective:
        hiding = event.hiding * event.noise_multiplier / noise
        return replace(event, noise_multiplier=noise, hiding=hiding)

    def spent(noise: float) -> float:
        return law([at(noise)], variance)(epsilon)

    rest = epsilon - surely(event)
    known = variance and float(_gaussian(np.array([max(rest, 0.0)]), variance)[0])
    if rest <= 0 or known >= delta:
        raise ValueError(
            f"epsilon={epsilon!r} cannot be reached at delta={delta!r} with curvature="
            f"{event.curvature:.4g}: raise the ridge, or leave less to other mechanisms"
        )
    return at(smallest(spent, delta, event.noise_multiplier, slack=1e-5))


def law(
    events: Sequence[PerturbedObjective], variance: float, others: Deltas | None = None
) -> Callable[[float], float]:
    """Return δ as a function of ε, of any sign; see :func:`delta`."""
    variance = validate.non_negative("variance", variance) + sum(e.variance for e in events)
    if len(events) == 1 and events[0].draws == 1 and variance == 0 and others is None:
        return lambda epsilon: profile(epsilon, events[0])
    return partial(losses(events).delta, others=others or partial(_gaussian, variance=variance))


def _gaussian(epsilon: Array, variance: float) -> Array:
    """Return the δ of a Gaussian mechanism at each ε."""
    v = torch.tensor([variance], dtype=torch.float64)
    return equal_covariance(v, torch.from_numpy(np.asarray(epsilon))).numpy()

"""Worst-case privacy of objective perturbation: a minimum, of an objective with a random slope.

**Mechanism.** From the records D to θ̂ = argmin over ℝᵈ of Σ_i f_i(x_iᵀθ) + λ‖θ‖²/2 + bᵀθ with
b ~ N(0, σ²I). Each f is convex with a Lipschitz derivative, so f″ exists almost everywhere; given
its record f′ has one sign; |f′|·‖x‖ ≤ L and f″·‖x‖² ≤ β. With μ = L/σ and c = log(1 + β/λ), for
every D and every record added to it or removed from it, δ(ε) is at most :func:`delta`.

**Proof.** (1) *Density.* G(θ) = Σ f_i′(x_iᵀθ) x_i + λθ is Lipschitz and λ-strongly monotone, so a
bijection of ℝᵈ whose inverse is Lipschitz, and b = −G(θ̂). By the change of variables for Lipschitz
bijections (Evans and Gariepy, section 3.3) θ̂ has the density N(G(θ); 0, σ²I) det H(θ) with
H = λI + Σ f_i″ x_i x_iᵀ almost everywhere; where an f″ jumps, x_iᵀθ is one of a set of numbers of
measure zero, which is a null set of θ, and a record with x = 0 changes nothing.

(2) *Ratio.* Let D′ be D and one more record, g = f′x its gradient at θ, b and b′ = b − g the slopes
that have their minimum at θ with D and with D′. By the determinant lemma

    log p_D′(θ)/p_D(θ) = log(1 + f″ xᵀH⁻¹x) + (2 b′ᵀg + ‖g‖²)/2σ²,

the first term within [0, c] as H ≽ λI.

(3) *One direction.* f′ having one sign, g = t u with t ∈ [0, L] and u = ± x/‖x‖ the same for all θ;
t may depend on θ. *Added*: θ̂ comes from D′, so w = b′ᵀu ~ N(0, σ²). The loss, log p_D′/p_D, is at
most c + (2tw + t²)/2σ², which is convex in t and so largest at t = 0 or L: at most c + max(0, Z)
with Z = (2Lw + L²)/2σ² ~ N(μ²/2, μ²), the loss of a Gaussian of distance μ. *Removed*: θ̂ comes from
D, w = bᵀu ~ N(0, σ²), and as 2 b′ᵀg + ‖g‖² = 2tw − t² the loss, log p_D/p_D′, is at most
(−2tw + t²)/2σ², so at most max(0, Z′), Z′ distributed as Z: less than what adding costs.

(4) *Conversion.* δ(ε) is the mean of (1 − e^{ε − loss})₊ where θ̂ comes from, and grows with the
loss. So with e = ε − c it is at most E(1 − e^{e − max(0, Z)})₊. For e ≥ 0 the cases Z < 0 have no
part, and this is the Gaussian's δ at e. For e < 0 it is 1 − e^e E e^{−max(0, Z)}, and the Gaussian
at 0 has 1 − E e^{−max(0, Z)}.

Without the one sign, w is to be replaced by |w|, which is where the bound of Redberg, Koskela and
Wang (2023), "Improving the privacy and practicality of objective perturbation for differentially
private linear learners", has its factor of 2, and by another way to the determinant λ > β and
c = −log(1 − β/λ).

**An approximate minimum.** A search ends at θ̃ with ‖G(θ̃) + b‖ ≤ τ; by strong convexity
‖θ̃ − θ̂‖ ≤ τ/λ. What is released is θ̃ + N(0, s²I). Suppose θ̂ were known too, which is not the case
and could only cost more: b follows from D and θ̂, so θ̃ does, and given θ̂ the θ̃ of D and of D′ are
within 2τ/λ of each other. The second release is then, for every θ̂, one Gaussian of distance at most
ν = 2τ/(λs), whose loss Y adds to the first's (adaptive composition: given the first loss ℓ, the
mean over θ̃ of (1 − e^{ε − ℓ − Y})₊ is at most the Gaussian's δ at ε − ℓ). With
e = ε − c ≥ 0, E(1 − e^{e − max(0, Z) − Y})₊ is that of the cases Z > 0, at most the δ at e of a
Gaussian of distance √(μ² + ν²), plus that of Z ≤ 0, which is Pr[Z ≤ 0] = Φ(−μ/2) times the δ at e
of one of distance ν. For e < 0, (1 − e^e v)₊ ≤ 1 − e^e + e^e (1 − v)₊ with v = e^{− max(0, Z) − Y}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.special import log_ndtr, ndtr

from bdpvi._runtime import validate
from bdpvi.accounting.gaussian import equal_covariance
from bdpvi.accounting.solve import root
from bdpvi.types import ADD_OR_REMOVE

LAST = 0.01
"""ν/μ: what hiding the search's error costs, half of this squared of μ."""


def delta(epsilon: float, stretch: float, distance: float, last: float = 0.0) -> float:
    """Return a bound on δ(ε) for one record added or removed; see the module for the proof.

    Args:
        epsilon: ε, at least 0.
        stretch: c = log(1 + β/λ).
        distance: μ = L/σ, positive.
        last: ν = 2τ/(λs) of the noise that hides the search's error; 0 for an exact minimum.

    Raises:
        ValueError: if an argument is out of range.

    >>> round(delta(1.0, stretch=0.1, distance=0.25), 7)
    1.52e-05
    """
    validate.non_negative("epsilon", epsilon)
    validate.non_negative("stretch", stretch)
    validate.positive("distance", distance)
    beyond = epsilon - stretch
    at = _gaussian(max(beyond, 0.0), math.hypot(distance, last))
    if validate.non_negative("last", last):
        at += float(ndtr(-distance / 2)) * _gaussian(max(beyond, 0.0), last)
    return at if beyond >= 0 else -math.expm1(beyond) + math.exp(beyond) * min(at, 1.0)


def epsilon(delta: float, stretch: float, distance: float, last: float = 0.0) -> float:
    """Return the least ε at which :func:`delta` is at most ``delta``, within 1e-11 from above.

    Args:
        delta: δ.
        stretch, distance: as for :func:`delta`.
        last: ν; of all Gaussian mechanisms that go with it, the root of the sum of their μ².

    >>> round(epsilon(1.52e-5, stretch=0.1, distance=0.25), 3)
    1.0
    """
    validate.probability("delta", delta)

    def excess(beyond: float) -> float:
        return _delta(stretch + beyond, stretch, distance, last) - delta

    if excess(-stretch) <= 0:
        return 0.0
    # Both parts' Gaussian tails, Pr[loss > e] ≥ δ(e), are below δ/2 there.
    variance = distance**2 + last**2
    top = variance / 2 + math.sqrt(variance * 2 * math.log(2 / delta))
    return (stretch + root(excess, -stretch, top)) * (1 + 1e-11)  # the side on which δ holds


def renyi(order: float, stretch: float, distance: float, last: float = 0.0) -> float:
    """Return a bound on the Rényi divergence of order α > 1, for one record added or removed.

    c + log[Φ(−μ/2) + e^{α(α−1)μ²/2} Φ((α − ½)μ)]/(α − 1) + αν²/2: by step (3) of the module's proof
    the moment E e^{(α−1) loss} is at most that of c + max(0, Z), whose two terms are those of Z ≤ 0
    and of Z > 0; the last release adds its own.

    Args:
        order: α.
        stretch, distance, last: c, μ and ν, as for :func:`delta`.

    >>> round(renyi(8.0, stretch=0.1, distance=0.25), 4)
    0.3567
    """
    a = validate.positive("order - 1", order - 1)
    mu = validate.positive("distance", distance)
    above = a * order * mu**2 / 2 + float(log_ndtr((order - 0.5) * mu))
    moment = float(np.logaddexp(log_ndtr(-mu / 2), above))
    return stretch + moment / a + order * last**2 / 2


@dataclass(frozen=True)
class ObjectivePerturbationAccountant:
    """From the noise in the slope to ε.

    It is a :class:`~bdpvi.accounting.worst_case.WorstCaseAccountant` whose noise multiplier is
    σ/L = 1/μ. :func:`bdpvi.accounting.worst_case.calibrate` with ``rate=1`` and ``steps=1`` finds
    the least one for an ε. All of β, λ and ρ are public.

    Args:
        curvature: β, largest f″·‖x‖² of a record.
        ridge: least λ.
        share: ρ, how ε is split between λ and σ: λ is raised until c ≤ ρμ. Infinite leaves λ as it
            is; then no noise reaches an ε below c.

    >>> from bdpvi.accounting.worst_case import calibrate
    >>> accountant = ObjectivePerturbationAccountant(curvature=0.25, ridge=1.0, share=0.5)
    >>> noise = calibrate(accountant, epsilon=0.1, delta=1e-5, rate=1.0, steps=1)
    >>> round(noise, 1), round(accountant.ridge_at(noise), 1)
    (35.4, 17.6)
    """

    curvature: float
    ridge: float
    share: float = math.inf
    name: ClassVar[str] = "objective perturbation"
    relation: ClassVar[str] = ADD_OR_REMOVE

    def __post_init__(self) -> None:
        validate.positive("curvature", self.curvature)
        validate.positive("ridge", self.ridge)
        if not self.share > 0:
            raise ValueError(f"share must be positive, got {self.share!r}")

    def ridge_at(self, noise_multiplier: float) -> float:
        """Return λ: at least :attr:`ridge`, and such that c ≤ ρμ; :attr:`ridge` without noise."""
        if noise_multiplier == 0:
            return self.ridge
        most = self.share / noise_multiplier
        return max(self.ridge, self.curvature / math.expm1(most) if most < _HIGHEST else 0.0)

    def stretch_at(self, noise_multiplier: float) -> float:
        """Return c = log(1 + β/λ)."""
        return math.log1p(self.curvature / self.ridge_at(noise_multiplier))

    def last_noise(self, noise_multiplier: float, error: float) -> float:
        """Return s, for a search that ends within ``error`` = τ/λ of the minimum."""
        return 2 * error * noise_multiplier / LAST

    def epsilon(self, noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
        """Return ε; see :class:`~bdpvi.accounting.worst_case.WorstCaseAccountant`.

        ``rate`` and ``steps`` must be 1.
        """
        mu = 1 / validate.positive("noise_multiplier", noise_multiplier)
        validate.probability("delta", delta)
        if (rate, steps) != (1, 1):
            raise ValueError(
                f"rate and steps must be 1 for objective perturbation, got {rate!r} and {steps!r}"
            )
        return epsilon(delta, self.stretch_at(noise_multiplier), mu, LAST * mu)


_delta = delta
_HIGHEST = 700.0
"""Beyond this exponent e^x has no float64."""


def _gaussian(epsilon: float, distance: float) -> float:
    """Return the δ of a Gaussian mechanism."""
    return float(equal_covariance(torch.tensor([distance**2], dtype=torch.float64), epsilon))

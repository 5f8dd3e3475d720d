"""Worst-case privacy of objective perturbation: one minimum, several, and with other mechanisms.

:mod:`bdpvi.privacy.perturbed_loss` defines the mechanism and the symbols, and proves a bound on
the δ of one exact minimum at every ε.

**Composition.** The bound holds whatever was released before, so the minimum's loss may be replaced
by an independent L with that δ: δ(ε) ≤ E(1 − e^{ε−ΣL_t−Y})₊ with Y the loss of all other mechanisms
before, between or after. (Given the past loss l the last release adds at most its δ at ε − l, and
so on from the last to the first.) The law of L is moved to a lattice, which never lowers δ
(:mod:`bdpvi.privacy.loss_bounds`); Gaussians stay exact. Float64 rounds δ by about 1e-11 of it.

**An approximate minimum.** The release is w̃ + N(0, s²I) with ‖F(w̃) + b‖ ≤ τ, so that w̃ is within
τ/λ of w. Suppose w is released too, which only costs more. Then w̃ follows from D and w, and the
noise is one more Gaussian mechanism, of distance ν = 2τ/(λs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce
from typing import ClassVar

import numpy as np

from bdpvi._ground import validate
from bdpvi.privacy.event import PERTURBED, Event
from bdpvi.privacy.loss_bounds import Deltas, LatticeLoss
from bdpvi.privacy.perturbed_loss import MinimumLoss, gaussian_delta
from bdpvi.privacy.solve import brent, smallest

_FINE, _COARSE = 100.0, 40.0
"""Lattice points per standard deviation of a loss, for k = 1 and for k < 1: δ is then too large by
at most 3e-4 or 2e-3 of it."""
_COARSER = 8.0
"""The lattice is at most this many times finer than the most spread-out loss needs."""
_REACH = 9.5
_HIGHEST, _LOUDEST = 700.0, 1e6
_BELOW = 2**13
"""The most lattice points below the Gaussian part."""


@dataclass(frozen=True, kw_only=True)
class PerturbedObjective(Event):
    """Minima of logistic regression's objective plus a random linear term, one for each draw.

    The module has its price, :mod:`bdpvi.privacy.perturbed_loss` the mechanism.

    Attributes:
        noise_multiplier: σ/C, the slope's standard deviation over the bound on ω‖z‖.
        curvature: R, the bound on ω‖z‖² over the ridge λ.
        residual: k, the clip of residuals; 1 means no clipping.
        draws: number of minima, each with its own slope.
        hiding: ν, distance of the Gaussian noise that hides the error of each search.
        rounding: total variation between all released draws and their exact law.

    Raises:
        ValueError: if an argument is out of range.
    """

    noise_multiplier: float
    curvature: float
    residual: float = 1.0
    draws: int = 1
    hiding: float = 0.0
    rounding: float = 0.0

    form: ClassVar[str] = PERTURBED
    squared_distance: ClassVar[float] = 0.0
    group_only: ClassVar[bool] = True
    what: ClassVar[str] = (
        "a minimum of a perturbed objective is priced by bdpvi.privacy.left.together, not alone,"
    )

    def __post_init__(self) -> None:
        validate.positive("noise_multiplier", self.noise_multiplier)
        validate.non_negative("curvature", self.curvature)
        validate.rate("residual", self.residual)
        validate.positive_int("draws", self.draws)
        validate.non_negative("hiding", self.hiding)
        validate.non_negative("rounding", self.rounding)

    @property
    def variance(self) -> float:
        """Squared distance of the noise that hides the searches' errors, over all draws."""
        return self.draws * self.hiding**2

    @property
    def loss(self) -> MinimumLoss:
        """The loss of one draw."""
        return MinimumLoss(1 / self.noise_multiplier, self.curvature, self.residual)

    def with_noise(self, scale: float) -> PerturbedObjective:
        """Return it with ``scale`` times the noise, and the searches' errors hidden as well."""
        noise = self.noise_multiplier * scale
        return replace(self, noise_multiplier=noise, hiding=self.hiding / scale)


def profile(epsilon: float, event: PerturbedObjective) -> float:
    """Return the bound on δ(ε) of one exact minimum.

    >>> event = PerturbedObjective(noise_multiplier=3.73, curvature=1.0)
    >>> f"{profile(1.0, event):.2e} {profile(0.5, event):.2e}"
    '1.00e-05 6.28e-03'
    """
    return float(event.loss.delta(np.array([float(epsilon)]))[0])


def losses(events: Sequence[PerturbedObjective]) -> LatticeLoss:
    """Return a law that bounds the total loss of all draws, without ``hiding``."""
    each = [event.loss for event in events]

    def finest(loss: MinimumLoss, draws: int) -> float:
        points = _FINE if loss.k == 1 else _COARSE
        return max(
            loss.k * loss.mu * math.sqrt(math.sqrt(draws)) / points,
            min(loss.top, _HIGHEST) / _BELOW,
        )

    steps = [finest(loss, event.draws) for loss, event in zip(each, events, strict=True)]
    # A loss far narrower than another adds little to it, and needs no lattice as fine as its own.
    step = max(min(steps), max(steps) / _COARSER)
    parts = (_bound(loss, event.draws, step) for loss, event in zip(each, events, strict=True))
    return reduce(LatticeLoss.together, parts)


@lru_cache(maxsize=64)
def _bound(loss: MinimumLoss, draws: int, step: float) -> LatticeLoss:
    return LatticeLoss.of(loss.delta, 0.0, reach(loss), step).repeated(draws)


def reach(loss: MinimumLoss) -> float:
    """Return the ε at which one draw's lattice ends: the δ there, 1e-20, lies at ∞."""
    sd = loss.k * loss.mu
    return min(max(loss.c + sd**2 / 2 + _REACH * sd, loss.top), _HIGHEST)


def delta(
    events: Sequence[PerturbedObjective],
    epsilon: float,
    variance: float = 0.0,
    others: Deltas | None = None,
) -> float:
    """Return the bound on δ(ε) of several releases, without rounding; see the module.

    Args:
        events: at least one.
        epsilon: ε, at least 0.
        variance: total μ² of the Gaussian mechanisms composed with them: private preprocessing,
            noisy sums.
        others: instead of ``variance``, the δ of all other mechanisms and the searches' hiding,
            at ε of any sign.

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
    """Return the least ε at which :func:`delta` is at most ``delta``; +inf if 700 or more.

    Args:
        events, variance, others: see :func:`delta`.
        delta: δ, in (0, 1), without the part used by rounding.
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
    # A δ of 1e-300 is next to 0 almost everywhere, and the search halves often.
    exact = brent(lambda e: found(e) - delta, 0.0, high, xtol=1e-300, maxiter=2000)
    return exact * (1 + 1e-11)


def calibrate(
    event: PerturbedObjective, *, epsilon: float, delta: float, variance: float = 0.0
) -> PerturbedObjective:
    """Return ``event`` with the least noise at which all its draws cost at most ``epsilon``.

    ``hiding`` keeps its ratio to 1/``noise_multiplier``.

    Args:
        event: the search starts at its ``noise_multiplier``.
        epsilon, delta: joint ε and δ of all draws and the mechanisms of ``variance``.
        variance: see :func:`delta`.

    Raises:
        ValueError: if no noise suffices, such as when the ridge is too small for ε.

    >>> event = PerturbedObjective(noise_multiplier=1.0, curvature=0.2)
    >>> round(calibrate(event, epsilon=0.2, delta=1e-5).noise_multiplier, 2)
    16.3
    """
    validate.epsilon(epsilon)
    validate.probability("delta", delta)

    def at(noise: float) -> PerturbedObjective:
        hiding = event.hiding * event.noise_multiplier / noise
        return replace(event, noise_multiplier=noise, hiding=hiding)

    def delta_at(noise: float) -> float:
        return law([at(noise)], variance)(epsilon)

    loss = event.loss
    rest = epsilon - event.draws * loss.at_zero  # what remains however strong the noise
    known = float(gaussian_delta(np.array([max(rest, 0.0)]), variance)[0]) if variance else 0.0
    try:
        if loss.k == 1 and (rest <= 0 or known >= delta):
            raise ArithmeticError
        return at(smallest(delta_at, delta, event.noise_multiplier, slack=1e-5, most=_LOUDEST))
    except ArithmeticError:
        raise ValueError(
            f"epsilon={epsilon!r} cannot be reached at delta={delta!r} with "
            f"curvature={event.curvature:.4g}: raise the ridge, or spend less on other mechanisms"
        ) from None


def law(
    events: Sequence[PerturbedObjective], variance: float, others: Deltas | None = None
) -> Callable[[float], float]:
    """Return δ as a function of ε, of any sign; see :func:`delta`."""
    variance = validate.non_negative("variance", variance) + sum(e.variance for e in events)
    if len(events) == 1 and events[0].draws == 1 and variance == 0 and others is None:
        return lambda epsilon: profile(epsilon, events[0])
    return partial(
        losses(events).delta, others=others or partial(gaussian_delta, variance=variance)
    )

"""Worst-case privacy of objective perturbation: one minimum, several, and what goes with them.

:mod:`bdpvi.accounting.perturbed_loss` has the mechanism, and a bound on the δ of one exact minimum
at every ε, with its proof; letters are as there.

**Together.** The bound holds whatever was released before, so the minimum's loss may be taken to be
an independent L with that δ: δ(ε) ≤ E(1 − e^{ε−ΣL_t−Y})₊ with Y the loss of all other mechanisms
before, between or after. (Given the past loss l the last release adds at most its δ at ε − l, and
so on from the last to the first.) The law of L is put on a lattice that makes δ no smaller
(:mod:`bdpvi.accounting.loss_bounds`); Gaussian mechanisms stay exact. Float64 rounds by about 1e-11
of δ.

**An approximate minimum.** What is released is w̃ + N(0, s²I) with ‖F(w̃) + b‖ ≤ τ, so that w̃ is
within τ/λ of w. Were w known too, which costs more, w̃ would follow from D and w: one more Gaussian
mechanism, of distance ν = 2τ/(λs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial, reduce

import numpy as np
from scipy.optimize import brentq

from bdpvi._runtime import validate
from bdpvi.accounting.events import PerturbedObjective
from bdpvi.accounting.loss_bounds import Deltas, LossBound
from bdpvi.accounting.perturbed_loss import Loss, gaussian_delta
from bdpvi.accounting.solve import smallest

_FINE, _COARSE = 100.0, 40.0
"""Points of the lattice in a standard deviation of a loss, for k = 1 and below: δ is then at most
3e-4 or 2e-3 too large."""
_COARSER = 8.0
"""How much finer than the loudest loss needs it the lattice is at most."""
_REACH = 9.5
_HIGHEST, _LOUDEST = 700.0, 1e6
_BELOW = 2**13
"""Most points of the lattice below where the Gaussian's part begins."""


def profile(epsilon: float, event: PerturbedObjective) -> float:
    """Return the bound on δ(ε) of one exact minimum.

    >>> event = PerturbedObjective(noise_multiplier=3.73, curvature=1.0)
    >>> f"{profile(1.0, event):.2e} {profile(0.5, event):.2e}"
    '1.00e-05 6.28e-03'
    """
    return float(Loss.of(event).delta(np.array([float(epsilon)]))[0])


def losses(events: Sequence[PerturbedObjective]) -> LossBound:
    """Return a law that bounds that of all draws' losses, but for ``hiding``."""
    each = [Loss.of(event) for event in events]

    def finest(loss: Loss, draws: int) -> float:
        points = _FINE if loss.k == 1 else _COARSE
        return max(
            loss.k * loss.mu * math.sqrt(math.sqrt(draws)) / points,
            min(loss.top, _HIGHEST) / _BELOW,
        )

    steps = [finest(loss, event.draws) for loss, event in zip(each, events, strict=True)]
    # What is far quieter than another adds little to it, and needs no lattice as fine as its own.
    step = max(min(steps), max(steps) / _COARSER)
    parts = (_bound(loss, event.draws, step) for loss, event in zip(each, events, strict=True))
    return reduce(LossBound.together, parts)


@lru_cache(maxsize=64)
def _bound(loss: Loss, draws: int, step: float) -> LossBound:
    return LossBound.of(loss.delta, 0.0, reach(loss), step).repeated(draws)


def reach(loss: Loss) -> float:
    """Return the ε at which the lattice of one draw ends: all of δ there, 1e-20, lies at ∞."""
    sd = loss.k * loss.mu
    return min(max(loss.c + sd**2 / 2 + _REACH * sd, loss.top), _HIGHEST)


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
    validate.epsilon(epsilon)
    validate.probability("delta", delta)

    def at(noise: float) -> PerturbedObjective:
        hiding = event.hiding * event.noise_multiplier / noise
        return replace(event, noise_multiplier=noise, hiding=hiding)

    def spent(noise: float) -> float:
        return law([at(noise)], variance)(epsilon)

    loss = Loss.of(event)
    rest = epsilon - event.draws * loss.at_zero  # what no noise takes away
    known = float(gaussian_delta(np.array([max(rest, 0.0)]), variance)[0]) if variance else 0.0
    try:
        if loss.k == 1 and (rest <= 0 or known >= delta):
            raise ArithmeticError
        return at(smallest(spent, delta, event.noise_multiplier, slack=1e-5, most=_LOUDEST))
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

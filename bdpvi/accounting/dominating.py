"""One price for every plan that an earlier output may choose, and the proof.

**What is charged.** Where settings of a mechanism follow from noisy outputs, as of a noisy number
of records, its price may not, but for a rounding of 1e-30 a draw: it is one loss L_i, of which
E(1 − e^{ε−L_i})₊ is, at every real ε, at least the δ(ε), in either direction, of each plan that
outputs may choose.

**All together** have δ(ε) ≤ E(1 − e^{ε−ΣL_i})₊ with independent L_i (Zhu, Dong and Wang 2022,
adaptive composition of dominating pairs; an L_i need not be a log ratio). Let P and Q be the laws
of the outputs o before the last mechanism, l their log ratio. Given o the last adds at most its δ
at ε − l(o), so what the price says of it: δ(ε) ≤ E_P E(1 − e^{ε−L−l(o)})₊ = E_L of what the earlier
ones have at ε − L, as L is the same for every o. So on, to the first. For one price per plan this
fails, though each costs the same in all: o may choose by l(o), and E max_j δ_j(ε − l) is more than
max_j E δ_j(ε − l), by up to 6 % where it was computed.

**Gaussian mechanisms**, what is no worse than one included, have a μ that was fixed before: counts,
constants, the rounds of noisy scores, draws from a guide. What is not needed is charged all the
same. Nothing else about them may follow from outputs but what their μ already covers.

**Objective perturbation** is none. Its price is that of an endless table, k = 1, with the largest
curvature R and a σ that public numbers fix; :func:`within` gives the noise of what is drawn, with
a clip k and a smaller R that suit the noisy N. Let D(ε) be the price's δ and B(ε) the bound on the
plan's. Without a clip, the same σ/C is enough: B grows with R. With one it is enough too, as the
largest loss over residuals r ≤ k is at most that over r ≤ 1, and mostly far less is. Then

- from 0 to the end of the price's lattice (:func:`~.perturbed_objective.reach`) B is held against D
  on a grid. δ(ε) is convex in x = e^ε, so between two points it is at most the chord of B. D is
  convex and so above the lines through the two points before a cell and the two behind it. Where at
  both ends of a cell the chord is at most the mean of these lines, one of them is above it at every
  x within;
- below 0 the lattice has 1 − x(1 − D(0)), which is at least δ by convexity, as δ → 1 for x → 0;
- beyond the end it has D(end), and δ falls.

So the price holds wherever it is put on the lattice: with anything else, and by itself, since
hiding a search's error is a Gaussian mechanism that goes with it.

**Steps on Poisson samples** are none either. Their price is a Gaussian mechanism and a share δ₀ of
δ, :class:`.Threshold`: where each plan's δ(ε) is at most G(ε) + δ₀, all together have δ₀ more at
most than with the Gaussian in its place. :func:`steps_within` holds them to it on the same grid,
and beyond its end to δ₀ alone. Below 0 it follows: with both directions' δ(ε) ≤ G(ε) + δ₀ one has
δ(−ε) = 1 − e^−ε + e^−ε δ′(ε), δ′ the other direction's, ≤ G(−ε) + δ₀.

What a person does on seeing an output, such as another call at another ε, is no setting: it is
not covered.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

import numpy as np

from bdpvi.accounting.events import PerturbedObjective, SampledGaussian
from bdpvi.accounting.loss_bounds import Array, Deltas
from bdpvi.accounting.loss_distribution import deltas_together
from bdpvi.accounting.perturbed_loss import Loss, gaussian_delta
from bdpvi.accounting.perturbed_objective import reach
from bdpvi.accounting.solve import smallest
from bdpvi.accounting.worst_case import LEAST_NOISE

_POINTS = 50
"""Of the grid, in a standard deviation of the loss: what the lines leave out costs 0.03 % noise."""


@lru_cache(maxsize=256)
def within(price: PerturbedObjective, curvature: float, residual: float) -> PerturbedObjective:
    """Return minima, as many and as well hidden, that never cost more than ``price``.

    Args:
        price: with ``residual`` 1.
        curvature: R, at most the price's.
        residual: k.

    Returns:
        Those with the least noise, but for 0.01 % of δ.

    Raises:
        ValueError: if the price is of clipped residuals, or of a smaller R.

    >>> price = PerturbedObjective(noise_multiplier=3.75, curvature=1.0, hiding=0.003)
    >>> [round(within(price, 0.5, k).noise_multiplier, 2) for k in (1.0, 0.5)]
    [3.75, 1.92]
    """
    if price.residual != 1 or curvature > price.curvature:
        raise ValueError(f"{price} is no price of curvature={curvature!r}: it must be above all")
    made = replace(price, curvature=curvature, residual=residual)
    if residual == 1:
        return made
    loss = Loss.of(price)
    epsilon, most = _below(loss.delta, loss.mu, reach(loss))

    def excess(noise: float) -> float:
        return float((Loss.of(replace(made, noise_multiplier=noise)).delta(epsilon) / most).max())

    guess, noise = residual * price.noise_multiplier, price.noise_multiplier
    with suppress(ArithmeticError):  # of a bound that is far off: then as without a clip
        noise = min(noise, smallest(excess, 1.0, guess, slack=1e-4, most=noise))
    return replace(made, noise_multiplier=noise)


@lru_cache(maxsize=256)
def steps_within(run: SampledGaussian, price: SampledGaussian, spare: float) -> SampledGaussian:
    """Return steps that never cost more than a Gaussian mechanism and a small δ.

    Args:
        run: its noise is where the search begins; of sensitivity 1 and no unseen coins.
        price: one noisy sum of all records.
        spare: δ₀.

    Returns:
        Those with the least noise, but for 0.1 % of δ.

    >>> run = SampledGaussian(noise_multiplier=5.0, rate=0.1, steps=100)
    >>> price = SampledGaussian(noise_multiplier=3.75)
    >>> round(steps_within(run, price, 1e-6).noise_multiplier, 2)
    3.94
    """
    mu = 1 / price.noise_multiplier
    if run.rate == 1:
        return replace(run, noise_multiplier=math.sqrt(run.steps) / mu)
    loss = Loss(mu, 0.0, 1.0)
    epsilon, most = _below(lambda e: gaussian_delta(e, mu**2) + spare, mu, reach(loss))
    most[-1] = spare

    def excess(noise: float) -> float:
        if noise < LEAST_NOISE:
            return math.inf
        each = deltas_together((replace(run, noise_multiplier=noise),))
        return float((each(epsilon) / most).max())

    return replace(run, noise_multiplier=smallest(excess, 1.0, run.noise_multiplier, slack=1e-3))


def _below(price: Deltas, deviation: float, end: float) -> tuple[Array, Array]:
    """Return a grid of ε and what is enough there, so that a bound is nowhere above the price.

    Args:
        price: δ of ε, convex in e^ε.
        deviation: of the loss.
        end: of the grid, which begins at 0.
    """
    step = deviation / _POINTS
    epsilon = step * np.arange(-2, np.ceil(end / step) + 3)
    x, delta = np.exp(epsilon), price(epsilon)
    width = np.diff(x)
    slope = np.diff(delta) / width
    before = delta[1:-3] + slope[:-3] * width[1:-2]
    behind = delta[3:-1] - slope[3:] * width[2:-1]
    return epsilon[2:-2], (delta[2:-2] + np.minimum(before, behind)) / 2

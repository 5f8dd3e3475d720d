"""One price for every plan that earlier outputs may choose, and its proof.

**The price.** Settings of a mechanism may follow from noisy outputs, such as a noisy number of
records; its price may not, except for a rounding of 1e-30 a draw. The price is one loss L_i such
that E(1 − e^{ε−L_i})₊ is, at every real ε, at least the δ(ε), in either direction, of each plan
that outputs may choose.

**Composition.** δ(ε) ≤ E(1 − e^{ε−ΣL_i})₊ for independent L_i (Zhu, Dong and Wang 2022,
adaptive composition of dominating pairs; an L_i need not be a log ratio). Let P and Q be the laws
of the outputs o before the last mechanism, l their log ratio. Given o the last adds at most its δ
at ε − l(o), which the price bounds: δ(ε) ≤ E_P E(1 − e^{ε−L−l(o)})₊ = E_L of the earlier ones' δ
at ε − L, as L is the same for every o. Repeat down to the first. With one price per plan this
fails, even if all have the same total cost: o may choose by l(o), and E max_j δ_j(ε − l) exceeds
max_j E δ_j(ε − l), by up to 6 % in computed cases.

**Gaussian mechanisms**, and all that are no worse than one, have a μ fixed beforehand: counts,
preprocessing bounds, rounds of noisy scores, draws from a guide. Unused parts are charged as
well. Only settings that their μ already covers may follow from outputs.

**Objective perturbation** is not Gaussian. Its price is that of an unlimited table: k = 1, the
largest curvature R, and a σ from public numbers. :func:`within` gives the noise of the draw, with
a clip k and a smaller R that suit the noisy N. Let D(ε) be the price's δ and B(ε) the bound on the
plan's. Without a clip, the same σ/C suffices: B grows with R. With a clip it suffices too, as the
largest loss over residuals r ≤ k is at most that over r ≤ 1; mostly far less suffices. Then

- from 0 to the end of the price's lattice (:func:`~.perturbed_objective.reach`) B is held against D
  on a grid. δ(ε) is convex in x = e^ε, so between two points it is at most the chord of B. D is
  convex and so above the lines through the two points before a cell and the two behind it. Where at
  both ends of a cell the chord is at most the mean of these lines, one of them is above it at every
  x within;
- below 0 the lattice has 1 − x(1 − D(0)), which is at least δ by convexity, as δ → 1 for x → 0;
- beyond the end it has D(end), and δ falls.

So the price holds wherever it is placed on the lattice: with other mechanisms, and alone, since
hiding a search's error is a Gaussian mechanism beside it.

**Steps on Poisson samples** are not Gaussian either. Their price is a Gaussian mechanism and a
share δ₀ of δ, :class:`.Threshold`: if each plan's δ(ε) is at most G(ε) + δ₀, the total is at most
δ₀ more than with the Gaussian in its place. :func:`steps_within` checks this on the same grid, and
beyond its end against δ₀ alone. Below 0 it follows: with both directions' δ(ε) ≤ G(ε) + δ₀ one has
δ(−ε) = 1 − e^−ε + e^−ε δ′(ε), δ′ the other direction's, ≤ G(−ε) + δ₀.

A person's reaction to an output, such as another call at another ε, is not a setting and is not
covered.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

import numpy as np

from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.loss_bounds import Array, Deltas
from bdpvi.privacy.loss_distribution import HIGHEST, composed
from bdpvi.privacy.perturbed_loss import MinimumLoss, gaussian_delta
from bdpvi.privacy.perturbed_objective import PerturbedObjective, reach
from bdpvi.privacy.sampled_steps import LEAST_NOISE
from bdpvi.privacy.solve import smallest

_POINTS = 50
"""Grid points per standard deviation of the loss: the gap below the lines costs 0.03 % noise."""


@lru_cache(maxsize=256)
def within(price: PerturbedObjective, curvature: float, residual: float) -> PerturbedObjective:
    """Return minima that never cost more than ``price``, with the same draws and hiding.

    Args:
        price: with ``residual`` 1.
        curvature: R, at most the price's.
        residual: k.

    Returns:
        The minima with the least noise, up to 0.01 % of δ.

    Raises:
        ValueError: if the price has clipped residuals or a smaller R.

    >>> price = PerturbedObjective(noise_multiplier=3.75, curvature=1.0, hiding=0.003)
    >>> [round(within(price, 0.5, k).noise_multiplier, 2) for k in (1.0, 0.5)]
    [3.75, 1.92]
    """
    if price.residual != 1 or curvature > price.curvature:
        raise ValueError(f"{price} is no price of curvature={curvature!r}: it must be above all")
    made = replace(price, curvature=curvature, residual=residual)
    if residual == 1:
        return made
    loss = price.loss
    epsilon, most = _below(loss.delta, loss.mu, reach(loss))

    def excess(noise: float) -> float:
        return float((replace(made, noise_multiplier=noise).loss.delta(epsilon) / most).max())

    guess, noise = residual * price.noise_multiplier, price.noise_multiplier
    with suppress(ArithmeticError):  # the bound is far off: noise as without a clip
        noise = min(noise, smallest(excess, 1.0, guess, slack=1e-4, most=noise))
    return replace(made, noise_multiplier=noise)


@lru_cache(maxsize=256)
def steps_within(
    run: SampledGaussian, price: SampledGaussian, spare: float, rows: int = 1
) -> SampledGaussian:
    """Return steps that never cost more than a Gaussian mechanism and a small δ.

    Args:
        run: as it counts for one row, sensitivity 1, no unseen coins; the search starts at its
            noise.
        price: one noisy sum of all records, as it counts for one row.
        spare: δ₀, for all rows of a unit.
        rows: k, the rows of a unit: steps and price are compared as they count for all of them.

    Returns:
        The steps with the least noise, up to 0.1 % of δ.

    >>> run = SampledGaussian(noise_multiplier=5.0, rate=0.1, steps=100)
    >>> price = SampledGaussian(noise_multiplier=3.75)
    >>> round(steps_within(run, price, 1e-6).noise_multiplier, 2)
    3.94
    """
    if run.rate == 1:
        return replace(run, noise_multiplier=math.sqrt(run.steps) * price.noise_multiplier)
    mu = rows / price.noise_multiplier
    loss = MinimumLoss(mu, 0.0, 1.0)
    epsilon, most = _below(lambda e: gaussian_delta(e, mu**2) + spare, mu, reach(loss))
    most[-1], asked = spare, np.minimum(epsilon, HIGHEST)

    def excess(noise: float) -> float:
        if noise / rows < LEAST_NOISE:
            return math.inf
        made = composed((replace(run, noise_multiplier=noise, rows=rows),))
        return float((np.asarray(made.get_delta_for_epsilon(asked)) / most).max())

    return replace(run, noise_multiplier=smallest(excess, 1.0, run.noise_multiplier, slack=1e-3))


def _below(price: Deltas, deviation: float, end: float) -> tuple[Array, Array]:
    """Return a grid of ε and limits there that keep a bound nowhere above the price.

    Args:
        price: δ as a function of ε, convex in e^ε.
        deviation: standard deviation of the loss.
        end: end of the grid, which begins at 0.
    """
    step = deviation / _POINTS
    epsilon = step * np.arange(-2, np.ceil(end / step) + 3)
    x, delta = np.exp(epsilon), price(epsilon)
    width = np.diff(x)
    slope = np.diff(delta) / width
    before = delta[1:-3] + slope[:-3] * width[1:-2]
    behind = delta[3:-1] - slope[3:] * width[2:-1]
    return epsilon[2:-2], (delta[2:-2] + np.minimum(before, behind)) / 2

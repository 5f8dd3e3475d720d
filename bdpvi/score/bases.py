"""What the factors of a formula's terms are for numbers: powers, logarithms, B-splines, products.

A number z is given in standard deviations from its column's mean, within its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BOUND = math.sqrt(3)
"""Bounds of a column in its standard deviations from its mean: those of a uniform number."""


def power(z: Floats, degree: int) -> Floats:
    """Return a power, (N,), divided by the bound once for each degree above 1."""
    return np.asarray(z**degree / BOUND ** (degree - 1))


def log_ends(mean: float, sd: float) -> tuple[float, float]:
    """Return the logarithms of a number's bounds.

    Raises:
        ValueError: if the lower one is not above 0.
    """
    return math.log(mean - BOUND * sd), math.log(mean + BOUND * sd)


def log_scale(mean: float, sd: float) -> float:
    """Return the standard deviation of a uniform number between the logarithms of the bounds."""
    low, high = log_ends(mean, sd)
    return (high - low) / math.sqrt(12)


def logarithm(z: Floats, mean: float, sd: float) -> Floats:
    """Return the logarithm of a number, standardised by those of its bounds, (N,)."""
    return np.asarray((np.log(mean + sd * z) - sum(log_ends(mean, sd)) / 2) / log_scale(mean, sd))


def inner_knots(size: int, degree: int, knots: Sequence[float], mean: float, sd: float) -> Floats:
    """Return the inner knots of a spline in standard deviations from the mean, evenly spaced
    unless they are given.

    >>> inner_knots(5, 3, (), 40.0, 10.0).round(3).tolist()
    [-0.577, 0.577]
    """
    if not len(knots):
        return np.asarray(np.linspace(-BOUND, BOUND, size - degree + 2)[1:-1])
    return (np.array(knots, dtype=np.float64) - mean) / sd


def basis(at: Floats, inner: Floats, degree: int) -> Floats:
    """Return all B-splines on [-BOUND, BOUND], (N, inner + degree + 1), by de Boor's recursion.

    Source: de Boor, A Practical Guide to Splines (2001), chapter IX, eq. 14.
    """
    ends = [BOUND] * (degree + 1)
    knots = np.array([*(-end for end in ends), *inner, *ends])
    at = np.minimum(at, np.nextafter(BOUND, 0.0))[:, None]
    made = ((knots[:-1] <= at) & (at < knots[1:])).astype(np.float64)
    for order in range(1, degree + 1):
        low, high = knots[: -order - 1], knots[order + 1 :]
        rising, falling = knots[order:-1] - low, high - knots[1:-order]
        left = np.divide(at - low, rising, out=np.zeros((len(at), len(low))), where=rising > 0)
        right = np.divide(high - at, falling, out=np.zeros((len(at), len(low))), where=falling > 0)
        made = left * made[:, :-1] + right * made[:, 1:]
    return made


def products(factors: Sequence[Floats], numbers: int) -> Floats:
    """Return the products of one value of each factor, the last the quickest, (N, k).

    Args:
        factors: each (N, ·).
        numbers: how many of them are numbers: it is divided by the bound for each but the first.
    """
    made = factors[0]
    for one in factors[1:]:
        made = (made[:, :, None] * one[:, None]).reshape(len(one), made.shape[1] * one.shape[1])
    return made / BOUND ** max(0, numbers - 1)

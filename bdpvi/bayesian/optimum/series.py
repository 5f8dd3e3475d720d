"""Taylor series of a record's expected log-likelihood in the mean and variance of its predictor.

With the derivatives ``D_k`` in units of its standard deviation, the mean shifted by a in
these units and the variance by the fraction s, every derivative is ``D_n(a, s) = Σ_k D_{n+k} h_k``
where ``h_k = Σ_b a^{k-2b} s^b / (2^b b! (k-2b)!)`` are the heat polynomials: ∂/∂v = ½ ∂²/∂m².
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def changes(slopes: Tensor, a: Tensor, s: Tensor, degree: int) -> tuple[Tensor, Tensor]:
    """Return D_1(a, s) - D_1 and D_2(a, s) - D_2, of the series up to ``degree``.

    Args:
        slopes: D_0 … D_{degree+2}, (degree + 3, ...), broadcast against a and s.
        a: shift of the mean in standard deviations.
        s: relative change of the variance.
        degree: largest k.

    >>> slopes = torch.arange(6.0).unsqueeze(1)
    >>> [round(float(x), 4) for x in changes(slopes, torch.ones(1), torch.ones(1), 3)]
    [7.6667, 10.3333]
    """
    before, heat = torch.ones_like(a), a
    first, second = slopes[2] * a, slopes[3] * a
    for k in range(2, degree + 1):
        before, heat = heat, (a * heat).addcmul_(s, before).div_(k)
        first.addcmul_(slopes[k + 1], heat)
        second.addcmul_(slopes[k + 2], heat)
    return first, second


def heat(a: Tensor, s: Tensor, degree: int) -> list[Tensor]:
    """Return the heat polynomials h_0 … h_degree of a and s."""
    values = [torch.ones_like(a), a]
    for k in range(2, degree + 1):
        values.append((a * values[-1] + s * values[-2]) / k)
    return values


def truncation_bound(beyond: Tensor, s: Tensor, degree: int, derivative: int) -> Tensor:
    """Return a bound on the truncation error of the series of D_n at ``degree``, for v = 4.

    Expanding in s first, then in a, leaves h_{degree+1}, for an even number, times the largest
    derivative on the way, which is at most ``κ v √(n + degree - 1)!``.

    Args:
        beyond: h_{degree+1} of a bound on the shift, in standard deviations, and of s.
        s: bound on the relative change of the variance.
        degree: odd.
        derivative: n, 1 or more.

    >>> s = torch.tensor(0.19)
    >>> round(float(truncation_bound(torch.tensor(0.115), s, 1, 2)), 4)  # √2! · 0.115 / 0.81²
    0.2479
    """
    largest = math.sqrt(math.factorial(derivative + degree - 1))
    shrunk = (1 - s).clamp(min=0.01) ** ((derivative + degree + 1) / 2)
    return largest * beyond / shrunk


def truncation_bounds(
    terms: Sequence[Tensor],
    s: Tensor,
    degree: int,
    in_mean: Tensor | float,
    in_covariance: Tensor | float,
) -> Tensor:
    """Return the truncation errors of D_1 and D_2, for records with these sums of κv."""
    one, other = (truncation_bound(terms[degree + 1], s, degree, n) for n in (1, 2))
    return in_mean * one + in_covariance * other

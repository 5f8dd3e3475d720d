"""Expected log-likelihood of a record whose logit is Gaussian, and its derivatives in the mean.

For a ~ N(m, v) and ℓ the log-likelihood of :class:`bdpvi.models.logistic.ClippedBernoulli`,
everything that the ELBO of logistic regression needs from a record is ``D_k = d^k/dm^k E ℓ(a)``, k
= 0, 1, 2, …: Gaussian smoothing obeys the heat equation, so ``∂/∂v = ½ ∂²/∂m²`` (Price 1958).

ℓ is smooth above its knee a_c and a straight line below. The line is integrated in closed form,
the rest by Gauss-Legendre between the knee and 8.3 standard deviations, where the integrand is
analytic. That is the integral to about 1e-14, which Gauss-Hermite across the knee would not reach.

Of wide logits the density hardly changes where ℓ is curved, so for them the logit is the variable:
twice by parts, as ℓ and ℓ′ vanish far to the right,

    E ℓ = -∫ σ′(u) E (u - a)₊ du,   E ℓ′ = ∫ σ′(u) Φ(z) du,
    E ℓ″ He_k = -∫ σ′(u) He_k(z) φ(z) du/√v

with z = (u - m)/√v, over u from the knee on. σ′ falls below 5e-18 within 40 of 0, so that a fixed
number of nodes serves however wide the logit is.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

_REACH = 8.3  # standard deviations integrated over; the mass beyond is 1e-16
_NODES = 48
_WIDE = 4.0  # standard deviation above which the logit is the variable
_FAR = 40.0  # logits integrated over then
_WIDE_NODES = 240
_BLOCK = 1 << 18


def derivatives(mean: Tensor, variance: Tensor, bound: Tensor, order: int) -> Tensor:
    """Return E ℓ(a) for a ~ N(m, v) and its derivatives with respect to m/√v, ``v^{k/2} D_k``.

    With t = (a - m)/√v, ``D_1 = E ℓ′(a)`` and, by parts, ``v^{k/2} D_{2+k} = E ℓ″(a) He_k(t)`` with
    the Hermite polynomials He_k; ``-ℓ″`` is σ′ above the knee and 0 below. As 0 ≤ σ′ ≤ ¼ and
    ``E He_k² = k!``, ``|v^{k/2} D_k| ≤ ¼ v √(k-2)!`` for k ≥ 2.

    Args:
        mean: m, of the logit times 2y - 1, (N,).
        variance: v, of the logit, at least 0, (N,).
        bound: largest slope of ℓ, positive, inf for the Bernoulli likelihood, (N,).
        order: number of derivatives, at least 1.

    Returns:
        (order + 1, N).

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> derivatives(0 * one, 1e-12 * one, math.inf * one, 2).squeeze(1)  # log ½, 1e-6/2, -1e-12/4
    tensor([-6.9315e-01,  5.0000e-07, -2.5000e-13], dtype=torch.float64)
    """
    result = mean.new_empty(order + 1, len(mean))
    deviation = variance.sqrt()
    # The poles of σ lie π/√v from the real axis of t: wider Gaussians need more nodes.
    level = torch.ceil(torch.log2(deviation.clamp(0.5, 2 * _WIDE))).int()
    for step in torch.unique(level).tolist():
        wide = 2**step > _WIDE
        nodes = _WIDE_NODES if wide else _NODES if step < 0 else 16 + int(_NODES * 2**step)
        rows = (level == step).nonzero()[:, 0]
        integrate = _integrate_wide if wide else _integrate
        for part in rows.split(max(1, _BLOCK // nodes)):
            result[:, part] = integrate(mean[part], deviation[part], bound[part], order, nodes)
    return result


def _integrate(mean: Tensor, deviation: Tensor, bound: Tensor, order: int, nodes: int) -> Tensor:
    slope = bound.clamp(max=1)
    knee = torch.log1p(-slope) - torch.log(slope)
    low = ((knee - mean) / deviation.clamp(min=1e-150)).clamp(-_REACH, _REACH)
    node, weight = (torch.from_numpy(a).to(mean) for a in _legendre(nodes))
    half = ((_REACH - low) / 2).unsqueeze(1)
    t = _REACH + half * (node - 1)
    density = torch.exp(-t * t / 2) * (half * weight / math.sqrt(2 * math.pi))
    logit = torch.addcmul(mean.unsqueeze(1), deviation.unsqueeze(1), t)
    miss = torch.sigmoid(-logit)
    line = low > -_REACH
    mass = torch.special.ndtr(low)
    at_mean = torch.where(line, logsigmoid(knee) + slope * (mean - knee), 0)
    edge = deviation * torch.exp(-low * low / 2) / math.sqrt(2 * math.pi)
    rows = [
        (logsigmoid(logit) * density).sum(1) + at_mean * mass - slope * edge,
        deviation * ((miss * density).sum(1) + slope * mass),
    ]
    curved = miss * (1 - miss) * density
    before, hermite = torch.zeros_like(t), torch.ones_like(t)
    for k in range(order - 1):
        rows.append(-(deviation**2) * (curved * hermite).sum(1))
        before, hermite = hermite, t * hermite - k * before
    return torch.stack(rows)


def _integrate_wide(
    mean: Tensor, deviation: Tensor, bound: Tensor, order: int, nodes: int
) -> Tensor:
    slope = bound.clamp(max=1)
    knee = torch.log1p(-slope) - torch.log(slope)
    low, high = knee.clamp(min=-_FAR), knee.clamp(min=0) + _FAR
    node, weight = (torch.from_numpy(a).to(mean) for a in _legendre(nodes))
    half = ((high - low) / 2).unsqueeze(1)
    logit = low.unsqueeze(1) + half * (node + 1)
    miss = torch.sigmoid(-logit)
    curved = miss * (1 - miss) * (half * weight)
    above, spread = logit - mean.unsqueeze(1), deviation.unsqueeze(1)
    # Beyond 40 the density is 0, and so is its product with the polynomials.
    z = (above / spread).clamp(-_FAR, _FAR)
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    mass = torch.special.ndtr(z)
    rows = [
        -(curved * torch.addcmul(spread * density, above, mass)).sum(1),
        deviation * (curved * mass).sum(1),
    ]
    curved = curved * density
    before, hermite = torch.zeros_like(z), torch.ones_like(z)
    for k in range(order - 1):
        rows.append(-deviation * (curved * hermite).sum(1))
        before, hermite = hermite, z * hermite - k * before
    return torch.stack(rows)


@cache
def _legendre(nodes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    node, weight = np.polynomial.legendre.leggauss(nodes)
    return node, weight

"""Expected log-likelihood of a record whose logit is Gaussian, and its derivatives in the mean.

For a ~ N(m, v) and ℓ the log-likelihood of :class:`bdpvi.models.clipped.ClippedBernoulli`,
everything that the ELBO of logistic regression needs from a record is ``D_k = d^k/dm^k E ℓ(a)``, k
= 0, 1, 2, …: Gaussian smoothing obeys the heat equation, so ``∂/∂v = ½ ∂²/∂m²`` (Price 1958).

ℓ is smooth above its knee and a straight line below. Each record uses the cheapest of four rules
that is exact to rounding:

- The line alone, where the knee is 8.3 standard deviations above the mean: in closed form.
- Gauss-Hermite with the same 18 nodes for every record, where √v ≤ 0.05 and the knee is as far
  below: all derivatives are one matrix product. Almost all records of a large table use this rule.
- Gauss-Legendre between the knee and 8.3 standard deviations, where the integrand is analytic, and
  the line in closed form. Gauss-Hermite across the knee would not reach 1e-14.
- Where √v > 4, Gauss-Legendre over the logit itself. The density hardly changes where ℓ is curved:
  twice by parts, as ℓ and ℓ′ vanish far to the right,

      E ℓ = -∫ σ′(u) E (u - a)₊ du,   E ℓ′ = ∫ σ′(u) Φ(z) du,
      E ℓ″ He_k = -∫ σ′(u) He_k(z) φ(z) du/√v

  with z = (u - m)/√v, over u from the knee on. σ′ falls below 5e-18 within 40 of 0, so that a fixed
  number of nodes serves however wide the logit is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

REACH = 8.3
"""Standard deviations integrated over; the mass beyond is 1e-16."""
NARROW, HERMITE = 0.05, 18
"""Largest standard deviation for Gauss-Hermite, and its nodes: more cost time, fewer accuracy."""
HIGHEST = 17
"""Largest order of derivatives for which these nodes suffice."""
NODES = 48
"""Nodes of Gauss-Legendre at a standard deviation of 1, minus 16."""
WIDE, FAR, WIDE_NODES = 4.0, 40.0, 240
"""A power of two, beyond which the logit is the variable; the logits integrated over; nodes."""
CELLS = 1 << 18
"""Numbers per block that fit in the cache."""


def derivatives(mean: Tensor, variance: Tensor, bound: Tensor, order: int) -> Tensor:
    """Return E ℓ(a) for a ~ N(m, v) and its derivatives with respect to m/√v, ``v^{k/2} D_k``.

    With t = (a - m)/√v, ``D_1 = E ℓ′(a)`` and, by parts, ``v^{k/2} D_{2+k} = E ℓ″(a) He_k(t)`` with
    the Hermite polynomials He_k; ``-ℓ″`` is σ′ above the knee and 0 below. As 0 ≤ σ′ ≤ ¼ and
    ``E He_k² = k!``, ``|v^{k/2} D_k| ≤ ¼ v √(k-2)!`` for k ≥ 2.

    Args:
        mean: m, of the logit times 2y - 1, (N,).
        variance: v, of the logit, at least 0, (N,).
        bound: largest slope of ℓ, positive, inf for the Bernoulli likelihood, (N,).
        order: number of derivatives, from 1 to 17.

    Returns:
        (order + 1, N).

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> derivatives(0 * one, 1e-12 * one, math.inf * one, 2).squeeze(1)  # log ½, 1e-6/2, -1e-12/4
    tensor([-6.9315e-01,  5.0000e-07, -2.5000e-13], dtype=torch.float64)
    """
    if not 1 <= order <= HIGHEST:
        raise ValueError(f"order must be from 1 to {HIGHEST}, got {order}")
    deviation, slope = variance.sqrt(), bound.clamp(max=1)
    knee = torch.log1p(-slope) - torch.log(slope)
    reach = REACH * deviation
    # The poles of σ lie π/√v from the real axis of t: wider Gaussians need more nodes.
    level = torch.ceil(torch.log2(deviation.clamp(0.5, 2 * WIDE))).int()
    level[(deviation <= NARROW) & (mean - reach >= knee)] = _NARROW
    level[mean + reach <= knee] = _STRAIGHT
    result = mean.new_empty(order + 1, len(mean))
    for step in torch.unique(level).tolist():
        rows = (level == step).nonzero()[:, 0]
        for part in rows.split(max(1, CELLS // _nodes(step))):
            record = mean[part], deviation[part], slope[part], knee[part]
            result[:, part] = _integrate(step, *record, order)
    return result


_STRAIGHT, _NARROW = -3, -2
"""Names of rules; other rules are named by the power of two of the standard deviation."""


def _nodes(step: int) -> int:
    if step <= _NARROW:
        return HERMITE
    if 2**step > WIDE:
        return WIDE_NODES
    return NODES if step < 0 else 16 + int(NODES * 2**step)


def _integrate(
    step: int, mean: Tensor, deviation: Tensor, slope: Tensor, knee: Tensor, order: int
) -> Tensor:
    if step == _STRAIGHT:
        result = mean.new_zeros(order + 1, len(mean))
        result[0] = logsigmoid(knee) + slope * (mean - knee)
        result[1] = deviation * slope
        return result
    if step == _NARROW:
        return _hermite(mean, deviation, order)
    rule = _wide if 2**step > WIDE else _legendre
    return rule(mean, deviation, slope, knee, order, _nodes(step))


def _hermite(mean: Tensor, deviation: Tensor, order: int) -> Tensor:
    """Integrate by Gauss-Hermite, for narrow logits.

    n nodes integrate ℓ″ He_k exactly except for the Taylor terms of ℓ″ from degree 2n - k. The
    terms of σ′ fall by √v/π per degree: for √v ≤ 0.05, n = 18 and k ≤ 15 the integral of the first
    omitted term is below 1e-20 v.
    """
    node, weight = (a.to(mean) for a in gauss("hermite", HERMITE))
    weight = weight / math.sqrt(2 * math.pi)
    logit = torch.addcmul(mean, deviation, node.unsqueeze(1))
    value = weight @ logsigmoid(logit)
    miss = logit.neg_().sigmoid_()
    polynomials = torch.stack([weight * p for p in _polynomials(node, order - 1)] or [weight])
    second = polynomials[: order - 1] @ torch.addcmul(miss, miss, miss, value=-1)
    head = torch.stack([value, deviation * (weight @ miss)])
    return torch.cat([head, second.mul_(-(deviation**2))])


def _legendre(
    mean: Tensor, deviation: Tensor, slope: Tensor, knee: Tensor, order: int, nodes: int
) -> Tensor:
    low = ((knee - mean) / deviation.clamp(min=1e-150)).clamp(-REACH, REACH)
    node, weight = (a.to(mean) for a in gauss("legendre", nodes))
    half = ((REACH - low) / 2).unsqueeze(1)
    t = REACH + half * (node - 1)
    density = torch.exp(-t * t / 2) * (half * weight / math.sqrt(2 * math.pi))
    logit = torch.addcmul(mean.unsqueeze(1), deviation.unsqueeze(1), t)
    miss = torch.sigmoid(-logit)
    mass = torch.special.ndtr(low)
    at_mean = torch.where(low > -REACH, logsigmoid(knee) + slope * (mean - knee), 0)
    edge = deviation * torch.exp(-low * low / 2) / math.sqrt(2 * math.pi)
    rows = [
        (logsigmoid(logit) * density).sum(1) + at_mean * mass - slope * edge,
        deviation * ((miss * density).sum(1) + slope * mass),
    ]
    curved = miss * (1 - miss) * density
    rows += [-(deviation**2) * (curved * p).sum(1) for p in _polynomials(t, order - 1)]
    return torch.stack(rows)


def _wide(
    mean: Tensor, deviation: Tensor, slope: Tensor, knee: Tensor, order: int, nodes: int
) -> Tensor:
    low, high = knee.clamp(min=-FAR), knee.clamp(min=0) + FAR
    node, weight = (a.to(mean) for a in gauss("legendre", nodes))
    half = ((high - low) / 2).unsqueeze(1)
    logit = low.unsqueeze(1) + half * (node + 1)
    miss = torch.sigmoid(-logit)
    curved = miss * (1 - miss) * (half * weight)
    above, spread = logit - mean.unsqueeze(1), deviation.unsqueeze(1)
    # Beyond 40 the density is 0, and so is its product with the polynomials.
    z = (above / spread).clamp(-FAR, FAR)
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    mass = torch.special.ndtr(z)
    rows = [
        -(curved * torch.addcmul(spread * density, above, mass)).sum(1),
        deviation * (curved * mass).sum(1),
    ]
    curved = curved * density
    rows += [-deviation * (curved * p).sum(1) for p in _polynomials(z, order - 1)]
    return torch.stack(rows)


def _polynomials(t: Tensor, count: int) -> Iterator[Tensor]:
    """Iterate over the Hermite polynomials He_0, He_1, … at t."""
    before, hermite = torch.zeros_like(t), torch.ones_like(t)
    for k in range(count):
        yield hermite
        before, hermite = hermite, t * hermite - k * before


@cache
def gauss(rule: str, nodes: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of a Gauss rule, "hermite" or "legendre"."""
    make = {
        "hermite": np.polynomial.hermite_e.hermegauss,
        "legendre": np.polynomial.legendre.leggauss,
    }
    node, weight = make[rule](nodes)
    return torch.from_numpy(node), torch.from_numpy(weight)

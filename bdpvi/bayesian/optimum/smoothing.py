"""Expected log-likelihoods of a Gaussian predictor, and their derivatives in the mean, by loss.

For a ~ N(m, v) and a loss ℓ of :mod:`bdpvi.models.losses` the ELBO needs ``D_k = -d^k/dm^k E ℓ(a)``
alone. Losses made of ln(1 + e^a) use the quadrature of the logistic loss
(:mod:`bdpvi.bayesian.optimum.quadrature`); the continued Poisson loss has a closed form.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bdpvi.bayesian.optimum.quadrature import derivatives
from bdpvi.models.losses import ContinuedPoisson, Logistic, LogisticErrors, Loss, NegativeBinomial


def smoothed(loss: Loss, mean: Tensor, variance: Tensor, mark: Tensor, order: int) -> Tensor:
    """Return -E ℓ(a), up to a constant, and its derivatives with respect to m/√v, (order + 1, N).

    As ``|v^{k/2} D_k| = v |E ℓ″(a) He_{k-2}(t)|`` with the Hermite polynomials He_k of
    t = (a - m)/√v, it is at most ``κ v √(k-2)!`` for k ≥ 2, κ the largest ℓ″.

    Args:
        loss: the loss.
        mean, variance: m and v, (N,).
        mark: what the loss of a record takes beside its predictor, (N,): the bound on the slope of
            the logistic loss, of other losses the target.
        order: number of derivatives, from 1 to 17.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> smoothed(ContinuedPoisson(8.0), 0 * one, 1e-12 * one, 3 * one, 2).squeeze(1)
    tensor([-1.0000e+00,  2.0000e-06, -1.0000e-12], dtype=torch.float64)
    """
    if isinstance(loss, Logistic):
        return derivatives(mean, variance, mark, order)
    if isinstance(loss, ContinuedPoisson):
        return _continued(loss, mean, variance, mark, order)
    if isinstance(loss, NegativeBinomial):
        size, shift = mark + 1 / loss.dispersion, math.log(loss.dispersion)
        return _soft(mean + shift, variance, size, order, mark, mark * mean)
    if isinstance(loss, LogisticErrors):
        error, one = (mean - mark) / loss.scale, torch.ones_like(mean)
        return _soft(error, variance / loss.scale**2, 2 * one, order, one, error)
    raise TypeError(f"loss={loss!r} has no expectation here")


def _soft(
    mean: Tensor, variance: Tensor, size: Tensor, order: int, slope: Tensor, line: Tensor
) -> Tensor:
    """Return those of a line, given its slope and its value, minus size · ln(1 + e^a)."""
    found = derivatives(-mean, variance, torch.full_like(mean, math.inf), order).mul_(size)
    found[1::2].neg_()
    found[0] += line
    found[1] += slope * variance.sqrt()
    return found


def _continued(
    loss: ContinuedPoisson, mean: Tensor, variance: Tensor, y: Tensor, order: int
) -> Tensor:
    """Integrate the continued Poisson loss in closed form.

    With e = m - L the distance from the kink, t = e/√v, φ and Φ the normal density and
    distribution, ``A = E e^e 1{e < 0} = e^{e + v/2} Φ(-t - √v)`` and
    ``B = E e^{-e} 1{e > 0} = e^{-e + v/2} Φ(t - √v)``, ℓ″ = R e^{-|e|} has the mean R h, h = A + B.
    As A′ = A - φ(t)/√v and B′ = -B + φ(t)/√v, h′ = A - B and h″ = h - 2φ(t)/√v; so every
    derivative follows from that of the order two below.
    """
    deviation = variance.sqrt()
    away, top = mean - loss.kink, loss.largest / 2
    t = away / deviation.clamp(min=1e-150)
    mass, density = torch.special.ndtr(t), torch.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    below, above = _tilted(away, deviation, t), _tilted(-away, deviation, -t)
    beyond = away * mass + deviation * density
    rows = [
        y * mean - top * (below + above + 2 * beyond),
        deviation * (y - top * (below - above + 2 * mass)),
    ]
    heat = [below + above, deviation * (below - above)]
    before, hermite = torch.zeros_like(t), torch.ones_like(t)
    for k in range(order - 3):
        edge = 2 * deviation * hermite * density
        heat.append(variance * heat[k] - edge if k % 2 == 0 else variance * heat[k] + edge)
        before, hermite = hermite, t * hermite - k * before
    rows += [-top * variance * one for one in heat[: order - 1]]
    return torch.stack(rows)


def _tilted(away: Tensor, deviation: Tensor, t: Tensor) -> Tensor:
    """Return E e^e 1{e < 0} for e ~ N(away, deviation²), t = away/deviation."""
    w = t + deviation
    far = torch.exp(-t * t / 2) * torch.special.erfcx(w.clamp(min=0) / math.sqrt(2)) / 2
    # Where w < 0 the exponent is below -v/2.
    near = torch.exp((away + deviation**2 / 2).clamp(max=0)) * torch.special.ndtr(-w)
    return torch.where(w > 0, far, near)

"""The hockey-stick divergence of two Gaussians with one covariance: the closed form."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.privacy.solve import brent

GAUSSIAN = "Gaussian DP"
"""Name of the method in reports."""
_GAUSS_LEGENDRE = np.polynomial.legendre.leggauss(8)  # nodes and weights on (-1, 1)


def equal_covariance(variance: Tensor, epsilon: float | Tensor) -> Tensor:
    """Return δ(ε) between two Gaussians that differ only in their means.

    ``δ = Φ(-ε/√v + √v/2) - e^ε Φ(-ε/√v - √v/2)`` with v the squared Mahalanobis distance
    (Balle & Wang 2018, Theorem 8; for k draws at temperature τ, v = kΣb²/τ). For short intervals
    it is computed as ``φ(a) ∫ R'``, R = Φ/φ, over the interval of length √v that ends at
    ``a = -ε/√v + √v/2``, which avoids the difference of two nearly equal numbers.

    Args:
        variance: v ≥ 0, (m,).
        epsilon: ε, a number or a tensor that broadcasts with the variance.

    Returns:
        δ, of the broadcast shape, to about 1e-14 (1 + a²) relative where a < 0, as a is rounded in
        φ(a): 1e-12 at δ = 1e-22, 1e-11 at 1e-217. For a > 2 the eight nodes leave up to 2e-11.

    Raises:
        ValueError: if the variance is negative or either argument is not finite.

    >>> equal_covariance(torch.tensor([0.0, 1.0], dtype=torch.float64), 1.0)
    tensor([0.0000, 0.1269], dtype=torch.float64)
    """
    v = validate.finite("variance", variance.double())
    if not bool((v >= 0).all()):
        raise ValueError(f"variance must be at least 0, got {v.min().item()}")
    eps = validate.finite("epsilon", torch.as_tensor(epsilon, dtype=v.dtype)).to(v.device)
    root = v.sqrt()
    safe = root.clamp(min=torch.finfo(v.dtype).tiny)
    a = root / 2 - eps / safe
    wide = torch.special.log_ndtr(a)
    direct = -wide.exp() * torch.expm1(eps + torch.special.log_ndtr(a - root) - wide)
    # R'(x) = 1 + x R(x) is smooth and positive: eight Gauss-Legendre nodes on a length below 1.
    nodes, weights = (torch.as_tensor(of).to(v) for of in _GAUSS_LEGENDRE)
    x = a.unsqueeze(-1) - root.unsqueeze(-1) * ((nodes + 1) / 2)
    slope = 1 + x * math.sqrt(math.pi / 2) * torch.special.erfcx(-x / math.sqrt(2))
    density = (-a.square() / 2).exp() / math.sqrt(2 * math.pi)
    short = density * root * (slope * weights).sum(-1) / 2
    # For large a R overflows; there δ is close to 1 - e^ε and nothing cancels.
    delta = torch.where((root < 1) & (a < 5), short, direct)
    return torch.where(root > 0, delta, (-torch.expm1(eps)).clamp(min=0))


def log_of(w: Tensor) -> Tensor:
    """Return log w. The complex log uses real operations, several times as fast as torch's own."""
    if not w.is_complex():
        return w.log()
    real, imag = w.real.contiguous(), w.imag.contiguous()
    return torch.complex((real**2).addcmul_(imag, imag).log_().div_(2), torch.atan2(imag, real))


@cache
def largest_variance(epsilon: float, delta: float) -> float:
    """Return the μ² of the Gaussian mechanism whose δ at ε is ``delta``, to 1e-12.

    Args:
        epsilon: ε, positive, up to 1,000.
        delta: δ in (0, 1).

    >>> round(largest_variance(1.0, 1e-5) ** -0.5, 3)
    3.731
    """
    validate.epsilon(epsilon)
    validate.probability("delta", delta)

    def excess(log_variance: float) -> float:
        v = torch.tensor([math.exp(log_variance)], dtype=torch.float64)
        return math.log(max(float(equal_covariance(v, epsilon)), 5e-324) / delta)

    return math.exp(brent(excess, -60.0, 10.0, xtol=1e-12))

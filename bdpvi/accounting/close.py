"""What draws cost where the pairs are so close that power sums say it all, at any number of orders.

With x = r - 1 the logarithm of the moment generating function of
:mod:`bdpvi.accounting.gaussian_pairs` is

    log M(s) = ½ Σ_j [s(s+1) b_j²/(1 - s x_j) - (log(1 - s x_j) + s x_j) - s (log(1 + x_j) - x_j)]
             = ½ s(s+1) Σ_k s^k Σ_j b_j² x_j^k + ½ Σ_{k≥2} (s^k + (-1)^k s)/k Σ_j x_j^k

where |s x_j| < 1 and |x_j| < 1. A record then has a few sums over its variables, and every order is
a row of a matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bdpvi.accounting.gaussian_pairs import GaussianPairs
from bdpvi.accounting.record_costs import posterior_draws_cost

_CLOSE = 0.1
"""Largest |s x| and |x| that the series are used at."""
_DEGREE = 12
_BLOCK = 1024
"""Records at a time, which stay in the cache."""


def close_draws_cost(
    pairs: GaussianPairs, orders: Tensor, draws: int = 1, temperature: float = 1.0
) -> Tensor:
    """Return what ``record_costs.posterior_draws_cost`` returns, or up to 2e-12 more.

    That is the bound on the terms left out, at most ρ ½ (s² + s) Σ x² with
    ρ = u^(K-1)/((K+1)(1-u)), and u^(K+1)/(1-u) of those of the means, which is added. Where an
    order makes the pairs too different for the series it is computed as there.

    Args:
        pairs: m pairs.
        orders: λ > 0, ascending, (K,).
        draws, temperature: as there.

    Returns:
        (K, m).

    >>> pairs = GaussianPairs(torch.tensor([[1.001]]), torch.tensor([[1e-4]]))
    >>> close = close_draws_cost(pairs, torch.tensor([1.0, 30.0]))
    >>> bool((close / pairs.log_moment(torch.tensor([1.0, 30.0])) - 1).abs().max() < 1e-11)
    True
    """
    orders, x = orders.double(), (pairs.r - 1).T.contiguous()
    largest = float(x.abs().max()) if len(pairs) else 0.0
    near = (orders * largest <= _CLOSE) & torch.tensor(largest <= _CLOSE)
    parts = []
    if bool(near.any()):
        b2 = pairs.b2.T / temperature
        weights = draws / 2 * _weights(orders[near], largest)
        blocks = zip(x.split(_BLOCK, 1), b2.split(_BLOCK, 1), strict=True)
        parts.append(torch.cat([weights @ _sums(*block) for block in blocks], 1))
    if not bool(near.all()):
        parts.append(posterior_draws_cost(pairs, orders[~near], draws, temperature))
    # Orders ascend, so those that are near come first.
    return torch.cat(parts)


def _sums(x: Tensor, b2: Tensor) -> Tensor:
    """Return Σ_j b_j² x_j^k, k = 0 … K, then Σ_j x_j^k, k = 2 … K: (2K, n)."""
    x, product, power = x.contiguous(), b2.contiguous(), x
    means, covariances = [product.sum(0)], []
    for k in range(1, _DEGREE + 1):
        product = product * x
        means.append(product.sum(0))
        if k > 1:
            power = power * x
            covariances.append(power.sum(0))
    return torch.stack(means + covariances)


def _weights(s: Tensor, largest: float) -> Tensor:
    """Return what the sums are multiplied by at each order, twice over: (orders, 2K)."""
    u = max(1.0, float(s.max())) * largest
    means = [s * (s + 1) * s**k for k in range(_DEGREE + 1)]
    means[0] *= 1 + u ** (_DEGREE + 1) / (1 - u)
    covariances = [(s**k + (-1) ** k * s) / k for k in range(2, _DEGREE + 1)]
    covariances[0] += (s * s + s) * u ** (_DEGREE - 1) / ((_DEGREE + 1) * (1 - u))
    return torch.stack(means + covariances, 1)

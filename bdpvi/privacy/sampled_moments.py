"""The log-moments λ·D_{λ+1} of noisy sums over Poisson samples, for each record.

Costs have the shape (orders, records), or (records,) at a single order, so that the costs of
several releases add up record by record. They are expectations over k ~ Binomial, hence known at
integer orders λ only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bdpvi._ground import validate

_CHUNK = 2**20
"""The most numbers in memory, besides the result, while a mixture is summed."""

_LARGEST_EXPONENT = 600.0
"""Up to this exponent a mixture is a matrix product, many times faster than in log space."""


def seen_coin_cost(cost: Tensor, presence: float) -> Tensor:
    """Return λ D_{λ+1} of a step that is taken with a probability, by a coin that is also released.

    log(1 − p + p e^c): the divergence is that of the coin and the step together, and the coin has
    the same law for both neighbours.

    >>> float(seen_coin_cost(torch.tensor(2.0).log(), 0.5).exp())
    1.5
    """
    if presence == 1:
        return cost
    return torch.logaddexp(torch.full_like(cost, math.log1p(-presence)), cost + math.log(presence))


def subsampled_gaussian_cost(
    distance: Tensor | float, noise: float, rate: float, order: Tensor | int
) -> Tensor:
    """Return the cost of a Gaussian mechanism on a Poisson sample of the records.

    With d = ‖g − g′‖ and E over k ~ Binomial(λ+1, q),

        λ·D_{λ+1}(D‖D′) = log E e^{(k²−k) d²/2σ²},

    exact at integer λ (Mironov, Talwar and Zhang 2019, §3.3) and the larger of the two directions
    (their Theorem 5). Triastcyn and Faltings (2020, Theorem 4) take the maximum with
    log E e^{(k²+k) d²/2σ²}, k ~ Binomial(λ, q), for the other direction. That bound is valid, but
    of first order in q while the divergence is of second order, so it would lose nearly all the
    gain of subsampling. With d the clipping norm for every record this is the moments
    accountant.

    Args:
        distance: d, how far the record moves the released sum, at least 0, any shape, commonly
            (m,).
        noise: σ, standard deviation of the noise in the units of ``distance``.
        rate: q, each record's probability of being in the sample, in (0, 1].
        order: λ, integers of at least 1; a number or (K,).

    Returns:
        (K, m), or the shape of ``distance`` at a single order.

    Raises:
        ValueError: if an argument is out of range or an order is not an integer.

    >>> cost = subsampled_gaussian_cost(torch.tensor([0.0, 1.0]), 4.0, 0.01, torch.tensor([1, 10]))
    >>> [[f"{c:.2e}" for c in row] for row in cost.tolist()]
    [['0.00e+00', '6.45e-06'], ['0.00e+00', '3.57e-04']]
    """
    distance = torch.as_tensor(distance, dtype=torch.float64)
    holds = (distance >= 0) & distance.isfinite()
    validate.every("distance", distance, holds, "be finite and at least 0")
    scaled = distance**2 / (2 * validate.positive("noise", noise) ** 2)
    orders, rate, each = _whole_orders(order), validate.rate("rate", rate), scaled.flatten()
    k = torch.arange(int(orders.max()) + 2, dtype=torch.float64, device=each.device)
    log_weights = [_log_binomial(int(n) + 1, rate).to(each.device) for n in orders.flatten()]
    weights = pad_sequence([weight.exp() for weight in log_weights], batch_first=True)
    result = each.new_empty(len(weights), len(each))
    width = max(1, _CHUNK // weights.shape[1])
    for start in range(0, len(each), width):
        chunk = slice(start, start + width)
        moments = (k * (k - 1))[:, None] * each[chunk]
        # As E 1 = 1 it is log1p(Σ_k w_k expm1(f_k)), which is accurate when every f_k is tiny.
        if bool((moments < _LARGEST_EXPONENT).all()):
            result[:, chunk] = torch.log1p(weights @ torch.expm1(moments))
            continue
        gain = _log_expm1(moments)
        for i, log_weight in enumerate(log_weights):
            total = torch.logsumexp(log_weight[:, None] + gain[: len(log_weight)], dim=0)
            result[i, chunk] = torch.logaddexp(torch.zeros_like(total), total)
    return result.reshape(orders.shape + scaled.shape)


def _log_binomial(trials: int, rate: float) -> Tensor:
    """Return log Pr[k] of Binomial(trials, rate) for k = 0 … trials."""
    n, k = float(trials), torch.arange(trials + 1, dtype=torch.float64)
    ways = math.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    missed = torch.special.xlog1py(n - k, torch.tensor(-rate, dtype=torch.float64))
    log_weight = ways + k * math.log(rate) + missed
    # At rate 1 a weight of 0 must not meet an infinite moment as −∞ + ∞. Where one moment is
    # infinite the last is too, so the sum is +∞ in any case.
    lowest = torch.finfo(torch.float64).min
    return torch.clamp(log_weight, min=lowest)


def _log_expm1(value: Tensor) -> Tensor:
    value = value.clamp(min=0)  # log-moments are never negative; rounding may make them so
    return value + torch.log(-torch.expm1(-value))


def _whole_orders(order: Tensor | int) -> Tensor:
    orders = torch.as_tensor(order, dtype=torch.float64)
    holds = (orders > 0) & orders.isfinite() & (orders == orders.round())
    return validate.every("order", orders, holds, "be a whole number of at least 1")

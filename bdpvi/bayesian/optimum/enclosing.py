"""Replaces pairs known up to an error by pairs that cost at least as much as the true ones."""

from __future__ import annotations

import torch
from torch import Tensor

from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs


def enclosing(pairs: GaussianPairs, mean_error: Tensor, covariance_error: Tensor) -> GaussianPairs:
    """Return pairs from which a common channel produces every pair within the errors.

    The outputs of a channel are no easier to distinguish than its inputs (Blackwell 1953). So δ(ε)
    at every ε and Rényi divergences of every order, for several draws and at any temperature, are
    at least as large, in both directions.

    In units of the fit a pair is N(β, I) against N(0, I + E), E = diag(1/r - 1). The target is
    N(β + ω, I) against N(0, I + E + Δ), ‖ω‖ ≤ ρ, ‖Δ‖ ≤ η. With shares κ and κ′, take independent

    - u: N(β, I)/√a against N(0, I + (E + ηI)/a), a = 1 - κ - κ′ (the mean alone over √a);
    - v: N(0, I) against N(0, (1 - h)I), h = 2η/κ;
    - w: N(ρ/√κ′, 1) against N(0, 1).

    The channel returns √a u + Bv + cw + noise, B = ((ηI - Δ)/h)^½, c = √κ′ ω/ρ, the noise of
    covariance K = I - aI - BBᵀ - ccᵀ, which is no less than 0 as BBᵀ ≤ 2η/h = κ and ccᵀ ≤ κ′. The
    first of the pair becomes N(β + ω, I); the second has the covariance
    K + aI + E + ηI + (1 - h)BBᵀ + ccᵀ = I + E + ηI - (ηI - Δ). (B v can lower a variance and √a u
    raise it: the sign of an eigenvalue of E + Δ near 0 is unknown.)

    To lowest order κ costs the share κ of S = ‖β‖² + ‖E‖², and v costs d h²/2; the minimum is at
    h³ = 2ηS/d. κ′ is about ρ/√S.

    Args:
        pairs: fit against neighbours, m pairs of d variables.
        mean_error: ρ, of the neighbour's mean in standard deviations of the fit, (m,).
        covariance_error: η, of its covariance in units of the fit's, spectral norm, (m,).

    Returns:
        Pairs of 2d + 1 variables.

    Raises:
        FloatingPointError: if the errors are too large for this.

    >>> pairs = GaussianPairs(torch.ones(1, 1), torch.ones(1, 1))
    >>> some = enclosing(pairs, torch.full((1,), 1e-3), torch.full((1,), 1e-9))
    >>> some.r.shape, round(float(some.b2.sum()), 4)
    (torch.Size([1, 3]), 1.002)
    """
    change, beta2 = 1 / pairs.r - 1, pairs.b2 / pairs.r
    rho, eta = mean_error.unsqueeze(1), covariance_error.unsqueeze(1)
    size = (beta2 + change.square()).sum(1, keepdim=True)
    h = (2 * eta * size / change.shape[1]).pow(1 / 3).maximum(8 * eta)
    kappa = torch.where(eta > 0, 2 * eta / h, 0)
    for_mean = torch.where(rho > 0, rho / (size.sqrt() + 2 * rho), 0)
    a = 1 - kappa - for_mean
    pushed = (change + eta) / a
    if not bool(((pushed > -1) & (h < 1)).all()):
        raise FloatingPointError(
            f"covariance_error={covariance_error.max().item():.3g} is too large for a bound"
        )
    grown = torch.cat([1 + pushed, (1 - h).expand_as(change), torch.ones_like(h)], 1)
    far = torch.where(rho > 0, rho.square() / for_mean, 0)
    beta2 = torch.cat([beta2 / a, torch.zeros_like(change), far], 1)
    return GaussianPairs(1 / grown, beta2 / grown)

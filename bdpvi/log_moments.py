"""The log-moments of the privacy loss between Gaussians side by side, one pair a column."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# log(1+u) - u is summed as a series below this |u|, where the difference would lose digits.
_NEAR = 0.1


def divergences(s: Tensor, r: Tensor, b2: Tensor) -> Tensor:
    """Return ``log M(s)/s = D_{s+1}``, continuous at s = 0, for s of shape (K, 1) or (K, m).

    ``log M(s) = ½ Σ_j [s(s+1) b_j²/w_j - log w_j - s log r_j]``, ``w = 1 - s x``, ``x = r - 1``.
    The two logarithms cancel to first order in x: with ``l(u) = log(1+u) - u`` they are
    ``l(-sx) + s l(x)``, two terms of one sign for real s > 0.

    Args:
        s: real above -½, or complex with such a real part.
        r, b2: as in :class:`bdpvi.divergences.GaussianPairs`, (d, m).

    Returns:
        (K, m); +inf where it does not exist.

    >>> divergences(torch.tensor([[2.0]]), torch.ones(1, 1), torch.ones(1, 1))  # (s+1) b²/2
    tensor([[1.5000]])
    """
    x = r - 1
    reach = float(s.abs().max())
    quadratic, logs = s.new_zeros(()), s.new_zeros(())
    for x_j, b2_j in zip(x, b2, strict=True):
        u = s * -x_j
        w = 1 + u
        logs = logs + _log1pmx(u, w, reach * float(x_j.abs().max()))
        quadratic = quadratic + b2_j / w
    constant = _log1pmx(x, r, math.inf).sum(0)
    value = ((s + 1) * quadratic - logs / torch.where(s == 0, 1, s) - constant) / 2
    return value.masked_fill_(s.real * x.amax(0) >= 1, math.inf)


def _log1pmx(u: Tensor, w: Tensor, largest: float) -> Tensor:
    """Return ``log w - u`` for w = 1 + u, accurate where u is small; ``largest`` bounds |u|."""
    if largest < _NEAR:
        return _log1pmx_series(u)
    return torch.where(u.abs() < _NEAR, _log1pmx_series(u), _log(w).sub_(u))


def _log1pmx_series(u: Tensor) -> Tensor:
    """Return ``log(1+u) - u = v (2y Σ_k y^k/(2k+3) - u)``, v = u/(2+u), y = v²: 2 artanh v - u."""
    v = u / (u + 2)
    y = v * v
    tail = y * (2 / 11)
    for odd in (9, 7, 5, 3):
        tail.add_(2 / odd).mul_(y)
    return tail.sub_(u).mul_(v)


def _log(w: Tensor) -> Tensor:
    """Return log w. The complex one in real steps, several times as fast as torch's own."""
    if not w.is_complex():
        return w.log()
    return torch.complex((w.real**2 + w.imag**2).log() / 2, torch.atan2(w.imag, w.real))

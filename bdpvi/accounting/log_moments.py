"""What log-moments of the privacy loss between Gaussians are made of, pairs side by side.

With ``w_j = 1 - s x_j`` and ``x = r - 1``, see
:class:`bdpvi.accounting.gaussian_pairs.GaussianPairs`,

    log M(s) = ½ Σ_j [s(s+1) b_j²/w_j - log w_j - s log r_j].

Pairs are columns.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bdpvi._runtime import machine_code

FAR = 10.0
"""x from which on the logarithms are taken as they are."""
# log(1+u) - u is summed as a series below this |u|, where the difference would lose digits.
_NEAR = 0.1


class LogMoments:
    """What is computed for many pairs at once, by torch."""

    def divergences(self, s: Tensor, r: Tensor, b2: Tensor) -> Tensor:
        """Return ``log M(s)/s = D_{s+1}``, continuous at s = 0, for s of shape (K, 1) or (K, m).

        The two logarithms cancel to first order in x: with ``l(u) = log(1+u) - u`` they are
        ``l(-sx) + s l(x)``, two terms of one sign for real s > 0.

        Args:
            s: real above -½, or complex with such a real part.
            r, b2: (d, m).

        Returns:
            (K, m); +inf where it does not exist.

        >>> one = torch.ones(1, 1)
        >>> float(LogMoments().divergences(2 * one, one, one))  # (s+1) b²/2
        1.5
        """
        x = r - 1
        reach = float(s.abs().max())
        # Far from 1 -sx and s x would only cancel, and leave nothing of the logarithms.
        far = x > FAR
        quadratic, logs = s.new_zeros(()), s.new_zeros(())
        for x_j, b2_j, far_j in zip(x, b2, far, strict=True):
            u = s * -x_j
            w = 1 + u
            log = _log1pmx(u, w, reach * float(x_j.abs().max()))
            if bool(far_j.any()):
                whole = torch.where(u.abs() < _NEAR, log + u, _log(w))
                # At s = 0 it stands for the limit of log w/s.
                log = torch.where(far_j, torch.where(s == 0, -x_j, whole), log)
            logs = logs + log
            quadratic = quadratic + b2_j / w
        constant = torch.where(far, r.log(), _log1pmx(x, r, math.inf)).sum(0)
        value = ((s + 1) * quadratic - logs / torch.where(s == 0, 1, s) - constant) / 2
        return value.masked_fill_(s.real * x.amax(0) >= 1, math.inf)

    def fractions(self, s: Tensor, x: Tensor, b2: Tensor) -> tuple[Tensor, Tensor]:
        """Return Σ_j b_j²/w_j and W = Π_j w_j, w = 1 - s x.

        The sum is one fraction N/W, from ``N -> N w + b² W, W -> W w``, so that a coordinate takes
        five multiplications.

        Args:
            s: real or complex, (J, 1) or (J, m).
            x, b2: (d, m), d ≥ 1.

        Returns:
            Both (J, m), of the type of ``s``.

        >>> one, x = torch.ones(1, 1), torch.tensor([[-1.0], [-3.0]])
        >>> total, product = LogMoments().fractions(one, x, one.expand(2, 1))
        >>> float(total), float(product)  # w is 2 and 4
        (0.75, 8.0)
        """
        b2 = b2.to(s.dtype)
        product, fraction = (s * -x[0]).add_(1), b2[0]
        for x_j, b2_j in zip(x[1:], b2[1:], strict=True):
            w = (s * -x_j).add_(1)
            fraction = (fraction * w).addcmul_(product, b2_j)
            product.mul_(w)
        return fraction / product, product


def log_moments_for(many: int, d: int, device: torch.device) -> LogMoments:
    """Return what suits so many pairs of d variables: machine code, if it pays to load it.

    >>> type(log_moments_for(100, 3, torch.device("cpu"))).__name__
    'LogMoments'
    """

    def compiled() -> LogMoments:
        from bdpvi.accounting.log_moments_compiled import CompiledLogMoments

        return CompiledLogMoments()

    return machine_code.where_it_pays(many * d, device, compiled, LogMoments)


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

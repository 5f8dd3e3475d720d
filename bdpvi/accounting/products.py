"""Log M of many Gaussian pairs at many points, by products over coordinates: few logarithms.

It is the formula of :mod:`bdpvi.accounting.log_moments`; one division and one logarithm serve a
group of coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from bdpvi.accounting.log_moments import LogMoments, log_moments_for

_BLOCK = 1 << 15
"""Points × pairs at a time, which stay in cache."""
_POINTS = 32
"""How much more an inversion does for each pair than it takes to make it: it pays to load machine
code for so many times fewer pairs."""
_LARGEST = 300.0
"""Of log |W|, so that no square overflows."""


def log_mgf_by_products(
    r: Tensor, b2: Tensor, temperature: float = 1.0
) -> Callable[[Tensor], Tensor]:
    """Return the function from s to ``log M(s)``, real or complex as s is.

    Its error is at most about ``4e-16 d (1 + |log M|)``: small beside 1, not beside a tiny log M,
    which is what inverting M needs (:mod:`bdpvi.accounting.inversion`); elsewhere
    :meth:`bdpvi.accounting.gaussian_pairs.GaussianPairs.log_mgf` is the one to take.

    Args:
        r: eigenvalues of m pairs, (m, d).
        b2: squared differences of their means, (m, d).
        temperature: τ > 0.

    Returns:
        From s, (J,) or (J, m) with real parts above 0, to (J, m); +inf where M does not exist.

    >>> log_mgf = log_mgf_by_products(torch.ones(1, 2), torch.ones(1, 2))
    >>> log_mgf(torch.tensor([2.0, 1 + 1j]))  # s(s+1) Σ b²/2
    tensor([[6.+0.j],
            [1.+3.j]], dtype=torch.complex128)
    """
    x = (r.double() - 1).T.contiguous()
    means = b2.double().T / temperature
    drift = r.double().log().sum(1)

    log_moments = log_moments_for(_POINTS * x.shape[1], x.shape[0], x.device)

    def log_mgf(s: Tensor) -> Tensor:
        s = s.to(torch.complex128 if s.is_complex() else torch.float64)
        s = s.unsqueeze(-1) if s.ndim == 1 else s
        value = s.new_empty(len(s), x.shape[1])
        size = max(1, _BLOCK // max(1, len(s)))
        for start in range(0, x.shape[1], size):
            i = slice(start, start + size)
            points = s if s.shape[1] == 1 else s[:, i]
            value[:, i] = _log_mgf(points, x[:, i], means[:, i], drift[i], log_moments)
        return value

    return log_mgf


def _log_mgf(s: Tensor, x: Tensor, b2: Tensor, drift: Tensor, log_moments: LogMoments) -> Tensor:
    """Return log M for s of shape (J, 1) or (J, n), x and b² of shape (d, n)."""
    total = -s * drift
    square = s * (s + 1)
    for group in _groups(s, x):
        fraction, product = log_moments.fractions(s, x[group], b2[group])
        total = total.addcmul_(square, fraction).sub_(_log(product))
    gone = s.real * x.amax(0) >= 1
    return total.div_(2).masked_fill_(gone, math.inf) if bool(gone.any()) else total.div_(2)


def _groups(s: Tensor, x: Tensor) -> Iterator[slice]:
    """Split the coordinates so that no product overflows, and all can be followed along s.

    From one point to the next, on the straight line between them, ``arg w`` changes by at most
    ``|Δs x|/min Re w``, and by less than π/2 from the real axis. A group's changes add up to less
    than π, or it is one coordinate.
    """
    size = _size(s).amax(0)
    if len(x) * math.log1p(float(size.max() * x.abs().max())) < _LARGEST and not s.is_complex():
        yield slice(len(x))
        return
    sizes = torch.log1p(size * x.abs()) * (math.pi / _LARGEST)
    bounds = sizes.unsqueeze(0)
    if s.is_complex():
        c = torch.stack(s.real.aminmax(dim=0))
        least = 1 - (c.unsqueeze(1) * x).amax(0)
        stride = torch.cat([s[:1].imag.abs(), _size(s.diff(dim=0))]).amax(0)
        turns = torch.where(least > 0, stride * x.abs() / least, math.inf).clamp(max=math.pi / 2)
        bounds = torch.stack([sizes, turns])
    if float(bounds.sum(1).max()) < math.pi:
        yield slice(len(x))
        return
    start, within = 0, torch.zeros_like(bounds[:, 0])
    for j in range(len(x)):
        within = within + bounds[:, j]
        if j > start and not float(within.max()) < math.pi:
            yield slice(start, j)
            start, within = j, bounds[:, j]
    yield slice(start, len(x))


def _log(w: Tensor) -> Tensor:
    """Return log w; where w is complex, with an argument that is followed down each column.

    It turns by less than π from one row to the next, and to the first from the real axis.
    """
    if not w.is_complex():
        return w.log()
    # In real steps, several times as fast as torch's own.
    real, imag = w.real.contiguous(), w.imag.contiguous()
    angle = torch.atan2(imag, real)
    turns = (angle.diff(dim=0) / (2 * math.pi)).round_().cumsum(0)
    angle[1:].sub_(turns, alpha=2 * math.pi)
    return torch.complex((real**2).addcmul_(imag, imag).log_().div_(2), angle)


def _size(s: Tensor) -> Tensor:
    """Return |s|; of complex numbers several times as fast as torch's own."""
    return s.real.square().addcmul_(s.imag, s.imag).sqrt_() if s.is_complex() else s.abs()

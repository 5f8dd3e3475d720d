"""Log M of many Gaussian pairs at many points, by products over coordinates: few logarithms.

For the privacy loss of :mod:`bdpvi.divergences`, with ``w_j = 1 - s x_j`` and ``x = r - 1``,

    log M(s) = ½ [s(s+1) Σ_j b_j²/w_j - Σ_j log w_j - s Σ_j log r_j].

``Σ b_j²/w_j`` is one fraction N/W with W = Π w_j, from ``N -> N w + b² W, W -> W w``, so that a
coordinate takes five multiplications, and one division and one logarithm serve a group of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

_BLOCK = 1 << 15
"""Points × pairs at a time, which stay in cache."""
_LARGEST = 300.0
"""Of log |W|, so that no square overflows."""


def log_mgf_by_products(
    r: Tensor, b2: Tensor, temperature: float = 1.0
) -> Callable[[Tensor], Tensor]:
    """Return the function from s to ``log M(s)``, real or complex as s is.

    Its error is at most about ``4e-16 d (1 + |log M|)``: small beside 1, not beside a tiny log M,
    which is what inverting M needs (:mod:`bdpvi.hockey_stick`); elsewhere
    :meth:`bdpvi.divergences.GaussianPairs.log_mgf` is the one to take.

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

    def log_mgf(s: Tensor) -> Tensor:
        s = s.to(torch.complex128 if s.is_complex() else torch.float64)
        s = s.unsqueeze(-1) if s.ndim == 1 else s
        value = s.new_empty(len(s), x.shape[1])
        size = max(1, _BLOCK // max(1, len(s)))
        for start in range(0, x.shape[1], size):
            i = slice(start, start + size)
            points = s if s.shape[1] == 1 else s[:, i]
            value[:, i] = _log_mgf(points, x[:, i], means[:, i], drift[i])
        return value

    return log_mgf


def _log_mgf(s: Tensor, x: Tensor, b2: Tensor, drift: Tensor) -> Tensor:
    """Return log M for s of shape (J, 1) or (J, n), x and b² of shape (d, n)."""
    total = -s * drift
    square = s * (s + 1)
    b2 = b2.to(s.dtype)
    for group in _groups(s, x):
        first, *others = group
        product, fraction = (s * -x[first]).add_(1), b2[first]
        for j in others:
            w = (s * -x[j]).add_(1)
            fraction = (fraction * w).addcmul_(product, b2[j])
            product.mul_(w)
        total = total.addcmul_(square, fraction / product).sub_(_log(product))
    return (total / 2).masked_fill_(s.real * x.amax(0) >= 1, math.inf)


def _groups(s: Tensor, x: Tensor) -> Iterator[list[int]]:
    """Split the coordinates so that no product overflows, and all can be followed along s.

    From one point to the next, on the straight line between them, ``arg w`` changes by at most
    ``|Δs x|/min Re w``, and by less than π/2 from the real axis. A group's changes add up to less
    than π, or it is one coordinate.
    """
    largest = len(x) * math.log1p(float(s.abs().max() * x.abs().max()))
    if largest < _LARGEST and not s.is_complex():
        yield list(range(len(x)))
        return
    sizes = torch.log1p(s.abs().amax(0) * x.abs()) * (math.pi / _LARGEST)
    bounds = sizes.unsqueeze(0)
    if s.is_complex():
        c = torch.stack([s.real.amin(0), s.real.amax(0)])
        least = 1 - (c.unsqueeze(1) * x).amax(0)
        stride = torch.cat([s[:1].imag.abs(), s.diff(dim=0).abs()]).amax(0)
        turns = torch.where(least > 0, stride * x.abs() / least, math.inf).clamp(max=math.pi / 2)
        bounds = torch.stack([sizes, turns])
    if float(bounds.sum(1).max()) < math.pi:
        yield list(range(len(x)))
        return
    group: list[int] = []
    within = torch.zeros_like(bounds[:, 0])
    for j in range(len(x)):
        within = within + bounds[:, j]
        if group and not float(within.max()) < math.pi:
            yield group
            group, within = [], bounds[:, j]
        group.append(j)
    yield group


def _log(w: Tensor) -> Tensor:
    """Return log w; where w is complex, with an argument that is followed down each column.

    It turns by less than π from one row to the next, and to the first from the real axis.
    """
    if not w.is_complex():
        return w.log()
    # In real steps, several times as fast as torch's own.
    angle = torch.atan2(w.imag, w.real)
    turns = (angle.diff(dim=0) / (2 * math.pi)).round_().cumsum(0)
    angle[1:].sub_(turns, alpha=2 * math.pi)
    return torch.complex((w.real**2 + w.imag**2).log_().div_(2), angle)

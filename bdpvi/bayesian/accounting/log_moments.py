"""Log-moments of the privacy loss between Gaussians, for many pairs at many orders.

A pair is given by its eigenvalues r and squared mean differences b² (see
:class:`bdpvi.bayesian.accounting.gaussian_pairs.GaussianPairs`). With ``x = r - 1`` and ``w = 1 - s
x``,

    log M(s) = ½ Σ_j [s(s+1) b_j²/w_j - log w_j - s log r_j]

(Gil, Alajaji and Linder 2013, Table 2). :func:`divergences` evaluates it to a relative error of
about 1e-13, which Rényi divergences need. :func:`log_mgf_by_products` has a small absolute error,
at complex s too, which suffices to invert M and is several times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bdpvi._ground import machine_code, threads
from bdpvi.privacy.gaussian import log_of

CLOSE = 0.1
"""|u| below which log(1+u) - u is summed as a series, as the difference would lose digits; and |x|
and |s x| up to which power sums of x serve all orders."""
_DEGREE = 14
"""Degree of the power sums. Their truncation error is below 1e-14 of the log-moment at |s x| = 0.1;
a higher degree would cost time."""
_FAR = 10.0
"""x above which the logarithms are taken directly: 1 - s x and s x would cancel."""
_RECORDS, _ENTRIES = 4096, 1 << 17
"""Pairs, and pairs × orders, at a time, so that they stay in cache."""
_LOG_PRODUCT = 300.0
"""Largest log |Π w|, so that no square overflows."""


def divergences(s: Tensor, r: Tensor, b2: Tensor) -> Tensor:
    """Return ``log M(s)/s``, the Rényi divergences D_{s+1} of m pairs, continuous at s = 0.

    The two logarithms of a coordinate cancel to first order in x: with ``l(u) = log(1+u) - u`` they
    are ``l(-sx) + s l(x)``, two terms of one sign for real s > 0. Orders at which all |s x| of a
    block are small take one matrix product of power sums of x, 2·degree for every record. The
    other orders go coordinate by coordinate, with numba if it is installed and there are enough
    pairs to be worth loading it.

    Args:
        s: (K, 1), or (K, m) for separate points of each pair; real above -½, or complex with such
            a real part.
        r, b2: (m, d).

    Returns:
        (K, m); +inf where the divergence does not exist.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> float(divergences(2 * one, one, one))  # (s+1) b²/2
    1.5
    """
    value = s.new_empty(len(s), len(r))
    own = s.is_complex() or s.shape[1] > 1
    by_coordinates = _by_coordinates if own else _evaluation(r)

    def fill(i: slice) -> None:
        pairs, points = (r[i], b2[i]), s[:, i] if s.shape[1] > 1 else s
        largest = math.inf if own else float((pairs[0] - 1).abs().max())
        close = (points.abs().amax(1) * largest <= CLOSE) & (largest <= CLOSE)
        if bool(close.any()):
            value[close, i] = _by_power_sums(points[close], *pairs)
        if not bool(close.all()):
            value[~close, i] = by_coordinates(points[~close], *pairs)

    blocks = threads.slices(len(r), _RECORDS) if len(r) else []
    for _ in map(fill, blocks) if len(blocks) < 2 else threads.each(fill, blocks):
        pass
    return value


def _by_power_sums(s: Tensor, r: Tensor, b2: Tensor) -> Tensor:
    """Return :func:`divergences` for s (K, 1) with |s x| and |x| of at most ``CLOSE``.

    ``½ (s+1) Σ_k s^k Σ_j b_j² x_j^k + ½ Σ_{k≥2} (s^(k-1) + (-1)^k)/k Σ_j x_j^k``.
    """
    x = (r - 1).T
    power, mean, sums, weights = x, b2.T, [b2.sum(1)], [s + 1]
    for k in range(1, _DEGREE + 1):
        mean = mean * x
        sums.append(mean.sum(0))
        weights.append((s + 1) * s**k)
        if k > 1:
            power = power * x
            sums.append(power.sum(0))
            weights.append((s ** (k - 1) + (-1) ** k) / k)
    return torch.cat(weights, 1) / 2 @ torch.stack(sums)


def _by_coordinates(s: Tensor, r: Tensor, b2: Tensor) -> Tensor:
    """Return :func:`divergences`, computed with torch coordinate by coordinate."""
    height = max(1, _ENTRIES // len(r))
    if len(s) > height:
        return torch.cat([_by_coordinates(block, r, b2) for block in s.split(height)])
    x = (r - 1).T.contiguous()
    reach = float(s.abs().max())
    far = x > _FAR
    quadratic, logs = s.new_zeros(()), s.new_zeros(())
    for x_j, b2_j, far_j in zip(x, b2.T, far, strict=True):
        u = s * -x_j
        w = 1 + u
        log = _log1pmx(u, w, reach * float(x_j.abs().max()))
        if bool(far_j.any()):
            whole = torch.where(u.abs() < CLOSE, log + u, log_of(w))
            # At s = 0 this is the limit of log w/s.
            log = torch.where(far_j, torch.where(s == 0, -x_j, whole), log)
        logs = logs + log
        quadratic = quadratic + b2_j / w
    value = ((s + 1) * quadratic - logs / torch.where(s == 0, 1, s) - _constant(r)) / 2
    return value.masked_fill_(s.real * x.amax(0) >= 1, math.inf)


def _constant(r: Tensor) -> Tensor:
    """Return Σ_j log r_j - x_j, (m,), without -x_j where x_j is far."""
    x = r - 1
    return torch.where(x > _FAR, r.log(), _log1pmx(x, r, math.inf)).sum(1)


def _evaluation(r: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return a function of real orders (K, 1), coordinate by coordinate: numba if it pays off."""
    return machine_code.where_it_pays(r.numel(), r.device, _compiled, lambda: _by_coordinates)


@cache
def _compiled() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return :func:`_by_coordinates` for real orders (K, 1) as machine code."""
    from numba import njit

    loop: Callable[..., None]
    try:
        loop = njit(nogil=True, error_model="numpy", cache=True)(_loop)
    except RuntimeError:  # there is no folder for machine code
        loop = njit(nogil=True, error_model="numpy")(_loop)

    def evaluate(s: Tensor, r: Tensor, b2: Tensor) -> Tensor:
        out = s.new_empty(len(s), len(r))
        arrays = (t.contiguous().numpy() for t in (s[:, 0], r, b2, _constant(r), out))
        loop(*arrays, CLOSE, _FAR)
        return out

    return evaluate


def _loop(s: Any, r: Any, b2: Any, constant: Any, out: Any, close: float, far: float) -> None:
    """Write :func:`divergences` of arrays s (K,), r and b2 (m, d) to out (K, m)."""
    for i in range(r.shape[0]):
        for k in range(len(s)):
            quadratic, logs, least = 0.0, 0.0, 1.0
            for j in range(r.shape[1]):
                x = r[i, j] - 1
                u = -s[k] * x
                w = 1 + u
                least = min(least, w)
                if w <= 0:
                    break
                quadratic += b2[i, j] / w
                if x > far and s[k] == 0:
                    logs -= x
                elif abs(u) < close:
                    v = u / (u + 2)
                    y = v * v
                    tail = y * (2 / 3 + y * (2 / 5 + y * (2 / 7 + y * (2 / 9 + y * (2 / 11)))))
                    logs += v * (tail - u) + (u if x > far else 0.0)
                else:
                    logs += math.log(w) - (0.0 if x > far else u)
            value = (s[k] + 1) * quadratic - logs / (s[k] if s[k] != 0 else 1.0) - constant[i]
            out[k, i] = value / 2 if least > 0 else math.inf


def log_mgf_by_products(
    r: Tensor, b2: Tensor, temperature: float = 1.0
) -> Callable[[Tensor], Tensor]:
    """Return the function from s to ``log M(s)``, real or complex as s is.

    One division and one logarithm serve a group of coordinates. The error is at most about
    ``4e-16 d (1 + |log M|)``: small compared to 1, but not to a tiny log M. That suffices to invert
    M (:mod:`bdpvi.privacy.inversion`); otherwise use
    :meth:`bdpvi.bayesian.accounting.gaussian_pairs.GaussianPairs.log_mgf`.

    Args:
        r: eigenvalues of m pairs, (m, d).
        b2: squared differences of their means, (m, d).
        temperature: τ > 0.

    Returns:
        Maps s, (J,) or (J, m) with real parts above 0, to (J, m); +inf where M does not exist.

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
        size = max(1, _ENTRIES // 4 // max(1, len(s)))
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
    for group in _groups(s, x):
        fraction, product = _fractions(s, x[group], b2[group])
        total = total.addcmul_(square, fraction).sub_(_log_followed(product))
    gone = s.real * x.amax(0) >= 1
    return total.div_(2).masked_fill_(gone, math.inf) if bool(gone.any()) else total.div_(2)


def _fractions(s: Tensor, x: Tensor, b2: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ_j b_j²/w_j and W = Π_j w_j, (J, n), for x and b² (d, n).

    The sum is one fraction N/W, built by ``N -> N w + b² W, W -> W w``: five multiplications per
    coordinate.
    """
    b2 = b2.to(s.dtype)
    product, fraction = (s * -x[0]).add_(1), b2[0]
    for x_j, b2_j in zip(x[1:], b2[1:], strict=True):
        w = (s * -x_j).add_(1)
        fraction = (fraction * w).addcmul_(product, b2_j)
        product.mul_(w)
    return fraction / product, product


def _groups(s: Tensor, x: Tensor) -> Iterator[slice]:
    """Split the coordinates so that no product overflows and its argument can be tracked along s.

    Along the straight line from one point to the next, ``arg w`` changes by at most
    ``|Δs x|/min Re w``, and by less than π/2 from the real axis. The changes of a group sum to less
    than π, unless it is a single coordinate.
    """
    size = _size(s).amax(0)
    bounds = (torch.log1p(size * x.abs()) * (math.pi / _LOG_PRODUCT)).unsqueeze(0)
    if s.is_complex():
        c = torch.stack(s.real.aminmax(dim=0))
        least = 1 - (c.unsqueeze(1) * x).amax(0)
        stride = torch.cat([s[:1].imag.abs(), _size(s.diff(dim=0))]).amax(0)
        turns = torch.where(least > 0, stride * x.abs() / least, math.inf).clamp(max=math.pi / 2)
        bounds = torch.cat([bounds, turns.unsqueeze(0)])
    start, within = 0, torch.zeros_like(bounds[:, 0])
    if not float(bounds.sum(1).max()) < math.pi:
        for j in range(len(x)):
            within = within + bounds[:, j]
            if j > start and not float(within.max()) < math.pi:
                yield slice(start, j)
                start, within = j, bounds[:, j]
    yield slice(start, len(x))


def _log1pmx(u: Tensor, w: Tensor, largest: float) -> Tensor:
    """Return ``log w - u`` for w = 1 + u, accurate where u is small; ``largest`` bounds |u|."""
    if largest < CLOSE:
        return _log1pmx_series(u)
    return torch.where(u.abs() < CLOSE, _log1pmx_series(u), log_of(w).sub_(u))


def _log1pmx_series(u: Tensor) -> Tensor:
    """Return ``log(1+u) - u = v (2y Σ_k y^k/(2k+3) - u)``, v = u/(2+u), y = v²: 2 artanh v - u."""
    v = u / (u + 2)
    y = v * v
    tail = y * (2 / 11)
    for odd in (9, 7, 5, 3):
        tail.add_(2 / odd).mul_(y)
    return tail.sub_(u).mul_(v)


def _log_followed(w: Tensor) -> Tensor:
    """Return log w; for complex w with an argument that is continuous down each column.

    It changes by less than π from row to row, and from the real axis to the first row.
    """
    log = log_of(w)
    if w.is_complex():
        turns = (log.imag.diff(dim=0) / (2 * math.pi)).round_().cumsum(0)
        log.imag[1:].sub_(turns, alpha=2 * math.pi)
    return log


def _size(s: Tensor) -> Tensor:
    """Return |s|; for complex numbers several times as fast as torch's own."""
    return s.real.square().addcmul_(s.imag, s.imag).sqrt_() if s.is_complex() else s.abs()

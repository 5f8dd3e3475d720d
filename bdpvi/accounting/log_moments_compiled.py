"""Log-moments of many pairs in machine code, by numba: the faster ``accounting.log_moments``.

A line of pairs goes through all points in registers. A division takes as long as a dozen other
operations, so it is shared.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from bdpvi._runtime.vectors import DOUBLES, Array, Lines, Value, compiled, each, kernel
from bdpvi.accounting.log_moments import FAR, LogMoments

_TERMS = 11
"""Of a series in v², v² ≤ 0.0295, whose first is 2v²/3; those left out are below 1e-17 of it."""


class CompiledLogMoments(LogMoments):
    """What :class:`LogMoments` does, in machine code, on a processor."""

    def divergences(self, s: Tensor, r: Tensor, b2: Tensor) -> Tensor:
        """In registers, where s is real, the same for every column, and no r far from 1."""
        # Of a small r not enough is left in r - 1.
        far = (r > FAR) | (r * FAR < 0.1)
        if s.is_complex() or s.shape[1] != 1 or bool(far.any()):
            return super().divergences(s, r, b2)
        points, out = s.flatten(), s.new_empty(len(s), r.shape[1])
        inverses = torch.where(points == 0, 1, points).reciprocal().numpy()
        pairs = (r - 1).contiguous().numpy(), b2.contiguous().numpy()
        _divergences(points.contiguous().numpy(), inverses, *pairs, out.numpy())
        return out

    def fractions(self, s: Tensor, x: Tensor, b2: Tensor) -> tuple[Tensor, Tensor]:
        """In registers, real numbers as complex ones."""
        rows, m = len(s), x.shape[1]
        width = -(-m // DOUBLES) * DOUBLES
        points = x.new_zeros(2, rows, width)
        points[0, :, :m] = s.real
        if s.is_complex():
            points[1, :, :m] = s.imag
        out = x.new_empty(4, rows, width)
        pairs = _padded(x, width).numpy(), _padded(b2, width).numpy()
        _fractions(points.numpy(), *pairs, out.numpy())
        total, total_imag, product, product_imag = out[:, :, :m]
        if not s.is_complex():
            return total, product
        return torch.complex(total, total_imag), torch.complex(product, product_imag)


def _padded(rows: Tensor, width: int) -> Tensor:
    """Return rows of this width, with zeros at their ends."""
    missing = width - rows.shape[1]
    return torch.nn.functional.pad(rows, (0, missing)) if missing else rows.contiguous()


@compiled
def _divergences(s: Array, inverses: Array, x: Array, b2: Array, out: Array) -> None:
    d, m = x.shape
    ratio, square, value = np.zeros(d * DOUBLES), np.zeros(d * DOUBLES), np.zeros(len(s) * DOUBLES)
    for start in range(0, m, DOUBLES):
        end = min(start + DOUBLES, m)
        ratio.reshape(d, DOUBLES)[:, : end - start] = x[:, start:end]
        square.reshape(d, DOUBLES)[:, : end - start] = b2[:, start:end]
        _orders(s, inverses, ratio, square, value, d)
        out[:, start:end] = value.reshape(len(s), DOUBLES)[:, : end - start]


@compiled
def _fractions(points: Array, x: Array, b2: Array, out: Array) -> None:
    for place in range(0, out.shape[2], DOUBLES):
        _fraction(points, x, b2, out, place)


@kernel
def _fraction(points: Lines, x: Lines, b2: Lines, out: Lines, place: Value) -> None:
    """Write a line of pairs' parts at every point, see :meth:`LogMoments.fractions`."""
    _, rows, width = points.shape
    with each(rows) as k:
        here, imaginary = k * width + place, rows * width
        real, imag = points[here], points[here + imaginary]
        one, other = (x.variable(1), x.variable(0)), (x.variable(0), x.variable(0))
        with each(x.shape[0]) as j:
            along, square = x[j * width + place], b2[j * width + place]
            w = 1 - real * along, -(imag * along)
            product, fraction = ((part[0].now, part[1].now) for part in (one, other))
            grown = _times(fraction, w)
            for i in (0, 1):
                other[i].now = grown[i] + product[i] * square
                one[i].now = _times(product, w)[i]
        product, fraction = ((part[0].now, part[1].now) for part in (one, other))
        total = _over(fraction, product)
        for i, part in enumerate((*total, *product)):
            out[here + imaginary * i] = part


def _times(a: tuple[Value, Value], b: tuple[Value, Value]) -> tuple[Value, Value]:
    """Return a product of complex numbers."""
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _over(a: tuple[Value, Value], b: tuple[Value, Value]) -> tuple[Value, Value]:
    """Return a quotient of complex numbers, with no square that could underflow."""
    scale = 1 / b[0].largest(-b[0]).largest(b[1].largest(-b[1]))
    up, down = (a[0] * scale, a[1] * scale), (b[0] * scale, b[1] * scale)
    inverse = 1 / (down[0] * down[0] + down[1] * down[1])
    return _times(up, (down[0] * inverse, -(down[1] * inverse)))


@kernel
def _orders(s: Lines, inverses: Lines, x: Lines, b2: Lines, value: Lines, d: Value) -> None:
    """Write D_{s+1} of a line of pairs at every s, see :meth:`LogMoments.divergences`."""
    constant = x.variable(0)
    with each(d) as j:
        excess, _ = _log_excess(x[j * DOUBLES])
        constant.now = constant.now + excess
    with each(s.shape[0]) as k:
        point = s.number(k)
        logs, quadratic, least = x.variable(0), x.variable(0), x.variable(1)
        with each(d) as j:
            u = -(point * x[j * DOUBLES])
            excess, inverse = _log_excess(u)
            logs.now = logs.now + excess
            quadratic.now = quadratic.now + b2[j * DOUBLES] * inverse
            least.now = least.now.least(1 + u)
        total = (point + 1) * quadratic.now - logs.now * inverses.number(k) - constant.now
        value[k * DOUBLES] = least.now.where("<=", 0, total.of(math.inf), total * 0.5)


def _log_excess(u: Value) -> tuple[Value, Value]:
    """Return log w - u, w = 1 + u, and 1/w; anything where w is not a positive number.

    With w = 2ⁿ(1 + g), |g| ≤ 0.42, it is n log 2 + (g - u) + (log(1 + g) - g), the last as
    ``bdpvi.accounting.log_moments`` has it. Where n = 0, g is u, not the less exact w - 1.
    """
    w = 1 + u
    f, n = w.apart()
    zero = n.of(0)
    g = n.where("==", 0, u, f - 1)
    beyond = g + 2
    both = 1 / (beyond * w)  # a division takes as long as a dozen other operations
    v = g * (both * w)
    y = v * v
    tail = y.of(2 / (2 * _TERMS + 1))
    for k in range(_TERMS - 1, 0, -1):
        tail = tail * y + 2 / (2 * k + 1)
    rest = n.where("==", 0, zero, n * math.log(2) + (g - u))
    return rest + v * (tail * y - g), both * beyond

"""Gaussian samples, rounded to a lattice without any error.

A coordinate is y = m + Σⱼ Lᵢⱼ ξⱼ in units of the lattice, ξⱼ = Φ⁻¹(uⱼ), with uⱼ uniform on [0, 1);
what is released is ⌊y + ½⌋. Of uⱼ the first bits are known, so ξⱼ is known to within e, and y to
within E, floating-point errors included:

    E = Σⱼ |Lᵢⱼ| (eⱼ + (d + 8) 2⁻⁵² |ξⱼ|) + 2⁻⁵¹ (1 + |y − m|),
    e = 2⁻ᵇ √2π exp(ξ²/2) + 2⁻⁴⁴ (1 + |ξ|)

for b bits: a cell of uⱼ is 2⁻ᵇ wide, so within half of that of its middle, where the slope of Φ⁻¹,
√2π exp(ξ²/2), at most doubles if e (|ξ| + 1) ≤ ½; elsewhere e counts as infinite. 2⁻⁴⁴ is a hundred
times the error of the quantile in float64. If no boundary of a cell lies within E of y, more bits
would not change the result. Otherwise, for one sample in 10⁹ or so, more bits are drawn and
arithmetic has more digits, until it is settled. So the result is the rounded exact sample, in any
tail: it has the same probability for every set, with no total variation for δ to cover.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from bdpvi.noise.keys import Key

if TYPE_CHECKING:
    from mpmath import mpf

_UNIT = 2.0**-52
_MORE = 64
"""Bits that are added at a time."""
_LARGEST = 2.0**49
"""A mean further out, in units of the lattice, is not left to float64."""


def uncertain_cells(y: Tensor, mean: Tensor, factor: Tensor, noise: Tensor, bits: int) -> Tensor:
    """Return where a computed sample may lie in another cell than the exact one, (k, d).

    Args:
        y: computed samples plus ½, minus some integer, (k, d), in units of the lattice.
        mean: m, (d,), in these units.
        factor: L, (d, d), or (d,) for a diagonal, in these units.
        noise: ξ at the middles of their cells, (k, d).
        bits: b.
    """
    size, d = noise.abs(), noise.shape[1]
    wide = 2.0**-bits * math.sqrt(2 * math.pi) * (size.square() / 2).exp()
    wide = wide.where(wide * (size + 1) <= 0.5, math.inf) + 2.0**-44 * (1 + size)
    each = wide + (d + 8) * _UNIT * size
    spread = each * factor.abs() if factor.ndim == 1 else each @ factor.abs().T
    room = 1.01 * (spread + 2 * _UNIT * (1 + y.abs()))
    near = (y - y.round()).abs() <= room
    return near | ~(room < 0.5) | (mean.abs() > _LARGEST)


def settle(
    cells: Tensor,
    inside: Tensor,
    mean: Tensor,
    factor: Tensor,
    temperature: float,
    noise: Tensor,
    key: Key,
    bits: int,
) -> None:
    """Correct the rounded samples that arithmetic in float64 does not settle, in place.

    Args:
        cells: ⌊y + ½⌋ as computed, (k, d).
        inside: y + ½ as computed, minus some integers.
        mean, factor: m, (d,), and L at temperature 1, (d, d) or (d,), in units of the lattice.
        temperature: τ; L is multiplied by √τ.
        noise: ξ at the middles of their cells, (k, d).
        key: its words have the first ``bits`` bits of each uⱼ.
        bits: b.
    """
    open_ = uncertain_cells(inside, mean, math.sqrt(temperature) * factor, noise, bits)
    if not bool(open_.any()):
        return
    words = (key.words(noise.numel()) >> np.uint64(64 - bits)).reshape(noise.shape)
    rows = torch.diag(factor) if factor.ndim == 1 else factor
    for k, i in open_.nonzero().tolist():
        keys = [key.child("more bits", k, j) for j in range(noise.shape[1])]
        cells[k, i] = _round_exactly(float(mean[i]), rows[i], temperature, words[k], keys, bits)


def _round_exactly(
    mean: float,
    factor: Tensor,
    temperature: float,
    words: NDArray[np.uint64],
    keys: list[Key],
    bits: int,
) -> int:
    """Return ⌊y + ½⌋ exactly.

    Args:
        mean: m, in units of the lattice.
        factor: a row of L at temperature 1, (d,), in these units.
        temperature: τ; L is multiplied by √τ.
        words: the first ``bits`` bits of each uⱼ, as integers, (d,).
        keys: secret keys of the further bits of each uⱼ.
        bits: b.
    """
    import mpmath

    known, count = bits, 0
    used = [j for j, one in enumerate(factor.tolist()) if one]
    while True:
        count += 1
        known = bits + _MORE * count
        with mpmath.workprec(known + 2 * _MORE):
            scale, slack = mpmath.sqrt(mpmath.mpf(temperature)), mpmath.mpf(2) ** -(known + 32)
            low = high = mpmath.mpf(mean) + mpmath.mpf(1) / 2
            size = abs(low)
            for j in used:
                more = int.from_bytes(keys[j].words(count).astype(">u8").tobytes(), "big")
                whole = (int(words[j]) << (_MORE * count)) + more
                ends = [_quantile(whole + add, known) for add in (0, 1)]
                weight = mpmath.mpf(float(factor[j])) * scale
                first, last = ends if weight > 0 else ends[::-1]
                low, high = low + weight * first, high + weight * last
                size += max(abs(weight * end) for end in ends)
            if mpmath.isfinite(low) and mpmath.isfinite(high):
                ends = [mpmath.floor(low - slack * size), mpmath.floor(high + slack * size)]
                if ends[0] == ends[1]:
                    return int(ends[0])


def _quantile(whole: int, bits: int) -> mpf:
    """Return Φ⁻¹(whole/2^bits) to within 2⁻⁴⁰ of the last of these bits, relative to 1 + |ξ|.

    >>> import mpmath
    >>> float(_quantile(3, 2)), float(_quantile(0, 2))
    (0.6744897501960817, -inf)
    """
    import mpmath

    if whole in (0, 1 << bits):
        return mpmath.inf if whole else -mpmath.inf
    if 2 * whole > 1 << bits:  # of the lower tail all digits are known
        return -_quantile((1 << bits) - whole, bits)
    share = mpmath.mpf(whole) / (1 << bits)
    result: Any = mpmath.mpf(float(ndtri(float(share))))
    room = mpmath.mpf(2) ** -(bits + 40)
    while True:
        result -= (mpmath.ncdf(result) - share) / mpmath.npdf(result)
        near = room * (1 + abs(result))
        if mpmath.ncdf(result - near) <= share <= mpmath.ncdf(result + near):
            return result

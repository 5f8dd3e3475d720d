"""Randomness for releases: neither a seed nor the low bits of a draw reveal the mean.

Floating-point samples of a Gaussian reveal its mean: few other means can produce the low bits of a
sample (Mironov, CCS 2012). So the mean is clamped to a public box, and the sample is rounded to a
public lattice that is far coarser than float64 and fine enough for its use. Rounding is
post-processing and costs no privacy. The rounded sample equals the rounded exact one, as bits and
digits are added where float64 does not settle it (:mod:`bdpvi.noise.exact_rounding`).
:func:`total_variation` bounds the error of float64 alone, and accountants still add it to δ.

The noise is added not to the mean itself but to its position between two points of the lattice,
measured from the nearest boundary between cells. That leaves no error for a large mean, and none
for small noise: a sum's sign is exact, so there is no error at that boundary, and at the others the
noise is at least as large as the position.

Private sums (:func:`gaussian_sum`) have too many coordinates and steps for any δ to cover these
rounding errors. Their sum is rounded first, and the noise is an integer number of lattice steps
from :mod:`bdpvi.noise.whole_normals`: addition is exact, and θ is 6e-34 per coordinate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor
from torch.distributions import Distribution, Independent

from bdpvi._ground import validate
from bdpvi._ground.host import HOST, on_host, onto
from bdpvi.noise.keys import Key
from bdpvi.noise.whole_normals import BLOCK, LAW, WholeNormals

BITS = 52
"""Random bits per draw; 53 plus the half would round up to 1, whose quantile is infinite."""

Amount = TypeVar("Amount", float, Tensor)

_REACH = 8.3
"""Bound on a draw, in standard deviations: the quantile of 1 − 2⁻⁵³ is 8.21."""


@dataclass(frozen=True)
class Lattice:
    """The possible values of samples: multiples of a power of two. Step and box are public.

    Attributes:
        step: g, the distance between values.
        box: means are clamped to ± box; +inf means no clamping.
    """

    step: float
    box: float = math.inf

    @classmethod
    def beside(cls, deviation: float) -> Lattice:
        """Return the lattice for noise whose standard deviation is public.

        g is at most 2⁻⁵ of it, so rounding adds at most 8e-5 of the variance; the box is 2¹⁵ g, at
        least 512 standard deviations.

        >>> Lattice.beside(1.0)
        Lattice(step=0.03125, box=1024.0)
        """
        step = 2.0 ** math.floor(math.log2(deviation / 32))
        return cls(step, 2.0**15 * step)

    @classmethod
    def of(cls, step: float) -> Lattice:
        """Return the lattice whose step is the power of two at or below ``step``."""
        return cls(2.0 ** math.floor(math.log2(step)))


def total_variation(
    lattice: Lattice, mean: Tensor, deviation: Tensor, *, dense: bool, bits: int = BITS
) -> float:
    """Bound the total variation between a rounded sample in float64 and a rounded exact one.

    Couple both by their uniform random numbers. They are rounded to the same point unless a
    boundary between two points of the lattice lies between them. (1) A uniform of b bits is within
    2⁻ᵇ⁻¹ of the exact one, so a boundary separates them with probability at most 2⁻ᵇ; a coordinate
    meets 16.6 σ/g + 1 boundaries within ± 8.3 σ, √d times as many and d if it is a sum of d
    normals; 1.5 times that is charged, for the quantile function's own rounding. (2) All later
    steps move a coordinate by at most η. The mean's part of η is a constant: it crosses a
    boundary with probability at most (2η/g)(1 + g/σ√2π), as the density summed over the lattice is
    at most 1/g plus its maximum. The noise's part is at most (d + 12) 2⁻⁵³ σ times the norm of all
    normals, at most |ξ| + r, ξ the coordinate over σ and r, of a mean up to (d − 1)^½, independent
    of it. For |ξ| between k − 1 and k that is a constant again, given r; summed over k, with
    E⌈|ξ|⌉ < 1.4, it crosses with probability at most 2⁻⁵² (d + 12)(1.4 + (d − 1)^½)(σ/g + 1.3).
    (3) Values that a draw cannot reach, beyond ± 8.2 σ, have the probability 2⁻ᵇ.

    Args:
        lattice: the lattice.
        mean: size of the means, (d,): an upper bound on |μ|, before the box. 0 suffices if |μ| is
            below 2⁵⁰ g: 12 units cover the error of :func:`sample`'s sum, 3 units of the noise's.
        deviation: σ of each coordinate, at the temperature of the draw, (d,).
        dense: whether coordinates are sums of d normals (a Cholesky factor) or of one.
        bits: b.

    Returns:
        θ of one sample of d coordinates; k samples have k θ.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> f"{total_variation(Lattice.beside(1.0), one, one, dense=False):.1e}"
    '3.3e-13'
    """
    d = len(deviation) if dense else 1
    unit = 2.0**-53
    size = mean.abs().clamp(max=lattice.box)
    noise, steps = (d + 12) * (1.4 + math.sqrt(d - 1)), deviation / lattice.step
    # Rounding of the mean and the sum; of the quantile, the product and the d additions.
    of_mean = 2 * size / lattice.step * (1 + 1 / (steps * math.sqrt(2 * math.pi)))
    crossed = 2 * unit * (of_mean + noise * (steps + 1.3))
    boundaries = 2 * _REACH * math.sqrt(d) * steps + d
    return float((crossed + 1.5 * 2.0**-bits * boundaries + 2.0**-bits).sum())


@on_host
def standard_normal(shape: tuple[int, ...], key: Key | None = None) -> Tensor:
    """Return standard normal draws from a secret key, by default a fresh one, float64.

    Each has 52 random bits, mapped by the inverse distribution function: values lie within 8.3
    standard deviations, which omits a mass of 2e-16. Their low bits can reveal a mean: see
    :class:`Lattice` for releases.

    >>> standard_normal((2, 3)).shape
    torch.Size([2, 3])
    """
    words = (key or Key.fresh()).words(math.prod(shape))
    return torch.from_numpy(normal_of(words)).reshape(shape)


def normal_of(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the standard normal draws of words of 64 uniform bits; see :func:`standard_normal`.

    >>> bool(normal_of(Key.of_seed(0).words(2))[1] == standard_normal((2,), Key.of_seed(0))[1])
    True
    """
    raw = words >> np.uint64(64 - BITS)
    return np.asarray(ndtri((raw.astype(np.float64) + 0.5) * 2.0**-BITS), dtype=np.float64)


@on_host
def sample(
    posterior: Distribution,
    draws: int = 1,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    lattice: Lattice | None = None,
    key: Key | None = None,
) -> Tensor:
    """Return samples from N(μ, τΣ), (draws, d), float64 on the CPU; exactly rounded if secret.

    Args:
        posterior: N(μ, Σ), an Independent Normal or a MultivariateNormal.
        draws: number of samples.
        temperature: τ.
        generator: for repeatable experiments; by default the secure source is used.
        lattice: the lattice to round samples to; None, only for samples that are never
            published, does not round.
        key: secret, for this draw only; a fresh one by default.
    """
    mean = posterior.mean.cpu().double()
    if lattice is not None:
        mean = mean.clamp(-lattice.box, lattice.box)
    shape, key = (draws, len(mean)), key or Key.fresh()
    if generator is None:
        noise = standard_normal(shape, key)
    else:
        noise = torch.randn(shape, dtype=torch.float64, generator=generator, device=HOST)
    diagonal = isinstance(posterior, Independent)
    factor = (posterior.stddev if diagonal else posterior.scale_tril).cpu().double()  # type: ignore[attr-defined]
    scaled = math.sqrt(temperature) * (noise * factor if diagonal else noise @ factor.T)
    if lattice is None:
        return mean + scaled
    # A division by a power of two is exact, and so is the position in the cell, unless it is ¼ or
    # more from its boundary; adding 0 turns -0 into 0, as its sign would survive.
    place = mean / lattice.step
    above = (place - 0.5).round() + 1.0
    inside = place - (above - 0.5) + scaled / lattice.step
    cells = inside.floor() + above
    if generator is None:
        from bdpvi.noise.exact_rounding import settle  # late: settings need none

        settle(cells, inside, place, factor / lattice.step, temperature, noise, key, BITS)
    return cells * lattice.step + 0.0


def sum_step(deviation: Amount) -> Amount:
    """Return g, the step of the lattice of :func:`gaussian_sum`: about 2⁻³³ deviations.

    It is rounded up, so that the noise is never too small.
    """
    return deviation * ((1 + 2.0**-50) / LAW.deviation)


def gaussian_sum(total: Tensor, deviation: float, key: Key | None = None) -> Tensor:
    """Return total + N(0, deviation²) on a public lattice, float64, on the total's device.

    Let g = :func:`sum_step` (deviation) and s be the deviation of the integers X,
    :class:`~bdpvi.noise.whole_normals.WholeNormals`. The result is g (r + X) with r the integers
    nearest to total/g.

    **Privacy.** r + round(sZ) = round(r + sZ) for a standard normal Z, so g (r + round(sZ)) is a
    rounded, that is post-processed, Gaussian mechanism on g r; and the computed r + X is the exact
    one, rounded if it is above 2⁵³. So the result reveals no more of the total than g r + gsZ, up
    to the total variation between X and round(sZ), which is :func:`sum_rounding`. Dividing by g and
    rounding move a coordinate of up to 2⁵² g, half a million deviations, by at most g (a half each;
    beyond that the division has an error of 2⁻⁵³ of the total, like the additions behind it). So if
    one record moves the total of n coordinates by at most C, it moves g r by at most
    C + :func:`sum_slack`; a price for C needs that much more noise.

    The numbers X are the same on every device. Large totals on another device have theirs drawn
    there; for small ones they are drawn on the CPU, which nothing waits for.

    Args:
        total: any shape; values that are not finite stay unchanged.
        deviation: standard deviation of the noise, public and positive.
        key: secret, for this sum only; a fresh one by default.

    >>> noisy = gaussian_sum(torch.zeros(3), 2.0, Key.of_seed(0))
    >>> bool(((noisy / sum_step(2.0)).round() * sum_step(2.0) == noisy).all())
    True
    """
    validate.positive("deviation", deviation)
    normals = WholeNormals(key or Key.fresh())
    noisy = torch.empty(total.shape, dtype=torch.float64, device=total.device)
    place = total.device if total.numel() >= BLOCK else HOST
    parts = zip(total.reshape(-1).split(BLOCK), noisy.view(-1).split(BLOCK), strict=True)
    for part, into in parts:
        into.copy_(add_whole(part, deviation, normals.take(len(part), place)))
    return noisy


def add_whole(total: Tensor, deviation: Amount, whole: Tensor) -> Tensor:
    """Return g (r + X); see :func:`gaussian_sum`.

    Args:
        total, deviation, whole: of matching shapes; ``whole`` are the numbers X.
    """
    step = sum_step(deviation)
    nearest = (total.detach().double() / step).round_()
    return nearest.add_(onto(whole, nearest.device)).mul_(step)


def on_lattice(total: Tensor, deviation: float) -> Tensor:
    """Return the nearest points of the lattice of :func:`gaussian_sum`, float64."""
    step = sum_step(deviation)
    return (total.double() / step).round_().mul_(step)


def sum_slack(deviation: Amount, coordinates: int) -> Amount:
    """Return by how much more than C a record may move the rounded sum: 2√n g.

    Two neighbouring totals are each rounded by at most g in every coordinate.
    """
    return sum_step(deviation) * (2 * math.sqrt(coordinates))


def sum_rounding(coordinates: int) -> float:
    """Return θ of a sum of ``coordinates``: the total variation from the exact mechanism.

    >>> f"{sum_rounding(1_000_000) * 10_000:.1e}"  # of 10⁴ steps
    '5.3e-24'
    """
    return LAW.total_variation(coordinates)


def count_noise(shape: tuple[int, ...], deviation: float, normals: WholeNormals) -> Tensor:
    """Return integers K to add to counts: Gaussian noise, int64, of at least this deviation.

    With m the largest integer such that s/m is at least the deviation, K = ⌊(X + ⌊m/2⌋)/m⌋, in
    integers. A count c plus K is ⌊(cm + X + ⌊m/2⌋)/m⌋, which is post-processing of c + X/m:
    nothing is rounded before noise is added, so the error does not depend on a count's size, and
    one more record in a cell moves it by exactly 1. The only error is the total variation between X
    and round(sZ), :func:`sum_rounding`.

    Args:
        shape: shape of the counts.
        deviation: lower bound on the noise's deviation, public and positive.
        normals: from a secret key for these counts only.

    Raises:
        ValueError: if the deviation is above s, 8.6e9.

    >>> count_noise((4,), 100.0, WholeNormals(Key.of_seed(0))).dtype
    torch.int64
    """
    noise = normals.take(math.prod(shape)).to(torch.int64)
    return torch.from_numpy(in_counts(noise.numpy(), deviation)).reshape(shape)


def in_counts(whole: NDArray[np.int64], deviation: float) -> NDArray[np.int64]:
    """Return the noise of :func:`count_noise` for numbers X, of any shape."""
    parts = whole_parts(deviation)
    return np.asarray((whole + parts // 2) // parts)


def whole_parts(deviation: float) -> int:
    """Return m of :func:`count_noise`."""
    parts = int(LAW.deviation * (1 - 2.0**-50) / validate.positive("deviation", deviation))
    if parts < 1:
        raise ValueError(f"deviation={deviation:g} must be at most {LAW.deviation:g}")
    return parts


_WORDS, _FROM = 624, 24
"""The Mersenne twister's words in the result of torch.get_rng_state(): number and offset."""


@on_host
def stir(key: Key, device: torch.device = HOST) -> None:
    """Seed torch with all bits of a key, as a seed on the CPU has only 32.

    Args:
        key: the key.
        device: a further device, besides the host, that draws.
    """
    if device.type == "cuda":
        torch.cuda.manual_seed(int(key) % 2**63)
    state = torch.get_rng_state()
    words = state[_FROM : _FROM + 8 * _WORDS].view(torch.int64)
    words.copy_(torch.from_numpy((key.words(_WORDS) & 0xFFFFFFFF).astype("int64")))
    state[8:16].view(torch.int32).copy_(torch.tensor([1, 1], dtype=torch.int32))  # left, seeded
    state[16:_FROM].zero_()  # next
    torch.set_rng_state(state)

"""The part θ of δ that covers the floating-point arithmetic of released samples."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.distributions import Distribution, Independent

from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.inference.guide import Guide
from bdpvi.noise.secure import total_variation


class Reach(NamedTuple):
    """The largest distances of neighbours from the fit.

    Attributes:
        ratio: ratio of standard deviations, at least 1.
        shift: shift of means, in the neighbour's standard deviations.
    """

    ratio: float
    shift: float

    @classmethod
    def of(cls, *pairs: GaussianPairs) -> Reach:
        """Return √r and ‖b‖ of :mod:`bdpvi.bayesian.accounting.gaussian_pairs`, the largest of all
        pairs."""
        some = [p for p in pairs if len(p)]
        ratio = max((float(torch.maximum(p.r, 1 / p.r).max()) for p in some), default=1.0)
        shift = max((float(p.b2.sum(1).max()) for p in some), default=0.0)
        return cls(math.sqrt(ratio), math.sqrt(shift))


def rounding_error(
    guide: Guide, released: Distribution, reach: Reach, draws: int = 1, temperature: float = 1.0
) -> float:
    """Bound the total variation distance between drawn samples and the accountants' exact samples.

    The bound is for the fit and for every neighbour within reach. With a public noise scale the box
    bounds the mean, so θ is public too: the same for every data set.

    Args:
        guide: the fit's guide; samples are rounded to its lattice.
        released: the Gaussian of samples at temperature 1.
        reach: reach of the neighbours.
        draws: number of samples k.
        temperature: τ.
    """
    root, lattice = math.sqrt(temperature), guide.lattice(temperature)
    deviation = root * released.stddev.cpu().double()
    if guide.noise_scale is not None:
        box = torch.full_like(deviation, lattice.box)
        return draws * total_variation(lattice, box, deviation, dense=False)
    ratio, shift = reach
    mean = released.mean.cpu().double().abs() + ratio * deviation * shift / root
    dense = not isinstance(released, Independent)
    # One part of θ (boundaries) grows with σ, the other (density) falls with it.
    wide, narrow = (
        total_variation(lattice, mean, deviation * f, dense=dense) for f in (ratio, 1 / ratio)
    )
    return draws * (wide + narrow)


def public_rounding_error(
    guide: Guide, columns: int, precision: float, draws: int = 1, temperature: float = 1.0
) -> float:
    """Bound the total variation distance of :func:`rounding_error` for every table, publicly.

    It is for samples from N(m, τH⁻¹) with H ≥ λI, so that no deviation exceeds (τ/λ)^½; θ grows
    with deviations. Means may be as large as √N, but θ does not depend on them
    (:func:`~bdpvi.noise.secure.total_variation`).

    Args:
        guide: samples are rounded to its lattice.
        columns: d.
        precision: λ.
        draws: number of samples k.
        temperature: τ.
    """
    deviation = torch.full((columns,), math.sqrt(temperature / precision), dtype=torch.float64)
    lattice, mean = guide.lattice(temperature), torch.zeros_like(deviation)
    return draws * total_variation(lattice, mean, deviation, dense=True)

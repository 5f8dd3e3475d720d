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

    Samples of :mod:`bdpvi.noise.exact_rounding` have none; the bound is for float64 alone. δ covers
    it all the same, except in the worst case of draws at a mode, whose ε may be so large that
    (1 + e^ε) θ would use up δ. The bound is for the fit and for every neighbour within reach. With
    a public noise scale the box bounds the mean, so θ is public: the same for every data set.

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

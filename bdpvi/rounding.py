"""What the floating-point arithmetic of released samples costs: a part θ of δ."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.distributions import Distribution, Independent

from bdpvi.panel import Panel
from bdpvi.secure import total_variation
from bdpvi.svi import Guide


def rounding_error(
    guide: Guide,
    released: Distribution,
    panels: Sequence[Panel],
    draws: int = 1,
    temperature: float = 1.0,
) -> float:
    """Bound the total variation between samples as they are drawn and as accountants take them.

    The bound is for the fit and for every neighbour in the panels. Neighbour i has a standard
    deviation within √rᵢ, over all its r, of the fit's, and a mean within ‖bᵢ‖ of its own standard
    deviations (:mod:`bdpvi.divergences`). With a public noise scale the box bounds the mean, so θ
    is public too: the same for every data set.

    Args:
        guide: which says where samples are rounded to.
        released: the Gaussian that samples come from at temperature 1.
        panels: the fit against its neighbours.
        draws: number of samples k.
        temperature: τ.
    """
    root, lattice = math.sqrt(temperature), guide.lattice(temperature)
    deviation = root * released.stddev.cpu().double()
    if guide.noise_scale is not None:
        box = torch.full_like(deviation, lattice.box)
        return draws * total_variation(lattice, box, deviation, dense=False)
    ratio = max(float(torch.maximum(p.pairs.r, 1 / p.pairs.r).max()) for p in panels) ** 0.5
    shift = max(float(p.pairs.b2.sum(1).max()) for p in panels) ** 0.5
    mean = released.mean.cpu().double().abs() + ratio * deviation * shift / root
    dense = not isinstance(released, Independent)
    # θ grows with σ where boundaries are counted and falls with it where the density is.
    wide, narrow = (
        total_variation(lattice, mean, deviation * f, dense=dense) for f in (ratio, 1 / ratio)
    )
    return draws * (wide + narrow)

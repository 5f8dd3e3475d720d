"""Independent normal priors, as numbers, and sampled by Pyro."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class Prior(NamedTuple):
    """Independent normals: the prior of one latent variable.

    Attributes:
        mean: in the latent variable's shape.
        sd: the standard deviation of each, ().
    """

    mean: Tensor
    sd: Tensor


def log_prior(x: Tensor, *shape: int) -> Prior:
    """Return N(0, 2²), the prior of the logarithms of scales, of type and device of ``x``."""
    return Prior(x.new_zeros(shape), x.new_tensor(2.0))


def sampled(priors: Mapping[str, Prior]) -> dict[str, Tensor]:
    """Return the latent variables, each sampled by Pyro under its name, in order."""
    import pyro
    import pyro.distributions as dist

    return {
        name: pyro.sample(name, dist.Normal(mean, sd).to_event(mean.ndim))
        for name, (mean, sd) in priors.items()
    }

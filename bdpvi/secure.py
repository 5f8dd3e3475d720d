"""Randomness for what is released: nobody who learns a seed may undo a draw."""

from __future__ import annotations

import math
import os

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor
from torch.distributions import Distribution, Independent


def standard_normal(shape: tuple[int, ...]) -> Tensor:
    """Return standard normal draws from the operating system's cryptographic generator, float64.

    53 random bits each, turned normal by the inverse distribution function: values lie within
    8.3 standard deviations, which leaves out a mass of 1e-16. The spacing of floating-point
    numbers stays visible in the low bits of a draw, as with every sampler on floating-point
    numbers; a draw's secrecy rests on the Gaussian, not on those bits.

    >>> standard_normal((2, 3)).shape
    torch.Size([2, 3])
    """
    raw = np.frombuffer(os.urandom(8 * math.prod(shape)), dtype=np.uint64) >> np.uint64(11)
    return torch.from_numpy(ndtri((raw.astype(np.float64) + 0.5) * 2.0**-53)).reshape(shape)


def sample(
    posterior: Distribution,
    draws: int = 1,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return samples from N(μ, τΣ), (draws, d), float64 on the CPU.

    Args:
        posterior: N(μ, Σ), an Independent Normal or a MultivariateNormal.
        draws: number of samples.
        temperature: τ.
        generator: for experiments that must repeat; by default the secure source is used.
    """
    mean = posterior.mean.cpu().double()
    shape = (draws, len(mean))
    if generator is None:
        noise = standard_normal(shape)
    else:
        noise = torch.randn(shape, dtype=torch.float64, generator=generator)
    if isinstance(posterior, Independent):
        scaled = noise * posterior.stddev.cpu().double()
    else:
        scaled = noise @ posterior.scale_tril.cpu().double().T  # type: ignore[attr-defined]
    return mean + math.sqrt(temperature) * scaled

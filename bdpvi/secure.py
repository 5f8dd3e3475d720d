"""Randomness for what is released: nobody who learns a seed may undo a draw."""

from __future__ import annotations

import math
import os

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor


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

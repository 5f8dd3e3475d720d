"""Distributions of log y over records with a known mean, light tails and heavy ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Population:
    """A distribution of y.

    Attributes:
        name: what tables call it.
        log_value: log y as a function of a standard normal z.
        log_mean: log E y, in closed form.
        log_upper: a bound on log y, +inf if there is none.
        visible: whether a sample shows the tail. False where a few records in thousands, of whom
            most samples have none, make up the mean.
    """

    name: str
    log_value: Callable[[Array], Array]
    log_mean: float
    log_upper: float = math.inf
    visible: bool = True


def gaussian_square(rate: float, clip: float = math.inf) -> Population:
    """y = exp(λ min(z², c²)): what a Gaussian mechanism costs if distances are normal.

    It has moments up to 1/2λ; a finite clip c cuts it off.

    >>> round(gaussian_square(0.3).log_mean, 4), round(gaussian_square(0.3, clip=2.0).log_mean, 4)
    (0.4581, 0.3412)
    """
    if clip == math.inf:
        mean = (1 - 2 * rate) ** -0.5
        name = f"exp({rate:g} g²)"
    else:
        root = math.sqrt(1 - 2 * rate)
        inside = math.erf(clip * root / math.sqrt(2)) / root
        mean = inside + math.exp(rate * clip**2) * math.erfc(clip / math.sqrt(2))
        name = f"exp({rate:g} min(g², {clip**2:g}))"
    return Population(
        name, lambda z: rate * np.minimum(z * z, clip**2), math.log(mean), rate * clip**2
    )


def weibull(shape: float) -> Population:
    """y = 1 + Weibull(k); below k = 1 its tail is heavier than any exponential's.

    >>> round(weibull(0.5).log_mean, 4)
    1.0986
    """

    def log_value(z: Array) -> Array:
        return np.asarray(np.log1p((-special.log_ndtr(-z)) ** (1 / shape)), dtype=np.float64)

    return Population(f"1 + Weibull({shape:g})", log_value, math.log1p(math.gamma(1 + 1 / shape)))


def lognormal(sigma: float) -> Population:
    """y = exp(σz), all of whose moments exist."""
    return Population(f"lognormal({sigma:g})", lambda z: sigma * z, sigma**2 / 2)


def uniform() -> Population:
    """log y uniform on [0, 1]."""
    return Population("exp(uniform)", special.ndtr, math.log(math.e - 1), 1.0)


def rare(share: float = 1e-3, log_cost: float = 5.0) -> Population:
    """log y uniform on [0, 0.1], and ``log_cost`` more for a fraction ``share`` of the records.

    >>> z = np.random.default_rng(0).standard_normal(1_000_000)
    >>> bool(abs(np.log(np.exp(rare().log_value(z)).mean()) - rare().log_mean) < 5e-3)
    True
    """

    def log_value(z: Array) -> Array:
        u = special.ndtr(z)
        return np.asarray(0.1 * u + log_cost * (u > 1 - share), dtype=np.float64)

    common = math.expm1(0.1 * (1 - share)) / 0.1
    few = math.exp(0.1 * (1 - share)) * math.expm1(0.1 * share) / 0.1
    mean = common + math.exp(log_cost) * few
    name = f"1 in {1 / share:,.0f} costs {log_cost:g} more"
    return Population(name, log_value, math.log(mean), 0.1 + log_cost, visible=False)


POPULATIONS = (
    uniform(),
    gaussian_square(0.3, clip=2.0),
    gaussian_square(0.001),
    weibull(2.0),
    weibull(1.0),
    weibull(0.5),
    lognormal(0.5),
    lognormal(1.0),
    lognormal(2.0),
    gaussian_square(0.1),
    gaussian_square(0.2),
    gaussian_square(0.3),
    gaussian_square(0.4),
    rare(),
)

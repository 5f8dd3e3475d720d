"""The worst case of Poisson-sampled steps, and their calibration."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar, Protocol

from bdpvi._ground import validate
from bdpvi._ground.host import on_host
from bdpvi.privacy.cost import ADD_OR_REMOVE, Bound
from bdpvi.privacy.event import SAMPLED
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian import GAUSSIAN
from bdpvi.privacy.gaussian_dp import gaussian_epsilon, worst
from bdpvi.privacy.loss_distribution import composed
from bdpvi.privacy.rounding import after_rounding
from bdpvi.privacy.solve import smallest

_SLACK = 0.005
LEAST_NOISE = 0.02


class WorstCaseAccountant(Hashable, Protocol):
    """Maps the settings of a training run to its worst-case ε."""

    @property
    def name(self) -> str:
        """The accountant's name in reports."""

    @property
    def relation(self) -> str:
        """The relation between neighbouring data sets: "add or remove" or "replace" one record."""

    def epsilon(self, noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
        """Return ε at ``delta``; +inf if the accountant has no guarantee.

        Args:
            noise_multiplier: σ, positive: the noise's standard deviation over the clipping norm.
            rate: Poisson sampling rate q in (0, 1].
            steps: number of releases.
            delta: δ in (0, 1).

        Raises:
            ValueError: if an argument is out of range.
        """


@dataclass(frozen=True)
class PrivacyLossAccountant:
    """Privacy loss distributions of dp_accounting, rounded so that ε is never too small.

    The losses are rounded to a grid with steps of :func:`.loss_distribution.loss_interval`. Below
    σ = 0.02, where one step's ε is in the thousands, there is no guarantee.

    >>> round(PrivacyLossAccountant().epsilon(4.0, rate=0.01, steps=2000, delta=1e-3), 3)
    0.232
    """

    name: ClassVar[str] = SAMPLED
    relation: ClassVar[str] = ADD_OR_REMOVE

    @on_host
    def epsilon(self, noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
        """Return ε; see :class:`WorstCaseAccountant`."""
        _check(noise_multiplier, rate, steps, delta)
        run = SampledGaussian(noise_multiplier=noise_multiplier, rate=rate, steps=steps)
        return self.together((run,), delta)

    @on_host
    def together(self, runs: Sequence[SampledGaussian], delta: float) -> float:
        """Return ε at ``delta`` of several runs, each with sensitivity 1 and no unseen coins.

        Args:
            runs: in any order.
            delta: δ in (0, 1).
        """
        validate.probability("delta", delta)
        if min(run.noise_multiplier / run.rows for run in runs) < LEAST_NOISE:
            return math.inf
        return float(composed(runs).get_epsilon_for_delta(delta))


@dataclass(frozen=True)
class GaussianAccountant:
    """Gaussian differential privacy, exact, for runs that use all records in every step.

    T Gaussian releases compose to one Gaussian release of distance μ = √T/σ (Dong, Roth and Su
    2022, Corollary 2); its δ(ε) has a closed form and is solved for ε.

    >>> round(GaussianAccountant().epsilon(50.0, rate=1.0, steps=100, delta=1e-5), 4)
    0.7255
    """

    name: ClassVar[str] = GAUSSIAN
    relation: ClassVar[str] = ADD_OR_REMOVE

    @on_host
    def epsilon(self, noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
        """Return ε; see :class:`WorstCaseAccountant`. ``rate`` must be 1."""
        _check(noise_multiplier, rate, steps, delta)
        if rate != 1:
            raise ValueError(f"rate must be 1 for exact Gaussian DP, got {rate!r}")
        return gaussian_epsilon(steps / noise_multiplier**2, delta)


@on_host
def guarantee(
    accountant: WorstCaseAccountant,
    noise_multiplier: float,
    rate: float,
    steps: int,
    delta: float,
    rounding: float = 0.0,
) -> Bound | None:
    """Return the guarantee of a training run.

    Args:
        accountant, noise_multiplier, rate, steps, delta: see :class:`WorstCaseAccountant`.
        rounding: θ of the run, see :func:`rounding_delta`.

    Returns:
        None if there is no noise, ε is infinite, or rounding uses up δ.

    >>> print(guarantee(PrivacyLossAccountant(), 0.0, rate=0.01, steps=2000, delta=1e-3))
    None
    """
    if validate.non_negative("noise_multiplier", noise_multiplier) == 0:
        return None
    solve = partial(_epsilon, accountant, noise_multiplier, rate, steps)
    epsilon = after_rounding(solve, delta, rounding)
    if not math.isfinite(epsilon):
        return None
    return worst(epsilon, delta, accountant.name, relation=accountant.relation, rounding=rounding)


@lru_cache(maxsize=4096)
@on_host
def calibrate(
    accountant: WorstCaseAccountant, *, epsilon: float, delta: float, rate: float, steps: int
) -> float:
    """Return the smallest noise multiplier at which ``steps`` steps cost at most ``epsilon``.

    Args:
        accountant: prices the steps.
        epsilon: target, met from below within 0.5 %.
        delta: δ of the target.
        rate: Poisson sampling rate q.
        steps: number of steps.

    Raises:
        ValueError: if no noise reaches ``epsilon``, such as with the moments accountant below
            log(1/δ)/99.

    >>> noise = calibrate(GaussianAccountant(), epsilon=0.1, delta=1e-5, rate=1.0, steps=100)
    >>> 0.0995 < GaussianAccountant().epsilon(noise, 1.0, 100, 1e-5) <= 0.1
    True
    """
    validate.epsilon(epsilon)
    _check(1.0, rate, steps, delta)

    # The classical calibration of one Gaussian of distance q√T, right within a factor of about 2.
    guess = rate * math.sqrt(2 * steps * math.log(1.25 / delta)) / epsilon
    try:
        return smallest(
            lambda noise: _epsilon(accountant, noise, rate, steps, delta),
            epsilon,
            guess,
            slack=_SLACK,
        )
    except ArithmeticError as error:
        raise ValueError(
            f"epsilon={epsilon!r} cannot be reached at delta={delta!r} by the "
            f"{accountant.name}: any noise costs at least {error.args[0]:.4g}"
        ) from None


@lru_cache(maxsize=4096)
def _epsilon(
    accountant: WorstCaseAccountant, noise_multiplier: float, rate: float, steps: int, delta: float
) -> float:
    return accountant.epsilon(noise_multiplier, rate, steps, delta)


def _check(noise_multiplier: float, rate: float, steps: int, delta: float) -> None:
    """Raise ValueError for an argument of :class:`WorstCaseAccountant` that is out of range."""
    validate.positive("noise_multiplier", noise_multiplier)
    validate.rate("rate", rate)
    validate.positive_int("steps", steps)
    validate.probability("delta", delta)

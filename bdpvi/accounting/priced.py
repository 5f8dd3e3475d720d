"""What was done with a table, as far as the worst case needs it: what a ledger writes down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from bdpvi._runtime import validate
from bdpvi.accounting.events import WITH, WITHOUT, SampledGaussianSteps
from bdpvi.accounting.sampled_steps import SampledRuns
from bdpvi.accounting.worst_case import gaussian_guarantee, rounding_delta
from bdpvi.types import ADD_OR_REMOVE, Scope, WorstCase

RANGE = math.sqrt(2 * math.pi) / 4
"""μ of the Gaussian mechanism that an exponential one of bounded range 1 is no worse than."""


@dataclass(frozen=True, kw_only=True)
class SampledGaussian:
    """``steps`` sums over Poisson samples, clipped to norm C, with noise of σ · C.

    With rate 1 and one step it is any noisy sum, a Gaussian mechanism of distance μ = 1/σ.

    Attributes:
        noise_multiplier: σ.
        rate: Poisson sampling rate q.
        steps: T.
        presence: probability with which a step concerns a record at all, by a coin that is seen.
        unit: what is added or removed.
        rounding: total variation between what was released and this, of all steps together.
    """

    noise_multiplier: float
    rate: float = 1.0
    steps: int = 1
    presence: float = 1.0
    unit: str = "record"
    rounding: float = 0.0

    def __post_init__(self) -> None:
        validate.positive("noise_multiplier", self.noise_multiplier)
        validate.rate("rate", self.rate)
        validate.positive_int("steps", self.steps)
        validate.rate("presence", self.presence)
        validate.non_negative("rounding", self.rounding)
        validate.choice("unit", self.unit, ("record", "client"))

    @classmethod
    def of_distance(cls, distance: float, rounding: float = 0.0) -> SampledGaussian:
        """Return the Gaussian mechanism of distance μ.

        >>> SampledGaussian.of_distance(0.5).noise_multiplier
        2.0
        """
        return cls(noise_multiplier=1 / validate.positive("distance", distance), rounding=rounding)


@dataclass(frozen=True, kw_only=True)
class ExponentialMechanism:
    """A choice whose log-chances move within an interval of length ``range``.

    It is no worse than a Gaussian mechanism of distance .62666 · range (Dong, Durfee and Rogers
    2020; see :func:`bdpvi.datasets.exact.median`).
    """

    range: float

    def __post_init__(self) -> None:
        validate.positive("range", self.range)


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """Something that happens with probability δ at most where one unit more is in the table."""

    delta: float

    def __post_init__(self) -> None:
        validate.probability("delta", self.delta)


Priced = SampledGaussian | ExponentialMechanism | Threshold
"""What a worst case is composed of."""


def together(events: Sequence[tuple[Priced, int]], delta: float, rows: int = 1) -> WorstCase | None:
    """Return the guarantee of everything together, in any order, each event so many times.

    Gaussian mechanisms are together one of distance √Σμ², also where later ones depend on what
    earlier ones gave (Dong, Roth and Su 2022, Corollary 2); others by privacy loss distributions. A
    Gaussian mechanism of distance μ costs k rows at most what one of distance kμ costs one (Theorem
    2.14 there); thresholds are for all rows of a unit as they stand.

    Args:
        events: and how often each was.
        delta: δ of everything.
        rows: k, of one unit.

    Returns:
        None where ε is infinite, or nothing is left of δ.

    Raises:
        ValueError: if a unit has several rows and an event samples them one by one, which no
            formula here prices.

    >>> one = SampledGaussian.of_distance(0.3)
    >>> two = SampledGaussian.of_distance(0.4)
    >>> round(together([(one, 1), (two, 1)], 1e-5).distance, 12)
    0.5
    >>> together([(one, 4)], 1e-5).epsilon == together([(one, 1)], 1e-5, rows=2).epsilon
    True
    """
    kept = [(one, n) for one, n in events if isinstance(one, SampledGaussian)]
    rest = delta - math.fsum(n * one.delta for one, n in events if isinstance(one, Threshold))
    rounding = math.fsum(n * one.rounding for one, n in kept)
    if rest <= 0:
        return None
    ranges = [(one.range * RANGE, n) for one, n in events if isinstance(one, ExponentialMechanism)]
    whole = [one.rate == one.presence == 1 for one, _ in kept]
    if not all(whole):
        if rows > 1:
            raise ValueError(
                f"rows_per_unit={rows}: steps that sample single rows have no price for {rows} "
                "rows of one unit; sample units, or take all rows in each step (rate=1)"
            )
        return _sampled(kept, ranges, delta, rest, rounding)
    parts = [n * one.steps / one.noise_multiplier**2 for one, n in kept]
    variance = rows**2 * math.fsum([*parts, *(n * mu**2 for mu, n in ranges)])
    if not variance:
        return WorstCase(0.0, delta, "nothing was released", distance=0.0)
    found = gaussian_guarantee(variance, rest, rounding)
    return None if found is None else replace(found, delta=delta)


def _sampled(
    kept: Sequence[tuple[SampledGaussian, int]],
    ranges: Sequence[tuple[float, int]],
    delta: float,
    rest: float,
    rounding: float,
) -> WorstCase | None:
    """Return the guarantee by privacy loss distributions; rounding is priced at ε's own quarter."""
    runs = [(_run(one), n) for one, n in kept]
    runs += [(_run(SampledGaussian.of_distance(mu)), n) for mu, n in ranges]
    directions = tuple(f"add-or-remove {way}" for way in (WITH, WITHOUT))
    epsilon = 0.0
    while (left := rest - rounding_delta(rounding, epsilon)) > 0:
        found = SampledRuns(runs).worst_case(directions, left, 0.0)
        if found is None:
            return None
        if rounding_delta(rounding, found.epsilon) <= rounding_delta(rounding, epsilon):
            return replace(found, delta=delta, relation=ADD_OR_REMOVE, rounding=rounding)
        epsilon = found.epsilon
    return None


def _run(one: SampledGaussian) -> SampledGaussianSteps:
    """Return the steps for a record that is at the clip in each."""
    return SampledGaussianSteps(
        torch.arange(3),
        torch.ones(1, dtype=torch.float64),
        torch.full((3, 1), one.steps),
        one.noise_multiplier,
        one.rate,
        one.steps,
        scope=Scope.STATIC,
        presence=one.presence,
    )

"""Worst-case differential privacy of the Gaussian mechanism, repeated on Poisson samples.

Every training method here releases, at each step, a sum of vectors clipped to norm C plus
N(0, σ²C²) noise; each record is present with probability q. σ is the noise multiplier. The number
of steps, q and σ determine ε. Neighbours differ by one record added or removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from bdpvi._ground import validate
from bdpvi._ground.host import on_host
from bdpvi.privacy import mode_draws, perturbed_objective
from bdpvi.privacy.cost import ADD_OR_REMOVE, REPLACE, Bound, Kind
from bdpvi.privacy.distances import common_neighbours, unsampled, variance_of
from bdpvi.privacy.events import (
    WITH,
    WITHOUT,
    Event,
    ModeDraws,
    PerturbedObjective,
    Priced,
    SampledGaussian,
    Threshold,
)
from bdpvi.privacy.gaussian import equal_covariance
from bdpvi.privacy.loss_distribution import (
    deltas_on_grid,
    deltas_together,
    least_epsilons,
    loss_interval,
)
from bdpvi.privacy.rounding import after_rounding
from bdpvi.privacy.solve import root, smallest

if TYPE_CHECKING:
    import dp_accounting  # takes most of a second


NOTHING = "nothing was released"


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

    name: ClassVar[str] = "privacy loss distribution"
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
        if min(run.noise_multiplier for run in runs) < LEAST_NOISE:
            return math.inf
        from dp_accounting.pld import PLDAccountant

        interval = min(loss_interval(run.noise_multiplier, run.rate) for run in runs)
        accountant = PLDAccountant(value_discretization_interval=interval)
        for run in runs:
            accountant.compose(_event(run.noise_multiplier, run.rate), run.steps)
        return float(accountant.get_epsilon(delta))


@dataclass(frozen=True)
class GaussianAccountant:
    """Gaussian differential privacy, exact, for runs that use all records in every step.

    T Gaussian releases compose to one Gaussian release of distance μ = √T/σ (Dong, Roth and Su
    2022, Corollary 2); its δ(ε) has a closed form and is solved for ε.

    >>> round(GaussianAccountant().epsilon(50.0, rate=1.0, steps=100, delta=1e-5), 4)
    0.7255
    """

    name: ClassVar[str] = "Gaussian DP"
    relation: ClassVar[str] = ADD_OR_REMOVE

    @on_host
    def epsilon(self, noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
        """Return ε; see :class:`WorstCaseAccountant`. ``rate`` must be 1."""
        _check(noise_multiplier, rate, steps, delta)
        if rate != 1:
            raise ValueError(f"rate must be 1 for exact Gaussian DP, got {rate!r}")
        return gaussian_epsilon(steps / noise_multiplier**2, delta)


@on_host
def gaussian_epsilon(variance: float, delta: float) -> float:
    """Return ε at ``delta`` of a Gaussian mechanism: the root of ``equal_covariance``.

    Args:
        variance: variance of the privacy loss, μ², positive.
        delta: δ in (0, 1).

    Returns:
        ε, rounded up by a relative 1e-11.
    """
    v = torch.tensor([validate.positive("variance", variance)], dtype=torch.float64)

    def excess(epsilon: float) -> float:
        return float(equal_covariance(v, epsilon)) - delta

    if excess(0.0) <= 0:
        return 0.0
    # Beyond this ε even the loss's Gaussian tail, Pr[L > ε] ≥ δ(ε), is below δ.
    top = variance / 2 + math.sqrt(variance * -2 * math.log(delta))
    return root(excess, 0.0, top) * (1 + 1e-11)  # rounded up


@on_host
def gaussian_guarantee(variance: float, delta: float, rounding: float = 0.0) -> Bound | None:
    """Return the guarantee of a Gaussian mechanism whose outputs are within ``rounding`` of exact.

    Args:
        variance: μ², of the privacy loss.
        delta: δ.
        rounding: θ, see :func:`rounding_delta`.

    Returns:
        None if rounding uses up δ.

    >>> round(gaussian_guarantee(0.25, 1e-5, rounding=1e-9).epsilon, 4)
    1.9932
    """
    epsilon = after_rounding(lambda rest: gaussian_epsilon(variance, rest), delta, rounding)
    if not math.isfinite(epsilon):
        return None
    distance, name = math.sqrt(variance), GaussianAccountant.name
    return worst(epsilon, delta, name, distance=distance, rounding=rounding)


def worst(epsilon: float, delta: float, by: str, **more: Any) -> Bound:
    """Return a worst-case bound."""
    return Bound(kind=Kind.WORST_CASE, epsilon=epsilon, delta=delta, by=by, **more)


@on_host
def epsilon(events: Iterable[Event | Priced], delta: float) -> Bound | None:
    """Return the joint guarantee of all events for every conceivable record.

    Gaussian mechanisms compose to one of variance Σ μ², even if later ones depend on earlier
    outputs (Dong, Roth and Su 2022, Corollary 2). With sums over Poisson samples they compose by
    privacy loss distributions; steps with an unseen coin use those of
    :mod:`bdpvi.privacy.loss_distribution`. Objective perturbation is not a Gaussian mechanism:
    :mod:`bdpvi.privacy.perturbed_objective` composes its loss bound with the others, and counts
    coins as seen. Draws at a posterior's mode use :mod:`bdpvi.privacy.mode_draws`. δ includes
    thresholds and the rounding of draws (:func:`rounding_delta`).

    Args:
        events: in any order.
        delta: δ of the total.

    Returns:
        None if nothing bounds an event's loss, no ε is finite, or δ is used up.

    Raises:
        ValueError: if events have different relations or units.

    >>> from bdpvi.privacy.events import ExponentialMechanism
    >>> steps = [SampledGaussian(noise_multiplier=50.0, steps=60), ExponentialMechanism(0.1)]
    >>> print(epsilon(steps, 1e-5))
    worst-case DP: ε = 0.5962 at δ = 1e-05 (Gaussian DP, to add or remove one record)
    """
    validate.probability("delta", delta)
    flat = list(events)
    whose = common_neighbours(flat)
    variances = [variance_of(one) for one in flat]
    if any(v is None for v in variances):
        return None
    variance = math.fsum(v for v in variances if v is not None)
    rounding = math.fsum(getattr(one, "rounding", 0.0) for one in flat)
    rest = delta - math.fsum(one.delta for one in flat if isinstance(one, Threshold))
    sampled = tuple(
        one.at(one.largest, one.steps)
        for one in flat
        if isinstance(one, SampledGaussian) and not unsampled(one)
    )
    perturbed = tuple(one for one in flat if isinstance(one, PerturbedObjective))
    modes = tuple(one for one in flat if isinstance(one, ModeDraws))
    if not rest > 0:
        return None
    if not (sampled or perturbed or modes):
        if not variance:
            return worst(0.0, delta, NOTHING, **whose, distance=0.0, rounding=rounding)
        found = gaussian_guarantee(variance, rest, rounding)
        if found is not None and rest < delta:  # with a threshold it is not Gaussian
            found = replace(found, distance=None)
        return found and replace(found, delta=delta, **whose)
    name, solve = PrivacyLossAccountant.name, partial(_sampled_epsilon, sampled, variance)
    if perturbed:
        name = "objective perturbation"
        solve = partial(_perturbed_epsilon, perturbed, sampled, variance)
    alone = partial(mode_draws.epsilon, modes)
    if modes and (sampled or perturbed):
        name, solve = f"{mode_draws.NAME} and {name}", partial(_in_halves, alone, solve)
    elif modes:
        name, solve = mode_draws.NAME, partial(alone, variance=variance)
    found_epsilon = after_rounding(solve, rest, rounding)
    if not math.isfinite(found_epsilon):
        return None
    return worst(found_epsilon, delta, name, **whose, rounding=rounding)


def _in_halves(
    one: Callable[[float], float], other: Callable[[float], float], delta: float
) -> float:
    """Return ε by basic composition."""
    return one(delta / 2) + other(delta / 2)


@lru_cache(maxsize=256)
def _sampled_epsilon(runs: tuple[SampledGaussian, ...], variance: float, delta: float) -> float:
    if variance:
        runs += (SampledGaussian(noise_multiplier=variance**-0.5),)
    if all(run.presence == 1 for run in runs):
        return PrivacyLossAccountant().together(runs, delta)
    counts = torch.tensor([[run.steps for run in runs]])
    found = [deltas_on_grid(runs, counts, runs, direction, delta) for direction in (WITH, WITHOUT)]
    return float(least_epsilons(torch.stack(found), delta))


def _perturbed_epsilon(
    perturbed: tuple[PerturbedObjective, ...],
    sampled: tuple[SampledGaussian, ...],
    variance: float,
    delta: float,
) -> float:
    """Return the joint ε of objective perturbation and the other mechanisms."""
    if not sampled:
        return perturbed_objective.epsilon(perturbed, delta, variance)
    if min(run.noise_multiplier for run in sampled) < LEAST_NOISE:
        return math.inf
    if variance := variance + sum(one.variance for one in perturbed):
        sampled += (SampledGaussian(noise_multiplier=variance**-0.5),)
    return perturbed_objective.epsilon(perturbed, delta, others=deltas_together(sampled))


@on_host
def replace_one(guarantee: Bound) -> Bound | None:
    """Return the guarantee of the same release for replacing one record.

    A replacement is a removal and an addition. For a mechanism no worse than a Gaussian one of
    distance μ the distances add up to 2μ; otherwise (ε, δ) twice is (2ε, (1 + e^ε) δ) (group
    privacy; Dwork and Roth 2014, Theorem 2.2 and its form with δ).

    Returns:
        None if rounding uses up δ.

    Raises:
        ValueError: if the guarantee is for another relation already.

    >>> one = gaussian_guarantee(0.0625, 1e-5)
    >>> f"{one.epsilon:.3f} {replace_one(one).epsilon:.3f}"
    '0.926 1.993'
    """
    if guarantee.relation != ADD_OR_REMOVE:
        raise ValueError(f"guarantee has relation={guarantee.relation!r}, not {ADD_OR_REMOVE!r}")
    if guarantee.distance is not None:
        variance = 4 * guarantee.distance**2
        twice = gaussian_guarantee(variance, guarantee.delta, guarantee.rounding)
        return None if twice is None else replace(twice, relation=REPLACE)
    delta = (1 + math.exp(guarantee.epsilon)) * guarantee.delta
    return replace(guarantee, epsilon=2 * guarantee.epsilon, delta=delta, relation=REPLACE)


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


_SLACK = 0.005
LEAST_NOISE = 0.02


@lru_cache(maxsize=4096)
def _epsilon(
    accountant: WorstCaseAccountant, noise_multiplier: float, rate: float, steps: int, delta: float
) -> float:
    return accountant.epsilon(noise_multiplier, rate, steps, delta)


def _event(noise_multiplier: float, rate: float) -> dp_accounting.DpEvent:
    """Return one step as an event of dp_accounting."""
    import dp_accounting

    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    return gaussian if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)


def _check(noise_multiplier: float, rate: float, steps: int, delta: float) -> None:
    """Raise ValueError for an argument of :class:`WorstCaseAccountant` that is out of range."""
    validate.positive("noise_multiplier", noise_multiplier)
    validate.rate("rate", rate)
    validate.positive_int("steps", steps)
    validate.probability("delta", delta)

"""Worst-case differential privacy of the Gaussian mechanism, repeated on Poisson samples.

Every training method here releases, at each step, a sum of vectors clipped to norm C plus
N(0, σ²C²) noise; each record is present with probability q. σ is the noise multiplier. The number
of steps, q and σ determine ε. Neighbours differ by one record added or removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.host import on_host
from bdpvi.privacy.conversions import EPSILONS
from bdpvi.privacy.cost import Bound
from bdpvi.privacy.event import MOMENTS, PERTURBED, SAMPLED, WITH, WITHOUT, Event, neighbours_of
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian_dp import gaussian_guarantee, worst
from bdpvi.privacy.rounding import after_rounding, rounding_delta

if TYPE_CHECKING:
    from bdpvi.privacy.loss_bounds import Array, Deltas

NOTHING = "nothing was released"


@on_host
def epsilon(events: Iterable[Event], delta: float) -> Bound | None:
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
    whose = neighbours_of(flat)
    distances = [one.squared_distance for one in flat]
    if any(v is None for v in distances):
        return None
    variance = math.fsum(v for v in distances if v is not None)
    rounding = math.fsum(one.rounding for one in flat)
    rest = delta - math.fsum(one.delta for one in flat)
    if not rest > 0:
        return None
    name, solve = _solver(_forms(flat), variance)
    if not name:
        if not variance:
            return worst(0.0, delta, NOTHING, **whose, distance=0.0, rounding=rounding)
        found = gaussian_guarantee(variance, rest, rounding)
        if found is not None and rest < delta:  # with a threshold it is not Gaussian
            found = replace(found, distance=None, deltas=partial(deltas, tuple(flat)))
        return found and replace(found, delta=delta, **whose)
    found_epsilon = after_rounding(solve, rest, rounding)
    if not math.isfinite(found_epsilon):
        return None
    curve = partial(deltas, tuple(flat))
    found = worst(found_epsilon, delta, name, **whose, rounding=rounding, deltas=curve)
    return found.assuming(*(more for one in flat for more in one.assumptions))


@on_host
def deltas(events: Sequence[Event], epsilons: Array) -> Array:
    """Return the joint δ of all events at every ε, for every conceivable record.

    It is the curve that :func:`epsilon` inverts: from a Gaussian's closed form, privacy loss
    distributions, the loss bound of minima or log-moments, with thresholds and rounding.

    Args:
        events: in any order, for the same neighbours.
        epsilons: ε, at least 0, increasing, (E,).

    Returns:
        δ, (E,); 1 if nothing bounds an event's loss.

    >>> deltas([SampledGaussian(noise_multiplier=4.0)], np.array([0.0, 0.5])).round(6).tolist()
    [0.099476, 0.002709]
    """
    distances = [one.squared_distance for one in events]
    variance = math.fsum(math.inf if v is None else v for v in distances)
    if not math.isfinite(variance):
        return np.ones(len(epsilons))
    rounding = math.fsum(one.rounding for one in events)
    more = math.fsum(one.delta for one in events)
    fixed = [more + rounding_delta(rounding, float(one)) for one in epsilons]
    return np.minimum(_curve(_forms(events), variance)(epsilons) + fixed, 1.0)


_Forms = tuple[tuple[SampledGaussian, ...], tuple[Any, ...], tuple[Event, ...]]


def _forms(events: Sequence[Event]) -> _Forms:
    """Return sampled, perturbed and other events that are not Gaussian, by their losses' forms."""
    if unknown := {event.form for event in events} - {"", SAMPLED, PERTURBED, MOMENTS}:
        raise TypeError(f"no loss of the form {min(unknown)!r} can be composed")
    sampled = tuple(event.run for event in events if event.form == SAMPLED)
    perturbed, moments = (
        tuple(event for event in events if event.form == form) for form in (PERTURBED, MOMENTS)
    )
    return sampled, perturbed, moments


def _solver(forms: _Forms, variance: float) -> tuple[str, Callable[[float], float]]:
    """Return how events compose with Gaussian mechanisms, and ε at δ; "" if all are Gaussian."""
    sampled, perturbed, moments = forms
    name, solve = SAMPLED, partial(_sampled_epsilon, sampled, variance)
    if perturbed:
        name, solve = PERTURBED, partial(_perturbed_epsilon, perturbed, sampled, variance)
    if moments:
        from bdpvi.privacy import mode_draws

        alone = partial(mode_draws.epsilon, moments)
        if not (sampled or perturbed):
            return MOMENTS, partial(alone, variance=variance)
        return f"{MOMENTS} and {name}", partial(_in_halves, alone, solve)
    return (name if sampled or perturbed else ""), solve


def _in_halves(
    one: Callable[[float], float], other: Callable[[float], float], delta: float
) -> float:
    """Return ε by basic composition."""
    return one(delta / 2) + other(delta / 2)


def _curve(forms: _Forms, variance: float) -> Deltas:
    """Return δ as a function of ε, as :func:`_solver` returns ε as a function of δ."""
    from bdpvi.privacy.perturbed_loss import gaussian_delta

    sampled, perturbed, moments = forms
    rest: Deltas = partial(gaussian_delta, variance=variance)
    if perturbed:
        from bdpvi.privacy import perturbed_objective

        law = perturbed_objective.law(perturbed, *_beside(perturbed, sampled, variance))
        rest = partial(_each, law)
    elif sampled:
        rest = partial(_sampled_deltas, sampled, variance)
    if not moments:
        return rest
    from bdpvi.privacy import mode_draws

    alone = partial(mode_draws.deltas, moments)
    if not (sampled or perturbed):
        return partial(alone, variance=variance)
    return lambda at: np.min([alone((1 - s) * at) + rest(s * at) for s in (0.0, 0.5, 1.0)], axis=0)


def _each(law: Callable[[float], float], epsilons: Array) -> Array:
    return np.array([law(float(one)) for one in epsilons])


def _with(runs: tuple[SampledGaussian, ...], variance: float) -> tuple[SampledGaussian, ...]:
    """Return sampled steps with one more run, a Gaussian mechanism of this μ² if there is one."""
    return (*runs, SampledGaussian(noise_multiplier=variance**-0.5)) if variance else runs


@lru_cache(maxsize=256)
def _sampled_epsilon(runs: tuple[SampledGaussian, ...], variance: float, delta: float) -> float:
    # late, as most ledgers hold Gaussian mechanisms alone
    from bdpvi.privacy.loss_distribution import least_epsilons
    from bdpvi.privacy.sampled_steps import PrivacyLossAccountant

    runs = _with(runs, variance)
    if all(run.presence == 1 for run in runs):
        return PrivacyLossAccountant().together(runs, delta)
    return float(least_epsilons(_by_coins(runs, delta), delta))


def _sampled_deltas(runs: tuple[SampledGaussian, ...], variance: float, epsilons: Array) -> Array:
    from bdpvi.privacy.loss_distribution import composed

    runs = _with(runs, variance)
    if all(run.presence == 1 for run in runs):
        return np.asarray(composed(runs).get_delta_for_epsilon(epsilons))
    return np.asarray(_by_coins(runs, _LARGE, torch.from_numpy(epsilons)).amax((0, 1)).numpy())


_LARGE = 1e-3
"""δ at which a curve with unseen coins is precise."""


def _by_coins(
    runs: tuple[SampledGaussian, ...], beta: float, epsilons: Tensor = EPSILONS
) -> Tensor:
    """Return δ of steps with unseen coins in both directions, (2, 1, E)."""
    from bdpvi.privacy.loss_distribution import deltas_on_grid

    counts = torch.tensor([[run.steps for run in runs]])
    both = [deltas_on_grid(runs, counts, runs, way, beta, epsilons) for way in (WITH, WITHOUT)]
    return torch.stack(both)


@lru_cache(maxsize=256)
def _perturbed_epsilon(
    perturbed: tuple[Any, ...],
    sampled: tuple[SampledGaussian, ...],
    variance: float,
    delta: float,
) -> float:
    """Return the joint ε of objective perturbation and the other mechanisms."""
    from bdpvi.privacy import perturbed_objective
    from bdpvi.privacy.sampled_steps import LEAST_NOISE

    if any(run.noise_multiplier / run.rows < LEAST_NOISE for run in sampled):
        return math.inf
    others = _beside(perturbed, sampled, variance)
    return perturbed_objective.epsilon(perturbed, delta, *others)


def _beside(
    perturbed: tuple[Any, ...], sampled: tuple[SampledGaussian, ...], variance: float
) -> tuple[float, Deltas | None]:
    """Return μ² of what composes with minima; or, with sampled steps, the δ of all of it."""
    from bdpvi.privacy.loss_distribution import deltas_together

    if not sampled:
        return variance, None
    hidden = sum(one.variance for one in perturbed)
    return variance, deltas_together(_with(sampled, variance + hidden))

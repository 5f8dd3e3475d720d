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
from typing import Any

import torch

from bdpvi._ground import validate
from bdpvi._ground.host import on_host
from bdpvi.privacy.cost import Bound
from bdpvi.privacy.event import MOMENTS, PERTURBED, SAMPLED, WITH, WITHOUT, Event, neighbours_of
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian_dp import gaussian_guarantee, worst
from bdpvi.privacy.rounding import after_rounding

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
    name, solve = _solver(flat, variance)
    if not name:
        if not variance:
            return worst(0.0, delta, NOTHING, **whose, distance=0.0, rounding=rounding)
        found = gaussian_guarantee(variance, rest, rounding)
        if found is not None and rest < delta:  # with a threshold it is not Gaussian
            found = replace(found, distance=None)
        return found and replace(found, delta=delta, **whose)
    found_epsilon = after_rounding(solve, rest, rounding)
    if not math.isfinite(found_epsilon):
        return None
    found = worst(found_epsilon, delta, name, **whose, rounding=rounding)
    return found.assuming(*(more for one in flat for more in one.assumptions))


def _solver(events: Sequence[Event], variance: float) -> tuple[str, Callable[[float], float]]:
    """Return how events compose with Gaussian mechanisms, and ε at δ; "" if all are Gaussian."""
    if unknown := {event.form for event in events} - {"", SAMPLED, PERTURBED, MOMENTS}:
        raise TypeError(f"no loss of the form {min(unknown)!r} can be composed")
    sampled = tuple(event.run for event in events if event.form == SAMPLED)
    perturbed = tuple(event for event in events if event.form == PERTURBED)
    moments = tuple(event for event in events if event.form == MOMENTS)
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


@lru_cache(maxsize=256)
def _sampled_epsilon(runs: tuple[SampledGaussian, ...], variance: float, delta: float) -> float:
    # late, as most ledgers hold Gaussian mechanisms alone
    from bdpvi.privacy.loss_distribution import deltas_on_grid, least_epsilons
    from bdpvi.privacy.sampled_steps import PrivacyLossAccountant

    if variance:
        runs += (SampledGaussian(noise_multiplier=variance**-0.5),)
    if all(run.presence == 1 for run in runs):
        return PrivacyLossAccountant().together(runs, delta)
    counts = torch.tensor([[run.steps for run in runs]])
    found = [deltas_on_grid(runs, counts, runs, direction, delta) for direction in (WITH, WITHOUT)]
    return float(least_epsilons(torch.stack(found), delta))


@lru_cache(maxsize=256)
def _perturbed_epsilon(
    perturbed: tuple[Any, ...],
    sampled: tuple[SampledGaussian, ...],
    variance: float,
    delta: float,
) -> float:
    """Return the joint ε of objective perturbation and the other mechanisms."""
    from bdpvi.privacy import perturbed_objective
    from bdpvi.privacy.loss_distribution import deltas_together
    from bdpvi.privacy.sampled_steps import LEAST_NOISE

    if not sampled:
        return perturbed_objective.epsilon(perturbed, delta, variance)
    if min(run.noise_multiplier / run.rows for run in sampled) < LEAST_NOISE:
        return math.inf
    if variance := variance + sum(one.variance for one in perturbed):
        sampled += (SampledGaussian(noise_multiplier=variance**-0.5),)
    return perturbed_objective.epsilon(perturbed, delta, others=deltas_together(sampled))

"""The cost of objective perturbation for each record, and Bayesian DP: a mean over records.

If x is drawn at random, independently of the table, the pair of release and x has a δ(ε) that is
the mean over x of each record's own δ(ε). A record's own δ is at most that of Ψ with its own ω‖z‖
and ω‖z‖² in place of the largest (:mod:`bdpvi.privacy.perturbed_objective`), with the most
costly residual. This depends on x only, not on the release or the other records, so bounds on a
mean of independent values apply.

A Gaussian of distance r ω‖z‖/σ with the record's residual r at the *released* weights is not a
bound: a single record with ‖z‖ = 1.5C has r = ½ at w = 0, but costs as much as with r = 1.

The preprocessing that maps a raw record to z must be public. Private preprocessing is another
release that depends on x; these numbers then describe the path taken and are no guarantee.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.bayesian.accounting.bisection import bisected, of_mean
from bdpvi.bayesian.accounting.losses import Deltas
from bdpvi.privacy.conversions import TESTS, least_failure, split_delta
from bdpvi.privacy.perturbed_objective import PerturbedObjective, law
from bdpvi.privacy.perturbed_objective import delta as delta_of
from bdpvi.privacy.rounding import cap, rounding_delta

LEVELS = 64
"""Levels that ω‖z‖ and ω‖z‖² are rounded up to."""


def record_deltas(
    event: PerturbedObjective, lengths: Tensor, bends: Tensor, variance: float = 0.0
) -> Deltas:
    """Return upper bounds on each record's own δ as a function of ε, in either direction.

    Args:
        event: the release.
        lengths: ω‖z‖ of each record over C, in [0, 1], (m,).
        bends: ω‖z‖² of each record over its largest, in [0, 1], (m,).
        variance: total μ² of the Gaussian mechanisms composed with the release, for every record.

    Raises:
        ValueError: if a number is out of range.

    >>> event = PerturbedObjective(noise_multiplier=3.73, curvature=1.0)
    >>> own = record_deltas(event, torch.tensor([0.5, 1.0, 1.0]), torch.tensor([0.25, 1.0, 1.0]))
    >>> own.counts.tolist(), f"{own.at(1.0)[0]:.1e} {own.at(1.0)[1]:.1e} {own.bound(1.0):.1e}"
    ([1, 2], '1.2e-15 1.0e-05 1.0e-05')
    """
    validate.same_length("bends", bends, "lengths", lengths)
    for name, values in (("lengths", lengths), ("bends", bends)):
        validate.every(name, values, (values >= 0) & (values <= 1), "lie in [0, 1]")
    levels = (LEVELS * torch.stack([lengths, bends], 1).double()).ceil().clamp(min=1)
    pairs, counts = levels.unique(dim=0, return_counts=True)
    laws = [
        law([_of(event, length / LEVELS, bend / LEVELS)], variance)
        for length, bend in pairs.tolist()
    ]

    @cache
    def at(epsilon: float) -> Tensor:
        return torch.tensor([one(epsilon) for one in laws], dtype=torch.float64).clamp(max=1)

    largest = partial(delta_of, [event], variance=variance)
    return Deltas(at, bound=lambda e: max(largest(e), float(at(e).max())), counts=counts)


def bayesian_epsilon(
    event: PerturbedObjective,
    lengths: Tensor,
    bends: Tensor,
    delta: float,
    variance: float = 0.0,
) -> float:
    """Return ε at ``delta`` of Bayesian DP, for records like the given ones.

    :func:`~bdpvi.bayesian.accounting.betting.betting` bounds the mean of their δ at each ε that
    :func:`~bdpvi.bayesian.accounting.bisection.bisected` tries. The bound holds for every
    distribution if the records are independent draws from it.

    Args:
        event, lengths, bends: see :func:`record_deltas`.
        delta: δ, including the parts used by estimates and rounding.
        variance: see :func:`record_deltas`.

    >>> event = PerturbedObjective(noise_multiplier=3.73, curvature=1.0)
    >>> half = torch.full((100_000,), 0.5)
    >>> round(bayesian_epsilon(event, half, half, 1e-5), 2)
    0.48
    """
    gamma = least_failure(delta)
    rest = split_delta(delta, gamma, TESTS)
    deltas, within = record_deltas(event, lengths, bends, variance), 0.0
    while True:
        beta = rest - rounding_delta(event.rounding, within)
        if not beta > 0:
            return float("inf")
        result, _ = bisected({"": of_mean(deltas, beta, gamma)}, beta)
        if not event.rounding or result <= cap(within):
            return result
        within = result


def _of(event: PerturbedObjective, length: float, bend: float) -> PerturbedObjective:
    """Return the event for a record with these fractions of the largest values."""
    noise = event.noise_multiplier / length
    return replace(event, noise_multiplier=noise, curvature=bend * event.curvature)

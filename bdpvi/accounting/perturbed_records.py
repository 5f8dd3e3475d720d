"""What objective perturbation costs each record, and so Bayesian DP: a mean over records.

Where x is drawn at random, independently of the table, the release and x together have the mean
over x of each record's own δ(ε). A record's own δ is at most that of Ψ with its own ω‖z‖ and ω‖z‖²
in place of the largest (:mod:`bdpvi.accounting.perturbed_objective`), with the residual that costs
most. That is a function of x alone, not of what was released and not of the other records, so the
bounds on a mean of independent values hold for it.

A Gaussian of distance r ω‖z‖/σ with the record's residual r at the *released* weights is no bound:
one record of ‖z‖ = 1.5C alone has r = ½ at w = 0, and costs as with r = 1.

The constants that make z of a raw record must be public. Bought ones are another release that x is
part of; then these numbers describe the path that was taken, and guarantee nothing by themselves.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi.accounting.answer import bisected
from bdpvi.accounting.conversions import TESTS, least_failure, split_delta
from bdpvi.accounting.events import PerturbedObjective
from bdpvi.accounting.losses import Deltas
from bdpvi.accounting.perturbed_objective import delta as delta_of
from bdpvi.accounting.perturbed_objective import law
from bdpvi.accounting.rounding import cap, rounding_delta

LEVELS = 64
"""Of ω‖z‖ and of ω‖z‖², which are rounded up to them."""


def record_deltas(
    event: PerturbedObjective, lengths: Tensor, bends: Tensor, variance: float = 0.0
) -> Deltas:
    """Return upper bounds on every record's own δ as a function of ε, in either direction.

    Args:
        event: the release.
        lengths: ω‖z‖ of each record over C, in [0, 1], (m,).
        bends: ω‖z‖² of each record over its largest, in [0, 1], (m,).
        variance: μ² of all Gaussian mechanisms that go with the release, for every record.

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
    """Return ε at ``delta`` of Bayesian DP, for records like those given.

    The mean of their δ is bounded by :func:`~bdpvi.accounting.betting.betting` at each ε that a
    bisection tries (:func:`~bdpvi.accounting.answer.bisected`); whatever their distribution is, if
    they are independent draws from it.

    Args:
        event, lengths, bends: see :func:`record_deltas`.
        delta: δ, of which estimates and rounding take their part.
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
        found, _ = bisected({"": deltas}, beta, gamma)
        if not event.rounding or found <= cap(within):
            return found
        within = found


def _of(event: PerturbedObjective, length: float, bend: float) -> PerturbedObjective:
    """Return the event for a record with these shares of the largest."""
    noise = event.noise_multiplier / length
    return replace(event, noise_multiplier=noise, curvature=bend * event.curvature)

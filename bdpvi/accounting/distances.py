"""As which Gaussian mechanism an event counts in the worst case, and between which neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bdpvi.accounting.cost import ADD_OR_REMOVE, RECORD
from bdpvi.accounting.events import (
    ExponentialMechanism,
    ModeDraws,
    PerturbedObjective,
    PosteriorDraws,
    SampledGaussian,
    Threshold,
)


def common_neighbours(events: Sequence[object]) -> dict[str, Any]:
    """Return the relation and the unit that all events are for; ValueError if they differ."""
    steps = [one if isinstance(one, SampledGaussian) else None for one in events] or [None]
    found = {(s.relation.value, f"one {s.unit}") if s else (ADD_OR_REMOVE, RECORD) for s in steps}
    if len(found) > 1:
        named = ", ".join(sorted(" ".join(one) for one in found))
        raise ValueError(f"events: they are for different neighbours: {named}")
    return dict(zip(("relation", "unit"), found.pop(), strict=True))


def unsampled(event: SampledGaussian) -> bool:
    """Return whether every step uses all records."""
    return event.rate == event.presence == 1


def variance_of(event: object) -> float | None:
    """Return μ² of a Gaussian mechanism that is no better than the event, 0 where another formula
    has the price, None where nothing bounds it."""
    if isinstance(event, PosteriorDraws):
        bounds = [one.largest for one in event.panels]
        if event.from_data or any(bound is None for bound in bounds):
            return None
        most = max(bound for bound in bounds if bound is not None)
        return event.draws * most / event.temperature
    if isinstance(event, SampledGaussian):
        return event.steps * (event.largest / event.noise_multiplier) ** 2 * unsampled(event)
    if isinstance(event, ExponentialMechanism):
        return (_OF_RANGE * event.range) ** 2
    return 0.0 if isinstance(event, Threshold | PerturbedObjective | ModeDraws) else None


_OF_RANGE = math.sqrt(math.pi / 8) * (1 + 1e-15)
"""μ of a Gaussian mechanism no better than one whose loss lies in an interval of length 1.

Of all such mechanisms that of Dong, Durfee and Rogers (2020, Lemma 3.1), two outcomes with losses t
and t − η, gives away most; where e^t is the geometric mean its total variation is tanh(η/4), and
2Φ(μ/2) − 1 with μ = η √(π/8) is more. That it is more at all other ε is tested.
"""

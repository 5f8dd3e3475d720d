"""The Gaussian mechanism that an event counts as in the worst case, and its neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from bdpvi.privacy.cost import ADD_OR_REMOVE, RECORD
from bdpvi.privacy.events import (
    ExponentialMechanism,
    ModeDraws,
    PerturbedObjective,
    SampledGaussian,
    Threshold,
)


@runtime_checkable
class OwnDistance(Protocol):
    """An event that knows which Gaussian mechanism it counts as."""

    @property
    def squared_distance(self) -> float | None:
        """μ² of a Gaussian mechanism no more private; None if nothing bounds a record."""


def common_neighbours(events: Sequence[object]) -> dict[str, Any]:
    """Return the relation and the unit of all events; ValueError if they differ."""
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
    """Return μ² of a Gaussian mechanism no more private than the event, 0 if another formula gives
    the price, None if nothing bounds it."""
    if isinstance(event, OwnDistance):
        return event.squared_distance
    if isinstance(event, SampledGaussian):
        moved = event.largest / event.noise_multiplier if unsampled(event) else 0.0
        return event.steps * moved * moved  # ** 2 would raise where this is +inf
    if isinstance(event, ExponentialMechanism):
        moved = _OF_RANGE * event.range
        return moved * moved
    return 0.0 if isinstance(event, Threshold | PerturbedObjective | ModeDraws) else None


_OF_RANGE = math.sqrt(math.pi / 8) * (1 + 1e-15)
"""μ of a Gaussian mechanism no more private than one whose loss lies in an interval of length 1.

The least private mechanism of range η has two outcomes with losses t and t − η (Dong, Durfee and
Rogers 2020, Lemma 3.1). At t = η/2 its total variation is tanh(η/4), which is less than
2Φ(μ/2) − 1 at μ = η √(π/8). A test checks the same at all other ε.
"""

"""What a ledger claims, as a family of mechanisms, and the member that guesses leave possible.

A claim is the δ(ε) of the events that were charged. A test that sees the record with probability p
and raises a false alarm with probability q has p ≤ e^ε q + δ(ε) at every ε (Kairouz, Oh and
Viswanath 2015, Theorem 2.1), and so has its opposite, 1 − q ≤ e^ε (1 − p) + δ(ε). Bounds of p and
q that break either refute the claim, whatever the mechanism is. The same events with more noise
claim less: the one with the least noise that is refuted gives the *audited ε* (as Nasr et al.,
"Tight auditing of differentially private machine learning", 2023, do for DP-SGD), which comes near
to the claim with hundreds of runs; one (ε, δ) alone would take a number that grows with e^ε/δ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from bdpvi.privacy import worst_case
from bdpvi.privacy.event import Event
from bdpvi.privacy.ledger import Ledger
from bdpvi.synthesis.counts import Floats

_EPSILONS = np.linspace(0.0, 12.0, 241)
_LEAST, _MOST = 1 / 16, 64.0
"""Noise, over what was claimed, among which the audited one is searched."""
_HALVINGS = 12


class Found(Protocol):
    """What an attacker did, at a level."""

    def refute(self, epsilons: Floats, deltas: Floats) -> bool:
        """Return whether no mechanism with these δ(ε) allows it."""

    def epsilon(self, delta: float) -> float:
        """Return the ε that it needs at ``delta``, whatever the mechanism is."""


@dataclass(frozen=True)
class Claim:
    """The events that a ledger was charged with.

    Attributes:
        events: gaussian sums, sums over Poisson samples, perturbed objectives, thresholds.
    """

    events: tuple[Event, ...]

    @classmethod
    def of(cls, ledger: Ledger) -> Claim:
        """Return everything that was charged.

        Raises:
            ValueError: if a charge has no worst case.
        """
        found: list[Event] = []
        for entry in ledger.entries():
            if entry.events is None:
                raise ValueError(f"ledger: nothing bounds a record in its charge {entry.kind!r}")
            found += [event for event in entry.events for _ in range(entry.count)]
        return cls(tuple(found))

    def epsilon(self, delta: float) -> float:
        """Return ε at ``delta``; +inf if there is none."""
        found = worst_case.epsilon(self.events, delta)
        return math.inf if found is None else found.epsilon

    def with_noise(self, scale: float) -> Claim:
        """Return the same events with ``scale`` times the noise."""
        return Claim(tuple(event.with_noise(scale) for event in self.events))

    @lru_cache(maxsize=64)  # noqa: B019
    def deltas(self) -> Floats:
        """Return δ at each of ``_EPSILONS``."""
        return worst_case.deltas(self.events, _EPSILONS)

    def refuted(self, found: Found) -> bool:
        """Return whether no mechanism with these δ(ε) allows what was found."""
        return found.refute(_EPSILONS, self.deltas())

    def audited(self, found: Found, delta: float) -> float:
        """Return the ε at ``delta`` of the member with the least noise that is refuted.

        It is at least what was found needs of any mechanism.

        Args:
            found: what an attacker did.
            delta: δ.
        """
        least = found.epsilon(delta)
        if not self.with_noise(_MOST).refuted(found):
            return least
        low, high = math.log(_LEAST), math.log(_MOST)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if self.with_noise(math.exp(middle)).refuted(found):
                high = middle
            else:
                low = middle
        return max(least, self.with_noise(math.exp(high)).epsilon(delta))

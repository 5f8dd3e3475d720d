"""What an audit found, and doors that are audited by many runs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bdpvi._ground.checkpoint import Checkpoint
from bdpvi._ground.progress import Track
from bdpvi.audits.claims import Claim
from bdpvi.audits.games import Rates
from bdpvi.privacy.ledger import Ledger

LEVEL, CERTAIN = 0.95, 0.999
"""The levels at which the audited ε of runs is given; beyond the second a claim is refuted."""
PAIRS = 20
"""Pairs of runs that are stored together, so that an interruption loses no more."""
_ROOM = 1e-6
"""Relative error of exact ones."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit of one door found. Secret: it is computed from the rows without noise.

    Attributes:
        door: what was audited.
        claim: ε that was charged, at ``delta``.
        low: audited ε; of runs at :data:`LEVEL`.
        certain: the same at :data:`CERTAIN`; of an exact audit equal to ``low``.
        delta: δ.
        runs: releases with the record, and as many without; 0 of an exact audit.
        canaries: of an audit by a single run.
        seconds: time that it took, over all sessions.
        worst: for a claim about random records, the largest ε of one that was searched for: nothing
            is claimed of it.

    >>> found = Audit(door="x", claim=1.0, low=0.9, certain=0.8, delta=1e-5, runs=9, seconds=1.0)
    >>> found.tightness, found.refuted
    (0.9, False)
    """

    door: str
    claim: float
    low: float
    certain: float
    delta: float
    runs: int
    seconds: float
    worst: float | None = None
    canaries: int = 0

    @classmethod
    def exact(cls, door: str, claim: float, found: float, delta: float, begun: float) -> Audit:
        """Return an exact audit that began at a time of :func:`time.monotonic`."""
        seconds = time.monotonic() - begun
        return cls(
            door=door, claim=claim, low=found, certain=found, delta=delta, runs=0, seconds=seconds
        )

    @property
    def tightness(self) -> float:
        """The audited ε over the claim."""
        return self.low / self.claim

    @property
    def refuted(self) -> bool:
        """Whether the claim is too small."""
        return self.certain > self.claim * (1 + _ROOM)

    def __str__(self) -> str:
        how = f"{self.runs} pairs of runs, 95 %" if self.runs else "exact"
        how = f"one run with {self.canaries} canaries, 95 %" if self.canaries else how
        said = f"{self.door}: claimed ε = {self.claim:.4g}, audited {self.low:.4g}"
        said += f" ({self.tightness:.0%}; {how}) at δ = {self.delta:g}"
        if self.runs:
            said += f"; at 99.9 % {self.certain:.4g}"
        if self.worst is not None:
            said += f"; the worst record found has {self.worst:.4g}, of which nothing is claimed"
        return f"{said}. THE CLAIM IS WRONG" if self.refuted else said


@dataclass(frozen=True)
class Door:
    """A way that something leaves a table, which can be gone through again and again.

    Attributes:
        name: of it.
        without, with_it: neighbouring tables.
        once: goes through it with a table; returns a score of what is shared, the higher the
            likelier the record was there, and the ledger that was charged.
        record: its number among records or clients.
    """

    name: str
    without: Any
    with_it: Any
    once: Callable[[Any], tuple[float, Ledger]]
    record: int = 0

    def audited(self, delta: float, pairs: int, kept: Checkpoint, track: Track[Any]) -> Audit:
        """Return what runs show.

        Args:
            delta: δ of the claim.
            pairs: of runs; stored ones are not repeated.
            kept: where they are stored.
            track: shows the progress.
        """
        scores: list[list[float]] = [[], []]
        seconds = 0.0
        for place in track(range(0, pairs, PAIRS), self.name):
            name = f"{self.name.replace(' ', '-')}-{place:06}"
            part = kept.get(name)
            if part is None:
                part = self._some(min(PAIRS, pairs - place))
                kept.write_part(name, part)
            for side, more in zip(scores, (part["without"], part["with"]), strict=True):
                side += more
            seconds += part["seconds"]
        claim = Claim.of(self.through(self.without)[1])
        without, with_it = map(np.array, scores)
        low, certain = (
            claim.audited(Rates.of(without, with_it, level), delta) for level in (LEVEL, CERTAIN)
        )
        return Audit(
            door=self.name, claim=claim.epsilon(delta), low=low, certain=certain, delta=delta,
            runs=pairs, seconds=seconds,
        )  # fmt: skip

    def _some(self, pairs: int) -> dict[str, Any]:
        begun = time.monotonic()
        sides: Sequence[Any] = (self.without, self.with_it)
        without, with_it = ([self.through(side)[0] for _ in range(pairs)] for side in sides)
        return {"without": without, "with": with_it, "seconds": time.monotonic() - begun}

    def through(self, table: Any) -> tuple[float, Ledger]:
        """Go through it with a table; return the score, and the ledger that was charged."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of small tables, and of noise that hides everything
            return self.once(table)

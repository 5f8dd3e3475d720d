"""A membership game: how well an attacker who knows all other rows detects whether one is present.

It runs the release code itself, so its result is a lower bound on the ε of this code, whatever the
ledger says: a bound above the guarantee is a bug. A bound below it proves nothing, as a better
attack may exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from bdpvi._ground import validate
from bdpvi.audits.games import beyond, clopper_pearson
from bdpvi.datasets.grid import Codes
from bdpvi.noise.keys import Key
from bdpvi.synthesis.counts import Floats

Released = TypeVar("Released")
_CONFIDENCE = 0.975
"""Of each rate's bound."""
_TRIED = 500
"""Most thresholds that one half of the turns chooses from."""


@dataclass(frozen=True, kw_only=True)
class Game:
    """What an attack found.

    Attributes:
        epsilon_low: lower bound of ε, 0 if nothing was found.
        threshold: of the score, which was chosen by other turns than the rates.
        hits: share of the turns with the record that are beyond the threshold; if ``reversed``, of
            those without it.
        false_alarms: the same share of the other turns.
        reversed: whether the best guess is that a record with a low score was not there.
    """

    epsilon_low: float
    threshold: float
    hits: float
    false_alarms: float
    reversed: bool


def play(
    release: Callable[[Codes, Key], Released],
    score: Callable[[Released], float],
    others: Codes,
    canary: Codes,
    *,
    delta: float,
    turns: int,
    key: Key | None = None,
) -> Game:
    """Release a table again and again, without and with a record, and guess by a score.

    Args:
        release: what makes a release of codes, from a key of its own.
        score: of a release; the higher, the likelier the record was there.
        others: rows that the adversary knows, (N, d).
        canary: rows of the person in question, (k, d).
        delta: δ that the release has.
        turns: how many releases without the record, and as many with it; half of them choose the
            threshold.
        key: for a game that can be repeated; a fresh one by default.

    Raises:
        ValueError: naming the argument that is out of range.

    >>> shown = play(lambda codes, key: len(codes), float, np.zeros((9, 1), dtype=np.int64),
    ...              np.zeros((1, 1), dtype=np.int64), delta=1e-5, turns=200)
    >>> round(shown.epsilon_low, 2), shown.hits, shown.false_alarms  # N, exactly
    (3.28, 1.0, 0.0)
    """
    validate.positive_int("turns", turns, least=4)
    key = key or Key.fresh()
    there = np.concatenate([others, canary])
    scores = [
        np.array([score(release(table, key.child(side, turn))) for turn in range(turns)])
        for side, table in enumerate((others, there))
    ]
    return judged(scores[0], scores[1], delta)


def judged(without: Floats, with_it: Floats, delta: float) -> Game:
    """Return the lower bound of ε by scores of releases without and with a record.

    ε ≥ log((p − δ)/q) where any guess is right with probability p and a false alarm with q, here
    bounded by Clopper and Pearson (1934) at 2.5 % each (Jagielski, Ullman and Oprea 2020). Every
    direction that is tried has a bound of its own, and the larger is returned, so it is above ε at
    most once in ten games.

    Args:
        without, with_it: (R,) each.
        delta: δ.
    """
    validate.probability("delta", delta)
    games = []
    for reversed_, (alarm, hit) in enumerate(((without, with_it), (-with_it, -without))):
        half = len(alarm) // 2
        tried = np.unique(np.concatenate([alarm[:half], hit[:half]]))
        tried = tried[:: max(1, len(tried) // _TRIED)]
        found = _low(*beyond(alarm[:half], hit[:half], tried), half, delta)
        at = tried[int(np.argmax(found))]
        false, true = beyond(alarm[half:], hit[half:], at)
        least = len(alarm) - half
        games.append(
            Game(
                epsilon_low=max(float(_low(false, true, least, delta)), 0.0),
                threshold=float(-at if reversed_ else at),
                hits=float(true / least),
                false_alarms=float(false / least),
                reversed=bool(reversed_),
            )
        )
    return max(games, key=lambda one: one.epsilon_low)


def _low(false: Floats, true: Floats, turns: int, delta: float) -> Floats:
    """Return log((p − δ)/q) with p bounded below and q above; −∞ where nothing is left of p."""
    low = clopper_pearson(true, turns, _CONFIDENCE)
    high = 1 - clopper_pearson(turns - false, turns, _CONFIDENCE)
    return np.asarray(np.log(np.maximum(low - delta, 1e-300)) - np.log(high))

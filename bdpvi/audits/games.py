"""A membership game: how well an attacker who knows all other rows detects whether one is present.

It runs the release code itself, so its result is a lower bound on the ε of this code, whatever the
ledger says: a bound above the guarantee is a bug. A bound below it proves nothing, as a better
attack may exist; for noisy counts no score is better than :func:`likelihood_ratio`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy.special import betaincinv

from bdpvi._ground import validate
from bdpvi.datasets.grid import Codes
from bdpvi.noise.keys import Key
from bdpvi.synthesis.counts import Floats, NoisyCounts

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


@dataclass(frozen=True)
class Rates:
    """Bounds of what a test does: hits from below, false alarms from above, each at (1 + level)/2.

    Attributes:
        hits: least probability that it says "there" of a release with the record.
        false_alarms: largest probability that it says so of one without.
    """

    hits: float
    false_alarms: float

    @classmethod
    def of(cls, without: Floats, with_it: Floats, level: float) -> Rates:
        """Return the bounds of Clopper and Pearson (1934) of a threshold of scores.

        The threshold is the median of a quarter of all scores, the best one of two normal laws; the
        others are counted.

        Args:
            without, with_it: scores of releases, (R,) each; the higher, the likelier.
            level: probability that both bounds hold.

        >>> found = Rates.of(np.zeros(400), np.ones(400), 0.95)
        >>> round(found.hits, 4), round(found.false_alarms, 4)
        (0.9878, 0.0122)
        """
        first = max(len(without) // 4, 1)
        at = np.median(np.concatenate([without[:first], with_it[:first]]))
        false, true = _beyond(without[first:], with_it[first:], at)
        turns, confidence = len(without) - first, (1 + level) / 2
        quiet = _clopper_pearson(turns - false, turns, confidence)
        return cls(float(_clopper_pearson(true, turns, confidence)), float(1 - quiet))

    def refute(self, epsilons: Floats, deltas: Floats) -> bool:
        """Return whether no mechanism with these δ(ε) allows such rates."""
        p, q, times = self.hits, self.false_alarms, np.exp(epsilons)
        gained = np.maximum(p - times * q, (1 - q) - times * (1 - p))
        return bool((gained > deltas).any())

    def epsilon(self, delta: float) -> float:
        """Return the ε that such rates need at ``delta``, whatever the mechanism is.

        It is the largest of log((p − δ)/q), the same of the opposite guess, and 0.

        >>> round(Rates(0.8, 0.1).epsilon(0.0), 3)
        2.079
        """
        p, q = self.hits, self.false_alarms
        pairs = ((p - delta, q), (1 - q - delta, 1 - p))
        return max([0.0, *(math.log(a / b) for a, b in pairs if a > 0 and b > 0)])


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
        found = _low(*_beyond(alarm[:half], hit[:half], tried), half, delta)
        at = tried[int(np.argmax(found))]
        false, true = _beyond(alarm[half:], hit[half:], at)
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


def likelihood_ratio(others: Codes, canary: Codes) -> Callable[[NoisyCounts], float]:
    """Return the best score of noisy counts: the log-likelihood ratio of with it to without.

    A cell that the record would raise by k shows k or 0 more than the other rows', with noise σ, so
    it is Σ k (x − k/2)/σ² over all cells, x what is above the other rows (Neyman and Pearson).

    Args:
        others, canary: as of :func:`play`.
    """
    rows = np.concatenate([others, canary])
    known = len(others)

    def score(noisy: NoisyCounts) -> float:
        total = 0.0
        bins = np.stack([one[rows[:, at]] for at, one in enumerate(noisy.bins)], axis=1)
        tables = [(rows[:, [at]], one, noisy.deviation) for at, one in enumerate(noisy.single)]
        tables += [(bins[:, at], one, noisy.deviations[at]) for at, one in noisy.joint.items()]
        for codes, table, deviation in tables:
            places = np.ravel_multi_index(tuple(codes.T), table.shape)
            cells, raised = np.unique(places[known:], return_counts=True)
            above = table.ravel()[cells] - (places[:known, None] == cells).sum(0)
            total += float((raised * (above - raised / 2)).sum()) / deviation**2
        return total

    return score


def _beyond(alarm: Floats, hit: Floats, threshold: Floats) -> tuple[Floats, Floats]:
    """Return how many of each are at a threshold or above."""
    a, b = (
        np.asarray(len(one) - np.searchsorted(np.sort(one), threshold), dtype=np.float64)
        for one in (alarm, hit)
    )
    return a, b


def _low(false: Floats, true: Floats, turns: int, delta: float) -> Floats:
    """Return log((p − δ)/q) with p bounded below and q above; −∞ where nothing is left of p."""
    low = _clopper_pearson(true, turns, _CONFIDENCE)
    high = 1 - _clopper_pearson(turns - false, turns, _CONFIDENCE)
    return np.asarray(np.log(np.maximum(low - delta, 1e-300)) - np.log(high))


def _clopper_pearson(seen: Floats, turns: int, confidence: float) -> Floats:
    """Return the lower bound of a probability, from how often something was seen."""
    low = betaincinv(np.maximum(seen, 1), turns - seen + 1, 1 - confidence)
    return np.where(seen > 0, low, 0.0)

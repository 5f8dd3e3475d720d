"""How well an attacker who knows all other rows detects whether one is present, from scores.

The release code itself is run, so what scores tell is a lower bound on the ε of this code, whatever
the ledger says: a bound above the guarantee is a bug. A bound below it proves nothing, as a better
attack may exist; for noisy counts no score is better than :func:`likelihood_ratio`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

from bdpvi.datasets.grid import Codes
from bdpvi.synthesis.counts import Floats, NoisyCounts


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
        false, true = beyond(without[first:], with_it[first:], at)
        turns, confidence = len(without) - first, (1 + level) / 2
        quiet = clopper_pearson(turns - false, turns, confidence)
        return cls(float(clopper_pearson(true, turns, confidence)), float(1 - quiet))

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


def likelihood_ratio(others: Codes, canary: Codes) -> Callable[[NoisyCounts], float]:
    """Return the best score of noisy counts: the log-likelihood ratio of with it to without.

    A cell that the record would raise by k shows k or 0 more than the other rows', with noise σ, so
    it is Σ k (x − k/2)/σ² over all cells, x what is above the other rows (Neyman and Pearson).

    Args:
        others: rows that the adversary knows, (N, d).
        canary: rows of the person in question, (k, d).
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


def beyond(alarm: Floats, hit: Floats, threshold: Floats) -> tuple[Floats, Floats]:
    """Return how many of each are at a threshold or above."""
    a, b = (
        np.asarray(len(one) - np.searchsorted(np.sort(one), threshold), dtype=np.float64)
        for one in (alarm, hit)
    )
    return a, b


def clopper_pearson(seen: Floats, turns: int, confidence: float) -> Floats:
    """Return the lower bound of a probability, from how often something was seen."""
    low = betaincinv(np.maximum(seen, 1), turns - seen + 1, 1 - confidence)
    return np.where(seen > 0, low, 0.0)

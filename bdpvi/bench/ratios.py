"""Differences of methods in score and in ε, with intervals over test records and runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

Numbers = NDArray[np.float64]

CONFIDENCE = 0.95
REPEATS = 1_000
"""Number of resamples of the test records for the interval of a ratio."""
_AT_ONCE = 200
"""Number of resamples whose weights are held in memory at once."""


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """A method's scores at one ε; higher is better.

    Attributes:
        records: the score of each test record, mean over the runs, (N,), N ≥ 2.
        runs: the score of each run (a seed, or a draw), mean over the records, (R,).
    """

    records: Numbers
    runs: Numbers

    @property
    def mean(self) -> float:
        """Return the mean over records and runs."""
        return float(self.runs.mean())

    @cached_property
    def error(self) -> float:
        """Return the standard error over the runs; NaN for a single run."""
        if len(self.runs) < 2:
            return math.nan
        return float(self.runs.std(ddof=1) / math.sqrt(len(self.runs)))


@dataclass(frozen=True)
class Interval:
    """An estimate between two bounds."""

    estimate: float
    low: float
    high: float


def difference(first: ScoreTable, second: ScoreTable, confidence: float = CONFIDENCE) -> Interval:
    """Return how much higher the first method scores, with an interval for new records and runs.

    It is paired over the records: records on which both methods agree add nothing. The variance is
    that of a mean over two crossed samples, σ²(records)/N + σ²(runs)/R for each method. The first
    term is estimated from differences averaged over the runs, the others from averages over the
    records, so the interaction of records and runs counts twice: the interval is conservative. Runs
    of the two methods count as independent; if a seed gives both the same noise, this is also
    conservative. Degrees of freedom are by Satterthwaite (Biometrics Bulletin 1946).

    >>> a = ScoreTable(np.array([1.0, 1.0, 0.0, 1.0]), np.array([0.75, 0.75]))
    >>> b = ScoreTable(np.array([1.0, 0.0, 0.0, 1.0]), np.array([0.5, 0.5]))
    >>> found = difference(a, b)  # 0.25 ± 0.25 · t of 3 degrees of freedom
    >>> round(found.estimate, 4), round(found.low, 4), round(found.high, 4)
    (0.25, -0.5456, 1.0456)
    """
    each = first.records - second.records
    estimate = first.mean - second.mean
    parts = np.array([each.var(ddof=1) / len(each), first.error**2, second.error**2])
    free = np.array([len(each), len(first.runs), len(second.runs)]) - 1
    variance = parts.sum()
    if variance == 0:
        return Interval(estimate, estimate, estimate)
    degrees = variance**2 / (parts**2 / np.maximum(free, 1)).sum()
    half = float(student.ppf((1 + confidence) / 2, degrees) * math.sqrt(variance))
    return Interval(estimate, estimate - half, estimate + half)


def epsilon_needed(scores: Numbers, epsilons: Numbers, wanted: Numbers) -> Numbers:
    """Return the smallest ε at which a curve reaches a score, (...).

    The curve is the scores' running maximum, because a larger budget may be spent in part, and
    linear in log ε between its points.

    Args:
        scores: at each ε, (..., K) or (K,).
        epsilons: (K,), increasing.
        wanted: (...).

    Returns:
        0 if the score is reached at the first ε, so at most that is needed; ∞ if it is not reached
        at the last ε, so more is needed.

    >>> curve, at = np.array([0.6, 0.7, 0.65, 0.9]), np.array([0.01, 0.1, 1.0, 10.0])
    >>> [float(epsilon_needed(curve, at, np.array(s)).round(4)) for s in (0.5, 0.65, 0.8, 0.91)]
    [0.0, 0.0316, 3.1623, inf]
    """
    curve = np.maximum.accumulate(scores, axis=-1)
    curve = np.broadcast_to(curve, (*wanted.shape, len(epsilons)))
    below = (curve < wanted[..., None]).sum(-1)  # lower points of a running maximum come first
    last = len(epsilons) - 1
    left, right = np.clip(below - 1, 0, last), np.clip(below, 0, last)
    low, high = (np.take_along_axis(curve, i[..., None], -1)[..., 0] for i in (left, right))
    inside = (below > 0) & (below <= last)
    part = np.divide(wanted - low, high - low, out=np.zeros_like(low), where=inside)
    logs = np.log(epsilons)
    found = np.exp(logs[left] + part * (logs[right] - logs[left]))
    return np.where(below == 0, 0.0, np.where(below > last, np.inf, found))


def resampled(cells: Sequence[ScoreTable], repeats: int = REPEATS, seed: int = 0) -> Numbers:
    """Return the cells' mean scores on resampled test records and new runs, (cells, repeats).

    All cells share a bootstrap over the records: N of them with replacement, as multinomial
    weights. A Student-t error with R − 1 degrees of freedom, scaled by the standard error over the
    runs, is added to each mean, to simulate R new runs. NaN for a cell with one run.

    >>> one = ScoreTable(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    >>> means = resampled([one, one], repeats=1000)
    >>> bool((means[0] == means[1]).all()), sorted({float(m) for m in means[0]})
    (True, [0.0, 0.5, 1.0])
    """
    generator = np.random.default_rng(seed)
    each = np.stack([cell.records for cell in cells])
    count = each.shape[1]
    means = np.empty((len(cells), repeats))
    for start in range(0, repeats, _AT_ONCE):
        some = slice(start, min(start + _AT_ONCE, repeats))
        shape = (some.stop - start, count)
        weights = generator.multinomial(count, np.full(count, 1 / count), size=shape[0])
        means[:, some] = each @ weights.T / count
    for row, cell in zip(means, cells, strict=True):
        if cell.error > 0:
            row += cell.error * generator.standard_t(len(cell.runs) - 1, repeats)
        elif math.isnan(cell.error):
            row[:] = math.nan
    return means


def between(values: Numbers, estimate: float, confidence: float = CONFIDENCE) -> Interval:
    """Return an estimate with quantiles of its resamples, which may be 0 or ∞; NaN if any is NaN.

    >>> between(np.array([0.0, 1.0, 2.0, 3.0, np.inf]), 2.0)
    Interval(estimate=2.0, low=0.0, high=inf)
    """
    if np.isnan(values).any():
        return Interval(estimate, math.nan, math.nan)
    tails = ((1 - confidence) / 2, (1 + confidence) / 2)
    low, high = np.quantile(values, tails, method="inverted_cdf")
    return Interval(estimate, float(low), float(high))


@dataclass(frozen=True)
class Ratio:
    """The ε that a curve needs for a row's score, over the row's ε.

    Attributes:
        interval: 0 means at most ``least``, ∞ at least ``most``.
        least, most: the curve's first and last ε over that of the row.
    """

    interval: Interval
    least: float
    most: float

    def __str__(self) -> str:
        now = self.interval
        shown = [self._words(one) for one in (now.estimate, now.low, now.high)]
        return f"{shown[0]} ({shown[1]} to {shown[2]})"

    def _words(self, value: float) -> str:
        """Return a ratio in words.

        >>> ratio = Ratio(Interval(2.0, 0.0, math.inf), 0.5, 50.0)
        >>> str(ratio)
        '2.00 (≤ 0.500 to ≥ 50.0)'
        """
        if math.isnan(value):
            return "unknown"
        if value == 0:
            return f"≤ {_three(self.least)}"
        return f"≥ {_three(self.most)}" if math.isinf(value) else _three(value)


def epsilon_ratios(
    rows: Sequence[tuple[float, ScoreTable]],
    curve: Sequence[tuple[float, ScoreTable]],
    repeats: int = REPEATS,
    seed: int = 0,
) -> list[Ratio]:
    """Return for each row the ε that a curve needs for the row's score, over the row's ε.

    Intervals come from :func:`resampled`: paired over the test records, and over new runs. The
    curve ends at its highest score. Lower scores at larger ε, due to chance or to settings chosen
    for another purpose, do not show that more ε is useless.

    Args:
        rows: pairs of an ε and the scores there.
        curve: K such pairs at different ε.
        repeats, seed: number and seed of the resamples.
    """
    curve = sorted(curve, key=lambda point: point[0])
    curve = curve[: 1 + max(range(len(curve)), key=lambda place: curve[place][1].mean)]
    at = np.array([epsilon for epsilon, _ in curve])
    cells = [scores for _, scores in (*curve, *rows)]
    means = resampled(cells, repeats, seed)
    points, over = means[: len(curve)].T, np.array([cell.mean for cell in cells[: len(curve)]])
    result = []
    for (epsilon, scores), values in zip(rows, means[len(curve) :], strict=True):
        estimate = float(epsilon_needed(over, at, np.array(scores.mean))) / epsilon
        unknown = np.isnan(values) | np.isnan(points).any(1)
        needed: Any = np.where(unknown, np.nan, epsilon_needed(points, at, values)) / epsilon
        result.append(Ratio(between(needed, estimate), at[0] / epsilon, at[-1] / epsilon))
    return result


def _three(value: float) -> str:
    """Return a positive number with three digits.

    >>> _three(1.2345), _three(12.345), _three(123.45), _three(0.012345)
    ('1.23', '12.3', '123', '0.0123')
    """
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"

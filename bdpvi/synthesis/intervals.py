"""Intervals from several synthetic tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from bdpvi._ground import validate


@dataclass(frozen=True, kw_only=True)
class Combined:
    """An estimate combined from several tables.

    Attributes:
        mean: mean of the estimates.
        low, high: ends of the interval.
    """

    mean: float
    low: float
    high: float


def combine(estimates: Sequence[float], level: float = 0.95) -> Combined:
    """Return the mean of one estimate per table, and an interval for the population's value.

    With M estimates of mean q̄ and sample variance b it is q̄ ± t √((1 + 1/M) b), t the quantile of
    Student's t with M − 1 degrees of freedom. A bootstrapped table's estimate varies about that of
    the published counts as the latter varies about the population value, so this interval has
    coverage ``level`` (the predictive interval of normal samples; Raghunathan, Reiter and Rubin
    2003 without variance within tables, because rows cost nothing: draw 20 times as many rows as
    the real table has, or that variance counts twice).

    Args:
        estimates: estimates of one quantity, one from each of
            :meth:`~bdpvi.synthesis.Synthetic.tables`, at least 2.
        level: coverage of the interval.

    Raises:
        ValueError: naming the argument that is out of range.

    >>> found = combine([0.50, 0.52, 0.48])
    >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3)
    (0.5, 0.401, 0.599)
    """
    validate.probability("level", level)
    values = np.asarray(estimates, dtype=np.float64)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():
        raise ValueError(
            f"estimates must be at least two finite numbers, one for each table, got {estimates!r}"
        )
    mean, number = float(values.mean()), len(values)
    spread = math.sqrt((1 + 1 / number) * float(values.var(ddof=1)))
    half = float(t.ppf((1 + level) / 2, number - 1)) * spread
    return Combined(mean=mean, low=mean - half, high=mean + half)

"""Intervals from several tables: against Student's law, and by simulated tables."""

from __future__ import annotations

from dataclasses import replace

import flat
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bdpvi.datasets import ColumnType, Schema, grid
from bdpvi.datasets.records import Held
from bdpvi.noise.keys import Key
from bdpvi.synthesis import combine
from bdpvi.synthesis.counts import Counts, MeasurementPlan, count
from bdpvi.synthesis.network import network, redrawn


def test_the_interval_holds_the_next_normal_number() -> None:
    """M + 1 independent normal numbers: the last is within, as often as is said."""
    random = np.random.default_rng(0)
    for number, level in ((2, 0.9), (5, 0.95), (20, 0.5)):
        drawn = random.normal(3.0, 2.0, (2000, number + 1))
        found = [combine(row[:-1].tolist(), level) for row in drawn]
        inside = np.mean(
            [one.low <= row[-1] <= one.high for one, row in zip(found, drawn, strict=True)]
        )
        assert abs(inside - level) < 5 * np.sqrt(level * (1 - level) / 2000)
        assert found[0].mean == pytest.approx(drawn[0, :-1].mean())


def test_the_interval_is_that_of_a_regression() -> None:
    values = [0.2, 0.5, 0.4, 0.9]
    scale = stats.sem(values) * np.sqrt(len(values) + 1)  # of the next one, about the mean
    low, high = stats.t.interval(0.95, 3, np.mean(values), scale)
    found = combine(values)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)


@pytest.mark.parametrize("bad", [[], [1.0], [1.0, np.nan], [[1.0, 2.0]]])
def test_bad_estimates_are_named(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="estimates must be"):
        combine(bad)
    with pytest.raises(ValueError, match="level"):
        combine([1.0, 2.0], 1.0)


NUMBERS = Schema(
    {"x": ColumnType(low=0, high=9, whole=True), "z": ColumnType(low=0, high=9, whole=True)}, "dice"
)


@pytest.mark.parametrize("deviation", [0.01, 200.0])
def test_redrawn_counts_have_the_mean_and_twice_the_noise(deviation: float) -> None:
    """Nearly all of it from sampling, and nearly all from noise."""
    random = np.random.default_rng(1)
    codes = random.integers(0, 10, (2000, 2))
    noisy = count(Held(codes), MeasurementPlan.of(NUMBERS, None, 0.3, Counts()), Key.of_seed(0))
    made = network(noisy, None, [*map(grid.shares, NUMBERS.columns.values())], 2, 2**17)
    noisy = replace(noisy, deviations={(0, 1): deviation})
    draws = 2000
    found = np.array([redrawn(noisy, made, 2000, random).joint[0, 1] for _ in range(draws)])
    shares = np.zeros(noisy.joint[0, 1].shape)
    sampled = made.sample(400_000, random)
    np.add.at(shares, tuple(noisy.bins[at][sampled[:, at]] for at in (0, 1)), 1 / len(sampled))
    variance = deviation**2 + 2000 * shares * (1 - shares) + 1 / 12
    assert np.abs((found.mean(0) - noisy.joint[0, 1]) / np.sqrt(variance / draws)).max() < 5
    # Of one cell the estimate's relative error is √(2/2000), of 100 cells' mean a tenth of that.
    assert (found.var(0) / variance).mean() == pytest.approx(1, abs=0.012)


def test_a_correlation_is_covered() -> None:
    """Tables of shrunk counts are biased towards independence, twice: they cover .2 to .5."""
    hits = []
    for seed in range(25):
        random = np.random.default_rng(seed)
        x = random.integers(0, 10, 1500)
        z = np.clip(x + random.integers(-6, 7, 1500), 0, 9)
        frame = pd.DataFrame({"x": x, "z": z})
        made = flat.synthesize(frame, NUMBERS, None, epsilon=1.0, delta=1e-5, seed=seed)
        tables = made.tables(5, 5000, seed=seed)
        found = combine([float(table["x"].corr(table["z"])) for table in tables])
        hits.append(found.low <= TRUE <= found.high)
    assert sum(hits) >= 19  # of 25 at .95 fewer than 19 have a probability of 1e-4


def _correlation() -> float:
    """Of the population, by all its equally likely pairs."""
    x, step = np.meshgrid(np.arange(10), np.arange(-6, 7))
    return float(np.corrcoef(x.ravel(), np.clip(x + step, 0, 9).ravel())[0, 1])


TRUE = _correlation()

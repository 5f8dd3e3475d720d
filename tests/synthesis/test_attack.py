"""A membership game on releases: right ones stay below ε, and every known mistake is caught."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from membership import judged, play
from scipy.stats import beta, norm

from bdpvi.audits.games import likelihood_ratio
from bdpvi.datasets import ColumnType, Schema, grid
from bdpvi.datasets.grid import Codes
from bdpvi.datasets.records import Held
from bdpvi.datasets.units import at_most
from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.noise.whole_normals import WholeNormals
from bdpvi.privacy.gaussian_dp import gaussian_distance
from bdpvi.synthesis.counts import Counts, MeasurementPlan, NoisyCounts, count, merged
from bdpvi.synthesis.network import network

TURNS, DELTA, EPSILON = 20_000, 1e-5, 1.0
FEW = 200
"""Turns that are enough for a mistake that shows: up to log(0.96/0.04) = 3.3."""
COINS = Schema({name: ColumnType(levels=("0", "1")) for name in "abc"}, "coins")
OTHERS = np.array([[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0]])
CANARY = np.array([[1, 1, 1]])


DISTANCE = gaussian_distance(EPSILON, DELTA)
PLAN = MeasurementPlan.of(COINS, 0, DISTANCE, Counts())


def with_deviations(of: MeasurementPlan, factor: float) -> MeasurementPlan:
    return replace(
        of,
        one_way=of.one_way * factor,
        joint={at: one * factor for at, one in of.joint.items()},
    )


def right(codes: Codes, key: Key) -> NoisyCounts:
    return count(Held(codes), PLAN, key)


RATIO = likelihood_ratio(OTHERS, CANARY)


def copies(canary: Codes) -> Callable[[Codes], float]:
    """Return a score of rows, where counts are not shown: how many agree with it in two columns."""

    def score(rows: Codes) -> float:
        same = rows == canary
        pairs = itertools.combinations(range(rows.shape[1]), 2)
        return float(sum((same[:, a] & same[:, b]).sum() for a, b in pairs))

    return score


def noises(of: MeasurementPlan, there: bool, wrong: float, seed: int) -> np.ndarray:
    """Return log-likelihood ratios of many releases: one cell of every table, with its noise."""
    noise = WholeNormals(Key.of_seed(seed))
    total = np.zeros(TURNS)
    for deviation in [of.one_way] * len(of.sizes) + list(of.joint.values()):
        drawn = secure.count_noise((TURNS,), deviation / wrong, noise).numpy()
        total += (drawn + there - 0.5) * (wrong / deviation) ** 2
    return total


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_noise_stays_below_epsilon_and_less_of_it_does_not(epsilon: float) -> None:
    schema = Schema({f"c{at}": ColumnType(levels=("0", "1")) for at in range(8)}, "coins")
    one = MeasurementPlan.of(schema, 0, gaussian_distance(epsilon, DELTA), Counts())
    tables = len(one.sizes) + len(one.joint)
    for wrong, caught in ((1.0, False), (math.sqrt(tables), True)):
        found = judged(noises(one, False, wrong, 1), noises(one, True, wrong, 2), DELTA)
        assert (found.epsilon_low > epsilon) is caught


def test_the_bound_is_that_of_two_normal_laws() -> None:
    """Scores of N(0, 1) and N(2, 1): no bound can beat the best threshold's exact rates."""
    random = np.random.default_rng(0)
    without, with_it = random.normal(0, 1, 4 * TURNS), random.normal(2, 1, 4 * TURNS)
    found = judged(without, with_it, DELTA)
    sign = -1 if found.reversed else 1
    exact_hits = norm.sf(sign * found.threshold - (2 if sign == 1 else 0))
    exact_alarms = norm.sf(sign * found.threshold - (0 if sign == 1 else -2))
    assert found.hits == pytest.approx(exact_hits, abs=5 * math.sqrt(exact_hits / TURNS))
    assert found.epsilon_low < math.log(exact_hits / exact_alarms)
    # The rates' bounds, by the definition of Clopper and Pearson: tails of 2.5 %.
    half = 2 * TURNS
    hits, alarms = round(found.hits * half), round(found.false_alarms * half)
    low, high = beta.ppf(0.025, hits, half - hits + 1), beta.ppf(0.975, alarms + 1, half - alarms)
    assert found.epsilon_low == pytest.approx(math.log((low - DELTA) / high), rel=1e-9)


def test_the_score_is_the_ratio_of_the_laws() -> None:
    """By the densities of every cell, two rows of one person, some cells shared."""
    canary = np.array([[1, 1, 1], [1, 0, 1]])
    noisy = right(np.concatenate([OTHERS, canary]), Key.of_seed(5))

    def log_law(rows: Codes) -> float:
        binned = np.stack([one[rows[:, at]] for at, one in enumerate(noisy.bins)], axis=1)
        total = 0.0
        for at, table in enumerate(noisy.single):
            exact = np.bincount(rows[:, at], minlength=len(table))
            total += float(np.sum(norm.logpdf(table, exact, noisy.deviation)))
        for columns, table in noisy.joint.items():
            cells = np.zeros(table.shape)
            np.add.at(cells, tuple(binned[:, columns].T), 1)
            total += float(np.sum(norm.logpdf(table, cells, noisy.deviations[columns])))
        return float(total)

    expected = log_law(np.concatenate([OTHERS, canary])) - log_law(OTHERS)
    assert likelihood_ratio(OTHERS, canary)(noisy) == pytest.approx(expected, rel=1e-9)


def test_the_counting_itself_stays_below_epsilon() -> None:
    found = play(right, RATIO, OTHERS, CANARY, delta=DELTA, turns=500, key=Key.of_seed(0))
    assert found.epsilon_low < EPSILON


# Mistakes. Each is a release that says ε = 1, and a score of it.


def copier(codes: Codes, key: Key) -> NoisyCounts:
    return count(Held(codes), with_deviations(PLAN, 1e-9), key)


def one_percent(codes: Codes, key: Key) -> NoisyCounts:
    return count(Held(codes), with_deviations(PLAN, 0.01), key)


def true_bins(codes: Codes, key: Key) -> tuple[Codes, ...]:
    """Cells are merged by the exact counts."""
    return tuple(
        merged(np.bincount(codes[:, at], minlength=4), False, 2.0, 2.0)
        for at in range(codes.shape[1])
    )


def levels_that_occur(codes: Codes, key: Key) -> int:
    return len(np.unique(codes[:, :2], axis=0))


def exact_number(codes: Codes, key: Key) -> int:
    return len(codes)


def noise_used_twice(codes: Codes, key: Key) -> Codes:
    """Two tables with noise from one key: their difference has none."""
    tables = []
    for at in (0, 1):
        noise = secure.count_noise((4,), PLAN.one_way, WholeNormals(key)).numpy()
        tables.append(np.bincount(codes[:, at] if at else 1 - codes[:, at], minlength=4) + noise)
    return np.stack(tables)


def true_bootstrap(codes: Codes, key: Key) -> Codes:
    """The rows that are counted again are the table's own."""
    draws = np.random.default_rng(int(key) % 2**32)
    return codes[draws.integers(0, len(codes), 40)]


@pytest.mark.parametrize(
    ("release", "score"),
    [
        (copier, lambda one: float(RATIO(one))),
        (one_percent, lambda one: float(RATIO(one))),
        (true_bins, lambda one: -float(sum(bins[2] for bins in one))),
        (levels_that_occur, float),
        (exact_number, float),
        (noise_used_twice, lambda one: float(one[1, 1] - one[0, 1])),
        (true_bootstrap, copies(CANARY)),
    ],
)
def test_mistakes_are_caught(
    release: Callable[[Codes, Key], object], score: Callable[[object], float]
) -> None:
    found = play(release, score, OTHERS, CANARY, delta=DELTA, turns=FEW, key=Key.of_seed(1))
    assert found.epsilon_low > EPSILON


def test_a_person_of_many_rows_that_is_charged_as_one() -> None:
    """At most k rows of each are kept, and the noise must be k times as much."""
    rows, allowed = 40, 20
    person = pd.DataFrame({"who": ["ada"] * rows, "x": ["1"] * rows})
    kept = at_most(person, "who", allowed)
    canary = np.repeat(CANARY, len(kept), axis=0)
    assert len(canary) == allowed
    ratio = likelihood_ratio(OTHERS, canary)
    for factor, caught in ((1.0, True), (float(allowed), False)):
        charged = with_deviations(PLAN, factor)

        def release(codes: Codes, key: Key, charged: MeasurementPlan = charged) -> NoisyCounts:
            return count(Held(codes), charged, key)

        found = play(release, ratio, OTHERS, canary, delta=DELTA, turns=FEW, key=Key.of_seed(2))
        assert (found.epsilon_low > EPSILON) is caught


@pytest.mark.parametrize("tables", [1, 2])
def test_rows_alone_show_no_more(tables: int) -> None:
    """Who sees rows only: of the network, or of the network of its rows, counted again."""
    shares = [*map(grid.shares, COINS.columns.values())]

    def release(codes: Codes, key: Key) -> Codes:
        random = np.random.default_rng(int(key) % 2**32)
        for at in range(tables):
            made = network(count(Held(codes), PLAN, key.child(at)), 0, shares, 2, 2**17)
            codes = made.sample(40, random)
        return codes

    found = play(release, copies(CANARY), OTHERS, CANARY, delta=DELTA, turns=80, key=Key.of_seed(3))
    assert found.epsilon_low <= EPSILON

"""Private estimates of constants: the change by one row is what noise explains."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from bdpvi.datasets import estimates
from bdpvi.datasets.cells import Cells, Columns
from bdpvi.datasets.columns import Numeric, OneHot
from bdpvi.datasets.records import Held
from bdpvi.noise.keys import Key

DISTANCE, DELTA, PAIRS, LUCK = 1.0, 1e-3, 200_000, 1e-9
Draws = NDArray[np.float64]


def gaussian_delta(epsilon: float, distance: float) -> float:
    """Return δ(ε) of Gaussian mechanisms of distance μ (Balle and Wang 2018)."""
    phi = stats.norm.cdf
    below = phi(-distance / 2 - epsilon / distance)
    return float(phi(distance / 2 - epsilon / distance) - math.exp(epsilon) * below)


def numbers(values: list[float]) -> dict[str, Cells]:
    return {"age": Cells(np.array(values), ("",), np.zeros(len(values), dtype=np.int64))}


def told(with_it: Draws, without: Draws, epsilon: float) -> float:
    """Return a lower bound of δ(ε), from half of the draws by an event that the others choose.

    Events are all above or below a value; it holds with confidence 1 - 1e-9 (Clopper and Pearson).
    """
    best = 0.0
    for one, other in ((with_it, without), (without, with_it)):
        half = len(one) // 2
        for sign in (1, -1):
            a, b = np.sort(sign * one[:half]), np.sort(sign * other[:half])
            at = np.unique(np.concatenate([a, b]))
            at = at[:: max(1, len(at) // 500)]
            p = 1 - np.searchsorted(a, at, side="left") / half
            q = 1 - np.searchsorted(b, at, side="left") / half
            bound = at[int((p - math.exp(epsilon) * q).argmax())]
            hits, misses = ((sign * v[half:] >= bound).sum() for v in (one, other))
            low = stats.beta.ppf(LUCK / 2, hits, half - hits + 1) if hits else 0.0
            high = stats.beta.isf(LUCK / 2, misses + 1, half - misses) if misses < half else 1.0
            best = max(best, float(low - math.exp(epsilon) * high))
    return best


def bought_draws(values: list[float], of: Callable[[Numeric], float], seed: int) -> Draws:
    table, purchase = (
        numbers(values),
        estimates.Purchase.of(["age", "t"], target="t", numeric=["age"]),
    )
    found = []
    for i in range(PAIRS // 2):
        key = Key.of_seed(seed).child(i)
        made = estimates.estimate(Held(table), purchase, distance=DISTANCE, delta=DELTA, key=key)
        (column,) = made.columns
        assert isinstance(column, Numeric)
        found.append(of(column))
    return np.array(found)


ROWS = [20.0, 30.0, 35.0, 41.0, 50.0]


@pytest.mark.slow
def test_an_attack_finds_no_more_than_the_price_and_exact_constants_are_caught() -> None:
    """The row that makes most of a difference: one extreme value beside few others."""
    tables = [*ROWS, 1e300], ROWS
    for number, of in enumerate((lambda c: c.mean, lambda c: c.sd)):
        with_it, without = (
            bought_draws(rows, of, 10 * number + i) for i, rows in enumerate(tables)
        )
        for epsilon in (0.0, 0.5, 1.0):
            assert told(with_it, without, epsilon) <= gaussian_delta(epsilon, DISTANCE)
    one, other = (np.full(PAIRS // 2, np.median(rows)) for rows in tables)
    assert told(one, other, epsilon=1.0) > 0.99


def names(counts: dict[str, int]) -> dict[str, Cells]:
    labels = tuple(sorted(counts))
    codes = np.repeat(np.arange(len(labels)), [counts[name] for name in labels])
    return {"ward": Cells(np.full(len(codes), np.nan), labels, codes)}


@pytest.mark.slow
def test_one_person_s_category_is_published_as_rarely_as_its_delta_says() -> None:
    purchase = estimates.Purchase.of(["ward", "t"], target="t", categorical=["ward"])
    table = names({"surgery": 5_000, "hospice": 1})
    seen = 0
    for i in range(PAIRS // 4):
        made = estimates.estimate(
            Held(table), purchase, distance=DISTANCE, delta=DELTA, key=Key.of_seed(5).child(i)
        )
        (column,) = made.columns
        assert isinstance(column, OneHot)
        assert "surgery" in column.categories
        seen += "hospice" in column.categories
    assert stats.binom.sf(seen - 1, PAIRS // 4, DELTA) > LUCK  # no more often than δ
    assert stats.binom.cdf(seen, PAIRS // 4, 0.5 * DELTA) > LUCK
    exact = {name: 1.0 for name in table["ward"].names}
    assert "hospice" in exact  # what today's tables would publish, always


def test_categories_are_in_the_order_of_their_noisy_counts() -> None:
    purchase = estimates.Purchase.of(["ward", "t"], target="t", categorical=["ward"])
    table = names({"a": 500, "b": 3000, "c": 1000})
    made = estimates.estimate(
        Held(table), purchase, distance=DISTANCE, delta=DELTA, key=Key.of_seed(0)
    )
    (column,) = made.columns
    assert isinstance(column, OneHot)
    assert column.categories == ("b", "c", "a")


@pytest.mark.parametrize("hashed", [True, False])
def test_who_else_is_there_changes_no_other_s_noise(hashed: bool) -> None:
    """Given the key, a name's noisy count depends on its own count alone."""
    purchase = estimates.Purchase.of(["ward", "t"], target="t", categorical=["ward"], hashed=hashed)
    key = Key.of_seed(7)
    one, other = (
        estimates.estimate(Held(names(counts)), purchase, distance=DISTANCE, delta=DELTA, key=key)
        for counts in ({"a": 90, "b": 80, "z": 1}, {"a": 90, "b": 80})
    )
    assert one == other


def test_the_number_of_rows_is_as_noisy_as_its_price() -> None:
    purchase = estimates.Purchase.of(["age", "t"], target="t", numeric=["age"])
    found = np.array(
        [
            estimates.count(
                Held(numbers(ROWS)), purchase, distance=0.5, key=Key.of_seed(1).child(i)
            )[0]
            for i in range(20_000)
        ]
    )
    assert abs(found.mean() - len(ROWS)) < 6 * 2 / math.sqrt(20_000)
    assert found.var() == pytest.approx(4.0, rel=6 * math.sqrt(2 / 20_000))


def test_any_table_is_answered() -> None:
    for values in ([], [math.nan], [1e300], [0.0] * 50, [-1e-300, 5.0]):
        for numeric, categorical in ((["age"], []), ([], ["age"]), ([], [])):
            purchase = estimates.Purchase.of(
                ["age", "t"], target="t", numeric=numeric, categorical=categorical
            )
            table: Held[Columns] = Held(numbers(values))
            _, wanted = estimates.count(table, purchase, distance=0.1, key=Key.of_seed(0))
            made = estimates.estimate(table, wanted, distance=0.1, delta=1e-6, key=Key.of_seed(1))
            x = made.whole(numbers(values))
            assert len(x) == len(values)
            assert bool(x.isfinite().all())

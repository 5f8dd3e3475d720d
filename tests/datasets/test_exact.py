"""Private medians and counts: their exact laws, by high-precision arithmetic and by counting."""

from __future__ import annotations

import itertools
import math
from typing import Any

import mpmath
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from bdpvi.datasets import exact, scales
from bdpvi.datasets.cells import LazyColumns
from bdpvi.datasets.columns import Numeric
from bdpvi.datasets.records import Held
from bdpvi.noise.keys import Key

LUCK = 1e-9
"""Chance with which a test of counted draws may fail."""


def median(values: NDArray[np.float64], distance: float, key: Key, positive: bool = False) -> float:
    tally = exact.Tally.of(exact.keys(values))
    return exact.median_of(tally, distance, key, positive=positive)


def law(
    values: list[float],
    distance: float,
    *,
    price: float = exact.PRICE,
    also: list[float] | None = None,
    positive: bool = False,
    atom: int = 0,
) -> list[float]:
    """Return the chance of each interval between the values, and others, by definition."""
    places, others = (sorted(map(int, exact.keys(np.array(v)))) for v in (values, also or []))
    highest = int(exact.keys(np.array([3.4028234e38]))[0])
    edges = [0 if positive else -highest, *sorted({*places, *others}), highest + 1]
    if also is None:  # with an interval of no width where a value occurs twice
        edges = [edges[0], *places, highest + 1]
    c, weights = mpmath.mpf(price) * distance, []
    for i, (low, high) in enumerate(itertools.pairwise(edges)):
        below = i if also is None else sum(place <= low for place in places)
        width = high - low + (exact.ATOM if low <= atom < high else 0)
        weights.append(width * mpmath.exp(-c * abs(below - mpmath.mpf(len(values)) / 2)))
    total = mpmath.fsum(weights)
    return [float(weight / total) for weight in weights]


def gaussian_delta(epsilon: float, distance: float) -> float:
    """Return δ(ε) of Gaussian mechanisms of distance μ (Balle and Wang 2018)."""
    phi = stats.norm.cdf
    return float(
        phi(distance / 2 - epsilon / distance)
        - math.exp(epsilon) * phi(-distance / 2 - epsilon / distance)
    )


def excess(one: list[float], other: list[float], distance: float, price: float) -> float:
    """Return the most by which δ of the exact laws exceeds the price's, over it, in both orders."""
    both = [*one, *other]
    p, q = (np.array(law(v, distance, price=price, also=both)) for v in (one, other))
    worst = -math.inf
    for a, b in ((p, q), (q, p)):
        for epsilon in np.linspace(0, price * distance, 12):
            found = np.maximum(a - math.exp(epsilon) * b, 0).sum()
            bound = gaussian_delta(float(epsilon), distance)
            worst = max(worst, float(found - bound) / gaussian_delta(0.0, distance))
    return worst


def halves(values: list[float]) -> list[float]:
    """Return each number, and the one that follows it."""
    return [*values, *(float(np.nextafter(np.float32(v), np.float32(np.inf))) for v in values)]


BIG, ONE = 3.0e38, 0x3F800000
PAIRS = [
    ([1.0], [1.0, 5.0]),
    ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 1e300]),
    ([0.0] * 5, [0.0] * 5 + [7.0]),
    ([], [3.0]),
    ([-BIG, -1.0, 2.0, BIG], [-BIG, -1.0, 2.0]),
    # Half of the chance lies between two values at μ = 0.01: the worst there is.
    ([1.0] * 265 + [BIG] * 264, [1.0] * 265 + [BIG] * 265),
]


@pytest.mark.parametrize("distance", [0.01, 0.3, 2.0])
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_median_costs_no_more_than_its_price(
    one: list[float], other: list[float], distance: float
) -> None:
    assert excess(one, other, distance, exact.PRICE) <= 1e-9


@given(
    st.lists(st.floats(-1e30, 1e30), max_size=6),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(0.01, 3.0),
)
def test_nor_for_any_record_that_joins(values: list[float], extra: float, distance: float) -> None:
    assert excess(values, [*values, extra], distance, exact.PRICE) <= 1e-9


def test_a_price_that_is_one_percent_too_low_is_seen() -> None:
    """The price is attained, to 1e-4, where half of the chance lies between two values."""
    one, other = PAIRS[-1]
    assert -2e-4 < excess(one, other, 0.01, exact.PRICE) <= 0
    assert excess(one, other, 0.01, 1.01 * exact.PRICE) > 0.009


@given(st.lists(st.floats(1e-9, 1e9), max_size=6), st.floats(1e-9, 1e9), st.floats(0.01, 3.0))
def test_a_size_of_what_is_not_0_costs_no_more(
    values: list[float], extra: float, distance: float
) -> None:
    """Its law is that of :func:`test_sizes_of_what_is_not_0_have_the_law`."""
    one, other = halves(values), halves([*values, extra])
    known: dict[str, Any] = {"also": other, "positive": True, "atom": ONE}
    p, q = (np.array(law(v, distance / 2, **known)) for v in (one, other))
    assert np.abs(np.log(p) - np.log(q)).max() <= exact.PRICE * distance + 1e-9
    for a, b in ((p, q), (q, p)):
        for epsilon in np.linspace(0, exact.PRICE * distance, 12):
            found = np.maximum(a - math.exp(epsilon) * b, 0).sum()
            assert found <= gaussian_delta(float(epsilon), distance) + 1e-9


def fits(observed: NDArray[np.int64], chances: list[float]) -> bool:
    """Return whether counts are those of these chances, by χ² of cells that expect at least 5."""
    expected = np.array(chances) * observed.sum()
    large = expected >= 5
    rest = not large.all() and expected[~large].sum() >= 5
    cells = [(observed[large], expected[large])]
    if rest:
        cells.append((observed[~large].sum(keepdims=True), expected[~large].sum(keepdims=True)))
    seen, wanted = (np.concatenate(one) for one in zip(*cells, strict=True))
    if not rest and observed[~large].sum() > 40:
        return False
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    return bool(stats.chi2.sf(statistic, max(1, len(seen) - 1)) > LUCK)


@pytest.mark.parametrize(
    ("values", "positive"),
    [
        ([1.0] * 4 + [BIG] * 3, False),
        ([0.0, 0.0, 4.0], True),
        ([-5.0, 1e300], False),
        ([], False),
    ],
)
def test_draws_have_the_law(values: list[float], positive: bool) -> None:
    prices = len(values) > 3  # other prices are told from this one by so many draws
    distance, draws, key = 1.0, 100_000 if prices else 15_000, Key.of_seed(3)
    found = np.array(
        [median(np.array(values), distance, key.child(i), positive=positive) for i in range(draws)]
    )
    places = np.sort(exact.keys(np.array(values)))
    which = np.searchsorted(places, exact.keys(found), side="right")
    counts = np.bincount(which, minlength=len(values) + 1)
    assert fits(counts, law(values, distance, positive=positive))
    if prices:
        for factor in (0.97, 1.03):
            other = law(values, distance, price=factor * exact.PRICE)
            assert not fits(counts, other)
    # Within an interval the place is uniform, but for the atom at 0.
    widest = int(np.bincount(which).argmax())
    low = -math.inf if widest == 0 else places[widest - 1]
    inside = exact.keys(found[which == widest])
    inside = inside[inside != 0]
    if len(inside) > 1000 and math.isfinite(low):
        high = places[widest] if widest < len(places) else inside.max() + 1
        share = (inside - low) / (high - low)
        assert stats.kstest(share, "uniform").pvalue > LUCK


def test_sizes_of_what_is_not_0_have_the_law() -> None:
    """Each number is two halves; 9 is about as likely as 1, which has a weight of its own."""
    values, distance, draws = [9.0] * 30, 1.0, 6_000
    table = LazyColumns(pd.DataFrame({"a": [0.0, 0.0, *values]}), {}, "sick")
    found = [
        scales._medians(Held(table), {"a": 0.0}, distance, Key.of_seed(at), "flat", True)["a"]
        for at in range(draws)
    ]
    both = halves(values)
    places = np.unique(exact.keys(np.array(both)))
    which = np.searchsorted(places, exact.keys(np.array(found)), side="right")
    counts = np.bincount(which, minlength=len(places) + 1)
    known: dict[str, Any] = {"also": both, "positive": True, "atom": ONE}
    assert fits(counts, law(both, distance / 2, **known))
    for factor in (0.99, 1.01):
        assert not fits(counts, law(both, factor * distance / 2, **known))


def test_a_column_of_0_and_1_keeps_its_scale() -> None:
    """A size of what is not 0 by chance would be anything from 1e-38 to 1e38."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame({f"c{at}": (random.random(9_000) < 0.2) * 1.0 for at in range(60)})
    table: Held[Any] = Held(LazyColumns(frame, {}, "sick"))
    found = scales.scales(table, [*map(str, frame)], 0.02, 60 / 4, Key.of_seed(0))
    assert max(one.sd for one in found.values() if isinstance(one, Numeric)) < 1


@given(
    st.lists(st.one_of(st.floats(-9, 9), st.floats(allow_nan=False))),
    st.floats(allow_nan=False),
    st.sampled_from([2.0, 4.0]),
)
def test_noise_of_means_covers_one_number_more(
    values: list[float], more: float, reach: float
) -> None:
    one, other = (exact.part_sums(np.array(v), reach) for v in (values, [more, *values]))
    distance = np.linalg.norm(other - one) / exact.means_deviation(reach, 1.0)
    assert distance <= 1 + 1e-15
    if abs(more) >= reach:
        assert distance == pytest.approx(1.0)  # attained: 1 % less noise would not do


def test_means_have_the_law() -> None:
    """Of their three noisy sums, by the moments of ratios to first order, and with no noise."""
    values = np.random.default_rng(0).normal(0.3, 1.0, 4_000)
    cut = np.clip(values, -4, 4)
    draws = [
        exact.means_of(exact.part_sums(values, 4.0), 4.0, 0.5, Key.of_seed(8).child(i))
        for i in range(4_000)
    ]
    mean, spread = np.array(draws).T
    noise = 4 * math.sqrt(1.25) / 0.5 / len(values)
    for found, exactly in ((mean, cut.mean()), (spread, np.abs(cut).mean())):
        # Two sums, and a count whose noise weighs half as much over reach: of its own mean.
        wanted = noise * math.sqrt(2 + (exactly / 2) ** 2)
        assert found.std() == pytest.approx(wanted, rel=6 / math.sqrt(2 * len(found)))
        assert abs(found.mean() - exactly) < 6 * wanted / math.sqrt(len(found)) + 1e-3
    for few in ([], [math.inf], [-1e300] * 2):
        assert all(
            math.isfinite(v)
            for v in exact.means_of(exact.part_sums(np.array(few), 4.0), 4.0, 0.1, Key.of_seed(1))
        )


def test_equal_keys_draw_equally_and_a_row_changes_nothing_else() -> None:
    values, key = np.arange(50.0), Key.of_seed(1)
    assert median(values, 0.5, key) == median(values[::-1].copy(), 0.5, key)
    other = median(np.append(values, 1e300), 50.0, key)
    assert abs(other - median(values, 50.0, key)) <= 1


@pytest.mark.parametrize("deviation", [0.6, 32.0, 1e6])
def test_noise_of_counts_is_gaussian(deviation: float) -> None:
    noise = exact.count_noise(1_000_000, deviation, Key.of_seed(2))
    assert (noise % 1 == 0).all()
    # The standard error of a variance is √(2/n) of it; six of them are one in 10⁹.
    assert noise.var() == pytest.approx(rounded_variance(deviation), rel=6 * math.sqrt(2e-6))
    assert abs(noise.mean()) < 6 * deviation / 1e3
    whole, found = np.unique(noise, return_counts=True)
    kept = found > 100
    ends = whole[kept, None] + np.array([-0.5, 0.5])
    chance = np.diff(stats.norm.cdf(ends / deviation)).ravel()
    far = np.abs(found[kept] - 1e6 * chance) / np.sqrt(1e6 * chance)
    assert (far < 6.5).all()


def rounded_variance(deviation: float) -> float:
    """Return the variance of a rounded normal number: Sheppard's, summed for small deviations."""
    if deviation > 10:
        return deviation**2 + 1 / 12
    whole = np.arange(-100, 101)
    chance = np.diff(stats.norm.cdf((np.append(whole, 101) - 0.5) / deviation))
    return float((whole**2 * chance).sum())


@pytest.mark.parametrize("delta", [1e-6, 1e-9])
@pytest.mark.parametrize("deviation", [3.0, 32.0, 1e4])
def test_one_person_s_name_is_published_with_at_most_its_delta(
    deviation: float, delta: float
) -> None:
    """The tail of the rounded noise, in 50 digits; a threshold 1 lower would not do."""

    def published(bound: float) -> float:
        # The least whole number that the noise must reach for 1 + noise to be above the threshold.
        least = math.floor(bound - 1) + 1
        with mpmath.workdps(50):
            below = (mpmath.mpf(least) - mpmath.mpf(1) / 2) / deviation
            return float(mpmath.ncdf(-below))

    bound = exact.threshold(deviation, delta)
    assert published(bound) <= delta < published(bound - 1)
    if deviation >= 32:
        assert 0.6 * delta < published(bound)
        assert published(1 + (bound - 1) * 0.97) > delta

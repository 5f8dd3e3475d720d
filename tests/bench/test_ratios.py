"""Differences and ratios of ε: against formulas, loops, and repeated experiments."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm, ttest_ind, ttest_rel

from bdpvi.bayesian.guarantees import BAYESIAN, WORST_CASE
from bdpvi.bench.headline import headline
from bdpvi.bench.ratios import (
    Ratio,
    ScoreTable,
    between,
    difference,
    epsilon_needed,
    epsilon_ratios,
    resampled,
)
from bdpvi.bench.summary import BEST


def steady(records: np.ndarray) -> ScoreTable:
    """Return the scores of a method whose runs are all alike."""
    return ScoreTable(records, np.full(5, records.mean()))


def test_a_difference_without_runs_is_the_paired_t_test() -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 40))
    found = difference(steady(a), steady(b))
    theirs = ttest_rel(a, b).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
    assert found.estimate == pytest.approx((a - b).mean())
    assert difference(steady(b), steady(a)).high == pytest.approx(-found.low)


def test_a_difference_without_records_is_welchs_t_test() -> None:
    generator = np.random.default_rng(5)
    a, b = generator.normal(1.0, 1.0, size=12), generator.normal(0.0, 3.0, size=7)
    first, second = (ScoreTable(np.full(30, runs.mean()), runs) for runs in (a, b))
    found = difference(first, second)
    theirs = ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))


def test_an_interval_holds_for_further_records_and_further_runs() -> None:
    # Crossed effects of records and runs: the truth is 0.3, and each part alone is too little.
    generator, inside, narrow = np.random.default_rng(1), 0, 0
    for _ in range(400):
        made = []
        for mean in (0.3, 0.0):
            effects = mean + 0.4 * generator.normal(size=(12, 1)) + generator.normal(size=(1, 100))
            made.append(effects + 0.5 * generator.normal(size=effects.shape))
        a, b = (ScoreTable(one.mean(0), one.mean(1)) for one in made)
        found = difference(a, b)
        inside += found.low <= 0.3 <= found.high
        records = difference(steady(a.records), steady(b.records))
        narrow += records.low <= 0.3 <= records.high
    assert 0.93 <= inside / 400 <= 0.99
    assert narrow / 400 < 0.93


def test_one_run_leaves_a_difference_open() -> None:
    single = ScoreTable(np.array([0.0, 1.0, 1.0]), np.array([2 / 3]))
    found = difference(single, steady(np.array([0.0, 0.0, 1.0])))
    assert math.isnan(found.low)
    assert found.estimate == pytest.approx(1 / 3)


def slowly(curve: list[float], epsilons: list[float], wanted: float) -> float:
    best = -math.inf
    for i, (score, epsilon) in enumerate(zip(curve, epsilons, strict=True)):
        before, best = best, max(best, score)
        if best >= wanted:
            if i == 0:
                return 0.0
            part = (wanted - before) / (best - before)
            return float(epsilons[i - 1] ** (1 - part) * epsilon**part)
    return math.inf


def test_epsilon_needed_against_a_loop() -> None:
    generator = np.random.default_rng(2)
    epsilons = np.sort(generator.uniform(0.01, 1, 6))
    curves, wanted = generator.normal(size=(300, 6)), generator.normal(size=300)
    found = epsilon_needed(curves, epsilons, wanted)
    expected = [slowly(list(c), list(epsilons), w) for c, w in zip(curves, wanted, strict=True)]
    assert found.tolist() == pytest.approx(expected)
    assert {0.0, math.inf} < set(found.tolist())


def test_resamples_have_the_errors_of_records_and_runs_and_share_the_records() -> None:
    generator = np.random.default_rng(3)
    records = generator.normal(size=60)
    noisy = ScoreTable(records + 5, np.array([4.0, 5.0, 6.0, 5.0, 4.5, 5.5, 5.0, 5.0] * 6))
    means = resampled([steady(records), noisy], repeats=100_000)
    by_records = records.std() / math.sqrt(60)
    assert means[0].std() == pytest.approx(by_records, rel=0.01)
    # A Student-t error of 47 degrees of freedom has a variance of 47/45.
    error = noisy.error * math.sqrt(47 / 45)
    assert means[1].std() == pytest.approx(math.hypot(by_records, error), rel=0.01)
    assert (means[1] - means[0]).std() == pytest.approx(error, rel=0.01)
    # Against the plain bootstrap, one index at a time.
    slow = [records[generator.integers(0, 60, 60)].mean() for _ in range(4000)]
    tails = [0.025, 0.5, 0.975]
    room = 4 * by_records / math.sqrt(4000)
    assert np.quantile(means[0], tails) == pytest.approx(np.quantile(slow, tails), abs=3 * room)


def test_the_interval_of_a_ratio_is_that_of_the_analytic_example() -> None:
    # A steep certain curve: what is left is the score of the row, mean 0.55, normal in the limit,
    # and ε = 0.01 · 10^(10 (score − 0.5)).
    records = np.random.default_rng(4).normal(size=400)
    records = 0.55 + 0.2 * (records - records.mean()) / records.std()
    flat = [(e, steady(np.full(400, 0.5 + 0.1 * math.log10(e / 0.01)))) for e in (0.01, 0.1, 1.0)]
    (ratio,) = epsilon_ratios([(0.02, steady(records))], flat, repeats=4000)
    half = 10 * norm.ppf(0.975) * 0.2 / 20
    assert ratio.interval.estimate == pytest.approx(0.5 * 10**0.5)
    assert math.log10(ratio.interval.low) == pytest.approx(math.log10(0.5) + 0.5 - half, abs=0.02)
    assert math.log10(ratio.interval.high) == pytest.approx(math.log10(0.5) + 0.5 + half, abs=0.02)


def test_outside_the_curve_a_ratio_is_a_bound() -> None:
    points = [(e, steady(np.array([s, s]))) for e, s in ((0.1, 0.5), (1.0, 0.6), (2.0, 0.55))]
    low, high = epsilon_ratios(
        [(0.05, steady(np.array([0.4, 0.4]))), (0.05, steady(np.array([0.7, 0.7])))], points, 10
    )
    assert str(low) == "≤ 2.00 (≤ 2.00 to ≤ 2.00)"
    # The curve ends where it is highest: what was worse at 2 does not say that 2 is not enough.
    assert str(high) == "≥ 20.0 (≥ 20.0 to ≥ 20.0)"
    one = ScoreTable(np.array([0.5, 0.6]), np.array([0.55]))
    (unknown,) = epsilon_ratios([(0.05, one)], points, 10)
    assert str(unknown).endswith("(unknown to unknown)")
    assert str(Ratio(between(np.array([1.0, 2.0]), 1.5), 0.1, 10)) == "1.50 (1.00 to 2.00)"


def beside(target: float, low: float, high: float, certified: str = "yes") -> dict[str, object]:
    return {
        "measure": "log_score", "method": "ours", "target_epsilon": target, "rival": "theirs",
        "certified": certified, "against": BEST, "difference": (low + high) / 2,
        "difference_low": low, "difference_high": high,
    }  # fmt: skip


def summary(*rows: dict[str, object]) -> pd.DataFrame:
    columns = ("guarantee", "certified", "method", "target_epsilon", "kept", "log_score_behind",
               "log_score_behind_low")  # fmt: skip
    return pd.DataFrame(list(rows), columns=list(columns))


def test_certified_rows_are_above_or_below_only_where_the_interval_excludes_0() -> None:
    def said(*rows: dict[str, object]) -> list[str]:
        ours = [{"guarantee": BAYESIAN, "certified": row["certified"], "method": row["method"],
                 "target_epsilon": row["target_epsilon"]} for row in rows]  # fmt: skip
        return headline(summary(*ours), pd.DataFrame(rows))

    open_ = said(beside(0.1, -0.01, 0.05), beside(1.0, -0.01, 0.0))
    (text,) = open_
    assert "higher" not in text
    assert "lower" not in text
    assert text.endswith("ours, certified at ε = 0.1 and 1, has one too close to call at ε = 0.1 "
                         "and 1.")  # fmt: skip
    (text,) = said(beside(0.1, 0.01, 0.05), beside(0.5, -0.1, -0.05), beside(1.0, 0.02, 0.03, "no"))
    assert text == (
        "Beside the best worst-case method, ours, certified at ε = 0.1 and 0.5, has the higher log "
        "score at ε = 0.1, the lower log score at ε = 0.5."
    )
    (text,) = said(beside(0.1, 0.01, 0.05, "no"), beside(1.0, 0.02, 0.03, "no"))
    assert text == "No Bayesian ε is certified within its target of 0.1 and 1."


def test_ahead_of_every_other_worst_case_method_means_every_other() -> None:
    columns = ("difference", "difference_low", "difference_high")
    table = pd.DataFrame(columns=["measure", "against", "certified", "target_epsilon", *columns])

    def said(*lows: float) -> list[str]:
        rows = [
            {"guarantee": WORST_CASE, "certified": "—", "target_epsilon": place + 0.5,
             "method": name, "kept": 0.9 - gap, "log_score_behind": gap, "log_score_behind_low": at}
            for place, low in enumerate(lows)
            for name, gap, at in (("a", 0.0, 0.0), ("b", 0.2, 0.1), ("c", 0.1, low))
        ]  # fmt: skip
        experiment = {"guarantee": BAYESIAN, "certified": "no", "target_epsilon": 0.5,
                      "method": "d", "kept": 0.99}  # fmt: skip
        return headline(summary(*rows, experiment), table)[1:]

    first, kept = said(0.01)
    assert first == (
        "Among worst-case methods the highest log score belongs to a at ε = 0.5; it is ahead of "
        "every other at ε = 0.5."
    )
    gain = "Of the gain in log score of a non-private fit over the base rate, "
    assert kept == f"{gain}the best worst-case row keeps 90% at ε = 0.5."
    # A Bayesian ε is never taken for a worst-case one: each guarantee has its own best.
    ours = {"guarantee": BAYESIAN, "certified": "yes", "target_epsilon": 0.5, "kept": 0.95}
    theirs = {"guarantee": WORST_CASE, "certified": "—", "target_epsilon": 1.0, "kept": 0.9}
    assert headline(summary(ours, theirs), table)[-1] == (
        f"{gain}the best certified Bayesian row keeps 95% at ε = 0.5; the best worst-case row "
        "keeps 90% at ε = 1."
    )
    assert said(-0.01)[0].endswith("a at ε = 0.5; at least one other is too close to call.")
    assert said(-0.01, 0.01)[0].endswith(
        "a at ε = 0.5 and 1.5; it is ahead of every other at ε = 1.5, elsewhere at least one other "
        "is too close to call."
    )

"""A Table 1 from noisy counts: its price, its numbers, its intervals, and what is refused."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from people_shared import SCHEMA, people
from program import run
from scipy import stats
from scipy.optimize import brentq
from statsmodels.stats.proportion import proportion_confint

import bdpvi
from bdpvi.datasets import ColumnType, Schema, grid
from bdpvi.datasets.grid import Floats
from bdpvi.privacy.ledger import Ledger
from bdpvi.synthesis import Counts, NoisyCounts, load, moments, table_one
from bdpvi.synthesis.counts import MeasurementPlan, merged
from bdpvi.synthesis.least_squares import CodeCounts, of_column, of_groups
from bdpvi.synthesis.moments import Shares, distribution, mean_and_sd, quantile

Z = 1.959964
ALONE = Counts(pairs=False)
AGE = ColumnType(kind="integer", low=0, high=110)


@pytest.mark.parametrize("target", [None, 0, 2])
def test_the_tables_cost_exactly_what_was_asked(target: int | None) -> None:
    plan = MeasurementPlan.of(SCHEMA, target, 0.7, ALONE)
    paid = 4 / plan.one_way**2 + sum(1 / one**2 for one in plan.joint.values())
    assert paid == pytest.approx(0.49, rel=1e-12)
    columns = {0, 1, 2, 3}
    if target is None:
        assert [*plan.joint] == [(0,), (1,)]  # the numbers
    else:
        assert {*plan.joint} == {(min(at, target), max(at, target)) for at in columns - {target}}


def test_bins_begin_at_eighths_of_the_range_and_levels_are_not_merged() -> None:
    noisy = np.array([9, 0, 50, 1, 1, 1, 0, -3])
    found = merged(noisy, True, -math.inf, 40.0, (2, 4))
    assert found.tolist() == [0, 0, 1, 2, 3, 3, 4, 5]
    plan = MeasurementPlan.of(SCHEMA, None, 0.7, ALONE)
    bins = plan.bins([np.zeros(size, dtype=np.int64) for size in plan.sizes])
    assert bins[2].tolist() == [0, 1, 2, 3]
    ends = grid.edges(SCHEMA.columns["weight"])
    assert ends is not None
    starts = ends[np.flatnonzero(np.diff(bins[1][:-2], prepend=-1))]
    assert starts == pytest.approx(np.arange(8) * 25, abs=1e-9)


def lstsq(rows: list[tuple[Floats, float, float]], size: int) -> tuple[Floats, Floats]:
    """Return the solution of weighted equations by a QR of all of them, and its covariance."""
    matrix = np.stack([left / deviation for left, _, deviation in rows])
    right = np.array([value / deviation for _, value, deviation in rows])
    q, r = np.linalg.qr(matrix)
    inverse = np.linalg.inv(r)
    assert matrix.shape[1] == size
    return inverse @ (q.T @ right), inverse @ inverse.T


def noisy_counts(random: np.random.Generator) -> NoisyCounts:
    bins = (np.array([0, 0, 1, 1, 1, 2, 3]), np.arange(4), np.array([0, 1, 1, 2, 3]))
    sizes = [4, 4, 4]
    single = tuple(random.integers(50, 300, len(one)) for one in bins)
    joint: dict[tuple[int, ...], Any] = {
        pair: random.integers(20, 90, (sizes[pair[0]], sizes[pair[1]]))
        for pair in itertools.combinations(range(3), 2)
    }
    deviations = dict(zip(joint, (11.0, 5.0, 8.0), strict=True))
    return NoisyCounts(single, bins, joint, 7.0, deviations)


def test_counts_of_a_column_are_those_of_least_squares() -> None:
    noisy = noisy_counts(np.random.default_rng(0))
    one = np.eye(7)
    rows: list[tuple[Floats, float, float]] = [
        (one[code], noisy.single[0][code], 7.0) for code in range(7)
    ]
    for pair, deviation in (((0, 1), 11.0), ((0, 2), 5.0)):
        for code in range(4):
            inside = (noisy.bins[0] == code).astype(float)
            rows.append((inside, noisy.joint[pair][code].sum(), 2 * deviation))
    rows.append((np.ones(7), noisy.single[1].sum(), 7.0 * 2))
    rows.append((np.ones(7), noisy.single[2].sum(), 7.0 * math.sqrt(5)))
    rows.append((np.ones(7), noisy.joint[1, 2].sum(), 8.0 * 4))
    values, covariance = lstsq(rows, 7)
    found = of_column(noisy, 0)
    assert found.counts == pytest.approx(values, rel=1e-10)
    assert found.noise == pytest.approx(covariance, rel=1e-9)


@pytest.mark.parametrize(("at", "by"), [(0, 1), (2, 1)])
def test_counts_of_groups_are_those_of_least_squares(at: int, by: int) -> None:
    noisy = noisy_counts(np.random.default_rng(1))
    shares = np.array([0.3, 0.1, 0.2, 0.2, 0.2, 0, 0] if at == 0 else [0.5, 0.2, 0.3, 0, 0])
    pair, other = (min(at, by), max(at, by)), 2 - at
    table = noisy.joint[pair] if at < by else noisy.joint[pair].T
    rest = (min(other, by), max(other, by))
    beside = noisy.joint[rest].sum(1 if by < other else 0)
    for group, found in enumerate(of_groups(noisy, at, by, shares)):
        deviation = noisy.deviations[pair]
        rows = [(np.eye(4)[code], float(table[code, group]), deviation) for code in range(4)]
        rows.append((np.ones(4), float(noisy.single[by][group]), 7.0))
        rows.append((np.ones(4), float(beside[group]), 2 * noisy.deviations[rest]))
        values, covariance = lstsq(rows, 4)
        totals = np.stack([noisy.bins[at] == one for one in range(4)]).astype(float)
        seen = totals @ found.counts
        assert seen == pytest.approx(values, rel=1e-10)
        assert totals @ found.noise @ totals.T == pytest.approx(covariance, rel=1e-9)
        assert (found.blocks == noisy.bins[at]).all()


def exact(values: Floats, column: ColumnType) -> CodeCounts:
    codes = grid.encode(column, pd.Series(values))[0]
    counts = np.bincount(codes, minlength=grid.size(column)).astype(float)
    return CodeCounts(counts, np.zeros((len(counts),) * 2), np.arange(len(counts)))


def test_without_noise_the_statistics_and_their_errors_are_the_usual_ones() -> None:
    random = np.random.default_rng(0)
    values = random.gamma(9.0, 5.0, 4000).round().clip(0, 110)
    found = dict(moments.of_numbers(AGE, exact(values, AGE), 1, Z))
    spread = values.std(ddof=1)
    mean, low, high = found["mean"]
    assert mean == pytest.approx(values.mean(), rel=1e-9)
    assert (high - low) / 2 == pytest.approx(Z * spread / math.sqrt(4000), rel=1e-3)
    sd, low, high = found["sd"]
    assert sd == pytest.approx(spread, rel=1e-6)
    error = math.sqrt(((values - mean) ** 4).mean() - spread**4) / math.sqrt(4000)
    assert low**2 - spread**2 == pytest.approx(-Z * error, rel=1e-3)
    assert 2 * math.log(high / spread) == pytest.approx(Z * error / spread**2, rel=1e-3)
    for name, level in moments.QUARTILES.items():
        value, low, high = found[name]
        assert value == np.quantile(values, level, method="inverted_cdf")
        half = Z * math.sqrt(level * (1 - level) / 4000)
        assert low == np.quantile(values, level - half, method="inverted_cdf")
        assert high == np.quantile(values, level + half, method="inverted_cdf")


def test_errors_by_noise_are_those_of_simulated_noise() -> None:
    random = np.random.default_rng(1)
    values = random.gamma(9.0, 5.0, 10**6).round().clip(0, 110)  # no sampling error to speak of
    base = exact(values, AGE)
    noise = 6e2 * random.normal(size=(8, grid.size(AGE)))
    covariance = noise.T @ noise + 1.6e5 * np.eye(grid.size(AGE))
    found = dict(moments.of_numbers(AGE, CodeCounts(base.counts, covariance, base.blocks), 1, Z))
    drawn = random.multivariate_normal(base.counts, covariance, 20_000)[:, :-2]
    shares = drawn / drawn.sum(1, keepdims=True)
    middles = np.arange(111.0)
    means = shares @ middles
    squares = shares @ middles**2 - means**2
    _, low, high = found["mean"]
    assert (high - low) / 2 == pytest.approx(Z * means.std(), rel=0.02)
    assert found["sd"][0] ** 2 - base_variance(values) == pytest.approx(means.var(), rel=0.05)
    sd, low, high = found["sd"]
    assert sd**2 - low**2 == pytest.approx(Z * squares.std(), rel=0.02)
    assert 2 * math.log(high / sd) == pytest.approx(Z * squares.std() / sd**2, rel=0.02)
    some = Shares.of(CodeCounts(base.counts, covariance, base.blocks), np.arange(111), 1)
    assert some is not None
    points, _, variance = distribution(AGE, some)
    at = np.flatnonzero(points == 44)[-1]
    assert variance[at] == pytest.approx(shares[:, :45].sum(1).var(), rel=0.04)


def base_variance(values: Floats) -> float:
    return float(values.var())


def test_a_mean_of_wide_cells_has_sheppards_correction_and_room_for_their_width() -> None:
    column = ColumnType(kind="number", low=0, high=10)
    first, last, inside = moments.cells_of(column)
    law = stats.norm(5, 0.25)
    chances = np.append(law.cdf(last) - law.cdf(first), [0, 0])
    counts = CodeCounts(1e9 * chances, np.zeros((len(chances),) * 2), np.arange(len(chances)))
    some = Shares.of(counts, np.arange(len(first)), 1)
    assert some is not None
    (mean, low, high), (sd, least, most) = mean_and_sd(column, some, Z)
    assert mean == pytest.approx(5, abs=1e-3)
    assert sd == pytest.approx(0.25, rel=3e-3)  # by middles 0.2533, by uniform cells 0.2571
    width = last - first
    assert (high - low) / 2 == pytest.approx(
        Z * math.sqrt((chances[:-2] ** 2 * width**2).sum() / 48), rel=1e-3
    )
    assert least < 0.2471
    assert most > 0.2571
    assert inside[0] == 0
    assert inside[40] == pytest.approx(width[40] ** 2 / 12)
    whole = moments.cells_of(ColumnType(kind="integer", low=0, high=6399))
    wide = whole[1] - whole[0] == 99
    assert whole[2][wide] == pytest.approx(np.arange(100).var())


def test_the_share_of_a_level_is_wilsons_with_noise() -> None:
    counts = np.array([130.0, 870.0])
    some = Shares.of(CodeCounts(counts, np.zeros((2, 2)), np.arange(2)), np.arange(2), 1)
    assert moments.share(some, 0, Z)[1:] == pytest.approx(
        proportion_confint(130, 1000, method="wilson"), rel=1e-6
    )
    both = Shares.of(CodeCounts(counts, np.diag([400.0, 400.0]), np.arange(2)), np.arange(2), 4)
    assert both is not None
    variance = 400 * (0.87**2 + 0.13**2) / 1000**2  # of 130/(130 + 870), by the delta method

    def outside(p: float) -> float:
        return (0.13 - p) ** 2 - Z**2 * (p * (1 - p) / 250 + variance)

    ends = brentq(outside, 0, 0.13), brentq(outside, 0.13, 1)
    assert moments.share(both, 0, Z) == pytest.approx((0.13, *ends), rel=1e-9)


def test_a_quantile_has_all_numbers_that_a_test_does_not_reject() -> None:
    points = np.linspace(0, 1, 101)
    noise = 0.01 * np.sin(40 * points)
    values, variance = points**2 + noise, np.full(101, 0.02**2)
    value, low, high = quantile(points, values, variance, 0.5, 400.0, Z)
    fine = np.linspace(0, 1, 100_001)
    function = np.interp(fine, points, values)
    half = Z * math.sqrt(0.02**2 + 0.25 / 400)
    kept = fine[np.abs(function - 0.5) <= half]
    assert (low, high) == pytest.approx((kept[0], kept[-1]), abs=2e-5)
    assert value == pytest.approx(fine[np.argmax(function >= 0.5)], abs=2e-5)


def test_inside_a_block_of_cells_the_distribution_is_not_known() -> None:
    column = ColumnType(kind="number", low=0, high=64)
    counts = np.zeros(grid.size(column))
    first, last, _ = moments.cells_of(column)
    counts[:-2][(first >= 16) & (last <= 32)] = 1e6
    blocks = (np.arange(len(counts)) > 60).astype(np.int64)
    some = Shares.of(
        CodeCounts(counts, np.zeros((len(counts),) * 2), blocks), np.arange(len(first)), 1
    )
    assert some is not None
    _, values, variance = distribution(column, some)
    heavy = some.sample[blocks[:-2] == 0].sum()
    at = np.argmin(np.abs(values - heavy / 2))
    assert variance[at] == pytest.approx(0.75 * (heavy * 0.25) ** 2, rel=0.01)


def test_rows_of_one_person_count_as_one() -> None:
    values = np.random.default_rng(0).gamma(9.0, 5.0, 4000).round().clip(0, 110)
    one, four = (dict(moments.of_numbers(AGE, exact(values, AGE), k, Z)) for k in (1, 4))
    widths = [found["mean"][2] - found["mean"][1] for found in (one, four)]
    assert widths[1] == pytest.approx(2 * widths[0], rel=1e-3)


# --- whole tables ---------------------------------------------------------------------------------

LAWS = {
    "age": stats.norm(50, 18), "income": stats.lognorm(0.8, scale=27_000),
    "marker": stats.lognorm(1.0), "hours": stats.expon(scale=8),
}  # fmt: skip
BOUNDS = {"age": (0, 110), "income": (0, 200_000), "marker": (0, 20), "hours": (0, 60)}
MANY = Schema(
    {
        **{name: ColumnType(kind="number", low=a, high=b) for name, (a, b) in BOUNDS.items()},
        "ward": ColumnType(levels=("A", "B")),
    },
    "law",
)


def simulated(rows: int, random: np.random.Generator) -> pd.DataFrame:
    """Return rows of :data:`LAWS` clamped to bounds; those of ward B are 1.1 times as large."""
    ward = random.random(rows) < 0.4
    found: dict[str, Any] = {
        name: np.clip(law.rvs(rows, random_state=random) * np.where(ward, 1.1, 1), *BOUNDS[name])
        for name, law in LAWS.items()
    }
    found["ward"] = np.where(ward, "B", "A")
    found["age"][random.random(rows) < 0.1] = np.nan
    return pd.DataFrame(found)


def truth(by: str | None) -> dict[tuple[str, str, str], float]:
    frame = simulated(1_000_000, np.random.default_rng(99))
    found = {}
    for group, some in [("all", frame), *([] if by is None else frame.groupby(by))]:
        for name in LAWS:
            found[name, group, "mean"] = some[name].mean()
            found[name, group, "sd"] = some[name].std()
            for what, level in moments.QUARTILES.items():
                found[name, group, what] = some[name].quantile(level)
            found[name, group, "missing"] = 0.1 * (name == "age")
        if by is None:
            found["ward", group, "share"] = 0.6
    return found


@pytest.mark.slow
@pytest.mark.parametrize("by", [None, "ward"])
def test_intervals_cover_in_200_tables(by: str | None) -> None:
    true = truth(by)
    inside: dict[tuple[str, str, str], list[bool]] = {key: [] for key in true}
    for seed in range(200):
        frame = simulated(2000, np.random.default_rng(seed))
        made = bdpvi.describe(frame, MANY, by, epsilon=2.0)
        for one in made.statistics:
            key = (one.column, one.group, one.name)
            if key in true and one.level in ("", "A"):
                inside[key].append(one.low <= true[key] <= one.high)
    shares = {key: float(np.mean(some)) for key, some in inside.items()}
    assert all(len(some) == 200 for some in inside.values())
    # 0.93 less 2.3 standard errors of a share of 200, as the least of so many
    assert min(shares.values()) > 0.93 - 2.3 * math.sqrt(0.93 * 0.07 / 200), shares
    assert np.mean([*shares.values()]) > 0.95


def test_every_statistic_of_a_small_table() -> None:
    frame = people(3000, 0)
    frame.loc[:299, "weight"] = np.nan
    made = bdpvi.describe(frame, SCHEMA, epsilon=50.0, delta=1e-6)
    found = made.to_frame().set_index(["column", "level", "name"])
    assert found.loc[("", "", "count"), "value"] == pytest.approx(3000, abs=3)
    assert found.loc[("age", "", "mean"), "value"] == pytest.approx(frame.age.mean(), abs=0.1)
    assert found.loc[("weight", "", "sd"), "value"] == pytest.approx(frame.weight.std(), abs=0.2)
    assert found.loc[("weight", "", "missing"), "value"] == pytest.approx(0.1, abs=0.003)
    assert found.loc[("weight", "", "count"), "value"] == pytest.approx(2700, abs=9)
    median = frame.weight.median()
    assert found.loc[("weight", "", "median"), "value"] == pytest.approx(median, abs=0.5)
    assert found.loc[("sick", "yes", "share"), "value"] == pytest.approx(
        (frame.sick == "yes").mean(), abs=0.003
    )
    assert found.loc[("sick", "yes", "count"), "value"] == pytest.approx(
        (frame.sick == "yes").sum(), abs=6
    )
    assert (found.low <= found.value).all()
    assert (found.value <= found.high).all()
    text, html = str(made), made.to_html()
    assert made._repr_html_() == html
    assert "Statistic(" not in repr(made)
    assert "weight mean" in " ".join(text.split())
    assert "not listed" not in text
    assert "95 % intervals in brackets" in text
    assert "<td>" in html


def test_groups_are_those_of_the_table_and_hostile_names_stay_text() -> None:
    frame = people(3000, 0)
    schema = Schema({**SCHEMA.columns, "sex": ColumnType(levels=("<b>F", "M"))}, "law")
    frame["sex"] = frame.sex.replace("F", "<b>F")
    made = bdpvi.describe(frame, schema, "sex", epsilon=50.0)
    assert made.groups == ("all", "<b>F", "M")
    found = made.to_frame().set_index(["column", "group", "level", "name"]).value
    for group, some in frame.groupby("sex"):
        assert found["age", group, "", "mean"] == pytest.approx(some.age.mean(), abs=0.4)
        assert found["sick", group, "yes", "share"] == pytest.approx(
            (some.sick == "yes").mean(), abs=0.01
        )
    assert "<b>" not in made.to_html()
    assert "sex" not in {one.column for one in made.statistics}


def test_noise_that_hides_a_column_is_said() -> None:
    frame = pd.DataFrame({"age": [40.0], "sick": ["yes"]})
    schema = Schema({"age": AGE, "sick": ColumnType(levels=("no", "yes"))}, "By law.")
    made = [bdpvi.describe(frame, schema, epsilon=0.01) for _ in range(20)]
    hidden = [one for table in made for one in table.statistics if one.name == "median"]
    assert any(math.isnan(one.value) for one in hidden)
    assert all(one.low == 0 and one.high == 110 for one in hidden if math.isnan(one.value))
    assert any("hidden by noise" in str(one) for one in made)


def test_counts_for_a_synthetic_table_describe_themselves_by_any_column() -> None:
    frame = people(3000, 0)
    shared = bdpvi.synthesize(frame, SCHEMA, "sick", epsilon=20.0)
    made = table_one(shared, "sex")
    found = made.to_frame().set_index(["column", "group", "level", "name"])
    true = frame[frame.sex == "F"].weight.mean()
    place = ("weight", "F", "", "mean")
    assert found.low[place] - 0.5 < true < found.high[place] + 0.5
    for level, message in ((0.0, "level"), (1.0, "level")):
        with pytest.raises(ValueError, match=message):
            table_one(shared, level=level)


def test_without_a_schema_the_groups_are_names() -> None:
    frame = people(3000, 0)
    frame["site"] = np.random.default_rng(0).integers(1, 4, 3000)
    made = bdpvi.describe(frame, by="site", epsilon=20.0)
    assert made.groups == ("all", "1", "2", "3")
    assert {*made.receipt.bought} == {*frame.columns}


def test_what_cannot_be_described_is_refused_uncharged() -> None:
    frame, ledger = people(200, 0), Ledger()
    for by, message in (
        ("age", "by='age' is a column of numbers"),
        ("agee", "by='agee' must be a column that is counted"),
    ):
        with pytest.raises(ValueError, match=message):
            bdpvi.describe(frame, SCHEMA, by, epsilon=1.0, ledger=ledger)
    with pytest.raises(ValueError, match="also="):
        bdpvi.describe(frame, SCHEMA, epsilon=1.0, settings=Counts(also=(("age", "sex", "sick"),)))
    assert not ledger.entries()
    made = bdpvi.describe(frame, SCHEMA, "sex", epsilon=1.0, ledger=ledger)
    assert [one.note.what for one in ledger.entries() if one.note] == ["describe"]
    with pytest.raises(ValueError, match="no rows can be made"):
        made.counts.sample()
    with pytest.raises(ValueError, match="by='sick' was not counted with the other columns"):
        table_one(made.counts, "sick")
    with pytest.raises(ValueError, match="by='age' is a column of numbers"):
        table_one(made.counts, "age")


def test_the_command_writes_what_may_be_published_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people(2000, 0).to_csv(tmp_path / "people.csv", index=False)
    asked = ("describe", "--data", tmp_path / "people.csv", "--one-row-per-person", "--by", "sex",
             "--epsilon", 2, "--quiet", "--out", tmp_path / "shared")  # fmt: skip
    first = run(*asked)
    assert "weight mean" in " ".join(first.split())
    files = {one.name: one.read_bytes() for one in (tmp_path / "shared").iterdir()}
    made = {"counts.json", "statement.html", "table_one.csv", "table_one.html", "table_one.txt"}
    assert {*files} == made
    again = table_one(load(tmp_path / "shared" / "counts.json"), "sex")
    frame = pd.read_csv(tmp_path / "shared" / "table_one.csv", keep_default_na=False)
    assert frame.value.to_numpy() == pytest.approx(again.to_frame().value.to_numpy())
    assert str(again) in files["table_one.txt"].decode()
    run(*asked)
    assert {one.name: one.read_bytes() for one in (tmp_path / "shared").iterdir()} == files
    kept = Ledger.at(tmp_path / "people.csv.ledger.jsonl")
    assert len(kept.entries()) == 1
    shown = run("show", tmp_path / "shared" / "counts.json", "--by", "sex")
    assert str(again) in shown

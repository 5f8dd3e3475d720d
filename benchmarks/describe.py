"""Errors of a Table 1 beside a split of the same ε over its statistics, and coverage of intervals.

    python benchmarks/describe.py [--epsilon 1] [--rows 5000] [--seeds 100] [--by ward]
    python benchmarks/describe.py --coverage [--seeds 200] [--by ward]

Simulated people: age, BMI, income (lognormal), hours (exponential) and a marker (lognormal of
log-sd 1), all clamped to public bounds; ward, sex and smoking. δ = 1e-6, adding or removing a row.
An error is the mean absolute difference from the same statistic of the table, ± its standard error
over seeds. Others split ε evenly over all that is printed: for numbers a count, a sum of clamped
numbers less the middle of their bounds, a sum of these squared, three quantiles; for levels a
histogram. Groups compose in parallel.

- Laplace: ε/m for each of m queries, quantiles by the exponential mechanism among 250 even
  candidates, as OpenDP's and DP Wizard's documentation has them.
- Gaussian: μ/√m for each, quantiles by the exponential mechanism of the same zCDP.
- OpenDP: the library itself, if it is installed, with ε/m for each.

Coverage: the share of seeds in which an interval has the population's value, which a million other
people give; counts are of the table itself.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from printed import command

import bdpvi
from bdpvi.datasets import ColumnType, Schema
from bdpvi.privacy.gaussian_dp import gaussian_distance

DELTA, CANDIDATES = 1e-6, 250
NUMBERS = {
    "age": (0, 110), "bmi": (10, 60), "income": (0, 200_000), "hours": (0, 60), "marker": (0, 20)
}  # fmt: skip
LEVELS = {
    "ward": ("A", "B", "C"), "sex": ("F", "M"), "smokes": ("never", "former", "daily")
}  # fmt: skip
QUARTILES = {"lower quartile": 0.25, "median": 0.5, "upper quartile": 0.75}
SCHEMA = Schema(
    {
        name: ColumnType(kind="integer" if name == "age" else "number", low=low, high=high)
        for name, (low, high) in NUMBERS.items()
    }
    | {name: ColumnType(levels=levels) for name, levels in LEVELS.items()},
    "made up",
)
Key = tuple[str, str, str, str]
"""Column, group, level, and the name of the statistic."""
Query = Callable[[str, Any, float], Any]


def people(rows: int, random: np.random.Generator) -> pd.DataFrame:
    """Return people, whose numbers and levels differ between wards."""
    ward = random.choice(3, rows, p=[0.5, 0.3, 0.2])
    columns = {
        "age": (45 + 6 * ward + 18 * random.normal(size=rows)).round(),
        "bmi": 26 + ward / 2 + 5 * random.normal(size=rows),
        "income": np.exp(10.2 - 0.1 * ward + 0.8 * random.normal(size=rows)),
        "hours": random.exponential(8 + 2 * ward),
        "marker": np.exp(random.normal(size=rows)),
    }
    found: dict[str, Any] = {
        name: np.clip(values, *NUMBERS[name]) for name, values in columns.items()
    }
    found["ward"] = np.array(LEVELS["ward"])[ward]
    found["sex"] = np.where(random.random(rows) < 0.5 + 0.05 * ward, "F", "M")
    found["smokes"] = random.choice(LEVELS["smokes"], rows, p=[0.7, 0.25, 0.05])
    return pd.DataFrame(found)


def grouped(frame: pd.DataFrame, by: str | None) -> list[tuple[str, pd.DataFrame]]:
    """Return the groups by name; none without a column."""
    return [] if by is None else [(str(name), some) for name, some in frame.groupby(by)]


def exact(frame: pd.DataFrame, by: str | None) -> dict[Key, float]:
    """Return the statistics of a table."""
    found: dict[Key, float] = {}
    for group, some in [("all", frame), *grouped(frame, by)]:
        for name in NUMBERS:
            found[name, group, "", "mean"] = float(some[name].mean())
            found[name, group, "", "sd"] = float(some[name].std())
            for what, share in QUARTILES.items():
                found[name, group, "", what] = float(some[name].quantile(share))
        for name, levels in LEVELS.items():
            for level in levels if name != by else ():
                found[name, group, level, "count"] = (some[name] == level).sum()
                found[name, group, level, "share"] = (some[name] == level).mean()
    return found


def ours(frame: pd.DataFrame, epsilon: float, by: str | None) -> dict[Key, tuple[float, ...]]:
    """Return values and ends of intervals."""
    made = bdpvi.describe(frame, SCHEMA, by, epsilon=epsilon, delta=DELTA)
    return {
        (one.column, one.group, one.level, one.name): (one.value, one.low, one.high)
        for one in made.statistics
    }


def split(
    frame: pd.DataFrame, epsilon: float, by: str | None, query: Callable[[float], Query]
) -> dict[Key, float]:
    """Return the statistics by one query for each.

    Args:
        frame, by: the table, and its groups.
        epsilon: of all of it.
        query: takes the number of queries; returns what answers "count", "sum" and "quantile".
    """
    levels = [name for name in LEVELS if name != by]
    answer = query(6 * len(NUMBERS) + len(levels))
    found: dict[Key, float] = {}
    for group, some in grouped(frame, by) or [("all", frame)]:
        for name, (low, high) in NUMBERS.items():
            half, values = (high - low) / 2, some[name].to_numpy(float)
            rows = max(answer("sum", np.ones(len(values)), 1.0), 1.0)
            less = values - (low + half)
            mean = answer("sum", less, half) / rows
            square = answer("sum", less**2, half**2) / rows
            found[name, group, "", "mean"] = float(np.clip(mean + low + half, low, high))
            found[name, group, "", "sd"] = min(math.sqrt(max(square - mean**2, 0.0)), half)
            for what, share in QUARTILES.items():
                points = np.linspace(low, high, CANDIDATES)
                found[name, group, "", what] = answer("quantile", (values, points), share)
        for name in levels:
            counts = [
                answer("sum", (some[name] == level).to_numpy(float), 1.0) for level in LEVELS[name]
            ]
            for level, count in zip(LEVELS[name], counts, strict=True):
                found[name, group, level, "count"] = max(count, 0.0)
                found[name, group, level, "share"] = max(count, 0.0) / max(sum(counts), 1.0)
    return found


def scores(values: Any, points: Any, level: float) -> Any:
    """Return how far each point is from a quantile, of sensitivity max(q, 1 − q)."""
    below = np.searchsorted(np.sort(values), points, side="left")
    above = len(values) - np.searchsorted(np.sort(values), points, side="right")
    return -np.abs((1 - level) * below - level * above)


def queries(kind: str, epsilon: float, random: np.random.Generator) -> Callable[[float], Query]:
    """Return what makes queries with Laplace or Gaussian noise, or by OpenDP."""

    def of(number: float) -> Query:
        share = epsilon / number
        distance = gaussian_distance(epsilon, DELTA) / math.sqrt(number)
        selecting = share if kind != "Gaussian" else 2 * distance

        def answer(what: str, given: Any, sensitivity: float) -> Any:
            if kind == "OpenDP":
                return opendp(what, given, sensitivity, share)
            if what == "quantile":
                values, points = given
                scale = 2 * max(sensitivity, 1 - sensitivity) / selecting
                return points[(scores(values, points, sensitivity) + random.gumbel(
                    0, scale, len(points))).argmax()]  # fmt: skip
            if kind == "Gaussian":
                return given.sum() + random.normal(0, sensitivity / distance)
            return given.sum() + random.laplace(0, sensitivity / share)

        return answer

    return of


def opendp(what: str, given: Any, sensitivity: float, epsilon: float) -> float:
    """Return the answer of the library itself: a clamped sum, or a quantile among candidates."""
    dp = import_module("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    if what == "quantile":
        values, points = given
        scored = space >> dp.t.then_quantile_score_candidates(points.tolist(), sensitivity)

        def noisy(scale: float) -> Any:
            return scored >> dp.m.then_noisy_max(dp.max_divergence(), scale, negate=True)

        return float(points[dp.binary_search_chain(noisy, 1, epsilon)(values.tolist())])
    least = 0.0 if given.min(initial=0.0) >= 0 else -sensitivity
    summed = space >> dp.t.then_clamp((least, sensitivity)) >> dp.t.then_sum()
    measured = dp.binary_search_chain(lambda scale: summed >> dp.m.then_laplace(scale), 1, epsilon)
    return float(measured(given.tolist()))


def report_errors(epsilon: float, rows: int, seeds: int, by: str | None) -> None:
    """Print the errors of every statistic, and the ratios."""
    kinds = ["Laplace", "Gaussian"] + ["OpenDP"] * (find_spec("opendp") is not None)
    found: dict[Key, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        frame = people(rows, random)
        true = exact(frame, by)
        made: dict[str, Mapping[Key, Any]] = {
            kind: split(frame, epsilon, by, queries(kind, epsilon, random)) for kind in kinds
        }
        made["bdpvi"] = {key: one[0] for key, one in ours(frame, epsilon, by).items()}
        for kind, values in made.items():
            for key in made["Laplace"]:
                off = abs(values[key] - true[key])
                found[key][kind].append(off if math.isfinite(off) else math.inf)
    print(f"ε = {epsilon:g}, {rows} rows, {seeds} seeds" + f", by {by}" * (by is not None))
    print("| statistic | " + " | ".join(["bdpvi", *kinds, *(f"/ {k}" for k in kinds)]) + " |")
    print("| --- |" + " --- |" * (1 + 2 * len(kinds)))
    over: dict[str, list[str]] = {kind: [] for kind in kinds}
    for key, errors in found.items():
        mean = {kind: float(np.mean(some)) for kind, some in errors.items()}
        name = " ".join(filter(None, (key[0], key[1] * (by is not None), key[2], key[3])))
        cells = [
            f"{mean[kind]:.3g} ± {np.std(errors[kind]) / math.sqrt(seeds):.1g}"
            for kind in ("bdpvi", *kinds)
        ]
        ratios = [mean["bdpvi"] / mean[kind] for kind in kinds]
        print(f"| {name} | " + " | ".join([*cells, *(f"{one:.2f}" for one in ratios)]) + " |")
        for kind, ratio in zip(kinds, ratios, strict=True):
            over[kind] += [f"{name} {ratio:.2f}"] * (ratio > 1.1)
    for kind, names in over.items():
        print(f"above 1.1 times {kind}: {', '.join(names) or 'none'}")


def report_coverage(epsilon: float, rows: int, seeds: int, by: str | None) -> None:
    """Print the coverage of every statistic."""
    true = exact(people(1_000_000, np.random.default_rng(10**6)), by)
    inside: dict[Key, list[bool]] = defaultdict(list)
    widths: dict[Key, list[float]] = defaultdict(list)
    for seed in range(seeds):
        frame = people(rows, np.random.default_rng(seed))
        counts = exact(frame, by)
        for key, (_, low, high) in ours(frame, epsilon, by).items():
            if key in true:
                value = (counts if key[3] == "count" else true)[key]
                inside[key].append(low <= value <= high)
                widths[key].append(high - low)
    print(f"ε = {epsilon:g}, {rows} rows, {seeds} seeds" + f", by {by}" * (by is not None))
    for key, some in inside.items():
        share = np.mean(some)
        error = math.sqrt(share * (1 - share) / seeds)
        name, width = " ".join(filter(None, key)), np.mean(widths[key])
        print(f"{name:40} {share:.3f} ± {error:.3f}  {width:.4g}")
    all_of = [np.mean(some) for some in inside.values()]
    print(f"mean {np.mean(all_of):.3f}, lowest {min(all_of):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--by")
    parser.add_argument("--coverage", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(command())
    report = report_coverage if given.coverage else report_errors
    report(given.epsilon, given.rows, given.seeds or (200 if given.coverage else 100), given.by)

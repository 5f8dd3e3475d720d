"""Quality of synthetic rows: students on real test rows, and pairs compared with controls.

    python benchmarks/synthesis.py --data FOLDER [--tables adult] [--epsilon 1] [--seeds 5]

FOLDER holds ``uci/`` and ``keel/``. Schemas are declared: the bounds that the tables were published
with, or their own rounded outwards to a digit, and the levels of the whole table. δ = 1e-5, all of
ε is for the counts. Students, gradient boosting (gb) and logistic regression (lr), are trained on
as many synthetic rows as are estimated, and tested on real rows that nothing else has seen. TV is
the mean total variation over all pairs of columns, numbers in 16 bins by quantiles of the training
rows. Beside it: columns of the training rows shuffled one by one, the star (every column given the
target alone), and two halves of the training rows, at half their size. With --bought bounds and
levels are estimated privately too, within the same ε.

    python benchmarks/synthesis.py --coverage [--repeats 200]
    python benchmarks/synthesis.py --attack [--turns 20000]

Coverage: 95 % intervals of 5 and of 20 bootstrapped tables of 20 N rows, N = 3000, ε = 1, of ten
quantities whose values a million other rows give. Attack: lower bounds of ε by a membership game
on the counting itself, on four rows of three columns, and with noise that is too small.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from membership import play

import bdpvi
from bdpvi.audits.games import likelihood_ratio
from bdpvi.datasets import ColumnType, Schema
from bdpvi.datasets.adult import NAMES
from bdpvi.datasets.cells import read_cells
from bdpvi.datasets.grid import Codes
from bdpvi.datasets.records import Held
from bdpvi.noise.keys import Key
from bdpvi.privacy.gaussian_dp import gaussian_distance
from bdpvi.releases.transaction import Transaction
from bdpvi.synthesis import Counts, NoisyCounts, combine
from bdpvi.synthesis.counts import Floats, MeasurementPlan, count
from bdpvi.synthesis.measures import Task, area, binned, read, scales, students, variation

DELTA = 1e-5
BOUNDS = {
    "age": (17, 90), "education-num": (1, 16), "capital-gain": (0, 99_999),
    "capital-loss": (0, 4356), "hours-per-week": (1, 99),
}  # fmt: skip
STAR = Counts(cells=1)


def adult(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame, Schema, str]:
    """Return training rows, test rows, schema and target."""
    names = [*NAMES, "income"]
    read: dict[str, Any] = {"names": names, "skipinitialspace": True, "na_filter": False}
    train = pd.read_csv(folder / "uci" / "adult.data", **read)
    test = pd.read_csv(folder / "uci" / "adult.test", skiprows=1, **read)
    test["income"] = test["income"].str.rstrip(".")
    left_out = ["fnlwgt", "education"]
    train, test = train.drop(columns=left_out), test.drop(columns=left_out)
    whole = pd.concat([train, test])
    columns = {
        name: ColumnType(kind="integer", low=BOUNDS[name][0], high=BOUNDS[name][1])
        if name in BOUNDS
        else ColumnType(levels=read_cells(whole[name]).names)
        for name in train
    }
    return train, test, Schema(columns, "The census's ranges"), "income"


def keel(folder: Path, name: str) -> tuple[pd.DataFrame, pd.DataFrame, Schema, str]:
    """Return four fifths of the rows for training, the others, schema and target."""
    whole = pd.read_csv(folder / "keel" / f"{name}.csv", keep_default_na=False)
    order = np.random.default_rng(0).permutation(len(whole))
    cut = len(whole) * 4 // 5
    numbers = whole.select_dtypes("number").columns.difference(["class"])
    columns = {
        str(name): ColumnType(low=float(values.min()), high=float(values.max()))
        if name in numbers
        else ColumnType(levels=tuple(sorted(map(str, values.unique()))))
        for name, values in whole.items()
    }
    drafted = Schema(columns, "The table's own")
    return whole.iloc[order[:cut]], whole.iloc[order[cut:]], drafted, "class"


def areas(
    rows: pd.DataFrame, test: pd.DataFrame, schema: Schema, target: str, real: Floats
) -> list[float]:
    """Return the areas under the ROC curve of both students."""
    tested = Task.of(read(test, schema), schema, target, real)
    given = students(Task.of(read(rows, schema), schema, target, real), tested)
    return [area(tested.y, one) or 0.5 for one in given.values()]


def population(rows: int, random: np.random.Generator) -> pd.DataFrame:
    """Return rows of five columns; b depends on a, the number c on both, y on all."""
    a = random.choice(3, rows, p=[0.5, 0.3, 0.2])
    b = (random.random(rows) < np.array([0.2, 0.5, 0.7])[a]) + 2 * (random.random(rows) < 0.3)
    c = np.clip(np.round(random.normal(10 + 3 * a + 1.5 * (b > 1), 4)), 0, 30).astype(int)
    d = random.choice(5, rows, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    odds = -2 + 0.8 * (a == 2) + 0.6 * (b % 2) + 0.12 * (c - 10) + 0.3 * (d == 1)
    y = (random.random(rows) < 1 / (1 + np.exp(-odds))).astype(int)
    return pd.DataFrame({"a": a, "b": b, "c": c, "d": d, "y": y})


def quantities(frame: pd.DataFrame) -> dict[str, float]:
    """Return means, conditional rates, a difference, rare cells and a correlation."""
    told = frame.apply(pd.to_numeric, errors="coerce")  # "other" is left out
    a, b, c, d, y = (told[name].to_numpy(dtype=float) for name in "abcdy")
    odd = np.where(np.isnan(b), np.nan, b % 2)
    found = {
        "P(y)": y, "P(y|a=2)": y[a == 2], "P(y|a=0)": y[a == 0], "P(y|b odd)": y[odd == 1],
        "P(y|c>=14)": y[c >= 14], "P(b odd|a=2)": odd[a == 2], "P(y|d=4)": y[d == 4],
        "P(d=4)": np.where(np.isnan(d), np.nan, d == 4),
    }  # fmt: skip
    means = {name: float(np.nanmean(one)) for name, one in found.items()}
    gap = float(np.nanmean(c[y == 1]) - np.nanmean(c[y == 0]))
    return means | {"mean c gap": gap, "corr(a,c)": float(told["a"].corr(told["c"]))}


def coverage(repeats: int) -> None:
    """Print how often intervals of 5 and 20 tables cover."""
    levels = {"a": 3, "b": 4, "d": 5, "y": 2}
    schema = Schema(
        {
            name: ColumnType(levels=tuple(map(str, range(levels[name]))))
            if name in levels
            else ColumnType(kind="integer", low=0, high=30)
            for name in "abcdy"
        },
        "a simulation",
    )
    truth = quantities(population(1_000_000, np.random.default_rng(99)))
    numbers, hits, widths = (5, 20), [], []
    for repeat in range(repeats):
        table = population(3000, np.random.default_rng(repeat))
        work = Transaction(bdpvi.Ledger(), Key.of_seed(repeat), alone=True)
        made = bdpvi.synthesize(table, schema, "y", epsilon=1.0, delta=DELTA, ledger=work)
        tables = made.tables(max(numbers), 20 * made.rows, seed=repeat)
        found = pd.DataFrame([quantities(one) for one in tables])
        intervals = [[combine(found[q].head(m).tolist()) for q in truth] for m in numbers]
        hits.append(
            [
                [
                    one.low <= true <= one.high
                    for one, true in zip(some, truth.values(), strict=True)
                ]
                for some in intervals
            ]
        )
        widths.append([[one.high - one.low for one in some] for some in intervals])
    for at, number in enumerate(numbers):
        covered = np.mean(hits, 0)[at]
        print(f"{number} tables, {repeats} simulations: covered {covered.mean():.3f} on average")
        for name, share, width in zip(truth, covered, np.mean(widths, 0)[at], strict=True):
            print(f"  {name:14} {share:.3f}, width {width:.4f}", flush=True)


def attack(turns: int) -> None:
    """Print lower bounds of ε: the right noise, and noise that is too small."""
    coins = Schema({name: ColumnType(levels=("0", "1")) for name in "abc"}, "coins")
    others, canary = np.array([[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0]]), np.array([[1, 1, 1]])
    score = likelihood_ratio(others, canary)
    for epsilon in (0.1, 1.0, 3.0):
        right = MeasurementPlan.of(coins, 0, gaussian_distance(epsilon, DELTA), Counts())
        for words, factor in (
            ("as it should be", 1.0),
            ("too small by sqrt(78)", 78**-0.5),  # as of each of 13 columns' pairs alone
            ("1 % of it", 0.01),
            ("none", 1e-9),
        ):
            joint = {at: one * factor for at, one in right.joint.items()}
            plan = replace(right, one_way=right.one_way * factor, joint=joint)

            def release(codes: Codes, key: Key, plan: MeasurementPlan = plan) -> NoisyCounts:
                return count(Held(codes), plan, key)

            found = play(
                release, score, others, canary, delta=DELTA, turns=turns, key=Key.of_seed(0)
            )
            print(
                f"eps {epsilon:g}, noise {words}: eps_low {found.epsilon_low:.2f} "
                f"({found.hits:.4f} hits, {found.false_alarms:.4f} false alarms, {turns} turns)",
                flush=True,
            )


def tables(options: argparse.Namespace) -> None:
    """Print what students and pairs say of each table."""
    for name in options.tables:
        parts = adult(options.data) if name == "adult" else keel(options.data, name)
        train, test, schema, target = parts
        real = read(train, schema)
        by = scales(real, schema)
        gb, lr = areas(train, test, schema, target, real)
        random = np.random.default_rng(0)
        shuffled = pd.DataFrame({one: random.permutation(train[one].to_numpy()) for one in train})
        order = random.permutation(len(train))
        whole, mixed = binned(real, by), binned(read(shuffled, schema), by)
        halves = variation(whole[order[::2]], whole[order[1::2]])
        print(
            f"{name}: {len(train)} rows; real rows gb {gb:.3f} lr {lr:.3f}, TV of halves "
            f"{halves:.3f}, of shuffled columns {variation(whole, mixed):.3f}"
        )
        for epsilon in options.epsilon:
            for words, settings in (("network", Counts()), ("star", STAR)):
                found = []
                for seed in range(options.seeds if words == "network" else 1):
                    begin = time.process_time()
                    made = bdpvi.synthesize(
                        train,
                        None if options.bought else schema,
                        target,
                        epsilon=epsilon,
                        delta=DELTA,
                        settings=settings,
                        ledger=Transaction(bdpvi.Ledger(), Key.of_seed(seed), alone=True),
                    )
                    rows = made.sample(seed=seed)
                    took = time.process_time() - begin
                    tv = variation(whole, binned(read(rows, schema), by))
                    found.append([*areas(rows, test, schema, target, real), tv, took])
                mean, spread = np.mean(found, 0), np.std(found, 0)
                print(
                    f"  eps {epsilon:g} {words:8} gb {mean[0]:.4f} lr {mean[1]:.4f} "
                    f"TV {mean[2]:.4f} ({len(found)} seeds, sd {spread[0]:.4f} {spread[1]:.4f} "
                    f"{spread[2]:.4f}), {mean[3]:.1f} CPU seconds",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tables", nargs="+", default=["adult", "magic", "mushroom"])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--bought", action="store_true")
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--attack", action="store_true")
    parser.add_argument("--turns", type=int, default=20_000)
    options = parser.parse_args()
    if options.coverage:
        coverage(options.repeats)
    if options.attack:
        attack(options.turns)
    if options.data is None and not (options.coverage or options.attack):
        parser.error("give --data FOLDER, --coverage or --attack")
    if options.data is not None:
        tables(options)


if __name__ == "__main__":
    main()

"""Share of logistic regression's gain that objective perturbation keeps, at settings by rule.

    python benchmarks/default_release.py [--sizes 1e3 1e4 1e5] [--columns 5 20 60] [--seeds 3]
        [--tables] [--data FILE ...] [--hindsight] [--wide]

Simulated tables are exactly logistic: features correlated .5^|i − j|, a logit of standard deviation
1.5 and intercept −.5. The share is that of the truth's gain in expected log score over the base
rate, on 20,000 fresh rows whose chances are known. On published tables it is that of scikit-learn's
logistic regression, without privacy, on held-out rows. One draw a release, δ = 1e-5, constants
public, N declared as it is. Nothing is tuned. Adult and Abalone are found
as ``bdpvi compare`` finds them; of a FILE the last column is the target. ``--hindsight`` has the
shares of each table beside those of the best of 27 settings (C, the limit and the shrinkage) for
that table and ε, which nobody could choose without reading it, and of the one best for all tables.
``--wide`` simulates 5,000 rows of 300 columns of which 5, 30 or all matter, and compares minima as
they come from the search with released weights, which are shrunk where few columns stand out
(:mod:`bdpvi.regression.few_columns`) and else have a factor
(:mod:`bdpvi.regression.calibration_slope`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean

import torch
from printed import command
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import bdpvi
from bdpvi import datasets
from bdpvi.datasets import Split
from bdpvi.datasets.encoding import Encoding
from bdpvi.noise.keys import Key
from bdpvi.regression.objective import improved, levels_of
from bdpvi.regression.objective_plan import Facts, Levels, ObjectivePlan, Rule, plan
from bdpvi.regression.perturbed_objective import perturbed_minima

EPSILONS = (0.05, 0.2, 1.0)
SIZES = (1e3, 1e4, 1e5)
COLUMNS = (5, 20, 60)
FRESH = 20_000
WIDE = (5_000, 300)
"""Rows and columns of a wide table."""
MATTERING = (5, 30, 300)
CORRELATED = (0.0, 0.5, 0.8)
SCALES, LIMITS, SHRINKAGES = (0.4, 0.75, 1.1), (1.5, 2.0, 3.0), (0.25, 1.0, 4.0)
"""Settings of ``--hindsight``."""


@dataclass(frozen=True)
class Simulated:
    """A table, and rows whose chances are known."""

    x: Tensor
    y: Tensor
    fresh: Tensor
    chance: Tensor
    truth: Tensor


def simulated(rows: int, columns: int, seed: int) -> Simulated:
    """Return a table; the truth depends on the number of columns alone."""
    generator = torch.Generator().manual_seed(100 + columns)
    truth = torch.randn(columns, generator=generator, dtype=torch.float64)
    return of_truth(rows, truth, 0.5, torch.Generator().manual_seed(1000 + seed))


def of_few(rows: int, columns: int, matter: int, correlation: float, seed: int) -> Simulated:
    """Return a table of which some columns matter equally, or all by normal weights."""
    generator = torch.Generator().manual_seed(2000 + seed)
    truth = torch.randn(columns, generator=generator, dtype=torch.float64)
    order = torch.randperm(columns, generator=generator)
    if matter < columns:
        truth = torch.where(order < matter, truth.sign(), 0.0)
    return of_truth(rows, truth, correlation, generator)


def of_truth(rows: int, truth: Tensor, correlation: float, generator: torch.Generator) -> Simulated:
    """Return a table; the weights are scaled to logits of standard deviation 1.5."""
    columns = len(truth)
    place = torch.arange(columns)
    spread = correlation ** (place[:, None] - place).abs().double()
    truth = truth * (1.5 / float((truth @ spread @ truth).sqrt()))
    factor = torch.linalg.cholesky(spread)
    x, fresh = (
        torch.randn(n, columns, generator=generator, dtype=torch.float64) @ factor.T
        for n in (rows, FRESH)
    )
    chance = torch.sigmoid(x @ truth - 0.5)
    y = torch.rand(rows, generator=generator, dtype=torch.float64) < chance
    whole = torch.cat([truth, torch.tensor([-0.5]).double()])
    return Simulated(x, y.double(), fresh, torch.sigmoid(fresh @ truth - 0.5), whole)


def released(
    settings: ObjectivePlan,
    x: Tensor,
    y: Tensor,
    seed: int,
    numbers: tuple[int, ...] | None = None,
) -> Tensor:
    """Return weights as a release has them."""
    minimum = perturbed_minima(settings, x, y, Key.of_seed(seed))[0]
    return improved(settings, minimum, numbers)[0]


def predicted(settings: ObjectivePlan, w: Tensor, x: Tensor) -> Tensor:
    return torch.sigmoid(x.double().clamp(-settings.limit, settings.limit) @ w[:-1] + w[-1])


def gain(chance: Tensor, p: Tensor) -> float:
    """Return the expected log score over the base rate's, where y = 1 with probability p."""

    def score(q: Tensor) -> float:
        q = q.clamp(1e-15, 1 - 1e-15)
        return float((p * q.log() + (1 - p) * (-q).log1p()).mean())

    return score(chance) - score(p.mean().expand_as(p))


def sweep(sizes: list[float], columns: list[int], seeds: int) -> None:
    print("| d, N | share at ε = .05 / .2 / 1 | relative coefficient error | CPU s a release |")
    print("| --- | --- | --- | --- |")
    for d in columns:
        for n in sizes:
            many = max(1, min(seeds, round(seeds * 1e4 / n)))
            tables = [simulated(int(n), d, seed) for seed in range(many)]
            shares, errors, start = [], [], time.process_time()
            for epsilon in EPSILONS:
                settings = plan(Facts(columns=d, rows=n), epsilon=epsilon)
                found = [(t, released(settings, t.x, t.y, seed)) for seed, t in enumerate(tables)]
                shares.append(
                    fmean(
                        gain(predicted(settings, w, t.fresh), t.chance) / gain(t.chance, t.chance)
                        for t, w in found
                    )
                )
                errors.append(fmean(float((w - t.truth).norm() / t.truth.norm()) for t, w in found))
            used = (time.process_time() - start) / len(EPSILONS) / many
            print(
                f"| {d}, {n:g} | "
                + " ".join(f"{s:.3f}" for s in shares)
                + " | "
                + " ".join(f"{e:.3f}" for e in errors)
                + f" | {used:.2f} |",
                flush=True,
            )


def wide(seeds: int) -> None:
    """Print shares of the gain of scikit-learn's logistic regression without privacy."""
    rows, columns = WIDE
    print("| columns that matter | correlation | the truth | ε | minimum | released | shrunk |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for matter in MATTERING:
        for correlation in CORRELATED:
            tables = [of_few(rows, columns, matter, correlation, seed) for seed in range(seeds)]
            most = []
            for t in tables:
                usual = LogisticRegression(max_iter=10_000).fit(t.x.numpy(), t.y.numpy())
                free = torch.from_numpy(usual.predict_proba(t.fresh.numpy())[:, 1])
                most.append(gain(free, t.chance))
            truth = fmean(gain(t.chance, t.chance) / m for t, m in zip(tables, most, strict=True))
            for epsilon in EPSILONS[1:]:
                settings = plan(Facts(columns=columns, rows=rows), epsilon=epsilon)
                before: list[float] = []
                after: list[float] = []
                changed = 0
                for seed, (t, m) in enumerate(zip(tables, most, strict=True)):
                    minimum = perturbed_minima(settings, t.x, t.y, Key.of_seed(seed))[0]
                    better, change = improved(settings, minimum)
                    changed += change is None
                    for found, w in ((before, minimum), (after, better)):
                        found.append(gain(predicted(settings, w, t.fresh), t.chance) / m)
                print(
                    f"| {matter} of {columns} | {correlation:g} | {truth:.3f} | {epsilon:g} | "
                    f"{fmean(before):.3f} | {fmean(after):.3f} | {changed} of {seeds} |",
                    flush=True,
                )


def published(files: list[Path]) -> Iterator[tuple[str, Split, int]]:
    """Yield tables with the number of their source columns."""
    yield "adult", datasets.adult.load_adult(), 14
    yield "adult, one-hot", datasets.adult.load_adult(encoding="onehot"), 14
    yield "abalone", datasets.abalone.load_abalone(), 8
    for file in files:
        frame = bdpvi.Table.of(file).frame()
        target = str(frame.columns[-1])
        same = [str(name) for name in frame if frame[name].nunique() < 2]
        split = datasets.from_frame(frame, target, drop=same, seed=0)
        yield file.stem, split, frame.shape[1] - 1 - len(same)


@dataclass(frozen=True)
class Prepared:
    """A published table, and what its share is measured with."""

    name: str
    split: Split
    sources: float
    levels: Levels
    numbers: tuple[int, ...]
    base: float
    most: float

    @classmethod
    def of(cls, name: str, split: Split, sources: int) -> Prepared:
        """Return the table with the gain of logistic regression without privacy."""
        x, y, test = split.train.x.double(), split.train.y.double(), split.test
        usual = LogisticRegression(max_iter=10_000).fit(x.numpy(), y.numpy())
        free = torch.from_numpy(usual.predict_proba(test.x.numpy())[:, 1])
        encoding = Encoding.from_dict(split.train.preprocessing["encoding"])
        levels = levels_of(encoding, ())
        size = sources - sum(1 / max(2, len(one)) for one in levels)
        p = test.y.double()
        # The base rate is that of the training rows.
        base = gain(y.mean().expand_as(p), p)
        return cls(name, split, size, levels, encoding.numbers, base, gain(free, p) - base)

    def shares(self, epsilon: float, seeds: int, rule: Rule, limit: float | None) -> list[float]:
        """Return the share of each seed."""
        x, y, test = self.split.train.x.double(), self.split.train.y.double(), self.split.test
        facts = Facts(columns=x.shape[1], rows=len(x), sources=self.sources)
        settings = replace(plan(facts, epsilon=epsilon, rule=rule), levels=self.levels)
        settings = settings if limit is None else replace(settings, limit=limit)
        found = (released(settings, x, y, seed, self.numbers) for seed in range(seeds))
        chances = (predicted(settings, w, test.x) for w in found)
        return [(gain(each, test.y.double()) - self.base) / self.most for each in chances]


def tables(files: list[Path], seeds: int) -> None:
    print("| table | rows, columns | share at ε = .05 / .2 / 1 | lowest of the seeds |")
    print("| --- | --- | --- | --- |")
    for one in published(files):
        each = Prepared.of(*one)
        found = [each.shares(epsilon, seeds, Rule(), None) for epsilon in EPSILONS]
        rows, columns = each.split.train.x.shape
        means, lowest = [fmean(f) for f in found], [min(f) for f in found]
        print(f"| {each.name} | {rows}, {columns} | {row(means)} | {row(lowest)} |", flush=True)


def row(shares: Sequence[float]) -> str:
    return " ".join(f"{share:.3f}" for share in shares)


def hindsight(files: list[Path], seeds: int) -> None:
    """Print each table's shares by the rule, by its best setting and by the best one for all."""
    every = [Prepared.of(*one) for one in published(files)]
    grid = [*product(SCALES, LIMITS, SHRINKAGES)]
    found = {
        (one.name, epsilon): [
            fmean(one.shares(epsilon, seeds, Rule(scale=scale, shrinkage=shrinkage), limit))
            for scale, limit, shrinkage in grid
        ]
        for one in every
        for epsilon in EPSILONS
    }
    best = [
        max(range(len(grid)), key=lambda at: fmean(found[one.name, e][at] for one in every))
        for e in EPSILONS
    ]
    print("| table | by the rule, ε = .05 / .2 / 1 | best in hindsight | best fixed one |")
    print("| --- | --- | --- | --- |")
    sums = []
    for one in every:
        rule = [fmean(one.shares(epsilon, seeds, Rule(), None)) for epsilon in EPSILONS]
        most = [max(found[one.name, epsilon]) for epsilon in EPSILONS]
        fixed = [found[one.name, e][at] for e, at in zip(EPSILONS, best, strict=True)]
        sums.append((rule, most, fixed))
        print(f"| {one.name} | {row(rule)} | {row(most)} | {row(fixed)} |", flush=True)
    means = (
        row([fmean(shares) for shares in zip(*part, strict=True)])
        for part in zip(*sums, strict=True)
    )
    print(f"| mean | {' | '.join(means)} |")
    print(
        "\nthe best fixed ones, C over √(m + 4), limit and shrinkage:", *(grid[at] for at in best)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="*", default=SIZES)
    parser.add_argument("--columns", type=int, nargs="*", default=COLUMNS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--hindsight", action="store_true")
    parser.add_argument("--data", type=Path, nargs="*", default=[], metavar="FILE")
    chosen = parser.parse_args()
    print(command())
    if chosen.hindsight:
        hindsight(chosen.data, chosen.seeds)
    elif chosen.tables or chosen.data:
        tables(chosen.data, chosen.seeds)
    elif chosen.wide:
        wide(chosen.seeds)
    else:
        sweep(chosen.sizes, chosen.columns, chosen.seeds)


if __name__ == "__main__":
    main()

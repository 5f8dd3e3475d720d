"""Share of logistic regression's gain that objective perturbation keeps, at settings by rule.

    python benchmarks/default_release.py [--sizes 1e3 1e4 1e5] [--columns 5 20 60] [--seeds 3]
        [--tables] [--data FILE ...] [--only] [--estimated] [--hindsight] [--wide]

Simulated tables are exactly logistic: features correlated .5^|i − j|, a logit of standard deviation
1.5 and intercept −.5. The share is that of the truth's gain in expected log score over the base
rate, on 20,000 fresh rows whose chances are known. On published tables it is that of scikit-learn's
logistic regression, without privacy, on held-out rows. One draw a release, δ = 1e-5, constants
public, N declared as it is. Nothing is tuned. Adult and Abalone are found
as ``bdpvi compare`` finds them; of a FILE the last column is the target. ``--hindsight`` has the
shares of each table beside those of the best of 27 settings (C, the limit and the shrinkage) for
that table and ε, which nobody could choose without reading it, and of the one best for all tables.
``--only`` leaves Adult and Abalone out. ``--estimated`` takes nothing of the FILEs as public:
kinds, bounds, categories and N are estimated privately, as by ``bdpvi private``, and a table that
is refused for too few rows has the share 0. Its base rates and fits without privacy are those of
public scales.
``--wide`` simulates 5,000 rows of 300 columns of which 5, 30 or all matter, and compares minima as
they come from the search with released weights, which are shrunk where few columns stand out
(:mod:`bdpvi.regression.few_columns`) and else have a factor
(:mod:`bdpvi.regression.calibration_slope`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch
from printed import command
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import bdpvi
from bdpvi import datasets
from bdpvi._ground.types import TooFewRecordsError
from bdpvi.datasets import Split
from bdpvi.datasets.dataset import Dataset
from bdpvi.datasets.estimates import NAMES
from bdpvi.datasets.records import Held
from bdpvi.noise.keys import Key
from bdpvi.regression.objective import ObjectivePerturbation, improved
from bdpvi.regression.objective_plan import Facts, ObjectivePlan, Rule, plan
from bdpvi.regression.perturbed_objective import perturbed_minima
from bdpvi.releases.route import Allowance
from bdpvi.tables import Request
from bdpvi.tables.encoded import encode, encoded_of, rows_of, unpaid
from bdpvi.tables.setup import logistic, setup

EPSILONS, DELTA = (0.05, 0.2, 1.0), 1e-5
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
) -> Tensor:
    """Return weights as a release has them."""
    minimum = perturbed_minima(settings, x, y, Key.of_seed(seed))[0]
    return improved(settings, minimum)[0]


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


def published(files: list[Path], only: bool) -> Iterator[tuple[str, Split, pd.DataFrame | None]]:
    """Yield tables, those of files with their rows as written."""
    if not only:
        yield "adult", datasets.adult.load_adult(), None
        yield "adult, one-hot", datasets.adult.load_adult(encoding="onehot"), None
        yield "abalone", datasets.abalone.load_abalone(), None
    for file in files:
        frame = bdpvi.Table.of(file).frame()
        same = [str(name) for name in frame if frame[name].nunique() < 2]
        yield (
            file.stem,
            datasets.from_frame(frame, str(frame.columns[-1]), drop=same, seed=0),
            frame.drop(columns=same),
        )


@dataclass(frozen=True, eq=False)
class Seen:
    """Rows as a release sees them, its route and what it may spend."""

    split: Split
    route: Any
    left: Allowance

    def chances(self, seed: int, rule: Rule, limit: float | None) -> Tensor:
        """Return the chances that one release gives to the test rows."""
        model, train = logistic(), self.split.train
        route = replace(self.route, rule=rule).adapt(model, train, None)
        settings = route.plan(model, train.x.shape[1], self.left)
        settings = settings if limit is None else replace(settings, limit=limit)
        w = route.draw(model, train, settings, Key.of_seed(seed)).latents["w"][0]
        return predicted(settings, w.double(), self.split.test.x)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A published table, and what its share is measured with."""

    name: str
    split: Split
    frame: pd.DataFrame | None
    base: float
    most: float
    kept: dict[tuple[float, int], Seen | None] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, split: Split, frame: pd.DataFrame | None) -> Prepared:
        """Return the table with the gain of logistic regression without privacy."""
        x, y, test = split.train.x.double(), split.train.y.double(), split.test
        usual = LogisticRegression(max_iter=10_000).fit(x.numpy(), y.numpy())
        free = torch.from_numpy(usual.predict_proba(test.x.numpy())[:, 1])
        p = test.y.double()
        # The base rate is that of the training rows.
        base = gain(y.mean().expand_as(p), p)
        return cls(name, split, frame, base, gain(free, p) - base)

    def seen(self, epsilon: float, seed: int) -> Seen | None:
        """Return the rows as a release sees them; None if it is refused."""
        if self.frame is None:
            route = ObjectivePerturbation(rows=float(len(self.split.train)))
            return Seen(self.split, route, Allowance(epsilon, DELTA, 0.0))
        target, y = str(self.frame.columns[-1]), self.split.train.y
        positive = self.split.train.preprocessing["target"]["positive"]
        asked = Request(target=target, positive=positive, epsilon=epsilon, delta=DELTA)
        whole, key = rows_of(self.frame, asked), Key.of_seed(seed).child(self.name, str(epsilon))
        sides = [whole.select(side.ids.numpy()) for side in (self.split.train, self.split.test)]
        assert (torch.from_numpy(sides[0].y) == y).all()
        try:
            found = encode(Held(sides[0]), [*map(str, self.frame)], asked, unpaid(key))
        except TooFewRecordsError:
            return None
        known = {"encoding": found.encoding.to_dict()}
        parts = (
            Dataset(x, y, preprocessing=known)
            for x, y in (encoded_of(side, found.encoding) for side in sides)
        )
        spent = sum(one**2 for one in found.paid)
        left = Allowance(epsilon, (1 - NAMES) * DELTA, spent)
        return Seen(Split(*parts), setup(asked, found).route, left)

    def shares(self, epsilon: float, seeds: int, rule: Rule, limit: float | None) -> list[float]:
        """Return the share of each seed, 0 if a release is refused."""
        found, y = [], self.split.test.y.double()
        for seed in range(seeds):
            if (at := (epsilon, seed)) not in self.kept:
                self.kept[at] = self.seen(*at)
            seen = self.kept[at]
            p = None if seen is None else seen.chances(seed, rule, limit)
            found.append(0.0 if p is None else (gain(p, y) - self.base) / self.most)
        return found


def tables(every: list[Prepared], seeds: int) -> None:
    print("| table | rows, columns | share at ε = .05 / .2 / 1 | lowest of the seeds |")
    print("| --- | --- | --- | --- |")
    for each in every:
        found = [each.shares(epsilon, seeds, Rule(), None) for epsilon in EPSILONS]
        rows, columns = each.split.train.x.shape
        means, lowest = [fmean(f) for f in found], [min(f) for f in found]
        print(f"| {each.name} | {rows}, {columns} | {row(means)} | {row(lowest)} |", flush=True)


def row(shares: Sequence[float]) -> str:
    return " ".join(f"{share:.3f}" for share in shares)


def hindsight(every: list[Prepared], seeds: int) -> None:
    """Print each table's shares by the rule, by its best setting and by the best one for all."""
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
    parser.add_argument("--only", action="store_true")
    parser.add_argument("--estimated", action="store_true")
    parser.add_argument("--data", type=Path, nargs="*", default=[], metavar="FILE")
    chosen = parser.parse_args()
    print(command())
    if chosen.hindsight or chosen.tables or chosen.data:
        every = [Prepared.of(*one) for one in published(chosen.data, chosen.only)]
        if not chosen.estimated:
            every = [replace(one, frame=None) for one in every]
        (hindsight if chosen.hindsight else tables)(every, chosen.seeds)
    elif chosen.wide:
        wide(chosen.seeds)
    else:
        sweep(chosen.sizes, chosen.columns, chosen.seeds)


if __name__ == "__main__":
    main()

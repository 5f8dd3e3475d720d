"""Shares that the default keeps for a label of several classes, beside noisy gradient descent.

    python benchmarks/classes.py [--seeds 5] [--noises 5] [--rows 2000] [--data FILE ...]

The simulated table has ten normal features, four classes and logits of standard deviation 1.5 or
so; of a FILE the last column is the target, the others are numbers, standardised by public scales.
The share is of the gain in log score of scikit-learn's logistic regression, without privacy, over
the base rate, on held-out rows (20,000 simulated ones, a fifth of a FILE). Beside it is the
accuracy. The peer is full-batch gradient descent of the softmax with clipped, noisy sums
(``bdpvi/bench/methods/pace.py`` has clip and path length, from public facts), and the best of 15
settings of it in hindsight for that table and ε, which nobody could choose without reading it.
Training is repeated with ``--seeds`` noises, the peer, which takes less time, with ``--noises``.
δ = 1e-5, N declared as it is. Nothing is tuned.
"""

from __future__ import annotations

import argparse
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import torch
from printed import command
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import bdpvi
from bdpvi.bench.methods.pace import pace
from bdpvi.privacy.gaussian import largest_variance

EPSILONS = (0.05, 0.2, 1.0)
STEPS = 40
WAYS, CLIPS = (1.0, 4.0, 8.0, 16.0, 32.0), (0.4, 0.6, 0.8)
"""Settings in hindsight: path length, and C over √(d + 1)."""


@dataclass(frozen=True)
class Classed:
    """A table with held-out rows, and the scores of the base rate and without privacy."""

    x: Tensor
    y: Tensor
    fresh: Tensor
    truth: Tensor
    classes: int
    base: float
    most: float

    @classmethod
    def of(cls, x: Tensor, y: Tensor, rows: int, classes: int) -> Classed:
        """Return the first rows for training and the others to score."""
        x, fresh, (y, truth) = x[:rows], x[rows:], (y[:rows], y[rows:].long())
        shares = (y.long().bincount(minlength=classes).double() + 0.5) / (rows + classes / 2)
        usual = LogisticRegression(max_iter=3000).fit(x.numpy(), y.numpy())
        free = torch.zeros(len(fresh), classes, dtype=torch.float64)
        free[:, torch.tensor(usual.classes_).long()] = torch.from_numpy(
            usual.predict_proba(fresh.numpy())
        )
        base = _score(shares.expand(len(fresh), -1), truth)
        return cls(x, y, fresh, truth, classes, base, _score(free, truth) - base)

    def results(self, chances: Tensor) -> tuple[float, float]:
        """Return the share and the accuracy."""
        right = float((chances.argmax(1) == self.truth).double().mean())
        return (_score(chances, self.truth) - self.base) / self.most, right


def _score(chances: Tensor, y: Tensor) -> float:
    return float(chances[torch.arange(len(y)), y].clamp(min=1e-15).log().mean())


def simulated(rows: int) -> Classed:
    """Return a table of four classes."""
    generator = torch.Generator().manual_seed(5)
    truth = torch.randn(10, 4, generator=generator, dtype=torch.float64)
    x = torch.randn(rows + 20_000, 10, generator=generator, dtype=torch.float64)
    chances = (1.5 * x @ truth / math.sqrt(10)).softmax(1)
    y = torch.multinomial(chances, 1, generator=generator)[:, 0].double()
    return Classed.of(x, y, rows, 4)


def published(file: Path) -> Classed:
    """Return a table of numbers, its rows in random order."""
    frame = bdpvi.Table.of(file).frame().sample(frac=1, random_state=0)
    labels = sorted(frame.iloc[:, -1].astype(str).unique())
    y = torch.tensor([labels.index(one) for one in frame.iloc[:, -1].astype(str)]).double()
    x = torch.tensor(frame.iloc[:, :-1].to_numpy(dtype=float))
    x = x[:, x.std(0) > 0]
    x = (x - x.mean(0)) / x.std(0)
    return Classed.of(x.clamp(-4, 4), y, len(x) * 4 // 5, len(labels))


def descent(table: Classed, epsilon: float, seed: int, way: float | None, clip: float) -> Tensor:
    """Return the chances by noisy gradient descent: C over √(d + 1), and the path length."""
    x, rows = torch.cat([table.x, table.x.new_ones(len(table.x), 1)], 1), len(table.x)
    targets = torch.nn.functional.one_hot(table.y.long(), table.classes).double()
    noise = math.sqrt(STEPS / largest_variance(epsilon, 1e-5))
    bound = clip * math.sqrt(x.shape[1])
    by_rule = pace(x.shape[1], rows, noise_multiplier=noise, steps=STEPS, rate=1.0)
    size = by_rule["step_size"] if way is None else way / STEPS
    generator = torch.Generator().manual_seed(seed)
    w = torch.zeros(x.shape[1], table.classes, dtype=torch.float64)
    for _ in range(STEPS):
        left = targets - (x @ w).softmax(1)
        longest = left.norm(dim=1) * x.norm(dim=1)
        total = x.T @ (left * (bound / longest).clamp(max=1)[:, None])
        some = torch.randn(w.shape, generator=generator, dtype=torch.float64)
        w = w + size / rows * (total + bound * noise * some)
    return (torch.cat([table.fresh, table.fresh.new_ones(len(table.fresh), 1)], 1) @ w).softmax(1)


def default(table: Classed, epsilon: float, seed: int) -> Tensor:
    """Return the chances by the default of :func:`bdpvi.fit_private`."""
    torch.manual_seed(seed)
    model = bdpvi.BayesianMultinomialRegression(classes=table.classes)
    route = bdpvi.DPVI(rows=len(table.x))
    release = bdpvi.fit_private(model, (table.x, table.y), epsilon=epsilon, route=route)
    chances: Tensor = release.predict_proba(table.fresh)
    return chances.detach()


def line(name: str, table: Classed, seeds: int, noises: int) -> None:
    """Print the shares of a table at each ε."""
    for epsilon in EPSILONS:
        ours = [table.results(default(table, epsilon, s)) for s in range(seeds)]
        by_rule = [table.results(descent(table, epsilon, s, None, 0.6)) for s in range(noises)]
        best = max(
            fmean(table.results(descent(table, epsilon, s, way, clip))[0] for s in range(noises))
            for way in WAYS
            for clip in CLIPS
        )
        cells = (
            f"{fmean(s for s, _ in one):.3f} ± {stdev(s for s, _ in one):.3f}, "
            f"{fmean(a for _, a in one):.3f}"
            for one in (ours, by_rule)
        )
        size = f"{len(table.x)}, {table.x.shape[1]}, {table.classes}"
        print(f"| {name} | {size} | {epsilon:g} | {' | '.join(cells)} | {best:.3f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--noises", type=int, help="of gradient descent; as --seeds")
    parser.add_argument("--rows", type=int, nargs="*", default=[2000])
    parser.add_argument("--data", type=Path, nargs="*", default=[], metavar="FILE")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(command())
    print("| table | rows, columns, classes | ε | default: share, accuracy | noisy gradient "
          "descent by rule | in hindsight |")  # fmt: skip
    print("| --- | --- | --- | --- | --- | --- |")
    for rows in chosen.rows:
        line("simulated", simulated(rows), chosen.seeds, chosen.noises or chosen.seeds)
    for file in chosen.data:
        line(file.stem, published(file), chosen.seeds, chosen.noises or chosen.seeds)


if __name__ == "__main__":
    main()

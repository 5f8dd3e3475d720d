"""Does a Bayesian ε hold for fresh records of the table's population, and of which others?

A draw from a Laplace guide of simulated records. Fresh records are each added, and the posterior
is fitted again; their ε is where the mean of their δ is that of the claim.

    python benchmarks/fresh_records.py [--tables 400=200 4000=50 40000=10] [--fresh 1000]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from printed import command
from torch import Tensor
from torch.distributions import MultivariateNormal

from bdpvi import Dataset
from bdpvi._ground.checkpoint import Checkpoint
from bdpvi.audits.exact import AuditedDraw, mean_epsilon
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs, summarise

DELTA = 1e-5
SIZES, FEW, MORE, SHIFTED = (400, 4_000, 40_000), 3, 10_000, 1_000
"""Of tables: sizes, how many of each, and how many fresh records: for δ, and for each ε."""
SHIFTS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Factors of all features of the fresh records; 1 is no shift."""


def normal(rows: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, 3, generator=generator, dtype=torch.float64)


def heavy(rows: int, generator: torch.Generator) -> Tensor:
    """Student's t with three degrees of freedom."""
    squares = sum(normal(rows, generator)[:, :1] ** 2 for _ in range(3)) / 3
    return normal(rows, generator) / torch.as_tensor(squares).sqrt()


def clustered(rows: int, generator: torch.Generator) -> Tensor:
    centre = torch.tensor([[2.0, 0, 0], [-2, 1, 0], [0, -2, 2]], dtype=torch.float64)
    return centre[torch.randint(3, (rows,), generator=generator)] + normal(rows, generator) / 4


def corner(rows: int, generator: torch.Generator) -> Tensor:
    """One record in 50 is far out."""
    far = torch.rand(rows, 1, generator=generator) < 0.02
    return torch.where(far, 6.0, 1.0).double() * normal(rows, generator)


_AGAIN, _AT_ONCE, _NEAR = 10, 250, 1e-9
"""Records that the library fits again, records in memory, and the last step of Newton's method."""
Population = Callable[[int, torch.Generator], Tensor]
POPULATIONS: dict[str, Population] = {
    "normal": normal, "heavy tails": heavy, "clusters": clustered, "a rare corner": corner,
}  # fmt: skip


def shifted(kept: Checkpoint) -> pd.DataFrame:
    """Return the same by size of the table, and for records that are shifted.

    Each row is of a table, a factor of the features, and whether the labels are the other ones. It
    has the mean δ at the claimed ε, without a shift, over that of the claim, and its error.
    """
    parts = [_each(f"{rows}-", FEW, kept, partial(_of_size, rows)) for rows in SIZES]
    return pd.concat(parts, ignore_index=True)


def _of_size(rows: int, population: Population, seed: int) -> list[dict[str, Any]]:
    fresh, drawn = _drawn(population, rows, MORE, seed)
    x, y = (torch.cat(each) for each in zip(*fresh, strict=True))
    again, pairs = drawn.pairs(fresh[:_AGAIN]), added(drawn, x, y)
    torch.testing.assert_close(again.b2, pairs.b2[:_AGAIN], rtol=1e-3, atol=1e-12)
    torch.testing.assert_close(again.r, pairs.r[:_AGAIN], rtol=1e-6, atol=0.0)
    ways = [one.hockey_stick(drawn.claim) / DELTA for one in (pairs, pairs.reverse())]
    most = max(ways, key=lambda one: float(one.mean()))
    known = {"delta": float(most.mean()), "error": float(most.std()) / MORE**0.5}
    x, y = x[:SHIFTED], y[:SHIFTED]
    result = []
    for shift, other in product(SHIFTS, (False, True)):
        pairs = added(drawn, shift * x, 1 - y if other else y)
        row = {"rows": rows, "shift": shift, "other": other, "claim": drawn.claim, **known}
        result.append(row | {"ratio": mean_epsilon(pairs, DELTA) / drawn.claim})
    return result


def added(drawn: AuditedDraw, x: Tensor, y: Tensor) -> GaussianPairs:
    """Return the draw's law with each record added, against the one without.

    The posteriors' modes are found by Newton's method from their definition: record weights and
    prior of :class:`bdpvi.BayesianLogisticRegression`.

    Args:
        drawn: the draw.
        x, y: features (m, d) and labels (m,).
    """
    table, width = drawn.data, x.shape[1] + 1
    norm, longest = math.sqrt(width + 3) / 2, 2 * math.sqrt(width)
    prior = 4 * norm * longest * torch.eye(width, dtype=torch.float64)

    def weighted(x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.cat([x.clamp(-2, 2), x.new_full((len(x), 1), 2.0)], 1)
        return z, (norm / z.norm(dim=1)).clamp(max=1)

    z, shares = weighted(table.x)
    products = (z[:, :, None] * z[:, None]).flatten(1)
    made = []
    for some, labels in zip(x.split(_AT_ONCE), y.split(_AT_ONCE), strict=True):
        own, share = weighted(some)
        w, step = drawn.released.mean.expand(len(some), width), torch.ones(())
        while float(step.abs().max()) > _NEAR:
            chance, chances = torch.sigmoid((own * w).sum(1)), torch.sigmoid(z @ w.T)
            slope = (shares[:, None] * (table.y[:, None] - chances)).T @ z - w @ prior
            slope += (share * (labels - chance))[:, None] * own
            curve = (shares[:, None] * chances * (1 - chances)).T @ products
            curve = curve.view(-1, width, width) + prior
            curve += (share * chance * (1 - chance))[:, None, None] * own[:, :, None] * own[:, None]
            step = torch.linalg.solve(curve, slope)
            w = w + step
        made.append(summarise(MultivariateNormal(w, precision_matrix=curve), drawn.released))
    return GaussianPairs(torch.cat([p.r for p in made]), torch.cat([p.b2 for p in made]))


def _each(
    name: str,
    tables: int,
    kept: Checkpoint,
    once: Callable[[Population, int], list[dict[str, Any]]],
) -> pd.DataFrame:
    """Return the rows of tables of each population; what is stored is not computed again."""
    rows = []
    for title, population in POPULATIONS.items():
        for seed in range(tables):
            part = f"{name}{title.replace(' ', '-')}-{seed}"
            found = kept.get(part)
            if found is None:
                found = {"rows": once(population, seed)}
                kept.write_part(part, found)
            rows += [{"population": title, **row} for row in found["rows"]]
    return pd.DataFrame(rows)


def _drawn(
    population: Population, rows: int, fresh: int, seed: int
) -> tuple[list[tuple[Tensor, Tensor]], AuditedDraw]:
    """Return fresh records, and a draw from the posterior of others."""
    generator = torch.Generator().manual_seed(seed)
    x = population(rows + fresh, generator)
    chance = torch.sigmoid(x @ torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64))
    y = (torch.rand(len(x), generator=generator, dtype=torch.float64) < chance).double()
    drawn = AuditedDraw.of(Dataset(x[fresh:], y[fresh:]), DELTA)
    return [(x[at, None], y[at, None]) for at in range(fresh)], drawn


def drawn_shifts(found: pd.DataFrame) -> Figure:
    """Return a figure of :func:`shifted`: medians over tables."""
    figure = Figure(figsize=(7.0, 5.6), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey=True)
    colours = dict(zip(SIZES, ("#9ecae1", "#4292c6", "#08306b"), strict=True))
    for one, (name, part) in zip(axes.flat, found.groupby("population", sort=False), strict=True):
        one.axhline(1.0, color="#d62728", lw=1.5, label="claimed")
        for rows, other in product(SIZES, (False, True)):
            line = part[(part["rows"] == rows) & (part["other"] == other)]
            ratio = line.groupby("shift")["ratio"].median()
            label = f"{rows:,} records" + ", other label" * other
            style = "--" if other else "-"
            one.plot(
                ratio.index, ratio, style, marker="o", ms=3.5, color=colours[rows], label=label
            )
        one.set_title(name, fontsize=10)
        one.set_xscale("log", base=2)
        one.set_xticks(SHIFTS, [f"×{shift:g}" for shift in SHIFTS])
        one.set_ylim(0, 1.1 * found["ratio"].max())
        one.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("features of fresh records", fontsize=10)
    figure.supylabel("fresh ε over claimed", fontsize=10)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure


def main() -> None:
    """Print misses by population and size: ε of fresh records above the claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", default=["400=200", "4000=50", "40000=10"])
    parser.add_argument("--fresh", type=int, default=SHIFTED)
    given = parser.parse_args()
    print(command())
    print("| records | population | tables | claimed ε, median | fresh over claimed | misses |")
    print("| --- | --- | --- | --- | --- | --- |")
    for rows, tables in (map(int, one.split("=")) for one in given.tables):
        for title, population in POPULATIONS.items():
            claims, ratios = [], []
            for seed in range(tables):
                fresh, drawn = _drawn(population, rows, given.fresh, seed)
                x, y = (torch.cat(each) for each in zip(*fresh, strict=True))
                claims.append(drawn.claim)
                ratios.append(mean_epsilon(added(drawn, x, y), DELTA) / drawn.claim)
            print(
                f"| {rows} | {title} | {tables} | {median(claims):.3g} | {median(ratios):.2f}, "
                f"at most {max(ratios):.2f} | {sum(one > 1 for one in ratios)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

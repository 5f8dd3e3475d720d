"""DPVI by its defaults: against searched DPVI, coverage of its intervals, and a million records.

    python benchmarks/dpvi_default.py --tables FOLDER     # log score at ε = 1, six tables
    python benchmarks/dpvi_default.py --coverage          # of 95 % intervals, simulated
    python benchmarks/dpvi_default.py --large             # time and memory at N = 10⁶

``--tables`` takes encoding and split of ``bdpvi compare`` and its best searched DPVI row, from
``docs/benchmarks/compare-*.txt``; FOLDER has the KEEL tables. The model is the logistic regression
of ``bdpvi private``, features cut at ± 2, with its prior N(0, 1); nothing is tuned. ``--coverage``
counts how often the 95 % interval of a guide has a weight of the truth, at ε = 1, over tables and
weights. δ = 1e-5, the number of records is declared.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import time
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from printed import command
from torch import Tensor

import bdpvi
from bdpvi.commands.options import PUBLIC_SEED, SplitTable

RARE = (0.3, 0.1, 0.03, 0.01)
RESULTS = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
TABLES: dict[str, dict[str, Any]] = {
    "abalone": {},
    "adult": {},
    "magic": {"target": "class", "positive": "g"},
    "mushroom": {"target": "class", "positive": "p", "drop": ["x15"]},
    "phoneme": {"target": "class", "positive": "1"},
    "spambase": {"target": "class", "positive": "1"},
}


def searched(name: str) -> float:
    """Return the log score at ε = 1 of the best searched DPVI row."""
    text = (RESULTS / f"compare-{name}.txt").read_text(encoding="utf-8")
    part = text.split("\n$ ")[0].split("Target ε 1\n")[1]
    rows = re.findall(r"^\| dpvi-\w+ .*?(-\d\.\d+) ± ", part, re.MULTILINE)
    return max(map(float, rows))


def of_tables(folder: Path, seeds: int) -> None:
    """Print a line for each table."""
    print("\n| table | N | searched DPVI | default DPVI | deviation | behind | s a fit |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, given in TABLES.items():
        file = str(folder / f"{name}.csv") if given else name
        split = SplitTable(data=file, **given).split(PUBLIC_SEED)
        model = bdpvi.BayesianLogisticRegression.unweighted(intercept=True, limit=2.0)
        scores, start = [], time.perf_counter()
        for _ in range(seeds):
            data = bdpvi.Dataset(split.train.x, split.train.y)
            route = bdpvi.DPVI(rows=len(data))
            release = bdpvi.fit_private(model, data, epsilon=1.0, route=route)
            chances = release.predict_proba(split.test.x)
            scores.append(float(chances[range(len(chances)), split.test.y.long()].log().mean()))
        best, each = searched(name), (time.perf_counter() - start) / seeds
        print(
            f"| {name} | {len(split.train)} | {best:.4f} | {fmean(scores):.4f} | "
            f"{stdev(scores):.4f} | {best - fmean(scores):.4f} | {each:.1f} |",
            flush=True,
        )


def linear(x: Tensor, y: Tensor | None = None) -> None:
    """Weights, an intercept and the noise's size."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1] + 1), 5.0).to_event(1))
    scale = pyro.sample("scale", dist.LogNormal(x.new_tensor(0.0), 2.0))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w[:-1] + w[-1], scale), obs=y)


def logistic(x: Tensor, y: Tensor | None = None) -> None:
    """Weights and an intercept."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1] + 1), 5.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w[:-1] + w[-1]), obs=y)


def poisson(x: Tensor, y: Tensor | None = None) -> None:
    """Weights and an intercept."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1] + 1), 5.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Poisson((x @ w[:-1] + w[-1]).clamp(max=10).exp()), obs=y)


def simulated(
    model: Any, records: int, columns: int, seed: int, rare: tuple[float, ...] = ()
) -> tuple[Tensor, Tensor, Tensor]:
    """Return features, those of ``rare`` 1 in such a part of the records, targets and weights."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, columns, generator=generator, dtype=torch.float64)
    chances = torch.rand(records, len(rare), generator=generator, dtype=torch.float64)
    x = torch.cat([x, (chances < torch.tensor(rare)).double()], dim=1)
    w = torch.randn(x.shape[1], generator=generator, dtype=torch.float64) / columns**0.5
    w = torch.cat([w, torch.tensor([-0.5]).double()])
    mean = x @ w[:-1] + w[-1]
    if model is linear:
        y = mean + 2 * torch.randn(records, generator=generator, dtype=torch.float64)
    elif model is logistic:
        y = (torch.rand(records, generator=generator) < torch.sigmoid(mean)).double()
    else:
        y = torch.poisson(mean.exp(), generator=generator)
    return x, y, w


def coverage(tables: int) -> None:
    """Print a line for each model and size: which weights are measured, their coverage."""
    print(f"\nfeatures: five of unit size, then 1 in {RARE} of the records, then the intercept\n")
    print("| model | N | measured, % | coverage | error | spread of z |")
    print("| --- | --- | --- | --- | --- | --- |")
    for model in (linear, logistic, poisson):
        for records in (10_000, 100_000):
            found, measured = [], []
            for seed in range(tables):
                x, y, w = simulated(model, records, 5, seed, RARE)
                route = bdpvi.DPVI(rows=records, draws=1)
                release = bdpvi.fit_private(model, (x, y), epsilon=1.0, route=route)
                assert release.guide is not None
                law = release.guide.distribution
                found.append((law.mean[: len(w)] - w) / law.stddev[: len(w)])
                measured.append(torch.tensor(release.guide.measured[: len(w)]))
            z, known = torch.stack(found), torch.stack(measured)
            hit = (z.abs() < 1.96).double()
            each = torch.stack([one[seen].mean() for one, seen in zip(hit, known, strict=True)])
            columns = known.double()
            shares = [100 * columns[:, :5].mean(), *(100 * columns[:, 5:].mean(0))]
            print(
                f"| {model.__name__} | {records} | "
                f"{' '.join(f'{share:.0f}' for share in shares)} | "
                f"{hit[known].mean():.3f} | {each.std() / len(z) ** 0.5:.3f} | "
                f"{z[known].std():.2f} |",
                flush=True,
            )


def large() -> None:
    """Print time and memory of a logistic regression of a million records."""
    x, y, w = simulated(logistic, 1_000_000, 20, 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    start = time.perf_counter()
    release = bdpvi.fit_private(logistic, (x, y), epsilon=1.0, route=bdpvi.DPVI(rows=1e6))
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    assert release.guide is not None
    error = float((release.guide.distribution.mean - w).abs().max())
    print(f"\nN = 10⁶, d = 20: {seconds:.0f} s, peak {after:.2f} GiB ({before:.2f} before the fit)")
    print(f"largest error of a weight {error:.4f}")


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, help="folder of the KEEL tables")
    parser.add_argument("--seeds", type=int, default=5, help="fits of each table")
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--simulations", type=int, default=30, help="tables behind a coverage")
    parser.add_argument("--large", action="store_true")
    given = parser.parse_args()
    print("command:", command())
    print(f"machine: {platform.platform()}, {os.cpu_count()} cores")
    names = ("torch", "pyro-ppl", "numpy")
    print("versions: python", platform.python_version(), *(f"{n} {version(n)}" for n in names))
    print("worst-case DP ε = 1 at δ = 1e-05")
    if given.tables:
        of_tables(given.tables, given.seeds)
    if given.coverage:
        coverage(given.simulations)
    if given.large:
        large()


if __name__ == "__main__":
    main()

"""Fit, neighbours and accounting on the optimum route, in seconds, and against refits.

python benchmarks/optimum.py --data FOLDER_OF_THE_UCI_FILES [--refits 500]
"""

from __future__ import annotations

import argparse
import platform
import sys
import time

import torch

from bdpvi import BayesianAccountant, BayesianLogisticRegression, datasets
from bdpvi.cavity import propose
from bdpvi.divergences import GaussianPairs, summarise
from bdpvi.events import PosteriorDraws
from bdpvi.guides import FullRank
from bdpvi.objective import Changed, Objective, Point, Records, climb, start
from bdpvi.optimum import Optimum
from bdpvi.panel import Panel
from bdpvi.perturbation import Expansion
from bdpvi.plan import Plan
from bdpvi.progress import silent
from bdpvi.rows import Rows
from bdpvi.svi import Problem, default_optimiser
from bdpvi.types import Dataset, Spent

SETTINGS = (("abalone", 0.25, 10.0), ("adult", 1.0, 20.0))
DELTA = 1e-5
TOLERANCE = 1e-12


def epsilon(panel: Panel, temperature: float) -> Spent:
    accountant = BayesianAccountant()
    accountant.step(PosteriorDraws((panel,), 1, temperature))
    return accountant.spent(DELTA)


def refit(point: Point, records: Records, record: int) -> Point:
    removed = Changed(point.objective.records, records.select(slice(record, record + 1)), -1.0)
    changed = Objective(removed, 1.0, diagonal=False)
    return climb(changed.at(point.mean, point.metric), TOLERANCE)[-1]


def gaussian(point: Point) -> torch.distributions.MultivariateNormal:
    return torch.distributions.MultivariateNormal(point.mean, point.root @ point.root.T)


def worst(found: GaussianPairs, exact: GaussianPairs) -> float:
    order = torch.tensor([2.0, 30.0], dtype=torch.float64)
    return float((found.renyi(order) / exact.renyi(order) - 1).abs().max())


def run(name: str, data: Dataset, clip: float, temperature: float, refits: int) -> None:
    model = BayesianLogisticRegression(clip=clip)
    data = data.to("cpu")
    records = Records.of(model, data)
    began = time.perf_counter()
    point = climb(start(Objective(records, 1.0, diagonal=False)), TOLERANCE)[-1]
    fitted = time.perf_counter()
    problem = Problem(model, FullRank(model), data, Plan(steps=1), default_optimiser(1))
    (panel,) = Optimum(tolerance=TOLERANCE).train(problem, silent).panels
    done = time.perf_counter()
    value = epsilon(panel, temperature)
    accounted = time.perf_counter()
    fit, neighbours = fitted - began, done - fitted - (fitted - began)
    size = f"N = {len(data)}, d = {data.x.shape[1]}"
    print(f"{name}: {size}, C = {clip:g}, temperature {temperature:g}")
    rate = f"{neighbours / fit:.1f} fits, {len(data) / neighbours:,.0f}/s"
    print(f"  fit {fit:.2f} s, all neighbours {neighbours:.2f} s ({rate})")
    mark = "reliable" if value.reliable else "not reliable"
    print(
        f"  Bayesian-DP ε = {value.epsilon:.6f} at δ = {DELTA:g}, {mark}, "
        f"in {accounted - done:.2f} s"
    )
    print(f"  largest |log r| {float(panel.pairs.r.log().abs().max()):.4f}")
    expansion = Expansion(point, TOLERANCE)
    rows = Rows("remove", data, -1.0)
    moves = Optimum(tolerance=TOLERANCE).moves(expansion, records, -1.0)
    bare = GaussianPairs(*zip_pairs(expansion, moves.m, moves.y))
    change = value.epsilon / epsilon(Panel("remove", data.ids, bare), temperature).epsilon - 1
    print(f"  the proven errors add {change:.1e} of ε")
    top = panel.pairs.renyi(32.0, temperature).topk(refits // 10).indices
    proposed = propose(point, records, rows, refits // 5, temperature=temperature).records.ids
    share = float(torch.isin(top, proposed).double().mean())
    print(f"  the cavity's first {refits // 5} contain {share:.1%} of the costliest {refits // 10}")
    rest = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    chosen = torch.cat([top, rest[: refits - len(top)]])
    began = time.perf_counter()
    brute = [summarise(gaussian(point), gaussian(refit(point, records, int(i)))) for i in chosen]
    seconds = time.perf_counter() - began
    exact = GaussianPairs(torch.cat([b.r for b in brute]), torch.cat([b.b2 for b in brute]))
    print(f"  {len(chosen)} refits, {seconds / len(chosen) * 1e3:.0f} ms each")
    for words, pairs in (("before", bare), ("after", panel.pairs)):
        error = worst(GaussianPairs(pairs.r[chosen], pairs.b2[chosen]), exact)
        print(f"  largest relative error of a divergence {words} the proven error: {error:.1e}")


def zip_pairs(
    expansion: Expansion, m: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = [
        expansion.coordinates.pairs(a, b)
        for a, b in zip(m.split(1024, 1), y.split(1024, 1), strict=True)
    ]
    return torch.cat([b.r for b in blocks]), torch.cat([b.b2 for b in blocks])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with abalone.data, adult.data and adult.test")
    parser.add_argument("--refits", type=int, default=500)
    arguments = parser.parse_args()
    print("$ python", " ".join(sys.argv))
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, Python "
        f"{platform.python_version()}, torch {torch.__version__}"
    )
    loaders = {"abalone": datasets.load_abalone, "adult": datasets.load_adult}
    for name, clip, temperature in SETTINGS:
        run(name, loaders[name](arguments.data).train, clip, temperature, arguments.refits)


if __name__ == "__main__":
    main()

"""Time of fit, neighbours and accounting as functions of N and d, and compared with retraining.

    python benchmarks/scaling.py [--records 3000 30000 ...] [--features 8 14 50 100] [--seconds 120]
                                 [--cases coupled,full-rank ...]

Every cell runs in its own process, whose peak memory is reported. A cell predicted to take longer
than ``--seconds`` is not run, and says so; one that takes five times as long is stopped. Routes:

* coupled: SVI with batches of 200, every record left out beside it. "retrain" is the time that one
  Pyro run after another would take, from three of them; "vmap" that of torch.func over the traced
  model for all rows, from 64 of them; both over the time taken.
* optimum: the one maximum of the ELBO, every record left out by the expansion.

A pair is one record of a batch in one left-out model. Growth exponents are slopes of log(time)
from the smallest to the largest size that ran, the other size held.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyro
import torch
from printed import command

import bdpvi
from bdpvi import BayesianLogisticRegression, Coupled, Dataset, Optimum
from bdpvi._ground.progress import silent
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.inference.svi import Problem, default_optimiser, isolated, run_svi
from bdpvi.bayesian.neighbours.row_gradients import Step, TracedGradient
from bdpvi.bayesian.optimum.elbo import Objective, start
from bdpvi.bayesian.optimum.expansion import Expansion
from bdpvi.bayesian.optimum.newton import climb
from bdpvi.bayesian.optimum.panels import pairs
from bdpvi.bayesian.optimum.weighted import Weighted
from bdpvi.guides import FullRank, GaussianGuide, MeanField
from bdpvi.noise.batches import BatchPlan

BATCH, STEPS = 200, 200
GUIDES: dict[str, type[GaussianGuide]] = {"mean-field": MeanField, "full-rank": FullRank}
WARM = {"coupled": 300, "optimum": 20_000}
"""Records that are enough for whatever code is loaded only for many."""
CASES = [(route, guide) for route in ("coupled", "optimum") for guide in GUIDES]


def table(records: int, features: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(records, features, generator=generator, dtype=torch.float64)
    w = torch.randn(features, generator=generator, dtype=torch.float64) / math.sqrt(features)
    chance = torch.rand(records, generator=generator, dtype=torch.float64)
    return Dataset(x, (chance < torch.sigmoid(x @ w)).double())


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def account(panels: tuple[Any, ...]) -> float:
    try:
        found = bdpvi.bayesian.cost_of([GuideDraws(panels, 1, 5.0)], 1e-5).bayesian
        return math.inf if found is None else found.epsilon
    except ValueError:  # one record moves the posterior so far that no ε is finite
        return math.inf


def coupled(data: Dataset, guide: type[GaussianGuide]) -> dict[str, float]:
    model = BayesianLogisticRegression(clip=0.5)
    plan = BatchPlan(steps=STEPS, rate=min(1.0, BATCH / len(data)), seed=0)
    problem = Problem(model, guide(model), data, plan, default_optimiser(STEPS))
    _, fit = timed(lambda: run_svi(problem, silent))
    found, whole = timed(lambda: Coupled().train(problem, silent))
    _, accounting = timed(lambda: account(found.panels))
    neighbours = max(whole - fit, 1e-9)
    less = [replace(problem, data=data.without(record)) for record in range(3)]
    _, three = timed(lambda: [run_svi(one, silent) for one in less])
    _, some = timed(lambda: plain_vmap(problem, 64, 5))
    return {
        "fit": fit,
        "neighbours": neighbours,
        "accounting": accounting,
        "gpair": len(data) * BATCH * STEPS / neighbours / 1e9,
        "retrain": three / 3 * len(data) / neighbours,
        "vmap": some / 5 * STEPS / 64 * len(data) / neighbours,
    }


def plain_vmap(problem: Problem, rows: int, steps: int) -> None:
    data = problem.data
    with isolated(data.x), pyro.validation_enabled(False):
        problem.guide.setup(data.x, data.y)
        gradient = TracedGradient(problem)
        free = {
            name: gradient.transforms[name].inv(value).expand(rows, *value.shape).clone()
            for name, value in problem.guide.initial(data.x).items()
        }
        out = {name: torch.empty_like(value) for name, value in free.items()}
        records = gradient.see(data.select(torch.arange(rows)))
        weight = data.x.new_zeros(rows)
        for step in range(steps):
            batch = problem.plan.batch(step, data.ids)
            seen = tuple(part[batch] for part in gradient.see(data))
            noise = torch.Generator().manual_seed(step)
            gradient(free, Step(records, weight, seen, noise), out)


def optimum(data: Dataset, guide: type[GaussianGuide]) -> dict[str, float]:
    model = BayesianLogisticRegression(clip=0.5)
    records, route = Weighted.of(model, data), Optimum()
    objective = Objective(records, model.precision(records.x.shape[1]), guide is MeanField)
    point, fit = timed(lambda: climb(start(objective), route.tolerance)[-1])

    def every() -> GaussianPairs:
        expansion = Expansion(point, route.tolerance)
        return pairs(expansion, route.moves(expansion, records, -1.0), guide(model))

    found, neighbours = timed(every)
    _, accounting = timed(lambda: account((Panel("remove", data.ids, found),)))
    return {"fit": fit, "neighbours": neighbours, "accounting": accounting}


def cell(route: str, guide: str, records: int, features: int) -> dict[str, float]:
    """Run one cell in this process."""
    run = coupled if route == "coupled" else optimum
    run(table(WARM[route], 8), GUIDES[guide])  # imports and first calls are not what is measured
    result = run(table(records, features), GUIDES[guide])
    return {**result, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def apart(
    route: str, guide: str, records: int, features: int, limit: float
) -> dict[str, float] | str:
    """Run one cell in a process of its own; say why if it fails."""
    arguments = [sys.executable, __file__, "--cell", route, guide, str(records), str(features)]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit:,.0f} s"
    if done.returncode:
        return done.stderr.strip().splitlines()[-1][:60] if done.stderr.strip() else "killed"
    return dict(json.loads(done.stdout.splitlines()[-1]))


def predicted(route: str, ran: dict[tuple[int, int], dict[str, float]], n: int, d: int) -> float:
    """Return the time of a cell by the closest smaller ones, if it grows with N·d.

    On the coupled route the fit sees batches of one size and does not grow.
    """
    guesses = []
    for (m, f), r in ran.items():
        if m <= n and f <= d:
            growth = n / m * d / f
            fit = r["fit"] * (growth if route == "optimum" else 1)
            guesses.append(fit + (r["neighbours"] + r["accounting"]) * growth)
    return min(guesses, default=0.0)


def show(route: str, guide: str, n: int, d: int, r: dict[str, float] | str) -> None:
    head = f"{route:>8} {guide:>10} {n:>9} {d:>4}"
    if isinstance(r, str):
        print(f"{head}   {r}", flush=True)
        return
    tail = f"{r['gpair']:>8.3f} {r['retrain']:>8.0f} {r['vmap']:>6.1f}" if "gpair" in r else ""
    overhead = (r["fit"] + r["accounting"] + r["neighbours"]) / r["fit"]
    print(
        f"{head} {r['fit']:>8.2f} {r['neighbours']:>8.2f} {r['accounting']:>8.2f} {overhead:>8.1f} "
        f"{n / r['neighbours']:>10,.0f} {r['memory']:>6.2f} {tail}",
        flush=True,
    )


def exponents(ran: dict[tuple[int, int], dict[str, float]]) -> str:
    """Return the growth of the neighbours' time in N and in d."""
    words = []
    for name, of, held in (("N", 0, 1), ("d", 1, 0)):
        slopes = []
        for fixed in sorted({key[held] for key in ran}):
            sizes = sorted(key[of] for key in ran if key[held] == fixed)
            if len(sizes) > 1:
                ends = [ran[(s, fixed) if of == 0 else (fixed, s)] for s in (sizes[0], sizes[-1])]
                ratio = ends[1]["neighbours"] / ends[0]["neighbours"]
                slopes.append(math.log(ratio) / math.log(sizes[-1] / sizes[0]))
        if slopes:
            words.append(f"{name}^" + "/".join(f"{slope:.2f}" for slope in slopes))
    return ", ".join(words) or "one size alone has none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = [3_000, 30_000, 300_000, 1_000_000, 10_000_000]
    parser.add_argument("--records", type=int, nargs="*", default=sizes)
    parser.add_argument("--features", type=int, nargs="*", default=[8, 14, 50, 100])
    parser.add_argument("--seconds", type=float, default=120.0)
    cases = [",".join(case) for case in CASES]
    parser.add_argument("--cases", nargs="*", default=cases, choices=cases)
    parser.add_argument("--cell", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        route, guide, n, d = options.cell
        print(json.dumps(cell(route, guide, int(n), int(d))))
        return
    print("$", command())
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, Python "
        f"{platform.python_version()}, torch {torch.__version__}"
    )
    print(
        f"{'route':>8} {'guide':>10} {'N':>9} {'d':>4} {'fit s':>8} {'neigh. s':>8} {'acct. s':>8} "
        f"{'all/fit':>8} {'neigh./s':>10} {'GiB':>6} {'Gpair/s':>8} {'retrain':>8} {'vmap':>6}"
    )
    for route, guide in (case.split(",") for case in options.cases):
        ran: dict[tuple[int, int], dict[str, float]] = {}
        for d in options.features:
            for n in options.records:
                guess = predicted(route, ran, n, d)
                result: dict[str, float] | str = f"not run: about {guess:,.0f} s"
                if guess <= options.seconds:
                    result = apart(route, guide, n, d, 30 + 5 * options.seconds)
                if not isinstance(result, str):
                    ran[n, d] = result
                show(route, guide, n, d, result)
        print(
            f"{route:>8} {guide:>10} growth of the neighbours' time: {exponents(ran)}", flush=True
        )


if __name__ == "__main__":
    main()

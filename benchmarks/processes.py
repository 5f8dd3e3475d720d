"""Coupled neighbours by one process and by several, each with one thread, on synthetic records.

    python benchmarks/processes.py [--records 20000] [--features 14] [--batch 200] [--steps 1000]

The time is that of the fit and its neighbours, from the moment all processes have their data and
have imported what they need.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from printed import command

import bdpvi
from bdpvi import BayesianLogisticRegression, Coupled, Dataset
from bdpvi.bayesian import Remove
from bdpvi.bayesian.neighbours.sharding import Sharded
from bdpvi.distributed import joined
from bdpvi.guides import FullRank
from bdpvi.privacy.ledger import Charge

CHARGE = Charge(draws=10, temperature=5.0)


def work(options: argparse.Namespace) -> None:
    """Do one process's part; the first writes the seconds and ε."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    shape = (options.records, options.features)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    probability = torch.sigmoid(x @ torch.linspace(-1, 1, options.features, dtype=torch.float64))
    y = (torch.rand(options.records, generator=generator, dtype=torch.float64) < probability) * 1.0
    model = BayesianLogisticRegression(clip=0.25, prior_scale=0.25)
    torch.optim.Adam([torch.zeros(1)])  # torch's first optimiser imports its compiler
    importlib.import_module("bdpvi.bayesian.neighbours.rows_compiled")
    with joined() as workers:
        workers.sum(torch.zeros(1))
        start = time.perf_counter()
        fit = bdpvi.fit(
            model,
            FullRank(model),
            Dataset(x, y),
            training=bdpvi.Training(
                steps=options.steps, rate=options.batch / options.records, device="cpu"
            ),
            neighbours=Sharded(Coupled, Remove(), workers=workers),
            progress=False,
        )
        seconds = time.perf_counter() - start
        if workers.rank == 0:
            found = bdpvi.cost(fit, planned=CHARGE).bayesian
            assert found is not None
            content = json.dumps(
                {
                    "seconds": seconds,
                    "epsilon": found.epsilon,
                    "price": f"Bayesian DP, δ = {found.delta:g}, "
                    f"{'reliable' if found.reliable else 'not reliable'}",
                }
            )
            Path(options.result).write_text(content, encoding="utf-8")


def run(processes: int) -> dict[str, Any]:
    """Start this script by torchrun; return what its first process wrote, and the whole time."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        start = time.perf_counter()
        subprocess.run(
            [*torchrun, "--nproc-per-node", str(processes), *sys.argv, "--result", str(result)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
        )
        whole = time.perf_counter() - start
        return {**json.loads(result.read_text(encoding="utf-8")), "whole": whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--features", type=int, default=14)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--result", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.result:
        work(options)
        return
    print("$", command())
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}, gloo; {options.records} records, {options.features} features, "
        f"batch {options.batch}, {options.steps} steps, full-rank, float64, one thread a process"
    )
    print(f"{'processes':>9} {'s':>8} {'times':>6} {'with start, s':>13}  ε of 10 draws at τ = 5")
    first = None
    for processes in options.processes:
        now = run(processes)
        first = first or now
        print(
            f"{processes:>9} {now['seconds']:>8.2f} {first['seconds'] / now['seconds']:>6.2f} "
            f"{now['whole']:>13.2f}  {now['epsilon']:.15g} "
            f"(differs by {abs(now['epsilon'] - first['epsilon']):.1e}; {now['price']})",
            flush=True,
        )


if __name__ == "__main__":
    main()

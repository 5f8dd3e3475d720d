"""Throughput of coupled neighbours: pairs of a batch record and a left-out model per second.

    python benchmarks/rows.py [--records 39073] [--features 14] [--batch 200] [--steps 200]

Runs on every device there is. A pair costs 4d operations and a sigmoid; its least traffic, where
slopes do not stay in a cache, is the (rows × batch) matrix of slopes written and read once, which
the share of the bandwidth refers to. On CUDA the time is set against the CPU's. Ends with what
training in float32 does to ε.
"""

from __future__ import annotations

import argparse
import platform
import time

import torch
from printed import command

import bdpvi
from bdpvi import BayesianLogisticRegression, Dataset
from bdpvi.bayesian.inference.svi import Problem, default_optimiser
from bdpvi.bayesian.neighbours.coupled import CHUNK
from bdpvi.bayesian.neighbours.rows import RowFits, train_rows
from bdpvi.guides import FullRank, GaussianGuide, MeanField
from bdpvi.noise.batches import BatchPlan
from bdpvi.privacy.ledger import Charge


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def bandwidth(device: torch.device, dtype: torch.dtype) -> float:
    """Return bytes per second, read and written, of a large copy."""
    source = torch.rand(2**26 if device.type == "cuda" else 2**24, device=device, dtype=dtype)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(5):
        synchronise(device)
        start = time.perf_counter()
        target.copy_(source)
        synchronise(device)
        best = min(best, time.perf_counter() - start)
    return 2 * source.nbytes / best


def seconds(problem: Problem, chunk: int) -> float:
    data = problem.data
    synchronise(data.x.device)
    start = time.perf_counter()
    for first in range(0, len(data), chunk):
        index = torch.arange(first, min(first + chunk, len(data)), device=data.x.device)
        train_rows(problem, RowFits("remove", data.select(index), -1.0))
    synchronise(data.x.device)
    return time.perf_counter() - start


def epsilon(dtype: torch.dtype) -> bdpvi.Bound:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3_000, 14, generator=generator, dtype=torch.float64)
    y = (
        torch.rand(3_000, generator=generator, dtype=torch.float64) < torch.sigmoid(x[:, 0])
    ).double()
    model = BayesianLogisticRegression(clip=0.5)
    fit = bdpvi.fit(
        model,
        FullRank(model),
        Dataset(x, y),
        training=bdpvi.Training(steps=500, rate=0.1, seed=0, dtype=dtype),
        progress=False,
    )
    result = bdpvi.cost(fit, planned=Charge(1, 5.0)).bayesian
    assert result is not None
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=39_073)
    parser.add_argument("--features", type=int, default=14)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--chunks", type=int, nargs="*", default=[])
    options = parser.parse_args()
    print("$", command())
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, Python "
        f"{platform.python_version()}, torch {torch.__version__}"
        + (f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "")
    )
    print(f"{'device':>6} {'dtype':>8} {'guide':>10} {'chunk':>6} {'s':>8} {'Gpair/s':>8}  share")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(options.records, options.features, generator=generator, dtype=torch.float64)
    y = (torch.rand(options.records, generator=generator) < 0.5).double()
    model = BayesianLogisticRegression(clip=0.5)
    plan = BatchPlan(steps=options.steps, rate=options.batch / options.records, seed=0)
    small = Dataset(x[:512], y[:512])  # torch's first optimiser step imports its compiler
    kinds: list[type[GaussianGuide]] = [MeanField, FullRank]
    seconds(Problem(model, FullRank(model), small, BatchPlan(steps=1), default_optimiser(1)), 512)
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    cpu: dict[object, float] = {}
    for device in map(torch.device, devices):
        usual = [CHUNK] if device.type == "cpu" else [options.records]
        for dtype in (torch.float64, torch.float32):
            rate = bandwidth(device, dtype)
            for kind in kinds:
                for chunk in options.chunks or usual:
                    data = Dataset(x, y).to(device, dtype)
                    problem = Problem(model, kind(model), data, plan, default_optimiser(plan.steps))
                    taken = seconds(problem, chunk)
                    pairs = options.records * options.batch * options.steps
                    first = cpu.setdefault((dtype, kind), taken)
                    on_cpu = device.type == "cpu"
                    against = "" if on_cpu else f", {first / taken:.1f} × the CPU"
                    share = pairs * 2 * torch.finfo(dtype).bits / 8 / taken / rate
                    print(
                        f"{device.type:>6} {str(dtype)[6:]:>8} {kind.__name__:>10} {chunk:>6} "
                        f"{taken:>8.2f} {pairs / taken / 1e9:>8.3f} {share:>6.1%}{against}",
                        flush=True,
                    )

    double, single = epsilon(torch.float64), epsilon(torch.float32)
    print(f"ε after training in float64: {double}")
    print(f"in float32: {single}")
    print(f"relative difference {single.epsilon / double.epsilon - 1:+.1e}")


if __name__ == "__main__":
    main()

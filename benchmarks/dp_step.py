"""Overhead of privacy in a training step: DPVI, and the same model in Opacus if it is installed.

    python benchmarks/dp_step.py

Times are processor time on one thread, medians over rounds in which the variants take turns.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import torch
from printed import command

from bdpvi import BayesianLogisticRegression, Dataset
from bdpvi.bench.methods.runs import Run, Streams
from bdpvi.bench.methods.variational import DPVISettings, train

SHAPES = {"Abalone": (3341, 8, 0.05), "Adult": (39073, 14, 0.005)}
ROUNDS, STEPS = 7, 300
MODEL = BayesianLogisticRegression.unweighted()


def medians(variants: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the milliseconds of processor time that a step of each variant takes."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(ROUNDS + 1):
        for name, run in variants.items():
            start = time.process_time()
            run()
            if round_number:  # the first one warms up
                times[name].append((time.process_time() - start) / STEPS * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def report(name: str, times: dict[str, float]) -> None:
    first = next(iter(times.values()))
    cells = (f"{variant} {t:7.3f} ms ({t / first:4.2f}x)" for variant, t in times.items())
    print(f"{name:28s}", "  ".join(cells), flush=True)


def trainer(data: Dataset, settings: DPVISettings, run: Run) -> Callable[[], object]:
    def run_once() -> object:
        streams = Streams([run], data, steps=settings.steps, rate=settings.rate)
        return train(MODEL, data, streams, settings)

    return run_once


def dpvi_step(data: Dataset, rate: float) -> None:
    public = DPVISettings(steps=STEPS, rate=rate, clip=None)
    private = replace(public, clip=1.0)
    variants = {
        "not private": trainer(data, public, Run(noise_multiplier=0.0, seed=0)),
        "private": trainer(data, private, Run(noise_multiplier=1.0, seed=0)),
        "private, secure noise": trainer(data, private, Run(noise_multiplier=1.0)),
    }
    report("bdpvi MeanField", medians(variants))


def opacus_step(data: Dataset, rate: float) -> None:
    """Time a step of logistic regression on one batch of the expected size, Adam, plain torch."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    size = round(rate * len(data))
    x, y = data.x[:size], data.y[:size, None]

    def loop(linear: torch.nn.Module, optim: torch.optim.Optimizer) -> None:
        loss = torch.nn.BCEWithLogitsLoss()
        for _ in range(STEPS):
            optim.zero_grad()
            loss(linear(x), y).backward()
            optim.step()

    def plain() -> None:
        linear = torch.nn.Linear(x.shape[1], 1, bias=False, dtype=x.dtype)
        loop(linear, torch.optim.Adam(linear.parameters(), lr=0.05))

    def private() -> None:
        linear = GradSampleModule(torch.nn.Linear(x.shape[1], 1, bias=False, dtype=x.dtype))
        adam = torch.optim.Adam(linear.parameters(), lr=0.05)
        loop(
            linear,
            DPOptimizer(adam, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=size),
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report("Opacus", medians({"not private": plain, "private": private}))


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    torch.set_num_threads(1)
    versions = {name: installed(name) for name in ("torch", "pyro-ppl", "numpy", "opacus")}
    print("command:", command())
    print(f"machine: {platform.platform()}, {os.cpu_count()} cores")
    print(
        f"versions: python {platform.python_version()}", *(f"{n} {v}" for n, v in versions.items())
    )
    if versions["opacus"] is None:
        print("Opacus is not installed (pip install opacus), so it is left out")
    generator = torch.Generator().manual_seed(0)
    for name, (records, features, rate) in SHAPES.items():
        x = torch.randn(records, features, generator=generator, dtype=torch.float64)
        chance = torch.rand(records, generator=generator, dtype=torch.float64)
        y = (chance < torch.sigmoid(x[:, 0])).double()
        print(f"\n{name}'s shape: {records} records, {features} features, q = {rate}")
        dpvi_step(Dataset(x, y), rate)
        if versions["opacus"] is not None:
            opacus_step(Dataset(x, y), rate)


if __name__ == "__main__":
    main()

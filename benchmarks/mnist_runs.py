"""MNIST by DP-SGD, for several first weights and noise levels: accuracy and ε.

    OMP_NUM_THREADS=1 python benchmarks/mnist_runs.py --data FOLDER [--seeds 1 2 3] [--steps 1150]
    OMP_NUM_THREADS=1 python benchmarks/mnist_runs.py levels --data FOLDER --out RUNS.jsonl

The first trains the network of examples/mnist.py with its settings, and prints rows as it goes on.
The second trains the same network with ReLU at five noise levels from five first weights, meets the
test images once a run, and prints a table. Settings were fixed beforehand; none was chosen by
accuracy. With --out each finished run is kept, and the command goes on where it stopped.

Seeds determine only the initial weights: batches and noise are secret, so accuracies vary by about
0.002 from run to run. The Bayesian ε is that of the path that ran, by the hockey-stick divergence
over a panel not used for training: a diagnostic, not a guarantee about the algorithm.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import runpy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from printed import command
from torch import Tensor, nn
from torch.nn import functional as F

import bdpvi
from bdpvi import datasets
from bdpvi.bayesian.accounting.accountant import cost_of
from bdpvi.bayesian.accounting.losses import OfRuns
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.networks import DPSGDSettings
from bdpvi.privacy.conversions import EPSILONS
from bdpvi.privacy.events import SampledGaussian

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "mnist.py"))
DELTAS = (1e-5, 1e-10)
SHARE = 1e-6
"""γ of each estimate over δ; 8,194 of them are charged, so they take 0.8 % of δ."""
Images = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Plan:
    """What is trained: everything is fixed before the first run.

    Attributes:
        held: the last training images, which are held out; the first ``panel`` of them are the
            panel.
        every: steps between two looks at the test images.
    """

    noises: tuple[float, ...]
    batch: int
    held: int
    panel: int
    learning_rate: float
    relu: bool
    steps: int
    every: int
    seeds: tuple[int, ...]

    def network(self) -> nn.Module:
        """Return the example's network, with ReLU for tanh if the plan says so."""
        layers = EXAMPLE["network"]()
        if not self.relu:
            return layers  # type: ignore[no-any-return]
        return nn.Sequential(
            *(nn.ReLU() if isinstance(layer, nn.Tanh) else layer for layer in layers)
        )


PLANS = {
    "example": Plan(
        noises=(2.331,), batch=1024, held=500, panel=100, learning_rate=1.0, relu=False,
        steps=1150, every=230, seeds=(1, 2, 3),
    ),
    "levels": Plan(
        noises=(1.0, 1.68, 4.0, 0.85, 2.5), batch=512, held=1000, panel=250, learning_rate=0.5,
        relu=True, steps=690, every=690, seeds=(0, 1, 2, 3, 4),
    ),
}  # fmt: skip


def certified(event: SampledGaussian, delta: float) -> float:
    """Return the Bayesian ε of the path that ran, with all that its estimates cost."""
    rule = Accounting(conversion="hockey-stick", failure_probability=SHARE * delta)
    found = cost_of([event], delta, rule).path
    assert found is not None
    return found.epsilon


def plain_mean(event: SampledGaussian, delta: float) -> float:
    """Return the least ε at which the panel's mean δ suffices: an estimate without any margin."""
    run, result = OfRuns(((event, 1),)), 0.0
    for direction in event.records:
        deltas = run.deltas(direction, delta)
        enough = (float(one) for one in EPSILONS if float(deltas.at(float(one)).mean()) <= delta)
        result = max(result, next(enough, math.inf))
    return result


def quartiles(own: Tensor) -> list[float]:
    """Return the median and the upper quartile."""
    return [float(own.quantile(q)) for q in (0.5, 0.75)]


def rows(
    plan: Plan, noise: float, seed: int, train: Images, test: Images
) -> Iterator[dict[str, Any]]:
    """Train, and yield what the test images and the accountants say every so many steps."""
    torch.manual_seed(seed)
    module, (x, y), rest = plan.network(), train, len(train[0]) - plan.held
    private = bdpvi.make_private(
        module,
        torch.optim.SGD(module.parameters(), lr=plan.learning_rate),
        loss=F.cross_entropy,
        data=(x[:rest], y[:rest]),
        rate=plan.batch / rest,
        max_grad_norm=1.0,
        noise_multiplier=noise,
        settings=DPSGDSettings(
            panel=(x[rest : rest + plan.panel], y[rest : rest + plan.panel]), records=rest
        ),
    )
    begun = time.monotonic()
    for _ in range(plan.steps):
        private.step()
        if private.steps % plan.every and private.steps < plan.steps:
            continue
        row = {
            "noise": noise,
            "seed": seed,
            "steps": private.steps,
            "accuracy": EXAMPLE["accuracy"](module, *test),
            "worst": [private.worst_case(delta).epsilon for delta in DELTAS],
            "seconds": time.monotonic() - begun,
        }
        if private.steps == plan.steps:
            event = private.event()
            assert event.norms is not None
            row |= {
                "bayesian": [certified(event, delta) for delta in DELTAS],
                "mean": [plain_mean(event, delta) for delta in DELTAS],
                "own": [quartiles(private.per_record(delta)) for delta in DELTAS],
                "at clip": float(event.norms.counts[:, -1].double().mean() / event.steps),
            }
        yield row


def finished(out: Path | None, steps: int) -> list[dict[str, Any]]:
    """Return the last rows of the runs of so many steps that are kept."""
    lines = out.read_text().splitlines() if out is not None and out.exists() else []
    return [row for row in map(json.loads, lines) if row["steps"] == steps]


def guess(epsilon: float) -> str:
    """Return ε and P(A) = 1/(1 + exp(−ε)), with which an adversary of prior 1/2 may be right."""
    return f"{epsilon:.3f}, {1 / (1 + math.exp(-epsilon)):.3f}"


def table(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a table with a line per noise level and δ: means over seeds, and their spread."""
    yield (
        "| z | δ | runs | accuracy, mean ± sd (least to largest) | worst-case ε, P(A) | Bayesian ε "
        "of the path, P(A): a diagnostic | least to largest | panel's plain mean, no margin | "
        "own ε: median, 75 % | at the clip |"
    )
    yield "| --- " * 10 + "|"
    for noise in sorted({run["noise"] for run in runs}):
        own = [run for run in runs if run["noise"] == noise]
        for index, delta in enumerate(DELTAS):
            worst, path, mean, single = (
                [run[name][index] for run in own] for name in ("worst", "bayesian", "mean", "own")
            )
            middle, upper = (fmean(one) for one in zip(*single, strict=True))
            right = [run["accuracy"] for run in own]
            spread = stdev(right) if len(own) > 1 else math.nan
            yield (
                f"| {noise:g} | {delta:g} | {len(own)} | {fmean(right):.4f} ± {spread:.4f} "
                f"({min(right):.4f} to {max(right):.4f}) | {guess(worst[0])} | "
                f"{guess(fmean(path))} | {min(path):.3f} to {max(path):.3f} | "
                f"{fmean(mean):.3f} | {middle:.3f}, {upper:.3f} | "
                f"{fmean(run['at clip'] for run in own):.0%} |"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("plan", nargs="?", choices=PLANS, default="example")
    parser.add_argument("--data", help="folder of the four gzipped IDX files")
    parser.add_argument("--out", type=Path, help="JSON lines, one for each finished run")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--steps", type=int)
    given = parser.parse_args(arguments)
    plan = PLANS[given.plan]
    seeds, steps = tuple(given.seeds or plan.seeds), given.steps or plan.steps
    plan = replace(plan, seeds=seeds, steps=steps)
    say = partial(print, flush=True)
    say(f"$ {command()}")
    say(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}")
    say("noise  seed  steps  accuracy  worst-case ε  seconds")
    runs = finished(given.out, plan.steps)
    done = {(run["noise"], run["seed"]) for run in runs}
    train, test = datasets.mnist.load_mnist(given.data)
    for seed in plan.seeds:
        for noise in plan.noises:
            if (noise, seed) in done:
                continue
            for row in rows(plan, noise, seed, train, test):
                first = f"{noise:<5g}  {seed:<4}  {row['steps']:<5}  {row['accuracy']:<8.4f}"
                say(f"{first}  {row['worst'][0]:<12.4f}  {row['seconds']:.0f}")
            runs.append(row)
            if given.out is not None:
                with given.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    say()
    for line in table(runs):
        say(line)


if __name__ == "__main__":
    main()

"""Where Bayesian accounting helps: DP-GD with costs that depend only on a record's features.

    OMP_NUM_THREADS=1 python benchmarks/static_costs.py --adult FOLDER --mnist FOLDER --table FILE

Softmax regression on fixed public features φ, over fixed public logits: at every weight a record's
gradient has norm at most min(C, √2‖φ(x)‖), so a record's cost does not depend on the path. Clip and
learning rate are the best at the worst-case ε, by accuracy on validation records; this search is
not private. A held-out panel then estimates the cost to similar records in that same run.

On MNIST a network is trained on 300 public images, and its last layer corrected by private ones.
A gate leaves φ(x) = 0 where the public network's largest probability is above a threshold.
Noise is seeded: these are experiments, not releases.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

import torch
from printed import command
from torch import Tensor, nn
from torch.nn import functional as F

import bdpvi
from bdpvi import datasets
from bdpvi._ground.types import Scope
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.norms import NormCounts
from bdpvi.privacy.sampled_steps import GaussianAccountant, calibrate

DELTA = 1e-5
EPSILONS = (0.1, 1.0)
PUBLIC = 300
GATES = (0.9, 0.99, 0.999)
STEPS = 50
CLIPS = (0.25, 1.0, 4.0, 16.0)
RATES = (0.25, 1.0, 4.0, 16.0, 64.0)
TUNED, SEEDS = 2, 5
LEVELS = torch.cat([torch.tensor([1e-9]), torch.arange(1, 257) / 256]).double()
"""Sensitivities are rounded up to these; a record without features is at the first."""


@dataclass(frozen=True)
class Records:
    """Features (n, d), public logits (n, classes) and classes (n,)."""

    x: Tensor
    logits: Tensor
    y: Tensor

    def __getitem__(self, index: Tensor) -> Records:
        return Records(self.x[index], self.logits[index], self.y[index])

    def accuracy(self, w: Tensor) -> float:
        """Return the fraction of records whose class is the likeliest at weights w."""
        return float(((self.logits + self.x @ w).argmax(1) == self.y).double().mean())


@dataclass(frozen=True)
class Task:
    """Four disjoint sets of one kind of records."""

    name: str
    train: Records
    validation: Records
    panel: Records
    test: Records


@dataclass(frozen=True)
class Settings:
    """Clip C, and the step in units of C."""

    clip: float
    rate: float


def trained(data: Records, settings: Settings, noise_multiplier: float, seed: int) -> Tensor:
    """Return the mean of the last half of the weights of DP-GD."""
    generator = torch.Generator().manual_seed(seed)
    n, d, classes = *data.x.shape, data.logits.shape[1]
    w = total = torch.zeros(d, classes)
    data = data[data.x.any(1)]  # the others have no gradient
    lengths, truth = data.x.norm(dim=1), F.one_hot(data.y, classes)
    for step in range(STEPS):
        residual = (data.logits + data.x @ w).softmax(1) - truth
        norms = residual.norm(dim=1) * lengths
        residual = residual * (settings.clip / norms.clamp(min=settings.clip))[:, None]
        noise = torch.randn(w.shape, generator=generator) * noise_multiplier
        w = w - settings.rate / n * (data.x.T @ residual / settings.clip + noise)
        if step >= STEPS // 2:
            total = total + w / (STEPS - STEPS // 2)
    return total


def scores(task: Task, on: str, settings: Settings, z: float, seeds: Sequence[int]) -> list[float]:
    held: Records = getattr(task, on)
    return [held.accuracy(trained(task.train, settings, z, seed)) for seed in seeds]


def best(
    task: Task, z: float, clips: Sequence[float] = CLIPS, rates: Sequence[float] = RATES
) -> Settings:
    """Return the settings of the best run by accuracy on validation records: not private."""
    tried = [Settings(clip, rate) for clip in clips for rate in rates]
    seeds = range(100, 100 + TUNED)
    return max(tried, key=lambda one: fmean(scores(task, "validation", one, z, seeds)))


def accountant(
    panel: Records, clip: float, noise_multiplier: float, failure_probability: float = 1e-12
) -> Account:
    """Return what the panel pays: the same in every step, and on every path."""
    rule = Accounting(conversion="hockey-stick", failure_probability=failure_probability)
    bound = math.sqrt(2) * panel.x.double().norm(dim=1) / clip
    norms = NormCounts.none(torch.arange(len(bound)), LEVELS, Scope.STATIC).add(bound, STEPS)
    event = SampledGaussian(noise_multiplier=noise_multiplier, steps=STEPS, norms=norms)
    return Account([event], rule)


def row(task: Task, epsilon: float) -> str:
    """Return a line: the best run at a worst-case ε, and what records pay in it."""
    z = calibrate(GaussianAccountant(), epsilon=epsilon, delta=DELTA, rate=1.0, steps=STEPS)
    settings = best(task, z)
    test = scores(task, "test", settings, z, range(SEEDS))
    own = accountant(task.panel, settings.clip, z)
    cost, exposure = own.cost(DELTA), own.exposure(DELTA)
    assert cost.worst_case is not None
    assert cost.bayesian is not None
    certified = dict(exposure.quantiles)
    at_clip = (math.sqrt(2) * task.panel.x.norm(dim=1) >= settings.clip).double().mean()
    ratio = certified[0.5] / cost.worst_case.epsilon
    return (
        f"| {task.name} | {cost.worst_case.epsilon:.3f} | {fmean(test):.4f} ± {stdev(test):.4f} | "
        f"{task.test.accuracy(torch.zeros(task.test.x.shape[1], task.test.logits.shape[1])):.4f} | "
        f"{settings.clip:g}, {settings.rate:g} | {float(at_clip):.0%} | "
        f"{cost.bayesian.epsilon:.3f} | "
        f"{exposure.median:.3f} | {certified[0.5]:.3f} | {certified[0.75]:.3f} | {ratio:.2f} |"
    )


def table(name: str, split: bdpvi.datasets.Split) -> Task:
    """Return a table with an intercept and no public logits; a fifth of it is the panel."""

    def records(data: bdpvi.Dataset) -> Records:
        x = torch.cat([data.x, torch.ones(len(data), 1)], 1).float()
        return Records(x, torch.zeros(len(x), 2), data.y.long())

    train = records(split.train)
    order = torch.randperm(len(train.y), generator=torch.Generator().manual_seed(0))
    panel, validation, rest = order.tensor_split([len(order) // 5, 3 * len(order) // 10])
    return Task(name, train[rest], train[validation], train[panel], records(split.test))


def pretrained(
    x: Tensor, y: Tensor, classes: int, epochs: int, batch: int
) -> tuple[nn.Module, nn.Module]:
    """Return a network up to its 64 features, and its last layer, trained on public images."""
    body = nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(),
        nn.Linear(512, 64), nn.ReLU(),
    )  # fmt: skip
    head = nn.Linear(64, classes)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=2e-3)
    for _ in range(epochs):
        for some in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(head(body(x[some])), y[some]).backward()
            optimizer.step()
    return body, head


def mnist(folder: str | None) -> Task:
    """Return the last layer's features of a network trained on 300 public images."""
    (x, y), (test_x, test_y) = datasets.mnist.load_mnist(folder)
    torch.manual_seed(0)
    body, head = pretrained(x[:PUBLIC], y[:PUBLIC], 10, epochs=30, batch=50)

    @torch.no_grad()
    def records(images: Tensor, digits: Tensor) -> Records:
        hidden = torch.cat([body(part) for part in images.split(2000)])
        return Records(F.pad(hidden, (0, 1), value=1.0) / 10, head(hidden), digits)

    parts = [slice(PUBLIC, 50_000), slice(50_000, 55_000), slice(55_000, 60_000)]
    train, validation, panel = (records(x[part], y[part]) for part in parts)
    return Task("MNIST, no gate", train, validation, panel, records(test_x, test_y))


def gated(task: Task, threshold: float) -> Task:
    """Return the task with features where the public logits leave a doubt, and none elsewhere."""

    def gate(data: Records) -> Records:
        doubt = data.logits.softmax(1).amax(1) < threshold
        return replace(data, x=data.x * doubt[:, None])

    parts = (gate(data) for data in (task.train, task.validation, task.panel, task.test))
    return Task(f"MNIST, gate at {threshold:g}", *parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adult", help="folder of adult.data and adult.test")
    parser.add_argument("--mnist", help="folder of MNIST")
    parser.add_argument("--table", type=Path, nargs="*", default=[], help="CSV files, target last")
    options = parser.parse_args()
    begun = time.monotonic()
    print("$", command())
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, Python "
        f"{platform.python_version()}, torch {torch.__version__}"
    )
    print(f"δ = {DELTA:g}, {STEPS} steps on all records, mean and sd of {SEEDS} seeds\n")
    print(
        "| data | worst-case ε | test accuracy | of the public logits | C, rate | at the clip | "
        "Bayesian ε | median record | certified for half | for 3/4 | half over worst case |"
    )
    print("| --- " * 11 + "|")
    tasks = []
    for file in options.table:
        frame = bdpvi.Table.of(file).frame()
        whole = datasets.from_frame(frame, frame.columns[-1]).train
        tasks.append(table(file.stem, datasets.split.shuffled(whole, 0.2)))
    images = mnist(options.mnist)
    tasks += [table("Adult", datasets.adult.load_adult(options.adult)), images]
    tasks += [gated(images, threshold) for threshold in GATES]
    for task in tasks:
        for epsilon in EPSILONS:
            print(row(task, epsilon), flush=True)
    print(f"\n{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()

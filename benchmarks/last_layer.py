"""A last layer retrained privately: MNIST's digits 5 to 9 after a network trained on 0 to 4.

    OMP_NUM_THREADS=1 python benchmarks/last_layer.py --data FOLDER

This stands in for rows that were published on CIFAR-10 and APTOS, with networks from ImageNet. A
convolutional network is trained on digits 0 to 4, which count as public. Its last layer is
replaced by softmax regression on its 64 frozen features φ, less their mean over the public images,
trained on digits 5 to 9 by DP-GD, 50 steps on all records. Features are clipped to a public norm R
and scaled, x = (φ, 1)/√(R² + 1), so a record's gradient is at most √2‖x‖ ≤ √2 long at every weight:
what a record pays holds on every path and is known before training.

Clip C and learning rate are the best on validation records at the worst-case ε, a search that is
not private. "Bound alone" clips no gradient: C = √2. Noise is seeded: these are experiments.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev

import torch
from printed import command
from static_costs import STEPS, Records, Settings, Task, accountant, best, pretrained, scores
from torch import Tensor
from torch.nn import functional as F

from bdpvi import datasets
from bdpvi.privacy.cost import Cost
from bdpvi.privacy.sampled_steps import GaussianAccountant, calibrate

DELTAS = (1e-5, 1e-10)
SHARE = 1e-7
"""γ of each estimate over δ; 8,194 of them are charged."""
EPSILONS = (0.06, 0.1, 0.51)
"""Worst-case ε at the first δ; the last is what CIFAR-10 was published with as a Bayesian one."""
SEEDS = (0, 1, 2)
BOUNDS = (0.5, 0.95)
"""R is this quantile of ‖φ‖ over the public images."""
CLIPS = (1 / 16, 1 / 4, 1 / 2, 1.0)
RATES = (16.0, 64.0, 256.0, 1024.0, 4096.0)


@dataclass(frozen=True)
class Found:
    """One run: accuracies, and what it costs at each of ``DELTAS``."""

    plain: float
    private: float
    settings: Settings
    at_clip: float
    costs: tuple[Cost, ...]


@cache
def features(folder: str | None, seed: int) -> tuple[Tensor, tuple[tuple[Tensor, Tensor], ...]]:
    """Return what a network that saw digits 0 to 4 alone makes of images.

    The norms of its features of the public images, less their mean; then features, less the same,
    and classes of digits 5 to 9 to train with, to validate with, in the panel and in the test.
    """
    (x, y), (test_x, test_y) = datasets.mnist.load_mnist(folder)
    torch.manual_seed(seed)
    body, _ = pretrained(x[y < 5], y[y < 5], 5, epochs=3, batch=128)

    @torch.no_grad()
    def of(images: Tensor) -> Tensor:
        return torch.cat([body(part) for part in images.split(2000)])

    public = of(x[y < 5])
    center = public.mean(0)
    parts = (slice(0, 47_500), slice(47_500, 50_000), slice(50_000, 60_000))
    sets = [(x[part], y[part]) for part in parts] + [(test_x, test_y)]
    private = (
        (of(images[digits >= 5]) - center, digits[digits >= 5] - 5) for images, digits in sets
    )
    return (public - center).norm(dim=1), tuple(private)


def task(folder: str | None, seed: int, quantile: float) -> Task:
    """Return the private records, with features clipped to a quantile of the public norms."""
    norms, sets = features(folder, seed)
    bound = norms.quantile(quantile)

    def records(own: Tensor, classes: Tensor) -> Records:
        own = own * (bound / own.norm(dim=1).clamp(min=bound))[:, None]
        own = F.pad(own, (0, 1), value=1.0) / math.hypot(1, bound)
        return Records(own, torch.zeros(len(own), 5), classes)

    return Task(f"R = {float(bound):.1f}", *(records(*one) for one in sets))


def without_privacy(data: Task) -> float:
    """Return the test accuracy of softmax regression without noise or clip."""
    w = torch.zeros(data.train.x.shape[1], 5, requires_grad=True)
    optimizer = torch.optim.LBFGS([w], max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        result = F.cross_entropy(data.train.x @ w, data.train.y)
        result.backward()
        return result

    optimizer.step(loss)
    return data.test.accuracy(w.detach())


def run(data: Task, clips: tuple[float, ...], epsilon: float, plain: float, seed: int) -> Found:
    """Train at a worst-case ε with the best of these clips, and say what it costs."""
    z = calibrate(GaussianAccountant(), epsilon=epsilon, delta=DELTAS[0], rate=1.0, steps=STEPS)
    settings = best(data, z, clips, RATES)
    owns = [accountant(data.panel, settings.clip, z, SHARE * delta) for delta in DELTAS]
    bounds = math.sqrt(2) * data.panel.x.norm(dim=1)
    return Found(
        plain,
        scores(data, "test", settings, z, [seed])[0],
        settings,
        float((bounds >= settings.clip * (1 - 1e-6)).double().mean()),
        tuple(own.cost(delta) for own, delta in zip(owns, DELTAS, strict=True)),
    )


def lines(name: str, found: list[Found]) -> Iterator[str]:
    """Yield a line per δ: means over seeds."""
    right = [one.private for one in found]
    chosen = "; ".join(f"{one.settings.clip:.3g}, {one.settings.rate:g}" for one in found)
    for index, delta in enumerate(DELTAS):
        costs = [one.costs[index] for one in found]
        worst = fmean(cost.worst_case.epsilon for cost in costs if cost.worst_case)
        bayesian = [cost.bayesian for cost in costs if cost.bayesian]
        own = [one.epsilon for one in bayesian]
        yield (
            f"| {name} | {fmean(one.plain for one in found):.4f} | {fmean(right):.4f} ± "
            f"{stdev(right):.4f} | {chosen} | "
            f"{fmean(one.at_clip for one in found):.0%} | {delta:g} | {guess(worst)} | "
            f"{guess(fmean(own))} | {min(own):.3f} to {max(own):.3f} | "
            f"{'yes' if all(one.reliable for one in bayesian) else 'no'} | "
            f"{fmean(own) / worst:.2f} |"
        )


def guess(epsilon: float) -> str:
    """Return ε and P(A) = 1/(1 + exp(−ε))."""
    return f"{epsilon:.3f}, {1 / (1 + math.exp(-epsilon)):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="folder of the four gzipped IDX files")
    given = parser.parse_args()
    begun = time.monotonic()
    print("$", command())
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"{STEPS} steps on all records; mean (± sd) of {len(SEEDS)} seeds\n")
    print(
        "| R, clip | accuracy without privacy | with | C, rate of each seed | panel at the clip | "
        "δ | worst-case ε, P(A) | Bayesian ε on any path, P(A) | least to largest | reliable | "
        "Bayesian over worst case |"
    )
    print("| --- " * 11 + "|")
    for quantile in BOUNDS:
        tasks = [task(given.data, seed, quantile) for seed in SEEDS]
        plain = [without_privacy(data) for data in tasks]
        for epsilon in EPSILONS:
            for kind, clips in (("tuned", CLIPS), ("bound alone", (math.sqrt(2),))):
                found = [
                    run(data, clips, epsilon, one, seed)
                    for data, one, seed in zip(tasks, plain, SEEDS, strict=True)
                ]
                for line in lines(f"{quantile:.0%} of public norms, {kind}", found):
                    print(line, flush=True)
    print(f"\n{len(tasks[0].train.y)} to train with, {len(tasks[0].panel.y)} in the panel")
    print(found[0].costs[0], f"{time.monotonic() - begun:.0f} s", sep="\n")


if __name__ == "__main__":
    main()

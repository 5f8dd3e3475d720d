"""MNIST by DP-SGD: a small convolutional network and its ε. Prints a row a minute.

    python examples/mnist.py --data FOLDER OF THE FOUR .gz FILES

Without --data the files are downloaded. The weights after a step may be published at the worst-case
ε of its row. Accuracies and the choice of the settings are not covered by ε.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bdpvi
from bdpvi import datasets
from bdpvi.networks import DPSGDSettings

DELTA = 1e-5


def network() -> nn.Module:
    """Return a network of 26,010 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten(),
        nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


@torch.no_grad()
def accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the fraction of images whose digit is found."""
    return float(
        (torch.cat([module(part).argmax(1) for part in x.split(1000)]) == y).double().mean()
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print a row a minute and one at the end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of the four gzipped IDX files")
    parser.add_argument("--steps", type=int, default=460)
    parser.add_argument(
        "--batch", type=int, default=1024, help="expected number of images in a step"
    )
    parser.add_argument("--noise", type=float, default=2.331, help="noise multiplier")
    parser.add_argument("--panel", type=int, default=500, help="training images held out as panel")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)

    (x, y), (test_x, test_y) = datasets.mnist.load_mnist(given.data)
    test = test_x.to(given.device), test_y.to(given.device)
    torch.manual_seed(0)  # of the first weights only: batches and noise are secret
    module = network().to(given.device)
    private = bdpvi.make_private(
        module,
        torch.optim.SGD(module.parameters(), lr=1.0),
        loss=F.cross_entropy,
        data=(x[: -given.panel], y[: -given.panel]),
        rate=given.batch / (len(x) - given.panel), max_grad_norm=1.0, noise_multiplier=given.noise,
        settings=DPSGDSettings(
            panel=(x[-given.panel :], y[-given.panel :]),
            records=len(x) - given.panel,  # of MNIST everybody knows how many there are
        ),
    )  # fmt: skip
    print(f"step  minutes  accuracy  worst-case ε at δ = {DELTA:g}")
    begun, printed = time.monotonic(), 0.0
    while private.steps < given.steps:
        private.step()
        minutes = (time.monotonic() - begun) / 60
        if minutes - printed >= 1 or private.steps == given.steps:
            printed = minutes
            row = f"{private.steps:<4}  {minutes:<7.1f}  {accuracy(module, *test):<8.4f}"
            print(f"{row}  {private.worst_case(DELTA).epsilon:.3f}", flush=True)
    print("for the owner only:", private.cost(DELTA), private.exposure(DELTA), sep="\n")


if __name__ == "__main__":
    main()

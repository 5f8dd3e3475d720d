"""MNIST by DP-SGD: accuracy and worst-case ε as training goes on, for several first weights.

    OMP_NUM_THREADS=1 python benchmarks/mnist_runs.py --data FOLDER [--seeds 1 2 3] [--steps 1150]

The network and its settings are those of examples/mnist.py. Seeds are of the first weights only:
batches and noise are secret, so accuracies differ from run to run by some 0.002.
"""

from __future__ import annotations

import argparse
import platform
import runpy
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F

import bdpvi
from bdpvi import datasets

EXAMPLE = Path(__file__).parents[1] / "examples" / "mnist.py"
DELTA, NOISE, BATCH, PANEL = 1e-5, 2.331, 1024, 100
EVERY = 230


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="folder of the four gzipped IDX files")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1150)
    given = parser.parse_args()
    print(f"$ {' '.join(['python', *sys.argv])}")
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}")
    print("seed  steps  accuracy  worst-case ε  seconds")
    example = runpy.run_path(str(EXAMPLE))
    (x, y), (test_x, test_y) = datasets.load_mnist(given.data)
    for seed in given.seeds:
        torch.manual_seed(seed)
        module = example["network"]()
        private = bdpvi.make_private(
            module,
            torch.optim.SGD(module.parameters(), lr=1.0),
            loss=F.cross_entropy,
            data=(x[:-500], y[:-500]),
            panel=(x[-PANEL:], y[-PANEL:]),
            rate=BATCH / (len(x) - 500),
            clip=1.0,
            noise_multiplier=NOISE,
        )
        begun = time.monotonic()
        while private.steps < given.steps:
            private.step()
            if private.steps % EVERY == 0:
                right = example["accuracy"](module, test_x, test_y)
                epsilon = private.worst_case(DELTA).epsilon
                seconds = time.monotonic() - begun
                row = f"{seed:<4}  {private.steps:<5}  {right:<8.4f}  {epsilon:<12.4f}"
                print(f"{row}  {seconds:.0f}", flush=True)


if __name__ == "__main__":
    main()

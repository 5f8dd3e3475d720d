"""Overhead of privacy in a network's training step: bdpvi, Opacus, and plain torch.

    python benchmarks/networks.py [--device cuda]

The convolutional network of examples/mnist.py, a batch of 512, one thread, without and with a
panel of 128. Times are processor time, on a device wall time; medians over rounds in which the
variants take turns. Opacus draws its noise from torch's own generator, bdpvi from the operating
system's.
"""

from __future__ import annotations

import argparse
import runpy
import statistics
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from clock import seconds
from opacus import PrivacyEngine
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bdpvi
from bdpvi.networks import DPSGDSettings

BATCH, PANEL, ROUNDS = 512, 128, 15
network: Callable[[], nn.Module] = runpy.run_path(
    str(Path(__file__).parents[1] / "examples" / "mnist.py")
)["network"]


def plain(x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    module = network().to(x.device)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()

    return step


def opacus(mode: str, x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    module = network().to(x.device)
    made = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=BATCH),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    wrapped, optimizer = made[:2]
    loss = made[2] if mode == "ghost" else F.cross_entropy

    def step() -> None:
        optimizer.zero_grad()
        loss(wrapped(x), y).backward()
        optimizer.step()

    return step


def ours(x: torch.Tensor, y: torch.Tensor, size: int = 0) -> Callable[[], object]:
    module = network().to(x.device)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(size, 1, 28, 28, generator=generator).to(x.device)
    panel = (images, y[:size]) if size else None
    private = bdpvi.make_private(
        module, torch.optim.SGD(module.parameters(), lr=0.1), loss=F.cross_entropy, data=(x, y),
        rate=1.0, max_grad_norm=1.0, noise_multiplier=1.0,
        settings=DPSGDSettings(panel=panel),
    )  # fmt: skip
    return private.step


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    device = parser.parse_args().device
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Opacus has some
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, 1, 28, 28, generator=generator).to(device)
    y = torch.randint(10, (BATCH,), generator=generator).to(device)
    variants = {"plain torch": plain(x, y)}
    for peer in ("functorch", "hooks", "ghost"):
        variants[f"Opacus, {peer}"] = opacus(peer, x, y)
    variants |= {"bdpvi": ours(x, y), "bdpvi with a panel": ours(x, y, PANEL)}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(ROUNDS + 1):
        for name, step in variants.items():
            start = seconds(device)
            step()
            if round_number:  # the first one warms up
                times[name].append(seconds(device) - start)
    print(
        f"torch {torch.__version__}, Opacus {version('opacus')}, {BATCH} + {PANEL} images, {device}"
    )
    first = statistics.median(times["plain torch"])
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"{name:32} {middle * 1e3:6.1f} ms  {middle / first:4.2f}x")


if __name__ == "__main__":
    main()

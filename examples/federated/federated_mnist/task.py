"""Shared by server and clients: the network, the split into clients, local training."""

from __future__ import annotations

from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context
from torch import Tensor, nn
from torch.nn import functional as F

from bdpvi import datasets
from bdpvi.federated.rounds import Rounds

SHARD = 300
"""Images in a shard; two make a client."""

load = lru_cache(maxsize=1)(datasets.mnist.load_mnist)


def network() -> nn.Module:
    """Return the network of examples/mnist.py, 26,010 weights, always the same at first."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten(),
            nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
        )  # fmt: skip


@lru_cache(maxsize=4)
def partition(labels: Tensor, split: str, clients: int) -> Tensor:
    """Return the positions of each client's images, (clients, 600), by a public draw.

    Beyond 100 clients images come again, in new combinations.

    Args:
        labels: digits of all training images, (N,).
        split: "iid", or "shards" of images sorted by digit.
        clients: number of clients.
    """
    if split not in ("iid", "shards"):
        raise ValueError(f"split must be 'iid' or 'shards', got {split!r}")
    generator = torch.Generator().manual_seed(0)
    each = 2 * SHARD
    parts: list[Tensor] = []
    while sum(map(len, parts)) < clients:
        if split == "iid":
            order = torch.randperm(len(labels), generator=generator)
        else:
            shards = labels.argsort(stable=True).split(SHARD)
            mixed = torch.randperm(len(shards), generator=generator).tolist()
            order = torch.cat([shards[i] for i in mixed if len(shards[i]) == SHARD])
        parts.append(order[: len(order) // each * each].view(-1, each))
    return torch.cat(parts)[:clients]


def rounds(context: Context) -> Rounds:
    """Return the settings of all rounds, the same for server and clients."""
    given = context.run_config
    return Rounds(
        clients=int(given["clients"]),
        size=sum(weight.numel() for weight in network().parameters()),
        clip=float(given["clip"]),
        noise_multiplier=float(given["noise"]),
        client_rate=float(given["rate"]),
    )


def train(module: nn.Module, x: Tensor, y: Tensor, epochs: int, batch: int, rate: float) -> None:
    """Train by plain SGD; what protects the client is the clip of its whole update, and the noise.

    Args:
        module: changed in place.
        x, y: a client's images and digits.
        epochs, batch, rate: passes through them, images in a step, learning rate.
    """
    optimizer = torch.optim.SGD(module.parameters(), lr=rate)
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(module(x[part]), y[part]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(arrays: ArrayRecord, x: Tensor, y: Tensor) -> float:
    """Return the fraction of images whose digit the weights find."""
    module = network()
    module.load_state_dict(arrays.to_torch_state_dict())
    found = torch.cat([module(part).argmax(1) for part in x.split(1000)])
    return float((found == y).double().mean())

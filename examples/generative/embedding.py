"""MNIST by one noisy mean embedding, which a generator is trained to match.

    python examples/generative/embedding.py --data FOLDER OF THE FOUR .gz FILES --epsilon 1

Harder, Adamczewski and Park, DP-MERF, AISTATS 2021. The random features of all images, summed digit
by digit, are released once with Gaussian noise. An image moves the sum by a vector of norm 1, so
this is one Gaussian mechanism, charged to the ledger before its noise is drawn. The generator never
sees an image; training it is post-processing. N counts as public. Width of the kernel, codes and
steps were chosen on training images held out (--validate), a choice that ε does not cover.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from _images import (
    CODES,
    DELTA,
    DIGITS,
    PIXELS,
    Generator,
    drawn,
    load,
    one_hot,
    options,
    students,
    timed,
)  # fmt: skip
from torch import Tensor, nn

from bdpvi import Ledger
from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.privacy.gaussian_dp import gaussian_distance
from bdpvi.releases.noisy_sum import NoisySum
from bdpvi.releases.transaction import Before, Plan, Transaction

FEATURES = 3000
WIDTH = 60**0.5
GRID = 2.0**24
BATCH = 500


def frequencies() -> Tensor:
    """Return public ones, (784, 1500)."""
    public = torch.Generator().manual_seed(0)
    return torch.randn(PIXELS, FEATURES // 2, generator=public) / WIDTH


def features(x: Tensor, w: Tensor) -> Tensor:
    """Return random Fourier features (N, 3000) of norm 1 (Rahimi and Recht 2007)."""
    angles = x @ w
    return torch.cat([angles.cos(), angles.sin()], 1) / math.sqrt(w.shape[1])


def embedding(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Return Σ y φ(x)ᵀ, (10, 3000), which an image moves by 1 at most.

    Features are rounded to a grid on which float64 adds them exactly, so that an image moves its
    own share alone. They are cut by 1e-5 before, which is more than rounding can add.
    """
    total = torch.zeros(DIGITS, FEATURES, dtype=torch.float64)
    for part, digits in zip(x.split(5000), y.split(5000), strict=True):
        found = features(part.double(), w.double()) * (1 - 1e-5)
        total.index_add_(0, digits, (found * GRID).round() / GRID)
    return total


@dataclass(frozen=True, eq=False)
class MeanEmbedding:
    """The sum with noise over N/10, (10, 3000)."""

    step: ClassVar[str] = "embedding"

    mechanism: NoisySum
    x: Tensor
    y: Tensor
    w: Tensor

    def plan(self, before: Before) -> Plan[None]:
        """Return the price."""
        event = self.mechanism.event(1)
        return Plan(kind="release", what="a mean embedding", events=(event,), settings=None)

    def draw(self, plan: Plan[None], key: Key) -> Tensor:
        """Add up, with noise."""
        (noisy,) = self.mechanism.noisy([embedding(self.x, self.y, self.w)], key)
        return (noisy * (DIGITS / self.mechanism.records)).float()


def release(x: Tensor, y: Tensor, w: Tensor, epsilon: float, ledger: Ledger) -> Tensor:
    """Charge, then return the noisy sum over N/10, (10, 3000), which may be published."""
    size = DIGITS * FEATURES
    distance = gaussian_distance(epsilon, DELTA, secure.sum_rounding(size))
    mechanism = NoisySum(rate=1, clip=1, noise_multiplier=1 / distance, size=size, records=len(x))
    return Transaction(ledger).perform(MeanEmbedding(mechanism, x, y, w))


def train(generator: nn.Module, target: Tensor, w: Tensor, steps: int) -> list[float]:
    """Match the embedding of drawn images to the target; return the squared distances."""
    optimizer = torch.optim.Adam(generator.parameters(), lr=3e-3)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    digits, losses = one_hot(torch.arange(DIGITS).repeat(BATCH // DIGITS)), []
    for _ in range(steps):
        made = features(generator(torch.randn(BATCH, CODES), digits), w)
        loss = (digits.T @ made * (DIGITS / BATCH) - target).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        slower.step()
        losses.append(loss.item())
    return losses


def main(arguments: Sequence[str] | None = None) -> None:
    """Release, train, score."""
    given = options(__doc__.splitlines()[0], steps=300).parse_args(arguments)
    (x, y), real = load(given)
    with timed():
        ledger, w, generator = Ledger(), frequencies(), Generator()
        losses = train(generator, release(x, y, w, given.epsilon, ledger), w, given.steps)
        print(ledger.worst_case(DELTA))
        print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
        print(students(drawn(generator, given.each), real))


if __name__ == "__main__":
    main()

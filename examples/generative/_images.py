"""Shared by the generative examples: MNIST, a generator, and students of its images."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn
from torch.nn import functional as F

from bdpvi import datasets
from bdpvi.datasets import mnist

DELTA = 1e-5
CODES, DIGITS, PIXELS = 5, 10, 784
PUBLISHED = """published for MNIST: student of a WGAN 0.9364, with no ε that holds (Triastcyn 2020);
G-PATE 0.5631 at ε = 1; a tuned DP-GAN 0.950 at ε = 10"""

Images = tuple[Tensor, Tensor]
"""Pixels in [0, 1], (N, 784), and digits, (N,)."""
Draw = Callable[[Tensor, Tensor], Tensor]
"""From codes (B, k) and digits (B, 10) to pixels."""


class Generator(nn.Module):
    """From codes (B, 5) and digits (B, 10) to pixels (B, 784)."""

    def __init__(self, width: int = 300) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(CODES + DIGITS, width), nn.LayerNorm(width), nn.ReLU(),
            nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.ReLU(),
            nn.Linear(2 * width, PIXELS), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, codes: Tensor, digits: Tensor) -> Tensor:
        """Return images."""
        pixels: Tensor = self.layers(torch.cat([codes, digits], -1))
        return pixels


def options(description: str, steps: int) -> argparse.ArgumentParser:
    """Return the options that all examples have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", help="folder of the four gzipped IDX files; else downloaded")
    parser.add_argument("--epsilon", type=float, default=1.0, help="worst-case, at δ = 1e-5")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--records", type=int, default=60_000, help="training images; public")
    parser.add_argument("--each", type=int, default=500, help="images of each digit to draw")
    parser.add_argument(
        "--validate", action="store_true",
        help="train on 50,000 images, score on the other 10,000: for the choice of settings",
    )  # fmt: skip
    return parser


def load(given: argparse.Namespace) -> tuple[Images, Images]:
    """Return images to train with and to score on."""
    train, test = (
        ((x * mnist.SCALE + mnist.MEAN).clamp(0, 1).flatten(1), y)
        for x, y in datasets.mnist.load_mnist(given.data)
    )
    if given.validate:
        train, test = (train[0][:50_000], train[1][:50_000]), (train[0][50_000:], train[1][50_000:])
    return (train[0][: given.records], train[1][: given.records]), test


def one_hot(digits: Tensor) -> Tensor:
    """Return digits as (N, 10)."""
    return F.one_hot(digits, DIGITS).float()


@torch.no_grad()
def drawn(draw: Draw, each: int, codes: int = CODES) -> Images:
    """Return so many images of each digit, which cost nothing."""
    digits = torch.arange(DIGITS).repeat(each)
    return draw(torch.randn(len(digits), codes), one_hot(digits)), digits


def students(made: Images, real: Images) -> str:
    """Return the accuracy on real images of classifiers that saw drawn ones only."""
    both = LogisticRegression(max_iter=60), MLPClassifier((100,), max_iter=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they stop before the optimum, as it is no better
        for one in both:
            one.fit(*(part.numpy() for part in made))
    scores = [one.score(*(part.numpy() for part in real)) for one in both]
    return f"accuracy of students on real images: logistic {scores[0]:.3f}, MLP {scores[1]:.3f}"


@contextmanager
def timed() -> Iterator[None]:
    """Print how long it took, and what was published."""
    begun = time.process_time()
    yield
    print(f"{time.process_time() - begun:.0f} CPU seconds")
    print(PUBLISHED)

"""MNIST by a Wasserstein GAN whose critic is trained under DP-SGD.

    python examples/generative/wgan.py --data FOLDER OF THE FOUR .gz FILES --epsilon 10

Arjovsky, Chintala and Bottou 2017; thesis of Triastcyn (EPFL 2020), chapter 7. Only the critic sees
images. Its loss for an image x with digit y is f(G(z, y), y) − f(x, y), with z drawn inside the
forward pass: one gradient per image, which `make_private` clips, one sum, one noise. Steps of the
generator and the clipping of the critic's weights see nothing but the critic: they are
post-processing. ε covers the critics of all steps; only the generator is published.
N counts as public, and ε does not cover settings chosen by looking at images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from _images import (
    CODES,
    DELTA,
    DIGITS,
    PIXELS,
    Generator,
    Images,
    drawn,
    load,
    one_hot,
    options,
    students,
    timed,
)  # fmt: skip
from torch import Tensor, nn

import bdpvi
from bdpvi.networks import DPSGDSettings
from bdpvi.networks.private import Private

BOUND = 0.05
"""Of the critic's weights."""
BATCH = 256


class Critic(nn.Module):
    """f of an image with its digit; called, how much higher f is than for one that is drawn."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Linear(PIXELS + DIGITS, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
        self.generator = (generator,)  # in a tuple, it is no part of what is trained and charged

    def score(self, x: Tensor, digits: Tensor) -> Tensor:
        """Return f, (B,)."""
        found: Tensor = self.f(torch.cat([x, digits], -1)).squeeze(-1)
        return found

    def forward(self, x: Tensor, digits: Tensor) -> Tensor:
        """Return f(x, y) − f(G(z, y), y), (B,)."""
        with torch.no_grad():
            made = self.generator[0](torch.randn(len(x), CODES), digits)
        return self.score(x, digits) - self.score(made, digits)


def negated(out: Tensor, _: Tensor) -> Tensor:
    """Return the critic's loss."""
    return -out


def private_critic(
    generator: Generator, data: Images, rate: float, epsilon: float, steps: int
) -> Private:
    """Return an untrained critic that so many steps cost ε."""
    critic = Critic(generator)
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-4)

    @torch.no_grad()
    def clip(*_: Any) -> None:
        for weight in critic.parameters():
            weight.clamp_(-BOUND, BOUND)

    optimizer.register_step_post_hook(clip)  # inside step(), after the noise
    x, y = data
    return bdpvi.make_private(
        critic, optimizer, loss=negated, data=((x, one_hot(y)), y), rate=rate, max_grad_norm=0.5,
        settings=DPSGDSettings(
            epsilon=epsilon, steps=steps, delta=DELTA,
            records=len(x),  # of MNIST everybody knows how many there are
        ),
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Train both in turn, score the generator's images."""
    parser = options(__doc__.splitlines()[0], steps=2000)
    parser.add_argument("--batch", type=int, default=BATCH, help="expected images in a step")
    parser.add_argument("--turns", type=int, default=5, help="critic steps for one of the other")
    given = parser.parse_args(arguments)
    data, real = load(given)
    some = real[0][:1000], one_hot(real[1][:1000])
    with timed():
        generator = Generator()
        private = private_critic(
            generator, data, given.batch / len(data[0]), given.epsilon, given.steps
        )
        critic = private.module
        assert isinstance(critic, Critic)
        optimizer = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
        for done in range(1, given.steps + 1):
            private.step()
            if done % given.turns == 0:
                digits = one_hot(torch.randint(DIGITS, (BATCH,)))
                loss = -critic.score(generator(torch.randn(BATCH, CODES), digits), digits).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if done % max(1, given.steps // 10) == 0:
                with torch.no_grad():
                    print(f"{done} steps: loss {float(-critic(*some).mean()):.3f}", flush=True)
        print(private.worst_case(DELTA))
        print(students(drawn(generator, given.each), real))


if __name__ == "__main__":
    main()

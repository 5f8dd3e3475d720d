"""MNIST by a conditional variational autoencoder under DP-SGD.

    python examples/generative/cvae.py --data FOLDER OF THE FOUR .gz FILES --epsilon 10

Kingma and Welling 2014; Sohn, Lee and Yan 2015. The loss of an image is its own negative ELBO, with
codes drawn inside the forward pass, so `make_private` trains it like any network. ε covers all
weights, but only the decoder is useful to others. Digits are drawn in equal, public shares. N
counts as public, and ε does not cover settings chosen by looking at images.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from _images import DELTA, DIGITS, PIXELS, Images, drawn, load, one_hot, options, students, timed
from torch import Tensor, nn
from torch.nn import functional as F

import bdpvi
from bdpvi.networks import DPSGDSettings
from bdpvi.networks.private import Private

CODES = 10
WIDTH = 128


class CVAE(nn.Module):
    """Encoder and decoder, which both know the digit: about 210,000 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(PIXELS + DIGITS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2 * CODES)
        )
        self.decoder = nn.Sequential(
            nn.Linear(CODES + DIGITS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, PIXELS)
        )

    def forward(self, x: Tensor, digits: Tensor) -> Tensor:
        """Return logits of the pixels and the codes' divergence from the prior, (B, 785)."""
        mean, log_scale = self.encoder(torch.cat([x, digits], -1)).chunk(2, -1)
        codes = mean + log_scale.exp() * torch.randn_like(mean)
        divergence = (mean.square() + (2 * log_scale).exp() - 1) / 2 - log_scale
        logits = self.decoder(torch.cat([codes, digits], -1))
        return torch.cat([logits, divergence.sum(-1, keepdim=True)], -1)

    def draw(self, codes: Tensor, digits: Tensor) -> Tensor:
        """Return images (B, 784)."""
        pixels: Tensor = self.decoder(torch.cat([codes, digits], -1)).sigmoid()
        return pixels


def negative_elbo(out: Tensor, x: Tensor) -> Tensor:
    """Return one number for every image, (B,)."""
    logits, divergence = out[..., :-1], out[..., -1]
    return F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1) + divergence


def private_cvae(data: Images, rate: float, epsilon: float, steps: int) -> Private:
    """Return an untrained one that so many steps cost ε."""
    x, y = data
    module = CVAE()
    return bdpvi.make_private(
        module,
        torch.optim.Adam(module.parameters(), lr=2e-3),
        loss=negative_elbo, data=((x, one_hot(y)), x), rate=rate, max_grad_norm=1.0,
        settings=DPSGDSettings(
            epsilon=epsilon, steps=steps, delta=DELTA,
            records=len(x),  # of MNIST everybody knows how many there are
        ),
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, score the decoder's images, print what may be published with them."""
    parser = options(__doc__.splitlines()[0], steps=1000)
    parser.add_argument("--batch", type=int, default=512, help="expected images in a step")
    given = parser.parse_args(arguments)
    data, real = load(given)
    some = real[0][:1000], one_hot(real[1][:1000])
    with timed():
        private = private_cvae(data, given.batch / len(data[0]), given.epsilon, given.steps)
        module = private.module
        assert isinstance(module, CVAE)
        for done in range(given.steps + 1):
            if done % max(1, given.steps // 10) == 0:
                with torch.no_grad():
                    loss = float(negative_elbo(module(*some), some[0]).mean())
                print(f"{done} steps: loss {loss:.1f} on images to score on", flush=True)
            if done < given.steps:
                private.step()
        print(private.worst_case(DELTA))
        print(students(drawn(module.draw, given.each, CODES), real))


if __name__ == "__main__":
    main()

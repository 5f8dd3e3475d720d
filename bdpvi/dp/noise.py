"""The randomness of private training runs: batches, base noise and privacy noise."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bdpvi._runtime import secure, validate
from bdpvi.dp.scores import Batch
from bdpvi.inference.plan import Plan
from bdpvi.types import Dataset


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run among several side by side.

    Args:
        noise_multiplier: σ, the privacy noise's standard deviation over the clipping norm; 0 for
            none.
        seed: None for anything that is published: privacy noise from the operating system's
            cryptographic generator, batches from a secret seed (subsampling protects nobody from
            an attacker who knows the batches). A number for experiments: all randomness follows
            from it, and two runs with one seed share it.
    """

    noise_multiplier: float
    seed: int | None = None

    def __post_init__(self) -> None:
        validate.non_negative("noise_multiplier", self.noise_multiplier)
        if self.seed is not None:
            validate.positive_int("seed", self.seed, least=0)


class Stream:
    """The randomness of one seed.

    Args:
        seed: as in :class:`Run`.
        steps, rate: of the plan.
    """

    def __init__(self, seed: int | None, steps: int, rate: float) -> None:
        self.secret = seed is None
        self.plan = Plan(
            steps=steps, rate=rate, seed=secrets.randbits(128) if seed is None else seed
        )
        self._generator = self._own(2)

        self._block: Iterator[Tensor] = iter(())
        self._size = 0

    def private(self, size: int) -> Tensor:
        """Return the standard normal privacy noise of the next step, (size,) float64."""
        if size != self._size:
            self._block, self._size = iter(()), size
        noise = next(self._block, None)
        if noise is None:  # drawing for many steps at a time costs a tenth
            self._block = iter(self._normal((_BLOCK, size), self._generator))
            noise = next(self._block)
        return noise

    def draws(self, *shape: int) -> Tensor:
        """Return the standard normals that released samples are made of, float64."""
        return self._normal(shape, self._own(3))

    def _normal(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Return standard normal draws, from ``generator`` only where nothing is secret.

        The secret kind adds four draws of :func:`bdpvi._runtime.secure.standard_normal` and
        halves: who sees the low bits of one draw may learn what it was rounded from (Mironov
        2012), and four make the search hopeless in practice (Holohan and Braghin 2021). It is no
        proof: that would take noise on a grid, such as the discrete Gaussian.
        """
        if self.secret:
            return secure.standard_normal((4, *shape)).sum(0) / 2
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    def base(self, step: int, size: int) -> Tensor:
        """Return the standard normal base noise of a reparameterised draw, (size,) float64."""
        generator = _generator(self.plan.noise_seed(step))
        return torch.randn(size, dtype=torch.float64, generator=generator)

    def _own(self, purpose: int) -> torch.Generator:
        """Return a generator that repeats no stream of the plan, whose purposes are 0 and 1."""
        entropy = np.random.SeedSequence((self.plan.seed, 0, purpose))
        return _generator(int(entropy.generate_state(1, np.uint64)[0] >> np.uint64(1)))


class Streams:
    """The randomness of R runs, made once for all runs that share a seed.

    Args:
        runs: the runs.
        data: what they train on.
        steps, rate: of every run's plan.

    >>> data = Dataset(torch.zeros(100, 1), torch.zeros(100))
    >>> runs = [Run(noise_multiplier=sigma, seed=0) for sigma in (1.0, 2.0)]
    >>> streams = Streams(runs, data, steps=10, rate=0.1)
    >>> noise = streams.private(3)
    >>> noise.shape, bool((noise[1] == 2 * noise[0]).all())
    (torch.Size([2, 3]), True)
    """

    def __init__(self, runs: Sequence[Run], data: Dataset, *, steps: int, rate: float) -> None:
        if not runs:
            raise ValueError("runs has no run")
        if len(data) == 0:
            raise ValueError("data has 0 records; at least 1 is needed")
        self.data, self.rate = data, rate
        keys = [("secret", i) if r.seed is None else ("seed", r.seed) for i, r in enumerate(runs)]
        self.streams = {
            key: Stream(run.seed, steps, rate) for key, run in zip(keys, runs, strict=True)
        }
        position = {key: i for i, key in enumerate(self.streams)}
        self.row = torch.tensor([position[key] for key in keys], device=data.x.device)
        self.of_run = [self.streams[key] for key in keys]
        self.noise_multiplier = data.x.new_tensor([run.noise_multiplier for run in runs])

    def __len__(self) -> int:
        return len(self.of_run)

    def batch(self, step: int) -> Batch | None:
        """Return the Poisson batches of a step, None for all records. A batch may be empty."""
        if self.rate == 1:
            return None
        chosen = [
            stream.plan.batch(step, self.data.ids).nonzero().squeeze(1)
            for stream in self.streams.values()
        ]
        index = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)
        if index.shape[1] == 0:
            index = index.new_zeros(
                len(chosen), 1
            )  # nothing but padding: there is a step all the same
        sizes = torch.tensor([len(c) for c in chosen], device=index.device).unsqueeze(1)
        present = torch.arange(index.shape[1], device=index.device) < sizes
        return Batch(self._spread(index), self._spread(present.to(self.data.x.dtype)))

    def base(self, step: int, size: int) -> Tensor:
        """Return base noise, (R, size)."""
        return self._normal([stream.base(step, size) for stream in self.streams.values()])

    def private(self, size: int) -> Tensor:
        """Return privacy noise of standard deviation σ for each run, (R, size)."""
        noise = self._normal([stream.private(size) for stream in self.streams.values()])
        return self.noise_multiplier.unsqueeze(1) * noise

    def _normal(self, noise: Sequence[Tensor]) -> Tensor:
        return self._spread(torch.stack(list(noise)).to(self.data.x))

    def _spread(self, per_stream: Tensor) -> Tensor:
        return per_stream if len(self.streams) == len(self) else per_stream[self.row]


_BLOCK = 64


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)

"""The randomness of private training runs: batches, base noise and privacy noise."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.host import HOST, onto
from bdpvi.bench.methods.scores import Batch
from bdpvi.datasets.dataset import Dataset
from bdpvi.noise import secure
from bdpvi.noise.batches import BatchPlan
from bdpvi.noise.keys import Key
from bdpvi.noise.whole_normals import WholeNormals
from bdpvi.privacy.cost import Bound
from bdpvi.privacy.sampled_steps import WorstCaseAccountant, guarantee
from bdpvi.releases.noisy_sum import deviation_for


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run among several side by side.

    Args:
        noise_multiplier: σ, the privacy noise's standard deviation over the clipping norm; 0 adds
            none.
        seed: None for anything to be published: noise comes from a secret key, batches from a
            secret seed (subsampling protects nobody from an attacker who knows the batches). A
            number is for experiments: it determines all randomness, so runs with the same seed
            share theirs.
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

    Attributes:
        noise: the privacy noise, drawn sum after sum.
    """

    def __init__(self, seed: int | None, steps: int, rate: float) -> None:
        self.plan = BatchPlan(
            steps=steps, rate=rate, seed=secrets.randbits(128) if seed is None else seed
        )
        self._key = Key.fresh() if seed is None else Key.of_seed(seed).child("runs")
        self.noise = WholeNormals(self._key.child("noise"))

    def draws(self, *shape: int) -> Tensor:
        """Return standard normals, float64, from which a private guide's samples are made."""
        return secure.standard_normal(shape, self._key.child("draws"))

    def base(self, step: int, size: int) -> Tensor:
        """Return the standard normal base noise of a reparameterised draw, (size,) float64."""
        generator = _generator(self.plan.noise_seed(step))
        return torch.randn(size, dtype=torch.float64, generator=generator, device=HOST)


class Streams:
    """The randomness of R runs, made once for all runs that share a seed, and its privacy cost.

    Args:
        runs: the runs.
        data: the records they train on.
        steps, rate: of every run's plan.

    >>> data = Dataset(torch.zeros(100, 1), torch.zeros(100))
    >>> runs = [Run(noise_multiplier=sigma, seed=0) for sigma in (1.0, 2.0)]
    >>> streams = Streams(runs, data, steps=10, rate=0.1)
    >>> noisy = streams.noisy(torch.zeros(2, 3).double(), clip=1.0)
    >>> noisy.shape, torch.allclose(noisy[1], 2 * noisy[0])
    (torch.Size([2, 3]), True)
    >>> from bdpvi.privacy.sampled_steps import PrivacyLossAccountant
    >>> print(streams.prices(PrivacyLossAccountant(), delta=1e-5)[0])
    worst-case DP: ε = 1.685 at δ = 1e-05 (privacy loss distribution, to add or remove one record)
    """

    def __init__(self, runs: Sequence[Run], data: Dataset, *, steps: int, rate: float) -> None:
        if not runs:
            raise ValueError("runs has no run")
        if len(data) == 0 and rate < 1:
            raise ValueError("data has 0 records; at least 1 is needed")
        self.data, self.rate, self._ids = data, rate, data.ids.to(HOST)
        keys = [("secret", i) if r.seed is None else ("seed", r.seed) for i, r in enumerate(runs)]
        self.streams = {
            key: Stream(run.seed, steps, rate) for key, run in zip(keys, runs, strict=True)
        }
        position = {key: i for i, key in enumerate(self.streams)}
        self.row = torch.tensor([position[key] for key in keys], device=data.x.device)
        self.of_run = [self.streams[key] for key in keys]
        self.noise_multiplier = torch.tensor(
            [[run.noise_multiplier] for run in runs], dtype=torch.float64
        )
        self._least, self._coordinates, self._sums = self.noise_multiplier, 0, 0

    def __len__(self) -> int:
        return len(self.of_run)

    def batch(self, step: int) -> Batch | None:
        """Return the Poisson batches of a step, None for all records. A batch may be empty."""
        if self.rate == 1:
            return None
        chosen = [
            stream.plan.batch(step, self._ids).nonzero().squeeze(1)
            for stream in self.streams.values()
        ]
        index = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)
        if index.shape[1] == 0:
            index = index.new_zeros(len(chosen), 1)  # only padding: the step is taken all the same
        sizes = torch.tensor([len(c) for c in chosen], device=HOST).unsqueeze(1)
        present = (torch.arange(index.shape[1], device=HOST) < sizes).to(self.data.x.dtype)
        device = self.data.x.device
        return Batch(self._spread(onto(index, device)), self._spread(onto(present, device)))

    def base(self, step: int, size: int) -> Tensor:
        """Return base noise, (R, size)."""
        noise = torch.stack([stream.base(step, size) for stream in self.streams.values()])
        return self._spread(onto(noise.to(self.data.x.dtype), self.data.x.device))

    def noisy(self, totals: Tensor, clip: float, noise_multiplier: Tensor | None = None) -> Tensor:
        """Charge each run for a sum, and return the noisy sums, (R, n), on public lattices.

        Args:
            totals: (R, n), float64 if there is noise; no record moves a row by more than the clip.
            clip: C.
            noise_multiplier: of this sum, (R, 1), if it differs from the run's.

        Raises:
            ValueError: if totals with noise are of another type.
        """
        size = totals.shape[1]
        multiplier = self.noise_multiplier if noise_multiplier is None else noise_multiplier
        self._least = multiplier if self._sums == 0 else self._least.minimum(multiplier)
        self._sums, self._coordinates = self._sums + 1, self._coordinates + size
        deviation = deviation_for(multiplier, clip, size)
        quiet = deviation == 0
        if bool(quiet.all()):
            return totals
        if totals.dtype != torch.float64:
            raise ValueError(
                f"data is of {totals.dtype}, in which a record moves a sum by more than the clip; "
                "with noise it must be of torch.float64: Dataset(x.double(), y.double())"
            )
        drawn = torch.stack([stream.noise.take(size) for stream in self.streams.values()])
        whole = self._spread(onto(drawn, totals.device))
        positive = onto(deviation + quiet.double(), totals.device)
        noisy = secure.add_whole(totals, positive, whole)
        return noisy.where(onto(~quiet, totals.device), totals).to(totals)

    def prices(self, accountant: WorstCaseAccountant, delta: float) -> list[Bound | None]:
        """Return the guarantee of the sums so far for each run; None without noise.

        Args:
            accountant: for these sums, all taken at the smallest noise multiplier among them.
            delta: δ.
        """
        return [
            guarantee(accountant, least, self.rate, self._sums, delta, self.rounding)
            for least in self._least[:, 0].tolist()
        ]

    @property
    def rounding(self) -> float:
        """Total variation distance between a run's sums so far and exact Gaussian ones."""
        return secure.sum_rounding(self._coordinates)

    def _spread(self, per_stream: Tensor) -> Tensor:
        return per_stream if len(self.streams) == len(self) else per_stream[self.row]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)

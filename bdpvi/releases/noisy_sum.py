"""A noisy clipped sum over a Poisson sample: its sampler, noise and privacy cost in one place."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.host import on_host
from bdpvi.noise import secure
from bdpvi.noise.batches import BatchPlan, Coins
from bdpvi.noise.keys import Key
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.norms import NormCounts
from bdpvi.releases.exact_sums import SLACK

Multiplier = TypeVar("Multiplier", float, Tensor)


@dataclass(frozen=True, kw_only=True)
class NoisySum:
    """The noisy sum over a Poisson batch: the only source of its draws and of its charge.

    The noise is that of :func:`bdpvi.noise.secure.gaussian_sum`, on a public lattice.

    Attributes:
        rate: Poisson sampling rate q.
        clip: C, bound on the norm of each record's contribution.
        noise_multiplier: z; the noise has standard deviation :attr:`deviation`, barely above zC.
        size: n, number of coordinates of a sum.
        records: N, public: means are divided by qN.
        length: actual number of records, secret unless it is N; N by default.
        smallest: the smallest sensitivity for which a cost is computed; C by default.
        seed: None draws batches and noise from the operating system's cryptographic generator. A
            number is for experiments.
        assumptions: assumptions of the guarantee about the source of N, and the records.

    Raises:
        ValueError: naming the argument that is out of range.
    """

    rate: float
    clip: float
    noise_multiplier: float
    size: int
    records: int
    length: int | None = None
    smallest: float | None = None
    seed: int | None = None
    assumptions: tuple[Assumption, ...] = ()

    def __post_init__(self) -> None:
        from bdpvi.releases.clipping import clip_of  # late: settings need none

        validate.rate("rate", self.rate)
        clip_of("clip", self.clip)
        validate.positive("noise_multiplier", self.noise_multiplier)
        validate.positive_int("size", self.size)
        validate.positive_int("records", self.records)
        if self.seed is not None:
            validate.positive_int("seed", self.seed, least=0)
        _ = self.deviation  # refuses more noise than the lattice has room for

    @cached_property
    def _plan(self) -> BatchPlan:
        secret = secrets.randbits(128) if self.seed is None else self.seed
        return BatchPlan(steps=1, rate=self.rate, seed=secret)

    @cached_property
    def deviation(self) -> float:
        """The noise's standard deviation, see :func:`deviation_for`."""
        return deviation_for(self.noise_multiplier, self.clip, self.size, self.smallest)

    @on_host
    def batch(self, step: int) -> Tensor:
        """Return the positions of the records in the batch of ``step``; may be empty."""
        return self._plan.batch_ids(step, self.records if self.length is None else self.length)

    def coins(self, step: int) -> Coins:
        """Return the coins of ``step`` for records in parts: :meth:`.BatchPlan.coins`."""
        return self._plan.coins(step)

    def seed_of(self, step: int) -> int:
        """Return the seed for other randomness in ``step``, such as dropout."""
        return self._plan.noise_seed(step)

    def key_of(self, *labels: str | int) -> Key:
        """Return a fresh key for one sum's noise; in an experiment, the key with these labels."""
        return Key.fresh() if self.seed is None else Key.of_seed(self.seed).child("noise", *labels)

    @on_host
    def noisy(self, totals: Sequence[Tensor], key: Key) -> list[Tensor]:
        """Return one sum, given in parts of ``size`` coordinates in total, with noise, float64.

        Args:
            totals: the parts, float64 of any shapes: :func:`bdpvi.releases.clipping.clipped_sum`
                bounds what a record moves them by.
            key: see :meth:`key_of`.

        Raises:
            ValueError: if the number of coordinates is not the one charged, or a total is rounded
                to another type.
        """
        if other := {total.dtype for total in totals} - {torch.float64}:
            raise ValueError(
                f"totals are summed in {other.pop()}, where rounding moves them by "
                "more than was charged; sum them in float64"
            )
        found = sum(total.numel() for total in totals)
        if found != self.size:
            raise ValueError(f"size={self.size} coordinates are charged, got {found}")
        whole = torch.cat([total.detach().reshape(-1) for total in totals])
        noisy = secure.gaussian_sum(whole, self.deviation, key)
        parts = noisy.split([total.numel() for total in totals])
        return [part.view_as(total) for part, total in zip(parts, totals, strict=True)]

    def means(self, totals: Sequence[Tensor], step: int) -> list[Tensor]:
        """Return the noisy sum over qN; see :meth:`noisy`."""
        noisy = self.noisy(totals, self.key_of(step))
        return [total.div_(self.rate * self.records) for total in noisy]

    def event(self, steps: int, norms: NormCounts | None = None) -> SampledGaussian:
        """Return the event of ``steps`` sums, for an accountant.

        Args:
            steps: number of sums.
            norms: a panel's norms, see :class:`~bdpvi.privacy.events.SampledGaussian`.
        """
        return SampledGaussian(
            noise_multiplier=self.noise_multiplier,
            rate=self.rate,
            steps=steps,
            rounding=steps * secure.sum_rounding(self.size),
            norms=norms,
        )

    def settings(self) -> dict[str, Any]:
        """Return the settings that a resumed run must share, apart from the sizes of weights."""
        left_out = ("size", "assumptions")
        return {name: value for name, value in asdict(self).items() if name not in left_out}


@on_host
def noisy_total(
    total: Tensor, bound: float, noise_multiplier: float, key: Key
) -> tuple[Tensor, float]:
    """Return a sum over all records with noise, and the noise's standard deviation.

    Args:
        total: the sum, (n,), of parts that :func:`bdpvi.releases.exact_sums.exact_sum` added.
        bound: the longest contribution of a record.
        noise_multiplier: z.
        key: source of the noise.

    >>> noisy_total(torch.zeros(3).double(), 2.0, 0.5, Key.of_seed(0))[1] >= 1.0
    True
    """
    mechanism = NoisySum(
        rate=1.0,
        clip=bound * (1 + SLACK),
        noise_multiplier=noise_multiplier,
        size=len(total),
        records=1,
    )
    (found,) = mechanism.noisy([total], key)
    return found, mechanism.deviation


@on_host
def deviation_for(
    noise_multiplier: Multiplier,
    clip: float | Multiplier,
    size: int,
    smallest: float | None = None,
) -> Multiplier:
    """Return the standard deviation that keeps a noise multiplier valid after sums are rounded.

    Rounding to the lattice moves neighbours apart by up to 2√n g, with g about 2⁻³³ of the
    deviation (:func:`bdpvi.noise.secure.sum_slack`). With the deviation zC(1 + 2√n g/c) the
    noise multiplier is still zC/‖v‖ for every contribution v of norm c to C.

    Args:
        noise_multiplier: z, not negative.
        clip, size, smallest: C, n and c.

    Raises:
        ValueError: if the lattice is too coarse, which begins at z√n of about 10⁹.

    >>> deviation_for(2.0, 0.5, 1_000_000) - 1.0 < 1e-6
    True
    """
    most = clip * noise_multiplier
    share = secure.sum_slack(most, size) / (clip if smallest is None else smallest)
    worst = float(torch.as_tensor(share).max())
    if worst > _SHARE:
        raise ValueError(
            f"noise_multiplier is too large for {size} coordinates: rounding alone would move the "
            f"sum by {worst:.2g} of what is bounded; use less noise"
        )
    return most / (1 - share)


_SHARE = 0.5

"""One step of DP-SGD as a mechanism: sampler, noise and price from one place."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from bdpvi._runtime import secure, validate
from bdpvi.accounting.worst_case import PrivacyLossAccountant
from bdpvi.inference.plan import Plan
from bdpvi.types import Budget


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """The noisy sum over a Poisson batch: what is drawn and what is charged come from here alone.

    Attributes:
        rate: Poisson sampling rate q.
        clip: C, bound on the norm of each record's gradient.
        noise_multiplier: z; the noise has standard deviation zC.
        records: N, public: the sum is divided by qN.
        length: number of records there are, secret unless it is N; N by default.
        seed: None draws batches from a secret seed and noise from the operating system's
            cryptographic generator. A number is for experiments.
    """

    rate: float
    clip: float
    noise_multiplier: float
    records: int
    length: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        validate.rate("rate", self.rate)
        validate.positive("clip", self.clip)
        validate.positive("noise_multiplier", self.noise_multiplier)
        validate.positive_int("records", self.records)
        if self.seed is not None:
            validate.positive_int("seed", self.seed, least=0)

    @cached_property
    def _plan(self) -> Plan:
        secret = secrets.randbits(128) if self.seed is None else self.seed
        return Plan(steps=1, rate=self.rate, seed=secret)

    def batch(self, step: int) -> Tensor:
        """Return the positions of the records in the batch of ``step``, perhaps none."""
        return self._plan.chosen(step, self.records if self.length is None else self.length)

    def seed_of(self, step: int) -> int:
        """Return the seed of what ``step`` draws besides: dropout, and noise if it is seeded."""
        return self._plan.noise_seed(step)

    def mean(self, total: Tensor) -> Tensor:
        """Return (total + N(0, z²C²)) / qN, in float64.

        The noisy sum is rounded to a public lattice, so that its low bits do not betray the sum
        (:mod:`bdpvi._runtime.secure`). What the arithmetic leaves beyond that is not charged: a
        total variation of about 1e-12 a weight and step where the sum is some deviations long (over
        a long run of a large network no δ could pay for the bound), and the rounding of the sum
        itself, which the network's own type decides.
        """
        deviation = self.noise_multiplier * self.clip
        flat = total.detach().cpu().double().flatten()
        noisy = with_noise(flat, deviation, seeded=self.seed is not None)
        return noisy.view(total.shape) / (self.rate * self.records)

    def settings(self) -> dict[str, Any]:
        """Return what a resumed run has to agree with."""
        return asdict(self)


def with_noise(values: Tensor, deviation: float, *, seeded: bool) -> Tensor:
    """Return values plus N(0, deviation²), rounded to a public lattice, (n,).

    Args:
        values: float64, (n,).
        deviation: standard deviation of the noise.
        seeded: whether it comes from torch's generator, for experiments, or from the operating
            system's.
    """
    noisy = secure.sample(
        Independent(Normal(values, torch.full_like(values, deviation)), 1),
        generator=torch.default_generator if seeded else None,
        lattice=secure.Lattice.of(deviation / 32),
    )
    return noisy[0]


def affordable(mechanism: Mechanism, budget: Budget) -> int:
    """Return the largest number of steps whose worst-case ε is within the budget.

    It can be 0; beyond 2²⁴ it is not looked for.

    >>> one = Mechanism(rate=0.01, clip=1.0, noise_multiplier=1.0, records=1000)
    >>> steps = affordable(one, Budget(1.0, 1e-5))
    >>> epsilons = [PrivacyLossAccountant().epsilon(1.0, 0.01, t, 1e-5) for t in (steps, steps + 1)]
    >>> epsilons[0] <= 1.0 < epsilons[1]
    True
    """

    def within(steps: int) -> bool:
        z, q = mechanism.noise_multiplier, mechanism.rate
        return PrivacyLossAccountant().epsilon(z, q, steps, budget.delta) <= budget.epsilon

    low, high = 0, 1
    while high <= _MOST and within(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


_MOST = 2**24

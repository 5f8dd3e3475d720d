"""Updates of federated clients: what is fixed for all rounds, clipping, messages, results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bdpvi._runtime import secure, validate
from bdpvi._runtime.keys import Key
from bdpvi.accounting.events import SampledGaussian
from bdpvi.accounting.rounds import PUBLIC, RoundEvent, check_records
from bdpvi.accounting.worst_case import PrivacyLossAccountant, calibrate
from bdpvi.dp.mechanism import NoisySum

_BELOW = 1 - 2.0**-40
"""Clipped norms stay this far below the clip, so that rounding takes none above it."""


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """What is the same in all rounds. All of it is public but the coins and the noise.

    Attributes:
        clients: N, all that may be asked, fixed beforehand; they are numbered from 0.
        size: number of weights in an update.
        clip: C, bound on the L2 norm of a client's whole update. Weights of clients, if any, are
            part of the update: they are clipped with it.
        noise_multiplier: z; the sum of a round has noise of standard deviation zC.
        client_rate: q; each client takes part in a round by its own secret coin. 1 asks everybody.
        record_rate, record_clip: where clients take each record by its own coin, and clip what it
            adds to the update; in the units of ``clip``. See
            :class:`~bdpvi.accounting.rounds.RoundEvent`.
        noise_shares: None, and the server adds the noise; or K, and every client that takes part
            adds a share of variance z²C²/K itself (:meth:`share`). A round with fewer than K
            valid messages is then not released.
        seed: None: coins from a secret seed, noise from the operating system's cryptographic
            generator. A number makes an experiment, which repeats and protects nobody.

    Raises:
        ValueError: naming the argument that is out of range.

    >>> rounds = Rounds(clients=100, size=3, clip=1.0, noise_multiplier=2.0, client_rate=0.5)
    >>> rounds.clip_update(torch.tensor([0.0, 3.0, 4.0])).round(decimals=6).tolist()
    [0.0, 0.6, 0.8]
    """

    clients: int
    size: int
    clip: float
    noise_multiplier: float
    client_rate: float = 1.0
    record_rate: float | None = None
    record_clip: float | None = None
    noise_shares: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        validate.positive_int("clients", self.clients)
        validate.positive_int("size", self.size)
        validate.rate("client_rate", self.client_rate)
        check_records(validate.positive("clip", self.clip), self.record_rate, self.record_clip)
        if self.noise_shares is not None:
            validate.positive_int("noise_shares", self.noise_shares)
        _ = self.mechanism  # refuses what else is out of range

    @classmethod
    def calibrated(
        cls, *, epsilon: float, delta: float, rounds: int, client_rate: float = 1.0, **settings: Any
    ) -> Rounds:
        """Return settings with the least noise with which ``rounds`` cost a client at most ε.

        In the worst case, for the public: to add or remove a client, or with noise shares to set
        its contribution to zero.

        Args:
            epsilon, delta: ε and δ.
            rounds: T; a ledger with ``Budget(epsilon, delta)`` holds a federation there.
            client_rate: q.
            settings: the other attributes.

        Raises:
            ValueError: naming the argument, or if no noise reaches ε.

        >>> found = Rounds.calibrated(epsilon=8.0, delta=1e-3, rounds=60, clients=100, size=10,
        ...                           clip=1.0)
        >>> round(found.noise_multiplier, 2)
        3.73
        """
        start = cls(noise_multiplier=1.0, client_rate=client_rate, **settings)
        noise = calibrate(
            PrivacyLossAccountant(),
            epsilon=epsilon,
            delta=delta,
            rate=start.priced_rate,
            steps=rounds,
        )
        return replace(start, noise_multiplier=noise)

    @property
    def priced_rate(self) -> float:
        """The rate that a client's ε for the public is computed at: q, or 1 with noise shares."""
        return self.event(1).client(PUBLIC).rate

    @cached_property
    def mechanism(self) -> NoisySum:
        """Coins, noise and divisor of a round's sum."""
        return NoisySum(
            rate=self.client_rate,
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            size=self.size,
            records=self.clients,
            smallest=self.record_clip,
            seed=self.seed,
        )

    def event(self, rounds: int) -> RoundEvent:
        """Return the event of so many rounds."""
        messages = 1 if self.noise_shares is None else self.clients
        return RoundEvent(
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            client_rate=self.client_rate,
            rounds=rounds,
            record_rate=self.record_rate,
            record_clip=self.record_clip,
            noise_shares=self.noise_shares,
            rounding=messages * self.mechanism.event(rounds).rounding,
        )

    def record_event(self) -> SampledGaussian:
        """Return a round as it is for a record of a client, to the public.

        Where ``record_clip`` is None the client's clip bounds a record too: it moves an update of
        norm C to another.
        """
        one = self.event(1)
        if self.record_clip is not None:
            return one.instance(PUBLIC)
        return SampledGaussian(
            noise_multiplier=self.noise_multiplier / 2,
            presence=self.client_rate,
            rounding=one.rounding,
        )

    def clip_update(self, update: Tensor) -> Tensor:
        """Return the update as (size,) float64, shortened to norm C if it is longer.

        Raises:
            ValueError: if it has another number of weights, or one is not finite.
        """
        flat = self.checked(update)
        norm = float(torch.linalg.vector_norm(flat))
        if norm > self.clip * _BELOW:
            # Two steps, as the squares of very large numbers overflow.
            flat = flat / flat.abs().max()
            flat = flat * (self.clip * _BELOW / float(torch.linalg.vector_norm(flat)))
        return flat

    def share(self, update: Tensor, key: Key | None = None) -> Tensor:
        """Return the clipped update with this client's own share of the noise, to be sent.

        It is on the lattice of :func:`bdpvi._runtime.secure.gaussian_sum`.

        Args:
            update: as for :meth:`clip_update`.
            key: of an experiment's message, and of it alone; by default a fresh, secret one.

        Raises:
            ValueError: as :meth:`clip_update`, or if ``noise_shares`` is None.
        """
        shared = self.shared
        return shared.noisy([self.clip_update(update)], key or Key.fresh())[0]

    @cached_property
    def shared(self) -> NoisySum:
        """The noise of one client's message.

        Raises:
            ValueError: if ``noise_shares`` is None.
        """
        if self.noise_shares is None:
            raise ValueError("noise_shares is None: the server adds the noise, send the update")
        own = self.noise_multiplier / self.noise_shares**0.5
        return replace(self.mechanism, noise_multiplier=own)

    def together(self, total: Tensor) -> Tensor:
        """Return the sum of messages with shares without what adding them up rounded.

        All are on one lattice, so their sum is: nothing but it is left of the single messages.
        """
        return secure.on_lattice(total, self.shared.deviation)

    def checked(self, update: Tensor) -> Tensor:
        """Return the update as (size,) float64, or raise ValueError as :meth:`clip_update`."""
        flat = update.detach().cpu().double().flatten()
        if len(flat) != self.size:
            raise ValueError(f"update must have size={self.size} weights, got {len(flat)}")
        return validate.finite("update", flat)


@dataclass(frozen=True, eq=False)
class Message:
    """A client's answer to a round; who sent it is for the transport to make sure.

    Attributes:
        client: its number.
        round: of the round that it answers.
        update: any shape with ``Rounds.size`` weights; None if the client was lost.
    """

    client: int
    round: int
    update: Tensor | None


@dataclass(frozen=True, eq=False)
class Released:
    """What a round gave. ``update`` alone may be published; the rest says who took part.

    Attributes:
        round: its number.
        update: (Σ clipped updates + noise) / qN, (size,) float64; None if too few shares of the
            noise came.
        norms: by client whose message counted, of the clipped update over C (without noise shares).
        clipped: clients whose update was longer than C.
        refused: by client what was wrong with each message that did not count; clients that were
            asked and sent nothing are in it too.
    """

    round: int
    update: Tensor | None
    norms: Mapping[int, float] = field(default_factory=dict)
    clipped: tuple[int, ...] = ()
    refused: Mapping[int, str] = field(default_factory=dict)

    def distances(self, clients: int) -> Tensor:
        """Return for :class:`~bdpvi.accounting.events.NormCounts` how far each client moved the
        sum, over C, (clients,): 1 where that is not known."""
        found = torch.ones(clients, dtype=torch.float64)
        for client, norm in self.norms.items():
            found[client] = norm
        return found

"""Rounds of federated learning: their fixed settings, and their privacy cost by unit and observer.

In a round every client's whole update is clipped to norm C, the clipped updates are summed, and
noise of standard deviation zC is added to the sum, however many clients took part. So adding or
removing a client moves the sum by at most C. A record moves its client's update by at most its own
clip, and the client's clip, a projection onto a ball, never increases distances: the same noise
protects records too. The guarantee depends on the observer, who may know some of the coins and
noise shares.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi._ground.types import Relation
from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.privacy.events import UNITS, SampledGaussian
from bdpvi.privacy.norms import NormCounts
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant, calibrate
from bdpvi.releases.clipping import clip_of, clipped_sum
from bdpvi.releases.noisy_sum import NoisySum

_SQUARED = 1e100
"""Numbers whose squares have finite sums."""


@dataclass(frozen=True)
class Observer:
    """An adversary who observes the rounds, and what it knows of their randomness.

    Attributes:
        name: the name in reports.
        sees_participants: whether it knows who took part in each round.
        sees_updates: whether it reads single messages, each protected only by its own noise.
        known_shares: number of clients whose noise shares it knows.

    Raises:
        ValueError: if it sees updates but not who sent them, or ``known_shares`` is out of range.

    >>> from dataclasses import replace
    >>> replace(SERVER_OF_SUMS, known_shares=3).name
    'the server, secure aggregation'
    """

    name: str
    sees_participants: bool = False
    sees_updates: bool = False
    known_shares: int = 0

    def __post_init__(self) -> None:
        validate.positive_int("known_shares", self.known_shares, least=0)
        if self.sees_updates and not self.sees_participants:
            raise ValueError(
                "sees_updates=True needs sees_participants=True: an observer of the messages can "
                "count them, and they have no server noise"
            )


PUBLIC = Observer("the public")
"""Sees the released update of every round. The server is trusted."""
SERVER_OF_SUMS = Observer("the server, secure aggregation", sees_participants=True)
"""Sees the sum of messages and who took part. If clients collude with it, it knows their noise
shares: set ``known_shares`` to the number of colluding clients."""
SERVER_OF_UPDATES = Observer("the server, plain updates", True, True)
"""Sees every message."""
OTHER_CLIENT = Observer("another client", known_shares=1)
"""Sees the released updates, and knows its own share of the noise where clients add it."""
OBSERVERS = (PUBLIC, SERVER_OF_SUMS, SERVER_OF_UPDATES, OTHER_CLIENT)


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Settings shared by all rounds. All of them are public; only coins and noise are secret.

    Attributes:
        clients: N, number of clients that may be asked, fixed beforehand; numbered from 0.
        size: number of weights in an update.
        clip: C, bound on the L2 norm of a client's whole update. If clients are weighted, weight
            the update before it is clipped.
        noise_multiplier: z; the sum of a round gets noise of standard deviation zC.
        client_rate: q, probability that a client takes part in a round, by its own secret coin.
        record_rate: probability that a record enters its client's update, by its own coin. None
            where no record's influence is bounded.
        record_clip: bound on how far a record moves its client's update, in the units of ``clip``.
        noise_shares: None if the server adds the noise. K if every participating client adds a
            share of variance z²C²/K itself (:meth:`share`); a round with fewer than K valid
            messages is then not released.
        seed: None for coins from a secret seed and noise from the operating system's cryptographic
            generator. A number makes an experiment, which repeats and protects nobody.

    Raises:
        ValueError: naming the argument that is out of range.

    >>> import torch
    >>> rounds = Rounds(clients=100, size=3, clip=1.0, noise_multiplier=2.0, client_rate=0.5)
    >>> rounds.clip_update(torch.tensor([0.0, 3.0, 4.0])).round(decimals=5).tolist()
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
        check_records(clip_of("clip", self.clip), self.record_rate, self.record_clip)
        if self.noise_shares is not None:
            validate.positive_int("noise_shares", self.noise_shares)
        _ = self.mechanism  # refuses other arguments out of range

    @classmethod
    def calibrated(
        cls, *, epsilon: float, delta: float, rounds: int, client_rate: float = 1.0, **settings: Any
    ) -> Rounds:
        """Return settings with the least noise at which ``rounds`` cost a client at most ε.

        ε is worst-case, towards the public, for adding or removing a client; with noise shares, for
        setting its contribution to zero.

        Args:
            epsilon, delta: ε and δ.
            rounds: T; a ledger with ``Budget(epsilon, delta)`` enforces this limit.
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
            rate=start.event(1).rate,
            steps=rounds,
        )
        return replace(start, noise_multiplier=noise)

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

    def event(
        self,
        rounds: int,
        unit: str = "client",
        observer: Observer = PUBLIC,
        norms: NormCounts | None = None,
    ) -> SampledGaussian:
        """Return ``rounds`` rounds as an event for one unit and one observer.

        **Client.** For an observer who does not know the coins the rate is q. An observer who sees
        who took part would notice a removed client, so its contribution is set to zero instead, at
        rate 1 in the rounds that it takes part in, each with probability q. The same holds for
        every observer where clients add the noise: the amount of noise in a round, and whether the
        round is released, reveal how many took part.

        **Record.** For every observer the rate is ``record_rate`` in the rounds that its client
        takes part in, each with probability q: participation may show in the client's other
        records, which share its coin. (The product of both rates would be valid only if every
        record had its own coin; here the true δ can be a hundred times the δ computed from it.)

        Args:
            rounds: number of rounds charged.
            unit: "client" or "record".
            observer: who observes the rounds.
            norms: for each round, the norms of all clients' clipped updates over C, or of panel
                records' distances over ``record_clip``; 1 where unknown, as for a client that was
                not asked. None gives only the worst case.

        Raises:
            ValueError: if the observer knows all of the noise, no record's influence is bounded, or
                ``norms`` has another number of rounds.

        >>> made = Rounds(clients=9, size=2, clip=1.0, noise_multiplier=1.0, client_rate=0.1,
        ...               record_rate=0.5, record_clip=0.25)
        >>> client, record = made.event(100), made.event(100, "record")
        >>> client.noise_multiplier, client.rate, record.noise_multiplier, record.rate
        (1.0, 0.1, 4.0, 0.5)
        """
        # Where clients add the noise, a client that leaves takes its noise share away.
        seen = observer.sees_participants or self.noise_shares is not None
        rate, size = (1.0 if seen else self.client_rate), 1.0
        if validate.choice("unit", unit, UNITS) == "record":
            if self.record_rate is None or self.record_clip is None:
                raise ValueError(
                    "record_rate and record_clip are None: the influence of a record on its "
                    "client's update is not bounded. Clip records in the client, or ask for "
                    "unit='client'"
                )
            seen, rate, size = True, self.record_rate, self.record_clip / self.clip
        zeroed = seen and unit == "client"
        messages = 1 if self.noise_shares is None else self.clients
        return SampledGaussian(
            noise_multiplier=self.noise_multiplier * self.unknown_noise(observer) ** 0.5 / size,
            rate=rate,
            steps=rounds,
            presence=self.client_rate if seen else 1.0,
            relation=Relation.ZERO_OUT if zeroed else Relation.ADD_OR_REMOVE,
            unit=unit,
            rounding=messages * self.mechanism.event(rounds).rounding,
            norms=norms,
        )

    def record_event(self) -> SampledGaussian:
        """Return a round as an event for one record of a client, towards the public.

        Where ``record_clip`` is None the client's clip bounds a record too: it moves an update of
        norm C to another.
        """
        if self.record_clip is not None:
            return self.event(1, "record")
        return SampledGaussian(
            noise_multiplier=self.noise_multiplier / 2,
            presence=self.client_rate,
            rounding=self.event(1).rounding,
        )

    def unknown_noise(self, observer: Observer) -> float:
        """Return the fraction of the noise's variance that the observer does not know.

        Raises:
            ValueError: if it knows all of the noise.
        """
        shares = self.noise_shares
        if shares is None and not observer.sees_participants:
            return 1.0
        if shares is None:
            raise ValueError(
                f"observer={observer.name!r} adds all of the noise and so knows it: there is no "
                "guarantee against it. Let clients add the noise: noise_shares"
            )
        left = 1 if observer.sees_updates else shares - observer.known_shares
        if left < 1:
            raise ValueError(
                f"observer={observer.name!r} knows {observer.known_shares} of "
                f"{several(shares, 'share')} of the noise, so nothing hides the sum from it. Use "
                "more shares"
            )
        return left / shares

    def clip_update(self, update: Tensor) -> Tensor:
        """Return the update as (size,) float64, shortened to norm C if it is longer.

        Raises:
            ValueError: if it has another number of weights, or one is not finite.
        """
        flat = self.check_update(update)
        longest = float(flat.abs().max())
        if longest > _SQUARED:  # the squares of larger numbers overflow
            flat = flat * (_SQUARED / longest)
        return clipped_sum([flat.unsqueeze(0)], self.clip)[0]

    def share(self, update: Tensor, key: Key | None = None) -> Tensor:
        """Return the clipped update with this client's noise share, to be sent.

        It is on the lattice of :func:`bdpvi.noise.secure.gaussian_sum`.

        Args:
            update: as for :meth:`clip_update`.
            key: in an experiment, a key for this message only; by default a fresh, secret one.

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
        """Return a sum of messages with noise shares, with its rounding errors removed.

        All messages are on one lattice, so rounding the sum to it reveals only the exact sum.
        """
        return secure.on_lattice(total, self.shared.deviation)

    def check_update(self, update: Tensor) -> Tensor:
        """Return the update as (size,) float64, or raise ValueError as :meth:`clip_update`."""
        flat = update.detach().cpu().double().flatten()
        if len(flat) != self.size:
            raise ValueError(f"update must have size={self.size} weights, got {len(flat)}")
        return validate.finite("update", flat)


def check_records(clip: float, record_rate: float | None, record_clip: float | None) -> None:
    """Raise ValueError unless both or neither are given and ``record_clip`` is at most ``clip``."""
    if (record_rate is None) != (record_clip is None):
        raise ValueError(
            f"record_rate={record_rate!r} and record_clip={record_clip!r}: give both or neither"
        )
    if record_rate is None or record_clip is None:
        return
    validate.rate("record_rate", record_rate)
    if clip_of("record_clip", record_clip) > clip:
        raise ValueError(
            f"record_clip={record_clip!r} is above clip={clip!r}, the bound on a whole update; "
            "choose a smaller one"
        )

"""Rounds of federated learning: what is fixed for all of them, and what they cost whom.

In a round every client's whole update is clipped to norm C, the clipped updates are summed, and the
sum gets noise of standard deviation zC, however many took part. So adding or removing a client
moves the sum by at most C. A record moves its client's update by at most its own clip, and the
client's clip, a projection onto a ball, moves no two points apart: the same noise protects records
too. What it is worth depends on who looks: on the coins and the shares of the noise that this
observer knows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bdpvi._runtime import secure, validate
from bdpvi._runtime.keys import Key
from bdpvi._runtime.outputs import several
from bdpvi.accounting.events import UNITS, NormCounts, SampledGaussian
from bdpvi.accounting.worst_case import PrivacyLossAccountant, calibrate
from bdpvi.dp.mechanism import BELOW, NoisySum
from bdpvi.types import Relation


@dataclass(frozen=True)
class Observer:
    """Who looks at the rounds, and what of their randomness they know.

    Attributes:
        name: in reports.
        sees_participants: whether it knows who took part in each round.
        sees_updates: whether it reads single messages, each of which has its own noise alone.
        known_shares: how many clients' shares of the noise it knows, besides.

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
"""Sees the sum of messages and who took part; ``known_shares`` are those of clients it is in league
with."""
SERVER_OF_UPDATES = Observer("the server, plain updates", True, True)
"""Sees every message."""
OTHER_CLIENT = Observer("another client", known_shares=1)
"""Sees the released updates, and knows its own share of the noise where clients add it."""
OBSERVERS = (PUBLIC, SERVER_OF_SUMS, SERVER_OF_UPDATES, OTHER_CLIENT)


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
        record_rate: with which each record enters its client's update, by its own coin. None where
            no record's influence is bounded.
        record_clip: how far a record moves its client's update at most, in the units of ``clip``.
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
        """Return so many rounds as one unit has them before one observer.

        **Client.** For an observer who does not know the coins the rate is q. To one who sees who
        took part, removing a client would be visible: its contribution is set to zero instead, at
        rate 1 in the rounds that it takes part in, each with probability q. So it is for everybody
        where clients add the noise: how much noise a round has, and whether it is released at all,
        tells how many took part.

        **Record.** The rate is ``record_rate`` in the rounds that its client takes part in, each
        with probability q, for all observers: also one who is not told who took part may see it
        from the client's other records, which share its coin. (The product of both rates would need
        a coin of its own for every record; here δ can be a hundred times what it promises.)

        Args:
            rounds: how many were charged.
            unit: "client" or "record".
            observer: who looks.
            norms: round by round: of all clients' clipped updates over C, or of panel records'
                distances over ``record_clip``; 1 where they are not known, as of a client that was
                not asked. None knows the worst case alone.

        Raises:
            ValueError: if the observer knows all of the noise, no record's influence is bounded, or
                ``norms`` has other rounds.

        >>> made = Rounds(clients=9, size=2, clip=1.0, noise_multiplier=1.0, client_rate=0.1,
        ...               record_rate=0.5, record_clip=0.25)
        >>> client, record = made.event(100), made.event(100, "record")
        >>> client.noise_multiplier, client.rate, record.noise_multiplier, record.rate
        (1.0, 0.1, 4.0, 0.5)
        """
        # Where clients add the noise, one that leaves takes its share of it away.
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
        """Return a round as it is for a record of a client, to the public.

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
            ValueError: if there is none.
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
        flat = self.checked(update)
        norm = float(torch.linalg.vector_norm(flat))
        if norm > self.clip * BELOW:
            # Two steps, as the squares of very large numbers overflow.
            flat = flat / flat.abs().max()
            flat = flat * (self.clip * BELOW / float(torch.linalg.vector_norm(flat)))
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


def check_records(clip: float, record_rate: float | None, record_clip: float | None) -> None:
    """Raise ValueError unless both are given or neither, and the record's clip is the smaller."""
    if (record_rate is None) != (record_clip is None):
        raise ValueError(
            f"record_rate={record_rate!r} and record_clip={record_clip!r}: give both or neither"
        )
    if record_rate is None or record_clip is None:
        return
    validate.rate("record_rate", record_rate)
    if validate.positive("record_clip", record_clip) > clip:
        raise ValueError(
            f"record_clip={record_clip!r} is above clip={clip!r}, the bound on a whole update; "
            "choose a smaller one"
        )

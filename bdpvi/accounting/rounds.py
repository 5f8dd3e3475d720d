"""Rounds of federated learning as events: one noise, seen by clients and by single records.

In a round every client's whole update is clipped to norm C, the clipped updates are summed, and the
sum gets noise of standard deviation zC, however many took part. So adding or removing a client
moves the sum by at most C. A record moves its client's update by at most its own clip, and the
client's clip, a projection onto a ball, moves no two points apart: the same noise protects records
too. What it is worth depends on who looks: on the coins and the shares of the noise that this
observer knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bdpvi._runtime import validate
from bdpvi.accounting.events import UNITS, NormCounts, SampledGaussian
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
                "sees_updates=True needs sees_participants=True: whoever reads the messages counts "
                "them, and no noise of the server is on them"
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
class RoundEvent:
    """Several rounds, all alike, with a view for each unit and observer.

    Attributes:
        clip: C, bound on the L2 norm of a client's whole update.
        noise_multiplier: z; the sum has noise of standard deviation zC.
        client_rate: q, with which each client takes part in a round, by its own coin.
        rounds: how many rounds were charged.
        record_rate: with which each record enters its client's update, by its own coin. None where
            no record's influence is bounded.
        record_clip: how far a record moves its client's update at most, in the units of ``clip``.
        noise_shares: K, if each client that takes part adds noise of variance z²C²/K; None if the
            server adds it all.
        rounding: total variation between all noisy sums, or messages, and exact ones.

    Raises:
        ValueError: if an argument is out of range.

    >>> event = RoundEvent(clip=1.0, noise_multiplier=1.0, client_rate=0.1, rounds=100,
    ...                    record_rate=0.5, record_clip=0.25)
    >>> client, record = event.client(PUBLIC), event.instance(PUBLIC)
    >>> client.noise_multiplier, client.rate, record.noise_multiplier, record.rate
    (1.0, 0.1, 4.0, 0.5)
    """

    clip: float
    noise_multiplier: float
    client_rate: float
    rounds: int
    record_rate: float | None = None
    record_clip: float | None = None
    noise_shares: int | None = None
    rounding: float = 0.0

    def __post_init__(self) -> None:
        validate.positive("clip", self.clip)
        validate.positive("noise_multiplier", self.noise_multiplier)
        validate.rate("client_rate", self.client_rate)
        validate.positive_int("rounds", self.rounds)
        check_records(self.clip, self.record_rate, self.record_clip)
        if self.noise_shares is not None:
            validate.positive_int("noise_shares", self.noise_shares)

    def client(self, observer: Observer, norms: NormCounts | None = None) -> SampledGaussian:
        """Return the rounds as they are for a client.

        For an observer who does not know the coins the rate is q. To one who sees who took part,
        removing a client would be visible: its contribution is set to zero instead, at rate 1 in
        the rounds that it takes part in, each with probability q. So it is for everybody where
        clients add the noise: how much noise a round has, and whether it is released at all, tells
        how many took part.

        Args:
            observer: who looks.
            norms: of all clients' clipped updates over C, round by round; a client that was not
                asked counts as 1. None knows the worst case alone.

        Raises:
            ValueError: if the observer knows all of the noise, or ``norms`` has other rounds.
        """
        # Where clients add the noise, one that leaves takes its share of it away.
        seen = observer.sees_participants or self.noise_shares is not None
        rate, presence = (1.0, self.client_rate) if seen else (self.client_rate, 1.0)
        return SampledGaussian(
            noise_multiplier=self._noise(observer, 1.0),
            rate=rate,
            steps=self.rounds,
            presence=presence,
            relation=Relation.ZERO_OUT if seen else Relation.ADD_OR_REMOVE,
            unit="client",
            rounding=self.rounding,
            norms=norms,
        )

    def instance(self, observer: Observer, norms: NormCounts | None = None) -> SampledGaussian:
        """Return the rounds as they are for a record.

        The rate is ``record_rate`` in the rounds that its client takes part in, each with
        probability q, for all observers: also one who is not told who took part may see it from the
        client's other records, which share its coin. (The product of both rates would need a
        coin of its own for every record; here δ can be a hundred times what it promises.)

        Args:
            observer: who looks.
            norms: of panel records' distances over ``record_clip``, round by round; 1 where they
                are not known. None knows the worst case alone.

        Raises:
            ValueError: as :meth:`client`, or if no record's influence is bounded.
        """
        if self.record_rate is None or self.record_clip is None:
            raise ValueError(
                "record_rate and record_clip are None: nothing bounds what one record does to its "
                "client's update. Clip records in the client, or ask for unit='client'"
            )
        return SampledGaussian(
            noise_multiplier=self._noise(observer, self.record_clip / self.clip),
            rate=self.record_rate,
            steps=self.rounds,
            presence=self.client_rate,
            rounding=self.rounding,
            norms=norms,
        )

    def view(
        self, unit: str, observer: Observer, norms: NormCounts | None = None
    ) -> SampledGaussian:
        """Return :meth:`client` for unit="client", :meth:`instance` for unit="record"."""
        which = self.client if validate.choice("unit", unit, UNITS) == "client" else self.instance
        return which(observer, norms)

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
                f"observer={observer.name!r} knows {observer.known_shares} of {shares} shares of "
                "the noise, so nothing hides the sum from it. Use more shares"
            )
        return left / shares

    def _noise(self, observer: Observer, size: float) -> float:
        """Return the noise that the observer does not know, over ``size`` times C."""
        return self.noise_multiplier * math.sqrt(self.unknown_noise(observer)) / size


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

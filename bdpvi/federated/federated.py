"""Federated learning with noise: what a server does in a round, and what the rounds cost.

Clients send updates; the server clips each, sums them, adds noise whose scale never depends on who
took part, and divides by the expected number of clients. A round is charged before its clients
are drawn. No framework is needed: messages are tensors.

Two things are not hidden: how long a round takes, and who communicates with the server.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.host import on_host
from bdpvi._ground.outputs import several
from bdpvi.bayesian.accounting.accountant import cost_of
from bdpvi.datasets.records import People
from bdpvi.federated.rounds import PUBLIC, Observer, Rounds
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.cost import Bound, Cost
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.norms import NormCounts
from bdpvi.privacy.worst_case import epsilon
from bdpvi.releases.steps import Steps

NOBODY = -1
"""The key in ``Released.refused`` for senders of anything that is not a message."""


@dataclass(frozen=True, eq=False)
class Message:
    """A client's answer to a round; the transport must authenticate the sender.

    Attributes:
        client: the client's number.
        round: number of the round that it answers.
        update: any shape with ``Rounds.size`` weights; None if the client was lost.
    """

    client: int
    round: int
    update: Tensor | None


@dataclass(frozen=True, eq=False)
class Released:
    """The result of a round. Only ``update`` may be published; the rest reveals who took part.

    Attributes:
        round: the round's number.
        update: (Σ clipped updates + noise) / qN, (size,) float64; None if too few clients sent
            their noise shares.
        norms: for each counted client, norm of the clipped update over C (without noise shares).
        clipped: clients whose update was longer than C.
        refused: for each message that was not counted, its client and what was wrong with it;
            includes clients that were asked and sent nothing.
    """

    round: int
    update: Tensor | None
    norms: Mapping[int, float] = field(default_factory=dict)
    clipped: tuple[int, ...] = ()
    refused: Mapping[int, str] = field(default_factory=dict)

    def distances(self, clients: int) -> Tensor:
        """Return how far each client moved the sum, over C, (clients,), 1 where unknown: for
        :class:`~bdpvi.privacy.norms.NormCounts`."""
        result = torch.ones(clients, dtype=torch.float64)
        for client, norm in self.norms.items():
            result[client] = norm
        return result


class Federation:
    """The server's side of all rounds.

    Args:
        rounds: the settings of all rounds.
        ledger: the clients' ledger; rounds are written to it before anything is drawn. By default
            one in memory. Rounds in it with the same settings belong to this federation: they stay
            charged, and an unfinished round is closed. Its budget limits a client's worst-case ε
            towards the public, together with everything else in the ledger.

    Attributes:
        unseen: what is assumed of the clients, who are not seen: how their features were made, and
            for a record how they sample.

    Raises:
        ValueError: if the ledger has charges with a unit other than clients, or a unit of several
            rows, which may lie with several clients.

    >>> rounds = Rounds(clients=10, size=2, clip=1.0, noise_multiplier=2.0, client_rate=0.5)
    >>> federation = Federation(rounds)
    >>> for _ in range(3):
    ...     number = federation.next_round
    ...     asked = federation.sampled(number)
    ...     answers = [Message(client, number, torch.ones(2)) for client in asked]
    ...     released = federation.aggregate(number, answers)
    >>> released.update.shape, federation.charged
    (torch.Size([2]), 3)
    >>> federation.cost(delta=1e-3).worst_case.unit
    'one client'
    """

    def __init__(self, rounds: Rounds, ledger: Ledger | None = None) -> None:
        self.rounds = rounds
        if ledger is not None and (rows := ledger.rows_per_unit) > 1:
            raise ValueError(
                f"ledger: its unit has up to {rows} rows, which may lie with several clients "
                f"(rows_per_unit={rows}); give the clients a ledger of their own"
            )
        settings = json.dumps(asdict(rounds), sort_keys=True).encode()
        kept = ledger or Ledger()
        self._charged = Steps(
            People(kept, unit=kept.unit, rows_per_unit=kept.rows_per_unit),
            rounds.event(1),
            kind="rounds",
            of=hashlib.sha256(settings).hexdigest()[:16],
        )
        self._asked: frozenset[int] | None = None
        self.unseen: tuple[Assumption, ...] = (
            Assumption.GIVEN_FEATURES,
            Assumption.POISSON_BATCHES,
        )

    @property
    def ledger(self) -> Ledger:
        """All charges for the clients, including these rounds."""
        return self._charged.ledger

    @property
    def charged(self) -> int:
        """Number of rounds charged, finished or not."""
        return self._charged.taken

    @property
    def next_round(self) -> int:
        """The number of the next round, counted from 1; never used before."""
        return self.charged + 1

    def sampled(self, round: int) -> tuple[int, ...]:
        """Charge a round, then draw its clients, perhaps none.

        A round still open is closed: it stays charged, and answers to it are stale.

        Args:
            round: its number, :attr:`next_round`.

        Raises:
            BudgetExceededError: if it would cost more than is left. Nothing is charged or drawn.
            ValueError: if ``round`` is another number, or another server has charged rounds with
                these settings to the ledger.
        """
        validate.positive_int("round", round)
        if round != self.next_round:
            said = "was charged" if round <= self.charged else "passes over another"
            raise ValueError(
                f"round={round} {said}; a number is used once, take next_round={self.next_round}"
            )
        with self.ledger.locked():
            if self._charged.charged != self.charged:
                raise ValueError(
                    f"the ledger has {several(self._charged.charged, 'round')} of these settings, "
                    f"and {self.charged} were charged here: another server uses it. Make a new "
                    "Federation from it"
                )
            self._charged.take()
        self._asked = frozenset(self.rounds.mechanism.batch(round).tolist())
        return tuple(sorted(self._asked))

    @on_host
    def aggregate(self, round: int, messages: Iterable[Message]) -> Released:
        """Return (Σ clipped updates + N(0, z²C²I)) / qN, whoever answered and in whatever order.

        A message counts as zero and is listed in ``refused`` if its update is None, not a tensor,
        not finite or of another size or kind, if its client was not asked or answers twice, or if
        it answers another round. Anything but a :class:`Message` is listed under :data:`NOBODY`. An
        update that is too long is clipped. The round stays charged whatever happens.

        Args:
            round: the last round that :meth:`sampled` drew; each is aggregated once.
            messages: the answers.

        Raises:
            ValueError: if the round is not open.
        """
        if self._asked is None or round != self.charged:
            raise ValueError(
                f"round={round} is not open: it was not drawn here, or it is finished; draw "
                f"next_round={self.next_round}"
            )
        asked, self._asked = self._asked, None
        counted, clipped, refused = self._accept_updates(round, asked, messages)
        shares = self.rounds.noise_shares
        # Add in the order of clients, so that the order of arrival does not change the sum.
        total = torch.zeros(self.rounds.size, dtype=torch.float64)
        norms: dict[int, float] = {}
        for client in sorted(counted):
            total += counted[client]
            if shares is None:
                norms[client] = float(counted[client].norm()) / self.rounds.clip
        update: Tensor | None = None
        if shares is None:
            (update,) = self.rounds.mechanism.means([total], round)
        elif len(counted) >= shares:
            update = self.rounds.together(total) / (self.rounds.client_rate * self.rounds.clients)
        return Released(round, update, norms, tuple(clipped), refused)

    def _accept_updates(
        self, round: int, asked: frozenset[int], messages: Iterable[Message]
    ) -> tuple[dict[int, Tensor], list[int], dict[int, str]]:
        """Return the updates to sum, which were clipped, and why others were refused."""
        refused: dict[int, str] = {}
        valid: list[Message] = []
        for one in messages:
            if not isinstance(one, Message) or type(one.client) is not int:
                refused[NOBODY] = f"no message of a client: {type(one).__name__}"
            elif one.client not in asked:
                refused[one.client] = "was not asked"
            elif one.round != round:
                refused[one.client] = f"stale: answers round {one.round}, not {round}"
            else:
                valid.append(one)
        answers = Counter(one.client for one in valid)
        counted, clipped = {}, []
        for one in valid:
            if answers[one.client] > 1:
                refused[one.client] = "answered twice: no answer counts"
            elif one.update is None:
                refused[one.client] = "lost: no update"
            elif not isinstance(one.update, Tensor) or one.update.is_complex():
                refused[one.client] = "its update is not a tensor of real numbers"
            else:
                try:
                    taken = self._check_update(one.update)
                    whole = torch.equal(taken, one.update.detach().cpu().double().flatten())
                except ValueError as error:
                    refused[one.client] = str(error)
                except Exception as error:  # there are many kinds of tensors without numbers
                    refused[one.client] = f"its update cannot be read: {type(error).__name__}"
                else:
                    counted[one.client] = taken
                    clipped += [one.client] * (not whole)
        for client in asked - set(counted) - set(refused):
            refused[client] = "lost: no answer"
        return counted, sorted(clipped), dict(sorted(refused.items()))

    def _check_update(self, update: Tensor) -> Tensor:
        if self.rounds.noise_shares is None:
            return self.rounds.clip_update(update)
        return self.rounds.check_update(update)  # with noise added, the norm says nothing

    def event(
        self, unit: str = "client", observer: Observer = PUBLIC, norms: NormCounts | None = None
    ) -> SampledGaussian:
        """Return all rounds so far as an event for one unit and one observer. Secret.

        Args:
            unit: "client" or "record".
            observer: one of :data:`bdpvi.federated.rounds.OBSERVERS`, or another.
            norms: see :meth:`bdpvi.federated.rounds.Rounds.event`; one step for each round charged.

        Raises:
            ValueError: before the first round, or as :meth:`bdpvi.federated.rounds.Rounds.event`.
        """
        if not self.charged:
            raise ValueError("nothing was charged yet: call sampled() first")
        return self.rounds.event(self.charged, unit, observer, norms)

    def worst_case(self, delta: float, unit: str = "client", observer: Observer = PUBLIC) -> Bound:
        """Return the guarantee to publish: it depends only on the settings and number of rounds.

        A client's guarantee towards the public covers the whole ledger; others cover these rounds.

        Args:
            delta: δ.
            unit, observer: see :meth:`event`.

        Raises:
            ValueError: as :meth:`event`, or if no finite ε can be promised.
        """
        view = self.event(unit, observer)
        if unit == "client" and observer == PUBLIC:
            found = self.ledger.worst_case(delta)
        else:
            found = epsilon((view,), delta)
        if found is None:
            raise ValueError(
                f"noise_multiplier={self.rounds.noise_multiplier:g} has no finite ε; use more"
            )
        found = self._assuming(replace(found, observer=observer.name), unit)
        return found if self.rounds.seed is None else found.seeded()

    def cost(
        self,
        delta: float,
        unit: str = "client",
        observer: Observer = PUBLIC,
        norms: NormCounts | None = None,
    ) -> Cost:
        """Return the cost of these rounds: the worst-case ε, and with norms the path's cost too.

        Args:
            delta: δ of both.
            unit, observer, norms: see :meth:`event`. Without norms only the worst case is computed.

        Raises:
            ValueError: as :meth:`event`, or if δ is too small for the estimates.
        """
        found = cost_of([self.event(unit, observer, norms)], delta)
        found = found.each(
            lambda bound: self._assuming(replace(bound, observer=observer.name), unit)
        )
        return found if self.rounds.seed is None else found.each(Bound.seeded)

    def _assuming(self, bound: Bound, unit: str) -> Bound:
        """Return the bound with what is assumed of the clients."""
        rates = (Assumption.POISSON_BATCHES,) * (unit == "client")
        return bound.assuming(*(one for one in self.unseen if one not in rates))

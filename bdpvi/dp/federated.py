"""Federated learning with noise: what a server does in a round, and what the rounds cost.

Clients send updates; the server clips each, sums them, adds noise whose scale never depends on who
took part, and divides by the expected number of clients. A round is charged before its clients
are drawn. No framework is needed: messages are tensors.

What this does not hide: how long a round takes, and who talks to the server.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi._runtime.outputs import several
from bdpvi.accounting.accountant import cost_of
from bdpvi.accounting.cost import Bound, Cost
from bdpvi.accounting.events import NormCounts, SampledGaussian
from bdpvi.accounting.ledger import Ledger
from bdpvi.accounting.worst_case import epsilon
from bdpvi.dp.charges import Steps
from bdpvi.dp.rounds import PUBLIC, Observer, Rounds

NOBODY = -1
"""Stands in ``Released.refused`` for whoever sent something that is no message."""


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


class Federation:
    """The server's side of all rounds.

    Args:
        rounds: what is the same in all of them.
        ledger: of the clients; rounds are written to it before anything is drawn. By default one in
            memory. What it has of a federation with the same settings is this one: its rounds stay
            charged, and one that was not finished is over. Its budget limits the worst-case ε of a
            client, to the public, with all else that it has.

    Raises:
        ValueError: if the ledger has charges of other units than clients.

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
        settings = json.dumps(asdict(rounds), sort_keys=True).encode()
        self._charged = Steps(
            ledger or Ledger(),
            rounds.event(1),
            kind="rounds",
            of=hashlib.sha256(settings).hexdigest()[:16],
        )
        self._asked: frozenset[int] | None = None

    @property
    def ledger(self) -> Ledger:
        """Everything that is spent on the clients, these rounds among it."""
        return self._charged.ledger

    @property
    def charged(self) -> int:
        """How many rounds were charged, finished or not."""
        return self._charged.taken

    @property
    def next_round(self) -> int:
        """The number of the next round, from 1 on; it was never used before."""
        return self.charged + 1

    def sampled(self, round: int) -> tuple[int, ...]:
        """Charge a round, then draw its clients, perhaps none.

        A round that is still open is over: it stays charged, and answers to it are stale.

        Args:
            round: its number, :attr:`next_round`.

        Raises:
            BudgetExceededError: if it would cost more than is left. Nothing is charged or drawn.
            ValueError: if it is another number, or another server has charged rounds of these
                settings to the ledger.
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

    def aggregate(self, round: int, messages: Iterable[Message]) -> Released:
        """Return (Σ clipped updates + N(0, z²C²I)) / qN, whoever answered, and in any order.

        A message counts as zero, and is named, if its update is None, no tensor, not finite or of
        another size or kind, its client was not asked or answers twice, or it answers another
        round; what is no :class:`Message` is named under :data:`NOBODY`. An update that is too long
        is clipped. The round stays charged whatever happens.

        Args:
            round: the one that :meth:`sampled` drew last; each is aggregated once.
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
        counted, clipped, refused = self._counted(round, asked, messages)
        shares = self.rounds.noise_shares
        # In the order of clients, so that it is the same sum whichever came first.
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

    def _counted(
        self, round: int, asked: frozenset[int], messages: Iterable[Message]
    ) -> tuple[dict[int, Tensor], list[int], dict[int, str]]:
        """Return updates to be summed, who was clipped, and why others were refused."""
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
                    taken = self._taken(one.update)
                    whole = torch.equal(taken, one.update.detach().cpu().double().flatten())
                except ValueError as error:
                    refused[one.client] = str(error)
                except Exception as error:  # of tensors without numbers there are many kinds
                    refused[one.client] = f"its update cannot be read: {type(error).__name__}"
                else:
                    counted[one.client] = taken
                    clipped += [one.client] * (not whole)
        for client in asked - set(counted) - set(refused):
            refused[client] = "lost: no answer"
        return counted, sorted(clipped), dict(sorted(refused.items()))

    def _taken(self, update: Tensor) -> Tensor:
        if self.rounds.noise_shares is None:
            return self.rounds.clip_update(update)
        return self.rounds.checked(update)  # with noise on it the norm says nothing

    def event(
        self, unit: str = "client", observer: Observer = PUBLIC, norms: NormCounts | None = None
    ) -> SampledGaussian:
        """Return all rounds so far as one unit has them before one observer. Secret.

        Args:
            unit: "client" or "record".
            observer: one of :data:`bdpvi.dp.rounds.OBSERVERS`, or another.
            norms: see :meth:`bdpvi.dp.rounds.Rounds.event`; a step for each round that was charged.

        Raises:
            ValueError: before the first round, or as :meth:`bdpvi.dp.rounds.Rounds.event`.
        """
        if not self.charged:
            raise ValueError("nothing was charged yet: call sampled() first")
        return self.rounds.event(self.charged, unit, observer, norms)

    def worst_case(self, delta: float, unit: str = "client", observer: Observer = PUBLIC) -> Bound:
        """Return the guarantee to publish: it follows from the settings and the rounds alone.

        A client's to the public is of all that the ledger has; others are of these rounds.

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
        found = replace(found, observer=observer.name)
        return found if self.rounds.seed is None else found.seeded()

    def cost(
        self,
        delta: float,
        unit: str = "client",
        observer: Observer = PUBLIC,
        norms: NormCounts | None = None,
    ) -> Cost:
        """Return what these rounds cost: the worst-case ε, and with norms what their path cost.

        Args:
            delta: δ of both.
            unit, observer, norms: see :meth:`event`. Without norms there is the worst case.

        Raises:
            ValueError: as :meth:`event`, or if δ is too small for the estimates.
        """
        found = cost_of([self.event(unit, observer, norms)], delta)
        found = found.each(lambda bound: replace(bound, observer=observer.name))
        return found if self.rounds.seed is None else found.each(Bound.seeded)

"""Federated learning with noise: what a server does in a round, and what the rounds cost.

Clients send updates; the server clips each, sums them, adds noise whose scale never depends on who
took part, and divides by the expected number of clients. A round is charged before its clients
are drawn. No framework is needed: messages are tensors.

What this does not hide: how long a round takes, and who talks to the server.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bdpvi._runtime import store, validate
from bdpvi._runtime.checkpoint import sealed, unsealed
from bdpvi._runtime.schema import require_same
from bdpvi.accounting.accountant import cost_of
from bdpvi.accounting.cost import Bound, Cost
from bdpvi.accounting.events import NormCounts, SampledGaussian
from bdpvi.accounting.rounds import PUBLIC, Observer
from bdpvi.dp.mechanism import affordable
from bdpvi.dp.updates import Message, Released, Rounds
from bdpvi.types import Budget, BudgetExceededError

NOBODY = -1
"""Stands in ``Released.refused`` for whoever sent something that is no message."""


class Federation:
    """The server's side of all rounds, with the ledger of what was charged.

    Args:
        rounds: what is the same in all of them.
        ledger: a file that charges are written to before anything is drawn. If it is there, its
            rounds stay charged, and one that was not finished is over.
        budget: limits the worst-case ε of a client, to the public.

    Raises:
        ValueError: if the ledger is of other settings.

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

    def __init__(
        self, rounds: Rounds, ledger: str | Path | None = None, budget: Budget | None = None
    ) -> None:
        self.rounds = rounds
        priced = replace(rounds.mechanism, rate=rounds.priced_rate)
        self._allowed = None if budget is None else affordable(priced, budget)
        self._charged = self._last = 0
        self._asked: frozenset[int] | None = None
        self._ledger = None if ledger is None else Path(ledger)
        if self._ledger is not None and self._ledger.exists():
            self.load_state_dict(store.read_json(self._ledger))

    @property
    def charged(self) -> int:
        """How many rounds were charged, finished or not."""
        return self._charged

    @property
    def next_round(self) -> int:
        """The number of the next round, from 1 on; it was never used before."""
        return self._last + 1

    def sampled(self, round: int) -> tuple[int, ...]:
        """Charge a round, then draw its clients, perhaps none.

        A round that is still open is over: it stays charged, and answers to it are stale.

        Args:
            round: its number, above those of all rounds before: :attr:`next_round`.

        Raises:
            BudgetExceededError: if it would cost more than is left. Nothing is charged or drawn.
            ValueError: if the number was used or passed over, or the ledger has charges of
                somebody else.
        """
        validate.positive_int("round", round)
        if round <= self._last:
            raise ValueError(
                f"round={round} was charged, or passed over; a number is used once, take "
                f"next_round={self.next_round}"
            )
        if self._allowed is not None and self._charged >= self._allowed:
            raise BudgetExceededError(
                f"budget: round {round} would cost more than is left. Nothing was charged"
            )
        self._write(round)
        self._charged, self._last = self._charged + 1, round
        self._asked = frozenset(self.rounds.mechanism.batch(round).tolist())
        return tuple(sorted(self._asked))

    def aggregate(self, round: int, messages: Iterable[Message]) -> Released:
        """Return (Σ clipped updates + N(0, z²C²I)) / qN, whoever answered, and in any order.

        A message counts as zero, and is named, if its update is None, no tensor, not finite or of
        another size, its client was not asked or answers twice, or it answers another round; what
        is no :class:`Message` is named under :data:`NOBODY`. An update that
        is too long is clipped. The round stays charged whatever happens.

        Args:
            round: the one that :meth:`sampled` drew last; each is aggregated once.
            messages: the answers.

        Raises:
            ValueError: if the round is not open.
        """
        if self._asked is None or round != self._last:
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
                refused[one.client] = "its update is no tensor of real numbers"
            else:
                try:
                    counted[one.client] = self._taken(one.update)
                except ValueError as error:
                    refused[one.client] = str(error)
                    continue
                if not torch.equal(counted[one.client], one.update.cpu().double().flatten()):
                    clipped.append(one.client)
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
            observer: one of :data:`bdpvi.accounting.rounds.OBSERVERS`, or another.
            norms: see :meth:`~bdpvi.accounting.rounds.RoundEvent.client`; a step for each round
                that was charged.

        Raises:
            ValueError: before the first round, or as :class:`~bdpvi.accounting.rounds.RoundEvent`.
        """
        if not self._charged:
            raise ValueError("nothing was charged yet: call sampled() first")
        return self.rounds.event(self._charged).view(unit, observer, norms)

    def worst_case(self, delta: float, unit: str = "client", observer: Observer = PUBLIC) -> Bound:
        """Return the guarantee to publish: it follows from the settings and the rounds alone.

        Args:
            delta: δ.
            unit, observer: see :meth:`event`.

        Raises:
            ValueError: as :meth:`event`, or if no finite ε can be promised.
        """
        found = self.cost(delta, unit, observer).worst_case
        if found is None:
            raise ValueError(
                f"noise_multiplier={self.rounds.noise_multiplier:g} has no finite ε; use more"
            )
        return found

    def cost(
        self,
        delta: float,
        unit: str = "client",
        observer: Observer = PUBLIC,
        norms: NormCounts | None = None,
    ) -> Cost:
        """Return what all rounds cost: the worst-case ε, and with norms what their path cost.

        Args:
            delta: δ of both.
            unit, observer, norms: see :meth:`event`. Without norms there is the worst case.

        Raises:
            ValueError: as :meth:`event`, or if δ is too small for the estimates.
        """
        found = cost_of([self.event(unit, observer, norms)], delta)
        found = found.each(lambda bound: replace(bound, observer=observer.name))
        return found if self.rounds.seed is None else found.each(Bound.seeded)

    def state_dict(self) -> dict[str, Any]:
        """Return the ledger, as JSON types: settings and charges."""
        state = {"rounds": asdict(self.rounds), "charged": self._charged, "last": self._last}
        return sealed(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the rounds of ``state``; one that was open is over and stays charged.

        Raises:
            ValueError: if the settings differ, more was charged here than there, or it is not what
                :meth:`state_dict` returns.
        """
        settings, charged, last = (state.get(name) for name in ("rounds", "charged", "last"))
        if not (isinstance(settings, dict) and isinstance(charged, int) and isinstance(last, int)):
            raise ValueError(
                f"state has {sorted(state)}, and not the settings and charges of a federation; "
                "take what state_dict() returned"
            )
        unsealed(state)
        now = asdict(self.rounds)
        require_same("state", settings, now, "make Rounds as they were made before")
        if not self._charged <= charged <= last or last < self._last:
            raise ValueError(
                f"state has {charged} charged rounds up to {last}, and {self._charged} up to "
                f"{self._last} were charged here: charges would be lost"
            )
        self._charged, self._last, self._asked = charged, last, None

    def _write(self, round: int) -> None:
        """Put the charge of a round on the disk."""
        if self._ledger is None:
            return
        state = self.state_dict()
        if self._ledger.exists() and store.read_json(self._ledger) != json.loads(json.dumps(state)):
            raise ValueError(
                f"ledger={str(self._ledger)!r} has other charges than this federation: another "
                "server uses it. Make a new Federation from it"
            )
        content = unsealed(state)
        ahead = sealed({**content, "charged": self._charged + 1, "last": round})
        store.write(self._ledger, json.dumps(ahead).encode())

"""Steps of a network and rounds of a federation, charged before they are taken."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import Any

from bdpvi._ground import validate
from bdpvi._ground.types import BudgetExceededError
from bdpvi.datasets.records import People
from bdpvi.noise.keys import Key
from bdpvi.privacy.cost import Bound
from bdpvi.privacy.event import Event
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases.noisy_sum import NoisySum
from bdpvi.releases.transaction import Before, Plan, Transaction


class Steps:
    """The steps of one run, all at one price, and the ledger that they are charged to.

    A block of steps is charged at once, before the first of them draws anything. So an interruption
    can cost steps that were never taken, but every step taken is charged. A run that resumes
    elsewhere counts all its steps in the ledger.

    Args:
        people: whose records they are; their unit is their ledger's, or they are refused.
        event: what one step is in the worst case.
        kind: "steps" or "rounds".
        of: the run's name in the ledger. Steps charged under that name count as taken.
        block: number of steps charged at once.
        most: the largest number of steps; None if only the budget limits it.

    Attributes:
        taken: number of steps begun.

    Raises:
        ValueError: if their ledger is of another unit, or has charges that cannot be composed with
            these steps.

    >>> from bdpvi.privacy.events import SampledGaussian
    >>> one = SampledGaussian(noise_multiplier=1.0, rate=0.1)
    >>> steps = Steps(People(), one, kind="steps", of="network", block=10)
    >>> for _ in range(12):
    ...     steps.take()
    >>> steps.taken, [entry.count for entry in steps.ledger.entries()]
    (12, [10, 10])
    """

    def __init__(
        self,
        people: People,
        event: Event,
        *,
        kind: str,
        of: str,
        block: int = 1,
        most: int | None = None,
    ) -> None:
        self._people, self.of, self.block, self.most = people, of, block, most
        self.ledger: Ledger = people.ledger
        self.ledger.settle(unit=people.unit, rows_per_unit=people.rows_per_unit)
        self.event, self.kind, self._secret = event, kind, Key.fresh()
        self._owner: int | None = os.getpid()
        self.taken, self._ahead = self.charged, 0
        self._room, self._seen = 0, -1
        self.ledger.check(event)

    def next(self, event: Event, most: int | None) -> Steps:
        """Return further steps at another price, of the same kind, with a name of their own."""
        name = secrets.token_hex(8)
        return Steps(self._people, event, kind=self.kind, of=name, block=self.block, most=most)

    @property
    def charged(self) -> int:
        """Number of this run's steps in the ledger."""
        return self.ledger.book().counts.get(self.of, 0)

    @property
    def draws_made(self) -> int:
        """Number of steps that may have drawn something, here or in copies and other processes."""
        return self.charged - self._ahead

    def __getstate__(self) -> dict[str, Any]:
        # Steps charged in advance are taken once, never by a copy too.
        return {**self.__dict__, "_ahead": 0, "_owner": None}

    def take(self) -> None:
        """Begin one more step, which is charged when this returns.

        Raises:
            BudgetExceededError: if it would cost more than is left. Nothing is charged.
            ValueError: in a forked process, or as :meth:`bdpvi.Ledger.charge`.
        """
        if self._owner is None:
            self._owner = os.getpid()
        if self._owner != os.getpid():
            raise ValueError(
                "this process was forked from the training process, and would repeat its random "
                "draws; create the run again here, and load its state"
            )
        if self.most is not None and self.taken >= self.most:
            raise BudgetExceededError(
                f"{self.kind}={self.most} were asked for and are taken. Nothing was charged"
            )
        if not self._ahead:
            self._pay()
        self._ahead -= 1
        self.taken += 1

    def worst_case(self, mechanism: NoisySum, delta: float) -> Bound:
        """Return the guarantee for the steps that may have drawn and everything else in the ledger.

        Raises:
            ValueError: if no finite ε can be promised.
        """
        own = mechanism.event(self.draws_made)
        found = self.ledger.altogether(delta, (own,), without=self.of)
        found = found or self.ledger.worst_case(delta, (own,), without=self.of)
        if found is None:
            raise ValueError(
                f"noise_multiplier={mechanism.noise_multiplier:g} has no finite ε; use more, "
                f"or something else in the ledger has none: {self.ledger.history(self.of)}"
            )
        found = found.assuming(*mechanism.assumptions, *self.ledger.assumptions)
        return found if mechanism.seed is None else found.seeded()

    def resume(self, of: str, taken: int) -> None:
        """Count steps taken earlier by the run named ``of``, and keep all steps counted here.

        Steps missing from the ledger are charged, whatever the budget is.
        """
        validate.positive_int("charged", taken, least=0)
        with self.ledger.locked():
            if of != self.of and not self.taken:
                self.of = of
                taken = max(taken, self.charged)
            elif of != self.of:
                taken += self.taken
            if taken > self.charged:
                self._charge(StepsAtOnce(self, taken - self.charged, anyway=True))
            self.taken = max(self.taken, taken)
            self._ahead = min(self._ahead, self.charged - self.taken)

    def _pay(self) -> None:
        """Charge a block of steps, or all remaining steps if they are fewer."""
        wanted = self.block if self.most is None else min(self.block, self.most - self.taken)
        self._ahead = self._charge(StepsAtOnce(self, wanted))

    def _charge(self, block: StepsAtOnce) -> int:
        work = Transaction(self.ledger, self._secret, name=self.of, what="training")
        with self.ledger.locked():
            plan, _, _ = work.charge(block)
            self._room = max(self._room - plan.count, 0)
            self._seen = len(self.ledger.entries())
        return plan.count

    def affordable(self, wanted: int) -> int:
        """Return how many steps the budget covers; at least 1, which charging may then refuse."""
        if self._room < wanted or self._seen != len(self.ledger.entries()):
            # Look as far ahead as the run is long, so that a run computes this only a few times.
            self._room = self.ledger.affordable(self.event, max(wanted, self.taken))
        return max(1, min(self._room, wanted))


@dataclass(frozen=True, eq=False)
class StepsAtOnce:
    """Steps charged at once. Each draws with its own key, which nobody keeps.

    Attributes:
        steps: of the run.
        wanted: the number of steps, fewer if the budget cannot pay for them.
        anyway: whether to charge beyond the budget, because these steps were taken before.
    """

    steps: Steps
    wanted: int
    anyway: bool = False

    @property
    def step(self) -> str:
        """The number of the first step."""
        return f"{self.steps.kind} from {self.steps.charged + 1}"

    def plan(self, before: Before) -> Plan[None]:
        """Return their price."""
        steps = self.steps
        return Plan(
            kind=steps.kind,
            what=f"{steps.kind[:-1]} {steps.taken + 1}",
            events=(steps.event,),
            settings=None,
            count=self.wanted if self.anyway else steps.affordable(self.wanted),
            within=self.anyway or steps.ledger.budget is None,
        )

    def draw(self, plan: Plan[None], key: Key) -> None:
        """Draw nothing: steps do, one by one."""

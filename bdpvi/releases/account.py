"""The account of a table: what was charged to its ledger, when, what for, and its ε."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi._ground.schema import to_json
from bdpvi.privacy.assumptions import sentences
from bdpvi.privacy.book import Book
from bdpvi.privacy.cost import Bound
from bdpvi.privacy.entry import ENDED, RESERVED, Entry
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.left import together
from bdpvi.privacy.membership import Membership
from bdpvi.releases.receipt import Receipt

TITLE = "Privacy account"
PLANNED = (
    "It is proven for works whose ε was chosen before any output was read, as by `bdpvi account "
    "--plan`"
)
"""What the ε of several works assumes: :mod:`bdpvi.privacy.dominating` says why."""
UNKNOWN = "not recorded"
"""In place of a time or a purpose that an earlier version did not record."""
NOT_PRICED = "none in the worst case"
OTHERS = "other calls on these rows count, by their worst case"
"""Why a cost has no Bayesian ε."""
_WORDS = {
    "draws": "draws from a guide",
    "constants": "private preprocessing",
    "steps": "training steps",
    "rounds": "federated rounds",
}


@dataclass(frozen=True, kw_only=True)
class StatementLine:
    """One work: all its charges, which one call made.

    Attributes:
        entries: its charges, in order.
        pending: whether it was started and not finished, with all of its ε reserved.
        alone: its cost, without all other works; None without a worst-case guarantee.
    """

    entries: tuple[Entry, ...]
    pending: bool
    alone: Bound | None

    @property
    def time(self) -> str:
        """When its first charge was made, in UTC."""
        note = self.entries[0].note
        return UNKNOWN if note is None else note.time.replace("T", " ").replace("Z", " UTC")

    @property
    def what(self) -> str:
        """The command or function, and what it made."""
        note = self.entries[0].note
        return (note and note.what) or self.charges

    @property
    def out(self) -> str:
        """The file that got it; "" if that is not known."""
        note = self.entries[0].note
        return note.out if note else ""

    @property
    def charges(self) -> str:
        """Its charges in words."""
        counted: Counter[str] = Counter()
        for entry in self.entries:
            if entry.kind not in (RESERVED, ENDED):
                words = entry.once if entry.charge else _WORDS.get(entry.kind, entry.once)
                counted[words] += entry.count
        said = ", ".join(f"{name} × {n}" if n > 1 else name for name, n in counted.items())
        pending = "started and not finished, with all of its ε reserved"
        return ", ".join(one for one in (said, pending * self.pending) if one)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        names = ("time", "what", "out", "charges", "pending")
        return {name: getattr(self, name) for name in names} | {"alone": to_json(self.alone)}


@dataclass(frozen=True)
class Statement:
    """Everything spent on a table, work by work. Secret, as the ledger is.

    Attributes:
        book: content of the ledger.
        delta: δ of every ε.
        certified: the mean over the population, if one is known. Secret.

    >>> from bdpvi.privacy.events import SampledGaussian
    >>> price = (SampledGaussian(noise_multiplier=5.0),)
    >>> made = [Entry(kind="release", of=name, events=price) for name in "ab"]
    >>> account = Statement(Book("id").of_entries(made), 1e-5)
    >>> f"{account.lines[0].alone.epsilon:.3f} {account.total.epsilon:.3f}"
    '0.726 1.061'
    """

    book: Book
    delta: float
    certified: Membership | None = None

    def __post_init__(self) -> None:
        validate.probability("delta", self.delta)

    @cached_property
    def lines(self) -> tuple[StatementLine, ...]:
        """The works, in the order of their first charge; draws from a fit count one by one."""
        works: dict[object, list[Entry]] = {}
        for at, one in enumerate(self.book.entries):
            works.setdefault(at if one.kind == "draws" else one.of, []).append(one)
        costs: dict[object, Bound | None] = {}
        return tuple(self._line(tuple(some), costs) for some in works.values())

    def _line(self, entries: tuple[Entry, ...], costs: dict[object, Bound | None]) -> StatementLine:
        own = self.book.of_entries(entries)
        key = None if own.events is None else frozenset(own.events.items())
        if key not in costs:
            costs[key] = together(own, self.delta, {})
        pending = entries[0].of in self.book.opened
        return StatementLine(entries=entries, pending=pending, alone=costs[key])

    @cached_property
    def total(self) -> Bound | None:
        """The cost of everything together; None without a worst-case guarantee."""
        return together(self.book, self.delta, {})

    @property
    def guarantee(self) -> str:
        """The guarantee of the total in words, and what it says about one person."""
        told = (
            f"At least one of these has no worst-case ε at δ = {self.delta:g}; its own receipt "
            "says which guarantee it has, and at which δ"
        )
        if self.total is not None:
            member = self.total.membership.in_one_sentence(self.book.whose)
            told = sentences(
                self.total.meaning,
                PLANNED * (len(self.lines) > 1),
                "What it assumes of the table's preprocessing stands on the receipts",
                f"In one sentence: {member}",
            )
        return sentences(told, str(self.certified or ""))

    @property
    def limit(self) -> str:
        """The budget in words."""
        budget = self.book.budget
        raised = "".join(f"; raised on {one[:10]}" for one in self.book.raised)
        return f"ε = {budget.epsilon:g} at δ = {budget.delta:g}{raised}" if budget else "none"

    def text(self) -> Iterable[str]:
        """Yield the lines of the account for a screen."""
        for number, one in enumerate(self.lines, start=1):
            out = f" → {one.out}" if one.out else ""
            more = f" ({one.charges})" if one.charges != one.what else ""
            yield f"{number}. {one.time}: {one.what}{out}"
            yield f"   alone {in_words(one.alone)}{more}"
        if refused := len(self.book.refused):
            yield f"{several(refused, 'target')} refused by looking at the records, at no charge"
        yield f"All together: {self.total or NOT_PRICED}"
        yield f"  {self.guarantee}"

    def __str__(self) -> str:
        return "\n".join(self.text())

    def page(self) -> str:
        """Return the account as a page that needs no other file, by the extra ``bdpvi[report]``."""
        from bdpvi._ground import page

        template = Path(__file__).with_name("account.html.j2")
        return page.render(template, title=TITLE, account=self, in_words=in_words)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        lines = [line.to_dict() for line in self.lines]
        return {"works": lines, "total": to_json(self.total), "guarantee": self.guarantee}


def in_words(bound: Bound | None) -> str:
    """Return a worst-case ε in words."""
    return (
        NOT_PRICED
        if bound is None
        else f"worst-case ε = {bound.epsilon:.4g} at δ = {bound.delta:g}"
    )


def together_of(ledger: Ledger, delta: float) -> str:
    """Return the ε of all works of this process on the same rows, in words.

    "" if a ledger was given, or holds all that they spent. If parts of δ add up to more than
    ``delta``, it is at a larger one.
    """
    if not ledger.others:
        return ""
    deltas = [one for one in (delta * 10**power for power in range(4)) if one < 1]
    found = next(filter(None, map(ledger.altogether, deltas)), None)
    return f"all on these rows together, of this process alone: {in_words(found)}"


def with_history(receipt: Receipt, ledger: Ledger) -> Receipt:
    """Return a receipt with what its ledger says of earlier works and refused targets."""
    source, refused = receipt.source, ledger.refusals
    if refused:
        source += f", after {several(refused, 'refused target')}"
    return replace(receipt, source=source, together=together_of(ledger, receipt.bound.delta))


def words_of_account(ledger: Ledger, released: Bound, given: bool = True) -> list[str]:
    """Return what the owner of a table is told about its account.

    Args:
        ledger: the account, in a file.
        released: the guarantee of what was released, whose conditions hold for the sum too.
        given: whether its budget was given, instead of being the first ε.
    """
    path, budget = ledger.path, ledger.budget
    said = (
        f"Its account is {path} (bdpvi account {path}). A file with other rows begins a new "
        f"one: for later data of the same people, join this by --ledger {path}"
    )
    if budget is None or (spent := ledger.worst_case(budget.delta)) is None:
        return [said]
    works = {entry.note.out for entry in ledger.book().charges if entry.note}
    first = "" if given or len(works) > 1 else ": the first ε, as none was given"
    return [
        said,
        f"Spent: worst-case ε = {spent.epsilon:.3g} of {budget.epsilon:g}, the budget at δ = "
        f"{budget.delta:g}{first}{released.conditions}. `bdpvi account {path} --budget E` raises "
        "it",
    ]

"""What the key of a charge follows from: two outputs with one noise would show what it hides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bdpvi.noise.keys import Key
from bdpvi.privacy.book import Book
from bdpvi.privacy.entry import Charge, Entry
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases.transaction import Transaction

BOOK = Book("a ledger")
ENTRY = Entry(kind="steps", of="a", events=(SampledGaussian(noise_multiplier=2.0),), purpose="it")


def key(book: Book = BOOK, entry: Entry = ENTRY, **changed: Any) -> Key:
    """Return the key of a charge."""
    given: dict[str, Any] = {"secret": Key(bytes(32)), "facts": "facts", "name": "a"} | changed
    return Transaction(Ledger(), **given)._key(book, entry)


@pytest.mark.parametrize("changed", [{"id": "another"}, {"unit": "who"}, {"rows": 2}])
def test_another_ledger_or_unit_has_another_key(changed: dict[str, Any]) -> None:
    assert key(replace(BOOK, **changed)) != key() == key(replace(BOOK, entries=(ENTRY,)))


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "rounds"},
        {"of": "b"},
        {"events": (SampledGaussian(noise_multiplier=2.0, rounding=1e-12),)},
        {"events": None},
        {"count": 2},
        {"purpose": "that"},
        {"charge": Charge(1, 1.0)},
    ],
)
def test_another_price_work_or_step_has_another_key(changed: dict[str, Any]) -> None:
    assert key(entry=replace(ENTRY, **changed)) != key()
    assert key(entry=replace(ENTRY, seal="ab")) == key()  # which follows from it


def test_another_secret_or_other_facts_have_another_key() -> None:
    assert len({key().secret, key(secret=Key.fresh()).secret, key(facts="others").secret}) == 3


def test_an_experiment_can_be_repeated_with_any_ledger() -> None:
    def seeded(book: Book, of: str) -> Key:
        return key(book, replace(ENTRY, of=of), secret=Key.of_seed(1))

    assert seeded(BOOK, "a") == seeded(Book("another"), "b") != key()
    assert seeded(BOOK, "a").experiment

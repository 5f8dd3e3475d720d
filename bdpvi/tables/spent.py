"""The account of a table, for its owner."""

from __future__ import annotations

import os
from pathlib import Path

from bdpvi.bayesian import pricing, storage
from bdpvi.privacy.accounts import beside
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases.account import Statement


def account(place: Ledger | str | os.PathLike[str], delta: float | None = None) -> Statement:
    """Return everything spent on a table, work by work; ``print`` shows it. For the owner alone.

    Args:
        place: a ledger or its file, the table's file, or the folder of a fit or a work.
        delta: δ of every ε; by default the budget's, or else 1e-5.

    Raises:
        ValueError: if δ is no probability, or the ledger is missing or damaged.

    >>> from bdpvi.privacy.entry import Entry
    >>> from bdpvi.privacy.events import SampledGaussian
    >>> ledger, price = Ledger(), (SampledGaussian(noise_multiplier=5.0),)
    >>> ledger.charge(Entry(kind="release", of="a", events=price))
    >>> print(account(ledger))  # doctest: +ELLIPSIS
    1. ...: release
       alone worst-case ε = 0.7255 at δ = 1e-05
    All together: worst-case DP: ε = 0.7255 at δ = 1e-05 ...
    """
    if not isinstance(place, Ledger):
        known = beside(place)
        place = storage.open_ledger(known if known.is_file() else Path(place))
    book = place.book()
    if delta is None:
        delta = book.budget.delta if book.budget else 1e-5
    return Statement(book, delta, pricing.membership_in(place))

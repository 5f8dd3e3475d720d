"""A table's constants, public or bought, and what was paid for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

from bdpvi._runtime.keys import Key
from bdpvi.accounting.book import Book, Priced
from bdpvi.accounting.events import SampledGaussian, Threshold
from bdpvi.accounting.transaction import Before, Mechanism, Plan
from bdpvi.accounting.worst_case import gaussian_epsilon, gaussian_guarantee
from bdpvi.datasets import bought
from bdpvi.datasets.columns import OneHot
from bdpvi.datasets.encoding import Encoding
from bdpvi.recipes.noisy_scores import NoisyScores
from bdpvi.recipes.pipeline import Left, Pipeline
from bdpvi.recipes.rows import Rows
from bdpvi.types import TooFewRecordsError

C = TypeVar("C")


@dataclass(frozen=True, eq=False)
class Encoded:
    """Records, and what was paid for their constants.

    Attributes:
        encoding: how cells become features.
        paid: distances μ of a row, of what was bought and charged.
        records: noisy number of records, None where nothing was bought.
        need: records from which on bought constants cost little.
    """

    encoding: Encoding
    paid: tuple[float, ...] = ()
    records: float | None = None
    need: int = 0

    def caution(self, epsilon: float) -> str:
        """Return what is to be said where records are few for what was bought, else nothing."""
        if self.records is None or self.records >= bought.FEW * self.need:
            return ""
        return (
            f"about {max(self.records, 0):.0f} records, and ε = {epsilon:g} wants about "
            f"{math.ceil(bought.FEW * self.need)} for these columns: their constants are rough. "
            "Public bounds, fewer columns or a larger epsilon would help"
        )

    def nameless(self, declared: Sequence[str]) -> str:
        """Return what is to be said of columns that were bought as text without a name."""
        found = [
            repr(column.name)
            for column in self.encoding.columns
            if isinstance(column, OneHot) and not column.categories and column.name not in declared
        ]
        if not found:
            return ""
        return (
            f"{', '.join(found)}: mostly text, of which no value is common enough to be named. "
            "Numbers with thousands separators (1,234) and dates are such text: make them numbers, "
            "or leave the column out (--drop)"
        )


class Perform(Protocol):
    """Plans, charges and draws: :meth:`bdpvi.accounting.transaction.Transaction.perform`."""

    def __call__(self, mechanism: Mechanism[Any, C], /) -> C:
        """Return what the mechanism draws."""


@dataclass(frozen=True)
class Unpaid:
    """Draws and charges nothing: for the owner's eyes only.

    Attributes:
        key: of all noise.
    """

    key: Key

    def __call__(self, mechanism: Mechanism[Any, C], /) -> C:
        """Return what the mechanism draws."""
        plan = mechanism.plan(Before(Book("")))
        return mechanism.draw(plan, self.key.child(mechanism.step))


@dataclass(frozen=True, eq=False)
class CountCells:
    """The noisy number of records, and of each column's cells that are numbers."""

    step: ClassVar[str] = "count"

    rows: Rows
    purchase: bought.Purchase
    distance: float

    def plan(self, before: Before) -> Plan[None]:
        """Return the price."""
        rounding = bought.count_rounding(self.purchase, self.distance)
        return _plan(_gaussian(self.distance, rounding))

    def draw(self, plan: Plan[None], key: Key) -> bought.Counted:
        """Count."""
        return bought.count(self.rows.columns, self.purchase, distance=self.distance, key=key)


@dataclass(frozen=True, eq=False)
class EstimateConstants:
    """Scales and categories of the columns, estimated with noise.

    Attributes:
        rows: of the table.
        asked: what was to be bought before anything was counted, which alone decides the price: one
            that followed from noisy counts would have to be above itself
            (:mod:`bdpvi.accounting.dominating`).
        purchase: what is bought.
        price: its parts.
    """

    step: ClassVar[str] = "constants"

    rows: Rows
    asked: bought.Purchase
    purchase: bought.Purchase
    price: Mapping[str, Any]

    def plan(self, before: Before) -> Plan[None]:
        """Return the price."""
        events: list[Priced] = []
        if self.asked.queries:
            distance = self.price["distance"]
            # Which kinds are found has a part in it, of less than a factor of 2.
            found, most = (bought.rounding(p, distance) for p in (self.purchase, self.asked))
            events.append(_gaussian(distance, max(found, 2 * most)))
        if self.asked.may_name:
            events.append(Threshold(self.price["delta"]))
        return _plan(*events)

    def draw(self, plan: Plan[None], key: Key) -> Encoding:
        """Estimate."""
        return bought.buy(self.rows.columns, self.purchase, **self.price, key=key)


def encode(
    rows: Rows,
    pipeline: Pipeline,
    perform: Perform,
    *,
    left: Left | None = None,
    feasible: bool = True,
) -> Encoded:
    """Return the constants of a table: public or bought.

    Args:
        rows: of the table.
        pipeline: what is done.
        perform: charges and draws.
        left: what a ledger leaves of ε; None is all.
        feasible: whether to refuse where there are too few records. That is decided by their noisy
            number, which is paid for.

    Raises:
        TooFewRecordsError: saying what would do.
    """
    purchase = pipeline.purchase([*rows.columns, pipeline.target])
    if purchase.empty:
        assert pipeline.public is not None
        return Encoded(bought.public_encoding(pipeline.public))
    left = left or Left(pipeline.distance)
    mine = left.distance * math.sqrt(bought.SHARE)
    distance = mine * math.sqrt(bought.COUNTS)
    first = perform(CountCells(rows, purchase, distance))
    need = first.purchase.need(left.distance)
    if feasible and pipeline.scored:
        _promising(pipeline, first.records, len(rows.columns), left.distance)
    if feasible and first.records < bought.TOO_FEW * need:
        raise TooFewRecordsError(_too_few(pipeline, first, need))
    price: dict[str, Any] = {
        "distance": mine * math.sqrt(1 - bought.COUNTS),
        "delta": bought.NAMES * pipeline.delta,
        "rows": left.rows,
    }
    wanted = first.purchase
    if pipeline.hashed is None:
        wanted = bought.hashed_if_few(wanted, first.records, **price)
    second = perform(EstimateConstants(rows, purchase, wanted, price))
    paid = (distance, price["distance"]) if purchase.queries else (distance,)
    return Encoded(second, paid, first.records, need)


def _plan(*events: Priced) -> Plan[None]:
    what = "private constants of the columns"
    return Plan(kind="constants", what=what, events=events, settings=None)


def _promising(pipeline: Pipeline, records: float, features: int, distance: float) -> None:
    """Raise TooFewRecordsError if intervals would not pass; categories have more features yet."""
    settings = replace(pipeline, expected_rows=None).chosen()
    assert isinstance(settings.route, NoisyScores)
    rest = distance**2 * (1 - bought.SHARE)
    settings.route.of_rows(records).promise(settings.model, features, rest, pipeline.epsilon)


def _gaussian(distance: float, rounding: float) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=1 / distance, rounding=rounding)


def _too_few(pipeline: Pipeline, first: bought.Counted, need: int) -> str:
    enough = bought.NEED * math.sqrt(first.purchase.queries) / max(first.records, 1.0)
    epsilon = gaussian_epsilon(enough**2, (1 - bought.NAMES) * pipeline.delta)
    spent = gaussian_guarantee(first.distance**2, pipeline.delta, first.rounding)
    assert spent is not None
    return (
        f"about {max(first.records, 0):.0f} records; ε = {pipeline.epsilon:g} needs about {need} "
        f"for the constants of these {len(first.purchase.bought)} columns. Three ways: public "
        "constants for the numeric columns, which cost nothing (--constants FILE); fewer columns "
        f"(--drop COLUMN); or epsilon={epsilon:.2g} (--epsilon {epsilon:.2g}). Nothing was fitted: "
        f"of the ε, {spent.epsilon:.2g} was spent, to count the records"
    )

"""A table's preprocessing, public or private, and its price."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bdpvi._ground.outputs import several
from bdpvi._ground.types import TooFewRecordsError
from bdpvi.datasets import estimates
from bdpvi.datasets.cells import Cells, Columns, LazyColumns, read_cell, read_cells
from bdpvi.datasets.encoding import Encoding, with_text_names
from bdpvi.datasets.records import Records
from bdpvi.datasets.types import ColumnType
from bdpvi.datasets.units import without_unit
from bdpvi.datasets.weights import shares_of
from bdpvi.noise.keys import Key
from bdpvi.privacy.book import Book
from bdpvi.privacy.entry import digest_of
from bdpvi.privacy.event import Event
from bdpvi.privacy.events import SampledGaussian, Threshold
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.privacy.gaussian_dp import gaussian_epsilon, gaussian_guarantee
from bdpvi.privacy.left import HIGHEST
from bdpvi.regression.noisy_scores import NoisyScores
from bdpvi.releases.route import Allowance
from bdpvi.releases.row_counts import FEWEST, MOST
from bdpvi.releases.transaction import Before, Mechanism, Plan, seal
from bdpvi.tables.formulas import with_terms
from bdpvi.tables.looks import Price
from bdpvi.tables.request import Request
from bdpvi.tables.rows import PERSON, Encoded, Rows
from bdpvi.tables.setup import Intervals, setup
from bdpvi.tables.validation import check as check_request
from bdpvi.tables.validation import purchase as purchase_of

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi.datasets.formats import FileFormat

Perform = Callable[[Mechanism[Any, Any]], Any]
"""Plans, charges and draws, as :meth:`bdpvi.releases.transaction.Transaction.perform` does."""
WITHOUT = "a target, an event or an exposure is blank or outside the range of the model"
UNWEIGHTED = "; or a weight is blank, negative or unreadable"
"""Why a row is not used, and why with weights."""
_COLUMNS: Callable[[Rows], Columns] = attrgetter("columns")


def rows_of(frame: pd.DataFrame, asked: Request) -> Rows:
    """Return the rows with a target."""
    return usable(frame, asked)[0]


def usable(frame: pd.DataFrame, asked: Request) -> tuple[Rows, int]:
    """Return the rows with a target, and how many others there are; columns are read if needed."""
    frame, types = with_text_names(frame), asked.public.read_by
    target = read_cells(frame[asked.target], types.get(asked.target))
    if asked.model is None:
        y = np.asarray(places_of(target, [asked.positive]) == 0, dtype=np.float64)
        kept = ~target.blank
    else:
        classes = asked.public.classes
        y = places_of(target, classes) if classes else np.array(target.numbers)
        if asked.public.event:
            y = _signed(asked, target.numbers, frame[asked.public.event])
        kept = asked.model.fits(torch.from_numpy(y)).numpy()
    if asked.public.exposure:
        exposure = read_cells(frame[asked.public.exposure], types.get(asked.public.exposure))
        kept = kept & (exposure.numbers > 0)
    weights = None
    if name := asked.public.weights:
        given = torch.tensor(read_cells(frame[name], types.get(name)).numbers)
        weights = shares_of(given, asked.public.largest_weight or 1.0).numpy()
        kept = kept & np.isfinite(weights)
    if not kept.all():
        frame, y, weights = frame[kept], y[kept], None if weights is None else weights[kept]
    persons = frame.index.to_numpy() if frame.index.name == PERSON else None
    return Rows(LazyColumns(frame, types, asked.target), y, persons, weights), int((~kept).sum())


def encoded_of(rows: Rows, encoding: Encoding) -> tuple[Tensor, ...]:
    """Return features, targets and, if there are any, weights of rows."""
    return encoding.whole(rows.columns), *features_of(rows, encoding)[1:]


def features_of(rows: Rows, encoding: Encoding) -> tuple[Any, ...]:
    """Do :func:`encoded_of`, with features that are made when they are asked for."""
    given = (rows.y,) if rows.weights is None else (rows.y, rows.weights)
    return encoding.rows_of(rows.columns), *map(torch.from_numpy, given)


def places_of(cells: Cells, values: Sequence[object]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return each cell's index among ``values``, (N,), -1 if it is none of them."""
    names = (read_cell(value, cells.type)[1] for value in values)
    at = {name: float(place) for place, name in enumerate(names)}
    of_names = np.array([*(at.get(name, -1.0) for name in cells.names), -1.0])
    return of_names[cells.codes]  # a blank is -1, the last


def _signed(asked: Request, times: Any, events: pd.Series[Any]) -> np.ndarray[Any, Any]:
    """Return times, those without an event with a minus sign; NaN where either is not known."""
    declared = asked.public.read_by.get(asked.public.event)
    yes_or_no = declared is not None and declared.kind == "boolean"
    type_ = declared if yes_or_no else ColumnType(kind="boolean")
    assert type_ is not None
    assert type_.names is not None
    cells = read_cells(events, type_)
    places = np.array([*(type_.names.index(name) for name in cells.names), np.nan])
    found: np.ndarray[Any, Any] = asked.model.targets(times, places[cells.codes]).numpy()  # type: ignore[union-attr]
    return found


def unpaid(key: Key) -> Perform:
    """Return what draws by a key without charging: for the owner only."""

    def perform(mechanism: Mechanism[Any, Any]) -> Any:
        plan = mechanism.plan(Before(Book("")))
        return mechanism.draw(plan, key.child(mechanism.step))

    return perform


@dataclass(frozen=True, eq=False)
class CountCells:
    """The noisy number of records, and of numeric cells in each column."""

    step: ClassVar[str] = "count"

    rows: Records[Rows]
    purchase: estimates.Purchase
    distance: float

    def plan(self, before: Before) -> Plan[None]:
        """Return the price."""
        rounding = estimates.count_rounding(self.purchase, self.distance)
        return _plan(_gaussian(self.distance, rounding))

    def draw(self, plan: Plan[None], key: Key) -> tuple[float, estimates.Purchase]:
        """Count."""
        cells = self.rows.map(_COLUMNS)
        return estimates.count(cells, self.purchase, distance=self.distance, key=key)


@dataclass(frozen=True, eq=False)
class EstimateConstants:
    """Scales and categories of the columns, estimated with noise.

    Attributes:
        rows: rows of the table.
        asked: the queries requested before any count. They alone determine the price: a price that
            followed from noisy counts would have to dominate every price they may choose
            (:mod:`bdpvi.privacy.dominating`).
        purchase: the queries to answer.
        price: the parts of its price.
        types: the declared types by which cells are read.
    """

    step: ClassVar[str] = "constants"

    rows: Records[Rows]
    asked: estimates.Purchase
    purchase: estimates.Purchase
    price: Mapping[str, Any]
    types: Mapping[str, ColumnType] = field(default_factory=dict)

    def plan(self, before: Before) -> Plan[None]:
        """Return the price."""
        events: list[Event] = []
        if self.asked.queries:
            distance, rows = self.price["distance"], self.price["rows"]
            # A column found to be a category has a count for each row's name, instead of three.
            events.append(
                _gaussian(distance, rows * estimates.rounding(self.asked, distance, rows))
            )
        if self.asked.may_name:
            events.append(Threshold(self.price["delta"]))
        return _plan(*events)

    def draw(self, plan: Plan[None], key: Key) -> Encoding:
        """Estimate."""
        charged = digest_of(seal(key))
        return estimates.estimate(
            self.rows.map(_COLUMNS),
            self.purchase,
            **self.price,
            key=key,
            charged=charged,
            types=self.types,
        )


def encode(
    rows: Records[Rows],
    header: Sequence[str],
    asked: Request,
    perform: Perform,
    *,
    left: Allowance | None = None,
    feasible: bool = True,
) -> Encoded:
    """Return the preprocessing of a table, public or private.

    Args:
        rows: rows of the table.
        header: the names of its columns.
        asked: the request.
        perform: charges and draws.
        left: the remaining ε of a ledger; None means all.
        feasible: whether to refuse too few records, by their noisy number, which is charged.

    Raises:
        TooFewRecordsError: if records are too few; it says what would suffice.
    """
    purchase = purchase_of(asked, header)
    if purchase.empty:
        assert asked.constants is not None
        return Encoded(replace(asked.constants, unknown="other", terms=asked.terms))
    left = left or asked.whole()
    row = asked.row_distance(left)
    mine = row * math.sqrt(estimates.SHARE)
    distance = mine * math.sqrt(estimates.COUNTS)
    if feasible:
        check(asked, purchase, left)
    records, first = perform(CountCells(rows, purchase, distance))
    price: dict[str, Any] = {
        "distance": mine * math.sqrt(1 - estimates.COUNTS),
        "delta": estimates.NAMES * asked.delta,
        "rows": left.rows,
    }
    wanted = first
    if asked.public.hashed is None:
        wanted = estimates.hashed_if_few(wanted, records, **price)
    need = first.need(row)
    if feasible:
        rounding = estimates.count_rounding(purchase, distance)
        spent = gaussian_guarantee(distance**2, asked.delta, rounding)
        assert spent is not None
        paid_for = f"counting the records spent {spent.epsilon:.2g} of ε"
        _refuse_few(asked, wanted, records, need, left, paid_for)
    second = perform(EstimateConstants(rows, purchase, wanted, price, asked.public.read_by))
    paid = (distance, price["distance"]) if purchase.queries else (distance,)
    return Encoded(replace(second, terms=asked.terms), paid, records, need)


def _plan(*events: Event) -> Plan[None]:
    what = "private preprocessing bounds and categories"
    return Plan(kind="constants", what=what, events=events, settings=None)


def check(asked: Request, purchase: estimates.Purchase, left: Allowance) -> None:
    """Refuse a declared number of records that is too small, before any charge.

    Args:
        asked: the request.
        purchase: the queries, for unknown kinds of columns.
        left: the remaining ε of a ledger.

    Raises:
        TooFewRecordsError: if records are too few; it says what would suffice.
    """
    if asked.public.rows is not None:
        kinds = tuple(
            estimates.CATEGORY if k == estimates.UNDECLARED else k for k in purchase.kinds
        )
        least = replace(purchase, kinds=kinds, hashed=asked.public.hashed is not False)
        need = 0 if purchase.empty else least.need(asked.row_distance(left))
        _refuse_few(asked, purchase, asked.public.rows, need, left, "Nothing was spent")


def price_of(
    asked: Request, header: Sequence[str], file: FileFormat
) -> tuple[Price, Request, list[str]]:
    """Return what ε pays for before the fit, from a table's header and options alone.

    Args:
        asked: the request, which is checked.
        header: names of the columns.
        file: how the table's file is written.

    Returns:
        The price, and the request and the header without the column of persons.
    """
    public, rows = asked.public.in_file(header, file), asked.rows_of_person
    if asked.person:
        header, public = without_unit(header, asked.person), public.of_unit(asked.person)[1]
    asked = with_terms(replace(asked, public=public), header)
    check_request(asked)
    purchase, left = purchase_of(asked, header), asked.whole(rows)
    free = purchase.empty or asked.public.from_data
    check(asked, purchase, left)
    need = 0 if free else purchase.need(asked.row_distance(left))
    columns = {} if free else purchase.estimated_kinds
    price = Price(asked.epsilon, columns, need, round(asked.too_few * need))
    return price, asked, [*header]


def promising(
    asked: Request,
    features: int,
    share: float,
    left: Allowance | None = None,
    columns: int | None = None,
) -> None:
    """Refuse intervals if the declared number of records is too small.

    Args:
        asked: the request.
        features: number of features of the model.
        share: share of μ² for private preprocessing.
        left: the remaining ε of a ledger; None means all.
        columns: number of raw columns that the features encode, if known.

    Raises:
        TooFewRecordsError: if records are too few; it says what would suffice.
    """
    settings, left = setup(asked), left or asked.whole()
    if isinstance(settings.route, Intervals | NoisyScores):
        delta = (1 - estimates.NAMES if share else 1) * asked.delta
        spent = 0.0
        if share:
            spent = asked.distance**2 - (1 - share) * (left.rows * asked.row_distance(left)) ** 2
        rest = Allowance(asked.epsilon, delta, spent, left.budget, left.rows)
        settings.route.of_columns(columns).plan(settings.model, features, rest)


def _refuse_few(
    asked: Request,
    purchase: estimates.Purchase,
    records: float,
    need: int,
    left: Allowance,
    spent: str,
) -> None:
    """Raise TooFewRecordsError if preprocessing or intervals need more records."""
    if records >= asked.too_few * need:
        rows = asked.public.rows or min(max(records, FEWEST), MOST)
        share = 0.0 if purchase.empty else estimates.SHARE
        known = replace(asked, public=replace(asked.public, rows=rows))
        promising(known, purchase.fewest_features, share, left, len(purchase.names))
        return
    ways = [
        "public bounds and categories for these columns, which cost nothing (constants=, "
        "--constants FILE)"
    ]
    row = asked.row_distance(left)
    most = (max(records, 0.0) * row / estimates.NEED) ** 2
    if columns := estimates.numbers_of(most):
        ways.append(f"at most {several(columns, 'numeric column')} (drop=, --drop COLUMN)")
    variance = (1.1 * need * row / max(records, 1.0)) ** 2
    epsilon = math.inf
    if variance < largest_variance(HIGHEST, asked.delta):
        epsilon = gaussian_epsilon(variance, (1 - estimates.NAMES) * asked.delta)
    if epsilon < (math.inf if left.budget is None else left.budget.epsilon):
        ways.append(f"epsilon={epsilon:.2g} (--epsilon), if the ledger's budget allows it")
    raise TooFewRecordsError(
        f"about {max(records, 0):.0f} records are too few: ε = {asked.epsilon:g} needs about "
        f"{need} to estimate bounds and categories of "
        f"{several(len(purchase.estimated_kinds), 'column')} privately. "
        f"Options: {'; or '.join(ways)}. Nothing was fitted: {spent}"
    )


def _gaussian(distance: float, rounding: float) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=1 / distance, rounding=rounding)

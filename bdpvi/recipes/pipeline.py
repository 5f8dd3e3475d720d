"""What is done with a table before its fit: which rows, which constants, at which price."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bdpvi._runtime import validate
from bdpvi._runtime.keys import Key
from bdpvi.accounting.book import Priced
from bdpvi.accounting.bought import gaussian_distance
from bdpvi.accounting.events import SampledGaussian, Threshold
from bdpvi.accounting.gaussian import largest_variance
from bdpvi.accounting.ledger import Ledger
from bdpvi.accounting.worst_case import gaussian_epsilon, gaussian_guarantee
from bdpvi.datasets import bought
from bdpvi.datasets.cells import read_cell
from bdpvi.datasets.columns import OneHot
from bdpvi.datasets.encoding import Encoding
from bdpvi.dp.objective_plan import FEWEST, MOST, magnitude
from bdpvi.guides import GaussianGuide, MeanField
from bdpvi.recipes.noisy_scores import NoisyScores, family_of
from bdpvi.recipes.objective import ObjectivePerturbation
from bdpvi.recipes.recommended import for_intervals, recommended, settings_for
from bdpvi.recipes.rows import Rows
from bdpvi.releasing.guarantees import BAYESIAN, SPENT, Guarantee
from bdpvi.types import BudgetExceededError, TooFewRecordsError

if TYPE_CHECKING:
    from bdpvi.recipes.recipe import OfNumbers, Recipe

_DRAWS = 1000


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What is done with a table. All of it counts as public: it must not be chosen by the rows.

    Attributes:
        target: the yes/no column. Rows in which it is blank are left out, each by itself.
        positive: its value that counts as 1; every other one counts as 0.
        epsilon, delta: of everything together: constants and draws.
        draws: number of posterior samples.
        base_rate: a public guess of the fraction of class 1.
        expected_rows: N as the owner declares it, within a factor of 3; it is published, rounded
            to 1, 2 or 5 times a power of ten. Without it a noisy count is bought.
        constants: public ones, for some columns or all; they cost nothing. The others are bought.
        from_data: the consent to exact constants, read from this table and published. ε then does
            not cover them.
        drop: columns to leave out.
        categorical, numeric: columns whose kind is public; the kinds of others are bought.
        hashed: whether categories are hashed instead of counted. None: where the noisy number of
            records says that few names would be counted.
        settings: of the fit; those of :func:`bdpvi.recommended` by default.
        guide: kind of a guide to draw from, in place of objective perturbation.
        model: a regression of numbers or counts in place of yes and no; its target is the column's
            number, and rows in which that is none are left out, each by itself. It goes by
            :class:`bdpvi.NoisyScores`.
        intervals: whether the release is for inference: coefficients with intervals that cover,
            by :class:`bdpvi.NoisyScores`; the number of draws has no price then, and 1 means 1,000.
        guarantee: as for :func:`bdpvi.release`.
        name: what reports call the data.
        measuring: further options of :func:`bdpvi.datasets.dataset_from_frame`, with
            ``from_data``.
    """

    target: str
    positive: object = None
    epsilon: float
    delta: float = 1e-5
    draws: int = 1
    base_rate: float | None = None
    expected_rows: float | None = None
    constants: Encoding | None = None
    from_data: bool = False
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    numeric: Sequence[str] = ()
    hashed: bool | None = None
    settings: Recipe | None = None
    guide: type[GaussianGuide] | None = None
    model: OfNumbers | None = None
    intervals: bool = False
    guarantee: Guarantee | None = None
    name: str = "data"
    measuring: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validate.positive("epsilon", self.epsilon)
        validate.probability("delta", self.delta)
        validate.positive_int("draws", self.draws)
        if self.base_rate is not None:
            validate.probability("base_rate", self.base_rate)
        if self.expected_rows is not None:
            magnitude(self.expected_rows)
        if self.model is not None:
            self._check_model()
        elif self.positive in (None, "") or read_cell(self.positive)[2]:
            raise ValueError(
                f"positive={self.positive!r}: say which value of {self.target!r} counts as 1; it "
                "is not taken from the rows"
            )
        of_guide = {"settings": self.settings, "guide": self.guide}
        for name, value in of_guide.items() if self.scored else ():
            if value is not None:
                raise ValueError(f"{name}={value!r:.80}: a release for intervals takes none")
        if self.scored and self.guarantee is not None and self.guarantee.name == BAYESIAN:
            raise ValueError(f"guarantee={BAYESIAN}: a release for intervals has a worst case")
        if self.from_data and self.constants is not None:
            raise ValueError("from_data=True and constants were both given; give one")

    def _check_model(self) -> None:
        """Refuse what goes with yes and no alone."""
        assert self.model is not None
        family_of(self.model)
        for name in ("positive", "base_rate", "from_data"):
            if (value := getattr(self, name)) not in (None, "", False):
                raise ValueError(
                    f"{name}={value!r}: a {self.model.kind} regression takes none; leave it out"
                )

    @property
    def scored(self) -> bool:
        """Whether the release is by noisy scores, which have intervals."""
        return self.intervals or self.model is not None

    @cached_property
    def distance(self) -> float:
        """Distance μ of everything together, where constants are bought."""
        return gaussian_distance(self.epsilon, (1 - bought.NAMES) * self.delta)

    def left(self, ledger: Ledger, work: str = "") -> Left:
        """Return what the ledger leaves of ε for this work, whose own charges do not count.

        Raises:
            BudgetExceededError: if that is nothing, or ε is beyond the ledger's budget.
            ValueError: if what was spent has no worst-case price.
        """
        spent = 0.0
        if any(one.of != work for one in ledger.entries()):
            found = ledger.worst_case(self.delta, without=work)
            if found is None:
                raise ValueError(
                    f"epsilon={self.epsilon:g}: nothing bounds what was released from this table "
                    f"before, so what it leaves is not known; {ledger.said()}"
                )
            spent = found.distance or math.sqrt(_variance(found.epsilon, self.delta))
        rest = self.distance**2 - spent**2
        if rest < SPENT * self.distance**2:
            raise BudgetExceededError(
                f"epsilon={self.epsilon:g} is spent on this table; {ledger.said(work)}. A larger ε "
                "is that of everything together"
            )
        limit = ledger.budget
        if limit is not None:
            whole = gaussian_epsilon(self.distance**2, (1 - bought.NAMES) * limit.delta)
            if whole > limit.epsilon * (1 + 1e-9):
                raise BudgetExceededError(
                    f"epsilon={self.epsilon:g} at δ = {self.delta:g} is over the budget of "
                    f"ε = {limit.epsilon:g} at δ = {limit.delta:g}; {ledger.said(work)}"
                )
        return Left(math.sqrt(rest) / ledger.rows_per_unit, ledger.rows_per_unit, bool(spent))

    def purchase(self, header: Sequence[str]) -> bought.Purchase:
        """Return what has to be bought for a table with this header."""
        return bought.Purchase.of(
            header,
            target=self.target,
            public=self.constants,
            drop=self.drop,
            categorical=self.categorical,
            numeric=self.numeric,
            hashed=bool(self.hashed),
        )

    def chosen(self, left: Left | None = None, found: Encoded | None = None) -> Recipe:
        """Return the settings of the fit, for what constants leave of ε.

        How much that is may follow from the noisy number of records: the total never exceeds a μ²
        that was fixed before (Smith and Thakurta 2022: fully adaptive composition).

        Objective perturbation is taken but for a Bayesian guarantee, which follows from records
        left out, for several rows of one person, which only Gaussian noise has a price for, and
        where a guide is asked for.

        Args:
            left: what the ledger leaves of ε; None is all.
            found: what was bought.
        """
        if self.settings is not None:
            return self.settings
        more: Any = {"draws": self.draws, "base_rate": self.base_rate}
        known = self.expected_rows
        if known is None and found is not None and found.records is not None:
            known = min(max(found.records, FEWEST), MOST)
        if self.scored:
            more["draws"] = _DRAWS if self.draws == 1 else self.draws
            usual = for_intervals(expected_rows=known, **more)
            return usual if self.model is None else replace(usual, model=self.model)
        rows, paid = (left.rows if left else 1), (found.paid if found else ())
        bayesian = self.guarantee is not None and self.guarantee.name == BAYESIAN
        if self.guide is None and not bayesian and rows == 1:
            recipe = recommended(
                self.epsilon, delta=self.delta, expected_rows=self.expected_rows, **more
            )
            if self.expected_rows is None and found is not None and found.records is not None:
                assert isinstance(recipe.route, ObjectivePerturbation)
                route = recipe.route.of_rows(found.records)
                recipe = replace(recipe, route=route)
            return recipe
        more |= {"guide": self.guide or MeanField, "expected_rows": known}
        if not paid and (left is None or (not left.spent and rows == 1)):
            return recommended(self.epsilon, delta=self.delta, **more)
        whole = self.distance if left is None else left.distance
        rest = whole**2 - math.fsum(one**2 for one in paid)
        return settings_for(math.sqrt(rest), **more)


def _variance(epsilon: float, delta: float) -> float:
    return largest_variance(epsilon, delta) if epsilon else 0.0


@dataclass(frozen=True)
class Left:
    """What a ledger leaves for a work.

    Attributes:
        distance: μ of one row.
        rows: k of one unit.
        spent: whether anything was spent before.
    """

    distance: float
    rows: int = 1
    spent: bool = False


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


Pay = Callable[[tuple[Priced, ...]], None]
"""Charges what is about to be drawn."""


def unpaid(events: tuple[Priced, ...]) -> None:
    """Charge nothing: for the owner's eyes only."""


def encode(
    rows: Rows,
    pipeline: Pipeline,
    key: Key,
    *,
    left: Left | None = None,
    pay: Pay = unpaid,
    feasible: bool = True,
) -> Encoded:
    """Return the constants of a table: public or bought.

    Args:
        rows: of the table.
        pipeline: what is done.
        key: that all randomness follows from.
        left: what a ledger leaves of ε; None is all.
        pay: called before anything is drawn.
        feasible: whether to refuse where there are too few records. That is decided by their noisy
            number, which is paid for.

    Raises:
        TooFewRecordsError: saying what would do.
    """
    purchase = pipeline.purchase([*rows.columns, pipeline.target])
    if purchase.empty:
        assert pipeline.constants is not None
        return Encoded(bought.public_encoding(pipeline.constants))
    left = left or Left(pipeline.distance)
    mine = left.distance * math.sqrt(bought.SHARE)
    distance = mine * math.sqrt(bought.COUNTS)
    pay((_gaussian(distance, bought.count_rounding(purchase, distance)),))
    first = bought.count(rows.columns, purchase, distance=distance, key=key.child("count"))
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
    paid: tuple[float, ...] = (distance,)
    if wanted.queries:  # nothing is bought where all columns are hashed
        rounding = bought.rounding(wanted, price["distance"])
        pay((_gaussian(price["distance"], rounding), *_names(wanted, price)))
        paid += (price["distance"],)
    second = bought.buy(rows.columns, wanted, **price, key=key.child("buy"))
    return Encoded(second, paid, first.records, need)


def _promising(pipeline: Pipeline, records: float, features: int, distance: float) -> None:
    """Raise TooFewRecordsError if intervals would not pass; categories have more features yet."""
    settings = replace(pipeline, expected_rows=None).chosen()
    assert isinstance(settings.route, NoisyScores)
    rest = distance**2 * (1 - bought.SHARE)
    settings.route.of_rows(records).promise(settings.model, features, rest, pipeline.epsilon)


def _gaussian(distance: float, rounding: float) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=1 / distance, rounding=rounding)


def _names(wanted: bought.Purchase, price: Mapping[str, Any]) -> tuple[Priced, ...]:
    return (Threshold(price["delta"]),) if wanted.named else ()


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

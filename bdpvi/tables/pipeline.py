"""The processing of a table before its fit: its rows, its preprocessing, and the price."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bdpvi._ground import validate
from bdpvi._ground.types import Budget, BudgetExceededError
from bdpvi.bayesian.guarantees import WORST_CASE, Guarantee
from bdpvi.datasets import estimates
from bdpvi.datasets.cells import read_cell
from bdpvi.datasets.columns import Numeric
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.origin import declared, target_bounds
from bdpvi.datasets.types import NAMES, NUMBERS, UNUSED, ColumnType, types_of
from bdpvi.guides import GaussianGuide, MeanField
from bdpvi.models.kinds import OfClasses, OfNumbers
from bdpvi.privacy.book import Book
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.privacy.gaussian_dp import gaussian_distance, gaussian_epsilon
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.left import SPENT, together
from bdpvi.programs.dpvi import DPVI
from bdpvi.regression.objective import ObjectivePerturbation
from bdpvi.regression.objective_plan import FEWEST, MOST, magnitude
from bdpvi.releases.persons import OTHER_PEOPLE
from bdpvi.tables.recipe import Recipe
from bdpvi.tables.recommended import for_intervals, recommended, settings_for

if TYPE_CHECKING:
    from bdpvi.datasets.schema import Schema
    from bdpvi.tables.rows import Encoded

_DRAWS = 1000


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The processing of a table. All of it counts as public: do not choose it by the rows.

    The fields are arguments of :func:`bdpvi.private`, which says what they are.
    """

    target: str
    positive: object = None
    epsilon: float
    delta: float = 1e-5
    draws: int = 1
    base_rate: float | None = None
    expected_rows: float | None = None
    constants: Encoding | None = None
    types: Schema | None = None
    from_data: bool = False
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    numeric: Sequence[str] = ()
    hashed: bool | None = None
    settings: Recipe | None = None
    guide: type[GaussianGuide] | None = None
    model: OfNumbers | OfClasses | None = None
    classes: Sequence[object] = ()
    exposure: str = ""
    intervals: bool = False
    guarantee: Guarantee | None = None
    name: str = "data"
    measuring: Mapping[str, Any] = field(default_factory=dict)
    other_people: bool = False

    def __post_init__(self) -> None:
        validate.epsilon(self.epsilon)
        validate.probability("delta", self.delta)
        validate.positive_int("draws", self.draws)
        if self.base_rate is not None:
            validate.probability("base_rate", self.base_rate)
        if self.expected_rows is not None:
            magnitude(self.expected_rows)
        self._check_labels()
        if self.model is not None:
            self._check_model()
        elif self.positive in (None, "") or read_cell(self.positive, self.target_type)[2]:
            raise ValueError(
                f"positive={self.positive!r}: say which value of {self.target!r} counts as 1; it "
                "is not taken from the rows"
            )
        if self.intervals or self.model is not None:
            what = "intervals" if self.model is None else f"{self.model.kind} regression"
            for name in ("settings", "guide"):
                if (value := getattr(self, name)) is not None:
                    raise ValueError(f"{name}={value!r:.80}: a release for {what} takes none")
            if self.guarantee is not None and self.guarantee.name != WORST_CASE:
                raise ValueError(
                    f"guarantee={self.guarantee.name}: a release for {what} has a worst case"
                )
        if self.from_data and self.constants is not None:
            raise ValueError("from_data=True and constants were both given; give one")

    def _check_labels(self) -> None:
        """Refuse a positive value or classes that the target's declared levels lack."""
        type_ = self.target_type
        if type_ is None or type_.names is None:
            return
        asked = [self.positive] if self.model is None else self.classes
        for value in asked:
            if value not in (None, "") and (label := read_cell(value, type_)[1]) not in type_.names:
                name = "positive" if self.model is None else "classes"
                raise ValueError(
                    f"{name}={value!r}: types declares {type_.names} for the target "
                    f"{self.target!r}, and not {label or value!r}"
                )

    def _check_model(self) -> None:
        """Refuse options that do not suit the model."""
        assert self.model is not None
        for name in ("positive", "base_rate", "from_data"):
            if (value := getattr(self, name)) not in (None, "", False):
                raise ValueError(
                    f"{name}={value!r}: a {self.model.kind} regression takes none; leave it out"
                )
        wanted = self.model.classes if isinstance(self.model, OfClasses) else 0
        labels = self.labels
        if len(labels) != wanted or len({*labels} - {""}) != wanted:
            raise ValueError(
                f"classes={[*self.classes]!r}: a {self.model.kind} regression wants "
                + (f"{wanted} different values of {self.target!r}" if wanted else "none")
            )
        if self.exposure and getattr(self.model, "exposure", 0) is not None:
            raise ValueError(
                f"exposure={self.exposure!r}: it goes with a model of counts that has no exposure "
                f"of its own, not with {self.model!r:.80}"
            )

    @property
    def scored(self) -> bool:
        """Whether the route is noisy scores."""
        if self.model is None:
            return self.intervals
        return (
            self.model.score_parts is not None
            and not self.exposure
            and getattr(self.model, "exposure", None) is None
        )

    @property
    def what(self) -> str:
        """The release in words, for the ledger."""
        kind = "logistic" if self.model is None else self.model.kind
        purpose = " with intervals" if self.intervals and self.model is None else ""
        return f"private: {kind} regression of {self.target!r}{purpose}"

    @property
    def trained(self) -> bool:
        """Whether the route is private variational inference."""
        return self.model is not None and not self.scored

    @property
    def types_used(self) -> dict[str, ColumnType]:
        """Types by which the columns' cells are read: declared ones, and names as written."""
        return types_of(self.categorical, {} if self.types is None else self.types.read_by)

    @property
    def target_type(self) -> ColumnType | None:
        """The declared type of the target, if any."""
        return None if self.types is None else self.types.read_by.get(self.target)

    @property
    def labels(self) -> list[str]:
        """The names of the classes."""
        return [read_cell(one, self.target_type)[1] for one in self.classes]

    @property
    def positive_label(self) -> str:
        """The name of the positive value."""
        return read_cell(self.positive, self.target_type)[1]

    @cached_property
    def public(self) -> Encoding | None:
        """The public preprocessing, with the exposure's column unchanged."""
        found = self._declared_constants()
        if self.exposure:
            exposure = Numeric(self.exposure, mean=0.0, sd=1.0)
            columns = () if found is None else found.columns
            columns = (*(one for one in columns if one.name != self.exposure), exposure)
            source = "The exposure as it is" if found is None else found.source
            found = Encoding(columns, source) if found is None else replace(found, columns=columns)
        return None if found is None else found.typed(self.types_used)

    def _declared_constants(self) -> Encoding | None:
        """Return the constants, and those of other columns that types declare."""
        from bdpvi.datasets.constants import constants_in

        given = self.constants
        known = {one.name for one in given.columns} if given else set()
        more = None
        if self.types is not None:
            columns = {
                name: one
                for name, one in self.types.bounded.items()
                if name not in {*known, *self.drop, self.target}
            }
            more = constants_in(replace(self.types, columns=columns)) if columns else None
        if given is None or more is None:
            return given or more
        sources = dict.fromkeys((given.source, more.source))
        both = replace(given, columns=(*given.columns, *more.columns), source="; ".join(sources))
        return both.of([*given.origins, *more.origins], given.purchases)

    @property
    def declared(self) -> dict[str, str]:
        """The owner's declarations about the table, in words."""
        known = {one.name for one in self.public.columns} if self.public else set()
        numeric, categorical = (
            tuple(one for one in some if one not in {*self.drop, *known})
            for some in (self.numeric, self.categorical)
        )
        hashed = self.hashed
        return declared(
            positive=None if self.positive is None else self.positive_label,
            classes=tuple(self.labels),
            **({} if self.types is None else self.types.kinds),
            numeric=numeric,
            categorical=categorical,
            categories=None if hashed is None else "hashed" if hashed else "counted",
            columns_left_out=len(self.drop) or None,
            exposure=self.exposure,
            target_bounds=target_bounds(self.model),
            base_rate=self.base_rate,
            rows=about(self.expected_rows),
            settings=None if self.settings is None else "given",
            people=OTHER_PEOPLE if self.other_people else None,
        )

    @cached_property
    def distance(self) -> float:
        """Distance μ of the total, with private preprocessing."""
        return gaussian_distance(self.epsilon, (1 - estimates.NAMES) * self.delta)

    def left(self, ledger: Ledger, before: Book) -> Remaining:
        """Return the remaining ε of the ledger.

        Args:
            ledger: ledger of the table.
            before: charges before this work.

        Raises:
            BudgetExceededError: if nothing remains, or ε is beyond the ledger's budget.
            ValueError: if earlier charges have no worst-case price.
        """
        spent = 0.0
        if before.entries:
            found = together(before, self.delta, {})
            if found is None:
                raise ValueError(
                    f"epsilon={self.epsilon:g}: an earlier release of this table has no "
                    f"worst-case guarantee, so the remaining budget is unknown; {ledger.history()}"
                )
            spent = found.distance or math.sqrt(_variance(found.epsilon, self.delta))
        rest = self.distance**2 - spent**2
        if rest < SPENT * self.distance**2:
            raise BudgetExceededError(
                f"epsilon={self.epsilon:g} is already spent on this table; {ledger.history()}. ε "
                "is the total of all releases, so a further one needs a larger ε"
            )
        limit = before.budget
        if limit is not None:
            whole = gaussian_epsilon(self.distance**2, (1 - estimates.NAMES) * limit.delta)
            if whole > limit.epsilon * (1 + 1e-9):
                raise BudgetExceededError(
                    f"epsilon={self.epsilon:g} at δ = {self.delta:g} is over the budget of "
                    f"ε = {limit.epsilon:g} at δ = {limit.delta:g}; {ledger.history()}"
                )
        return Remaining(math.sqrt(rest) / before.rows, before.rows, bool(spent), limit)

    def purchase(self, header: Sequence[str]) -> estimates.Purchase:
        """Return the private preprocessing that a table with this header needs.

        Raises:
            ValueError: if an option, which it names, names a missing column.
        """
        names = [str(name).strip() for name in header]
        if self.exposure and (self.exposure == self.target or self.exposure not in names):
            raise ValueError(f"exposure={self.exposure!r} must be a column other than the target")
        drop, numbers, categories = self._kinds(names)
        return estimates.Purchase.of(
            header,
            target=self.target,
            public=self.public,
            drop=drop,
            categorical=[*self.categorical, *categories],
            numeric=[*self.numeric, *numbers],
            hashed=bool(self.hashed),
        )

    def _kinds(self, names: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        """Return the columns to leave out, and those that types declare as numbers or names."""
        types = {} if self.types is None else self.types.of_header(names)
        kinds = {name: one.kind for name, one in types.items() if name in names}
        for argument, some, others in (
            ("numeric", self.numeric, NAMES),
            ("categorical", self.categorical, NUMBERS),
        ):
            if both := [name for name in some if kinds.get(name) in others]:
                raise ValueError(f"{argument} names {both[0]!r}, whose kind is {kinds[both[0]]}")
        out = [*self.drop, *(n for n, kind in kinds.items() if kind in UNUSED)]
        out = [name for name in dict.fromkeys(out) if name != self.target or name in self.drop]
        used = {name: kind for name, kind in kinds.items() if name not in {*out, self.target}}
        numbers, categories = (
            [name for name, kind in used.items() if kind in some] for some in (NUMBERS, NAMES)
        )
        return out, numbers, categories

    def chosen(self, left: Remaining | None = None, found: Encoded | None = None) -> Recipe:
        """Return the settings of the fit, for the ε that remains after preprocessing.

        They may depend on the noisy number of records; the charge does not
        (:mod:`bdpvi.privacy.dominating`), except for draws from a guide: those are Gaussian,
        and the total never exceeds a μ² fixed before (Smith and Thakurta 2022: fully adaptive
        composition).

        The default is objective perturbation. Draws from a guide replace it for a Bayesian
        guarantee, which follows from leave-one-out fits, and if a guide is given.

        Args:
            left: the remaining ε of the ledger; None means all.
            found: the private preprocessing.
        """
        if self.settings is not None:
            return self.settings
        more: Any = {"draws": self.draws, "base_rate": self.base_rate}
        known: Any = self.expected_rows
        if counted := known is None and found is not None and found.records is not None:
            known = min(max(found.records, FEWEST), MOST)
        if self.scored or self.trained:
            more["draws"] = _DRAWS if self.draws == 1 else self.draws
        if self.trained:
            model: Any = self.model
            if found is not None:
                model = replace(model, levels=found.encoding.one_hot)
                if self.exposure:
                    exposure = found.encoding.places[self.exposure][0]
                    model = replace(model, exposure=exposure)
            training = DPVI(rows=self.expected_rows, draws=more["draws"])
            return Recipe(model=model, route=training.of_rows(known) if counted else training)
        if self.scored:
            usual = for_intervals(expected_rows=self.expected_rows, **more)
            either: Any = usual.route
            usual = replace(usual, route=either.of_rows(known)) if counted else usual
            if self.model is not None:
                usual = replace(usual, model=self.model)
            if found is None:
                return usual
            levels = "one_hot" if self.model is None else "levels"
            told: Any = {levels: found.encoding.one_hot}
            return replace(usual, model=replace(usual.model, **told))
        rows, paid = (left.rows if left else 1), (found.paid if found else ())
        bayesian = self.guarantee is not None and self.guarantee.name != WORST_CASE
        if self.guide is None and not bayesian:
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


def about(rows: float | None) -> str | None:
    """Return a declared number of rows in words, rounded for publication."""
    return None if rows is None else f"about {magnitude(rows):,.0f}"


def _variance(epsilon: float, delta: float) -> float:
    return largest_variance(epsilon, delta) if epsilon else 0.0


@dataclass(frozen=True)
class Remaining:
    """The allowance of a work under its ledger.

    Attributes:
        distance: μ of one row.
        rows: k, the most rows of one unit.
        spent: whether there are earlier charges.
        budget: budget of the ledger, if it has one.
    """

    distance: float
    rows: int = 1
    spent: bool = False
    budget: Budget | None = None

    @classmethod
    def whole(cls, distance: float, rows: int) -> Remaining:
        """Return the allowance before any charge, for units of at most this many rows.

        Args:
            distance: μ of one unit.
            rows: k.
        """
        return cls(distance / rows, rows)

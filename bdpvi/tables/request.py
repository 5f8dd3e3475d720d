"""What is asked of a table. All of it counts as public: do not choose it by the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from bdpvi._ground.types import Machine as Machine
from bdpvi._ground.types import Unit as Unit
from bdpvi.tables.public import Public as Public

if TYPE_CHECKING:  # so that a command's help is quick
    from bdpvi.bayesian.gated.route import PosteriorDraws
    from bdpvi.bayesian.guarantees import Guarantee
    from bdpvi.datasets.encoding import Encoding
    from bdpvi.datasets.terms import Term
    from bdpvi.datasets.types import ColumnType
    from bdpvi.models.kinds import OfClasses, OfNumbers
    from bdpvi.releases.route import Allowance


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a table: :func:`bdpvi.private` takes the fields.

    Args:
        target: Column to predict, yes or no unless there is a model; or a formula, such as
            "sick ~ age * ward + bs(bmi, df=4)", whose columns alone are used. Rows with a blank
            target are left out, independently of each other.
        positive: Value of the target that counts as 1; all others count as 0.
        epsilon: ε of everything spent on the table, earlier charges included: private preprocessing
            and model. 0.1 is strong, 1 is usual, above 3 is weak.
        delta: δ of the same.
        draws: Number of posterior samples. With a model or for intervals it has no price, and 1
            means 1,000.
        model: A regression for numbers, counts, classes or times instead of yes and no. Rows with
            another kind of target are left out, independently of each other. Linear and Poisson
            regression use :class:`bdpvi.regression.NoisyScores`; others, and any with an exposure,
            :class:`bdpvi.DPVI`.
        intervals: Whether the release is for inference: coefficients with intervals that account
            for sampling and privacy noise, by :class:`bdpvi.regression.NoisyScores` or, for many
            features, :class:`bdpvi.DPVI`.
        guarantee: :class:`bdpvi.WorstCaseDP`, the default, or :class:`bdpvi.BayesianDP`, about a
            random record: then the release is a draw from the posterior, and all constants must be
            public.
        public: What is known of the table without its rows.
        unit: Whom ε protects: the column of persons, whose rows are all covered, or a
            :class:`bdpvi.tables.Unit`. A file needs one.
        name: Name of the data in reports; by default that of the file or data set.
        formula: The formula, if the target is one.
        terms: Its terms, once the columns are known.
    """

    target: str = ""
    positive: object = None
    epsilon: float
    delta: float = 1e-5
    draws: int | PosteriorDraws = 1
    model: OfNumbers | OfClasses | None = None
    intervals: bool = False
    guarantee: Guarantee | None = None
    public: Public = field(default_factory=Public)
    unit: Unit | None = None
    name: str = ""
    formula: str = ""
    terms: tuple[Term, ...] = ()

    def __post_init__(self) -> None:
        if "~" in self.target:
            from bdpvi.datasets.formula import target_of

            object.__setattr__(self, "formula", " ".join(self.target.split()))
            object.__setattr__(self, "target", target_of(self.target))
        if (event := self.public.event) and event not in self.public.drop:  # no feature
            public = replace(self.public, drop=(*self.public.drop, event))
            object.__setattr__(self, "public", public)
        if self.groups_are_features and self.public.group not in self.public.kinds:
            groups = (*self.public.categorical, self.public.group)
            object.__setattr__(self, "public", replace(self.public, categorical=groups))

    @property
    def number(self) -> int:
        """The number of posterior samples."""
        return self.draws if isinstance(self.draws, int) else self.draws.draws

    @property
    def person(self) -> str:
        """The column of persons; "" if there is none."""
        return "" if self.unit is None else self.unit.column

    @property
    def rows_of_person(self) -> int:
        """The most rows used of each person."""
        return 1 if self.unit is None else self.unit.rows

    @property
    def one_row_per_person(self) -> bool:
        """Whether it is said that everybody has one row."""
        return self.unit is not None and self.unit.one_row

    @property
    def groups_are_records(self) -> bool:
        """Whether a record is a group of rows, in a mixed model."""
        return bool(self.public.group) and self.public.group == self.person

    @property
    def groups_are_features(self) -> bool:
        """Whether a row's group is a feature, in a mixed model."""
        return bool(self.public.group) and not self.groups_are_records

    @property
    def bayesian(self) -> bool:
        """Whether the guarantee is not worst-case."""
        from bdpvi.bayesian.guarantees import WORST_CASE

        return self.guarantee is not None and self.guarantee.name != WORST_CASE

    @property
    def uses_noisy_scores(self) -> bool:
        """Whether the route is noisy scores."""
        if self.public.group:
            return False
        if self.model is None:
            return self.intervals
        usual = self.model.score_parts is not None and not self.public.exposure
        return usual and getattr(self.model, "exposure", None) is None

    @property
    def what(self) -> str:
        """The release in words, for the ledger."""
        kind = "logistic" if self.model is None else self.model.kind
        kind = f"mixed {kind}" if self.public.group else kind
        purpose = " with intervals" if self.intervals and self.model is None else ""
        return f"private: {kind} regression of {self.target!r}{purpose}"

    @property
    def uses_dpvi(self) -> bool:
        """Whether the route is private variational inference."""
        if self.public.group:
            return self.groups_are_records
        return self.model is not None and not self.uses_noisy_scores

    @property
    def too_few(self) -> float:
        """The multiple of the rows that private preprocessing needs, below which it is refused."""
        from bdpvi.datasets.estimates import TOO_FEW, TOO_FEW_YES_NO

        other = self.model is not None or self.intervals or self.public.group
        usual = isinstance(self.draws, int) and not other
        return TOO_FEW_YES_NO if usual else TOO_FEW

    @property
    def target_type(self) -> ColumnType | None:
        """The declared type of the target, if any."""
        types = self.public.types
        return None if types is None else types.read_by.get(self.target)

    def label(self, value: object) -> str:
        """Return the name of a value of the target."""
        from bdpvi.datasets.cells import read_cell

        return read_cell(value, self.target_type)[1]

    @property
    def labels(self) -> list[str]:
        """The names of the classes."""
        return [self.label(class_) for class_ in self.public.classes]

    @cached_property
    def distance(self) -> float:
        """Distance μ of the total, with private preprocessing."""
        from bdpvi.datasets.estimates import NAMES
        from bdpvi.privacy.gaussian_dp import gaussian_distance

        return gaussian_distance(self.epsilon, (1 - NAMES) * self.delta)

    def whole(self, rows: int = 1) -> Allowance:
        """Return the allowance before any charge, for units of at most this many rows."""
        from bdpvi.releases.route import Allowance

        return Allowance(self.epsilon, self.delta, 0.0, rows=rows)

    def row_distance(self, left: Allowance) -> float:
        """Return the distance μ of one row that an allowance leaves."""
        return math.sqrt(self.distance**2 - left.variance) / left.rows

    @cached_property
    def constants(self) -> Encoding | None:
        """The public preprocessing, with the exposure's column unchanged."""
        from bdpvi.datasets.columns import Numeric
        from bdpvi.datasets.encoding import Encoding

        found = self._declared_constants()
        if name := self.public.exposure:
            exposure = Numeric(name, mean=0.0, sd=1.0)
            columns = () if found is None else found.columns
            columns = (*(column for column in columns if column.name != name), exposure)
            source = "The exposure as it is" if found is None else found.source
            found = Encoding(columns, source) if found is None else replace(found, columns=columns)
        return None if found is None else found.typed(self.public.read_by)

    def _declared_constants(self) -> Encoding | None:
        """Return the constants, and those of other columns that types declare."""
        from bdpvi.datasets.constants import constants_in

        given, types = self.public.constants, self.public.types
        known = {column.name for column in given.columns} if given else set()
        more = None
        if types is not None:
            columns = {
                name: one
                for name, one in types.bounded.items()
                if name not in {*known, *self.public.left_out, self.target}
            }
            more = constants_in(replace(types, columns=columns)) if columns else None
        if given is None or more is None:
            return given or more
        sources = dict.fromkeys((given.source, more.source))
        both = replace(given, columns=(*given.columns, *more.columns), source="; ".join(sources))
        return both.of([*given.origins, *more.origins], given.purchases)

    @property
    def declarations(self) -> dict[str, str]:
        """The owner's declarations about the table, in words."""
        from bdpvi.datasets.origin import declarations, target_bounds
        from bdpvi.datasets.weights import weight_words
        from bdpvi.releases.persons import OTHER_PEOPLE
        from bdpvi.releases.row_counts import about

        public = self.public
        known = {column.name for column in self.constants.columns} if self.constants else set()
        numeric, categorical = (
            tuple(one for one in some if one not in {*public.drop, *known})
            for some in (public.numeric, public.categorical)
        )
        hashed = public.hashed
        return declarations(
            positive=None if self.positive is None else self.label(self.positive),
            classes=tuple(self.labels),
            formula=self.formula,
            **({} if public.types is None else public.types.kinds),
            numeric=numeric,
            categorical=categorical,
            categories=None if hashed is None else "hashed" if hashed else "counted",
            columns_left_out=len({*public.drop} - {public.event}) or None,
            exposure=public.exposure,
            weights=weight_words(public.weights, public.weights, public.largest_weight),
            event=public.event,
            group=public.group,
            target_bounds=target_bounds(self.model),
            base_rate=public.base_rate,
            rows=about(public.rows),
            people=OTHER_PEOPLE if self.unit and self.unit.other_people else None,
        )

"""What is asked of a table. All of it counts as public: do not choose it by the rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from bdpvi._ground import validate
from bdpvi._ground.types import Machine as Machine
from bdpvi._ground.types import Unit as Unit

if TYPE_CHECKING:  # so that a command's help is quick
    from bdpvi.bayesian.gated.route import PosteriorDraws
    from bdpvi.bayesian.guarantees import Guarantee
    from bdpvi.datasets.encoding import Encoding
    from bdpvi.datasets.formats import FileFormat
    from bdpvi.datasets.schema import Schema
    from bdpvi.datasets.terms import Term
    from bdpvi.datasets.types import ColumnType
    from bdpvi.models.kinds import OfClasses, OfNumbers
    from bdpvi.releases.route import Allowance


@dataclass(frozen=True, kw_only=True)
class Public:
    """What is known of a table without its rows; it costs no ε.

    Args:
        types: Declared types of columns, with public bounds and levels of some: they decide how
            cells are read, here and in new rows, and go with the release. Identifiers and text are
            left out.
        constants: Public bounds, scales and categories of some or all columns, which are then not
            estimated privately.
        from_data: Consent to publish exact means, standard deviations and categories of this table,
            which ε does not cover.
        drop: Columns to leave out, such as identifiers.
        categorical: Categorical columns, though they hold numbers or many different values.
        numeric: Numeric columns. A kind given neither by this nor as categorical is estimated
            privately too.
        hashed: Whether categories without public levels are hashed, at no cost and without names,
            instead of counted, one feature for each sufficiently frequent name. By default hashed
            if a name would need more than a tenth of the records, by their noisy number.
        exposure: Column with the exposure of each row, such as years at risk, for a model of
            counts; used unchanged, at no cost. Rows without a positive exposure are left out.
        event: Column that says whether a time is that of the event: yes or no, true or false, 1 or
            0, or a declared Boolean. Rows where it says neither are left out.
        classes: The target's classes, in order for an ordinal model.
        base_rate: Public guess of the fraction of class 1, where one class is rare. Never take it
            from the table.
        rows: Public number of rows of the table, within a factor of 3, such as 1e4. It is
            published, rounded to 1, 2 or 5 times a power of ten. By default the number is estimated
            privately.
        missing: How to treat blanks, with exact preprocessing bounds: refuse; drop, which leaves
            their rows out; level, which makes a blank a category of its own.
        unknown: How to treat an unknown category, a blank or a missing column, with exact
            preprocessing bounds: refuse, or base, which uses the column's public mean. The choice
            is stored in the model.
        encoding: Encoding of categories, with exact preprocessing bounds: onehot, one feature for
            each; ordinal, its position.
    """

    types: Schema | None = None
    constants: Encoding | None = None
    from_data: bool = False
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    numeric: Sequence[str] = ()
    hashed: bool | None = None
    exposure: str = ""
    event: str = ""
    classes: Sequence[object] = ()
    base_rate: float | None = None
    rows: float | None = None
    missing: str = "refuse"
    unknown: str = ""
    encoding: str = "onehot"

    def __post_init__(self) -> None:
        if self.base_rate is not None:
            validate.probability("base_rate", self.base_rate)
        if self.rows is not None:
            from bdpvi.releases.row_counts import magnitude

            magnitude(self.rows)
        if self.from_data and self.constants is not None:
            raise ValueError("from_data=True and constants were both given; give one")
        for name in ("missing", "unknown", "encoding"):
            if (value := getattr(self, name)) != getattr(Public, name) and not self.from_data:
                raise ValueError(
                    f"{name}={value!r}: blanks and unknown categories become levels of their own; "
                    "this option needs from_data (--from-data); leave it out"
                )

    @property
    def measuring(self) -> dict[str, str]:
        """Options of :func:`bdpvi.datasets.dataset_from_frame` for exact constants."""
        given = {name: getattr(self, name) for name in ("missing", "encoding", "unknown")}
        return {name: one for name, one in given.items() if one}

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Columns with declared bounds or levels, or a declared kind, and their kinds."""
        from bdpvi.score.reading import ANY

        result = dict.fromkeys(self.categorical, "category") | dict.fromkeys(self.numeric, "number")
        if self.constants is not None:
            result |= {
                column.name: "number" if column.kind == "numeric" else "category"
                for column in self.constants.columns
            }
        if self.types is not None:
            result |= {
                name: "category" if one.bounds is None else "number"
                for name, one in self.types.bounded.items()
            }
            result |= {n: one.kind for n, one in self.types.read_by.items() if one.kind != ANY}
        return result

    @property
    def read_by(self) -> dict[str, ColumnType]:
        """Types by which the columns' cells are read: declared ones, and names as written."""
        from bdpvi.datasets.types import types_of

        return types_of(self.categorical, {} if self.types is None else self.types.read_by)

    def in_file(self, header: Sequence[str], file: FileFormat) -> Public:
        """Return the same for a file's columns: what does not say its signs has the file's."""
        from bdpvi.datasets.schema import in_file

        return replace(self, types=in_file(self.types, header, file))

    def of_unit(self, unit: str) -> tuple[ColumnType | None, Public]:
        """Return the declared type of the column of persons, and what is known of the others."""
        if self.types is None:
            return None, self
        type_, others = self.types.of_unit(unit)
        return type_, replace(self, types=others)


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

    def with_terms(self, header: Sequence[str]) -> Request:
        """Return the request with its formula's terms, of these columns alone.

        Raises:
            ValueError: naming what the formula, the columns or what is declared of them lack.
        """
        if not self.formula or self.terms:
            return self
        from bdpvi.datasets.columns import OneHot
        from bdpvi.datasets.formula import read_formula
        from bdpvi.datasets.terms import Plain

        public, known = self.public, self.constants
        if public.from_data:
            raise ValueError(
                f"formula={self.formula!r:.200}: it needs public or private bounds; leave out "
                "from_data (--from-data)"
            )
        columns = {column.name: column for column in known.columns} if known else {}
        levels = {n: one.categories for n, one in columns.items() if isinstance(one, OneHot)}
        read = read_formula(self.formula, header, levels)
        if read.exposure and public.exposure not in ("", read.exposure):
            raise ValueError(f"exposure={public.exposure!r}: the formula's is {read.exposure!r}")
        if names := [name for name in read.numbers if public.kinds.get(name) == "category"]:
            raise ValueError(f"formula={self.formula!r:.200}: {names[0]!r} is a category")
        if public.event and public.event in read.columns:
            raise ValueError(f"event={public.event!r} is in the formula: it belongs to the target")
        exposure, terms = public.exposure or read.exposure, read.terms
        if exposure and exposure not in read.columns:
            terms = (*terms, (Plain(exposure),))
        used = {*read.columns, exposure, self.target}
        if (constants := public.constants) is not None:
            kept = tuple(column for column in constants.columns if column.name in used)
            constants = replace(constants, columns=kept) if kept else None
        made = replace(
            self,
            terms=terms,
            public=replace(
                public,
                constants=constants,
                drop=tuple(name for name in header if name not in used),
                numeric=(*public.numeric, *(n for n in read.numbers if n not in public.kinds)),
                categorical=[name for name in public.categorical if name in used],
                exposure=exposure,
            ),
        )
        for factor in (factor for term in terms for factor in term):
            factor.check(columns.get(factor.column))
        return made

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
        return self.unit is not None and not self.unit.column

    @property
    def bayesian(self) -> bool:
        """Whether the guarantee is not worst-case."""
        from bdpvi.bayesian.guarantees import WORST_CASE

        return self.guarantee is not None and self.guarantee.name != WORST_CASE

    @property
    def uses_noisy_scores(self) -> bool:
        """Whether the route is noisy scores."""
        if self.model is None:
            return self.intervals
        usual = self.model.score_parts is not None and not self.public.exposure
        return usual and getattr(self.model, "exposure", None) is None

    @property
    def what(self) -> str:
        """The release in words, for the ledger."""
        kind = "logistic" if self.model is None else self.model.kind
        purpose = " with intervals" if self.intervals and self.model is None else ""
        return f"private: {kind} regression of {self.target!r}{purpose}"

    @property
    def uses_dpvi(self) -> bool:
        """Whether the route is private variational inference."""
        return self.model is not None and not self.uses_noisy_scores

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
                if name not in {*known, *self.public.drop, self.target}
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
        from bdpvi.releases.persons import OTHER_PEOPLE

        public = self.public
        known = {column.name for column in self.constants.columns} if self.constants else set()
        numeric, categorical = (
            tuple(one for one in some if one not in {*public.drop, *known})
            for some in (public.numeric, public.categorical)
        )
        return declarations(
            positive=None if self.positive is None else self.label(self.positive),
            classes=tuple(self.labels),
            formula=self.formula,
            **({} if public.types is None else public.types.kinds),
            numeric=numeric,
            categorical=categorical,
            categories=None if public.hashed is None else "hashed" if public.hashed else "counted",
            columns_left_out=len({*public.drop} - {public.event}) or None,
            exposure=public.exposure,
            event=public.event,
            target_bounds=target_bounds(self.model),
            base_rate=public.base_rate,
            rows=about(public.rows),
            people=OTHER_PEOPLE if self.unit and self.unit.other_people else None,
        )


def about(rows: float | None) -> str | None:
    """Return a declared number of rows in words, rounded for publication."""
    from bdpvi.releases.row_counts import magnitude

    return None if rows is None else f"about {magnitude(rows):,.0f}"

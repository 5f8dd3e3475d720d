"""What is known of a table without its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from bdpvi._ground import validate
from bdpvi.datasets.weights import weight_words

if TYPE_CHECKING:  # so that a command's help is quick
    from bdpvi.datasets.encoding import Encoding
    from bdpvi.datasets.formats import FileFormat
    from bdpvi.datasets.schema import Schema
    from bdpvi.datasets.types import ColumnType


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
        weights: Column with the sampling weight of each row, for logistic, linear and Poisson
            regression. It is no feature. Rows without a weight of at least 0 are left out.
        largest_weight: Public bound of the weights; larger ones count as it.
        event: Column that says whether a row's time, the target of a survival regression, is that
            of the event or of the end of observation: yes or no, true or false, 1 or 0, or a
            declared Boolean. Rows where it is blank or anything else are left out.
        group: Column of groups, such as clinics, whose effects are normal: a mixed model, logistic,
            linear or Poisson. If it is the column of persons too, a whole group is a record, whose
            effect is integrated out; else a row is, and its group a feature.
        classes: The target's classes, in order for an ordinal model.
        base_rate: Public guess of the fraction of class 1, where one class is rare. Never take it
            from the table.
        rows: Public number of rows of the table, within a factor of 3, such as 1e4. It is
            published, rounded to 1, 2 or 5 times a power of ten. By default the number is estimated
            privately.
        missing: How to treat blanks, with exact preprocessing bounds: refuse; drop, which leaves
            their rows out; level, which makes a blank a category of its own. Otherwise each column
            has a feature for blanks, declared or not: no row may decide a refusal.
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
    weights: str = ""
    largest_weight: float | None = None
    event: str = ""
    group: str = ""
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
        weight_words(f"weights={self.weights!r}", self.weights, self.largest_weight)
        if self.from_data and self.constants is not None:
            raise ValueError("from_data=True and constants were both given; give one")
        for name in ("missing", "unknown", "encoding"):
            if (value := getattr(self, name)) != getattr(Public, name) and not self.from_data:
                raise ValueError(
                    f"{name}={value!r}: blanks and unknown categories become levels of their own; "
                    "this option needs from_data (--from-data); leave it out"
                )

    @property
    def left_out(self) -> tuple[str, ...]:
        """Columns that are no features."""
        return (*self.drop, *filter(None, [self.weights]))

    @property
    def measuring(self) -> dict[str, str]:
        """Options of :func:`bdpvi.datasets.dataset_from_frame` for exact constants."""
        return {n: one for n in ("missing", "encoding", "unknown") if (one := getattr(self, n))}

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

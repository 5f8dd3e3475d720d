"""Options for turning a table with a yes/no column into records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bdpvi._ground import validate
from bdpvi.datasets.cells import read_cell
from bdpvi.datasets.encoding import UNKNOWN, Encoding
from bdpvi.datasets.origin import declarations
from bdpvi.datasets.schema import Schema


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options for turning a table with a yes/no column into records.

    Attributes:
        positive: the value of the target with y = 1; by default the later one in sorted order (1 of
            0 and 1, yes of no and yes). Required with ``constants``, where every other value is 0.
        encoding: encoding of text, Boolean and ``categorical`` columns: ``"onehot"`` makes one 0/1
            feature for each value, ``"ordinal"`` one standardised feature of its index in sorted
            order.
        categorical: columns whose values are names of categories, even if they are numbers or
            nearly as many as the rows.
        drop: columns to leave out, such as identifiers.
        missing: ``"refuse"`` blanks; ``"drop"`` their rows; or ``"level"``: a blank is a separate
            value, with a feature "NAME is missing", in columns with blanks or, with ``constants``,
            in all columns. A blank target is refused or dropped.
        unknown: see :class:`Encoding`; by default ``"refuse"``, or the setting of ``constants``.
        constants: a ready encoding: it determines the columns and their features, and ``encoding``
            and ``categorical`` have no effect. No row is then refused: a row with a blank or an
            unknown value is left out unless another option says how to treat it, and the owner is
            told how many rows were.
        types: declared types of columns, which alone decide how their cells are read. Columns of
            identifiers and text are left out. Bounds and levels there have no further effect:
            ``constants`` takes them from the same file.
        name: the data's name in reports.

    Raises:
        ValueError: naming an option with an invalid value.
    """

    positive: object = None
    encoding: str = "onehot"
    categorical: Sequence[str] = ()
    drop: Sequence[str] = ()
    missing: str = "refuse"
    unknown: str | None = None
    constants: Encoding | None = None
    types: Schema | None = None
    name: str = "data"

    def __post_init__(self) -> None:
        validate.choice("encoding", self.encoding, ("ordinal", "onehot"))
        validate.choice("missing", self.missing, ("drop", "level", "refuse"))
        if self.unknown is not None:
            validate.choice("unknown", self.unknown, UNKNOWN)

    @property
    def declarations(self) -> dict[str, str]:
        """The owner's declarations about the table, in words."""
        named = () if self.constants else tuple(n for n in self.categorical if n not in self.drop)
        return declarations(
            positive=None if self.positive is None else read_cell(self.positive)[1],
            **({} if self.types is None else self.types.kinds),
            categorical=named,
            columns_left_out=len(self.drop) or None,
            missing=None if self.missing == "refuse" else self.missing,
            unknown=self.unknown,
            encoding=None if self.constants or self.encoding == "onehot" else self.encoding,
        )

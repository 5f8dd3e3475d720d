"""Options shared by commands; reading a table and printing a result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from functools import cached_property, wraps
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from bdpvi._ground import outputs, validate

if TYPE_CHECKING:
    from bdpvi._ground.types import Budget
    from bdpvi.datasets.dataset import Split
    from bdpvi.datasets.formats import FileFormat
    from bdpvi.datasets.identity import Identity
    from bdpvi.noise.keys import Key
    from bdpvi.privacy.ledger import Ledger
    from bdpvi.releases.table_file import TableFile
    from bdpvi.tables.recipe import Recipe

TABLES = (
    "breast-cancer", "abalone", "abalone-onehot", "adult", "adult-onehot", "magic", "spambase",
    "fair",
)  # fmt: skip
"""The names of ``bdpvi.datasets.LOADERS``, without the import, for help texts."""

HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of every program, inherited by its commands."""

Data = Annotated[
    str,
    typer.Argument(
        help="A file, such as CSV, Parquet or Excel; or a folder, a glob or a URL of files of one "
        "kind."
    ),
]
TableOption = Annotated[
    Path | None,
    typer.Option(
        "--table",
        help="Public file of the table: how it is read, kinds, bounds and levels of its columns, "
        "whom ε protects, account and budget. By default TABLE.table.json beside it, as `bdpvi "
        "table` writes it, if there is one. Options override it.",
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(help="Column to leave out, such as an identifier; once for every column."),
]
Categorical = Annotated[
    list[str] | None,
    typer.Option(
        help="Categorical column, though it holds numbers or many different values; once for "
        "every column."
    ),
]
_UNKNOWN = (
    "How to treat an unknown category, a blank or a missing column: refuse, or base, which uses "
    "the column's public mean. The choice is stored in the model; refuse by default."
)
_MISSING = (
    "How to treat blanks: refuse; drop, which leaves their rows out; level, which makes a blank "
    "a category of its own."
)
_ENCODING = "Encoding of categories: onehot, one feature for each; ordinal, its position."
_CONSTANTS = (
    "JSON file of public bounds, scales and categories, which are then not computed from the "
    "table: "
    '{"source": "Census", "age": [0, 100], "income": {"mean": 31000, "sd": 18000}, "sex": '
    '["F", "M"]}.'
)
_CONSENT = "With --from-data only; without it each becomes a level of its own."
Unknown = Annotated[str, typer.Option(help=_UNKNOWN)]
Settings = Annotated[
    str,
    typer.Option(
        metavar="FILE[:METHOD]",
        help="Settings from `bdpvi tune`, for the method bdp-vi-mean-field or another release of "
        "this library. By default settings that follow from ε alone.",
    ),
]
Folder = Annotated[Path, typer.Argument(help="Folder of `bdpvi fit`, or OUT.secret. It is secret.")]
Device = Annotated[
    str,
    typer.Option(help="Device to train on: auto, cpu or cuda; auto is cuda where there is one."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
PUBLIC_SEED = 0
"""The seed that picks an experiment's training rows of a file, such as a comparison's."""
Seed = Annotated[
    int | None,
    typer.Option(
        help="Seed of split, batches and base noise, for an experiment: nothing may be released "
        "from it. Without it they are secret."
    ),
]
BaseRate = Annotated[
    float | None,
    typer.Option(
        help="Public guess of the fraction of class 1, where one class is rare. Never take it from "
        "the table."
    ),
]
RowCount = Annotated[
    float | None,
    typer.Option(
        "--rows",
        help="Public number of rows of the table, within a factor of 3, such as 1e4. It is "
        "published, rounded. By default the number is estimated privately.",
    ),
]
LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        help="Ledger file of everything spent on this table; created if missing. By default "
        "TABLE.ledger.jsonl beside the table's file, or the one of a table with the same rows. "
        "Give it for a newer table of the same people. Keep it secret.",
    ),
]
Unit = Annotated[
    str,
    typer.Option(
        help="Column that identifies persons: the guarantee then covers all rows of a person. It "
        "is not a feature.",
    ),
]
OneRowPerPerson = Annotated[
    bool,
    typer.Option(
        "--one-row-per-person",
        help="Every person has one row, so that ε for a row is ε for a person. A file needs this "
        "or --unit.",
    ),
]
OtherPeople = Annotated[
    bool,
    typer.Option(
        "--other-people",
        help="Nobody in this table is in one of another account, although it shares rows with it. "
        "The receipt says so.",
    ),
]
RowsPerUnit = Annotated[
    int,
    typer.Option(
        help="Most rows used of each person: the first ones, or for synthetic tables a secret "
        "random choice. The noise grows with it."
    ),
]
Secret = Annotated[
    Path | None,
    typer.Option(
        help="New folder for the work and its key; OUT.secret if not given. Never share it."
    ),
]
BudgetOption = Annotated[
    float | None,
    typer.Option(
        "--budget", help="Limit on the total ε spent on the table; the first --epsilon by default."
    ),
]
Numeric = Annotated[
    list[str] | None,
    typer.Option(
        help="Numeric column; once for every column. A kind given neither by this nor by "
        "--categorical is estimated privately too."
    ),
]
Delta = Annotated[float, typer.Option(help="δ of the guarantee.")]


@dataclass(frozen=True, kw_only=True)
class TableArguments:
    """The options of all commands that read a table; :func:`reads_table` adds them.

    Commands use one of the two subclasses below.

    Each line is an option, named after an argument of :func:`bdpvi.datasets.from_csv` or one of
    its options.
    """

    data: Annotated[
        str,
        typer.Option(help=f"A file, such as CSV, Parquet or Excel, or one of {', '.join(TABLES)}."),
    ]
    target: Annotated[str, typer.Option(help="Yes/no column of a file.")] = ""
    positive: Annotated[str, typer.Option(help="Value of the target that counts as 1.")] = ""
    declared_in: TableOption = None
    drop: Drop = None
    missing: Annotated[str, typer.Option(help=_MISSING)] = "refuse"
    unknown: Unknown = ""
    categorical: Categorical = None
    constants: Annotated[
        Path | None,
        typer.Option(help=f"{_CONSTANTS} Columns that it does not name are not used."),
    ] = None
    encoding: Annotated[str, typer.Option(help=_ENCODING)] = "onehot"

    @cached_property
    def declared(self) -> TableFile:
        """What the owner declares in the table's file."""
        return declared(self.data, self.declared_in)

    @property
    def file(self) -> FileFormat:
        """How the file is written."""
        return self.declared.file

    @property
    def there(self) -> bool:
        """Whether there may be such a table."""
        return Path(self.data).is_file()

    @property
    def name(self) -> str:
        """The name of the data in reports."""
        return self.data if self.data in TABLES else Path(self.data).stem

    def split(self, seed: Key | int, unit: str = "", rows_per_unit: int = 1) -> Split:
        """Return the training and test records; those of a file are split by the coins of a key.

        A split by a number is an experiment. Public tables have published splits.

        Args:
            seed: the key or the number.
            unit, rows_per_unit: see :func:`bdpvi.datasets.from_frame`.
        """
        from bdpvi import datasets
        from bdpvi.privacy.book import ROW

        if self.data in datasets.LOADERS:
            return datasets.LOADERS[self.data]()
        if not self.target:
            raise ValueError(
                f"target is needed for data={self.data!r}: the name of the yes/no column"
            )
        names = [one.name for one in fields(self) if one.name not in ("data", "declared_in")]
        given = {n: one for n in names if (one := getattr(self, n)) not in ("", None)}
        if self.constants:
            given["constants"] = datasets.read_constants(self.constants)
        if self.declared.schema is not None:
            given["types"] = self.declared.schema
        people = self.declared.people(unit, rows_per_unit, False)
        if people["unit"] != ROW:
            given |= {"unit": people["unit"], "rows_per_unit": people["rows_per_unit"]}
        elif rows_per_unit != 1:
            raise ValueError(f"rows_per_unit={rows_per_unit} needs unit=, a column of persons")
        target = given.pop("target")
        return self.declared.noting(
            datasets.from_csv(self.data, target, seed=seed, file=self.file, **given)
        )

    @property
    def identity(self) -> Identity | None:
        """Whose rows it has, by one pass; None for a public table."""
        from bdpvi.datasets.identity import Identity
        from bdpvi.datasets.table import Table

        if self.data in TABLES:
            return None
        found: Identity = (
            Table.of(self.data, file=self.file).records().sum(Identity.of, self.file.signs[:2])
        )
        return found

    def ledger(
        self,
        file: Path | None,
        budget: Budget | None = None,
        identity: Identity | None = None,
        other_people: bool = False,
    ) -> Ledger | None:
        """Return the ledger of this table; None for a public table without one.

        Arguments as for :func:`bdpvi.privacy.accounts.account`.

        Raises:
            ValueError: as there.
        """
        if file is None and self.data in TABLES:
            return None
        limit = self.declared.limit(budget)
        return self.declared.opened(self.data, identity, file, other_people, limit)


@dataclass(frozen=True, kw_only=True)
class SplitTable(TableArguments):
    """A table with some rows held out."""

    test_fraction: Annotated[
        float, typer.Option(help="Fraction of a file's rows held out of training.")
    ] = 0.2
    key: Annotated[
        str,
        typer.Option(
            help="Column that identifies persons: all rows of a person are in the training part, "
            "or none. It is not a feature. The guarantee is still for one row."
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class WholeTable(TableArguments):
    """A table whose rows are all used, with public or private preprocessing."""

    data: Annotated[
        str,
        typer.Option(
            help="A file, such as CSV, Parquet or Excel; a folder, a glob or a URL of files of one "
            f"kind, which need not fit in memory; or one of {', '.join(TABLES)}."
        ),
    ]
    target: Annotated[
        str, typer.Option(help="Target column of a file; yes/no, unless --model.")
    ] = ""
    missing: Annotated[str, typer.Option(help=f"{_CONSENT} {_MISSING}")] = "refuse"
    unknown: Annotated[str, typer.Option(help=f"{_CONSENT} {_UNKNOWN}")] = ""
    constants: Annotated[
        Path | None,
        typer.Option(
            help=f"{_CONSTANTS} Bounds and categories of other columns are estimated privately."
        ),
    ] = None
    encoding: Annotated[str, typer.Option(help=f"With --from-data only. {_ENCODING}")] = "onehot"

    @property
    def there(self) -> bool:
        """Whether there may be such a table."""
        return Path(self.data).exists() or "://" in self.data or has_magic(self.data)

    @property
    def in_blocks(self) -> bool:
        """Whether the table is one in blocks without being asked for."""
        return self.data not in TABLES and not Path(self.data).is_file()

    @property
    def header(self) -> list[str]:
        """The names of its columns."""
        from bdpvi.datasets.table import Table

        return list(Table.of(self.data, file=self.file).header)


def declared(data: str, given: Path | None, *, release: bool = True) -> TableFile:
    """Return what the owner declares in a table's public file, an empty one without any.

    Args:
        data: the table.
        given: the file that an option names.
        release: whether something is released, so that all of it must be public.
    """
    from bdpvi.releases.table_file import TableFile

    if data in TABLES and given is None:
        return TableFile()
    made = TableFile.beside(data, given)
    if made.path is not None:
        outputs.say(f"For the owner only: {data} is read as {made.path} says", error=True)
    return made.public() if release else made


def remaining(header: Sequence[str], drop: Sequence[str] | None) -> list[str]:
    """Return a header without these columns.

    Raises:
        ValueError: naming one that it lacks.
    """
    validate.columns("drop", drop or (), header)
    return [one for one in header if one not in (drop or ())]


def reads_table(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's argument ``table``, a :class:`TableArguments`, by its options."""
    hints = get_type_hints(command, include_extras=True)
    kind: type[TableArguments] = hints["table"]
    of_table = get_type_hints(kind, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for one in inspect.signature(command).parameters.values():
        if one.name != "table":
            parameters.append(
                one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name])
            )
            continue
        for option in fields(kind):
            default = inspect.Parameter.empty if option.default is MISSING else option.default
            parameters.append(
                inspect.Parameter(
                    option.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=of_table[option.name],
                )
            )

    @wraps(command)
    def run(**given: Any) -> None:
        names = [option.name for option in fields(kind) if option.name in given]
        table = kind(**{name: given.pop(name) for name in names})
        if table.data not in TABLES and not table.there:  # before libraries load
            raise ValueError(
                f"data={table.data!r} is neither a file nor one of {', '.join(TABLES)}"
            )
        command(table=table, **given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def settings_of(
    settings: str,
    data: str,
    epsilon: float,
    *,
    delta: float = 1e-5,
    draws: int = 1,
    base_rate: float | None = None,
) -> Recipe:
    """Return the settings of a guide from ``--settings``, or the recommended ones."""
    import bdpvi
    from bdpvi.guides import MeanField
    from bdpvi.tables import files

    if not settings:
        return bdpvi.recommended(
            epsilon, delta=delta, draws=draws, base_rate=base_rate, guide=MeanField
        )
    if base_rate is not None:
        raise ValueError(f"base_rate={base_rate!r} goes with the recommended settings only")
    path, _, method = settings.partition(":")
    return files.released(epsilon, Path(path), data=data, method=method or files.USUAL)


@contextmanager
def resumable(folder: Path, out: Path | None = None) -> Iterator[None]:
    """Make an interruption report what the command has stored.

    Args:
        folder: folder of finished parts.
        out: output that the command makes at its end, if any.
    """
    try:
        yield
    except KeyboardInterrupt:
        if out is not None and out.exists():
            raise KeyboardInterrupt(f"{out}/ is finished and whole (secret)") from None
        files = (one for one in folder.rglob("*") if one.is_file())
        if any(not one.name.startswith(".") for one in files):
            raise KeyboardInterrupt(
                f"finished work is kept in {folder}/ (secret); the same command continues it"
            ) from None
        raise

"""Options shared by commands, each with the words of what it stands for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, wraps
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from bdpvi._ground import outputs, validate
from bdpvi.tables.request import Machine, Public, Request, Unit

if TYPE_CHECKING:
    from bdpvi._ground.types import Budget
    from bdpvi.datasets.dataset import Split
    from bdpvi.datasets.encoding import Encoding
    from bdpvi.datasets.formats import FileFormat
    from bdpvi.noise.keys import Key
    from bdpvi.releases.table_file import TableFile

TABLES = (
    "breast-cancer", "abalone", "abalone-onehot", "adult", "adult-onehot", "magic", "spambase",
    "fair",
)  # fmt: skip
"""The names of ``bdpvi.datasets.LOADERS``, without the import, for help texts."""

HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of every program, inherited by its commands."""


def words_of(kind: type) -> dict[str, str]:
    """Return what the documentation of a class says of each of its fields.

    >>> words_of(Unit)["column"].partition(":")[0]
    'Column that identifies persons'
    """
    text = (inspect.getdoc(kind) or "").partition("Args:\n")[2].partition("\n\n")[0]
    plain = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", text).replace("``", "")
    found = re.split(r"^    (\w[\w, ]*): ", plain, flags=re.MULTILINE)[1:]
    return {
        name: " ".join(said.split()) for name, said in zip(found[::2], found[1::2], strict=True)
    }


MIXED = "mixed-"
"""How the names of mixed models begin."""
WORDS = words_of(Public) | words_of(Request) | words_of(Machine)
"""What the request says of its fields."""
_UNIT = words_of(Unit)
_EACH = "; once for every column."

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
Drop = Annotated[list[str] | None, typer.Option(help=WORDS["drop"].rstrip(".") + _EACH)]
Categorical = Annotated[
    list[str] | None, typer.Option(help=WORDS["categorical"].rstrip(".") + _EACH)
]
Numeric = Annotated[list[str] | None, typer.Option(help=WORDS["numeric"] + " Once for each.")]
CONSTANTS_FILE = (
    "JSON file of public bounds, scales and categories, which are then not computed from the "
    'table: {"source": "Census", "age": [0, 100], "income": {"mean": 31000, "sd": 18000}, "sex": '
    '["F", "M"]}.'
)
FromData = Annotated[bool, typer.Option("--from-data", help=WORDS["from_data"])]
Unknown = Annotated[str, typer.Option(help=WORDS["unknown"])]
Device = Annotated[
    str,
    typer.Option(help="Device to train on: auto, cpu or cuda; auto is cuda where there is one."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
PUBLIC_SEED = 0
"""The seed that picks an experiment's training rows of a file, such as a comparison's."""
Out = Annotated[Path, typer.Option(help="New folder for what may be shared.")]
Delta = Annotated[float, typer.Option(help="δ of the guarantee.")]
LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        help="Ledger file of everything spent on this table; created if missing. By default "
        "TABLE.ledger.jsonl beside the table's file, or the one of a table with the same rows. "
        "Give it for a newer table of the same people. Keep it secret.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class UnitOptions:
    """Whom ε protects."""

    unit: Annotated[str, typer.Option(help=_UNIT["column"].partition(" Without")[0])] = ""
    rows_per_unit: Annotated[int, typer.Option(help=_UNIT["rows"])] = 1
    one_row_per_person: Annotated[
        bool,
        typer.Option(
            "--one-row-per-person",
            help="Every person has one row, so that ε for a row is ε for a person. A file needs "
            "this or --unit.",
        ),
    ] = False

    def of(self, known: TableFile, other_people: bool = False) -> Unit | None:
        """Return whom these options, or else the table's public file, say; None if neither."""
        from bdpvi.privacy.book import Unsaid

        if self.unit and self.one_row_per_person:
            raise ValueError(
                f"unit={self.unit!r} and one_row_per_person=True were both given; give one"
            )
        said = known.people(self.unit, self.rows_per_unit, self.one_row_per_person)
        if not isinstance(said["unit"], Unsaid):
            return Unit(said["unit"], said["rows_per_unit"], other_people)
        if said["rows_per_unit"] != 1:
            return Unit(rows=said["rows_per_unit"])  # refused
        return Unit(other_people=other_people) if said["one_row_per_person"] else None


@dataclass(frozen=True, kw_only=True)
class AccountOptions(UnitOptions):
    """Whom ε protects, and where the work and its charges are kept."""

    out: Out
    secret: Annotated[
        Path | None,
        typer.Option(
            help="New folder for the work and its key; OUT.secret if not given. Never share it."
        ),
    ] = None
    ledger: LedgerFile = None
    budget: Annotated[
        float | None,
        typer.Option(
            help="Limit on the total ε spent on the table; the first --epsilon by default."
        ),
    ] = None
    other_people: Annotated[bool, typer.Option("--other-people", help=_UNIT["other_people"])] = (
        False
    )

    def limit(self, delta: float) -> Budget | None:
        """Return the limit at this δ."""
        from bdpvi._ground.types import Budget

        return None if self.budget is None else Budget(self.budget, delta)


@dataclass(frozen=True, kw_only=True)
class ScreenOptions:
    """What is asked and shown on the screen."""

    yes: Annotated[
        bool, typer.Option("--yes", help="Go on without a question, whatever the look has found.")
    ] = False
    quiet: Quiet = False
    as_json: Json = False

    @property
    def bars(self) -> bool:
        """Whether bars and lines about a look without findings are shown."""
        return not self.quiet and not self.as_json


@dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """What is known of the columns; the table's file has the rest."""

    table: TableOption = None
    drop: Drop = None
    categorical: Categorical = None
    numeric: Numeric = None

    def public(self, known: TableFile, constants: Path | None = None, **more: Any) -> Public:
        """Return what is known, with a file of constants."""
        from bdpvi.datasets import read_constants

        given: Encoding | None = None if constants is None else read_constants(constants)
        return Public(
            types=known.schema,
            constants=given,
            drop=tuple(self.drop or ()),
            categorical=tuple(self.categorical or ()),
            numeric=tuple(self.numeric or ()),
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class SplitTable:
    """The options of commands that hold out some rows of a table.

    Each is named after an argument of :func:`bdpvi.datasets.from_csv` or one of its options.
    """

    data: Annotated[
        str,
        typer.Option(help=f"A file, such as CSV, Parquet or Excel, or one of {', '.join(TABLES)}."),
    ]
    target: Annotated[str, typer.Option(help="Yes/no column of a file.")] = ""
    positive: Annotated[str, typer.Option(help=WORDS["positive"])] = ""
    declared_in: TableOption = None
    drop: Drop = None
    missing: Annotated[str, typer.Option(help=WORDS["missing"])] = "refuse"
    unknown: Unknown = ""
    categorical: Categorical = None
    constants: Annotated[
        Path | None,
        typer.Option(help=f"{CONSTANTS_FILE} Columns that it does not name are not used."),
    ] = None
    encoding: Annotated[str, typer.Option(help=WORDS["encoding"])] = "onehot"
    test_fraction: Annotated[
        float, typer.Option(help="Fraction of a file's rows held out of training.")
    ] = 0.2

    @cached_property
    def table_file(self) -> TableFile:
        """What the owner declares in the table's file."""
        return table_file_of(self.data, self.declared_in)

    @property
    def file(self) -> FileFormat:
        """How the file is written."""
        return self.table_file.file

    @property
    def name(self) -> str:
        """The name of the data in reports."""
        return self.data if self.data in TABLES else Path(self.data).stem

    def check(self) -> None:
        """Refuse a table that cannot be there, before libraries load."""
        check_there(self.data, blocks=False)

    def split(self, seed: Key | int) -> Split:
        """Return the training and test records; those of a file are split by the coins of a key.

        A split by a number is an experiment. Public tables have published splits.
        """
        from bdpvi import datasets

        if self.data in datasets.LOADERS:
            return datasets.LOADERS[self.data]()
        check_target(self.data, self.target, "yes/no column")
        names = [one.name for one in fields(self) if one.name not in ("data", "declared_in")]
        given = {n: one for n in names if (one := getattr(self, n)) not in ("", None)}
        if self.constants:
            given["constants"] = datasets.read_constants(self.constants)
        if self.table_file.schema is not None:
            given["types"] = self.table_file.schema
        if self.table_file.unit:
            given |= {"unit": self.table_file.unit, "rows_per_unit": self.table_file.rows_per_unit}
        target = given.pop("target")
        return self.table_file.noting(
            datasets.from_csv(self.data, target, seed=seed, file=self.file, **given)
        )


def check_there(data: str, *, blocks: bool = True) -> None:
    """Refuse data that are neither a public table's name nor files; ``blocks``: or many of them."""
    files = Path(data).exists() or "://" in data or has_magic(data)
    if data not in TABLES and not (files if blocks else Path(data).is_file()):
        raise ValueError(f"data={data!r} is neither a file nor one of {', '.join(TABLES)}")


def check_target(data: str, target: str, what: str) -> None:
    """Refuse a file without a target."""
    if not target:
        raise ValueError(f"target is needed for data={data!r}: the name of the {what}")


def group_of(model: str, group: str, unit: Unit | None) -> str:
    """Return the column of a mixed model's groups, by default that of units; "" of another model.

    Raises:
        ValueError: if a mixed model has none, or another one has.
    """
    if not model.startswith(MIXED):
        if group:
            raise ValueError(
                f"group={group!r} goes with a mixed model, such as --model mixed-linear; got "
                f"model={model!r}"
            )
    elif not (found := group or (unit.column if unit else "")):
        raise ValueError(
            f"model={model!r}: give the column of groups, --unit COLUMN to hide that a group is "
            "there at all, or --group COLUMN for groups that are features"
        )
    else:
        return found
    return ""


def table_file_of(data: str, given: Path | None, *, release: bool = True) -> TableFile:
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


def remaining(header: Sequence[str], drop: Sequence[str]) -> list[str]:
    """Return a header without these columns.

    Raises:
        ValueError: naming one that it lacks.
    """
    validate.columns("drop", drop, header)
    return [one for one in header if one not in drop]


def of_fields(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each argument of a command that is a dataclass by the fields of that class.

    The first line of the class's docstring heads its options in the command's help.
    """
    given = inspect.signature(command, eval_str=True).parameters
    classes: dict[str, Any] = {
        name: one.annotation for name, one in given.items() if is_dataclass(one.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for name, one in given.items():
        some = [one]
        if name in classes:
            hints = get_type_hints(classes[name], include_extras=True)
            of_class = inspect.signature(classes[name]).parameters.values()
            some = [each.replace(annotation=hints[each.name]) for each in of_class]
        parameters += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in some]

    @wraps(command)
    def run(**values: Any) -> None:
        for name, kind in classes.items():
            options = [one.name for one in fields(kind) if one.name in values]
            values[name] = kind(**{option: values.pop(option) for option in options})
            if isinstance(values[name], SplitTable):
                values[name].check()
        command(**values)

    heads = {kind: str(kind.__doc__).split(".")[0] for kind in classes.values()}
    panels = {one.name: head for kind, head in heads.items() for one in fields(kind)}
    run.panels = panels  # type: ignore[attr-defined]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Make an interruption report what the command has stored.

    Args:
        folder: folder of finished parts.
    """
    try:
        yield
    except KeyboardInterrupt:
        files = (one for one in folder.rglob("*") if one.is_file())
        if any(not file.name.startswith(".") for file in files):
            raise KeyboardInterrupt(
                f"finished work is kept in {folder}/ (secret); the same command continues it"
            ) from None
        raise

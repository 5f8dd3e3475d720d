"""The public file beside a table: how it is read, its columns, whom ε protects, and its account.

``patients.csv`` has ``patients.csv.table.json``, the folder ``visits`` has ``visits.table.json``
beside it, and so have the files of ``visits/*.csv``. ``bdpvi table`` drafts it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bdpvi._ground import schema as json_schema
from bdpvi._ground import store
from bdpvi._ground.types import Budget, PrivacyUtilityWarning
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.origin import DECLARED, declarations
from bdpvi.datasets.schema import Schema, of_content
from bdpvi.datasets.stored import without_pattern

if TYPE_CHECKING:  # what only reads a table needs no account
    from bdpvi.datasets.dataset import Split
    from bdpvi.datasets.identity import Identity
    from bdpvi.privacy.ledger import Ledger

SUFFIX = ".table.json"
FROM_DATA = "from_data"
"""The mark of an entry that was read from the rows, and that nobody declared yet."""
_VALUES = ("levels", "low", "high")
"""Fields by which an entry declares possible values: its mark goes with them into a release."""
PEOPLE = ("unit", "rows_per_unit", "one_row_per_person")


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """What the owner of a table declares in its file. All of it is public.

    Attributes:
        file: how the table is written.
        schema: kinds, levels and bounds of its columns, if any are declared.
        unit, rows_per_unit, one_row_per_person: whom ε protects, as :func:`bdpvi.private` takes it.
        account: file name of the table's ledger, in the same folder; by default it has the table's
            name.
        budget: the most that may be spent on the table.
        path: the file; None if there is none.
        drafted: entries that were read from the rows.

    Raises:
        ValueError: naming the field at fault.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Path(folder) / "visits.csv"
    ...     _ = place_of(table).write_text('{"unit": "patient", "rows_per_unit": 3}')
    ...     TableFile.beside(table).unit, TableFile.beside(Path(folder) / "other.csv").unit
    ('patient', '')
    """

    file: FileFormat = field(default_factory=FileFormat)
    schema: Schema | None = None
    unit: str = ""
    rows_per_unit: int = 1
    one_row_per_person: bool = False
    account: str = ""
    budget: Budget | None = None
    path: Path | None = None
    drafted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.unit and self.one_row_per_person:
            raise ValueError(f"unit={self.unit!r} and one_row_per_person: declare one of them")
        if self.rows_per_unit != 1 and not self.unit:
            raise ValueError(f"rows_per_unit={self.rows_per_unit} needs unit, a column of persons")
        name = self.account
        if name and (name != name.strip() or name[:1] == "." or not set(name).isdisjoint("/\\:\0")):
            raise ValueError(
                f"account={name!r} must be the name of a file in the same folder; give another "
                "place by --ledger"
            )

    @classmethod
    def beside(cls, table: Any, given: Path | None = None) -> TableFile:
        """Return what the owner declares of a table: its public file, or an empty one without any.

        Args:
            table: the table, or its path.
            given: another file to use.

        Raises:
            ValueError: if the file is somebody else's, or invalid.
        """
        path = place_of(table) if given is None else given
        if path is None or (given is None and not path.is_file()):
            return cls()
        if given is None and hasattr(os, "getuid"):
            data = Path(without_pattern(os.fspath(table)))
            trusted = {0, os.getuid(), *([data.stat().st_uid] if data.exists() else [])}
            if path.stat().st_uid not in trusted:
                raise ValueError(
                    f"{path} belongs to another user than the table; read it, and say --table "
                    f"{path} if it is right, or delete it"
                )
        return cls.load(path)

    @classmethod
    def load(cls, path: Path) -> TableFile:
        """Read a file.

        Raises:
            ValueError: naming the file and the field at fault.
            OSError: if it cannot be read.
        """
        try:
            content = json_schema.parsed(store.read_shared(path))
        except ValueError as error:
            raise ValueError(f"{path} does not describe a table: {error}") from error
        return cls.of(content, path)

    @classmethod
    def of(cls, content: Mapping[str, Any], path: Path) -> TableFile:
        """Return what the content of a file declares; refusals as for :meth:`load`."""
        try:
            return cls._of(content, path)
        except ValueError as error:
            raise ValueError(f"{path} does not describe a table: {error}") from error

    @classmethod
    def _of(cls, content: Mapping[str, Any], path: Path) -> TableFile:
        if "receipt" in content:  # of a synthetic table, whose schema reads its rows
            found = of_content(content)
            return cls(schema=found, path=path, drafted=found.from_rows)
        own = [one.name for one in fields(cls) if one.name not in ("schema", "path", "drafted")]
        given = {name: one for name, one in content.items() if name in own}
        rest = {name: one for name, one in content.items() if name not in own}
        marked = [("file", given.get("file")), *dict(rest.get("columns") or {}).items()]
        drafted = tuple(n for n, one in marked if isinstance(one, Mapping) and one.get(FROM_DATA))
        if "file" in drafted:
            given["file"] = {n: one for n, one in given["file"].items() if n != FROM_DATA}
        if rest.get("columns"):
            rest["columns"] = {name: _unmarked(one) for name, one in rest["columns"].items()}
            known: Schema | None = of_content(rest)
        elif more := sorted(rest.keys() - {"source", "columns", "left_out"}):
            raise ValueError(f"{more[0]} is not known; there are {sorted([*own, 'columns'])}")
        else:
            known = None
        made = json_schema.from_json(cls, given, partial=True)
        return replace(made, schema=known, path=path, drafted=drafted)

    def public(self, from_data: bool = False) -> TableFile:
        """Return the declarations, all of which must be public.

        Args:
            from_data: whether levels and bounds that were read from the rows count as public.

        Raises:
            ValueError: naming an entry that was read from the rows.
        """
        known = self.schema.from_rows if from_data and self.schema is not None else ()
        if left := [name for name in self.drafted if name not in known]:
            raise ValueError(
                f"{self.path}: {', '.join(map(repr, left[:8]))}{', …' * (len(left) > 8)} marked "
                f"{FROM_DATA}, as read from the rows: write what is known without them, and delete "
                "the mark"
            )
        return self

    @property
    def words_for_receipt(self) -> str:
        """What a receipt says of it: that it was used, and its source."""
        if self.path is None:
            return ""
        return "used" if self.schema is None else self.schema.source.rstrip(".") or "used"

    def noting(self, split: Split) -> Split:
        """Return records whose receipts say that the file was used."""
        from bdpvi.datasets.split import add_note

        if self.path is None:
            return split
        said = declarations(table_file=self.words_for_receipt)
        return add_note(split, DECLARED, {**split.train.preprocessing.get(DECLARED, {}), **said})

    def format(self, given: Mapping[str, Any]) -> FileFormat:
        """Return how the table is written: as options say that are not the usual ones, or as it."""
        usual = {one.name: one.default for one in fields(FileFormat)}
        other = {n: given[n] for n, one in usual.items() if given.get(n, one) != one}
        if any(getattr(self.file, n) not in (usual[n], one) for n, one in other.items()):
            self._overridden("how it is written")
        return replace(self.file, **other)

    def people(self, unit: str, rows_per_unit: int, one_row_per_person: bool) -> dict[str, Any]:
        """Return whom ε protects: as an option says, otherwise as the file does.

        Warns:
            PrivacyUtilityWarning: if they differ. For the owner.
        """
        from bdpvi.privacy.book import ROW, Unsaid

        said = dict(zip(PEOPLE, (unit or ROW, rows_per_unit, one_row_per_person), strict=True))
        mine = {"unit": self.unit or ROW, **{name: getattr(self, name) for name in PEOPLE[1:]}}
        if not isinstance(said["unit"], Unsaid) or one_row_per_person:
            if (self.unit or self.one_row_per_person) and said != mine:
                self._overridden("whom ε protects")
            return said
        if rows_per_unit not in (1, self.rows_per_unit) and self.unit:
            self._overridden("rows_per_unit")
            return mine | {"rows_per_unit": rows_per_unit}
        return mine if self.unit or self.one_row_per_person else said

    def ledger(self, table: object, given: Any = None) -> Any:
        """Return the ledger of the table: as given, or the file of its account, or beside it.

        Args:
            table: the table, or its path.
            given: the ledger that an option names.

        Returns:
            None for a table in memory for which none is given.

        Raises:
            ValueError: if the account would be a new one, and the table has one; or if there is
                none for a URL.

        Warns:
            PrivacyUtilityWarning: if an option names another ledger. For the owner.
        """
        from bdpvi.privacy.accounts import beside

        where = store.path_of(table) or ""
        if not self.account or self.path is None:
            return beside(where) if given is None and where else given
        mine = self.path.parent / self.account
        if given is not None:
            where = getattr(given, "path", given)
            if where is None or Path(where).resolve() != mine.resolve():
                self._overridden(f"account={self.account!r}")
            return given
        usual = beside(where) if where and "://" not in where else mine
        if usual != mine and usual.exists() and not mine.exists():
            raise ValueError(
                f"account={self.account!r} of {self.path} would be new, and {usual} has what was "
                f"spent on this table: declare account={usual.name!r}"
            )
        return mine

    def open_ledger(
        self,
        table: str,
        identity: Identity | None,
        given: Path | None,
        other_people: bool,
        budget: Budget | None = None,
    ) -> Ledger:
        """Return the ledger of the table; arguments as for :func:`.accounts.account`."""
        from bdpvi.privacy.accounts import account

        own = self.ledger(table) if given is None else None
        return account(table, identity, given, own, other_people=other_people, budget=budget)

    def limit(self, given: Budget | None) -> Budget | None:
        """Return the budget: as given, otherwise that of the file."""
        if given is not None and self.budget is not None and given != self.budget:
            self._overridden(f"budget={self.budget}")
        return given or self.budget

    def _overridden(self, what: str) -> None:
        words = f"for the owner only: an option overrides {what} of {self.path}"
        warnings.warn(words, PrivacyUtilityWarning, stacklevel=4)


def place_of(table: object) -> Path | None:
    """Return where a table's public file is, if the table is a local one.

    Links are resolved: the same file has one description, as it has one ledger.

    >>> place_of("data/visits/*.parquet").name, place_of("s3://visits/*.parquet")
    ('visits.table.json', None)
    """
    given = store.path_of(table)
    if given is None or "://" in given:
        return None
    path = Path(without_pattern(given)).resolve()
    return path.with_name(f"{path.name}{SUFFIX}")


def _unmarked(entry: Any) -> Any:
    """Return a column's entry without a mark that only says where its kind is from."""
    if not isinstance(entry, Mapping) or any(name in entry for name in _VALUES):
        return entry
    return {name: one for name, one in entry.items() if name != FROM_DATA}

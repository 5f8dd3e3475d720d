"""A command's intent: on disk before any random draw, until its output is published.

A work has a secret folder. At first the folder holds its secret, the source of all keys: after an
interruption the same command makes the same draws and pays nothing twice. When the output is made,
its bytes are stored there and the secret is erased, so that nobody with folder and ledger can later
remove the noise. The published output is a copy, which can be made again if it is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bdpvi._ground import store
from bdpvi._ground.checkpoint import sealed, unsealed
from bdpvi._ground.schema import from_json, to_json
from bdpvi.noise.keys import Key
from bdpvi.privacy.ledger import Ledger

NAME, HEAD = "intent.json", "ledger.head"
"""Files in a folder with a single work."""


@dataclass(frozen=True, kw_only=True)
class Intent:
    """The intent of a work in a secret folder.

    Attributes:
        format: format of the file.
        table, options, charge, ledger: see :func:`begin_work`.
        key: source of all keys; empty once the output is made.
        file: its own file.
    """

    format: int = 2
    table: str
    options: str
    charge: Mapping[str, float]
    ledger: str
    key: bytes = field(repr=False)
    file: Path = field(default=Path(), metadata={"kept": False})

    @property
    def secret(self) -> Key:
        """The source of all keys of the work; there is none once the output is made."""
        return Key(self.key)

    @property
    def facts(self) -> str:
        """Digests of the table and of the options."""
        return f"{self.table} {self.options}"

    @property
    def output_file(self) -> Path:
        """The file of the output's bytes."""
        return output_of(self.file)

    def charged(self, ledger: Ledger) -> bool:
        """Return whether anything was charged for it."""
        return not self.key or any(entry.of == self.secret.work for entry in ledger.entries())

    def abandon(self) -> None:
        """Remove the files of a work that has charged nothing."""
        for one in (self.file, self.file.with_name(HEAD)):
            one.unlink(missing_ok=True)

    def output(self, make: Callable[[], bytes]) -> bytes:
        """Return the output: the stored bytes, or new ones.

        Once they are on disk the secret is erased: from then on the output is only copied.
        """
        if not self.output_file.exists():
            store.write(self.output_file, make())
        if self.key:
            store.write(self.file, _content(replace(self, key=b"")))
        return self.output_file.read_bytes()


def begin_work(
    file: Path,
    *,
    table: str,
    options: str,
    charge: Mapping[str, float],
    ledger: Path | None,
) -> Intent:
    """Return the work of a secret folder, or begin one.

    An old secret is never used with another table or other options: the difference of two outputs
    would cancel the noise.

    Args:
        file: file in a secret folder, which the caller locks (:func:`.store.lock_folder`).
        table: digest of the table.
        options: digest of everything that determines the output for a table.
        charge: ε and δ of the total, for the owner to read.
        ledger: the charged ledger, for the owner to find.

    Raises:
        ValueError: if the folder was begun with another table or other options, or is used for
            something else.
    """
    given = {"table": table, "options": options, "charge": charge, "ledger": str(ledger)}
    asked = Intent(**given, key=Key.fresh().secret, file=file)  # type: ignore[arg-type]
    if not file.exists():
        others = [one.name for one in file.parent.iterdir() if not one.name.startswith(".")]
        if others:
            raise ValueError(
                f"{file.parent} exists already and holds {others[0]}; choose another; nothing is "
                "overwritten"
            )
        store.write(file, _content(asked))
        return asked
    kept = read(file)
    differing = {
        "format": "in another format",
        "table": "with another table",
        "options": "with other options",
    }
    for name, how in differing.items():
        if getattr(kept, name) != getattr(asked, name):
            raise ValueError(
                f"{file.parent} was begun {how}. Its charges stay, and new work is charged "
                "separately: choose another folder for it"
            )
    return kept


def output_of(file: Path) -> Path:
    """Return the file of the output's bytes, given the file with the intent."""
    return file.with_suffix(".output")


def read(file: Path) -> Intent:
    """Return the intent that a file holds.

    Raises:
        ValueError: if it holds no intent.
    """
    try:
        return replace(from_json(Intent, unsealed(store.read_json(file))), file=file)
    except ValueError as error:
        raise ValueError(f"{file} cannot be used: {error}") from error


def _content(intent: Intent) -> bytes:
    return json.dumps(sealed(to_json(intent))).encode()

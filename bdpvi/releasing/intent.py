"""What a command set out to do: on the disk before anything random is drawn, until it is published.

A work lies in a secret folder. First its secret is there, from which all keys follow: the same
command makes the same draws after an interruption, and has nothing to pay twice. Once the output is
made its bytes are kept there instead, and the secret is erased: whoever gets folder and ledger
later cannot take the noise off. What is published is a copy, also where it was lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bdpvi._runtime import store
from bdpvi._runtime.checkpoint import sealed, unsealed
from bdpvi._runtime.keys import Key
from bdpvi._runtime.schema import from_json, to_json
from bdpvi.accounting.ledger import Ledger

NAME, HEAD = "intent.json", "ledger.head"
"""Files in a folder that has one work alone."""


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What is to be done.

    Attributes:
        format: of the file.
        table, options, charge, ledger: see :func:`begun`.
        key: that all keys follow from; empty once the output is made.
    """

    format: int = 2
    table: str
    options: str
    charge: Mapping[str, float]
    ledger: str
    key: bytes = field(repr=False)


@dataclass(frozen=True)
class Begun:
    """A work in a secret folder.

    Attributes:
        file: with the intent.
        intent: what is to be done.
    """

    file: Path
    intent: Intent

    @property
    def secret(self) -> Key:
        """What all keys of the work follow from; there is none once the output is made."""
        return Key(self.intent.key)

    @property
    def facts(self) -> str:
        """Digests of the table and of the options."""
        return f"{self.intent.table} {self.intent.options}"

    @property
    def kept(self) -> Path:
        """The file with the output's bytes."""
        return output_of(self.file)

    def abandoned(self, ledger: Ledger) -> bool:
        """Remove what is kept of a work that has charged nothing; return whether it had not."""
        if not self.intent.key or any(one.of == self.secret.work for one in ledger.entries()):
            return False
        for one in (self.file, self.file.with_name(HEAD)):
            one.unlink(missing_ok=True)
        return True

    def output(self, make: Callable[[], bytes]) -> bytes:
        """Return what is to be published: the bytes that are kept, or those that are made now.

        When they are on the disk the secret is erased: from then on the output is only copied.
        """
        if not self.kept.exists():
            store.write(self.kept, make())
        if self.intent.key:
            store.write(self.file, _content(replace(self.intent, key=b"")))
        return self.kept.read_bytes()


def begun(
    file: Path,
    *,
    table: str,
    options: str,
    charge: Mapping[str, float],
    ledger: Path | None,
    alone: bool = True,
) -> Begun:
    """Return the work that a secret folder was begun with, or begin it.

    An old secret never meets another table or other options: the difference of two outputs would
    show what the noise hides.

    Args:
        file: in a secret folder that the caller holds (:func:`bdpvi._runtime.store.held`).
        table: digest of the table.
        options: digest of all that decides what is done with it.
        charge: ε and δ of everything, for the owner to read.
        ledger: that is charged, for the owner to find.
        alone: whether nothing else may be in the folder before.

    Raises:
        ValueError: if the folder was begun with another table or other options, or is used for
            something else.
    """
    asked = Intent(
        table=table, options=options, charge=charge, ledger=str(ledger), key=Key.fresh().secret
    )
    if not file.exists():
        others = [one.name for one in file.parent.iterdir() if not one.name.startswith(".")]
        if alone and others:
            raise ValueError(
                f"{file.parent} exists already and holds {others[0]}; choose another; nothing is "
                "overwritten"
            )
        store.write(file, _content(asked))
        return Begun(file, asked)
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
    return Begun(file, kept)


def output_of(file: Path) -> Path:
    """Return where the output's bytes are kept, given the file with the intent."""
    return file.with_suffix(".output")


def read(file: Path) -> Intent:
    """Return the intent that a file holds.

    Raises:
        ValueError: if it holds none.
    """
    try:
        return from_json(Intent, unsealed(store.read_json(file)))
    except ValueError as error:
        raise ValueError(f"{file} cannot be used: {error}") from error


def _content(intent: Intent) -> bytes:
    return json.dumps(sealed(to_json(intent))).encode()

"""What a command set out to do, on the disk before anything random is drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bdpvi._runtime import store
from bdpvi._runtime.checkpoint import sealed, unsealed
from bdpvi._runtime.keys import Key
from bdpvi._runtime.schema import from_json, to_json

_FILE = "intent.json"


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What is to be done.

    Attributes:
        format: of the file.
        table, options, charge: see :func:`begun`.
        key: that all draws follow from.
    """

    format: int = 1
    table: str
    options: str
    charge: Mapping[str, float]
    key: bytes


def begun(folder: Path, *, table: str, options: str, charge: Mapping[str, float]) -> Key:
    """Return the key that all draws of this work follow from: the one kept, or a fresh one.

    So the same command makes the same draws after an interruption, and has nothing to pay twice.
    An old key never meets another table or other options: the difference of two outputs would show
    what the noise hides.

    Args:
        folder: secret, held by the caller (:func:`bdpvi._runtime.store.held`).
        table: digest of the table.
        options: digest of all that decides what is done with it.
        charge: ε and δ of everything, for the owner to read.

    Raises:
        ValueError: if the folder was begun with another table or other options, or is used for
            something else.
    """
    file = folder / _FILE
    asked = Intent(table=table, options=options, charge=charge, key=Key.fresh().secret)
    if not file.exists():
        others = [one.name for one in folder.iterdir() if not one.name.startswith(".")]
        if others:
            raise ValueError(
                f"{folder} exists already and holds {others[0]}; choose another, nothing is "
                "replaced"
            )
        store.write(file, json.dumps(sealed(to_json(asked))).encode())
        return Key(asked.key)
    try:
        kept = from_json(Intent, unsealed(store.read_json(file)))
    except ValueError as error:
        raise ValueError(f"{file} cannot be used: {error}") from error
    for name in ("format", "table", "options"):
        if getattr(kept, name) != getattr(asked, name):
            raise ValueError(
                f"{folder} was begun with another {name}: what was paid there is paid; choose "
                "another place for this work. Both cost together what they cost one by one"
            )
    return Key(kept.key)


def undone(folder: Path) -> None:
    """Take back :func:`begun` in a new folder, where nothing was charged."""
    (folder / _FILE).unlink()

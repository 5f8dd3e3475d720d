"""What a command set out to do, on the disk before anything random is drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from bdpvi._runtime import store
from bdpvi._runtime.checkpoint import sealed, unsealed
from bdpvi._runtime.keys import Key

_FILE = "intent.json"


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
    asked = {"format": 1, "table": table, "options": options}
    if not file.exists():
        others = [one.name for one in folder.iterdir() if not one.name.startswith(".")]
        if others:
            raise ValueError(
                f"{folder} exists already and holds {others[0]}; choose another, nothing is "
                "replaced"
            )
        key = Key.fresh()
        whole = sealed({**asked, "charge": dict(charge), "key": key.secret.hex()})
        store.write(file, json.dumps(whole).encode())
        return key
    try:
        kept = unsealed(store.read_json(file))
    except ValueError as error:
        raise ValueError(f"{file} cannot be used: {error}") from error
    for name, value in asked.items():
        if kept.get(name) != value:
            raise ValueError(
                f"{folder} was begun with {name}: what was paid there is paid; choose "
                "another place for this work. Both cost together what they cost one by one"
            )
    return Key(bytes.fromhex(kept["key"]))

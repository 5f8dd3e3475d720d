"""Finished pieces of long work in a folder, so that a killed run goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bdpvi._runtime import store


class Cells:
    """One JSON file for each finished cell: whole or not there, readable by its owner only.

    Args:
        folder: made if it is not there. Files whose names begin with a dot do not count.
        settings: JSON types; all that the cells depend on.

    Raises:
        ValueError: if the folder belongs to other settings, naming the first that differs, or holds
            files but no settings.

    >>> import tempfile
    >>> cells = Cells(Path(tempfile.mkdtemp()) / "out", {"seeds": 10})
    >>> cells.put("a", {"accuracy": 0.5})
    >>> cells.get("a"), cells.get("b")
    ({'accuracy': 0.5}, None)
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder / "cells"
        file = folder / "settings.json"
        wanted = json.loads(json.dumps(settings))
        if file.exists():
            found = store.read_json(file)
            if not isinstance(found, dict):
                raise ValueError(f"{file} does not hold a JSON object")
            for name in sorted({*found, *wanted}):
                if found.get(name) != wanted.get(name):
                    raise ValueError(
                        f"out={str(folder)!r} was made with other settings: {name} was "
                        f"{_short(found.get(name))}, is {_short(wanted.get(name))}"
                    )
        elif folder.exists() and any(not p.name.startswith(".") for p in folder.iterdir()):
            raise ValueError(f"out={str(folder)!r} exists already and has no settings.json")
        store.make_folder(folder)
        store.check_writable(folder)
        if not file.exists():
            store.write(file, json.dumps(wanted, indent=1).encode())
        store.make_folder(self.folder)
        self.folder.chmod(0o700)
        store.check_writable(self.folder)

    def get(self, name: str, check: Callable[[Any], object] | None = None) -> Any:
        """Return a finished cell, None if it is still to be done.

        Raises:
            ValueError: if it cannot be read, or if ``check`` raises that, naming the file.
        """
        file = self._file(name)
        if not file.exists():
            return None
        cell = store.read_json(file)
        if check is not None:
            try:
                check(cell)
            except ValueError as error:
                raise ValueError(
                    f"{file} is no finished cell: {error}; delete it to have it done again"
                ) from error
        return cell

    def put(self, name: str, cell: Any) -> None:
        """Keep a finished cell."""
        store.write(self._file(name), json.dumps(cell, indent=1).encode())

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) < 200 else text[:200] + "…"

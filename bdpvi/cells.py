"""Finished pieces of long work in a folder, so that a killed run goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bdpvi.store import replacing


class Cells:
    """One JSON file for each finished cell: whole or not there.

    Args:
        folder: made if it is not there.
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
            found = _read(file)
            for name in sorted({*found, *wanted}):
                if found.get(name) != wanted.get(name):
                    raise ValueError(
                        f"out={str(folder)!r} was made with other settings: {name} was "
                        f"{_short(found.get(name))}, is {_short(wanted.get(name))}"
                    )
        elif folder.exists() and any(not p.name.startswith(".") for p in folder.iterdir()):
            raise ValueError(f"out={str(folder)!r} exists already and has no settings.json")
        folder.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            with replacing(file) as temporary:
                temporary.write_text(json.dumps(wanted, indent=1), encoding="utf-8")
        self.folder.mkdir(exist_ok=True)

    def get(self, name: str) -> Any:
        """Return a finished cell, None if it is still to be done."""
        file = self._file(name)
        return _read(file) if file.exists() else None

    def put(self, name: str, cell: Any) -> None:
        """Keep a finished cell."""
        with replacing(self._file(name)) as temporary:
            temporary.write_text(json.dumps(cell, indent=1), encoding="utf-8")

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) < 200 else text[:200] + "…"

"""Finished parts of a long run, kept on disk so that an interrupted run can go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from bdpvi import store

Tensors = dict[str, Tensor]
Once = Callable[[str, Callable[[], Tensors]], Tensors]
"""Returns the tensors of a named part: those kept, or else those it makes now."""

_ABOUT = "run.json"


def always(name: str, make: Callable[[], Tensors]) -> Tensors:
    """Make the part, and keep nothing: an :data:`Once` without a disk."""
    return make()


class Checkpoint:
    """A folder of finished parts, readable by its owner only; each part whole or not there.

    Its parts come from the training data, so the folder is secret. It appears with its first part.

    Args:
        folder: may be there already, from a run with the same identity.
        identity: all that determines the parts, as text by the name of the argument.

    Raises:
        ValueError: if the folder holds parts of another run, naming the first argument that
            differs, or is not a checkpoint.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as place:
    ...     kept = Checkpoint(Path(place) / "unfinished", {"seed": "0"})
    ...     _ = kept.once("part", lambda: {"value": torch.ones(2)})
    ...     kept.once("part", lambda: {"value": torch.zeros(2)})
    {'value': tensor([1., 1.])}
    """

    def __init__(self, folder: str | Path, identity: Mapping[str, str]) -> None:
        self.folder = Path(folder)
        self.identity = dict(identity)
        if self.folder.exists():
            self._check()

    def once(self, name: str, make: Callable[[], Tensors]) -> Tensors:
        """Return the tensors of part ``name``; make and keep them if they are not there."""
        file = self.folder / f"{name}.safetensors"
        if file.exists():
            try:
                kept: Tensors = load_file(file)
                return kept
            except (OSError, SafetensorError) as error:
                raise ValueError(f"checkpoint: {file} cannot be read: {error}") from error
        made = make()
        store.make_folder(self.folder)
        about = self.folder / _ABOUT
        if not about.exists():
            store.write(about, json.dumps(self.identity, indent=2).encode())
        store.write(file, save({key: value.contiguous().cpu() for key, value in made.items()}))
        return made

    def _check(self) -> None:
        about = self.folder / _ABOUT
        if not about.exists() and not any(self.folder.iterdir()):
            return
        try:
            kept = json.loads(about.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"checkpoint={str(self.folder)!r} is not a checkpoint: {error}"
            ) from error
        for name in self.identity | kept:
            new, old = self.identity.get(name), kept.get(name)
            if new != old:
                raise ValueError(
                    f"{name}={new} cannot go on with the unfinished run in {self.folder}, which "
                    f"has {name}={old}; go on with that, or delete the folder"
                )


def forget(folder: str | Path) -> None:
    """Delete a checkpoint; one that is not there, or that another worker deletes, is no error."""
    shutil.rmtree(folder, ignore_errors=True)

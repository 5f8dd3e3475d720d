"""Finished parts of a long run, kept on disk so that an interrupted run can go on."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bdpvi._runtime import store

Tensors = dict[str, Tensor]
Once = Callable[[str, Callable[[], Tensors], Mapping[str, Tensor]], Tensors]
"""Returns the tensors of a named part: those kept, or else those it makes now.

The last argument has a tensor of the same type and shape for each, on the meta device."""

_ABOUT = "run.json"
_DIGEST = "sha256"
_EVERY = 60.0
"""Seconds between two writes of the state of a part that is being made."""


def always(name: str, make: Callable[[], Tensors], like: Mapping[str, Tensor]) -> Tensors:
    """Make the part, and keep nothing: an :data:`Once` without a disk."""
    return make()


class Checkpoint:
    """A folder of finished parts, readable by its owner only; each part whole or not there.

    Its parts come from the training data, so the folder is secret. It appears with its first part.

    Args:
        folder: may be there already, from a run with the same identity. Files whose names begin
            with a dot do not count.
        identity: all that determines the parts, as text by the name of the argument.

    Raises:
        ValueError: if the folder holds parts of another run, naming the first argument that
            differs, or is not a checkpoint.

    >>> import tempfile
    >>> like = {"value": torch.empty(2, device="meta")}
    >>> with tempfile.TemporaryDirectory() as place:
    ...     kept = Checkpoint(Path(place) / "unfinished", {"seed": "0"})
    ...     _ = kept.once("part", lambda: {"value": torch.ones(2)}, like)
    ...     kept.once("part", lambda: {"value": torch.zeros(2)}, like)
    {'value': tensor([1., 1.])}
    """

    def __init__(self, folder: str | Path, identity: Mapping[str, str]) -> None:
        self.folder = Path(folder)
        self.identity = dict(identity)
        if self.folder.exists():
            self._check()

    def once(self, name: str, make: Callable[[], Tensors], like: Mapping[str, Tensor]) -> Tensors:
        """Return the tensors of part ``name``; make and keep them if they are not there."""
        file = self.file(name)
        if file.exists():
            kept, _ = read_tensors("checkpoint", file)
            alike("checkpoint", file, kept, like)
            return kept
        made = make()
        self.put(name, made)
        self.file(f"{name}.begun").unlink(missing_ok=True)
        return made

    def begun(self, name: str) -> Begun:
        """Return where the state of part ``name`` is kept while it is being made."""
        return Begun(self, f"{name}.begun")

    def file(self, name: str) -> Path:
        """Return the file of a part."""
        return self.folder / f"{name}.safetensors"

    def put(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Keep these tensors."""
        store.make_folder(self.folder)
        self.folder.chmod(0o700)
        about = self.folder / _ABOUT
        if not about.exists():
            store.write(about, json.dumps(self.identity, indent=2).encode())
        write_tensors(self.file(name), tensors, {})

    def _check(self) -> None:
        about = self.folder / _ABOUT
        if not about.exists() and all(p.name.startswith(".") for p in self.folder.iterdir()):
            return
        try:
            kept = store.read_json(about)
            if not isinstance(kept, dict):
                raise ValueError(f"{about} does not hold a JSON object")
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


class Begun:
    """The state of a part that is being made, written every minute; see ``svi.Kept``."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self.checkpoint, self.name = checkpoint, name
        self.written = time.monotonic()

    def state(self) -> Any:
        """Return the state that was written last, None if there is none."""
        file = self.checkpoint.file(self.name)
        if not file.exists():
            return None
        kept, _ = read_tensors("checkpoint", file)
        length = kept["state"].numel() if "state" in kept else 0
        whole = torch.empty(length, dtype=torch.uint8, device="meta")
        alike("checkpoint", file, kept, {"state": whole})
        try:
            content = io.BytesIO(bytes(kept["state"].numpy()))
            return torch.load(content, map_location="cpu", weights_only=True)
        except (RuntimeError, pickle.UnpicklingError) as error:
            raise _unreadable("checkpoint", file, error) from error

    def reached(self, state: Callable[[], Any]) -> None:
        """Write the state, of what ``torch.load`` takes for weights, if it is time to."""
        if time.monotonic() - self.written < _EVERY:
            return
        content = io.BytesIO()
        torch.save(state(), content)
        whole = torch.frombuffer(bytearray(content.getvalue()), dtype=torch.uint8)
        self.checkpoint.put(self.name, {"state": whole})
        self.written = time.monotonic()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write tensors and texts to a safetensors file, with their digest."""
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    store.write(path, save(whole, metadata={**about, _DIGEST: _digest(whole, about)}))


def read_tensors(argument: str, path: Path) -> tuple[Tensors, dict[str, str]]:
    """Return the tensors and texts that :func:`write_tensors` wrote, to the bit.

    Raises:
        ValueError: if the file is anything else, naming ``argument`` and file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(argument, path, error) from error
    if about.pop(_DIGEST, None) != _digest(tensors, about):
        raise _unreadable(argument, path, "its content is not what was written")
    return tensors, about


def alike(
    argument: str, path: Path, tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]
) -> None:
    """Raise ValueError unless the tensors have the names, types and shapes of ``like``."""
    if tensors.keys() != like.keys():
        error = f"it has {sorted(tensors)}, not {sorted(like)}"
        raise _unreadable(argument, path, error)
    for name, wanted in like.items():
        found = tensors[name]
        if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
            raise _unreadable(
                argument,
                path,
                f"{name} has {found.dtype} of shape {tuple(found.shape)}, not {wanted.dtype} of "
                f"shape {tuple(wanted.shape)}",
            )


def forget(folder: str | Path) -> None:
    """Delete a checkpoint; one that is not there, or that another worker deletes, is no error."""
    shutil.rmtree(folder, ignore_errors=True)


def _unreadable(argument: str, path: Path, error: object) -> ValueError:
    return ValueError(f"{argument}: {path} cannot be read: {error}; delete it to begin there again")


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(dict(about), sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

"""Finished parts of a long run on disk, so that an interrupted run can resume."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bdpvi._ground import schema, store

Tensors = dict[str, Tensor]

_DIGEST, _SETTINGS = "sha256", "settings.json"
_EVERY = 60.0
"""Seconds between two writes of the state of an unfinished part."""


class Checkpoint:
    """A folder of finished parts, readable by its owner only; each part is complete or missing.

    A part is a JSON object (:meth:`get`, :meth:`write_part`) or tensors (:meth:`once`). It is
    computed from the training data and so is secret. The first part or :meth:`begin` creates the
    folder.

    Args:
        folder: may exist, from a run with the same settings. Files whose names begin with a dot are
            ignored. None stores nothing.
        settings: everything that determines the parts, as JSON types by argument name.
        parts: subfolder for the parts, if the folder has other files.

    Raises:
        ValueError: if the folder is not a checkpoint, or holds parts of another run; it names the
            first argument that differs.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     kept = Checkpoint(Path(place) / "unfinished", {"seed": 0})
    ...     _ = kept.once("part", lambda: {"value": torch.ones(2)})
    ...     kept.write_part("cell", {"accuracy": 0.5})
    ...     kept.once("part", lambda: {"value": torch.zeros(2)}), kept.get("cell"), kept.get("a")
    ({'value': tensor([1., 1.])}, {'accuracy': 0.5}, None)
    """

    def __init__(
        self, folder: str | Path | None, settings: Mapping[str, Any], parts: str | None = None
    ) -> None:
        self.stores, self.whole = folder is not None, Path(folder or "")
        self.folder = self.whole if parts is None else self.whole / parts
        self.settings = json.loads(json.dumps(settings))
        if not self.stores:
            return
        file = self.whole / _SETTINGS
        if file.exists():
            schema.require_same(
                f"the unfinished run in {folder}",
                store.read_json(file),
                self.settings,
                "go on with that, or delete the folder",
            )
        elif self.whole.exists() and any(p.name[0] != "." for p in self.whole.iterdir()):
            raise ValueError(f"{folder} exists already and is not a checkpoint: no {_SETTINGS}")

    def begin(self) -> None:
        """Create the folder and write the settings.

        Raises:
            OSError: if no files can be written.
        """
        store.make_folder(self.whole)
        store.check_writable(self.whole)
        if not (self.whole / _SETTINGS).exists():
            store.write(self.whole / _SETTINGS, json.dumps(self.settings, indent=1).encode())
        store.make_folder(self.folder)
        self.folder.chmod(0o700)
        store.check_writable(self.folder)

    def get(self, name: str) -> Any:
        """Return JSON part ``name``, None if it is missing.

        Raises:
            ValueError: if it is not what :meth:`write_part` wrote; it names the file.
        """
        file = self.folder / f"{name}.json"
        if not file.exists():
            return None
        try:
            return unsealed(store.read_json(file))
        except ValueError as error:
            raise _unreadable("checkpoint", file, error) from error

    def write_part(self, name: str, part: Mapping[str, Any]) -> None:
        """Store JSON part ``name``."""
        self.begin()
        content = sealed(json.loads(json.dumps(part)))
        store.write(self.folder / f"{name}.json", json.dumps(content, indent=1).encode())

    def once(self, name: str, make: Callable[[], Tensors]) -> Tensors:
        """Return the tensors of part ``name``; make and store them if they are missing."""
        if self.has(name):
            return read_tensors("checkpoint", self.file(name))[0]
        made = make()
        if self.stores:
            self.keep(name, made)
            self.file(f"{name}.begun").unlink(missing_ok=True)
        return made

    def has(self, name: str) -> bool:
        """Return whether part ``name`` is stored as tensors."""
        return self.stores and self.file(name).exists()

    def unfinished_part(self, name: str) -> KeptState:
        """Return the stored state of part ``name`` while it is unfinished."""
        return KeptState(self, f"{name}.begun")

    def file(self, name: str) -> Path:
        """Return the file of a part with tensors."""
        return self.folder / f"{name}.safetensors"

    def keep(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Store the tensors of part ``name``."""
        self.begin()
        write_tensors(self.file(name), tensors, {})


class KeptState:
    """The state of an unfinished part, written every minute."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self.checkpoint, self.name = checkpoint, name
        self.written = time.monotonic()

    def state(self) -> Any:
        """Return the last written state, None if there is none."""
        if not self.checkpoint.has(self.name):
            return None
        file = self.checkpoint.file(self.name)
        content = read_tensors("checkpoint", file)[0]["state"].numpy().tobytes()
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)

    def save_if_due(self, state: Callable[[], Any]) -> None:
        """Write the state once a minute; its types must suit ``torch.load`` with weights only."""
        if not self.checkpoint.stores or time.monotonic() - self.written < _EVERY:
            return
        content = io.BytesIO()
        torch.save(state(), content)
        whole = torch.frombuffer(bytearray(content.getvalue()), dtype=torch.uint8)
        self.checkpoint.keep(self.name, {"state": whole})
        self.written = time.monotonic()


NOWHERE = Checkpoint(None, {})
UNKEPT = NOWHERE.unfinished_part("")
"""Store nothing."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write tensors and strings to a safetensors file, with their digest."""
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    store.write(path, save(whole, metadata={**about, _DIGEST: _digest(whole, about)}))


def read_tensors(argument: str, path: Path) -> tuple[Tensors, dict[str, str]]:
    """Return the tensors and strings that :func:`write_tensors` wrote, bit for bit.

    Raises:
        ValueError: if the file is anything else; it names ``argument`` and file.
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


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with its digest, which detects changes.

    >>> unsealed(sealed({"steps": 3, "counts": torch.ones(2)}))["steps"]
    3
    >>> unsealed(sealed({"steps": 3}) | {"steps": 2})
    Traceback (most recent call last):
        ...
    ValueError: state was changed: its sha256 does not match its content
    """
    return {**state, _DIGEST: _digest_of(state)}


def unsealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state inside a :func:`sealed` one.

    Raises:
        ValueError: if it was changed.
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"state must be what state_dict() returned, got {type(state).__name__}")
    content = {name: value for name, value in state.items() if name != _DIGEST}
    if state.get(_DIGEST) != _digest_of(content):
        raise ValueError("state was changed: its sha256 does not match its content")
    return content


def reread(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state as it comes back from a file, to see that it does.

    >>> reread({"steps": 3})
    {'steps': 3}
    """
    written = io.BytesIO()
    torch.save(sealed(state), written)
    written.seek(0)
    return unsealed(torch.load(written, weights_only=False))


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Turn any error of code that reads a state into one ValueError.

    >>> with understood("state"):
    ...     {}["steps"]
    Traceback (most recent call last):
        ...
    ValueError: state cannot be used: KeyError('steps'); give what state_dict() returned
    """
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, RuntimeError) as error:
        raise ValueError(
            f"{what} cannot be used: {error!r:.200}; give what state_dict() returned"
        ) from error


def _digest_of(value: Any) -> str:
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Mapping):
            names = sorted(value, key=repr)
            digest.update(f"{{{len(names)}".encode())
            for name in names:
                digest.update(repr(name).encode())
                add(value[name])
        elif isinstance(value, list | tuple):
            digest.update(f"[{len(value)}".encode())
            for one in value:
                add(one)
        elif isinstance(value, Tensor):
            whole = value.detach().cpu().contiguous()
            digest.update(f"{whole.dtype} {tuple(whole.shape)}".encode())
            digest.update(whole.reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(value).encode())

    add(value)
    return digest.hexdigest()


def settings_of(folder: Path) -> dict[str, Any]:
    """Return the settings of the run in a folder, {} if there is none."""
    file = folder / _SETTINGS
    return store.read_json(file) if file.exists() else {}


def _unreadable(argument: str, path: Path, error: object) -> ValueError:
    return ValueError(f"{argument}: {path} cannot be read: {error}; delete it to begin there again")


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(dict(about), sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

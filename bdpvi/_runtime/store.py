"""Files that are whole or not there, also if power fails, and that only their owner can read."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bdpvi._runtime import outputs, validate

_MARK = "bdpvi-"
"""In the names of temporary files, so that nobody else's file is taken for one."""
_LOCK = ".lock"
MOST_BYTES, MOST_VALUES = 2**27, 2**22
"""Of a JSON file that may be from others; a value takes about 100 bytes of memory."""
_PATIENCE = 0.5
"""Seconds that a lock is waited for: who looks for what is dead has it for a moment only."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that becomes ``path`` at the end, unless something goes wrong.

    It lies in the same folder under a name that nobody can guess, with mode 0600 under any umask.
    A link at ``path`` is replaced, not followed. At the end, file and folder are on the disk.
    What killed processes have left in the folder is removed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     (Path(folder) / "a.txt").read_text()
    'whole'
    """
    with _temporary(path, secrets.token_hex(4)) as temporary:
        _create(temporary)
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)


def write(path: Path, content: bytes) -> None:
    """Write ``path`` as :func:`replacing` does."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def claimed(path: Path, room: int = 0) -> Iterator[Path]:
    """Claim ``path`` for this process alone, and yield a temporary file that becomes it at the end.

    Of several processes that want the same new file one gets it; the others fail before they have
    done anything. The claim is a lock, which ends with the process, so a killed one leaves nothing
    in the way. Nothing that has come to be at ``path`` meanwhile is replaced.

    Args:
        path: the file, which is not there; an empty one, or an empty folder, is taken for nothing.
        room: bytes to set aside on the disk, before anything is done that must not be lost. Write
            by :func:`fill`.

    Raises:
        ValueError: if something is at ``path`` already, a dangling link included.
        OSError: if the folder cannot be written to, or the disk is full.
    """
    with _claim(path) as temporary:
        _create(temporary, room)
        yield temporary
        sync(temporary)


@contextmanager
def claimed_folder(path: Path) -> Iterator[Path]:
    """Claim ``path`` as :func:`claimed` does, and yield a temporary folder, with mode 0700.

    Files written into it by :func:`write` are on the disk before it gets its name.
    """
    with _claim(path) as temporary:
        temporary.mkdir()
        temporary.chmod(0o700)  # under any umask
        yield temporary


@contextmanager
def _claim(path: Path) -> Iterator[Path]:
    """Yield the name of what becomes ``path`` at the end."""
    with _temporary(path, "claim") as temporary:
        if not nothing_at(path):
            raise ValueError(f"{str(path)!r} exists already; nothing is overwritten")
        yield temporary
        try:
            _publish(temporary, path)
        except OSError as error:
            if not os.path.lexists(path):
                raise
            raise ValueError(f"{str(path)!r} exists already; nothing is overwritten") from error
        sync(path.parent)


def _publish(temporary: Path, path: Path) -> None:
    """Give it its name; neither a link nor the name of a folder replaces what is there."""
    if os.path.lexists(path) and nothing_at(path):
        path.rmdir() if path.is_dir() else path.unlink()
    if not temporary.is_dir():
        with suppress(OSError):  # a file system without hard links, or something is there
            return os.link(temporary, path)
        if os.path.lexists(path):
            raise FileExistsError(path)
    os.rename(temporary, path)


def fill(path: Path, content: bytes) -> None:
    """Write into a file that has space set aside, and give back what is not needed."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def nothing_at(path: Path) -> bool:
    """Return whether nothing is there but an empty file or folder, which a killed process left."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return True
    if stat.S_ISREG(found.st_mode):
        return found.st_size == 0
    return stat.S_ISDIR(found.st_mode) and not os.listdir(path)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, with mode 0700 under any umask."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
        one.chmod(0o700)
        sync(one.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[None]:
    """Make a folder as :func:`make_folder` does; what goes wrong leaves no new, empty one."""
    new = not path.exists()
    make_folder(path)
    try:
        yield
    except BaseException:
        if new:
            with suppress(OSError):  # it is not empty
                path.rmdir()
        raise


def check_writable(folder: Path) -> None:
    """Raise OSError unless files can be made in a folder, by making one; the folder is made too."""
    folder.mkdir(parents=True, exist_ok=True)
    with _temporary(folder / "probe", secrets.token_hex(4)) as temporary:
        _create(temporary)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a secret folder for this process alone, until the end or until the process dies.

    It is made if it is not there. A folder that nothing was put into is removed at the end.

    Raises:
        ValueError: if another process holds it.
        OSError: if it cannot be made or written to.
    """
    make_folder(folder)
    try:
        with _locked(
            folder / _LOCK,
            f"{folder} is in use by another process; wait for it to finish, or choose another out",
        ):
            folder.chmod(0o700)  # the lock made it again if another process had just removed it
            remove_dead(folder)
            yield
    finally:
        with suppress(OSError):  # it is not empty
            folder.rmdir()


@contextmanager
def _locked(file: Path, refusal: str, wait: float = _PATIENCE) -> Iterator[None]:
    """Hold a lock until the end or until the process dies; its file is removed at the end.

    Args:
        file: of the lock.
        refusal: what is said if another process has it.
        wait: seconds until that.

    Raises:
        ValueError: if another process has it.
        OSError: if it cannot be made.
    """
    lock = FileLock(file, timeout=wait, mode=0o600)
    try:
        lock.acquire()
    except (Timeout, FileNotFoundError):  # it is held, or was a moment ago in a folder now gone
        raise ValueError(refusal) from None
    try:
        yield
    finally:
        with suppress(OSError):  # Windows cannot remove an open file: there, the release does it
            file.unlink()
        lock.release()


@contextmanager
def _temporary(path: Path, word: str) -> Iterator[Path]:
    """Yield a name beside ``path`` at which nothing is, and at the end nothing is again.

    While its lock is held it is not taken for dead.
    """
    remove_dead(path.parent)
    temporary = path.with_name(f".{path.name}.{_MARK}{word}")
    refusal = f"{str(path)!r} is being written by another process"
    with _locked(Path(f"{temporary}{_LOCK}"), refusal):
        try:
            yield temporary
        finally:
            _remove(temporary)


def _create(file: Path, room: int = 0) -> None:
    """Make a file that only its owner can read, with so many bytes set aside on the disk."""
    file.touch(mode=0o600, exist_ok=False)
    file.chmod(0o600)  # under any umask
    if room:
        file.write_bytes(bytes(room))
        sync(file)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_dead(folder: Path) -> None:
    """Remove the temporary files and folders in a folder whose writers are gone."""
    names = (name for name in os.listdir(folder) if name[0] == "." and f".{_MARK}" in name)
    for name in {name.removesuffix(_LOCK) for name in names}:
        with (
            suppress(ValueError, OSError),
            _locked(folder / f"{name}{_LOCK}", "its writer lives", wait=0),
        ):
            _remove(folder / name)


def read_shared(path: Path) -> bytes:
    """Return the content of a JSON file, whoever wrote it: what is read of it fits into memory.

    Raises:
        ValueError: if it has more than 2²⁷ bytes or 2²² values.
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)  # a device has no size
    validate.at_most("bytes of the file", len(content), MOST_BYTES)
    values = sum(content.count(one) for one in (b",", b":", b"[", b"{"))
    validate.at_most("values in the file", values, MOST_VALUES)
    return content


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ValueError: if the file holds anything else, or too much, naming it.
        OSError: if it cannot be opened.
    """
    try:
        content = json.loads(read_shared(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return content


def json_value(value: Any) -> Any:
    """Return a value as JSON types: paths as text, and infinite or undefined numbers, which JSON
    does not have, as the strings "Infinity", "-Infinity" and "NaN".

    >>> json_value({"epsilon": float("inf"), "orders": (1, 2), "at": Path("a")})
    {'epsilon': 'Infinity', 'orders': [1, 2], 'at': 'a'}
    """
    return json.loads(json.dumps(value, default=str), parse_constant=str)


def json_text(value: Any, indent: int | None = None) -> str:
    """Return :func:`json_value` as text.

    >>> json_text({"epsilon": float("inf"), "order": None})
    '{"epsilon": "Infinity", "order": null}'
    """
    return outputs.visible(json.dumps(json_value(value), indent=indent, ensure_ascii=False))


def sync(path: Path) -> None:
    """Return when the file or the folder is on the disk; Windows has no such wait for a folder."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

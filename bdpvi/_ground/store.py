"""Files that are complete or missing, even after a power failure, and private to their owner."""

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

from bdpvi._ground import outputs, validate

_MARK = "bdpvi-"
"""Mark in the names of temporary files, so that no other file is taken for one."""
_LOCK = ".lock"
MOST_BYTES, MOST_VALUES = 2**27, 2**22
"""Limits of an untrusted JSON file; a value takes about 100 bytes of memory."""
_PATIENCE = 0.5
"""Seconds to wait for a lock: a search for dead files holds it only for a moment."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that becomes ``path`` at the end, unless something goes wrong.

    It is in the same folder under an unguessable name, with mode 0600 under any umask. A link at
    ``path`` is replaced, not followed. At the end, file and folder are on disk. Temporary files of
    killed processes in the folder are removed.

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
    """Claim ``path`` for this process, and yield a temporary file that becomes it at the end.

    If several processes want the same new file, one gets it; the others fail before doing anything.
    The claim is a lock, which ends with the process, so a killed process leaves no obstacle. If
    ``path`` has come into existence meanwhile, it is not replaced.

    Args:
        path: the new file; an empty file or folder there counts as missing.
        room: bytes to reserve on disk, before any work that must not be lost. Write with
            :func:`fill`.

    Raises:
        ValueError: if ``path`` exists, even as a broken link.
        OSError: if the folder cannot be written to, or the disk is full.
    """
    with _claim(path) as temporary:
        _create(temporary, room)
        yield temporary
        sync(temporary)


@contextmanager
def claimed_folder(path: Path) -> Iterator[Path]:
    """Claim ``path`` as :func:`claimed` does, and yield a temporary folder, with mode 0700.

    Files written to it by :func:`write` are on disk before it gets its name.
    """
    with _claim(path) as temporary:
        temporary.mkdir()
        temporary.chmod(0o700)  # under any umask
        yield temporary


@contextmanager
def _claim(path: Path) -> Iterator[Path]:
    """Yield the temporary path that becomes ``path`` at the end."""
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
    """Rename it to ``path`` without replacing anything, by a hard link or as a folder."""
    if os.path.lexists(path) and nothing_at(path):
        path.rmdir() if path.is_dir() else path.unlink()
    if not temporary.is_dir():
        with suppress(OSError):  # a file system without hard links, or something is there
            return os.link(temporary, path)
        if os.path.lexists(path):
            raise FileExistsError(path)
    os.rename(temporary, path)


def fill(path: Path, content: bytes) -> None:
    """Write to a file with reserved space, and free the unused part."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def nothing_at(path: Path) -> bool:
    """Return whether there is at most an empty file or folder, as a killed process leaves."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    if stat.S_ISREG(found.st_mode):
        return found.st_size == 0
    return stat.S_ISDIR(found.st_mode) and not os.listdir(path)


def make_folder(path: Path) -> None:
    """Create a folder, and missing parents, with mode 0700 under any umask."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
        one.chmod(0o700)
        sync(one.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[None]:
    """Create a folder as :func:`make_folder` does; an error leaves no new, empty folder."""
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
    """Raise OSError unless a test file can be created in a folder, which is created too."""
    folder.mkdir(parents=True, exist_ok=True)
    with _temporary(folder / "probe", secrets.token_hex(4)) as temporary:
        _create(temporary)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a secret folder for this process, until the end or until the process dies.

    It is created if missing. An empty folder is removed at the end.

    Raises:
        ValueError: if another process holds it.
        OSError: if it cannot be created or written to.
    """
    make_folder(folder)
    try:
        with _locked(
            folder / _LOCK,
            f"{folder} is in use by another process; wait for it to finish, or choose another out",
        ):
            folder.chmod(0o700)  # the lock created it again if another process had just removed it
            remove_dead(folder)
            yield
    finally:
        with suppress(OSError):  # it is not empty
            folder.rmdir()


@contextmanager
def _locked(file: Path, refusal: str, wait: float = _PATIENCE) -> Iterator[None]:
    """Hold a lock until the end or until the process dies; its file is removed at the end.

    Args:
        file: file of the lock.
        refusal: message if another process holds it.
        wait: seconds to wait for it.

    Raises:
        ValueError: if another process holds it.
        OSError: if it cannot be created.
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
    """Yield an unused path beside ``path``, and remove it at the end.

    While its lock is held it does not count as dead.
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
    """Create a file that only its owner can read, with ``room`` bytes reserved on disk."""
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
    """Remove the temporary files and folders of dead processes from a folder."""
    names = (name for name in os.listdir(folder) if name[0] == "." and f".{_MARK}" in name)
    for name in {name.removesuffix(_LOCK) for name in names}:
        with (
            suppress(ValueError, OSError),
            _locked(folder / f"{name}{_LOCK}", "its writer lives", wait=0),
        ):
            _remove(folder / name)


def read_shared(path: Path) -> bytes:
    """Return the content of an untrusted JSON file, limited so that it fits into memory.

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
        ValueError: if the file holds anything else, or too much; it names the file.
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
    """Return a value as JSON types: paths as strings, and infinite or undefined numbers, which JSON
    lacks, as the strings "Infinity", "-Infinity" and "NaN".

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


def path_of(table: object) -> str | None:
    """Return the path or URL of a table; None of one in memory.

    >>> path_of(Path("visits.csv")), path_of([1, 2])
    ('visits.csv', None)
    """
    return os.fspath(table) if isinstance(table, str | os.PathLike) else None


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk; Windows cannot do this for folders."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Files that are whole or not there, also if power fails, and that only their owner can read."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_MARK = "bdpvi-"
"""In the names of temporary files, so that nobody else's file is taken for one."""
_LOCK = ".lock"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that becomes ``path`` at the end, unless something goes wrong.

    It lies in the same folder under a name that nobody can guess, with mode 0600 under any umask.
    A link at ``path`` is replaced, not followed. At the end, file and folder are on the disk.
    What a killed process has left of an earlier attempt at the same file is removed.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     (Path(folder) / "a.txt").read_text()
    'whole'
    """
    remove_dead(path)
    temporary, descriptor = _temporary(path)
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(descriptor)


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
    remove_dead(path)
    lock = path.with_name(f".{path.name}.{_MARK}claim")
    descriptor = _locked(lock, f"out={str(path)!r} is being written by another process")
    try:
        if not nothing_at(path):
            raise ValueError(f"out={str(path)!r} exists already; nothing is overwritten")
        temporary, writing = _temporary(path)
        try:
            if room:
                os.posix_fallocate(writing, 0, room)
            yield temporary
            sync(temporary)
            _publish(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
            os.close(writing)
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


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


def _publish(temporary: Path, path: Path) -> None:
    """Give a file its name unless something is there; a link cannot overwrite."""
    if os.path.lexists(path) and nothing_at(path):
        path.rmdir() if path.is_dir() else path.unlink()
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise ValueError(f"out={str(path)!r} exists already; nothing is overwritten") from None
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise ValueError(f"out={str(path)!r} exists already; nothing is overwritten") from None
        os.rename(temporary, path)
    sync(path.parent)


@contextmanager
def claimed_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``path`` at the end, unless something goes wrong.

    It lies in the same folder under a name that nobody can guess, with mode 0700 under any umask.
    Files written into it by :func:`write` are on the disk before it gets its name. Of several
    processes that want the same path one gets it. What a killed process has left is removed.

    Raises:
        ValueError: if something is at ``path`` by then, other than an empty folder.
    """
    remove_dead(path)
    temporary, descriptor = _temporary_folder(path)
    try:
        temporary.chmod(0o700)
        yield temporary
        try:
            if os.path.lexists(path) and not (path.is_dir() and not path.is_symlink()):
                raise FileExistsError
            os.rename(temporary, path)  # only an empty folder can be replaced
        except OSError as error:
            if not os.path.lexists(path):
                raise
            raise ValueError(
                f"path={str(path)!r} exists already; nothing is overwritten"
            ) from error
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(descriptor)


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
    remove_dead(folder / "probe")
    temporary, descriptor = _temporary(folder / "probe")
    temporary.unlink()
    os.close(descriptor)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a secret folder for this process alone, until the end or until the process dies.

    It is made if it is not there. A folder that nothing was put into is removed at the end.

    Raises:
        ValueError: if another process holds it.
        OSError: if it cannot be made or written to.
    """
    descriptor = _hold(folder)
    try:
        yield
    finally:
        with suppress(OSError):
            if [one.name for one in folder.iterdir()] == [_LOCK]:
                (folder / _LOCK).unlink()
                folder.rmdir()
        os.close(descriptor)


def _hold(folder: Path) -> int:
    """Return the descriptor of a folder's lock."""
    while True:
        make_folder(folder)
        with suppress(FileNotFoundError):  # whoever held it has just removed it
            return _locked(
                folder / _LOCK,
                f"{folder} is held by another process at the same work; wait for that, or choose "
                "another out",
            )


def _locked(file: Path, refusal: str) -> int:
    """Return the descriptor of a file that is locked until it is closed or the process dies.

    Raises:
        ValueError: with these words, if another process has it.
        OSError: if it cannot be made.
    """
    while True:
        descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise
            raise ValueError(refusal) from None
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # it was removed by whoever had it


def _temporary(path: Path) -> tuple[Path, int]:
    """Return a new file beside ``path``, and a descriptor that is locked while its writer lives."""
    while True:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.{_MARK}", dir=path.parent)
        os.fchmod(descriptor, 0o600)
        with suppress(OSError):  # where nothing can be locked, nothing is taken for dead
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return Path(name), descriptor
        os.close(descriptor)  # taken for dead before it was locked


def _temporary_folder(path: Path) -> tuple[Path, int]:
    """Return a new folder beside ``path``, and a descriptor, as :func:`_temporary` does."""
    while True:
        made = Path(tempfile.mkdtemp(prefix=f".{path.name}.{_MARK}", dir=path.parent))
        with suppress(FileNotFoundError):  # taken for dead before it was locked
            descriptor = os.open(made, os.O_RDONLY)
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if made.exists():
                return made, descriptor
            os.close(descriptor)


def remove_dead(path: Path) -> None:
    """Remove temporary files and folders for ``path`` whose writer is gone."""
    for name in os.listdir(path.parent):
        if not name.startswith(f".{path.name}.{_MARK}"):
            continue
        with suppress(OSError):
            other = path.parent / name
            descriptor = os.open(other, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                mode = os.fstat(descriptor).st_mode
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if stat.S_ISREG(mode):
                    other.unlink()
                elif stat.S_ISDIR(mode):
                    shutil.rmtree(other)
            finally:
                os.close(descriptor)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ValueError: if the file holds anything else, naming it.
        OSError: if it cannot be opened.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
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
    return json.dumps(json_value(value), indent=indent, ensure_ascii=False)


def harmless(cell: Any) -> Any:
    """Return a text for a CSV file that no spreadsheet takes for a formula.

    >>> harmless("=cmd()"), harmless("-0.5"), harmless("yes"), harmless(-1)
    ("'=cmd()", '-0.5', 'yes', -1)
    """
    if isinstance(cell, str) and cell[:1] in tuple("=+-@\t\r"):
        try:
            float(cell)
        except ValueError:
            return f"'{cell}"
    return cell


def sync(path: Path) -> None:
    """Return when the file or the folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Files that are whole or not there, also if power fails, and that only their owner can read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that becomes ``path`` at the end, unless something goes wrong.

    It lies in the same folder under a name that nobody can guess, with mode 0600 under any umask.
    A link at ``path`` is replaced, not followed. At the end, file and folder are on the disk.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     (Path(folder) / "a.txt").read_text()
    'whole'
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write(path: Path, content: bytes) -> None:
    """Write ``path`` as :func:`replacing` does."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def claimed(path: Path) -> Iterator[Path]:
    """Create ``path`` for this process alone, and yield a temporary file as :func:`replacing` does.

    Of several processes that want the same new file one gets it; the others fail before they have
    done anything. If something goes wrong inside, no file is left.

    Raises:
        ValueError: if something is at ``path`` already, a dangling link included.
        OSError: if the folder cannot be written to.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise ValueError(f"out={str(path)!r} exists already; nothing is overwritten") from None
    try:
        with replacing(path) as temporary:
            yield temporary
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def claimed_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``path`` at the end, unless something goes wrong.

    It lies in the same folder under a name that nobody can guess, with mode 0700 under any umask.
    Files written into it by :func:`write` are on the disk before it gets its name. Of several
    processes that want the same path one gets it.

    Raises:
        ValueError: if something is at ``path`` by then, even an empty folder.
    """
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        temporary.chmod(0o700)
        yield temporary
        try:
            path.mkdir(mode=0o700)  # a rename alone would replace an empty folder
        except FileExistsError:
            raise ValueError(f"path={str(path)!r} exists already; nothing is overwritten") from None
        try:
            temporary.rename(path)
        except BaseException:
            path.rmdir()
            raise
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, with mode 0700 under any umask."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
        one.chmod(0o700)
        sync(one.parent)


def sync(path: Path) -> None:
    """Return when the file or the folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

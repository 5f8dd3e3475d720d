"""Files of JSON lines that show where they were changed.

Each line ends in the SHA-256 of itself and of the hash before it. A file that is edited, reordered
or cut within is noticed; whole lines cut off the end are not.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock


@dataclass(frozen=True)
class Chain:
    """The lines of a file whose hashes hold, and the rest.

    Attributes:
        said: the content of the lines before the first whose hash is wrong.
        hashes: of these lines; the next goes on from the last.
        size: bytes that they take.
        rest: that first line and all after it.
        why: what is wrong with it, in words.
    """

    said: tuple[dict[str, Any], ...] = ()
    hashes: tuple[str, ...] = ()
    size: int = 0
    rest: tuple[bytes, ...] = ()
    why: str = ""

    @property
    def last(self) -> str:
        """The hash that the next line goes on from."""
        return self.hashes[-1] if self.hashes else ""

    @property
    def torn(self) -> bool:
        """Whether all that is wrong is one last line that was cut off: an append that died."""
        return len(self.rest) == 1 and self.rest[0][-1:] != b"\n"


def link(previous: str, content: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the line with ``content`` that follows the hash ``previous``, and its own hash."""
    digest = hashlib.sha256((previous + json.dumps(content)).encode()).hexdigest()
    return (json.dumps({**content, "hash": digest}) + "\n").encode(), digest


def chained(*contents: Mapping[str, Any]) -> bytes:
    """Return a whole file.

    >>> proven(chained({"a": 1}, {"b": 2})).said
    ({'a': 1}, {'b': 2})
    >>> proven(chained({"a": 1}, {"b": 2}).replace(b"2", b"3", 1)).why
    'it was changed or is not in its place'
    """
    lines, last = [], ""
    for content in contents:
        line, last = link(last, content)
        lines.append(line)
    return b"".join(lines)


def proven(file: bytes, before: Chain | None = None) -> Chain:
    """Read a file as far as its hashes prove it. Every byte counts; it does not raise.

    Args:
        file: the whole content.
        before: what its first ``before.size`` bytes prove, which are then not looked at again.
    """
    known = before or Chain()
    said, hashes, size = list(known.said), list(known.hashes), known.size
    last, lines = known.last, file[size:].splitlines(keepends=True)
    for number, line in enumerate(lines):
        try:
            content, last = _parse(last, line)
        except ValueError as error:
            rest, why = tuple(lines[number:]), str(error)
            return Chain(tuple(said), tuple(hashes), size, rest, why)
        said.append(content)
        hashes.append(last)
        size += len(line)
    return Chain(tuple(said), tuple(hashes), size)


def append(path: Path, before: Chain, content: Mapping[str, Any]) -> tuple[bytes, Chain]:
    """Write one more line, on the disk when this returns. What an append that died left is cut off.

    Args:
        path: the file, which is never created.
        before: what it proves; nothing is left of it but perhaps a last line that was cut off.
        content: of the line.

    Returns:
        The line, and what the file proves then.

    Raises:
        OSError: if it cannot be written; the file is then as it was.
    """
    line, digest = link(before.last, content)
    with path.open("r+b", buffering=0) as file:
        file.truncate(before.size)
        file.seek(before.size)
        try:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(before.size)  # nothing follows a line that is not on the disk
            raise
    said, hashes = (*before.said, dict(content)), (*before.hashes, digest)
    return line, replace(before, said=said, hashes=hashes, size=before.size + len(line), rest=())


def _parse(previous: str, line: bytes) -> tuple[dict[str, Any], str]:
    if not line.endswith(b"\n"):
        raise ValueError("it is cut off")
    try:
        content = json.loads(line)
        del content["hash"]
        expected, digest = link(previous, content)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it cannot be read ({error})") from error
    if line != expected:
        raise ValueError("it was changed or is not in its place")
    return content, digest


def lock(path: Path) -> FileLock:
    """Return what keeps others out of a ledger's file; errors as of :func:`read`."""
    read(path)  # or the lock would create the folder
    return FileLock(f"{path}.lock", mode=0o600, is_singleton=True)  # so one thread may nest it


def read(path: Path) -> bytes:
    """Return a ledger's file, or raise ValueError if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ValueError(
            f"{path} is missing, so nobody knows what was released from this table: put the file "
            "back, the newest there is, or fit again"
        ) from None

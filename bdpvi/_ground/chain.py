"""Tamper-evident files of JSON lines.

Each line ends in the SHA-256 of itself and of the previous hash, which detects edits, reordering
and missing lines. The file's :class:`Head`, the number of lines and the last hash, is in a separate
file, which detects an emptied or truncated file and an old copy.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from bdpvi._ground import store


@dataclass(frozen=True)
class Chain:
    """The lines of a file whose hashes hold, and the rest.

    Attributes:
        said: the content of the lines before the first with a wrong hash.
        hashes: hashes of these lines; the next line continues from the last.
        size: their size in bytes.
        rest: the first line with a wrong hash and all after it.
        why: what is wrong with it, in words.
        ended: whether the last of these lines has its newline.
    """

    said: tuple[dict[str, Any], ...] = ()
    hashes: tuple[str, ...] = ()
    size: int = 0
    rest: tuple[bytes, ...] = ()
    why: str = ""
    ended: bool = True

    @property
    def last(self) -> str:
        """The hash that the next line continues from."""
        return self.hashes[-1] if self.hashes else ""

    @property
    def torn(self) -> bool:
        """Whether only a truncated last line is wrong: an interrupted append."""
        return len(self.rest) == 1 and self.rest[0][-1:] != b"\n"


@dataclass(frozen=True)
class Head:
    """The last known state of a file.

    Attributes:
        count: number of its lines.
        last: hash of the last line; "" if unknown.
        raised: what the last line that raises a limit says, so that a loss of it is known.
    """

    count: int
    last: str
    raised: str = ""

    @classmethod
    def of(cls, chain: Chain) -> Head:
        """Return the head of a file."""
        raised = (one["raised"] for one in reversed(chain.said) if "raised" in one)
        return cls(len(chain.hashes), chain.last, next(raised, ""))

    @classmethod
    def read(cls, file: Path) -> Head | None:
        """Return the head in a file, None if there is no file.

        Raises:
            ValueError: if it holds something else.
        """
        if not file.exists():
            return None
        content = store.read_json(file)
        try:
            result = cls(**content)
            if not all(map(isinstance, asdict(result).values(), (int, str, str))):
                raise TypeError(f"{content!r:.200}")
        except TypeError as error:
            raise ValueError(f"{file} is not the head of a ledger: {error}") from error
        return result

    def write(self, file: Path) -> None:
        """Write it to a file."""
        store.write(file, json.dumps(asdict(self)).encode())

    def is_in(self, chain: Chain) -> bool:
        """Return whether a file contains this state."""
        return not self.last or chain.hashes[self.count - 1 : self.count] == (self.last,)

    def check(self, path: Path, chain: Chain) -> None:
        """Raise ValueError unless this state is in a file."""
        if not self.is_in(chain):
            raise ValueError(
                f"{path} has lost lines: {len(chain.hashes)} of {self.count} can be verified. Its "
                "end was cut off, or it was replaced by an old copy. Restore the newest copy; if "
                f"it is lost, `bdpvi account {path} --repair` says what it costs to continue"
            )


def head_of(path: Path) -> Path:
    """Return the path of a file's head."""
    return path.with_name(f"{path.name}.head")


def save(path: Path, content: bytes) -> None:
    """Write a whole file and its head; until both are on disk the head is unknown."""
    Head(0, "").write(head_of(path))
    store.write(path, content)
    Head.of(proven(content)).write(head_of(path))


def link(previous: str, content: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the line with ``content`` after the hash ``previous``, and its own hash."""
    digest = hashlib.sha256((previous + json.dumps(content)).encode()).hexdigest()
    return (json.dumps({**content, "hash": digest}) + "\n").encode(), digest


def whole_file(*contents: Mapping[str, Any]) -> bytes:
    """Return a whole file.

    >>> proven(whole_file({"a": 1}, {"b": 2})).said
    ({'a': 1}, {'b': 2})
    >>> proven(whole_file({"a": 1}, {"b": 2}).replace(b"2", b"3", 1)).why
    'it was changed or is not in its place'
    """
    lines, last = [], ""
    for content in contents:
        line, last = link(last, content)
        lines.append(line)
    return b"".join(lines)


def proven(file: bytes, before: Chain | None = None) -> Chain:
    """Read a file as far as its hashes prove it. It checks every byte and does not raise.

    Args:
        file: the whole content.
        before: what its first ``before.size`` bytes prove, which are not checked again.
    """
    known = before or Chain()
    said, hashes, size = list(known.said), list(known.hashes), known.size
    last, lines = known.last, file[size:].splitlines(keepends=True)
    if not known.ended and lines[:1] == [b"\n"]:
        size += len(lines.pop(0))
    ended = True
    for number, line in enumerate(lines):
        ended = line.endswith(b"\n")
        try:
            content, last = _parse(last, line if ended else line + b"\n")
        except ValueError as error:
            rest, why = tuple(lines[number:]), str(error) if ended else "it is cut off"
            return Chain(tuple(said), tuple(hashes), size, rest, why)
        said.append(content)
        hashes.append(last)
        size += len(line)
    return Chain(tuple(said), tuple(hashes), size, ended=ended)


def append(path: Path, before: Chain, content: Mapping[str, Any]) -> tuple[bytes, Chain]:
    """Append a line, on disk on return. The rest of an interrupted append is removed.

    Args:
        path: the existing file.
        before: what it proves; its rest is at most a truncated last line.
        content: content of the line.

    Returns:
        The line, and what the file then proves.

    Raises:
        OSError: if it cannot be written; the file is then unchanged.
    """
    line, digest = link(before.last, content)
    if not before.ended:
        line = b"\n" + line
    with path.open("r+b", buffering=0) as file:
        file.truncate(before.size)
        file.seek(before.size)
        try:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(before.size)  # remove a line that is not safely on disk
            raise
    said, hashes = (*before.said, dict(content)), (*before.hashes, digest)
    size = before.size + len(line)
    return line, replace(before, said=said, hashes=hashes, size=size, rest=(), ended=True)


def _parse(previous: str, line: bytes) -> tuple[dict[str, Any], str]:
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
    """Return a lock of a ledger's file; errors as for :func:`read`."""
    if not path.exists():  # otherwise the lock would create the folder
        read(path)
    return FileLock(f"{path}.lock", mode=0o600, is_singleton=True)  # so that a thread may nest it


def read(path: Path) -> bytes:
    """Return a ledger's file, or raise ValueError if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ValueError(
            f"{path} is missing, so the releases of this table are unknown: restore the newest "
            f"copy; if it is lost, `bdpvi account {path} --repair` says what it costs to continue"
        ) from None


def state(path: Path) -> tuple[int, int, int] | None:
    """Return a stamp that changes with a file, None if it is missing."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns

"""JSON lines that show where they were changed: each ends in a hash of itself and of all before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Chain:
    """The lines of a file whose hashes hold, and the rest.

    Attributes:
        said: the content of the lines before the first whose hash is wrong.
        last: the hash that the next line goes on from.
        rest: that first line and all after it.
        why: what is wrong with it, in words.
        length: bytes of the lines that hold.
    """

    said: tuple[dict[str, Any], ...]
    last: str
    rest: tuple[bytes, ...]
    why: str
    length: int = 0

    @property
    def torn(self) -> bool:
        """Whether the rest is the beginning of one line: an append that never came to its end.

        What is charged is on the disk before anything is drawn, so nothing was drawn for it.
        """
        line = self.rest[0] if len(self.rest) == 1 and self.why == CUT_OFF else b'"}\n'
        return not line[:-1].endswith(b'"}')  # or its end was changed


CUT_OFF = "it is cut off"


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


def proven(file: bytes) -> Chain:
    """Read a file as far as its hashes prove it. Every byte counts; it does not raise."""
    said: list[dict[str, Any]] = []
    lines, last, length = file.splitlines(keepends=True), "", 0
    for number, line in enumerate(lines):
        try:
            content, last = _parse(last, line)
        except ValueError as error:
            return Chain(tuple(said), last, tuple(lines[number:]), str(error), length)
        said.append(content)
        length += len(line)
    return Chain(tuple(said), last, (), "", length)


def _parse(previous: str, line: bytes) -> tuple[dict[str, Any], str]:
    if not line.endswith(b"\n"):
        raise ValueError(CUT_OFF)
    try:
        content = json.loads(line)
        del content["hash"]
        expected, digest = link(previous, content)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it cannot be read ({error})") from error
    if line != expected:
        raise ValueError("it was changed or is not in its place")
    return content, digest

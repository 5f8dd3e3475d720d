"""JSON lines that show where they were changed: each ends in a hash of itself and of all before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Chain:
    """What a file of such lines proves.

    Attributes:
        said: what the lines say, up to the first that is not as it was written.
        last: the hash that the next line goes on from.
        rest: that first line and all after it.
        why: what is wrong with it, in words.
    """

    said: tuple[dict[str, Any], ...]
    last: str
    rest: tuple[bytes, ...]
    why: str


def link(previous: str, content: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the line that says ``content`` after the hash ``previous``, and its own hash."""
    digest = hashlib.sha256((previous + json.dumps(content)).encode()).hexdigest()
    return (json.dumps({**content, "hash": digest}) + "\n").encode(), digest


def links(*contents: Mapping[str, Any]) -> bytes:
    """Return a whole file.

    >>> follow(links({"a": 1}, {"b": 2})).said
    ({'a': 1}, {'b': 2})
    >>> follow(links({"a": 1}, {"b": 2}).replace(b"2", b"3", 1)).why
    'it was changed or is not in its place'
    """
    lines, last = [], ""
    for content in contents:
        line, last = link(last, content)
        lines.append(line)
    return b"".join(lines)


def follow(file: bytes) -> Chain:
    """Read a file as far as its hashes prove it. Every byte counts; it does not raise."""
    said: list[dict[str, Any]] = []
    lines, last = file.splitlines(keepends=True), ""
    for number, line in enumerate(lines):
        try:
            content, last = _parse(last, line)
        except ValueError as error:
            return Chain(tuple(said), last, tuple(lines[number:]), str(error))
        said.append(content)
    return Chain(tuple(said), last, (), "")


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

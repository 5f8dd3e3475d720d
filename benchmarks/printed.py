"""The command printed with an output, in a form that works on any machine."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence


def command(argv: Sequence[str] | None = None) -> str:
    """Return the command of this process; of each path its last part alone, as of ``magic.csv``.

    Args:
        argv: ``sys.argv`` by default.
    """
    name, *given = sys.argv if argv is None else argv
    return shlex.join(["python", f"benchmarks/{_last(name)}", *map(_without_folder, given)])


def _without_folder(argument: str) -> str:
    option, equals, value = argument.rpartition("=")
    return option + equals + _last(value)


def _last(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]

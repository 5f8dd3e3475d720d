"""One way to be wrong: what goes wrong, and the tests that must notice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way to be wrong.

    Attributes:
        what: goes wrong.
        caught: for each patch beside this file, by its name, the tests of which one must fail.
        hole: where the code is wrong today, or missing: a patch takes its place when it is mended.
    """

    what: str
    caught: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hole: str = ""

"""The faults beside this file: each patch says what goes wrong, and which tests must notice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Fault:
    """One way to be wrong.

    Attributes:
        name: of the patch.
        what: goes wrong.
        tests: of which one must fail.
        written: with the tests, or from the code alone by somebody who had not read them.
    """

    name: str
    what: str
    tests: tuple[str, ...]
    written: str

    @classmethod
    def of(cls, patch: Path) -> Fault:
        """Read the lines above a patch."""
        head = re.split("^(?:diff|---) ", patch.read_text("utf-8"), maxsplit=1, flags=re.M)[0]
        lines = [line.partition(": ") for line in head.split("\n")]
        said = {key: [value for name, _, value in lines if name == key] for key, _, _ in lines}
        (what,), (written,) = said["Fault"], said["Written"]
        return cls(patch.stem, what, tuple(said["Caught by"]), written)


def faults() -> list[Fault]:
    """Return all, by their names."""
    return [Fault.of(one) for one in sorted(HERE.glob("*.patch"))]

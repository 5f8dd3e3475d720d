"""The durable record of what was released from a fit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from bdpvi import _validate
from bdpvi.types import Budget


@dataclass(frozen=True)
class Charge:
    """One release: ``draws`` samples at ``temperature``."""

    draws: int
    temperature: float
    from_data: bool = False

    def __post_init__(self) -> None:
        _validate.positive_int("draws", self.draws)
        _validate.positive("temperature", self.temperature)


class Ledger:
    """Charges in the order they were made, in memory or in a file that outlives the process.

    A charge is on the disk before :meth:`charge` returns, so a draw that follows it can never be
    forgotten; a crash in between costs budget, not privacy.

    Args:
        path: a JSON-lines file; None keeps the charges in memory.

    >>> ledger = Ledger()
    >>> ledger.charge(Charge(draws=10, temperature=5.0))
    >>> ledger.charges()
    (Charge(draws=10, temperature=5.0),)
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._memory: list[Charge] = []
        self.budget: Budget | None = None

    def charges(self) -> tuple[Charge, ...]:
        """Return all charges so far.

        Raises:
            ValueError: if a line of the file is not a charge; to skip it could hide a release.
        """
        if self.path is None:
            return tuple(self._memory)
        if not self.path.exists():
            return ()
        return tuple(self._parse(self.path.read_text(encoding="utf-8")))

    def charge(self, charge: Charge) -> None:
        """Append ``charge``, durably."""
        if self.path is None:
            self._memory.append(charge)
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(charge)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process out: what is checked inside still holds when it is charged."""
        lock = nullcontext() if self.path is None else FileLock(f"{self.path}.lock")
        with lock:
            yield

    def _parse(self, text: str) -> Iterator[Charge]:
        for number, line in enumerate(text.splitlines(keepends=True), start=1):
            try:
                if not line.endswith("\n"):
                    raise ValueError("the line is cut off")
                yield Charge(**json.loads(line))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{self.path}, line {number}, is not a charge: {error}") from error

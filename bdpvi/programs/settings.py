"""Settings of private variational inference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bdpvi._ground import validate
from bdpvi.releases.row_counts import COUNT

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of :class:`bdpvi.DPVI`, without the code that trains."""

    kind: ClassVar[str] = "variational inference"

    rows: float | None = None
    draws: int = 1000
    steps: int = 1000
    batch: float | None = None
    clip: float | None = None
    lr: float | None = None
    loss: Any = None
    plate: str | None = None
    checkpoint: str | Path | None = None
    progress: bool = False
    counted: bool = False

    def __post_init__(self) -> None:
        for name in ("rows", "batch", "clip", "lr"):
            if (value := getattr(self, name)) is not None:
                validate.positive(name, value)
        validate.positive_int("draws", self.draws)
        validate.positive_int("steps", self.steps)

    @property
    def count(self) -> float:
        """Share of μ² for a noisy number of records."""
        return COUNT if self.rows is None else 0.0

    def of_rows(self, rows: float) -> Self:
        """Return the route for a table of about ``rows`` records."""
        return replace(self, rows=max(rows, 1.0), counted=True)

    def training(self, **given: Any) -> Self:
        """Return the route with these settings of its training."""
        return replace(self, **given)

"""What releases come from if the noise is part of the fit."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from bdpvi.noise.keys import Key
from bdpvi.privacy.cost import Cost
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases.released import Release
from bdpvi.releases.transaction import Transaction


class Refitted(Protocol):
    """Rows that are fitted again, with noise, for each release; all of it is secret."""

    @property
    def ledger(self) -> Ledger:
        """The ledger of everything spent on the table."""

    @property
    def kept(self) -> Any:
        """Its name in the ledger, and the used states of generators."""

    def of_records(self, delta: float) -> Cost:
        """Return the cost of everything spent on the table, for a random record too if known."""

    def release(
        self,
        draws: int | None = None,
        *,
        epsilon: float,
        delta: float = 1e-5,
        generator: torch.Generator | None = None,
        work: Transaction | None = None,
    ) -> Release:
        """Charge, then fit once for each draw."""

    def preview(self, draws: int, *, epsilon: float, delta: float, key: Key) -> dict[str, Tensor]:
        """Return draws of a simulated release, without charging: for the owner only."""

"""Rules from papers that give no privacy guarantee: only to reproduce published figures."""

from __future__ import annotations

from dataclasses import dataclass

from bdpvi.accounting.composition import ByHolder


@dataclass(frozen=True)
class Naive(ByHolder):
    """Σ_t log E_x′ exp(λ D^(t)): NOT SOUND, since x′ is the same in every event.

    Hölder's sum with T = 1, for any number of events. Only to reproduce published figures that used
    it (arXiv 1901.09697v2).
    """

    steps: int = 1
    name = "naive (unsound)"
    limit = None

"""Tests of what follows a charge leave out the rehearsal before it, which does the same."""

from __future__ import annotations

import pytest


def left_out(patch: pytest.MonkeyPatch) -> None:
    """Leave out the rehearsals of all doors."""
    for name in (
        "bdpvi.tables.reading.rehearse",
        "bdpvi.synthesis.released.rehearse",
        "bdpvi.sklearn.fitting.rehearse",
    ):
        patch.setattr(name, lambda *_: None)

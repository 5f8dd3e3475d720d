"""A key that is kept for going on after an interruption meets nothing but the same work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bdpvi.recipes.private import Work
from bdpvi.releasing.intent import begun

FRAME = pd.DataFrame({"age": range(20, 30), "sick": ["no", "yes"] * 5})


def asked(**changed: Any) -> dict[str, Any]:
    """Return what a call of ``private`` sets out to do."""
    settings: dict[str, Any] = {
        "table": FRAME,
        "target": "sick",
        "positive": "yes",
        "epsilon": 1.0,
    } | changed
    table, options = Work.of(**settings).digests()
    price = {"epsilon": settings["epsilon"]}
    return {"table": table, "options": options, "charge": price, "ledger": None}


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"epsilon": 1.5}, "options"),
        ({"delta": 1e-6}, "options"),
        ({"positive": "no"}, "options"),
        ({"table": FRAME[:-1]}, "table"),
    ],
)
def test_a_key_meets_no_other_table_price_or_options(
    changed: dict[str, Any], name: str, tmp_path: Path
) -> None:
    """The difference of two outputs with one noise would show what it hides."""
    work = begun(tmp_path / "intent.json", **asked())
    with pytest.raises(ValueError, match=f"was begun with another {name}"):
        begun(tmp_path / "intent.json", **asked(**changed))
    assert begun(tmp_path / "intent.json", **asked()).secret == work.secret

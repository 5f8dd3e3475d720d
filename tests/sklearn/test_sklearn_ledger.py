"""Estimators and the ledger in a file: it has everything before anything is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rehearsals

from bdpvi import Ledger
from bdpvi.datasets import exact
from bdpvi.sklearn import PrivateLogisticRegression


def table(records: int) -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(records, 2))
    return x, np.where(x[:, 0] > 0, "yes", "no")


def test_the_file_has_each_charge_before_its_noise_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsals.left_out(monkeypatch)
    file, count, seen = tmp_path / "people.jsonl", exact.count_noise, []

    def counted(*given: Any) -> Any:
        seen.append([charge.kind for charge in Ledger(file).book().charges])
        return count(*given)

    def interrupted(*_: Any, **__: Any) -> Any:
        seen.append([charge.kind for charge in Ledger(file).book().charges])
        raise KeyboardInterrupt

    monkeypatch.setattr(exact, "count_noise", counted)
    monkeypatch.setattr("bdpvi.regression.objective.minima_of", interrupted)
    scales = (0.0, 0.0), (1.0, 1.0)
    model = PrivateLogisticRegression(classes=("no", "yes"), scales=scales, ledger=str(file))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            model.fit(*table(500))
    once = ["constants"], ["constants", "release"]
    assert seen == [*once, *([*once[-1], *one] for one in once)]  # nothing is forgotten
    assert [charge.kind for charge in Ledger(file).book().charges] == seen[-1]

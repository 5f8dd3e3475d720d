"""The optimum route over tables on disk against the same in memory."""

from __future__ import annotations

import math
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from accounts import bayes, evidence_of
from simulated import logistic_data

import bdpvi
from bdpvi import (
    BayesianLogisticRegression,
    BudgetExceededError,
    Coupled,
    Dataset,
    Fit,
    Optimum,
    Table,
    Training,
    cost,
    fit,
    load_fit,
    save_fit,
)
from bdpvi._ground import checkpoint
from bdpvi._ground import progress as bars
from bdpvi.bayesian import Add, Remove
from bdpvi.bayesian.accounting.panel import Panel, on_levels
from bdpvi.bayesian.optimum import stream, tables
from bdpvi.guides import FullRank, GaussianGuide, LowRank, MeanField
from bdpvi.privacy import Charge
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.cost import Bound

PRECISION = 1e-5
WITHIN = 5e-9
"""Neighbours by passes and by the polynomial agree far better than the precision asks."""
MODEL = BayesianLogisticRegression(clip=0.5, intercept=True)


def frame(data: Dataset) -> pd.DataFrame:
    table = pd.DataFrame(data.x.numpy(), columns=list(data.feature_names))
    table.insert(1, "y", data.y.numpy().astype(np.int64))
    return table


def written(data: Dataset, folder: Path, kind: str) -> Path:
    table = frame(data)
    if kind == "csv":
        table.to_csv(folder / "table.csv", index=False, float_format="%.17g")
        return folder / "table.csv"
    if kind == "parquet":
        table.to_parquet(folder / "table.parquet", row_group_size=101)
        return folder / "table.parquet"
    parts = folder / "parts"
    parts.mkdir()
    for number, start in enumerate(range(0, len(table), 150)):
        table[start : start + 150].to_parquet(parts / f"{number}.parquet")
    return parts


def here(data: Dataset, guide: type[GaussianGuide] = FullRank, **released: Any) -> Fit:
    optimum = Optimum(precision=PRECISION)
    return fit(
        MODEL,
        guide(MODEL, **released),
        data,
        neighbours=optimum,
        training=bdpvi.Training(device="cpu"),
        progress=False,
    )


def streamed(
    path: Path,
    guide: type[GaussianGuide] = FullRank,
    model: BayesianLogisticRegression = MODEL,
    *kinds: Remove,
    checkpoint: Path | None = None,
    **released: Any,
) -> Fit:
    return fit(
        model,
        guide(model, **released),
        Table.of(path).numbers("y"),
        neighbours=Optimum(*kinds, precision=PRECISION, checkpoint=checkpoint),
        training=bdpvi.Training(device="cpu"),
        progress=False,
    )


@pytest.fixture(autouse=True)
def blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Blocks of 300 records, or of another size."""

    def of(rows: int) -> None:
        monkeypatch.setattr(tables, "ROWS", rows)

    of(300)
    return of


def same_counts(counted: Panel, each: Panel) -> None:
    assert counted.counts is not None
    expected = Panel.of_counts("remove", on_levels(each.pairs.b2.sum(1)), each.largest)
    assert torch.equal(counted.ids, expected.ids)
    assert torch.equal(counted.counts, expected.counts)  # type: ignore[arg-type]
    assert torch.equal(counted.pairs.b2, expected.pairs.b2)
    assert (counted.largest, counted.records) == (each.largest, len(each.ids))


@pytest.mark.parametrize(
    ("kind", "rows", "guide"),
    [("parquet", 400, FullRank), ("csv", 367, MeanField), ("folder", 1500, FullRank),
     ("csv", 5000, FullRank)],
)  # fmt: skip
@pytest.mark.parametrize("noise_scale", [None, 0.3])
def test_equals_the_fit_in_memory(
    kind: str,
    rows: int,
    guide: type[GaussianGuide],
    noise_scale: float | None,
    blocks: Callable[[int], None],
    tmp_path: Path,
) -> None:
    data = logistic_data(1500, 2)
    blocks(rows)
    whole = here(data, guide, noise_scale=noise_scale)
    found = streamed(written(data, tmp_path, kind), guide, noise_scale=noise_scale)
    for name, value in whole.parameters.items():
        torch.testing.assert_close(found.parameters[name], value, rtol=0, atol=1e-12)
    (panel,), (each,) = found.panels, whole.panels
    if noise_scale is None:
        assert torch.equal(panel.ids, each.ids)
        torch.testing.assert_close(panel.pairs.r, each.pairs.r, rtol=0, atol=WITHIN)
        torch.testing.assert_close(panel.pairs.b2, each.pairs.b2, rtol=0, atol=WITHIN)
    else:
        same_counts(panel, each)
    assert (found.records, found.feature_names) == (1500, data.feature_names)
    costs = [cost(x, planned=Charge(2, 30.0)) for x in (found, whole)]
    (one, other), (first, second) = map(bayes, costs), costs
    # Rounded up to the next level, and on the grid of ε that the hockey-stick conversion has.
    assert other.epsilon * (1 - 1e-9) <= one.epsilon <= other.epsilon * 1.01
    assert one.reliable == other.reliable
    assert evidence_of(one).sample_size == 1500
    assert first.worst_case == second.worst_case
    assert first.exposure is not None
    assert second.exposure is not None
    for name in ("largest", "most", "median", "certified"):
        paid = getattr(second.exposure, name)
        assert paid * (1 - 1e-9) <= getattr(first.exposure, name) <= paid * 1.002


def in_process(bound: Bound) -> Bound:
    """Return a bound that says that what was spent is known of this process alone."""
    others = [
        assumption for assumption in bound.assumptions if assumption is not Assumption.PROCESS_ALONE
    ]
    return replace(bound, assumptions=(Assumption.PROCESS_ALONE, *others))


def test_it_is_released_saved_and_loaded_like_any_fit(tmp_path: Path) -> None:
    data = logistic_data(1500, 2)
    path = written(data, tmp_path, "parquet")
    found, whole = streamed(path, noise_scale=0.3), here(data, noise_scale=0.3)
    taus = [bdpvi.WorstCaseDP().temperature(one, 1, 0.5, 1e-5) for one in (found, whole)]
    assert taus[0] == taus[1]
    release = bdpvi.release(found, draws=2, epsilon=0.5)
    assert release.receipt.bound.kind.value == "worst-case DP"
    assert release.samples.shape == (2, len(found.posterior.mean))
    save_fit(found, tmp_path / "fit")
    loaded = load_fit(tmp_path / "fit", MODEL, FullRank(MODEL, noise_scale=0.3))
    (panel,), (kept,) = found.panels, loaded.panels
    for name in ("ids", "counts"):
        assert torch.equal(getattr(panel, name), getattr(kept, name))
    assert torch.equal(panel.pairs.b2, kept.pairs.b2)
    assert cost(loaded).each(in_process) == cost(found).each(in_process)  # a ledger in a file
    again = bdpvi.release(loaded, temperature=100.0)
    assert "worst-case" in str(again.receipt)
    with pytest.raises(BudgetExceededError):
        bdpvi.release(loaded, temperature=1.0, epsilon=0.6)


def test_no_neighbours_are_needed_for_the_worst_case(tmp_path: Path) -> None:
    data = logistic_data(400, 2)
    path = written(data, tmp_path, "parquet")
    found = streamed(path, FullRank, MODEL, Remove(0), noise_scale=0.3)
    (panel,) = found.panels
    assert panel.records == 0
    total = cost(found, planned=Charge(1, 30.0))
    assert total.worst_case == cost(here(data, noise_scale=0.3), planned=Charge(1, 30.0)).worst_case
    with pytest.raises(ValueError, match="0 records"):
        streamed(path, FullRank, MODEL, Remove(0))


def test_of_few_or_no_records_the_worst_case_says_enough(tmp_path: Path) -> None:
    data = logistic_data(60, 2)
    for size in (0, 1, 2):
        path = tmp_path / f"{size}.parquet"
        frame(data)[:size].to_parquet(path)
        found = streamed(path, noise_scale=0.3)
        assert found.records == size
        assert cost(found, planned=Charge(1, 30.0)).worst_case is not None
        with pytest.raises(ValueError, match=rf"{size} records?; at least 3"):
            streamed(path)


def test_a_random_panel_takes_the_place_of_all_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = logistic_data(1500, 2)
    path, whole = written(data, tmp_path, "parquet"), here(data)
    monkeypatch.setattr(stream, "PANEL", 300)
    sizes, seen = [], set()
    for _ in range(2):
        (panel,) = streamed(path).panels
        sizes.append(len(panel.ids))
        seen.add(tuple(panel.ids.tolist()))
        assert bool((panel.ids.diff() > 0).all())
        every = whole.panels[0].pairs.select(panel.ids)
        torch.testing.assert_close(panel.pairs.b2, every.b2, rtol=0, atol=WITHIN)
        torch.testing.assert_close(panel.pairs.r, every.r, rtol=0, atol=WITHIN)
    assert len(seen) == 2
    assert all(abs(size - 300) < 6 * math.sqrt(300) for size in sizes)
    (panel,) = streamed(path, FullRank, MODEL, Remove(700), noise_scale=0.3).panels
    assert panel.counts is None
    assert abs(len(panel.ids) - 700) < 6 * math.sqrt(700)


class Interrupted:
    """A tracker that stops the job after some blocks in all."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, items: Sequence[Any], description: str) -> Iterable[Any]:
        for item in items:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            yield item


@pytest.mark.parametrize("noise_scale", [None, 0.3])
def test_an_interrupted_run_goes_on_and_ends_alike(
    noise_scale: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, folder = logistic_data(1500, 2), tmp_path / "unfinished"
    path = written(data, tmp_path, "parquet")
    straight = streamed(path, noise_scale=noise_scale)
    monkeypatch.setattr(checkpoint, "_EVERY", 0.0)
    monkeypatch.setattr(stream, "PANEL", 800)
    interruptions, resumed, keys = 0, None, set()
    while resumed is None:
        with monkeypatch.context() as patched:
            patched.setattr(bars, "silent", Interrupted(30 + 15 * interruptions))
            try:
                resumed = streamed(path, noise_scale=noise_scale, checkpoint=folder)
            except KeyboardInterrupt:
                interruptions += 1
                keys.add(checkpoint.settings_of(folder)["seed"])
    assert 2 <= interruptions < 20
    assert len(keys) == 1  # of one secret
    assert keys.pop() == f"secret {resumed.plan.seed}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    torch.testing.assert_close(
        resumed.parameters["loc"], straight.parameters["loc"], rtol=0, atol=1e-12
    )
    assert len(resumed.convergence.elbo) > 1
    (panel,), (whole,) = resumed.panels, straight.panels
    if noise_scale is None:
        every = whole.pairs.select(panel.ids)
        assert abs(len(panel.ids) - 800) < 6 * math.sqrt(800)
        torch.testing.assert_close(panel.pairs.b2, every.b2, rtol=0, atol=WITHIN)
    else:
        assert torch.equal(panel.counts, whole.counts)  # type: ignore[arg-type]
        assert torch.equal(panel.ids, whole.ids)
    once_more = streamed(path, noise_scale=noise_scale, checkpoint=folder)
    assert torch.equal(once_more.panels[0].pairs.b2, panel.pairs.b2)


def test_a_table_in_memory_goes_on_too(tmp_path: Path) -> None:
    data, folder = logistic_data(300, 2), tmp_path / "unfinished"

    def run(**options: Any) -> Fit:
        optimum = Optimum(checkpoint=folder, **options)
        return fit(MODEL, FullRank(MODEL), data, neighbours=optimum, progress=False)

    first, again = run(), run()
    assert first.plan.seed == again.plan.seed
    assert torch.equal(first.panels[0].pairs.b2, again.panels[0].pairs.b2)
    with pytest.raises(ValueError, match="made with precision=1e-05, and not precision=1e-06"):
        run(precision=1e-6)


def test_a_checkpoint_of_another_run_is_refused(
    blocks: Callable[[int], None], tmp_path: Path
) -> None:
    data, folder = logistic_data(600, 3), tmp_path / "unfinished"
    path = written(data, tmp_path, "parquet")
    streamed(path, checkpoint=folder)
    with pytest.raises(ValueError, match=r"made with guide="):
        streamed(path, checkpoint=folder, noise_scale=1.0)
    blocks(200)
    with pytest.raises(ValueError, match=r"made with rows=300, and not rows=200"):
        streamed(path, checkpoint=folder)
    blocks(300)
    with pytest.raises(ValueError, match=r"made with kinds="):
        streamed(path, FullRank, MODEL, Remove(100), checkpoint=folder)
    frame(logistic_data(600, 4)).to_parquet(path)
    with pytest.raises(ValueError, match=r"made with data="):
        streamed(path, checkpoint=folder)


def test_files_that_change_are_refused(tmp_path: Path) -> None:
    path = written(logistic_data(600, 3), tmp_path, "parquet")
    table = Table.of(path).numbers("y")
    read = tables.of_one_size(table)
    next(read)
    frame(logistic_data(601, 3)).to_parquet(path)
    for use in (table.some, table.fingerprint, lambda: [*read]):
        with pytest.raises(ValueError, match="has changed since the table was opened"):
            use()
    same = Table.of(path).numbers("y")
    assert same.fingerprint() == Table.of(path).numbers("y").fingerprint()
    assert same.fingerprint() != Table.of(path).numbers("y", ["x0"]).fingerprint()


def test_what_needs_the_records_in_memory_is_refused(tmp_path: Path) -> None:
    data = logistic_data(60, 3)
    table = Table.of(written(data, tmp_path, "csv")).numbers("y")

    def refused(words: str, model: Any = MODEL, guide: Any = FullRank, **options: Any) -> None:
        with pytest.raises(ValueError, match=words):
            fit(model, guide(model), table, progress=False, **options)

    refused("neighbours=Coupled needs the records in memory", neighbours=Coupled())
    refused("of a table in blocks records are left out", neighbours=Optimum(Add(data)))
    refused("rate=0.5 must be 1", training=Training(rate=0.5))
    refused("FullRank and mean-field|full-rank and mean-field", guide=LowRank)


def test_blocks_can_begin_anywhere(blocks: Callable[[int], None], tmp_path: Path) -> None:
    data = logistic_data(400, 3)
    table = Table.of(written(data, tmp_path, "folder")).numbers("y")
    blocks(64)
    assert [len(y) for _, y in tables.of_one_size(table)] == [*[64] * 6, 16]
    for first in (0, 2, 6):
        read = tables.of_one_size(table, 64 * first)
        x, y = (torch.cat(part) for part in zip(*read, strict=True))
        torch.testing.assert_close(x, data.x[64 * first :], rtol=0, atol=0)
        torch.testing.assert_close(y, data.y[64 * first :], rtol=0, atol=0)


@pytest.mark.parametrize("held", [1, 400])
def test_records_that_are_held_back_share_passes_and_count(
    held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(logistic_data(800, 2), tmp_path, "parquet")
    straight = streamed(path)
    passes: list[str] = []

    def counted(items: Sequence[Any], description: str) -> Iterable[Any]:
        passes.append(description)
        return items

    monkeypatch.setattr(stream, "_HELD", held)
    monkeypatch.setattr(bars, "silent", counted)
    found = streamed(path)
    torch.testing.assert_close(
        found.panels[0].pairs.b2, straight.panels[0].pairs.b2, rtol=1e-9, atol=1e-12
    )
    assert any(description.startswith("held back") for description in passes)

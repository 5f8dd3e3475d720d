"""Certified fits of tables in blocks, and chunks of neighbours trained by workers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import bdpvi
from bdpvi import BayesianLogisticRegression, Coupled, Dataset, Training, datasets, guides
from bdpvi.bayesian import Add, Remove
from bdpvi.bayesian.mode import expansion
from bdpvi.bayesian.mode.route import Mode
from bdpvi.datasets import constants_of
from bdpvi.datasets.dataset import People
from bdpvi.privacy.entry import Charge

MODEL = BayesianLogisticRegression()
PUBLIC = constants_of({"source": "By law.", "age": [18, 90], "smoker": ["no", "yes"]})


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age, smoker = rng.integers(18, 91, 1200), rng.choice(["no", "yes"], 1200)
    sick = rng.random(1200) < 1 / (1 + np.exp(-(age - 54) / 12 - (smoker == "yes")))
    return pd.DataFrame({"age": age, "smoker": smoker, "sick": np.where(sick, "yes", "no")})


@pytest.fixture(scope="module")
def folder(rows: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of three files, one of them in two row groups."""
    folder = tmp_path_factory.mktemp("visits")
    for at, stop in ((0, 200), (200, 800), (800, 1200)):
        rows[at:stop].to_parquet(folder / f"{at:05}.parquet", row_group_size=500)
    return folder


def fit(data: Any, *kinds: Any, **options: Any) -> bdpvi.Fit:
    return bdpvi.fit(
        MODEL, guides.Laplace(MODEL), data, neighbours=Mode(*kinds), progress=False, **options
    )


def blocks(folder: Path, **options: Any) -> Any:
    given = {"positive": "yes", "constants": PUBLIC, "progress": False, **options}
    return datasets.from_blocks(folder, "sick", **given)


def test_a_fit_in_blocks_is_that_in_memory(rows: pd.DataFrame, folder: Path) -> None:
    data = datasets.dataset_from_frame(rows, "sick", positive="yes", constants=PUBLIC)
    memory, spread = fit(data), fit(blocks(folder))
    torch.testing.assert_close(
        spread.posterior.mean, memory.posterior.mean, rtol=0, atol=1e-9 * 1200
    )
    (one,), (other,) = memory.panels, spread.panels
    torch.testing.assert_close(other.pairs.b2, one.pairs.b2, rtol=1e-6, atol=1e-12)
    assert other.marks is not None
    assert one.marks is not None
    assert torch.equal(other.marks, one.marks)
    assert other.influence == pytest.approx(one.influence) or other.influence is not None
    planned = Charge(draws=10, temperature=9.0)
    costs = [bdpvi.cost(f, planned=planned).bayesian for f in (memory, spread)]
    assert costs[0] is not None
    assert costs[1] is not None
    assert costs[1].epsilon == pytest.approx(costs[0].epsilon, rel=1e-6)


def test_workers_fit_the_same_to_the_bit(folder: Path, pool: ProcessPoolExecutor) -> None:
    alone, two = fit(blocks(folder)), fit(blocks(folder, executor=pool))
    assert torch.equal(alone.posterior.mean, two.posterior.mean)
    assert torch.equal(alone.panels[0].pairs.b2, two.panels[0].pairs.b2)
    assert alone.fingerprint == two.fingerprint


def test_a_panel_of_a_table_in_blocks_is_a_sample(folder: Path) -> None:
    panel = fit(blocks(folder), Remove(300)).panels[0]
    assert 300 <= len(panel.ids) <= 304  # rounded up in every block
    assert len(torch.unique(panel.pairs.b2, dim=0)) > 100


@pytest.mark.slow
def test_many_blocks_are_fitted_with_few_passes(rows: pd.DataFrame, tmp_path: Path) -> None:
    """Rows in order, so that every sixteenth block is no fair sample of them."""
    ordered = rows.sort_values("age")
    ordered.to_parquet(tmp_path / "visits.parquet", row_group_size=24)
    data = datasets.dataset_from_frame(ordered, "sick", positive="yes", constants=PUBLIC)
    found, memory = fit(blocks(tmp_path)), fit(data)
    assert len(found.convergence.elbo) < len(memory.convergence.elbo)
    distance = found.posterior.mean - memory.posterior.mean
    units = torch.linalg.solve(memory.parameters["scale_tril"], distance)
    assert float(units.norm()) < 1e-9
    (one,), (other,) = memory.panels, found.panels
    torch.testing.assert_close(other.pairs.b2, one.pairs.b2, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(other.pairs.r, one.pairs.r, rtol=1e-9, atol=0)


@pytest.mark.slow
def test_a_panel_in_pieces_is_the_whole(
    folder: Path, pool: ProcessPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(blocks(folder)).panels[0]
    monkeypatch.setattr(expansion, "_PIECE", 6 * 500)
    pieces, two = (fit(blocks(folder, executor=one)).panels[0] for one in (None, pool))
    for panel in (pieces, two):
        torch.testing.assert_close(panel.pairs.b2, whole.pairs.b2, rtol=1e-9, atol=1e-20)
        torch.testing.assert_close(panel.pairs.r, whole.pairs.r, rtol=1e-12, atol=0)
    assert torch.equal(pieces.pairs.b2, two.pairs.b2)
    assert torch.equal(pieces.pairs.r, two.pairs.r)


@pytest.mark.slow
def test_persons_are_fitted_by_one_row_each(rows: pd.DataFrame, tmp_path: Path) -> None:
    who = rows.assign(who=np.arange(len(rows)) // 2)
    who.to_parquet(tmp_path / "visits.parquet", row_group_size=1000)
    one = fit(blocks(tmp_path, unit="who"))
    first = datasets.dataset_from_frame(rows[::2], "sick", positive="yes", constants=PUBLIC)
    torch.testing.assert_close(one.posterior.mean, fit(first).posterior.mean, rtol=0, atol=1e-9)
    planned = Charge(draws=10, temperature=9.0)
    assert bdpvi.cost(one, planned=planned).bayesian is not None
    two = fit(blocks(tmp_path, unit="who", rows_per_unit=2))
    with pytest.raises(ValueError, match="a unit of this table has up to 2 rows"):
        bdpvi.cost(two, planned=planned)


@pytest.mark.parametrize("rows_per_unit", [1, 2])
def test_the_optimum_in_blocks_is_that_in_memory(
    rows_per_unit: int, rows: pd.DataFrame, tmp_path: Path
) -> None:
    who = rows[:900].assign(who=np.arange(900) // 2)
    who.to_parquet(tmp_path / "visits.parquet", row_group_size=300)
    given: dict[str, Any] = {"unit": "who", "rows_per_unit": rows_per_unit}
    kept = rows[: 900 : 3 - rows_per_unit]
    memory = datasets.dataset_from_frame(kept, "sick", positive="yes", constants=PUBLIC)
    model = BayesianLogisticRegression(clip=0.5, intercept=True)
    fits = [
        bdpvi.fit(model, guides.FullRank(model, noise_scale=0.3), data, progress=False)
        for data in (blocks(tmp_path, **given), memory.of_people(People(**given)))
    ]
    one, other = (found.posterior.mean for found in fits)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    assert fits[0].records == fits[1].records == 450 * rows_per_unit
    words = []
    for found in fits:
        try:
            words.append(str(bdpvi.cost(found, planned=Charge(1, 30.0)).worst_case))
        except ValueError as error:
            words.append(str(error))
    assert words[0] == words[1]
    assert ("all records, at most 2, of one person" in words[0]) == (rows_per_unit == 2)


def test_what_needs_single_records_is_refused(folder: Path, rows: pd.DataFrame) -> None:
    data = blocks(folder)
    with pytest.raises(ValueError, match="neighbours=Coupled needs the records in memory"):
        bdpvi.fit(MODEL, guides.MeanField(MODEL), data, neighbours=Coupled(), progress=False)
    with pytest.raises(ValueError, match=r"^training: rate=0.5.*found by Newton steps"):
        fit(data, training=Training(rate=0.5))
    with pytest.raises(ValueError, match=r"^neighbours: of a table in blocks records are left out"):
        fit(data, Add(Dataset(torch.zeros(3, 2), torch.zeros(3))))
    with pytest.raises(ValueError, match=r"^constants: a table in blocks is encoded by public"):
        datasets.from_blocks(folder, "sick", positive="yes")
    with pytest.raises(ValueError, match="no column 'ill' among"):
        datasets.from_blocks(folder, "ill", positive="yes", constants=PUBLIC)


def test_chunks_by_workers_are_equal_to_the_bit(
    pool: ProcessPoolExecutor, data: Dataset, tmp_path: Path
) -> None:
    model, training = BayesianLogisticRegression(clip=0.5), Training(steps=20, rate=0.5, seed=0)

    def b2(**given: Any) -> torch.Tensor:
        route = Coupled(chunk=25, **given)
        made = bdpvi.fit(
            model,
            guides.MeanField(model),
            data,
            neighbours=route,
            training=training,
            progress=False,
        )
        return made.panels[0].pairs.b2

    alone, kept = b2(), tmp_path / "kept"
    assert torch.equal(b2(executor=pool, checkpoint=kept), alone)
    first = next(kept.glob("remove-*"))
    first.unlink()
    assert torch.equal(b2(executor=pool, checkpoint=kept), alone)  # only one is trained anew
    assert len(list(kept.glob("remove-*"))) == 3

"""``bdpvi.private`` of a table in blocks: the release of the same table in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
import torch
from in_blocks import ROWS, Dying, Seen, in_files
from test_cli import run

import bdpvi
from bdpvi import Ledger, Release
from bdpvi.datasets.records import Spread
from bdpvi.datasets.table import Table
from bdpvi.regression.objective import signed_design
from bdpvi.regression.objective_plan import Facts, plan
from bdpvi.regression.perturbed_objective import SummedObjective
from bdpvi.tables import setup


def patients() -> pd.DataFrame:
    """Return a table with blanks and texts among its numbers."""
    generator = np.random.default_rng(3)
    age, dose = generator.normal(50, 12, ROWS), generator.normal(2, 1, ROWS)
    sex = generator.choice(["F", "M"], ROWS)
    odds = -4 + 0.1 * (age - 50) + (sex == "M") + 0.5 * dose
    sick = np.where(generator.random(ROWS) < 1 / (1 + np.exp(-odds)), "yes", "no")
    frame = pd.DataFrame({"age": age, "dose": dose.round(2), "sex": sex, "sick": sick})
    frame["scar"] = (generator.random(ROWS) < 0.01).astype(float)  # nearly constant
    frame.loc[1, "age"] = np.nan
    frame.loc[4, "sick"] = None
    return frame


@pytest.fixture
def folder(tmp_path: Path, known_keys: None) -> Path:
    """Return a folder with the table as a file, and as a folder of files; keys are known."""
    return in_files(patients(), tmp_path)


def private(table: Any, **more: Any) -> Release:
    given: dict[str, Any] = {"epsilon": 2.0, "target": "sick", "positive": "yes"}
    return flat.private(table, one_row_per_person=True, progress=False, **{**given, **more})


@pytest.mark.filterwarnings("ignore:for the owner only")
def test_a_table_in_blocks_has_the_release_of_the_table(folder: Path) -> None:
    whole = private(folder / "all.csv", ledger=Ledger())
    many = Table.of(folder / "all.csv", size=6_000)
    assert len(many.parts) > 16  # the search begins with a few of them
    for table in (folder / "parts", many):
        found = private(table, ledger=Ledger())
        torch.testing.assert_close(found.samples, whole.samples, rtol=0, atol=1e-7)
        assert found.preprocessing["encoding"] == whole.preprocessing["encoding"]
        assert found.receipt == whole.receipt


TRAINED: dict[str, Any] = {
    "model": bdpvi.BayesianMultinomialRegression(classes=2),
    "classes": ("no", "yes"),
    "positive": None,
    "epsilon": 4.0,
}


@pytest.mark.filterwarnings("ignore:for the owner only", "ignore::bdpvi.PrivacyUtilityWarning")
@pytest.mark.parametrize(
    ("workers", "trained"),
    [
        pytest.param(1, False, marks=pytest.mark.slow),
        (2, False),
        pytest.param(3, False, marks=pytest.mark.slow),
        pytest.param(1, True, marks=pytest.mark.slow),
        pytest.param(2, True, marks=pytest.mark.whole),
        pytest.param(3, True, marks=pytest.mark.slow),
    ],
)
def test_workers_change_nothing_and_see_no_key(
    folder: Path, workers: int, trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "DPVI", partial(bdpvi.DPVI, steps=24, batch=300))
    monkeypatch.setattr(
        "bdpvi.programs.plan.steps_within", lambda run, *price: run
    )  # takes a minute
    given = TRAINED if trained else {}
    here = private(folder / "parts", ledger=Ledger(), **given)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        found = private(folder / "parts", ledger=Ledger(), executor=Seen(pool), **given)
    assert torch.equal(found.samples, here.samples)


@pytest.mark.filterwarnings("ignore:for the owner only")
@pytest.mark.parametrize("blocks", [5, 40, 130])
def test_a_block_that_is_lost_is_named_and_the_same_call_goes_on(folder: Path, blocks: int) -> None:
    """As many blocks are read before any charge, in the preprocessing, and in the fit."""
    ledger = folder / "parts.ledger.jsonl"
    with pytest.raises(ValueError, match=r"parts/\d\.parquet.*: disk lost"):
        private(folder / "parts", out=folder / "out", executor=Dying(blocks))
    charged = [entry.kind for entry in Ledger.at(ledger).entries()] if ledger.exists() else []
    assert ("constants" in charged, "release" in charged) == (blocks > 5, blocks > 40)
    private(folder / "parts", out=folder / "out", executor=Dying(math.inf))
    found = Ledger.at(ledger)
    (folder / "b").mkdir()
    private(folder / "parts", out=folder / "b" / "out", ledger=folder / "b.jsonl")
    other = Ledger.at(folder / "b.jsonl")
    kinds, others = (sorted(entry.kind for entry in each.entries()) for each in (found, other))
    assert kinds == others
    assert found.worst_case(1e-5) == other.worst_case(1e-5)
    one, two = ((folder / name / "release.json").read_bytes() for name in ("out", "b/out"))
    assert one == two


@pytest.mark.filterwarnings("ignore:for the owner only")
def test_another_table_is_not_gone_on_with(folder: Path) -> None:
    with pytest.raises(ValueError, match="disk lost"):
        private(folder / "parts", out=folder / "out", executor=Dying(40))
    patients()[:7].to_parquet(folder / "parts" / "2.parquet", index=False)
    with pytest.raises(ValueError, match="with another table"):
        private(folder / "parts", out=folder / "out")


def refused(**more: Any) -> Callable[[Path], Any]:
    return lambda path: private(path / "parts", ledger=Ledger(), **more)


REFUSED: dict[str, Callable[[Path], Any]] = {
    "from_data=True: it needs all rows in memory": refused(from_data=True),
    "guarantee=.*: it needs all rows in memory": refused(guarantee=bdpvi.BayesianDP()),
    "target='ill' must be a column of the table once": refused(target="ill"),
    "unit='sex': rows of one person lie in several blocks": lambda path: flat.private(
        path / "parts", target="sick", positive="yes", epsilon=1.0, unit="sex", rows_per_unit=2
    ),
    "the rows of .* may be of the same persons": lambda path: flat.private(
        path / "parts", target="sick", positive="yes", epsilon=1.0
    ),
    "executor: a table in memory": lambda path: private(patients(), executor=Dying(1)),
    "none can be kept beside the URL": lambda path: private(f"file://{path}/parts/*.parquet"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_needs_single_rows_is_refused_before_any_charge(message: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=message):
        REFUSED[message](folder)
    assert not list(folder.rglob("*.ledger.jsonl"))


class Rows:
    """Features and targets as a block of two parts."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y, self.name = x, y, "rows"

    def read(self) -> Any:
        """Yield them."""
        yield self.x[:7], self.y[:7]
        yield self.x[7:], self.y[7:]


def test_the_rounding_of_sums_over_blocks_is_bounded() -> None:
    """The gradient against one in extended precision, where each block adds to the error."""
    random = np.random.default_rng(0)
    x = torch.from_numpy(random.normal(size=(4_000, 3)) * np.exp(random.normal(size=(4_000, 1))))
    y = torch.from_numpy((random.random(4_000) < 0.5).astype(float))
    settings = plan(Facts(columns=3, rows=4_000), epsilon=1.0)
    model = bdpvi.BayesianLogisticRegression.unweighted(intercept=True, limit=settings.limit)
    blocks = [Rows(x[at : at + 20], y[at : at + 20]) for at in range(0, 4_000, 20)]
    objective = SummedObjective(settings, Spread(blocks).map(signed_design, model, settings))
    assert objective.additions == 10  # 8 for 200 blocks, 2 for their parts
    whole = signed_design((x, y), model, settings)
    signed, weights = (t.numpy().astype(np.longdouble) for t in (whole.signed, whole.weights))
    for size in (0.1, 1.0, 30.0):
        w = torch.from_numpy(size * random.normal(size=4))
        chance = 1 / (1 + np.exp(signed @ w.numpy().astype(np.longdouble)))
        exact = -(weights * np.minimum(chance, settings.event.residual)) @ signed
        exact += np.longdouble(settings.ridge) * (w - objective.centre).numpy()
        error = float(np.linalg.norm((objective.gradient(w).numpy() - exact).astype(float)))
        assert error < objective.rounding(w) < 1e-8
        pull, bend = objective._derivatives(w)
        assert torch.equal(pull, objective.gradient(w))
        assert bend is not None
        torch.testing.assert_close(bend, objective.curvature(w))


def test_the_command_reads_blocks_by_workers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: tuple[object, ...] = (
        "--data", folder / "parts", "--target", "sick", "--positive", "yes", "--epsilon", 2,
        "--one-row-per-person", "--quiet",
    )  # fmt: skip
    assert run("private", *given, "--out", folder / "out", "--workers", 2) == 0
    said = capsys.readouterr().out
    assert "worst-case DP ε = 2" in said
    assert "For the owner only: scores on the table's own 2,999 rows" in said
    assert "this release          log score -0." in said
    assert (folder / "parts.ledger.jsonl").exists()
    with pytest.warns(UserWarning, match="for the owner only"):
        here = private(folder / "parts", out=folder / "other", ledger=folder / "b.jsonl")
    found = bdpvi.load_release(folder / "out" / "release.json")
    assert torch.equal(found.samples, here.samples)
    assert run("private", *given, "--out", folder / "plan", "--plan") == 0
    assert "needs about" in capsys.readouterr().out
    for more, said in (
        (("--workers", 1, "--dask", "tcp://127.0.0.1:1"), "both given; give one"),
        (("--workers", 0), "workers must be"),
    ):
        assert run("private", *given, "--out", folder / "no", *more) == 2
        assert said in capsys.readouterr().err


def test_a_scheduler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    from bdpvi.commands import engine

    monkeypatch.setattr(engine, "_SECONDS", 0.5)
    with (
        pytest.raises(ValueError, match=r"dask='tcp://127\.0\.0\.1:1': no scheduler answers there"),
        engine.WorkerOptions(dask="tcp://127.0.0.1:1").machine(),
    ):
        pass

"""Interrupted runs: what is kept, that it goes on to the same bits, and what is refused."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.optim import SGD
from torch import Tensor

import bdpvi.bayesian.neighbours.coupled
from bdpvi import BayesianLogisticRegression, Coupled, Dataset
from bdpvi._ground.checkpoint import Checkpoint, sealed
from bdpvi._ground.progress import silent
from bdpvi.bayesian import Remove
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.inference.fingerprint import described, identity
from bdpvi.bayesian.inference.svi import Problem, default_optimiser
from bdpvi.bayesian.neighbours.rows import RowFits, train_rows
from bdpvi.guides import FullRank, MeanField
from bdpvi.networks import DPSGDSettings
from bdpvi.noise.batches import BatchPlan

STEPS = 20


def problem(data: Dataset) -> Problem:
    model = BayesianLogisticRegression(clip=0.5)
    plan = BatchPlan(steps=STEPS, rate=0.4, seed=3)
    return Problem(model, FullRank(model), data, plan, default_optimiser(STEPS))


def assert_identical(a: Panel, b: Panel) -> None:
    assert torch.equal(a.ids, b.ids)
    assert torch.equal(a.pairs.r, b.pairs.r)
    assert torch.equal(a.pairs.b2, b.pairs.b2)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which every call of train_rows adds its number of rows."""
    calls: list[int] = []

    def train(problem: Problem, rows: RowFits, *rest: Any) -> dict[str, Tensor]:
        calls.append(len(rows.records))
        return train_rows(problem, rows, *rest)

    monkeypatch.setattr(bdpvi.bayesian.neighbours.coupled, "train_rows", train)
    return calls


KILLED = """
import os, signal
from simulated import logistic_data
from test_checkpoint import problem
from bdpvi import Coupled
from bdpvi._ground import store
from bdpvi._ground.progress import silent

real = store.os.replace
def replace(old, new):
    if "000000025" in str(new):  # the block is written under its other name
        os.kill(os.getpid(), signal.SIGKILL)
    real(old, new)
store.os.replace = replace
Coupled(chunk=25, checkpoint={folder!r}).train(problem(logistic_data(60, 3)), silent)
"""


def test_killed_run_goes_on_to_the_same_bits(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    root, tests = Path(bdpvi.__file__).parents[1], Path(__file__).parents[1]
    here = f"{tests}{os.pathsep}{tests / '_ground'}"
    threads = str(torch.get_num_threads())
    ended = subprocess.run(
        [sys.executable, "-c", KILLED.format(folder=str(folder))],
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{here}", "OMP_NUM_THREADS": threads},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    finished = sorted(path.name for path in folder.glob("*.safetensors"))
    assert [name for name in finished if name.startswith("remove")] == [
        "remove-000000000.safetensors"
    ]
    calls = counted(monkeypatch)
    resumed = Coupled(chunk=25, checkpoint=folder).train(problem(data), silent)
    assert calls == [25, 10]
    assert_identical(resumed.panels[0], Coupled(chunk=25).train(problem(data), silent).panels[0])


def test_only_the_owner_can_read_what_is_kept(data: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    Coupled(checkpoint=folder).train(problem(data), silent)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())


def _model(x: Tensor, y: Tensor | None = None, scale: float = 1.0) -> None:
    w = pyro.sample("w", dist.Normal(0.0, scale).expand([x.shape[1]]).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def _closure(scale: float) -> Any:
    return lambda x, y=None: _model(x, y, scale)


def test_another_run_is_refused_and_the_argument_named(data: Dataset, tmp_path: Path) -> None:
    first = problem(data)
    folder = tmp_path / "kept"
    route = Coupled(chunk=30, checkpoint=folder)
    route.train(first, silent)
    moved = data.x.clone()
    moved[7, 1] = torch.nextafter(moved[7, 1], torch.tensor(9.0, dtype=torch.float64))
    looser = BayesianLogisticRegression(clip=0.6)
    others = {
        "data": replace(first, data=replace(data, x=moved)),
        "model": replace(first, model=looser),
        "guide": replace(first, guide=MeanField(first.model)),
        "steps": replace(first, plan=replace(first.plan, steps=21)),
        "rate": replace(first, plan=replace(first.plan, rate=0.41)),
        "seed": replace(first, plan=replace(first.plan, seed=4)),
        "optim": replace(first, optim=SGD({"lr": 1e-3})),
        "dtype": replace(first, data=data.to("cpu", torch.float32)),
    }
    for name, other in others.items():
        with pytest.raises(ValueError, match=rf"was made with {name}=.*, and not {name}="):
            route.train(other, silent)
    wider = replace(first, guide=FullRank(first.model, init_scale=0.2))
    with pytest.raises(ValueError, match="and not guide="):
        route.train(wider, silent)
    with pytest.raises(ValueError, match="and not kinds="):
        Coupled(Remove(40), chunk=30, checkpoint=folder).train(first, silent)
    with pytest.raises(ValueError, match="and not chunk=31;"):
        Coupled(chunk=31, checkpoint=folder).train(first, silent)


def test_models_that_say_the_same_but_do_something_else_are_told_apart(data: Dataset) -> None:
    p = problem(data)

    def of(model: Any) -> str:
        return identity(replace(p, model=model, guide=FullRank(model)))["model"]

    assert of(_closure(1.0)) == of(_closure(1.0))
    assert of(_closure(1.0)) != of(_closure(1.01))
    assert of(partial(_model, scale=1.0)) != of(partial(_model, scale=2.0))


def test_identity_is_the_same_in_another_process(data: Dataset) -> None:
    root, tests = Path(bdpvi.__file__).parents[1], Path(__file__).parents[1]
    here = f"{tests}{os.pathsep}{tests / '_ground'}"
    code = (
        "from simulated import logistic_data\n"
        "from test_checkpoint import *\n"
        "from test_checkpoint import _model\n"
        "data = logistic_data(60, 3)\n"
        "print(identity(replace(problem(data), model=_model, guide=FullRank(_model))))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{here}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    here_said = identity(replace(problem(data), model=_model, guide=FullRank(_model)))
    assert said.strip() == str(here_said)


def test_settings_of_any_kind_have_a_text_without_addresses() -> None:
    class Setting:
        pass

    for value in (Setting(), [Setting()], {"a": lambda t: t}, partial(max, key=Setting()), Setting):
        assert " at 0x" not in described(value)
    assert described(torch.zeros(2)) != described(torch.ones(2))


def test_a_folder_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(ValueError, match="is not a checkpoint"):
        Checkpoint(tmp_path, {})


def test_a_damaged_part_is_refused(data: Dataset, tmp_path: Path) -> None:
    route = Coupled(checkpoint=tmp_path / "kept")
    route.train(problem(data), silent)
    part = tmp_path / "kept" / "remove-000000000.safetensors"
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"checkpoint: .*remove.* cannot be read"):
        route.train(problem(data), silent)
    part.unlink()
    route.train(problem(data), silent)


def test_nothing_is_left_by_a_run_that_fails_at_once(data: Dataset, tmp_path: Path) -> None:
    p = replace(problem(data), plan=BatchPlan(steps=STEPS, rate=1e-4))
    with pytest.raises(ValueError, match="rate"):
        Coupled(checkpoint=tmp_path / "kept").train(p, silent)
    assert not (tmp_path / "kept").exists()


def test_a_forged_state_that_is_sealed_again_is_one_value_error() -> None:
    x, y = torch.randn(20, 2), torch.zeros(20).long()

    def made() -> Any:
        module = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        settings = DPSGDSettings(records=20, seed=0)
        return bdpvi.make_private(
            module, optimizer, loss=torch.nn.functional.cross_entropy, data=(x, y), rate=0.5,
            max_grad_norm=1.0, noise_multiplier=1.0, settings=settings,
        )  # fmt: skip

    run = made()
    run.step()
    state = {name: value for name, value in run.state_dict().items() if name != "sha256"}
    odds: list[Any] = [None, [], {}, "x", -1]
    for name in state:
        for odd in odds:
            for forged in ({**state, name: odd}, {k: v for k, v in state.items() if k != name}):
                said = outcome(lambda forged=forged: made().load_state_dict(sealed(forged)))
                assert not said or "state" in said or name in said


def outcome(load: Any) -> str:
    """Return what a ValueError says; any other error is one of the test."""
    try:
        load()
    except ValueError as error:
        return str(error)
    return ""

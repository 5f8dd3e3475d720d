"""Kills, interruptions, places that cannot be written to, and several processes at one place."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import SVI
from pyro.optim import SGD, ClippedAdam, ExponentialLR, PyroOptim
from simulated import guided, logistic_data
from test_checkpoint import STEPS, assert_identical, problem
from test_cli import run

import bdpvi
from bdpvi import Coupled, Dataset
from bdpvi._ground import checkpoint, store
from bdpvi._ground.checkpoint import Checkpoint
from bdpvi._ground.progress import silent
from bdpvi.bayesian.inference.svi import default_optimiser
from bdpvi.bench import tuning


class Killed(BaseException):
    """Ends a process at once: nothing that a dead process could not do is done after it."""


class Dying:
    """What a process asks of the operating system, of which it survives so many calls."""

    def __init__(self, left: int) -> None:
        self.left = left

    def count(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            self.count()
            return call(*arguments, **options)

        return counting

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        return self.counted(found) if callable(found) else found


@contextmanager
def killed_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill what runs inside at a call of the operating system; writes are cut in the middle."""
    dying = Dying(calls)
    write = Path.write_bytes

    def half_written(path: Path, content: bytes) -> None:
        write(path, content[: len(content) // 2])
        dying.count()
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(store, "os", dying)
        for name in ("mkdir", "chmod", "touch", "unlink"):
            patch.setattr(Path, name, dying.counted(getattr(Path, name)))
        patch.setattr(Path, "write_bytes", half_written)
        yield


def keep_two_parts(folder: Path) -> list[Any]:
    kept = Checkpoint(folder, {"seed": "0"})
    return [kept.once(f"{i}", lambda: {"value": torch.ones(1)})["value"] for i in (1, 2)]


def keep_two_cells(folder: Path) -> list[Any]:
    cells = Checkpoint(folder, {"seed": 0}, "cells")
    cells.begin()
    for name in ("1", "2"):
        if cells.get(name) is None:
            cells.write_part(name, {"value": 1})
    return [cells.get(name)["value"] for name in ("1", "2")]


@pytest.mark.parametrize("work", [keep_two_parts, keep_two_cells])
def test_killed_anywhere_it_goes_on_and_leaves_nothing_of_the_dead(
    work: Callable[[Path], list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died, half = 0, 0
    while True:
        folder = tmp_path / f"{died}"
        try:
            with killed_after(died, monkeypatch):
                work(folder)
            break
        except Killed:
            died += 1
        half += any(path.name.startswith(".") for path in folder.rglob("*"))
        assert work(folder) == [1, 1]
        store.check_writable(folder)  # the lock of a file that was just finished stays until then
        assert not [path for path in folder.rglob("*") if path.name.startswith(".")]
    assert died > 20
    assert half > 3


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    own = tmp_path / ".a.txt.original"
    own.write_text("somebody's", encoding="utf-8")
    with store.replacing(tmp_path / "a.txt") as slow:
        slow.write_text("slow", encoding="utf-8")
        store.write(tmp_path / "a.txt", b"quick")
        assert slow.exists()
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "slow"
    assert own.exists()


OPTIMISERS: dict[str, Callable[[], PyroOptim]] = {
    "default": lambda: default_optimiser(STEPS),
    "momentum": lambda: SGD({"lr": 1e-4, "momentum": 0.9}),
    "clipped": lambda: ClippedAdam({"lr": 0.01, "lrd": 0.99}),
    "schedule": lambda: ExponentialLR(
        {"optimizer": torch.optim.RMSprop, "optim_args": {"lr": 0.01}, "gamma": 0.9}
    ),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_interrupted_fit_goes_on_to_the_same_bits(
    name: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = replace(problem(data), optim=OPTIMISERS[name]())
    whole = Coupled().train(p, silent)
    monkeypatch.setattr(checkpoint, "_EVERY", 0.0)
    steps: list[float] = []
    real = SVI.step

    def step(self: Any, *arguments: Any) -> float:
        loss = float(real(self, *arguments))
        steps.append(loss)
        return loss

    monkeypatch.setattr(SVI, "step", step)

    def stopping(items: Sequence[int], description: str) -> Iterable[int]:
        for item in items:
            if item == 13:
                raise KeyboardInterrupt
            yield item

    route = Coupled(checkpoint=tmp_path / "kept")
    with pytest.raises(KeyboardInterrupt):
        route.train(p, stopping)
    pyro.clear_param_store()
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {
        "settings.json", "fit.begun.safetensors",
    }  # fmt: skip
    resumed = route.train(p, silent)
    assert len(steps) == STEPS  # 13, and those that were missing
    assert_identical(resumed.panels[0], whole.panels[0])
    assert all(torch.equal(resumed.parameters[k], v) for k, v in whole.parameters.items())
    assert torch.equal(resumed.convergence.elbo, whole.convergence.elbo)
    assert torch.equal(resumed.convergence.gradient_norm, whole.convergence.gradient_norm)
    assert not list((tmp_path / "kept").glob("*begun*"))


COMPARE = [
    "--data", "breast-cancer", "--methods", "dp-gd,non-private", "--epsilons", "0.5",
    "--seeds", "2", "--quiet",
]  # fmt: skip
TUNE = [
    "--data", "breast-cancer", "--methods", "dp-gd", "--epsilons", "0.5", "--seeds", "1",
    "--folds", "2", "--configurations", "2", "--refinements", "0", "--quiet",
]  # fmt: skip
COMMANDS = {
    "compare": COMPARE, "tune": TUNE, "demo": ["--data", "breast-cancer", "--quiet"],
}  # fmt: skip


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("the work began")


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no command begin its work."""
    monkeypatch.setattr(bdpvi, "fit", never)
    monkeypatch.setattr("bdpvi.bench.demonstration.fit", never)
    monkeypatch.setattr("bdpvi.bench.comparison.run", never)
    monkeypatch.setattr(tuning, "score", never)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("place", ["below a file", "not allowed"])
@pytest.mark.usefixtures("idle")
def test_what_cannot_be_written_is_said_before_the_work(
    command: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if place == "below a file":
        (tmp_path / "file").write_text("x", encoding="utf-8")
        out = tmp_path / "file" / "out"
    else:
        if os.geteuid() == 0:
            pytest.skip("everything is allowed")
        (tmp_path / "closed").mkdir(mode=0o500)
        out = tmp_path / "closed" / "out"
    assert run(command, *COMMANDS[command], "--out", out) == 2
    assert capsys.readouterr().err.count("\n") == 1


def modes(folder: Path) -> set[tuple[bool, int]]:
    found = [folder, *folder.rglob("*")]
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in found}


@pytest.mark.parametrize("umask", [0, 0o027, 0o277])
def test_secrets_are_the_owners_under_any_umask(
    umask: int, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_EVERY", 0.0)
    (tmp_path / "begun").mkdir(mode=0o755)

    def stopping(items: Sequence[int], description: str) -> Iterable[int]:
        yield from items[:5]
        raise KeyboardInterrupt

    old = os.umask(umask)
    try:
        Coupled(checkpoint=tmp_path / "new" / "kept").train(problem(data), silent)
        with pytest.raises(KeyboardInterrupt):
            Coupled(checkpoint=tmp_path / "begun").train(problem(data), stopping)
        Checkpoint(tmp_path / "cells", {}, "cells").write_part("a", {})
        with store.lock_folder(tmp_path / "held"):
            assert modes(tmp_path / "held") == {(True, 0o700), (False, 0o600)}
    finally:
        os.umask(old)
    for name in ("new", "begun", "cells"):
        assert modes(tmp_path / name) == {(True, 0o700), (False, 0o600)}


def test_predictions_overwrite_nothing_and_follow_no_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written, link = tmp_path / "written.csv", tmp_path / "link.csv"
    written.write_text("mine", encoding="utf-8")
    link.symlink_to(tmp_path / "elsewhere")
    for out in (written, link):
        assert run("predict", "nowhere", "--data", "nowhere.csv", "--out", out) == 2
        assert "exists already" in capsys.readouterr().err
    assert written.read_text(encoding="utf-8") == "mine"
    assert run("predict", "nowhere", "--data", "nowhere.csv", "--out", tmp_path / "new.csv") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"written.csv", "link.csv"}


@pytest.fixture
def heard() -> Iterator[None]:
    """Let SIGINT through: a shell that starts the tests in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(
    ("command", "kept", "number"),
    [
        pytest.param("compare", "out/cells", signal.SIGTERM, marks=pytest.mark.whole),
        pytest.param("tune", "out.trials", signal.SIGTERM, marks=pytest.mark.whole),
        pytest.param("tune", "out.trials", signal.SIGINT, marks=pytest.mark.whole),
    ],
)
def test_a_signal_ends_in_one_line_and_the_command_goes_on(
    command: str,
    kept: str,
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done: list[int] = []

    def signalling(call: Callable[..., Any]) -> Callable[..., Any]:
        def second_time(*arguments: Any, **options: Any) -> Any:
            done.append(1)
            if len(done) == 2:
                os.kill(os.getpid(), number)
                time.sleep(10)
            return call(*arguments, **options)

        return second_time

    monkeypatch.setattr("bdpvi.bench.comparison.run", signalling(bdpvi.bench.comparison.run))
    monkeypatch.setattr(tuning, "score", signalling(tuning.score))
    before = signal.getsignal(signal.SIGTERM)
    arguments = (command, *COMMANDS[command], "--out", tmp_path / "out")
    assert run(*arguments) == 130
    assert signal.getsignal(signal.SIGTERM) == before
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"kept in {tmp_path / kept}/" in error
    assert "the same command continues it" in error
    assert run(*arguments) == 0


STOPPED = {
    "demo": (
        "bdpvi.bench.demonstration.fit",
        ["--data", "breast-cancer", "--out", "{new}", "--quiet"],
    ),
    "predict": (
        "bdpvi.tables.predictions.Table.of",
        ["{release}", "--data", "{new}", "--out", "{new}"],
    ),
    "account": ("bdpvi.bayesian.storage.open_ledger", ["{fit}"]),
    "account --repair": ("bdpvi.privacy.repair.repair", ["{fit}", "--charge", "1,1"]),
}


RELEASE = Path(__file__).parents[1] / "golden" / "release.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    fit = guided(logistic_data(60, 3))
    bdpvi.save_fit(fit, folder / "fit")
    return folder


def interrupting(call: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return what a user interrupts: at once, or as soon as ``call`` has returned."""

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if call is not None:
            call(*arguments, **options)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    return interrupted


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("command", STOPPED)
def test_every_command_says_that_it_was_interrupted(
    command: str,
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where, arguments = STOPPED[command]
    monkeypatch.setattr(where, interrupting())
    new, ledger = tmp_path / "new", (made / "fit" / "ledger.jsonl").read_bytes()
    names = {"{new}": new, "{fit}": made / "fit", "{release}": RELEASE}
    capsys.readouterr()
    assert run(*command.split(), *(names.get(argument, argument) for argument in arguments)) == 130
    said, error = capsys.readouterr()
    assert not said
    assert error == "bdpvi: interrupted: nothing was finished; the same command starts again\n"
    assert not new.exists() or not list(new.iterdir())
    assert (made / "fit" / "ledger.jsonl").read_bytes() == ledger

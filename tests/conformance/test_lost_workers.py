"""Workers, callers and disks that are lost: one sentence, one charge, the release as undisturbed.

The commands read a folder of files in blocks; each block that is handed to a worker is a moment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import test_cli
from doors import Place, people
from watch import same_secrets

from bdpvi import Ledger
from bdpvi.datasets.records import Spread

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="processes are killed"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # for the owner
]
PUBLISHED = {"private": ("release.json",), "synthesize": ("synthetic.json", "synthetic.csv")}
BEFORE = 6  # blocks: the pass that says whose table it is
MOMENTS = {"private": (5, 20, 60), "synthesize": (5, 14, 22)}
"""Blocks at which something is lost: before any charge, and twice after one."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a place whose table is a folder of three files of two blocks each."""
    made = Place.within(tmp_path / "a")
    frame = people(1200)[["age", "dose", "sick"]]
    (made.folder / "parts").mkdir()
    for at in range(3):
        part = frame[400 * at : 400 * (at + 1)]
        part.to_parquet(made.folder / "parts" / f"{at}.parquet", index=False, row_group_size=200)
    return made


def asked(name: str, place: Place, *more: object) -> list[str]:
    positive = ("--positive", "yes") if name == "private" else ()
    given = (
        name, "--data", place.folder / "parts", "--target", "sick", *positive, "--epsilon", 2,
        "--one-row-per-person", "--quiet", "--out", place.out, "--secret", place.secret,
        "--ledger", place.ledger, *more,
    )  # fmt: skip
    return [str(one) for one in given]


def done(name: str, place: Place, *more: object) -> int:
    with same_secrets():
        return test_cli.run(*asked(name, place, *more))


def outcome(name: str, place: Place) -> tuple[Any, ...]:
    """Return what was published, and what was charged for it."""
    files = [(place.out / one).read_bytes() for one in PUBLISHED[name]]
    left = [one.name for one in place.folder.rglob("*") if ".bdpvi-" in one.name]
    assert not left
    return files, Ledger.at(place.ledger).book().charges


def published(name: str, place: Place) -> bool:
    return any((place.out / one).exists() for one in PUBLISHED[name])


def undisturbed(name: str, place: Place) -> tuple[Any, ...]:
    """Return the outcome of the command in this process, as if it had not been run."""
    other = Place(place.folder, place.folder / "b.jsonl", place.folder / "b" / "out",
                  place.folder / "b" / "secret")  # fmt: skip
    assert done(name, other) == 0
    return outcome(name, other)


def charged(place: Place) -> int:
    return len(Ledger.at(place.ledger).entries()) if place.ledger.exists() else 0


@contextmanager
def at(moment: int, act: Callable[[], object]) -> Iterator[None]:
    """Act when as many blocks have been handed to workers."""
    sent, usual = [0], Spread._send

    def counted(self: Any, *given: Any) -> Any:
        future = usual(self, *given)
        sent[0] += 1
        if sent[0] == moment:
            act()
        return future

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spread, "_send", counted)
        yield
    assert sent[0] >= moment


def kill_a_worker() -> None:
    worker = active_children()[0]
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(5)


def sentence(said: str) -> str:
    """Return the error, which is one line, and the last."""
    lines = [splitline for splitline in said.splitlines() if splitline.startswith("bdpvi: ")]
    assert "Traceback" not in said
    return lines[-1]


def moments(*quick: tuple[str, int]) -> pytest.MarkDecorator:
    """Return all commands and moments as parameters, of which these are not slow."""
    every = [(name, moment) for name in PUBLISHED for moment in MOMENTS[name]]
    marked = [pytest.param(*one, marks=() if one in quick else pytest.mark.slow) for one in every]
    return pytest.mark.parametrize(("name", "moment"), marked)


@moments(("synthesize", 14))
def test_a_killed_process_of_a_pool(
    name: str, moment: int, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = undisturbed(name, place)
    with at(moment, kill_a_worker):
        assert done(name, place, "--workers", 2) == 2
    said = sentence(capsys.readouterr().err)
    assert "executor: a worker ended while" in said
    assert not published(name, place)
    assert (charged(place) > 0) == (moment > BEFORE)
    assert done(name, place) == 0
    assert outcome(name, place) == expected


CALLER = """
import os, signal, sys
from bdpvi import cli
from bdpvi.datasets.records import Spread
left, usual = [int(os.environ["MOMENT"])], Spread._send
def dying(*given):
    future = usual(*given)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return future
Spread._send = dying
cli.main()
"""


@moments(("private", 60))
def test_a_killed_caller(name: str, moment: int, place: Place) -> None:
    """Its workers end with it: they hold its output, which is read to its end."""
    command = [sys.executable, "-c", CALLER, *asked(name, place, "--workers", 2)]
    environment = {**os.environ, "MOMENT": str(moment)}
    killed = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not published(name, place)
    assert (charged(place) > 0) == (moment > BEFORE)
    assert done(name, place) == 0
    whole = undisturbed(name, place)[1]
    found = outcome(name, place)[1]
    assert [one.kind for one in found] == [one.kind for one in whole]
    spent = [Ledger.at(place.folder / one).worst_case(1e-5) for one in ("people.jsonl", "b.jsonl")]
    assert spent[0] == spent[1]


# --- Dask -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Give a client of a cluster of two processes on this machine."""
    distributed = pytest.importorskip("distributed")
    given = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        distributed.LocalCluster(**given) as local,
        distributed.Client(local, set_as_default=False) as client,
    ):
        yield client


def kill_of(client: Any) -> None:
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)


@moments(("private", 20))
def test_a_killed_worker_of_dask_is_replaced(
    name: str, moment: int, place: Place, cluster: Any
) -> None:
    with at(moment, partial(kill_of, cluster)):
        assert done(name, place, "--dask", cluster.scheduler.address) == 0
    assert outcome(name, place) == undisturbed(name, place)


def test_a_worker_of_dask_with_another_version_is_named(
    place: Place, cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run(set_version, "0.1")
    try:
        assert done("private", place, "--dask", cluster.scheduler.address) == 2
    finally:
        cluster.run(set_version, "")
    assert "a worker has bdpvi 0.1 and this process" in sentence(capsys.readouterr().err)
    assert not charged(place)
    assert not place.out.exists()


def set_version(said: str) -> None:
    from importlib.metadata import version

    from bdpvi.datasets import records

    setattr(records, "version", (lambda _: said) if said else version)  # noqa: B010


# --- a full disk ----------------------------------------------------------------------------------

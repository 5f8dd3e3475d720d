"""Several processes on one ledger: together they never spend more than its budget."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from doors import DELTA, DOORS, Door, Place

from bdpvi import Budget, Ledger
from bdpvi.noise.keys import Key
from bdpvi.releases.mechanisms import CountRows
from bdpvi.releases.transaction import Transaction

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
RACING = [door for door in DOORS if door.name in ("objective, counted", "private, logistic",
          "estimator", "synthesize", "make_private")]  # fmt: skip


def together(works: list[Callable[[], object]]) -> None:
    """Do works in as many processes, which start at once."""
    start, go = os.pipe()
    children = []
    for work in works:
        child = os.fork()
        if child == 0:
            code = 3
            try:
                os.close(go)
                os.read(start, 1)  # ends when the parent closes it
                work()
                code = 0
            except ValueError:
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    os.close(start)
    os.close(go)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def counts(path: Path) -> None:
    """Set ε aside, and count, until nothing is left."""
    for _ in range(20):
        work = Transaction(Ledger(path), Key.fresh())
        with work.reserve(0.3, DELTA, "all"):
            work.charge(CountRows(0, 0.3, 0.3, DELTA), last=True)


def raced(path: Path, processes: int) -> None:
    ledger = Ledger.at(path, budget=Budget(1.0, DELTA))
    together([partial(counts, path)] * processes)
    total = ledger.worst_case(DELTA)
    assert total is not None
    assert 0 < total.epsilon <= 1.0


def test_two_processes_keep_to_one_budget(tmp_path: Path) -> None:
    raced(tmp_path / "a.jsonl", 2)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 8])
def test_processes_keep_to_one_budget_200_times(processes: int, tmp_path: Path) -> None:
    for turn in range(200):
        raced(tmp_path / f"{turn}.jsonl", processes)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 8])
@pytest.mark.parametrize("door", RACING, ids=lambda door: door.name)
def test_processes_at_one_door_keep_to_one_budget(
    door: Door, processes: int, tmp_path: Path
) -> None:
    place = Place.within(tmp_path / "a")
    ledger = door.open(place, Budget(1.2 if door.keyed else 0.2, DELTA))
    together([partial(door, place.again(turn)) for turn in range(processes)])
    total = ledger.worst_case(DELTA)
    assert total is not None
    assert ledger.budget is not None
    assert 0 < total.epsilon <= ledger.budget.epsilon

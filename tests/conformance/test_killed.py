"""Killed at any event of a file: the same call goes on, draws the same, and pays nothing twice."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyro
import pytest
from doors import DOORS, PLENTY, Door, Place
from watch import book, events, files, killed, same_secrets, watching

from bdpvi import Ledger
from bdpvi.privacy.entry import Entry

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a process is forked")
PUBLISHED = [door for door in DOORS if door.out]
SAMPLED = [door for door in PUBLISHED if door.name in ("private, logistic", "command synthesize",
           "command private")]  # fmt: skip


def begun(door: Door, folder: Path) -> Callable[[], Place]:
    """Return what makes a place as if nothing had been done there, at one path."""
    place, kept = Place.within(folder / "work"), folder / "kept"
    with same_secrets():
        door.open(place)
    shutil.copytree(place.folder, kept)

    def fresh() -> Place:
        shutil.rmtree(place.folder)
        shutil.copytree(kept, place.folder)
        return place

    return fresh


def work(door: Door, place: Place) -> None:
    with same_secrets(1):
        door(place)


def outcome(door: Door, place: Place) -> tuple[bytes, tuple[Entry, ...]]:
    """Return what was published, and what was charged for it."""
    ledger = Ledger(place.ledger)
    assert not ledger.book().opened
    return door.published(place).read_bytes(), ledger.book().charges


def dies(door: Door, folder: Path, numbers: Callable[[int], Iterator[int] | list[int]]) -> None:
    fresh = begun(door, folder)
    work(door, fresh())  # what a process does once only is done before events are counted
    place = fresh()
    pyro.clear_param_store()
    with events(lambda number: None) as seen:
        work(door, place)
    expected = outcome(door, place)
    for number in numbers(len(seen)):
        place = fresh()
        assert killed(partial(work, door, place), number), (number, len(seen))
        pyro.clear_param_store()
        if not door.published(place).exists():
            work(door, place)
        assert outcome(door, place) == expected, (door.name, number, seen[number - 1])
        left = [one.name for one in place.folder.rglob("*") if ".bdpvi-" in one.name]
        assert not [one for one in left if not one.endswith(".lock")] or place.out.exists()


def some(door: Door, events: int) -> list[int]:
    """Return three events, others for each door."""
    first = 1 + 7 * DOORS.index(door) % max(events // 3, 1)
    return [first, first + events // 3, first + 2 * (events // 3)]


@pytest.mark.parametrize("door", SAMPLED, ids=lambda door: door.name)
def test_a_work_goes_on_after_some_deaths(door: Door, tmp_path: Path) -> None:
    dies(door, tmp_path, lambda number: [one for one in some(door, number) if one <= number])


@pytest.mark.slow
@pytest.mark.parametrize("door", PUBLISHED, ids=lambda door: door.name)
def test_a_work_goes_on_after_every_death(door: Door, tmp_path: Path) -> None:
    dies(door, tmp_path, lambda number: list(range(1, number + 1)))


@pytest.mark.parametrize("door", SAMPLED, ids=lambda door: door.name)
def test_what_was_lost_is_copied_and_not_drawn_again(door: Door, tmp_path: Path) -> None:
    place = begun(door, tmp_path)()
    work(door, place)
    expected = outcome(door, place)
    shutil.rmtree(place.out) if place.out.is_dir() else place.out.unlink()
    with watching(place) as seen:
        door(place)
    assert not seen.drawn
    assert outcome(door, place) == expected


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_a_process_killed_at_its_first_draw_has_paid(door: Door, tmp_path: Path) -> None:
    place = Place.within(tmp_path / "a")
    door.open(place)

    class Died(BaseException):
        """A death, but for what it cannot undo."""

    def die() -> None:
        raise Died

    with watching(place, die), pytest.raises(Died):
        door(place)
    pyro.clear_param_store()
    charged = book(place.ledger).charges
    assert charged
    assert Ledger(place.ledger).budget == PLENTY
    assert not files(place.out)

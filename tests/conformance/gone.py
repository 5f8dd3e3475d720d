"""One undisturbed call of each door, which several laws look at."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyro
import pytest
from doors import DOORS, Door, Place
from watch import Watch, files, rival, same_secrets, watching

from bdpvi.privacy.cost import Bound


@dataclass
class Ran:
    """A door that was gone through.

    Attributes:
        door, place: where.
        seen: what it did.
        promised: what it returned.
        working: the files of the secret folder when noise was drawn first.
        ledger: the files of the ledger, which :meth:`restored` puts back.
        turns: how often the ledger's lock was taken.
    """

    door: Door
    place: Place
    seen: Watch
    promised: Bound | None
    working: dict[Path, bytes]
    ledger: dict[Path, bytes]
    turns: int

    def restored(self) -> Ran:
        """Put the ledger back as the call left it."""
        for path in self.place.folder.glob(f"{self.place.ledger.stem}.*jsonl*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        for path, content in self.ledger.items():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        return self


def _look(place: Place, found: dict[Path, bytes]) -> None:
    found.update({} if found else files(place.secret, place.folder / "fit"))


@pytest.fixture(scope="session")
def went(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Door], Ran]]:
    kept: dict[str, Ran] = {}
    root = tmp_path_factory.mktemp("doors")

    def through(door: Door) -> Ran:
        if door.name not in kept:
            place = Place.within(root / str(len(kept)))
            working: dict[Path, bytes] = {}
            with same_secrets():
                door.open(place)
                looked = partial(_look, place, working)
                with watching(place, looked) as seen, rival(place.ledger, 0, list) as turns:
                    promised = door(place)
            pyro.clear_param_store()
            head = place.ledger.with_name(f"{place.ledger.name}.head")
            ledger = files(place.ledger, head)
            kept[door.name] = Ran(door, place, seen, promised, working, ledger, len(turns))
        return kept[door.name].restored()

    yield through
    shutil.rmtree(root)


@pytest.fixture(params=DOORS, ids=lambda door: door.name)
def door(request: pytest.FixtureRequest) -> Door:
    result: Door = request.param
    return result


@pytest.fixture
def ran(door: Door, went: Callable[[Door], Ran]) -> Ran:
    return went(door)

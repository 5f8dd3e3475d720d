"""The ledger: nothing that was released is ever forgotten, and nothing false is believed."""

from __future__ import annotations

import copy
import os
import pickle
import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from bdpvi import Budget
from bdpvi.accounting.ledger import Charge, Ledger, chained, proven, repair

MADE = (Charge(1, 2.0), Charge(10, 5.5, from_data=True), Charge(3, 1e-7), Charge(2, 1e12))
FIT = "0" * 64


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a ledger with four charges and a budget."""
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(Ledger(budget=Budget(2.0, 1e-6)).content(FIT))
    ledger = Ledger(path, binding=FIT)
    for charge in MADE:
        ledger.charge(charge)
    return path


def edited(lines: list[bytes]) -> bytes:
    return b"".join([lines[0], lines[1].replace(b'"draws": 1,', b'"draws": 9,'), *lines[2:]])


def test_what_a_file_holds(file: Path) -> None:
    ledger = Ledger(file, binding=FIT)
    assert ledger.charges() == MADE
    assert ledger.budget == Budget(2.0, 1e-6)
    assert Ledger(file).charges() == MADE
    with pytest.raises(ValueError, match="stands in the file"):
        Ledger(file, budget=Budget(1.0))
    assert Ledger(budget=Budget(3.0)).budget == Budget(3.0)
    assert Ledger().budget is None
    with pytest.raises(ValueError, match=r"budget must be a Budget or None, got 2\.0"):
        Ledger(budget=2.0)  # type: ignore[arg-type]


def test_a_charge_is_checked() -> None:
    with pytest.raises(ValueError, match="from_data must be True or False, got 1"):
        Charge(1, 2.0, from_data=1)  # type: ignore[arg-type]
    assert isinstance(Charge(1, 2).temperature, float)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: b"", "line 1, cannot be used: it is empty"),
        (lambda lines: b"".join(lines)[:-1], "line 5: it is cut off"),
        (lambda lines: b"".join(lines)[:-30], "line 5: it is cut off"),
        (edited, "line 2: it was changed"),
        (lambda lines: b"".join([lines[0], *lines[:0:-1]]), "line 2: it was changed"),
        (lambda lines: b"".join([*lines[:2], *lines[3:]]), "line 3: it was changed"),
        (lambda lines: b"".join([*lines, lines[-1]]), "line 6: it was changed"),
        (lambda lines: b"".join([*lines, b"\n"]), "line 6: it cannot be read"),
        (lambda lines: b"".join([*lines, b"[" * 100_000, b"\n"]), "line 6: it cannot be read"),
        (lambda lines: b"".join([*lines, b"[1]\n"]), "line 6: it cannot be read"),
        (lambda lines: lines[0][:-9], "line 1, cannot be used"),
        (lambda lines: b"".join(lines).replace(b"2.0", b"9.0", 1), "line 1, cannot be used"),
        (lambda lines: b"".join(lines[1:]), "line 1, cannot be used"),
    ],
)
def test_a_damaged_file_is_refused_and_nothing_is_charged(
    file: Path, damage: object, message: str
) -> None:
    ledger = Ledger(file, binding=FIT)
    damaged = damage(file.read_bytes().splitlines(keepends=True))  # type: ignore[operator]
    file.write_bytes(damaged)
    for use in (ledger.charges, lambda: ledger.budget, partial(ledger.charge, Charge(1, 1.0))):
        with pytest.raises(ValueError, match=message) as caught:
            use()
        assert str(file) in str(caught.value)
        assert "repair" in str(caught.value) or "put back" in str(caught.value)
    assert file.read_bytes() == damaged


def test_a_missing_file_and_anothers_are_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one of the two was changed or exchanged"):
        Ledger(file, binding="1" * 64).charges()
    ledger = Ledger(file, binding=FIT)
    file.unlink()
    for use in (ledger.charges, partial(ledger.charge, Charge(1, 1.0)), partial(repair, file)):
        with pytest.raises(ValueError, match=r"ledger\.jsonl is missing"):
            use()
    assert not file.exists()
    with pytest.raises(ValueError, match="is missing"):
        Ledger(tmp_path / "nowhere" / "ledger.jsonl").charges()
    assert not (tmp_path / "nowhere").exists()


def test_every_flipped_bit_is_noticed(file: Path) -> None:
    whole = file.read_bytes()
    ledger = Ledger(file, binding=FIT)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << (place % 8)
        file.write_bytes(changed)
        with pytest.raises(ValueError, match=r"ledger\.jsonl"):
            ledger.charges()


def test_random_damage_is_a_value_error(file: Path) -> None:
    rng = random.Random(0)
    whole = file.read_bytes()
    ledger = Ledger(file, binding=FIT)
    for _ in range(400):
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            start = rng.randrange(len(changed))
            stop = start + rng.choice([0, 1, 5, 100])
            changed[start:stop] = rng.randbytes(rng.choice([0, 1, 8]))
        file.write_bytes(changed)
        if file.read_bytes() in {b"".join(whole.splitlines(True)[:n]) for n in range(1, 6)}:
            continue  # whole lines cut off the end are not to be seen
        with pytest.raises(ValueError, match=r"ledger\.jsonl"):
            ledger.charges()


@pytest.mark.parametrize(
    "content",
    [
        {"draws": 0, "temperature": 1.0},
        {"draws": "1", "temperature": 1.0},
        {"draws": 1},
        {"draws": 1, "temperature": float("nan")},
        {"draws": 1, "temperature": 10**400},
        {"draws": 1, "temperature": 1.0, "from_data": 0},
        {"draws": 1, "temperature": 1.0, "more": 1},
        {"budget": 1},
    ],
)
def test_a_consistent_file_that_holds_no_charges_is_refused(
    file: Path, content: dict[str, object]
) -> None:
    header = proven(file.read_bytes()).said[0]
    for line, bad in enumerate(([{**header, "budget": content}], [header, content]), start=1):
        file.write_bytes(chained(*bad))
        with pytest.raises(ValueError, match=rf"ledger\.jsonl, line {line}, cannot be used"):
            Ledger(file).charges()


def test_a_relative_path_is_resolved_at_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    ledger = Ledger("ledger.jsonl")
    elsewhere = file.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    ledger.charge(Charge(7, 1.0))
    assert Ledger(file).charges() == (*MADE, Charge(7, 1.0))
    assert list(elsewhere.iterdir()) == []


def spend(ledger: Ledger, _: int) -> bool:
    """Charge one draw unless two have been charged, slowly."""
    with ledger.locked():
        if len(ledger.charges()) >= 2:
            return False
        time.sleep(0.02)
        ledger.charge(Charge(1, 1.0))
        return True


@pytest.mark.parametrize("kept", ["memory", "one object", "an object each"])
def test_threads_keep_out_of_each_others_way(kept: str, tmp_path: Path) -> None:
    memory = Ledger()
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(memory.content(FIT))
    ledgers = {
        "memory": [memory] * 8,
        "one object": [Ledger(path)] * 8,
        "an object each": [Ledger(path) for _ in range(8)],
    }[kept]
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(spend, ledgers, range(8))) == 2
    assert len(ledgers[0].charges()) == 2


def in_child(work: object) -> int:
    """Run ``work`` in a forked process; return how it ended."""
    child = os.fork()
    if child == 0:
        try:
            work()  # type: ignore[operator]
        except ValueError:
            os._exit(3)
        except BaseException:
            os._exit(4)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_charges_files_only(file: Path) -> None:
    memory, kept = Ledger(), Ledger(file)
    assert in_child(lambda: memory.charge(Charge(1, 1.0))) == 3
    assert memory.charges() == ()
    assert in_child(lambda: kept.charge(Charge(1, 1.0))) == 0
    assert kept.charges() == (*MADE, Charge(1, 1.0))


def test_a_copy_charges_files_only(file: Path) -> None:
    for duplicate in (copy.deepcopy(Ledger()), pickle.loads(pickle.dumps(Ledger()))):
        with pytest.raises(ValueError, match="save the fit and load it"):
            duplicate.charge(Charge(1, 1.0))
    pickle.loads(pickle.dumps(Ledger(file))).charge(Charge(1, 1.0))
    assert Ledger(file).charges() == (*MADE, Charge(1, 1.0))


def test_a_charge_is_on_the_disk_before_it_returns(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(file.read_bytes()))
    Ledger(file).charge(Charge(7, 1.0))
    assert synced == [file.read_bytes()]
    assert b'"draws": 7' in synced[0]


LAST = b'{"draws": 2, "temperature": 1000000000000.0, "from_data": false'


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (LAST, Charge(2, 1e12)),
        (LAST[:-5], Charge(2, 1e12, from_data=True)),
        (LAST[:-18], Charge(2, 1e12, from_data=True)),
        (LAST[:-20], None),  # how hot it was may have gone on
        (LAST[:20], None),
        (b"\0" * 80, None),
        (LAST.replace(b"2", b"0"), None),
    ],
)
def test_a_last_line_that_was_cut_off_is_charged_in_full(
    file: Path, left: bytes, expected: Charge | None
) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    assert lines[-1].startswith(LAST)
    damaged = b"".join(lines[:-1]) + left
    file.write_bytes(damaged)
    if expected is None:
        with pytest.raises(ValueError, match=r"line 5: it is cut off. 3 charges are proven"):
            repair(file, binding=FIT)
        assert file.read_bytes() == damaged
        assert repair(file, [Charge(5, 2.0)], binding=FIT) == (Charge(5, 2.0),)
        expected = Charge(5, 2.0)
    else:
        assert repair(file, binding=FIT) == (expected,)
    assert Ledger(file, binding=FIT).charges() == (*MADE[:3], expected)
    assert Ledger(file).budget == Budget(2.0, 1e-6)
    assert (file.parent / "ledger.damaged-1.jsonl").read_bytes() == damaged
    assert file.stat().st_mode & 0o777 == 0o600


def test_only_the_owner_can_say_what_edited_lines_were(file: Path) -> None:
    damaged = edited(file.read_bytes().splitlines(keepends=True))
    file.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"line 2.*changed(.|\n)*by --charge(.|\n)*\"draws\": 9"):
        repair(file)
    repair(file, MADE)
    assert Ledger(file, binding=FIT).charges() == MADE
    assert repair(file) == ()
    repair(file, MADE[:1])  # a release that an old copy of the folder has forgotten
    assert Ledger(file).charges() == (*MADE, MADE[0])
    assert len(list(file.parent.glob("ledger.damaged-*.jsonl"))) == 2


def test_without_its_first_line_nothing_can_be_repaired(file: Path) -> None:
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(ValueError, match="put back the newest copy"):
        repair(file, MADE)

"""The ledger: nothing that was released is ever forgotten, and nothing false is believed."""

from __future__ import annotations

import copy
import math
import os
import pickle
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bdpvi import Budget, BudgetExceededError
from bdpvi._ground import chain
from bdpvi._ground.chain import Head, head_of, proven, save, whole_file
from bdpvi.datasets.records import People
from bdpvi.noise.keys import Key
from bdpvi.privacy import left
from bdpvi.privacy.book import Book, follow
from bdpvi.privacy.entry import Charge, Entry
from bdpvi.privacy.event import Event
from bdpvi.privacy.events import SampledGaussian, Threshold
from bdpvi.privacy.gaussian_dp import gaussian_distance
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.repair import repair
from bdpvi.privacy.rounding import rounding_delta
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant
from bdpvi.releases.steps import Steps
from bdpvi.releases.transaction import Before, Plan, Transaction


def draws(number: int, temperature: float) -> Entry:
    return Entry(kind="draws", charge=Charge(number, temperature), events=None)


MADE = (draws(1, 2.0), draws(10, 5.5), draws(3, 1e-7), draws(2, 1e12))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a ledger with four charges and a budget."""
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(Ledger(budget=Budget(2.0, 1e-6)).content())
    ledger = Ledger(path)
    for charge in MADE:
        ledger.charge(charge)
    return path


def edited(lines: list[bytes]) -> bytes:
    return b"".join([lines[0], lines[1].replace(b'"draws": 1,', b'"draws": 9,'), *lines[2:]])


def test_what_a_file_holds(file: Path) -> None:
    ledger = Ledger(file)
    assert ledger.entries() == MADE
    assert ledger.budget == Budget(2.0, 1e-6)
    assert Ledger(file).entries() == MADE
    with pytest.raises(ValueError, match="already has a budget"):
        Ledger(file, budget=Budget(1.0))
    assert Ledger(budget=Budget(3.0)).budget == Budget(3.0)
    assert Ledger().budget is None
    with pytest.raises(ValueError, match=r"budget must be a Budget or None, got 2\.0"):
        Ledger(budget=2.0)  # type: ignore[arg-type]


def test_a_charge_is_checked() -> None:
    assert isinstance(Charge(1, 2).temperature, float)
    with pytest.raises(ValueError, match="kind must be one of"):
        Entry(kind="gift")
    for bad in (
        {"seal": "a secret key"},
        {"seal": b"\0"},
        {"purpose": "a\nline"},
        {"seal": "0" * 65},
    ):
        with pytest.raises(ValueError, match="must match"):
            Entry(kind="draws", **bad)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: b"", "line 1, cannot be used: it is empty"),
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
    ledger = Ledger(file)
    damaged = damage(file.read_bytes().splitlines(keepends=True))  # type: ignore[operator]
    file.write_bytes(damaged)
    for use in (ledger.entries, lambda: ledger.budget, partial(ledger.charge, draws(1, 1.0))):
        with pytest.raises(ValueError, match=message) as caught:
            use()
        assert str(file) in str(caught.value)
        assert "repair" in str(caught.value) or "put back" in str(caught.value)
    assert file.read_bytes() == damaged


def test_a_missing_file_and_anothers_are_refused(file: Path, tmp_path: Path) -> None:
    ledger = Ledger(file)
    file.unlink()
    for use in (ledger.entries, partial(ledger.charge, draws(1, 1.0))):
        with pytest.raises(ValueError, match=r"ledger\.jsonl is missing"):
            use()
    with pytest.raises(ValueError, match="0 of 5 can be verified"):
        Ledger.at(file)  # its head tells it from one that never was
    assert not file.exists()
    head = head_of(file).read_bytes()
    head_of(file).unlink()
    with pytest.raises(ValueError, match=r"ledger\.jsonl is missing"):
        repair(file)
    assert not file.exists()
    head_of(file).write_bytes(head)
    (lost,) = repair(file)  # nobody knows what was in it, its budget neither
    assert Ledger(file).entries() == (lost,)
    assert Ledger(file).worst_case(1e-5) is None
    with pytest.raises(ValueError, match="is missing"):
        Ledger(tmp_path / "nowhere" / "ledger.jsonl").entries()
    assert not (tmp_path / "nowhere").exists()


def test_every_flipped_bit_is_noticed(file: Path) -> None:
    ledger = Ledger(file)
    for damaged in (file, head_of(file)):
        whole = damaged.read_bytes()
        for place in range(len(whole)):
            changed = bytearray(whole)
            changed[place] ^= 1 << (place % 8)
            damaged.write_bytes(changed)
            ledger = Ledger(file) if damaged != file else ledger
            with pytest.raises(ValueError, match=r"ledger\.jsonl"):
                ledger.entries()
        damaged.write_bytes(whole)
    assert ledger.entries() == MADE


def test_a_file_that_was_written_anew_with_smaller_charges_is_refused(file: Path) -> None:
    header, *lines = proven(file.read_bytes()).said
    cheaper = [{**line, "charge": {**line["charge"], "draws": 1}} for line in lines]
    file.write_bytes(whole_file(header, *cheaper))
    with pytest.raises(ValueError, match="replaced by an old copy"):
        Ledger(file).entries()


@pytest.mark.parametrize("lines", [1, 2, 4])
def test_a_file_that_was_cut_or_is_an_old_copy_is_refused(file: Path, lines: int) -> None:
    whole = file.read_bytes().splitlines(keepends=True)
    old = b"".join(whole[:lines])
    other = head_of(file.with_name("a work"))
    Ledger(file).remember(other)
    for heads in ((), (head_of(file),)):  # one that was put back too is not noticed here
        file.write_bytes(old)
        for use in (Ledger(file).entries, lambda: Ledger.at(file).budget):
            if heads:
                continue
            with pytest.raises(ValueError, match=f"{lines} of 5 can be verified"):
                use()
        for head in heads:
            Head.of(proven(old)).write(head)
            assert Ledger(file).entries() == MADE[: lines - 1]
            with pytest.raises(ValueError, match=f"{lines} of 5 can be verified"):
                Ledger(file).remember(other)  # but by a work that goes on


@pytest.mark.parametrize(
    "content",
    [
        {"draws": 0},
        {"draws": "1"},
        {"temperature": float("nan")},
        {"temperature": 10**400},
        {"origin": "hearsay"},
        {"more": 1},
        {"kind": "gift"},
        {"count": 0},
        {"events": [{"event": "Ledger"}]},
        {"events": [{"event": "SampledGaussian", "noise_multiplier": -1.0}]},
        {"events": 3},
    ],
)
def test_a_consistent_file_that_holds_no_charges_is_refused(
    file: Path, content: dict[str, object]
) -> None:
    header = proven(file.read_bytes()).said[0]
    line_of = {"charge": MADE[0].to_dict() | content}
    bad_lines = ([{**header, "budget": content}], [header, line_of], [header, content])
    for line, bad in zip((1, 2, 2), bad_lines, strict=True):
        file.write_bytes(whole_file(*bad))
        with pytest.raises(ValueError, match=rf"ledger\.jsonl, line {line}, cannot be used"):
            Ledger(file).entries()


def spend(ledger: Ledger, _: int) -> bool:
    """Charge one draw unless two have been charged, slowly."""
    with ledger.locked():
        if len(ledger.entries()) >= 2:
            return False
        time.sleep(0.02)
        ledger.charge(draws(1, 1.0))
        return True


@pytest.mark.parametrize("kept", ["memory", "one object", "an object each"])
def test_threads_keep_out_of_each_others_way(kept: str, tmp_path: Path) -> None:
    memory = Ledger()
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(memory.content())
    ledgers = {
        "memory": [memory] * 8,
        "one object": [Ledger(path)] * 8,
        "an object each": [Ledger(path) for _ in range(8)],
    }[kept]
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(spend, ledgers, range(8))) == 2
    assert len(ledgers[0].entries()) == 2


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
    assert in_child(lambda: memory.charge(draws(1, 1.0))) == 3
    assert memory.entries() == ()
    assert in_child(lambda: kept.charge(draws(1, 1.0))) == 0
    assert kept.entries() == (*MADE, draws(1, 1.0))


def test_a_copy_charges_files_only(file: Path) -> None:
    for duplicate in (copy.deepcopy(Ledger()), pickle.loads(pickle.dumps(Ledger()))):
        with pytest.raises(ValueError, match="save the fit and load it"):
            duplicate.charge(draws(1, 1.0))
    pickle.loads(pickle.dumps(Ledger(file))).charge(draws(1, 1.0))
    assert Ledger(file).entries() == (*MADE, draws(1, 1.0))


def test_a_charge_is_on_the_disk_before_it_returns(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both() -> tuple[bytes, bytes]:
        return file.read_bytes(), head_of(file).read_bytes()

    def syncing(number: int) -> None:
        synced.append((os.path.sameopenfile(number, ledger.fileno()), *both()))

    synced: list[tuple[bool, bytes, bytes]] = []
    before = both()
    with file.open("rb") as ledger:
        monkeypatch.setattr(os, "fsync", syncing)
        Ledger(file).charge(draws(7, 1.0))
    after = both()
    assert synced[0] == (True, after[0], before[1])  # the line first, and then its head
    assert len(synced) > 1
    assert b'"draws": 7' in after[0]
    assert after[1] != before[1]


@pytest.mark.parametrize("length", [1, 30, 200])
def test_an_append_that_died_is_cut_back(file: Path, length: int) -> None:
    whole, head = file.read_bytes(), head_of(file).read_bytes()
    Ledger(file).charge(draws(7, 1.0))
    longer = file.read_bytes()
    last = longer.removeprefix(whole)
    file.write_bytes(longer[:-length])
    head_of(file).write_bytes(head)
    # It never returned, so nothing was drawn; but what is proven counts, its newline or not.
    made = (*MADE, draws(7, 1.0))[: 5 if length == 1 else 4]
    assert Ledger(file).entries() == made
    assert file.read_bytes() == longer[:-length]  # to ask changes nothing
    Ledger(file).charge(draws(7, 1.0))
    assert Ledger(file).entries() == (*made, draws(7, 1.0))
    assert file.read_bytes().startswith(longer if length == 1 else whole)
    file.write_bytes(whole + last[:50])
    head_of(file).write_bytes(head)
    assert repair(file) == ()
    assert file.read_bytes() == whole
    assert (file.parent / "ledger.damaged-1.jsonl").read_bytes().endswith(last[:50])
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("length", [2, 30, 200])
def test_a_line_that_was_cut_off_after_it_returned_is_no_append_that_died(
    file: Path, length: int
) -> None:
    cut = file.read_bytes()[:-length]
    file.write_bytes(cut)
    for use in (Ledger(file).entries, partial(Ledger(file).charge, draws(1, 1.0))):
        with pytest.raises(ValueError, match="4 of 5 can be verified"):
            use()
    assert file.read_bytes() == cut


def test_to_ask_takes_no_lock_and_no_space(file: Path) -> None:
    before = set(file.parent.iterdir())
    (file.parent / f"{file.name}.lock").unlink()
    file.parent.chmod(0o500)
    try:
        ledger = Ledger(file)
        assert ledger.entries() == MADE
        assert ledger.worst_case(1e-5) is None
    finally:
        file.parent.chmod(0o700)
    assert set(file.parent.iterdir()) == before - {file.parent / f"{file.name}.lock"}


def test_budget_and_unit_are_fixed_by_the_first_charge(tmp_path: Path) -> None:
    path = tmp_path / "people.jsonl"
    for ledger in (Ledger(), Ledger.at(path)):
        ledger.settle(budget=Budget(1.0), unit="who", rows_per_unit=3)
        ledger.settle(budget=Budget(1.0), unit="who", rows_per_unit=3)
        assert (ledger.budget, ledger.unit, ledger.rows_per_unit) == (Budget(1.0), "who", 3)
        for other in ({"budget": Budget(2.0)}, {"unit": "row", "rows_per_unit": 1}):
            with pytest.raises(ValueError, match="need a ledger of their own"):
                ledger.settle(**other)
    late = Ledger()
    late.charge(MADE[0])
    with pytest.raises(ValueError, match="which stay as they are"):
        late.settle(budget=Budget(1.0))
    with pytest.raises(ValueError, match="rows_per_unit=2 needs unit="):
        Ledger(rows_per_unit=2)


def gaussian(distance: float, count: int = 1, delta: float = 0.0) -> Entry:
    events: tuple[Event, ...] = (SampledGaussian(noise_multiplier=1 / distance),)
    if delta:
        events += (Threshold(delta),)
    return Entry(kind="steps", events=events, count=count)


def delta_of(epsilon: float, distance: mpmath.mpf) -> mpmath.mpf:
    """Return δ(ε) of a Gaussian mechanism in 50 digits (Balle and Wang 2018, Theorem 8)."""
    epsilon = mpmath.mpf(epsilon)
    above = mpmath.ncdf(distance / 2 - epsilon / distance)
    return above - mpmath.exp(epsilon) * mpmath.ncdf(-distance / 2 - epsilon / distance)


def test_nothing_is_promised_where_nothing_is_known() -> None:
    ledger = Ledger()
    ledger.charge(gaussian(0.1, delta=1e-5))
    assert ledger.worst_case(1e-5) is None
    assert ledger.worst_case(2e-5) is not None
    assert ledger.worst_case(2e-5, None) is None
    ledger.charge(draws(1, 1.0))
    assert ledger.worst_case(2e-5) is None


def test_draws_of_earlier_versions_at_a_temperature_from_the_data_have_no_guarantee(
    file: Path,
) -> None:
    header, old = proven(file.read_bytes()).said[0], {"origin": "data", "events": []}
    for line in ({"charge": MADE[0].to_dict() | old}, {"mark": "a"}):
        file.write_bytes(whole_file(header, line))
        head_of(file).unlink(missing_ok=True)
        (entry,) = follow(file, file.read_bytes()).entries
        assert (entry.charge, entry.events) == (None, None)
    owner = Entry.from_dict(MADE[0].to_dict() | {"origin": "owner"})
    assert owner == MADE[0]


def test_equal_charges_count_each(tmp_path: Path) -> None:
    one_by_one, at_once = Ledger.at(tmp_path / "one.jsonl"), Ledger()
    for _ in range(2):
        one_by_one.charge(gaussian(0.3))
    at_once.charge(gaussian(0.3, count=2))
    read_at_once = Ledger(tmp_path / "one.jsonl")
    for ledger in (one_by_one, at_once, read_at_once):
        found = ledger.worst_case(1e-5)
        assert found is not None
        assert found.distance == pytest.approx(0.3 * math.sqrt(2), rel=1e-12)


@dataclass(frozen=True)
class Bought:
    """Something at a price, of which nothing is drawn."""

    entry: Entry
    step: str = "it"

    def plan(self, before: Before) -> Plan[None]:
        """Return the price."""
        one = self.entry
        what = f"a {self.step}"
        return Plan(kind=one.kind, what=what, events=one.events, settings=None, count=one.count)

    def draw(self, plan: Plan[None], key: Key) -> None:
        """Draw nothing."""


def buy(ledger: Ledger, entry: Entry, what: str) -> None:
    """Charge it as a work of its own."""
    Transaction(ledger).perform(Bought(entry, what))


def test_the_budget_of_all_is_one(tmp_path: Path) -> None:
    ledger = Ledger.at(tmp_path / "people.jsonl", budget=Budget(1.0))
    distance = gaussian_distance(1.0, 1e-5)
    buy(ledger, gaussian(0.8 * distance), "network")
    with pytest.raises(BudgetExceededError, match=r"a federation would .*1 charge .*before: steps"):
        buy(ledger, gaussian(0.7 * distance), "federation")
    buy(ledger, gaussian(0.59 * distance), "federation")
    assert len(Ledger(ledger.path).entries()) == 2


@pytest.mark.parametrize("what", ["one charge", "steps", "a reservation"])
def test_nobody_charges_between_check_and_charge(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that are checked before either is charged would both have the last of a budget."""
    ledger = Ledger.at(tmp_path / "people.jsonl", budget=Budget(1.0))
    other, done, price = Ledger(ledger.path), threading.Event(), left.together
    one = gaussian(0.1)

    def charge() -> None:
        other.charge(one)
        done.set()

    thread, came = threading.Thread(target=charge), []

    def priced(*arguments: Any) -> Any:
        if thread.ident is None:
            thread.start()
            came.append(done.wait(0.2))
        return price(*arguments)

    monkeypatch.setattr("bdpvi.privacy.ledger.together", priced)
    monkeypatch.setattr(left, "together", priced)
    if what == "steps":
        assert one.events
        Steps(People(ledger), one.events[0], kind="steps", of="network").take()
    elif what == "one charge":
        buy(ledger, one, "network")
    else:
        with Transaction(ledger).reserve(0.5, 1e-5, "a work"):
            thread.join()
    thread.join()
    assert came == [False]
    assert len(ledger.book().charges) == (1 if what == "a reservation" else 2)


def test_what_a_work_reserves_counts_until_it_ends_and_then_what_it_charged() -> None:
    ledger, small = Ledger(budget=Budget(1.0)), gaussian(0.05)
    work = Transaction(ledger)
    with work.reserve(1.0, 1e-5, "a work"):
        for _ in range(2):
            work.perform(Bought(small, "part"))  # the second is the first
        with pytest.raises(BudgetExceededError, match="1 started and not finished"):
            buy(ledger, small, "network")
        work.charge(Bought(gaussian(0.1), "rest"), last=True)
    kinds = [entry.kind for entry in ledger.entries()]
    assert kinds == ["reserved", "steps", "steps", "ended"]
    buy(ledger, small, "network")
    total = ledger.worst_case(1e-5)
    assert total is not None
    assert total.distance == pytest.approx(math.sqrt(2 * 0.05**2 + 0.1**2), rel=1e-12)
    with pytest.raises(BudgetExceededError):  # a step over what was reserved is refused too
        Transaction(ledger, name=work.name).perform(Bought(gaussian(3.0), "more"))


@pytest.mark.parametrize(("kept", "open_"), [(False, 0), (True, 1)])
def test_an_interrupted_work_keeps_what_it_reserved_if_it_can_go_on(kept: bool, open_: int) -> None:
    ledger = Ledger(budget=Budget(1.0))
    work = Transaction(ledger, kept=kept)
    for error, left_open in ((KeyboardInterrupt, open_), (ValueError, 0)):
        with pytest.raises(error), work.reserve(1.0, 1e-5, "a work"):
            raise error
        assert len(ledger.book().opened) == left_open


def test_a_step_is_charged_once_from_one_secret_at_one_price() -> None:
    ledger, secret = Ledger(), Key(bytes(32))
    _, key, entry = Transaction(ledger, secret, "facts", "a").charge(Bought(gaussian(0.1)))
    again = Transaction(ledger, secret, "facts", "a").charge(Bought(gaussian(0.1)))
    assert again[1:] == (key, entry)
    assert len(ledger.entries()) == 1
    assert key.secret.hex() not in ledger.content().decode()
    for other, price in (
        (Transaction(ledger, Key(bytes([1] * 32)), "facts", "a"), 0.1),
        (Transaction(ledger, secret, "other facts", "a"), 0.1),
        (Transaction(ledger, secret, "facts", "a"), 0.2),
    ):
        with pytest.raises(ValueError, match="under another key or at another cost"):
            other.perform(Bought(gaussian(price)))
    assert len(ledger.entries()) == 1
    # Whatever the noise must not be shared by makes another key.
    others = [
        Transaction(Ledger(), secret, "facts", "a").charge(Bought(gaussian(0.1))),
        Transaction(ledger, secret, "facts", "b").charge(Bought(gaussian(0.1))),
        Transaction(ledger, secret, "other facts", "c").charge(Bought(gaussian(0.1))),
        Transaction(ledger, secret, "facts", "d").charge(Bought(gaussian(0.2))),
        Transaction(ledger, secret, "facts", "a").charge(Bought(gaussian(0.1), "next")),
    ]
    assert len({key, *(found for _, found, _ in others)}) == 6


def test_a_charge_looks_at_no_line_but_its_own_and_equal_ones_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "people.jsonl"
    lines = ({"charge": gaussian(1e-3 * (1 + n % 7)).to_dict()} for n in range(3_000))
    save(path, whole_file(Ledger().book().header, *lines))
    ledger = Ledger(path)
    assert len(ledger.entries()) == 3_000
    linked = Mock(side_effect=chain.link)
    monkeypatch.setattr(chain, "link", linked)
    for _ in range(5):
        ledger.charge(gaussian(2e-3))
        assert ledger.worst_case(1e-5) is not None
    assert linked.call_count == 5
    events = ledger.book().events
    assert events is not None
    assert (len(events), events.total(), len(ledger.book().merged.events)) == (7, 3_005, 1)


noises = st.sampled_from([3.0, 5.0, 7.5])
charges = st.one_of(
    st.builds(lambda mu, n: gaussian(mu, n), st.floats(0.001, 0.2), st.integers(1, 5)),
    st.builds(lambda mu, d: gaussian(mu, delta=d), st.floats(0.001, 0.2), st.floats(1e-8, 1e-7)),
    st.builds(
        lambda z, q, t, n: Entry(
            kind="steps", count=n,
            events=(SampledGaussian(noise_multiplier=z, rate=q, steps=t, rounding=t * 1e-12),),
        ),
        noises, st.sampled_from([0.05, 0.1]), st.integers(1, 9), st.integers(1, 9),
    ),
)  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(st.lists(charges, min_size=2, max_size=8), st.randoms())
def test_every_order_and_a_restart_give_the_exact_composition(
    made: list[Entry], rng: random.Random
) -> None:
    totals = []
    for _ in range(3):
        rng.shuffle(made)
        ledger = Ledger()
        for one in made:
            ledger.charge(one)
        restarted = follow(Path("people.jsonl"), ledger.content())
        assert restarted.events == ledger.book().events
        assert restarted.merged.events == ledger.book().merged.events
        total = ledger.worst_case(1e-5)
        assert total is not None
        totals.append(total.epsilon)
    assert max(totals) == pytest.approx(min(totals), rel=1e-12)
    # All steps at once: each kind to the power of its number, by dp_accounting.
    counted: Counter[tuple[float, float]] = Counter()
    thresholds, variance = 0.0, mpmath.mpf(0)
    for entry in made:
        for event in (entry.events or ()) * entry.count:
            if isinstance(event, Threshold):
                thresholds += event.delta
            elif isinstance(event, SampledGaussian) and event.rate < 1:
                counted[event.noise_multiplier, event.rate] += event.steps
            elif isinstance(event, SampledGaussian):
                variance += mpmath.mpf(event.noise_multiplier) ** -2
    theta = 1e-12 * sum(counted.values())
    delta = 1e-5 - thresholds - rounding_delta(theta, totals[0])
    if not counted:
        exact = delta_of(totals[0], mpmath.sqrt(variance))
        assert exact == pytest.approx(delta, rel=1e-9)
        return
    runs = [SampledGaussian(noise_multiplier=z, rate=q, steps=t) for (z, q), t in counted.items()]
    if variance:
        runs.append(SampledGaussian(noise_multiplier=float(variance**-0.5)))
    assert totals[0] == pytest.approx(PrivacyLossAccountant().together(runs, delta), rel=1e-9)


def test_only_the_owner_can_say_what_edited_lines_were(file: Path) -> None:
    damaged = edited(file.read_bytes().splitlines(keepends=True))
    file.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"line 2.*changed(.|\n)*by --charge(.|\n)*\"draws\": 9"):
        repair(file)
    repair(file, MADE)
    assert Ledger(file).entries() == MADE
    assert repair(file) == ()
    repair(file, MADE[:1])  # a release that an old copy of the folder has forgotten
    assert Ledger(file).entries() == (*MADE, MADE[0])
    assert len(list(file.parent.glob("ledger.damaged-*.jsonl"))) == 2


def test_without_its_first_line_nothing_can_be_repaired(file: Path) -> None:
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(ValueError, match="put back the newest copy"):
        repair(file, MADE)


@pytest.mark.parametrize("lost", ["lines", "head", "file"])
@pytest.mark.parametrize("budget", [Budget(1.0), None])
def test_lost_lines_cost_the_whole_budget_unless_all_of_them_are_known(
    lost: str, budget: Budget | None, tmp_path: Path
) -> None:
    file, made = tmp_path / "ledger.jsonl", [gaussian(0.01 * n) for n in (1, 2, 3)]
    ledger = Ledger.at(file, budget=budget)
    for one in made:
        ledger.charge(one)
    made = [*ledger.entries()]  # with the time of each
    kept = (file.read_bytes(), head_of(file).read_bytes())

    def damage() -> None:
        file.write_bytes(kept[0])
        head_of(file).write_bytes(kept[1])
        if lost == "head":
            head_of(file).unlink()
        elif lost == "file":
            file.unlink()
        else:
            file.write_bytes(b"".join(kept[0].splitlines(True)[:2]))

    told = {"lines": made[1:], "head": [], "file": made}[lost]
    # Receipts may be of one work of several: only what reaches the head is all of it.
    for receipts in (told[:0], told[:-1], told) if lost == "lines" else (told,):
        damage()
        added = repair(file, receipts=receipts)
        found = Ledger(file).worst_case(1e-5)
        if lost == "lines" and receipts == told:
            assert list(added) == told
            assert file.read_bytes() == kept[0]
            continue
        assert [*added[:-1]] == receipts
        if budget is None or lost != "lines":
            assert found is None
            continue
        assert found is not None
        assert found.epsilon > 0.998
        with pytest.raises(BudgetExceededError):
            buy(Ledger(file), gaussian(0.1), "network")
    damage()
    assert list(repair(file, told)) == told or lost == "head"  # the owner's word


def test_a_budget_is_raised_on_record_and_survives_a_loss(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    ledger = Ledger.at(file, budget=Budget(1.0))
    buy(ledger, gaussian(0.2), "network")
    old = file.read_bytes()
    with pytest.raises(BudgetExceededError, match="--budget E` raises it"):
        buy(ledger, gaussian(0.6), "network")
    ledger.raise_budget(3.0)
    buy(ledger, gaussian(0.6), "network")
    again = Ledger(file)
    assert again.budget == ledger.budget == Budget(3.0)
    assert again.book().raised[0].endswith("Z 3.0 1e-05")
    assert again.content() == file.read_bytes()
    for lower in (3.0, 2.0, math.inf):
        with pytest.raises(ValueError, match=r"it is only raised|budget|epsilon"):
            again.raise_budget(lower)
    with pytest.raises(ValueError, match="no budget to raise"):
        Ledger().raise_budget(1.0)
    file.write_bytes(old)  # an old copy, of before it was raised
    repair(file)
    found = Ledger(file).worst_case(1e-5)
    assert found is not None
    assert 2.99 < found.epsilon <= 3.0


def test_a_plan_s_works_together_cost_the_budget() -> None:
    plan = left.divided(Book("a"), Budget(2.0), 4)
    noises = [gaussian_distance(own, 1e-5) ** -1 for own, _ in plan]
    events = [SampledGaussian(noise_multiplier=one) for one in noises]
    for at, (_, whole) in enumerate(plan, start=1):
        assert left.total(Book("a"), 1e-5, *events[:at]) == pytest.approx(whole, rel=0.006)


def test_lost_lines_where_hardly_anything_was_left_leave_no_guarantee(tmp_path: Path) -> None:
    ledger = Ledger.at(tmp_path / "ledger.jsonl", budget=Budget(1.0))
    whole = left.gaussian(ledger.book(), 1.0, 1e-5)
    ledger.charge(Entry(kind="steps", events=(whole,)))
    assert ledger.path is not None
    head_of(ledger.path).unlink()
    (lost,) = repair(ledger.path)
    assert lost.events is None

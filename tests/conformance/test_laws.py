"""What holds for everything that leaves a table, whatever door it takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from doors import DELTA, DOORS, PLENTY, Door, Place, guide_fit
from gone import Ran
from program import run
from watch import Watch, book, candidates, files, holds, read, rival, same_secrets, watching

import bdpvi
from bdpvi import BayesianDP, Budget, Ledger, TooFewRecordsError
from bdpvi.noise.keys import Key
from bdpvi.privacy import left
from bdpvi.privacy.cost import Kind
from bdpvi.releases.transaction import Before, Plan, Transaction, seal

pytestmark = pytest.mark.usefixtures("fresh_store")

PUBLISHED = [door for door in DOORS if door.out]
KEYED = [door for door in DOORS if door.keyed]


def of(doors: list[Door]) -> pytest.MarkDecorator:
    """Return the mark of a law that only some doors can have."""
    return pytest.mark.parametrize("door", doors, ids=lambda door: door.name)


def spent(place: Place) -> float:
    """Return the worst-case ε of everything in the ledger."""
    found = Ledger.at(place.ledger).worst_case(DELTA)
    assert found is not None
    return found.epsilon


def state(place: Place) -> dict[Path, object]:
    """Return the files, and of the ledger what was charged, if it can be read."""
    result: dict[Path, object] = dict(files(place.folder))
    if read(place.ledger):
        head = place.ledger.with_name(f"{place.ledger.name}.head")
        result |= {place.ledger: book(place.ledger).charges, head: head.exists()}
    return result


def refused(door: Door, place: Place, *words: str) -> Watch:
    """Go through a door that must be shut: nothing is drawn, charged or written."""
    losses = place.ledger.with_name(f"{place.ledger.name}.losses")  # of a fit that is read again
    before, secret = state(place), (place.secret, place.folder / "fit", losses)
    with watching(place) as seen, pytest.raises(ValueError) as found:  # noqa: PT011
        door(place)
    after = state(place)
    assert not seen.drawn
    assert not place.out.exists()
    assert before == {path: after.get(path) for path in before}
    for path in after.keys() - before.keys():
        assert any(path.is_relative_to(one) for one in secret), path
    for word in words:
        assert word in str(found.value), found.value
    return seen


# --- charged before it is drawn -------------------------------------------------------------------


def test_noise_is_paid_for_in_the_file_before_it_is_drawn(ran: Ran) -> None:
    assert ran.seen.drawn
    if ran.door.keyed:
        assert not ran.seen.unpaid
    else:
        assert len(ran.seen.sums) > 2
        assert all(drawn <= charged for drawn, charged in ran.seen.sums)


# --- whom ε protects ------------------------------------------------------------------------------


@of([door for door in DOORS if door.name != "federation"])  # whose ledger is that of clients
def test_a_ledger_of_persons_takes_no_rows_of_nobody(door: Door, tmp_path: Path) -> None:
    """Nothing bounds how many rows a person has, and the ledger's ε is for all of them."""
    place = Place.within(tmp_path / "a")
    Ledger.at(place.ledger, unit="who", rows_per_unit=3)
    _ = place.table
    door.prepare(place)
    refused(door, place, "at most 3, of one person ('who'): say whose")


# --- budgets --------------------------------------------------------------------------------------


def price(ran: Ran) -> float:
    """Return the ε that a budget must have for one call; a Bayesian one comes to 4.5 % of it."""
    assert ran.promised is not None
    found = ran.promised.epsilon
    if ran.door.keyed:
        return found if ran.promised.kind is Kind.WORST_CASE else 0.95 * found
    return min(found, spent(ran.place))


def test_a_budget_that_is_a_percent_too_small_is_refused(ran: Ran, tmp_path: Path) -> None:
    place, limit = Place.within(tmp_path / "a"), Budget(0.99 * price(ran), DELTA)
    ran.door.open(place, limit)
    if ran.door.keyed:
        refused(ran.door, place)
        return
    with watching(place) as seen, pytest.raises(ValueError, match="over the budget"):
        ran.door(place)  # at the step that is too much
    assert all(drawn <= charged for drawn, charged in seen.sums)
    assert 0 < spent(place) <= limit.epsilon


class All:
    """What spends all that is left of a budget."""

    step = "all"

    def plan(self, before: Before) -> Plan[None]:
        limit = before.book.budget
        assert limit is not None
        whole = before.whole or before.book
        event = left.gaussian(whole, limit.epsilon, limit.delta)
        return Plan(kind="release", what="all", events=(event,), settings=None)

    def draw(self, plan: Plan[None], key: Key) -> None:
        """Draw nothing."""


def spend_all(path: Path) -> None:
    """Try to spend what is left, as another process does; it may be nothing."""
    try:
        Transaction(Ledger(path)).perform(All())
    except ValueError:
        return


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_others_who_spend_at_any_moment_bring_no_table_over_its_budget(
    ran: Ran, every: bool, tmp_path: Path
) -> None:
    limit = Budget(1.3 * price(ran), DELTA)
    last = 1 + ran.turns
    for turn in range(1, last) if every else [DOORS.index(ran.door) * last // len(DOORS)]:
        place = Place.within(tmp_path / str(turn))
        ran.door.open(place, limit)
        with rival(place.ledger, turn, lambda place=place: spend_all(place.ledger)):  # type: ignore[misc]
            try:
                ran.door(place)
            except ValueError:
                assert not place.out.exists()
        total = Ledger(place.ledger).worst_case(DELTA)
        if total is None:  # a Bayesian release, which nothing else was spent beside
            assert len(book(place.ledger).charges) == 1
        else:
            assert total.epsilon <= limit.epsilon


# --- a ledger that lacks something ----------------------------------------------------------------


def emptied(ledger: Path, head: Path) -> None:
    ledger.write_bytes(b"")


def missing(ledger: Path, head: Path) -> None:
    ledger.unlink()


def without_its_head(ledger: Path, head: Path) -> None:
    head.unlink()


def an_old_copy(ledger: Path, head: Path) -> None:
    ledger.write_bytes(ledger.read_bytes().splitlines(keepends=True)[0])


def cut_at_its_end(ledger: Path, head: Path) -> None:
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))


DAMAGES = (emptied, missing, without_its_head, an_old_copy, cut_at_its_end)
"""One for each door in turn, so several of every kind of door."""


@pytest.mark.parametrize(
    ("door", "damage"),
    [*zip(DOORS, cycle(DAMAGES))],
    ids=lambda one: getattr(one, "name", None) or one.__name__,
)
def test_a_damaged_ledger_opens_no_door_and_its_repair_leaves_nothing(
    ran: Ran, damage: Callable[[Path, Path], None]
) -> None:
    place = ran.place.again(1)
    damage(place.ledger, place.ledger.with_name(f"{place.ledger.name}.head"))
    refused(ran.door, place, f"bdpvi account {place.ledger} --repair")
    run("account", place.ledger, "--repair")
    assert len(book(place.ledger).charges) >= 1
    if ran.door.keyed:
        refused(ran.door, place)
    else:
        with contextlib.suppress(ValueError):  # 0.2 % of the budget may be left for a step
            ran.door(place)
        total = Ledger(place.ledger).worst_case(DELTA)
        assert total is None or total.epsilon <= PLENTY.epsilon
    ran.restored()


def test_a_last_line_counts_without_its_newline(ran: Ran) -> None:
    place = ran.place
    whole = Ledger(place.ledger).entries()
    place.ledger.write_bytes(place.ledger.read_bytes()[:-1])
    assert Ledger(place.ledger).entries() == whole
    Ledger(place.ledger).bind("0")
    assert Ledger(place.ledger).entries() == whole
    ran.restored()


# --- secrets --------------------------------------------------------------------------------------


@of(PUBLISHED)
def test_nothing_secret_is_published(ran: Ran) -> None:
    place, public = ran.place, files(ran.place.out)
    assert public
    lines = place.table.read_bytes().splitlines()[1:]
    for content in public.values():
        assert book(place.ledger).id.encode() not in content
        assert not any(holds(content, secret) for secret in ran.seen.secrets)
        assert not any(line in content for line in lines)


@of(PUBLISHED)
def test_a_secret_place_among_what_is_shared_is_refused(ran: Ran, tmp_path: Path) -> None:
    place = ran.place.again(2)
    shared = ran.door.published(place) if ran.door.out == "." else place.out
    (tmp_path / "link").symlink_to(place.folder)
    for inside in (
        shared / "secret",
        shared / "a" / "b",
        tmp_path / "link" / shared.name / "secret",
    ):
        refused(ran.door, replace(place, secret=inside), "secret=", "shared")
    assert not shared.exists()


@of(PUBLISHED)
def test_a_ledger_among_what_is_shared_is_refused(ran: Ran) -> None:
    place = ran.place.again(3)
    with pytest.raises(ValueError, match=r"ledger=.*shared"):
        ran.door(replace(place, ledger=place.out / "people.jsonl"))
    assert not files(place.secret)
    assert not place.out.exists()


def test_what_is_kept_tells_nothing_of_the_noise(ran: Ran) -> None:
    """Whoever has ledger, secret folder and release, and tries all there as a key, fails."""
    place, seals = ran.place, [charge.seal for charge in book(ran.place.ledger).charges]
    for path, content in files(place.ledger.parent).items():
        if path.suffix == ".csv":
            continue
        assert not any(holds(content, secret) for secret in ran.seen.secrets), path
        if len(content) < 100_000:
            tried = candidates(content)
            assert not any(seal(Key(one)) in seals for one in tried), path
    if ran.door.out:  # while the work is going on its secret is there, so the search can find it
        found = b"".join(ran.working.values())
        assert any(holds(found, secret) for secret in ran.seen.secrets)
        assert candidates(found) & ran.seen.secrets


# --- the same work and another --------------------------------------------------------------------


def drawn(door: Door, place: Place, share: float = 1.0) -> set[bytes]:
    """Return what all noise follows from, with the same secret of the work each time."""
    if not place.ledger.exists():
        with same_secrets():
            door.open(place)
    with same_secrets(), watching(place) as seen:
        door(place, share)
    return set(seen.drawn)


@of(KEYED)
def test_the_same_work_draws_the_same_and_another_price_nothing_of_it(
    door: Door, tmp_path: Path
) -> None:
    place = Place.within(tmp_path / "a")
    first = drawn(door, place)
    (tmp_path / "a").rename(tmp_path / "first")
    assert drawn(door, Place.within(tmp_path / "a")) == first
    # Another price, with the same secret and ledger.
    (tmp_path / "a").rename(tmp_path / "second")
    share = 0.5 if door.name == "release, Bayesian" else 0.9  # whose temperatures are on a grid
    assert not drawn(door, Place.within(tmp_path / "a"), share) & first


# --- promises -------------------------------------------------------------------------------------


def test_the_receipt_names_what_the_plans_rest_on(ran: Ran) -> None:
    assert ran.seen.plans
    for plan in ran.seen.plans:
        assert set(plan.assumptions) <= set(ran.promised.assumptions if ran.promised else ())


@of([door for door in DOORS if door.few])
def test_a_refusal_by_a_noisy_number_is_of_a_number_that_was_paid_for(
    door: Door, tmp_path: Path
) -> None:
    place = Place.within(tmp_path / "a", rows=30)
    door.open(place)
    with (
        watching(place) as seen,
        pytest.raises(TooFewRecordsError, match=r"about [0-9.e+]+ records"),
    ):
        door(place)
    assert seen.drawn
    assert not seen.unpaid
    assert len(book(place.ledger).charges) == len(seen.plans) == 1
    assert not book(place.ledger).opened  # what was set aside for the rest is free again
    assert spent(place) < 0.3
    assert not place.out.exists()


def test_after_a_bayesian_release_no_guarantee_changes_its_kind(
    door: Door, went: Callable[[Door], Ran], tmp_path: Path
) -> None:
    usual, place = went(door).promised, Place.within(tmp_path / "a")
    door.open(place, None)
    fit = guide_fit(place)
    bdpvi.release(fit, epsilon=0.5, guarantee=BayesianDP())
    before = book(place.ledger).charges
    try:
        found = door(place)
    except ValueError:
        if door.keyed:  # steps are charged, and then nothing is promised of them
            assert book(place.ledger).charges == before
        return
    assert found is not None
    assert usual is not None
    assert found.kind == usual.kind


def test_noisy_counts_at_two_prices_share_no_noise() -> None:
    """From two counts with one noise at two scales the exact number follows."""
    from bdpvi.releases.mechanisms import CountRows

    for records in (437, 450, 463):
        found = []
        for epsilon in (1.0, 1.5):
            count = CountRows(records, 0.01, epsilon, DELTA)
            work = Transaction(Ledger(), Key.of_seed(records), "facts", "work")
            plan, _, _ = work.charge(count)
            found.append((work.perform(count), plan.settings))
        (one, wide), (two, narrow) = found
        assert abs((one * narrow - two * wide) / (narrow - wide) - records) > 1


def test_noise_is_of_the_unit_and_of_the_ledger() -> None:
    from bdpvi.releases.mechanisms import CountRows

    def noise(ledger: Ledger) -> float:
        return Transaction(ledger, Key(bytes(32))).perform(CountRows(0, 1e-6, 1.0, DELTA))

    assert len({noise(Ledger()), noise(Ledger()), noise(Ledger(unit="who", rows_per_unit=1))}) == 3

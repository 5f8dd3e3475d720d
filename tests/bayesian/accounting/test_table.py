"""The Bayesian ε of everything that was released from a table, and the losses that it needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accounts import bayes

from bdpvi.bayesian.accounting import record_losses
from bdpvi.bayesian.accounting.accountant import cost_of
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.accounting.record_losses import RecordLosses
from bdpvi.bayesian.accounting.table import TableCost, total
from bdpvi.privacy import gaussian_dp, worst_case
from bdpvi.privacy.conceivable import Influence
from bdpvi.privacy.entry import Charge, Entry
from bdpvi.privacy.event import Event
from bdpvi.privacy.events import ExponentialMechanism, SampledGaussian, Threshold
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.perturbed_objective import PerturbedObjective

DELTA = 1e-4
INFLUENCE = Influence(added=False, columns=2, shift=0.05, spread=0.01, share=0.01)


def panel(ids: torch.Tensor, seed: int = 0, *, equal: bool = False, **more: Any) -> Panel:
    """Return pairs of which each record has its own, whatever the others are."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.rand(2, 20_000, 2, generator=generator, dtype=torch.float64)
    r, b2 = whole[0, ids], 1e-3 * whole[1, ids] ** 2
    if equal:
        return Panel("remove", ids, GaussianPairs(torch.ones_like(r), b2), 0.002, **more)
    return Panel("remove", ids, GaussianPairs(0.996 + 0.008 * r, b2), influence=INFLUENCE, **more)


def losses(one: Panel, made: str = "", records: int | None = None, **more: Any) -> RecordLosses:
    size = len(one.ids) if records is None else records
    return RecordLosses((one,), size, dict.fromkeys((1.0, 2.0), 1e-12), made, **more)


def charged(
    *fits: RecordLosses,
    others: tuple[Event, ...] = (),
    draws: int = 1,
    ledger: Ledger | None = None,
) -> Ledger:
    """Return a ledger with draws from each fit."""
    ledger = ledger or Ledger()
    for at, one in enumerate(fits):
        one.keep(ledger, f"fit{at}")
        entry = Entry(kind="draws", of=f"fit{at}", charge=Charge(draws, 1.0), events=None)
        ledger.charge(entry)
    for event in others:
        ledger.charge(Entry(kind="release", of="other", events=(event,)))
    return ledger


def epsilon(ledger: Ledger, delta: float = DELTA) -> float:
    return bayes(total(ledger, delta, ledger.worst_case(delta))).epsilon


def draws(one: Panel, count: int = 1, rounding: float = 1e-12) -> GuideDraws:
    return GuideDraws((one,), count, 1.0, rounding=count * rounding)


ALL = torch.arange(1000)


@pytest.mark.parametrize("equal", [True, False])
def test_two_fits_alike_cost_what_one_costs_twice(equal: bool) -> None:
    one, two = (losses(panel(ALL, equal=equal), "the same") for _ in range(2))
    twice = epsilon(charged(one, draws=2))
    assert epsilon(charged(one, two)) == pytest.approx(twice, rel=1e-9)
    assert twice > epsilon(charged(one))
    # Nothing says that these are one function of the data: only the range is a bit larger.
    other = losses(panel(ALL, equal=equal), "another")
    assert epsilon(charged(one, other)) == pytest.approx(twice, rel=1e-9 if equal else 0.6)
    assert epsilon(charged(one, other)) >= twice * (1 - 1e-9)


def test_two_fits_cost_more_than_either_in_any_order_and_as_joined_by_hand() -> None:
    one, two = panel(ALL), panel(ALL, 1)
    found = epsilon(charged(losses(one), losses(two)))
    assert found == epsilon(charged(losses(two), losses(one)))
    assert found == bayes(cost_of([draws(one), draws(two)], DELTA)).epsilon
    assert found > max(epsilon(charged(losses(each))) for each in (one, two))
    shuffled = two.select(ALL[torch.randperm(1000)])
    assert epsilon(charged(losses(one), losses(shuffled))) == pytest.approx(found, rel=1e-9)


def test_who_was_absent_does_not_dilute() -> None:
    """Of those in both the product counts; who came later has a mean of their own."""
    early, late, both = ALL[:600], ALL, ALL[:600]
    first, second = panel(early, equal=True), panel(late, 1, equal=True)
    table = TableCost.of(charged(losses(first), losses(second)))
    assert [account.sample_size for account in table.accounts] == [600, 400]
    joined = cost_of([draws(first), draws(second.select(both))], DELTA)
    newer = cost_of([draws(second.select(ALL[600:]))], DELTA)
    expected = max(bayes(joined).epsilon, bayes(newer).epsilon)
    assert epsilon(charged(losses(first), losses(second))) == expected
    assert epsilon(charged(losses(second), losses(first))) == expected
    # A few who came later count as the others do.
    table = TableCost.of(charged(losses(panel(ALL[:996])), losses(second)))
    assert [account.sample_size for account in table.accounts] == [996]


def test_disjoint_and_overlapping_parts() -> None:
    parts = [ALL[(ALL % 3).ne(at)] for at in range(3)]  # each record is in two of three
    fits = [losses(panel(ids, at, equal=True)) for at, ids in enumerate(parts)]
    table = TableCost.of(charged(*fits))
    assert [len(account.events) for account in table.accounts] == [2, 2, 2]
    # But for the last: one who came later counts as the others do.
    assert sum(account.sample_size for account in table.accounts) == 999
    # A sample of the records does not say who was absent: those in both samples count.
    sampled = [losses(panel(ids, at, equal=True), records=1000) for at, ids in enumerate(parts)]
    (account,) = TableCost.of(charged(*sampled[:2])).accounts
    assert account.sample_size == len(ALL[ALL % 3 == 2])
    with pytest.raises(ValueError, match="the fits share 0 reference records"):
        TableCost.of(charged(*sampled))


GAUSSIAN = SampledGaussian(noise_multiplier=20.0, rounding=1e-12)


def test_gaussian_mechanisms_join_every_records_product() -> None:
    one = panel(ALL)
    b2 = torch.full((1000, 1), 1 / 400, dtype=torch.float64)
    constant = Panel("remove", ALL, GaussianPairs(torch.ones_like(b2), b2), 1 / 400)
    joined = bayes(cost_of([draws(one), draws(constant)], DELTA)).epsilon
    found = epsilon(charged(losses(one), others=(GAUSSIAN,)))
    assert found == pytest.approx(joined, rel=1e-9)
    assert found > max(epsilon(charged(losses(one))), gaussian_dp.gaussian_epsilon(1 / 400, DELTA))
    # A choice by noisy scores is no worse than a Gaussian mechanism, and counts as that.
    chosen = ExponentialMechanism(0.05 / math.sqrt(math.pi / 8))
    assert epsilon(charged(losses(one), others=(chosen,))) == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize(
    "other",
    [
        PerturbedObjective(noise_multiplier=20.0, curvature=0.1),
        SampledGaussian(noise_multiplier=20.0, rate=0.1, steps=10),
        Threshold(1e-6),
    ],
    ids=lambda other: type(other).__name__,
)
def test_what_no_gaussian_dominates_adds_its_epsilon_and_delta(other: Event) -> None:
    one = panel(ALL)
    ledger = charged(losses(one), others=(GAUSSIAN, other))
    most = worst_case.epsilon([other], DELTA / 2)
    assert most is not None
    without = epsilon(charged(losses(one), others=(GAUSSIAN,)), DELTA / 2)
    found = epsilon(ledger)
    assert found == pytest.approx(without + most.epsilon, rel=1e-12)
    table = TableCost.of(ledger)
    assert table.exposure(DELTA) is None


def test_counts_do_not_know_who_is_who() -> None:
    counts = torch.zeros(131_073, dtype=torch.int64)
    counts[60_000] = 1000
    one = losses(Panel.of_counts("remove", counts, 0.01))
    assert epsilon(charged(one, others=(GAUSSIAN,))) > epsilon(charged(one))
    with pytest.raises(ValueError, match="cannot be matched with those of other fits"):
        epsilon(charged(one, losses(panel(ALL))))
    ledger = charged(losses(panel(ALL)))
    one.keep(ledger, "counted")
    drawn = Entry(kind="draws", of="counted", charge=Charge(1, 1.0), events=(GAUSSIAN,))
    ledger.charge(drawn)  # with a worst case it counts by that
    assert epsilon(ledger) == epsilon(charged(losses(panel(ALL)), others=(GAUSSIAN,)))


@pytest.mark.parametrize("of", ["fit0", "shop"])
def test_constants_that_a_fit_was_made_with_leave_its_worst_case(of: str) -> None:
    bought = Entry(kind="constants", of=of, events=(GAUSSIAN,), purpose="constants", seal=64 * "a")
    one = losses(panel(ALL), purchases=(bought.purchase,) if of == "shop" else ())
    ledger = charged(one)
    ledger.charge(bought)
    with pytest.raises(
        ValueError, match="depends on preprocessing bounds estimated privately from this table"
    ):
        total(ledger, DELTA, None)
    bounded = Entry(kind="draws", of="bounded", charge=Charge(1, 1.0), events=(GAUSSIAN,))
    bought = Entry(**{**vars(bought), "of": "bounded"})
    alone = Ledger()
    ledger = charged(losses(panel(ALL)), others=(GAUSSIAN,))
    for each in (alone, ledger):
        one.keep(each, "bounded")
        each.charge(bounded)
        each.charge(bought)
    worst = alone.worst_case(DELTA)
    found = total(alone, DELTA, worst)
    assert (found.worst_case, found.bayesian) == (worst, None)
    assert "of 1 draw at temperature 1, its cost to each record depends on" in str(found)
    assert epsilon(ledger) == epsilon(charged(losses(panel(ALL)), others=3 * (GAUSSIAN,)))


def test_no_total_says_why_where_a_worst_case_is_known() -> None:
    ledger = charged(losses(panel(ALL)))
    ledger.charge(Entry(kind="release", of="lost", events=None))
    with pytest.raises(ValueError, match="no Bayesian total is known: of release, it has no worst"):
        total(ledger, DELTA, None)
    worst = worst_case.epsilon([GAUSSIAN], DELTA)
    found = total(ledger, DELTA, worst)
    assert found.bayesian is None
    assert "no Bayesian total is known" in str(found)
    rows = Ledger(unit="who", rows_per_unit=2)
    with pytest.raises(ValueError, match="has up to 2"):
        epsilon(charged(losses(panel(ALL)), ledger=rows))
    client = SampledGaussian(noise_multiplier=9.0, unit="client")
    with pytest.raises(ValueError, match="to add or remove one client"):
        TableCost.of(charged(losses(panel(ALL)), others=(client,)))


def test_ids_of_different_records_are_noticed() -> None:
    x, y = torch.rand(300, 2), torch.rand(300).round()
    ids = ALL[:300]

    def of(
        rows: torch.Tensor, features: torch.Tensor = x, target: torch.Tensor = y
    ) -> RecordLosses:
        return losses(panel(ids).with_marks(ids, features[rows], target[rows]))

    epsilon(charged(of(ids), of(ids, 2 * x)))  # encoded anew
    epsilon(charged(of(ids), of(ids, x, 1 - y)))  # another target
    with pytest.raises(ValueError, match="different records under the same ids"):
        epsilon(charged(of(ids), of(ids.flip(0))))


# --- files ----------------------------------------------------------------------------------------


def test_losses_survive_in_a_secret_folder(tmp_path: Path) -> None:
    ledger = Ledger.at(tmp_path / "people.jsonl")
    one = losses(panel(ALL, error=torch.full((1000,), 1e-9).double()), "made", purchases=("a",))
    counts = torch.zeros(131_073, dtype=torch.int64)
    counts[60_000:60_004] = 5
    two = losses(Panel.of_counts("remove", counts, 1.0))
    before = epsilon(charged(one, ledger=ledger))
    two.keep(ledger, "two")
    again = Ledger(tmp_path / "people.jsonl")
    assert epsilon(again) == before
    for name, made in (("fit0", one), ("two", two)):
        found = record_losses.losses_of_fit(again, name, 1.0, 2.0)
        assert found.panels[0].influence == made.panels[0].influence
        assert (found.records, dict(found.roundings), found.made, found.purchases) == (
            made.records, dict(made.roundings), made.made, made.purchases,
        )  # fmt: skip
        assert (
            record_losses.tensors_of(found.panels).keys()
            == record_losses.tensors_of(made.panels).keys()
        )
    assert record_losses.losses_of_fit(again, "fit0").same(one)
    folder = record_losses.file_of(tmp_path / "people.jsonl", "two").parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no such file": lambda file: file.unlink(),
    "changed or cut off": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "another fit": lambda file: file.write_bytes(file.with_name("fit1").read_bytes()),
}


@pytest.mark.parametrize("words", DAMAGES)
def test_lost_losses_are_refused_until_they_are_put_back(words: str, tmp_path: Path) -> None:
    path = tmp_path / "people.jsonl"
    before = epsilon(charged(losses(panel(ALL)), losses(panel(ALL, 1)), ledger=Ledger.at(path)))
    file = record_losses.file_of(path, "fit0")
    copy = file.read_bytes()
    DAMAGES[words](file)
    with pytest.raises(ValueError, match=rf"fit0.*{words}.*Put it back") as refused:
        epsilon(Ledger(path))
    assert str(file) in str(refused.value)
    file.write_bytes(copy)
    assert epsilon(Ledger(path)) == before
    with pytest.raises(ValueError, match="Put the newest one back"):
        record_losses.losses_of_fit(Ledger(path), "fit0", 1.0, 3.0)
    with pytest.raises(ValueError, match="another process made"):
        record_losses.losses_of_fit(Ledger(), "fit0")

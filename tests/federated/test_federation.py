"""The server of federated learning: what a round releases, refuses and costs, and its ledger."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from accounts import path_of, worst_of
from torch import Tensor

from bdpvi._ground.types import Budget, BudgetExceededError
from bdpvi.federated.federated import Federation, Message, Released
from bdpvi.federated.rounds import SERVER_OF_UPDATES, Rounds
from bdpvi.noise.keys import Key
from bdpvi.privacy.entry import Entry
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.norms import NormCounts
from bdpvi.privacy.sampled_steps import GaussianAccountant, PrivacyLossAccountant
from bdpvi.privacy.worst_case import epsilon
from bdpvi.releases.clipping import MARGIN

F64 = torch.float64
N, SIZE, C, Z, Q = 40, 3, 2.0, 1.5, 0.5
CLIPPED = C * (1 - MARGIN)
"""The norm of what is clipped, so that rounding moves no sum by more than C."""


def rounds(**options: Any) -> Rounds:
    given = dict(clients=N, size=SIZE, clip=C, noise_multiplier=Z, client_rate=Q, seed=7)
    return Rounds(**{**given, **options})


def updates(clients: tuple[int, ...], scale: float = 0.3) -> dict[int, Tensor]:
    return {k: scale * torch.tensor([1.0, -k / N, 0.5], dtype=F64) for k in clients}


def round_of(made: Rounds, change: Any = None) -> Released:
    """Return one round after ``change`` has had its way with the answers and the asked clients."""
    federation = Federation(made)
    asked = federation.sampled(1)
    answers = [Message(k, 1, one) for k, one in updates(asked).items()]
    return federation.aggregate(1, answers if change is None else change(answers, asked))


def noise_of(released: Released, total: Tensor | float = 0.0, q: float = Q) -> Tensor:
    assert released.update is not None
    return released.update * q * N - total


def test_an_error_of_a_percent_in_noise_or_divisor_is_seen() -> None:
    made = rounds(size=200_000, noise_multiplier=50.0)
    federation = Federation(made)
    asked = federation.sampled(1)
    one = torch.full((made.size,), C / 1000, dtype=F64)
    released = federation.aggregate(1, [Message(k, 1, one) for k in asked])
    assert released.update is not None
    assert float(released.update.std()) == pytest.approx(50.0 * C / (Q * N), rel=5e-3)
    quiet = round_of(rounds(noise_multiplier=1e-9))
    assert quiet.update is not None
    told = sum(updates(Federation(made).sampled(1)).values())
    torch.testing.assert_close(quiet.update, torch.as_tensor(told) / (Q * N))


@pytest.mark.parametrize("share", [0, 1, 5])
def test_who_answers_changes_neither_noise_nor_divisor(share: int) -> None:
    everybody = round_of(rounds())
    asked = tuple(everybody.norms)
    whole = noise_of(everybody, torch.stack(list(updates(asked).values())).sum(0))
    some = round_of(rounds(), lambda answers, _: answers[:share])
    assert tuple(some.norms) == asked[:share]
    part = sum((one for one in updates(asked[:share]).values()), torch.zeros(SIZE, dtype=F64))
    grid = 2.0 ** math.floor(math.log2(Z * C / 32))
    # The same vector, but for the lattice that the noisy sum is rounded to.
    assert float((noise_of(some, part) - whole).abs().max()) <= grid
    assert some.refused == dict.fromkeys(asked[share:], "lost: no answer")


def test_an_empty_round_releases_noise_and_is_charged() -> None:
    made = rounds(client_rate=1e-9, size=10_000)
    federation = Federation(made)
    assert federation.sampled(1) == ()
    released = federation.aggregate(1, [])
    deviation = float(noise_of(released, q=1e-9).std())
    assert deviation == pytest.approx(Z * C, rel=5 / math.sqrt(2 * made.size))
    assert federation.charged == 1
    assert (released.norms, released.refused, released.clipped) == ({}, {}, ())


def test_order_of_arrival_changes_not_a_bit() -> None:
    first, second = round_of(rounds()), round_of(rounds(), lambda answers, _: answers[::-1])
    assert first.update is not None
    assert second.update is not None
    assert torch.equal(first.update, second.update)
    assert first.norms == second.norms


def wrong(update: Tensor | None, number: int = 1) -> Any:
    """Return a change of the first client's answer."""
    return lambda answers, _: [Message(answers[0].client, number, update), *answers[1:]]


BAD = {
    "None": (wrong(None), "lost: no update"),
    "NaN": (wrong(torch.tensor([math.nan, 0, 0])), "not finite"),
    "infinite": (wrong(torch.tensor([0, 0, -math.inf])), "not finite"),
    "too short": (wrong(torch.zeros(SIZE - 1)), "must have size=3"),
    "too long": (wrong(torch.zeros(SIZE + 1)), "must have size=3"),
    "stale": (wrong(torch.ones(SIZE), 0), "stale: answers round 0"),
    "ahead": (wrong(torch.ones(SIZE), 2), "stale: answers round 2"),
    "twice": (lambda answers, _: [answers[0], *answers], "answered twice"),
    "text": (wrong("weights"), "not a tensor"),  # type: ignore[arg-type]
    "complex": (wrong(torch.ones(SIZE) * 1j), "not a tensor of real numbers"),
    "silent": (lambda answers, _: answers[1:], "lost: no answer"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_counts_as_zero_is_named_and_charged(name: str) -> None:
    change, why = BAD[name]
    asked = Federation(rounds()).sampled(1)
    released, without = round_of(rounds(), change), round_of(rounds(), BAD["silent"][0])
    assert list(released.refused) == [asked[0]]
    assert why in released.refused[asked[0]]
    assert asked[0] not in released.norms
    assert released.update is not None
    assert without.update is not None
    assert torch.equal(released.update, without.update)
    distances = released.distances(N)
    assert float(distances[asked[0]]) == 1.0
    assert distances.shape == (N,)


@pytest.mark.parametrize("stranger", ["not asked", "no client"])
def test_who_was_not_asked_is_refused(stranger: str) -> None:
    asked = Federation(rounds()).sampled(1)
    who = N + 5 if stranger == "no client" else next(k for k in range(N) if k not in asked)
    extra = Message(who, 1, torch.ones(SIZE))
    released, plain = round_of(rounds(), lambda a, _: [*a, extra]), round_of(rounds())
    assert released.refused == {who: "was not asked"}
    assert released.update is not None
    assert plain.update is not None
    assert torch.equal(released.update, plain.update)


def test_a_zero_update_counts_with_norm_zero() -> None:
    asked = Federation(rounds()).sampled(1)
    released = round_of(rounds(), wrong(torch.zeros(SIZE)))
    assert released.norms[asked[0]] == 0.0
    assert (released.refused, released.clipped) == ({}, ())
    norms = NormCounts.none(torch.arange(N), torch.tensor([0.25, 1.0]))
    norms = norms.add(released.distances(N))
    assert norms.counts[asked[0]].tolist() == [1, 0]


@pytest.mark.parametrize("size", [C * 1.0001, 50.0, 1e30])
def test_an_oversized_update_is_clipped_and_named(size: float) -> None:
    asked = Federation(rounds()).sampled(1)
    long = torch.tensor([0.0, size, 0.0], dtype=F64)
    released = round_of(rounds(noise_multiplier=1e-9), wrong(long))
    assert released.clipped == (asked[0],)
    assert released.refused == {}
    assert released.norms[asked[0]] == pytest.approx(CLIPPED / C, rel=1e-9)
    assert released.norms[asked[0]] < 1.0
    rest = torch.stack(list(updates(asked[1:]).values())).sum(0)
    assert released.update is not None
    expected = (rest + torch.tensor([0.0, CLIPPED, 0.0])) / (Q * N)
    torch.testing.assert_close(released.update, expected)
    # An update within the clip is not changed.
    assert released.norms[asked[1]] == float(updates(asked)[asked[1]].norm()) / C


def test_coins_are_poisson_secret_and_fresh_in_every_round() -> None:
    federation, other = Federation(rounds(seed=None)), Federation(rounds(seed=None))
    drawn = [federation.sampled(number) for number in range(1, 401)]
    assert drawn != [other.sampled(number) for number in range(1, 401)]
    assert all(list(one) == sorted(set(one)) for one in drawn)
    count = sum(len(one) for one in drawn)
    assert abs(count - 400 * N * Q) < 5 * math.sqrt(400 * N * Q * (1 - Q))
    assert len({len(one) for one in drawn}) > 5  # not a fixed number
    assert Federation(rounds(client_rate=1.0)).sampled(1) == tuple(range(N))


def test_a_share_has_its_part_of_the_variance_to_a_percent() -> None:
    made = rounds(size=200_000, noise_shares=4)
    share = made.share(torch.zeros(made.size), Key.of_seed(1))
    assert float(share.std()) == pytest.approx(Z * C / 2, rel=5e-3)


def test_messages_with_shares_are_summed_over_the_expected_number() -> None:
    released = round_of(rounds(noise_shares=2))
    assert released.update is not None
    told = torch.stack(list(updates(Federation(rounds()).sampled(1)).values())).sum(0)
    torch.testing.assert_close(released.update, told / (Q * N))


def test_shares_add_up_to_the_noise_of_the_round() -> None:
    made = rounds(size=20_000, client_rate=1.0, noise_shares=N, seed=None)
    federation = Federation(made)
    asked = federation.sampled(1)
    zero = torch.zeros(made.size)
    released = federation.aggregate(1, [Message(k, 1, made.share(zero)) for k in asked])
    assert released.update is not None
    deviation = float((released.update * N).std())
    assert deviation == pytest.approx(Z * C, rel=5 / math.sqrt(2 * made.size))
    own = made.share(torch.full((made.size,), 100.0))
    assert float(own.std()) == pytest.approx(Z * C / N**0.5, rel=5 / math.sqrt(2 * made.size))
    assert float(own.mean()) == pytest.approx(C / made.size**0.5, abs=5 * Z * C / N**0.5 / 141)

    # One share is missing: nothing is released, and it is charged.
    federation.sampled(2)
    short = federation.aggregate(2, [Message(k, 2, made.share(zero)) for k in asked[1:]])
    assert short.update is None
    assert (short.norms, federation.charged) == ({}, 2)
    assert bool((short.distances(N) == 1).all())
    with pytest.raises(ValueError, match="noise_shares is None"):
        rounds().share(zero)


def rounds_in(path: Path) -> int:
    return sum(entry.count for entry in Ledger(path).entries())


def test_a_restarted_server_loses_and_doubles_no_charge(tmp_path: Path) -> None:
    path = tmp_path / "clients.jsonl"
    first = Federation(rounds(), Ledger.at(path))
    for number in (1, 2):
        first.sampled(number)
        assert rounds_in(path) == number  # before anybody is asked
        first.aggregate(number, [])
    asked = first.sampled(3)  # and the server dies
    again = Federation(rounds(), Ledger(path))
    assert (again.charged, again.next_round) == (3, 4)
    late = [Message(k, 3, torch.ones(SIZE)) for k in asked]
    with pytest.raises(ValueError, match="round=3 is not open"):
        again.aggregate(3, late)
    with pytest.raises(ValueError, match="round=3 was charged"):
        again.sampled(3)
    assert again.charged == 3
    now = again.sampled(4)
    released = again.aggregate(4, late)
    assert all("stale" in released.refused[k] for k in now if k in asked)
    assert all("was not asked" in released.refused[k] for k in asked if k not in now)
    assert (again.charged, rounds_in(path)) == (4, 4)
    # The dead server wakes up: it neither draws nor writes.
    with pytest.raises(ValueError, match="another server uses it"):
        first.sampled(4)
    assert (first.charged, rounds_in(path)) == (3, 4)
    whole = Federation(rounds())
    for _ in range(4):
        whole.sampled(whole.next_round)
    assert again.worst_case(1e-5) == whole.worst_case(1e-5)
    assert again.event().steps == 4


def test_federations_of_one_ledger_add_up_and_no_copy_has_a_budget_of_its_own(
    tmp_path: Path,
) -> None:
    ledger = Ledger.at(tmp_path / "clients.jsonl")
    one, other = (Federation(rounds(noise_multiplier=z), ledger) for z in (2.0, 3.0))
    for federation in (one, one, other):
        federation.sampled(federation.next_round)
    assert (one.charged, other.charged) == (2, 1)
    together = epsilon([one.event(), other.event()], 1e-5)
    assert together is not None
    for federation in (one, other):
        assert federation.worst_case(1e-5).epsilon == pytest.approx(together.epsilon, rel=1e-12)
    copied = copy.deepcopy(one)
    copied.sampled(3)
    with pytest.raises(ValueError, match="another server uses it"):
        one.sampled(3)
    with pytest.raises(ValueError, match="keep it in a file"):
        copy.deepcopy(Federation(rounds())).sampled(1)


def test_a_ledger_of_records_is_not_one_of_clients() -> None:
    ledger = Ledger()
    ledger.charge(Entry(kind="steps", events=(SampledGaussian(noise_multiplier=1.0),)))
    with pytest.raises(ValueError, match="different neighbours"):
        Federation(rounds(), ledger)


def test_an_open_round_is_over_when_the_next_is_drawn_and_a_round_is_aggregated_once() -> None:
    federation = Federation(rounds())
    federation.sampled(1)
    with pytest.raises(ValueError, match=r"round=5 passes over another.*next_round=2"):
        federation.sampled(5)
    federation.sampled(2)
    for number in (1, 3):
        with pytest.raises(ValueError, match=f"round={number} is not open"):
            federation.aggregate(number, [])
    federation.aggregate(2, [])
    with pytest.raises(ValueError, match="round=2 is not open"):
        federation.aggregate(2, [])
    assert (federation.charged, federation.next_round) == (2, 3)


@pytest.mark.parametrize("shares", [None, 5])
@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_calibrated_noise_is_the_least_to_a_percent(rate: float, shares: int | None) -> None:
    made = Rounds.calibrated(
        epsilon=2.0, delta=1e-5, rounds=30, client_rate=rate, clients=N, size=SIZE, clip=C,
        noise_shares=shares,
    )  # fmt: skip
    # With shares the number of answers shows, so coins gain nothing.
    paid = rate if shares is None else 1.0

    def cost(noise: float) -> float:
        if paid == 1:
            return GaussianAccountant().epsilon(noise, 1.0, 30, 1e-5)
        return PrivacyLossAccountant().epsilon(noise, paid, 30, 1e-5)

    assert cost(made.noise_multiplier) <= 2.0 < cost(made.noise_multiplier * 0.99)
    assert (made.client_rate, made.noise_shares) == (rate, shares)
    federation = Federation(made, Ledger(budget=Budget(2.0, 1e-5)))
    for _ in range(30):
        federation.sampled(federation.next_round)
    assert federation.worst_case(1e-5).epsilon <= 2.0
    if paid == rate:  # else a seen coin is worth a little after all
        with pytest.raises(BudgetExceededError):
            federation.sampled(31)


def test_spent_keeps_path_and_guarantee_apart_and_names_who_looks() -> None:
    made = rounds(client_rate=1.0, noise_shares=N, seed=None, noise_multiplier=20.0)
    federation = Federation(made)
    with pytest.raises(ValueError, match="nothing was charged"):
        federation.cost(1e-5)
    norms = NormCounts.none(torch.arange(N), torch.tensor([0.25, 1.0]))
    for number in (1, 2):
        federation.sampled(number)
        norms = norms.add(torch.full((N,), 0.2))
    bare = federation.cost(1e-5, observer=SERVER_OF_UPDATES)
    found = federation.cost(1e-5, observer=SERVER_OF_UPDATES, norms=norms)
    assert bare.path is None
    assert bare.bayesian is None
    assert worst_of(bare).neighbours == "zero out one client"
    assert found.worst_case == bare.worst_case
    assert path_of(found).epsilon < worst_of(found).epsilon
    assert "a diagnostic, not a guarantee" in str(found)
    assert path_of(found).observer == SERVER_OF_UPDATES.name
    assert SERVER_OF_UPDATES.name in str(found.worst_case)
    with pytest.raises(ValueError, match="norms has 3 steps"):
        federation.cost(1e-5, norms=norms.add_largest())
    with pytest.raises(ValueError, match="record_rate and record_clip are None"):
        federation.cost(1e-5, unit="record")


def test_a_seeded_federation_says_that_it_protects_nobody() -> None:
    federation = Federation(rounds())
    federation.sampled(1)
    spent = federation.cost(1e-5)
    assert not worst_of(spent).reliable
    assert "no guarantee" in str(federation.worst_case(1e-5))


def test_rows_of_a_person_may_lie_with_several_clients() -> None:
    """Then two clients' updates change, and neither vanishes: no price here covers that."""
    with pytest.raises(ValueError, match=r"^ledger: its unit has up to 3 rows"):
        Federation(rounds(), Ledger(unit="who", rows_per_unit=3))

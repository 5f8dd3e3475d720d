"""Sums over clients: what pooled panels give, to rounding, and no client's values in a message."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from accounts import path_of, worst_of

pytest.importorskip("flwr")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from bdpvi.accounting.betting import betting
from bdpvi.accounting.events import NormCounts, SampledGaussian
from bdpvi.accounting.losses import OfRuns
from bdpvi.dp import panels
from bdpvi.dp.panels import BITS, FRACTIONS, MEANS, EpsilonReport, SecureSums, masked, unmasked
from bdpvi.dp.rounds import Rounds

F64 = torch.float64
values01 = st.floats(0, 1, allow_nan=False)


def panel(m: int = 2000, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(3, m, dtype=F64, generator=generator)
    return values ** torch.tensor([[1.0], [4.0], [40.0]], dtype=F64)


@settings(max_examples=40)
@given(st.lists(st.tuples(values01, values01), min_size=1, max_size=6))
def test_fixed_point_errs_on_the_safe_side_by_a_unit_a_record(
    rows: list[tuple[float, float]],
) -> None:
    found, unit, n = SecureSums.of(torch.tensor(rows, dtype=F64).T), 2.0**-BITS, len(rows)
    close = 1e-12
    for column in range(2):
        own = [row[column] for row in rows]
        for j, c in list(enumerate(FRACTIONS))[::4]:
            for k, nu in list(enumerate(MEANS))[::19]:
                exact = math.fsum(math.log(1 + c * (nu - v) / (1 - nu)) for v in own)
                under = exact - float(found.wealth[column, j, k]) * unit
                assert -close <= under <= 1.01 * n * unit + close
    assert found.records == n
    assert found.vector().dtype == torch.int64


@pytest.mark.parametrize("gamma", [1e-3, 1e-10])
def test_betting_is_the_first_mean_that_a_slow_bettor_rejects(
    gamma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Means 0.2 % apart, so that an error of a percent in the odds shows.
    monkeypatch.setattr(panels, "MEANS", tuple(np.geomspace(0.02, 0.9, 2000).tolist()))
    values = panel(200)
    found, nu = SecureSums.of(values), np.array(panels.MEANS)
    for column, bound in zip(values.numpy(), found.betting(gamma).tolist(), strict=True):
        wealth, unspent = 0.0 * nu, 1.0
        for j, c in enumerate(FRACTIONS, 1):
            share = 1 / (j * (j + 1))
            unspent -= share
            bets = 1 + c * (nu - column[:, None]) / (1 - nu)
            wealth = wealth + share * np.prod(bets, axis=0)
        assert bound == nu[wealth + unspent >= 1 / gamma][0]


def test_all_bets_together_stake_one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where no bet wins or loses, the wealth is what was staked, and rejects nothing.
    monkeypatch.setattr(panels, "MEANS", (0.5,))
    even = SecureSums.of(torch.full((1, 10), 0.5, dtype=torch.float64))
    assert even.betting(0.995).tolist() == [1.0]


def test_betting_is_the_librarys_rounded_up_to_the_grid() -> None:
    values = panel()
    found = SecureSums.of(values).betting(1e-10)
    pooled = betting(values.log(), 1e-10, 0.0, -math.inf).log_bound.exp()
    assert bool((found >= pooled * 0.999).all())
    assert bool((found <= pooled * 10 ** (5 / 96) * 1.01).all())


def test_betting_without_enough_records_says_1() -> None:
    assert SecureSums.of(torch.zeros(1, 2, dtype=F64)).betting(1e-10).tolist() == [1.0]


def secrets_of(client: int, clients: int, salt: bytes = b"") -> dict[int, bytes]:
    pairs = {k: bytes([min(client, k), max(client, k)]) * 8 for k in range(clients) if k != client}
    return {k: one + salt for k, one in pairs.items()}


def parts(clients: int = 4) -> list[SecureSums]:
    return [SecureSums.of(one) for one in panel(clients * 50).split(50, 1)]


def test_masks_cancel_in_the_sum_of_all_and_only_there() -> None:
    own = parts()
    words = [masked(one, i, secrets_of(i, 4), "r1") for i, one in enumerate(own)]
    pooled = SecureSums.of(panel(200))
    for order in (words, words[::-1]):
        assert torch.equal(unmasked(3, order).vector(), pooled.vector())
    for some in (words[1:], words[:1], [*words, words[0]]):
        with pytest.raises(ValueError, match="masks do not cancel"):
            unmasked(3, some)
    other = masked(own[0], 0, secrets_of(0, 4), "r2")  # of another tag
    with pytest.raises(ValueError, match="masks do not cancel"):
        unmasked(3, [other, *words[1:]])


def test_a_message_holds_no_value_and_is_uniform() -> None:
    one = parts()[0]
    plain = one.vector().numpy().view(np.uint64)
    sent = masked(one, 0, secrets_of(0, 4), "r1")
    assert sent.dtype == np.uint64
    assert sent.shape == plain.shape
    assert not np.isin(sent, plain).any()
    # Every word is another with another secret, another tag, or one secret less.
    fewer = {k: v for k, v in secrets_of(0, 4).items() if k != 3}
    for again in (
        masked(one, 0, secrets_of(0, 4, b"other"), "r1"),
        masked(one, 0, secrets_of(0, 4), "r2"),
        masked(one, 0, fewer, "r1"),
    ):
        assert not (again == sent).any()
    # Bytes as frequent as uniform ones; the plain words are mostly the bytes 0 and 255.
    counts = np.bincount(sent.view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-6
    assert stats.chisquare(np.bincount(plain.view(np.uint8), minlength=256)).pvalue < 1e-100
    # The mask is a one-time pad: it does not depend on the sums.
    zero = SecureSums(0, torch.zeros_like(one.wealth))
    pad = masked(zero, 0, secrets_of(0, 4), "r1")
    assert np.array_equal(sent - pad, plain)


def test_bad_sums_are_named() -> None:
    for value in (math.nan, 1.001, -0.001):
        with pytest.raises(ValueError, match="values must lie in"):
            SecureSums.of(torch.full((2, 3), value))
    one = SecureSums.of(torch.full((2, 3), 0.5))
    for secrets, message in (
        ({1: bytes(16)}, "at least 2 clients"),
        ({0: bytes(16), 1: bytes(16)}, "other than 0"),
        ({1: bytes(16), 2: bytes(15)}, r"secrets\[2\] has 15 bytes"),
    ):
        with pytest.raises(ValueError, match=message):
            masked(one, 0, secrets, "tag")
    with pytest.raises(ValueError, match="has no client"):
        unmasked(2, [])


# ε from the sums of many clients

LEVELS = torch.tensor([0.1, 0.2, 0.3, 1.0], dtype=F64)
DELTA, GAMMA, M, ROUNDS = 1e-3, 1e-6, 30, 5
REPORT = EpsilonReport(
    epsilons=(0.5, 0.8, 1.1, 1.4, 1.7, 2.0, 2.5, 3.0, 5.0), delta=DELTA, failure_probability=GAMMA,
)  # fmt: skip
OURS = Rounds(clients=9, size=1, clip=1.0, noise_multiplier=1.0, record_rate=0.3, record_clip=0.5)


def counts(seed: int, m: int = M) -> NormCounts:
    generator = torch.Generator().manual_seed(seed)
    made = NormCounts.none(torch.arange(m), LEVELS)
    for _ in range(ROUNDS):
        made = made.add(0.3 * torch.rand(m, generator=generator))
    return made


def joined(parts: list[NormCounts]) -> NormCounts:
    both = torch.cat([p.counts for p in parts])
    return NormCounts(torch.arange(len(both)), both, LEVELS)


def slow_epsilon(event: SampledGaussian) -> float:
    """The first ε of the grid, by pooled values and the library's own δ; bets as sums of bets."""
    runs = OfRuns(((event, 1),))
    ways = [runs.deltas(way, DELTA) for way in event.records]
    for epsilon in REPORT.epsilons:
        found = []
        for deltas in ways:
            assert deltas.bound is not None
            ceiling = deltas.bound(epsilon)
            one = SecureSums.of((deltas.at(epsilon) / ceiling)[None])
            found.append(float(one.betting(GAMMA)[0]) * ceiling)
        if max(found) <= DELTA - 2 * len(REPORT.epsilons) * GAMMA:
            return epsilon
    return math.inf


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_epsilon_from_masked_sums_is_the_pooled_one_and_a_diagnostic(rate: float) -> None:
    ours = dataclasses.replace(OURS, record_rate=rate)
    clients = [counts(seed) for seed in range(3)]
    own = [REPORT.sums(ours.event(ROUNDS, "record", norms=one)) for one in clients]
    words = [masked(one, i, secrets_of(i, 3), "report") for i, one in enumerate(own)]
    total = unmasked(REPORT.columns, words)

    pooled = ours.event(ROUNDS, "record", norms=joined(clients))
    direct = REPORT.sums(pooled)
    # A record's last bit may be rounded either way.
    assert int((total.vector() - direct.vector()).abs().max()) <= 3 * M
    bare = ours.event(ROUNDS, "record")
    epsilon = REPORT.epsilon(total, bare)
    assert epsilon == REPORT.epsilon(direct, bare) == slow_epsilon(pooled)
    spent = REPORT.cost(total, bare)
    assert path_of(spent).epsilon == epsilon < worst_of(spent).epsilon
    assert path_of(spent).unit == "one record"
    assert f"of {3 * M} records" in path_of(spent).by
    assert "a diagnostic, no guarantee" in str(spent)


def test_epsilon_is_allowed_from_the_delta_on_that_pays_for_bound_and_failures() -> None:
    gamma, epsilon = 1e-3, 0.5
    event = dataclasses.replace(OURS, record_rate=1.0).event(ROUNDS, "record", norms=counts(1))
    way = next(iter(event.records))
    deltas = OfRuns(((event, 1),)).deltas(way, DELTA)
    assert deltas.bound is not None
    ceiling = deltas.bound(epsilon)
    one = SecureSums.of((deltas.at(epsilon) / ceiling)[None])
    needed = float(one.betting(gamma)[0]) * ceiling + 2 * gamma
    for delta, expected in ((needed * 1.004, epsilon), (needed * 0.996, math.inf)):
        report = EpsilonReport(epsilons=(epsilon,), delta=delta, failure_probability=gamma)
        assert report.epsilon(report.sums(event), event) == expected
    both = [OfRuns(((event, 1),)).deltas(way, report.delta) for way in event.records]
    shares = [one.at(epsilon) / one.bound(epsilon) for one in both if one.bound is not None]
    exact = SecureSums.of(torch.stack(shares))
    torch.testing.assert_close(report.sums(event).wealth, exact.wealth, rtol=1e-9, atol=1)


def test_a_panel_at_the_clip_pays_the_worst_case() -> None:
    made = NormCounts.none(torch.arange(M), LEVELS).add_largest(ROUNDS)
    total = REPORT.sums(OURS.event(ROUNDS, "record", norms=made))
    found = REPORT.cost(total, OURS.event(ROUNDS, "record"))
    assert path_of(found).epsilon == worst_of(found).epsilon
    assert REPORT.epsilon(total, OURS.event(ROUNDS, "record")) >= worst_of(found).epsilon


def test_bad_reports_are_named() -> None:
    for options, message in (
        ({"epsilons": ()}, "epsilons must increase"),
        ({"epsilons": (2.0, 1.0)}, "epsilons must increase"),
        ({"epsilons": (0.0, 1.0)}, "epsilons must be"),
        ({"delta": 0.0}, "delta"),
        ({"failure_probability": 1.0}, "failure_probability"),
        ({"failure_probability": 1e-3}, "leaves nothing of delta"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(REPORT, **options)
    # One ε's sums would otherwise count for all of a longer grid.
    short = dataclasses.replace(REPORT, epsilons=(3.0,))
    total = short.sums(OURS.event(ROUNDS, "record", norms=counts(1)))
    with pytest.raises(ValueError, match="all clients make theirs by one report"):
        REPORT.epsilon(total, OURS.event(ROUNDS, "record"))

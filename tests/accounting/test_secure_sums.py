"""Sums over clients: what pooled panels give, to rounding, and no client's values in a message."""

from __future__ import annotations

from accounts import path_of, worst_of
import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from bdpvi.accounting.betting import betting
from bdpvi.accounting.epsilon_report import EpsilonReport
from bdpvi.accounting.estimators import Moments
from bdpvi.accounting.events import NormCounts, SampledGaussian
from bdpvi.accounting.losses import OfRuns
from bdpvi.accounting.quantiles import quantile_certificate
from bdpvi.accounting.rounds import PUBLIC, RoundEvent
from bdpvi.accounting.secure_sums import BITS, Grids, SecureSums, masked, together, unmasked

F64 = torch.float64
SMALL = Grids(columns=2, edges=(0.25, 0.5, 1.0), fractions=(0.9, 0.5), means=(0.1, 0.3, 0.6))
FULL = Grids(columns=3, edges=tuple((torch.arange(1, 101) / 100).tolist()))
values01 = st.floats(0, 1, allow_nan=False)
tables = st.lists(st.tuples(values01, values01, values01), min_size=0, max_size=6)


def sums(rows: list[tuple[float, float, float]]) -> SecureSums:
    table = torch.tensor(rows, dtype=F64).reshape(-1, 3).T
    return SecureSums.of(SMALL, table[:2], table[2])


def panel(m: int = 2000, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(3, m, dtype=F64, generator=generator)
    return values ** torch.tensor([[1.0], [4.0], [40.0]], dtype=F64), values[0]


def split(values: Tensor, own: Tensor, sizes: tuple[int, ...] = (300, 0, 1, 1699)) -> SecureSums:
    parts = zip(values.split(sizes, 1), own.split(sizes), strict=True)
    return together([SecureSums.of(FULL, *part) for part in parts])


@settings(max_examples=40)
@given(st.lists(tables, min_size=1, max_size=4), st.randoms())
def test_sums_add_up_in_any_order_and_survive_the_wire(
    clients: list[list[tuple[float, float, float]]], random: object
) -> None:
    pooled = sums([row for rows in clients for row in rows]).vector()
    mixed = list(clients)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert torch.equal(together([sums(rows) for rows in mixed]).vector(), pooled)
    assert torch.equal(SecureSums.from_vector(SMALL, pooled).vector(), pooled)
    assert pooled.dtype == torch.int64
    assert pooled.shape == (SMALL.length,)


@settings(max_examples=40)
@given(st.lists(st.tuples(values01, values01, values01), min_size=1, max_size=6))
def test_fixed_point_errs_on_the_safe_side_by_a_unit_a_record(
    rows: list[tuple[float, float, float]],
) -> None:
    found, unit, n = sums(rows), 2.0**-BITS, len(rows)
    close = 1e-12
    for column in range(2):
        own = [row[column] for row in rows]
        for power in (1, 2, 3):
            exact = math.fsum(v**power for v in own)
            over = float(found.powers[power - 1, column]) * unit - exact
            assert -close <= over <= n * unit + close
        for j, c in enumerate(SMALL.fractions):
            for k, nu in enumerate(SMALL.means):
                exact = math.fsum(math.log(1 + c * (nu - v) / (1 - nu)) for v in own)
                under = exact - float(found.wealth[column, j, k]) * unit
                assert -close <= under <= 1.01 * n * unit + close
    assert found.below.tolist() == [sum(row[2] <= e for row in rows) for e in SMALL.edges]
    assert found.records == n


def test_moments_are_those_of_the_pooled_panel() -> None:
    values, own = panel()
    found, pooled = split(values, own).moments(), Moments.of(values.log(), least=3)
    torch.testing.assert_close(found.log_mean, pooled.log_mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.log_sd, pooled.log_sd, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.skewness, pooled.skewness, rtol=1e-5, atol=1e-6)
    skewness = torch.from_numpy(stats.skew(values.numpy(), axis=1))
    torch.testing.assert_close(found.skewness, skewness, rtol=1e-5, atol=1e-6)
    assert found.size == 2000


@pytest.mark.parametrize("gamma", [1e-3, 1e-10])
def test_betting_is_the_first_mean_that_a_slow_bettor_rejects(gamma: float) -> None:
    # Means 0.2 % apart, so that an error of a percent in the odds shows.
    grids = Grids(columns=3, means=tuple(np.geomspace(0.02, 0.9, 2000).tolist()))
    values, _ = panel(200)
    found = together([SecureSums.of(grids, one) for one in values.split((50, 150), 1)])
    nu = np.array(grids.means)
    for column, bound in zip(values.numpy(), found.betting(gamma).tolist(), strict=True):
        wealth, unspent = 0.0 * nu, 1.0
        for j, c in enumerate(grids.fractions, 1):
            share = 1 / (j * (j + 1))
            unspent -= share
            bets = 1 + c * (nu - column[:, None]) / (1 - nu)
            wealth = wealth + share * np.prod(bets, axis=0)
        assert bound == nu[wealth + unspent >= 1 / gamma][0]


def test_all_bets_together_stake_one_unit() -> None:
    # Where no bet wins or loses, the wealth is what was staked, and rejects nothing.
    grids = Grids(columns=1, means=(0.5,))
    even = SecureSums.of(grids, torch.full((1, 10), 0.5, dtype=torch.float64))
    assert even.betting(0.995).tolist() == [1.0]


def test_betting_is_the_librarys_rounded_up_to_the_grid() -> None:
    values, own = panel()
    found = split(values, own).betting(1e-10)
    pooled = betting(values.log(), 1e-10, 0.0, -math.inf).log_bound.exp()
    assert bool((found >= pooled * 0.999).all())
    assert bool((found <= pooled * 10 ** (5 / 96) * 1.01).all())


def test_betting_without_enough_records_says_1() -> None:
    one = SecureSums.of(Grids(columns=1), torch.zeros(1, 2, dtype=F64))
    assert one.betting(1e-10).tolist() == [1.0]


@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.97])
def test_quantiles_are_the_pooled_ones_rounded_up_to_an_edge(fraction: float) -> None:
    values, own = panel()
    found = split(values, own).quantile(fraction, 1e-6)
    pooled = float(quantile_certificate(own, 1e-6, fraction))
    assert found == min(edge for edge in FULL.edges if edge >= pooled)
    # Clopper and Pearson: with so many at or below the edge a smaller fraction is rejected.
    count = int((own <= found).sum())
    assert stats.binom.sf(count - 1, 2000, fraction) <= 1e-6
    assert stats.binom.sf(int((own <= found - 0.01).sum()) - 1, 2000, fraction) > 1e-6
    assert split(values, own).quantile(0.9999, 1e-6) == math.inf


def secrets_of(client: int, clients: int, salt: bytes = b"") -> dict[int, bytes]:
    pairs = {k: bytes([min(client, k), max(client, k)]) * 8 for k in range(clients) if k != client}
    return {k: one + salt for k, one in pairs.items()}


def parts(clients: int = 4) -> list[SecureSums]:
    values, own = panel(clients * 50)
    pieces = zip(values.split(50, 1), own.split(50), strict=True)
    return [SecureSums.of(FULL, *one) for one in pieces]


def test_masks_cancel_in_the_sum_of_all_and_only_there() -> None:
    own = parts()
    words = [masked(one, i, secrets_of(i, 4), "r1") for i, one in enumerate(own)]
    assert torch.equal(unmasked(FULL, words[::-1]).vector(), together(own).vector())
    for some in (words[1:], words[:1], [*words, words[0]]):
        with pytest.raises(ValueError, match="masks do not cancel"):
            unmasked(FULL, some)
    other = masked(own[0], 0, secrets_of(0, 4), "r2")  # of another tag
    with pytest.raises(ValueError, match="masks do not cancel"):
        unmasked(FULL, [other, *words[1:]])


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
    zero = SecureSums.from_vector(FULL, torch.zeros(FULL.length, dtype=torch.int64))
    pad = masked(zero, 0, secrets_of(0, 4), "r1")
    assert np.array_equal(sent - pad, plain)


def test_bad_sums_are_named() -> None:
    good = torch.full((2, 3), 0.5)
    own = torch.zeros(3)
    for values, quantiles, message in (
        (torch.full((3, 3), 0.5), own, "2 columns"),
        (torch.full((2, 3), math.nan), own, "values must lie in"),
        (torch.full((2, 3), 1.001), own, "values must lie in"),
        (torch.full((2, 3), -0.001), own, "values must lie in"),
        (good, None, "own must have shape"),
        (good, torch.zeros(2), "own must have shape"),
        (good, torch.full((3,), math.nan), "own must not be NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            SecureSums.of(SMALL, values, quantiles)
    one = SecureSums.of(SMALL, good[:, :2], own[:2])
    with pytest.raises(ValueError, match="records=2"):
        one.moments()
    with pytest.raises(ValueError, match="grids differ"):
        one + SecureSums.of(dataclasses.replace(SMALL, means=(0.5,)), good, own)
    for vector in (one.vector()[1:], one.vector().double()):
        with pytest.raises(ValueError, match="whole numbers"):
            SecureSums.from_vector(SMALL, vector)
    for count in (-1, 2**BITS + 1):
        with pytest.raises(ValueError, match=f"counts {count} records"):
            SecureSums.from_vector(SMALL, torch.cat([torch.tensor([count]), one.vector()[1:]]))
    for secrets, message in (
        ({1: bytes(16)}, "at least 2 clients"),
        ({0: bytes(16), 1: bytes(16)}, "other than 0"),
        ({1: bytes(16), 2: bytes(15)}, r"secrets\[2\] has 15 bytes"),
    ):
        with pytest.raises(ValueError, match=message):
            masked(one, 0, secrets, "tag")
    with pytest.raises(ValueError, match="has no client"):
        together([])
    with pytest.raises(ValueError, match="has no client"):
        unmasked(SMALL, [])


@pytest.mark.parametrize(
    "grids",
    [
        {"columns": -1},
        {"columns": 1, "edges": (1.0, 1.0)},
        {"columns": 1, "means": (0.5, 0.4)},
        {"columns": 1, "means": (1.0,)},
        {"columns": 1, "fractions": (0.25, 0.5)},
        {"columns": 1, "fractions": (1.0,)},
    ],
)
def test_bad_grids_are_named(grids: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"columns|edges|means|fractions"):
        Grids(**grids)  # type: ignore[arg-type]


# ε from the sums of many clients

LEVELS = torch.tensor([0.1, 0.2, 0.3, 1.0], dtype=F64)
DELTA, GAMMA, M, ROUNDS = 1e-3, 1e-6, 30, 5
REPORT = EpsilonReport(
    epsilons=(0.5, 0.8, 1.1, 1.4, 1.7, 2.0, 2.5, 3.0, 5.0), delta=DELTA, failure_probability=GAMMA,
    edges=(0.5, 1.0, 2.0),
)  # fmt: skip
OURS = RoundEvent(
    clip=1.0, noise_multiplier=1.0, client_rate=1.0, rounds=ROUNDS, record_rate=0.3, record_clip=0.5
)


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
            one = SecureSums.of(Grids(columns=1), (deltas.at(epsilon) / ceiling)[None])
            found.append(float(one.betting(GAMMA)[0]) * ceiling)
        if max(found) <= DELTA - 2 * len(REPORT.epsilons) * GAMMA:
            return epsilon
    return math.inf


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_epsilon_from_masked_sums_is_the_pooled_one_and_a_diagnostic(rate: float) -> None:
    ours = dataclasses.replace(OURS, record_rate=rate)
    clients = [counts(seed) for seed in range(3)]
    own = [REPORT.sums(ours.instance(PUBLIC, one)) for one in clients]
    words = [masked(one, i, secrets_of(i, 3), "report") for i, one in enumerate(own)]
    total = unmasked(REPORT.grids, words)

    pooled = ours.instance(PUBLIC, joined(clients))
    direct = REPORT.sums(pooled)
    # A record's last bit may be rounded either way.
    assert int((total.vector() - direct.vector()).abs().max()) <= 3 * M
    assert torch.equal(total.below, direct.below)
    bare = ours.instance(PUBLIC)
    epsilon = REPORT.epsilon(total, bare)
    assert epsilon == REPORT.epsilon(direct, bare) == slow_epsilon(pooled)
    spent = REPORT.cost(total, bare)
    assert path_of(spent).epsilon == epsilon < worst_of(spent).epsilon
    assert path_of(spent).unit == "one record"
    assert f"of {3 * M} records" in path_of(spent).by
    assert "a diagnostic, no guarantee" in str(spent)


def test_epsilon_is_allowed_from_the_delta_on_that_pays_for_bound_and_failures() -> None:
    gamma, epsilon = 1e-3, 0.5
    event = dataclasses.replace(OURS, record_rate=1.0).instance(PUBLIC, counts(1))
    way = next(iter(event.records))
    deltas = OfRuns(((event, 1),)).deltas(way, DELTA)
    assert deltas.bound is not None
    ceiling = deltas.bound(epsilon)
    one = SecureSums.of(Grids(columns=1), (deltas.at(epsilon) / ceiling)[None])
    needed = float(one.betting(gamma)[0]) * ceiling + 2 * gamma
    for delta, expected in ((needed * 1.004, epsilon), (needed * 0.996, math.inf)):
        report = EpsilonReport(epsilons=(epsilon,), delta=delta, failure_probability=gamma)
        assert report.epsilon(report.sums(event), event) == expected
    both = [OfRuns(((event, 1),)).deltas(way, report.delta) for way in event.records]
    shares = [one.at(epsilon) / one.bound(epsilon) for one in both if one.bound is not None]
    exact = SecureSums.of(report.grids, torch.stack(shares))
    torch.testing.assert_close(report.sums(event).powers, exact.powers, rtol=1e-9, atol=1)


def test_a_panel_at_the_clip_pays_the_worst_case() -> None:
    made = NormCounts.none(torch.arange(M), LEVELS).add_largest(ROUNDS)
    total = REPORT.sums(OURS.instance(PUBLIC, made))
    found = REPORT.cost(total, OURS.instance(PUBLIC))
    assert path_of(found).epsilon == worst_of(found).epsilon
    assert REPORT.epsilon(total, OURS.instance(PUBLIC)) >= worst_of(found).epsilon


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
    total = short.sums(OURS.instance(PUBLIC, counts(1)))
    with pytest.raises(ValueError, match="on other grids"):
        REPORT.epsilon(total, OURS.instance(PUBLIC))

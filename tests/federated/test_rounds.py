"""Rounds of federated learning: who pays which rate and noise, against sources of their own."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from accounts import worst_of
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from scipy import stats

from bdpvi._ground.types import Relation, Scope
from bdpvi.bayesian.accounting.losses import OfRuns
from bdpvi.federated.federated import Federation
from bdpvi.federated.rounds import (
    OBSERVERS,
    OTHER_CLIENT,
    PUBLIC,
    SERVER_OF_SUMS,
    SERVER_OF_UPDATES,
    Observer,
    Rounds,
)
from bdpvi.privacy.norms import NormCounts

Q, Z, C, R, RC, K, T = 0.1, 1.5, 2.0, 0.3, 0.5, 16, 50
COLLUDING = dataclasses.replace(SERVER_OF_SUMS, known_shares=5)


def settings(**options: Any) -> Rounds:
    given = dict(
        clients=9, size=1, clip=C, noise_multiplier=Z, client_rate=Q, record_rate=R, record_clip=RC
    )
    return Rounds(**{**given, **options})


def spent_by(made: Rounds, times: int) -> Federation:
    federation = Federation(made)
    for _ in range(times):
        federation.sampled(federation.next_round)
    return federation


@pytest.mark.parametrize(
    ("observer", "shares", "unknown"),
    [
        (PUBLIC, None, 1.0),
        (OTHER_CLIENT, None, 1.0),
        (PUBLIC, K, 1.0),
        (OTHER_CLIENT, K, 15 / 16),
        (SERVER_OF_SUMS, K, 1.0),
        (COLLUDING, K, 11 / 16),
        (SERVER_OF_UPDATES, K, 1 / 16),
    ],
)
def test_both_views_have_the_noise_rate_and_relation_of_the_observer(
    observer: Observer, shares: int | None, unknown: float
) -> None:
    made = settings(noise_shares=shares)
    client, record = (made.event(T, unit, observer) for unit in ("client", "record"))
    coins = shares is None and not observer.sees_participants
    assert client.rate == (Q if coins else 1.0)
    assert client.relation is (Relation.ADD_OR_REMOVE if coins else Relation.ZERO_OUT)
    assert client.noise_multiplier == pytest.approx(Z * unknown**0.5, rel=1e-12)
    assert (record.rate, record.relation) == (R, Relation.ADD_OR_REMOVE)
    assert record.noise_multiplier == pytest.approx(Z * unknown**0.5 * C / RC, rel=1e-12)
    for one, unit in ((client, "client"), (record, "record")):
        assert (one.unit, one.steps, one.norms) == (unit, T, None)


@pytest.mark.parametrize("observer", OBSERVERS, ids=lambda one: str(one.name))
def test_counts_keep_noise_rate_relation_and_are_a_path(observer: Observer) -> None:
    made = settings(noise_shares=K)
    norms = NormCounts.none(torch.arange(10, 14), torch.tensor([0.5, 1.0]))
    for _ in range(T):
        norms = norms.add(torch.tensor([0.1, 0.5, 0.6, 1.0]))
    for unit in ("client", "record"):
        found, bare = made.event(T, unit, observer, norms), made.event(T, unit, observer)
        assert found.norms is norms
        assert norms.scope is Scope.PATH
        assert norms.counts.tolist() == [[T, 0], [T, 0], [0, T], [0, T]]
        for name in ("noise_multiplier", "rate", "relation", "unit", "steps"):
            assert getattr(found, name) == getattr(bare, name)
    ids = made.event(T, "client", observer, norms).records["add-or-remove D‖D′"]
    assert ids.tolist() == [10, 11, 12, 13]
    with pytest.raises(ValueError, match="norms has 51 steps, and steps=50"):
        made.event(T, "client", observer, norms.add_largest())


@pytest.mark.parametrize(
    ("observer", "shares"),
    [
        (SERVER_OF_SUMS, None),
        (SERVER_OF_UPDATES, None),
        (OTHER_CLIENT, 1),
        (dataclasses.replace(SERVER_OF_SUMS, known_shares=K), K),
    ],
)
@pytest.mark.parametrize("unit", ["client", "record"])
def test_who_knows_all_noise_is_refused(observer: Observer, shares: int | None, unit: str) -> None:
    with pytest.raises(ValueError, match=r"adds all of the noise|knows .* shares? of the noise"):
        settings(noise_shares=shares).event(T, unit, observer)


def test_an_observer_of_messages_knows_who_sent_them() -> None:
    with pytest.raises(ValueError, match="sees_participants=True"):
        Observer("a wire", sees_updates=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": 0.0}, "clip"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"client_rate": 1.1}, "client_rate"),
        ({"record_rate": None}, "give both or neither"),
        ({"record_rate": 0.0}, "record_rate"),
        ({"record_clip": 2.1}, "record_clip=2.1 is above clip=2.0"),
        ({"noise_shares": 0}, "noise_shares"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**options)


def test_no_records_bound_no_records_view_and_no_other_units() -> None:
    with pytest.raises(ValueError, match="record_rate and record_clip are None"):
        settings(record_rate=None, record_clip=None).event(T, "record")
    with pytest.raises(ValueError, match="unit must be one of"):
        settings().event(T, "table")
    with pytest.raises(ValueError, match="known_shares"):
        Observer("other", known_shares=-1)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Dong, Roth and Su (2022), Corollary 2.13, by scipy."""
    cdf = stats.norm.cdf
    return float(cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(
    ("observer", "shares", "unknown"),
    [(SERVER_OF_SUMS, K, 1.0), (COLLUDING, K, 11 / 16), (SERVER_OF_UPDATES, K, 1 / 16)],
)
def test_the_client_at_rate_1_pays_exact_gaussian_dp(
    observer: Observer, shares: int, unknown: float
) -> None:
    made = Rounds(clients=100, size=2, clip=C, noise_multiplier=9.0, noise_shares=shares)
    found = spent_by(made, T).worst_case(1e-5, observer=observer)
    mu = math.sqrt(T / unknown) / 9.0
    assert gaussian_delta(mu, found.epsilon) == pytest.approx(1e-5, rel=1e-6)
    assert found.neighbours == "zero out one client"


def test_at_secret_coins_a_client_pays_what_dp_accounting_says() -> None:
    spent = spent_by(coins(), T).cost(1e-5)
    other = PLDAccountant()
    other.compose(SelfComposedDpEvent(PoissonSampledDpEvent(Q, GaussianDpEvent(Z)), T))
    assert spent.worst_case is not None
    assert worst_of(spent).epsilon == pytest.approx(other.get_epsilon(1e-5), rel=2e-3)
    assert spent.bayesian is None
    assert worst_of(spent).neighbours == "add or remove one client"


def test_a_record_pays_for_the_rounds_of_its_client() -> None:
    """Its δ is the mean over how many of the T rounds the client takes part in."""
    found = spent_by(coins(), T).worst_case(1e-5, "record")
    one = from_gaussian_mechanism(Z * C / RC, sampling_prob=R)
    deltas = [one.self_compose(k).get_delta_for_epsilon(found.epsilon) for k in range(1, T + 1)]
    chances = np.asarray(stats.binom.pmf(range(1, T + 1), T, Q))
    assert chances @ deltas == pytest.approx(1e-5, rel=0.02)
    assert found.neighbours == "add or remove one record"


def coins() -> Rounds:
    return Rounds(
        clients=100, size=2, clip=C, noise_multiplier=Z, client_rate=Q, record_rate=R,
        record_clip=RC,
    )  # fmt: skip


def test_coins_gain_nothing_where_the_round_tells_how_many_came() -> None:
    """Two clients, two shares: a round is released with probability q², and then both took part."""
    q, noise, epsilon = 0.5, 1.0, 1.0
    truth = q**2 * gaussian_delta(1 / noise, epsilon)
    secret = Rounds(clients=2, size=1, clip=1.0, noise_multiplier=noise, client_rate=q)
    shared = dataclasses.replace(secret, noise_shares=2)

    def claimed(one: Rounds) -> float:
        way = "add-or-remove D‖D′"
        bound = OfRuns(((one.event(1), 1),)).deltas(way, 1e-9).bound
        assert bound is not None
        return bound(epsilon)

    assert claimed(shared) >= truth
    # One client, one share: what Poisson coins promise is too little.
    assert q * gaussian_delta(1 / noise, epsilon) > claimed(secret)

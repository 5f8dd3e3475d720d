"""One conformance suite over every accountant and every event, and what composition must obey."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from accounts import Accountant, bayes, evidence_of, worst_of
from hypothesis import given, settings
from hypothesis import strategies as st
from studies.distances import SampledDistances
from studies.estimators import known_population

from bdpvi._ground.types import Scope
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.losses import loss_variance
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bench.methods.moments import MomentsAccountant
from bdpvi.privacy.conversions import Orders
from bdpvi.privacy.event import Event
from bdpvi.privacy.events import SampledGaussian, Threshold
from bdpvi.privacy.norms import NormCounts

M = 60
DELTA = 1e-5
GRID = Orders(torch.arange(1, 41))


def panel(seed: int = 0, spread: float = 0.02, shift: float = 0.02, ids: int = 0) -> Panel:
    generator = torch.Generator().manual_seed(seed)
    r = 1 + spread * torch.rand(M, 2, generator=generator, dtype=torch.float64)
    b2 = shift * torch.rand(M, 2, generator=generator, dtype=torch.float64) ** 2
    return Panel("remove", torch.arange(ids, ids + M), GaussianPairs(r, b2))


def gaussian(seed: int = 0) -> SampledDistances:
    generator = torch.Generator().manual_seed(seed)
    distances = torch.rand(M, generator=generator, dtype=torch.float64)
    return SampledDistances(torch.arange(M), distances, noise=3.0, rate=0.05)


def steps() -> SampledGaussian:
    levels = torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    norms = NormCounts.none(torch.arange(M), levels, Scope.STATIC)
    for _ in range(20):
        norms = norms.add(1.2 * torch.rand(M, generator=generator))
    return SampledGaussian(noise_multiplier=3.0, rate=0.05, steps=20, norms=norms)


EVENTS: dict[str, Callable[[], Event]] = {
    "draws": lambda: GuideDraws((panel(),), draws=2, temperature=3.0),
    "equal covariances": lambda: GuideDraws((panel(spread=0.0),), draws=2),
    "remove and add": lambda: GuideDraws((panel(), Panel("add", torch.arange(M), panel(1).pairs))),
    "subsampled Gaussian": gaussian,
    "a run of steps": steps,
}
ACCOUNTANTS: dict[str, Callable[[], Accountant]] = {
    "panel, cks": Accountant,
    "panel, chernoff": lambda: Accountant(conversion="chernoff"),
    "panel, known population": lambda: Accountant(estimator=known_population),
    "panel, hockey-stick": lambda: Accountant(conversion="hockey-stick"),
}
CASES = [
    pytest.param(make, EVENTS[event], id=f"{name}: {event}")
    for name, make in ACCOUNTANTS.items()
    for event in EVENTS
    if "hockey-stick" not in name or event in ("draws", "equal covariances", "remove and add")
]


def epsilon(make: Callable[[], Accountant], *charges: tuple[Event, int]) -> float:
    accountant = make()
    for event, count in charges:
        accountant.step(event, count=count)
    return accountant.get_epsilon(delta=DELTA)


@pytest.mark.parametrize(("make", "event"), CASES)
def test_counted_events_cost_what_they_cost_one_by_one(
    make: Callable[[], Accountant], event: Callable[[], Event]
) -> None:
    one = event()
    together, apart = epsilon(make, (one, 3)), epsilon(make, (one, 1), (one, 1), (one, 1))
    # The union bound counts distinct events, which moves β by a few parts in 1e7.
    assert together == pytest.approx(apart, rel=1e-5)


@pytest.mark.parametrize(("make", "event"), CASES)
def test_more_never_costs_less_and_order_of_events_is_nothing(
    make: Callable[[], Accountant], event: Callable[[], Event]
) -> None:
    one, other = event(), event()
    assert epsilon(make, (one, 2)) >= epsilon(make, (one, 1))
    assert epsilon(make, (one, 2), (other, 1)) == pytest.approx(
        epsilon(make, (other, 1), (one, 2)), rel=1e-12
    )


@pytest.mark.parametrize("make", ACCOUNTANTS.values(), ids=ACCOUNTANTS)
def test_bad_input_is_an_error(make: Callable[[], Accountant]) -> None:
    accountant = make()
    with pytest.raises(ValueError, match="nothing has been charged"):
        Account([])
    accountant.step(GuideDraws((panel(),)))
    for delta in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="delta must lie"):
            accountant.cost(delta)
    with pytest.raises(ValueError, match="count must be"):
        accountant.step(GuideDraws((panel(),)), count=0)


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_a_run_without_a_panel_has_the_worst_case_alone(rate: float) -> None:
    accountant = Accountant()
    accountant.step(SampledGaussian(noise_multiplier=2.0, rate=rate, steps=3))
    spent = accountant.cost(DELTA)
    assert spent.worst_case is not None
    assert spent.bayesian is None
    assert "no reference records, so no Bayesian ε" in str(spent)
    for asked in (accountant.exposure, accountant.per_record, accountant.get_delta):
        with pytest.raises(ValueError, match="event has no reference records"):
            asked(DELTA)


def test_foreign_records_are_an_error() -> None:
    accountant = Accountant()
    accountant.step(GuideDraws((panel(),)))
    with pytest.raises(ValueError, match="record ids in 'remove D‖D′' differ from"):
        accountant.step(GuideDraws((panel(ids=5),)))
    with pytest.raises(ValueError, match="has directions"):
        accountant.step(GuideDraws((Panel("add", torch.arange(M), panel().pairs),)))


def test_bayesian_with_every_record_at_the_clip_is_the_moments_accountant() -> None:
    event = SampledDistances(torch.arange(M), torch.ones(M), noise=4.0, rate=0.01)
    bayesian = Accountant(
        estimator=known_population,
        conversion="chernoff",
        failure_probability=1e-300,
    )
    bayesian.step(event, count=2000)
    worst = MomentsAccountant().epsilon(4.0, 0.01, 2000, 1e-3)
    assert worst == pytest.approx(0.4331, rel=1e-3)
    assert bayesian.get_epsilon(delta=1e-3) == pytest.approx(worst, rel=1e-9)


def test_an_event_without_costs_for_records_is_an_error() -> None:
    with pytest.raises(TypeError, match="no cost for single records"):
        Threshold(1e-6).cost("remove D‖D′", GRID.values)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), draws=st.integers(1, 20), hotter=st.floats(1.0, 100.0))
def test_permutation_temperature_and_draws(seed: int, draws: int, hotter: float) -> None:
    one = panel(seed)
    shuffled = torch.randperm(M, generator=torch.Generator().manual_seed(seed))
    mixed = Panel("remove", one.ids, GaussianPairs(one.pairs.r[shuffled], one.pairs.b2[shuffled]))
    base = epsilon(Accountant, (GuideDraws((one,), draws, 2.0), 1))
    assert base == pytest.approx(
        epsilon(Accountant, (GuideDraws((mixed,), draws, 2.0), 1)), rel=1e-9
    )
    assert epsilon(Accountant, (GuideDraws((one,), draws, 2.0 * hotter), 1)) <= base
    assert epsilon(Accountant, (GuideDraws((one,), draws + 1, 2.0), 1)) >= base


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10_000), draws=st.integers(1, 5), shift=st.floats(0.01, 1.0))
def test_true_delta_of_a_whole_population_is_within_the_reported_one(
    seed: int, draws: int, shift: float
) -> None:
    """One-dimensional guides, both covariances: δ at the reported ε, by adding up fine bins."""
    generator = torch.Generator().manual_seed(seed)
    r = 1 + 0.1 * torch.rand(M, 1, generator=generator, dtype=torch.float64)
    b2 = shift * torch.rand(M, 1, generator=generator, dtype=torch.float64) ** 2
    pairs = GaussianPairs(r, b2)
    event = GuideDraws((Panel("remove", torch.arange(M), pairs),), draws)
    for conversion in ("cks", "chernoff", "hockey-stick"):
        accountant = Accountant(estimator=known_population, conversion=conversion)
        accountant.step(event)
        eps = accountant.get_epsilon(delta=1e-3)
        worst = max(_true_delta(pairs, draws, eps), _true_delta(pairs.reverse(), draws, eps))
        assert worst <= 1e-3


def _true_delta(pairs: GaussianPairs, draws: int, eps: float) -> float:
    """Mean over records of E_P (1 − e^{ε−L})_+, by Monte Carlo less four standard errors."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((20_000, 1, draws))
    r, b = pairs.r[:, 0].numpy()[:, None], pairs.b2[:, 0].sqrt().numpy()[:, None]
    w = b + np.sqrt(r) * z  # P = N(b, r), Q = N(0, 1)
    loss = (w**2 / 2 - (w - b) ** 2 / (2 * r) - np.log(r) / 2).sum(-1)
    excess = np.maximum(0, 1 - np.exp(eps - loss)).mean(1)
    return float(excess.mean() - 4 * excess.std() / np.sqrt(len(excess)))


def test_loss_of_equal_covariances_has_the_variance_that_its_moments_say() -> None:
    """A Gaussian loss has the log-moment λ(λ+1)v/2, which is v at λ = 1."""
    event = GuideDraws((panel(spread=0.0),), draws=3, temperature=2.0)
    for direction in event.records:
        variance = loss_variance([(event, 1)], direction)
        assert variance is not None
        one = event.cost(direction, torch.ones(1, dtype=torch.float64))[0]
        torch.testing.assert_close(variance, one, rtol=1e-12, atol=0)


def test_where_the_panel_supports_no_epsilon_the_worst_case_is_said_in_full() -> None:
    """Three records by Student's t have an ε that rounding would make too dear."""
    b2 = torch.linspace(0.1, 1, 3, dtype=torch.float64)[:, None]
    few = Panel("remove", torch.arange(3), GaussianPairs(torch.ones(3, 1), b2), 1.0)
    accountant = Accountant()
    accountant.step(GuideDraws((few,), rounding=4e-9))
    spent = accountant.cost(DELTA)
    assert spent.worst_case is not None
    assert bayes(spent).epsilon == worst_of(spent).epsilon
    assert evidence_of(bayes(spent)).sample_size == 3
    assert "where D′ has x′ removed" in bayes(spent).meaning

"""ε from every record's own δ, and δ at a given ε: certified, consistent and in few evaluations."""

from __future__ import annotations

import math

import pytest
import torch
from accounts import Accountant, bayes, evidence_of
from hypothesis import given, settings
from hypothesis import strategies as st
from studies.distances import SampledDistances
from torch import Tensor

from bdpvi.bayesian.accounting import estimators
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.answer import mean_delta, smallest_epsilon
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.losses import Deltas, certified, deltas_of
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.privacy.conversions import CONVERSIONS, EPSILONS, REAL_ORDERS, position
from bdpvi.privacy.gaussian import equal_covariance

F64 = torch.float64
DELTA = 1e-5


def pairs(
    seed: int, records: int = 300, spread: float = 0.01, shift: float = 1e-3
) -> GaussianPairs:
    """A few records are far more exposed than the others, as on real tables."""
    generator = torch.Generator().manual_seed(seed)
    exposed = torch.rand(records, 1, generator=generator, dtype=F64) ** 6
    r = 1 + spread * exposed * torch.randn(records, 3, generator=generator, dtype=F64)
    b2 = shift * exposed * torch.rand(records, 3, generator=generator, dtype=F64)
    return GaussianPairs(r, b2)


def account(
    of: GaussianPairs, temperature: float = 1.0, conversion: str = "hockey-stick"
) -> Accountant:
    accountant = Accountant(conversion=conversion, failure_probability=1e-20)
    accountant.step(GuideDraws((Panel("remove", torch.arange(len(of)), of),), 1, temperature))
    return accountant


def certified_for(of: GaussianPairs, beta: float) -> Deltas:
    def log_mgf_of(rows: Tensor | slice) -> object:
        return of.select(rows).log_mgf_for_inversion()

    return certified(log_mgf_of, beta)  # type: ignore[arg-type]


@given(
    seed=st.integers(0, 10_000),
    spread=st.floats(-4, -1),
    shift=st.floats(-6, -1),
    delta=st.floats(-9, -3),
)
@settings(deadline=None, max_examples=25)
def test_delta_at_the_epsilon_of_delta_is_within_it(
    seed: int, spread: float, shift: float, delta: float
) -> None:
    of, asked = pairs(seed, spread=10**spread, shift=10**shift), 10**delta
    for conversion in CONVERSIONS:
        accountant = account(of, conversion=conversion)
        paid = bayes(accountant.cost(asked))
        back = accountant.get_delta(paid.epsilon, near=asked)
        spent = evidence_of(paid).estimates * evidence_of(paid).failure_probability
        assert spent < back <= asked * (1 + 1e-9)
        if conversion == "hockey-stick" and paid.epsilon > float(EPSILONS[0]):
            below = float(EPSILONS[position(paid.epsilon) - 1])
            assert accountant.get_delta(below, near=asked) > asked


def test_the_range_is_that_of_any_record_and_not_of_the_panel() -> None:
    of = GaussianPairs(torch.ones(9, 1, dtype=F64), torch.full((9, 1), 0.01, dtype=F64))
    event = GuideDraws((Panel("remove", torch.arange(9), of, largest=0.25),), 2, 4.0)
    for direction in event.records:
        found = deltas_of([(event, 3)], direction, DELTA)
        assert found.bound is not None
        variance = torch.tensor([3 * 2 * 0.25 / 4.0], dtype=F64)
        assert found.bound(1.0) == float(equal_covariance(variance, 1.0))
        assert found.bound(1.0) > 10 * float(found.at(1.0).max())


def test_delta_has_what_the_estimates_take() -> None:
    # At an ε that nobody's loss reaches only the estimates' part is left.
    for conversion, choices in (("hockey-stick", len(EPSILONS)), ("cks", len(REAL_ORDERS))):
        accountant = Accountant(conversion=conversion, failure_probability=1e-12)
        accountant.step(GuideDraws((Panel("remove", torch.arange(300), pairs(2)),)))
        expected = 2 * choices * 1e-12
        assert accountant.get_delta(500.0) == pytest.approx(expected, rel=1e-6)
        assert evidence_of(bayes(accountant.cost(DELTA))).estimates == 2 * choices
    assert account(pairs(2)).get_delta(0.0) == 1.0  # below the grid


def test_delta_of_other_events_goes_by_orders() -> None:
    accountant = Accountant()
    event = SampledDistances(torch.arange(100), torch.linspace(0, 1, 100).double(), 4.0, 0.01)
    accountant.step(event, count=1000)
    epsilon = accountant.get_epsilon(delta=DELTA)
    assert accountant.get_delta(epsilon) == pytest.approx(DELTA, rel=1e-9)


def test_bad_input_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing has been charged"):
        Account([])
    for epsilon in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="epsilon must be finite"):
            account(pairs(0)).get_delta(epsilon)
    with pytest.raises(ValueError, match="near must lie"):
        account(pairs(0)).get_delta(1.0, near=0.0)
    with pytest.raises(ValueError, match="must exceed estimates"):
        account(pairs(0)).get_delta(1.0, near=1e-18)


@given(seed=st.integers(0, 10_000), shift=st.floats(-6, -1), k=st.integers(0, 4096))
@settings(deadline=None, max_examples=25)
def test_negligible_records_and_all_others_are_bounded_from_above(
    seed: int, shift: float, k: int
) -> None:
    # Equal covariances, which the inversion need not know: their δ is known in closed form.
    of = pairs(seed, spread=0.0, shift=10**shift)
    epsilon = float(EPSILONS[k])
    truth = equal_covariance(of.b2.sum(1), epsilon)
    for beta in (1e-3, 1e-7):
        bound = certified_for(of, beta).at(epsilon)
        assert bool((bound >= truth * (1 - 1e-12)).all())
        assert bool((bound - truth <= 0.01 * truth + 1e-3 * beta).all())


def test_draws_counts_and_temperature_of_several_releases_enter_the_inversion() -> None:
    """Covariances that are equal but for the ninth digit, against the closed form."""
    of = pairs(8, spread=1e-9, shift=0.01)
    panel = Panel("remove", torch.arange(len(of)), of)
    draws = [(GuideDraws((panel,), 2, 3.0), 3), (GuideDraws((panel,), 1, 0.5), 1)]
    epsilon = float(EPSILONS[2200])
    truth = equal_covariance((3 * 2 / 3.0 + 1 / 0.5) * of.b2.sum(1), epsilon)
    found = deltas_of(draws, "remove D‖D′", 1e-9).at(epsilon)
    assert float(truth.mean()) > 1e-6
    torch.testing.assert_close(found.mean(), truth.mean(), rtol=3e-3, atol=0)


def test_values_do_not_depend_on_what_was_asked_before() -> None:
    of, epsilon = pairs(4), float(EPSILONS[2100])
    fresh = certified_for(of, 1e-6).at(epsilon)
    used = certified_for(of, 1e-6)
    for k in (1500, 2090, 3000, 2110, 2500):
        used.at(float(EPSILONS[k]))
    assert torch.equal(used.at(epsilon), fresh)


@given(seed=st.integers(0, 10_000), beta=st.floats(-9, -2), shift=st.floats(-6, 2))
@settings(deadline=None, max_examples=40)
def test_smallest_of_the_grid_in_few_evaluations(seed: int, beta: float, shift: float) -> None:
    v = pairs(seed, shift=10**shift).b2.sum(1)
    asked: list[float] = []
    bound = (estimators.student_t, 1e-20)

    def at(epsilon: float) -> Tensor:
        asked.append(epsilon)
        return equal_covariance(v, epsilon)

    def guide(epsilon: float) -> Tensor:
        return (4 * equal_covariance(v, epsilon)).clamp(max=1)

    for deltas, most in ((Deltas(at), 30), (Deltas(at, guide), 8)):
        asked.clear()
        epsilon, estimate = smallest_epsilon(deltas, 10**beta, *bound)
        assert len(asked) <= most
        if math.isinf(epsilon):
            assert mean_delta(deltas, float(EPSILONS[-1]), *bound) > 10**beta
            continue
        assert float(estimate.log_bound.exp()) == mean_delta(deltas, epsilon, *bound) <= 10**beta
        k = position(epsilon)
        assert k == 0 or mean_delta(deltas, float(EPSILONS[k - 1]), *bound) > 10**beta
        # One that suffices already is the answer; one that does not is where the search begins.
        for enough in (k + 5, k - 5):
            if 0 <= enough < len(EPSILONS):
                given_one = smallest_epsilon(deltas, 10**beta, *bound, float(EPSILONS[enough]))[0]
                assert given_one == float(EPSILONS[max(enough, k)])


def test_larger_direction_counts_whichever_comes_first() -> None:
    of = pairs(5, spread=0.2, shift=1e-3)
    forth, back = (bayes(account(one).cost(DELTA)) for one in (of, of.reverse()))
    assert forth.epsilon == back.epsilon
    assert {evidence_of(one).direction for one in (forth, back)} == {"remove D‖D′", "remove D′‖D"}


def bounded(largest: float | None = 0.09) -> Panel:
    """As with a public noise scale: 4,000 records, a few of them near the largest there is."""
    b2 = 0.09 * torch.linspace(0, 1, 4000, dtype=F64)[:, None] ** 12
    return Panel("remove", torch.arange(4000), GaussianPairs(torch.ones_like(b2), b2), largest)


def price(panel: Panel, delta: float, **options: float) -> tuple[float, float, bool]:
    accountant = Accountant(**options)  # type: ignore[arg-type]
    accountant.step(GuideDraws((panel,)))
    spent, worst = accountant.cost(delta), accountant.worst_case(delta)
    return (
        bayes(spent).epsilon,
        math.inf if worst is None else worst.epsilon,
        bayes(spent).reliable,
    )


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
def test_all_estimates_by_betting_cost_a_thousandth_of_delta(delta: float) -> None:
    accountant = Accountant()
    accountant.step(GuideDraws((bounded(),)))
    found = bayes(accountant.cost(delta))
    known = evidence_of(found)
    assert known.failure_probability * known.estimates <= 1e-3 * delta * (1 + 1e-12)
    assert known.failure_probability <= 1e-9
    assert accountant.get_delta(found.epsilon, near=delta) <= delta

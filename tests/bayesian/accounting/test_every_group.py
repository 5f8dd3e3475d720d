"""The ε of every group: its bound against the mean of the largest δ, and everything it counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from accounts import bayes, elsewhere
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, stats
from simulated import logistic_data
from torch import Tensor

import bdpvi
from bdpvi import BayesianAccountant, BayesianDP, guides
from bdpvi._ground.outputs import two_digits
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.every_group import every_group, group_bound, least_share
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.losses import Deltas
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.bayesian.accounting.table import TableCost
from bdpvi.datasets.dataset import People
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.conversions import EPSILONS, TESTS, least_failure
from bdpvi.privacy.cost import Bound, Kind
from bdpvi.privacy.entry import Charge
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.norms import NormCounts
from bdpvi.releases.shared_file import load_release, save_release

Numbers = NDArray[np.float64]
GAMMA = 0.05
BETA = 1.0
"""A target mean in units of which populations below are made."""
SHARES = (1.0, 0.5, 0.2, 0.1, 0.05)


def worst_mean(delta: Numbers, share: float, weight: Numbers | None = None) -> float:
    """Return the mean of the largest part ``share`` of a population."""
    weight = np.full(len(delta), 1 / len(delta)) if weight is None else weight
    order = np.argsort(-delta)
    delta, weight = delta[order], weight[order]
    part = np.minimum(weight, np.maximum(0, share - (np.cumsum(weight) - weight)))
    return float(part @ delta / share)


def populations() -> dict[str, Numbers]:
    """Return δ of finite populations, in units of the target mean."""
    rng = np.random.default_rng(0)
    dear = np.where(np.arange(1000) < 60, 3.0, 0.2)
    return {
        "smooth": rng.gamma(0.3, 1.2, 1000),
        "a minority": dear * rng.uniform(0.8, 1.2, 1000),
        "alike": np.full(1000, 0.7),
    }


def sample_of(delta: Numbers, counts: Tensor | None = None, largest: float = 0.0) -> Deltas:
    known, top = torch.as_tensor(delta), max(largest, float(delta.max()))
    return Deltas(lambda _: known, bound=lambda _: top, counts=counts)


def bound_of(parts: Sequence[Deltas], share: float, gamma: float = GAMMA) -> float:
    found = group_bound(parts, 1.0, share=share, beta=BETA, failure_probability=gamma)
    return float(found.log_bound.exp())


# --- the bound itself -----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "share"), [("smooth", 0.3), ("a minority", 0.05)])
def test_the_worst_group_pays_more_in_no_more_samples_than_gamma(name: str, share: float) -> None:
    population, rng = populations()[name], np.random.default_rng(1)
    truth, wrong = worst_mean(population, share), 0
    for _ in range(400):
        drawn = rng.choice(population, 300)
        wrong += bound_of([sample_of(drawn, largest=population.max())], share) < truth * (1 - 1e-9)
    assert wrong <= stats.binom.isf(1e-4, 400, GAMMA)


@pytest.mark.parametrize("share", [0.8, 0.2, 0.1])
def test_with_all_records_it_is_the_mean_of_the_largest_part(share: float) -> None:
    """δ of two sizes, the smaller one a level: then the least over levels is exact."""
    delta, weight = np.array([BETA / 2, 2 * BETA]), np.array([0.9, 0.1])
    counts = torch.tensor([9 * 10**9, 10**9])
    found = bound_of([sample_of(delta, counts, largest=4.0)], share)
    assert found == pytest.approx(worst_mean(delta, share, weight), rel=1e-3)


def betting(values: Numbers, gamma: float, upper: float) -> float:
    """Return the betting bound on a mean, written again: wealth over halved fractions."""
    k = np.arange(len(values).bit_length() + 1)
    weight = np.append(1 / ((k + 1) * (k + 2)), 1 / (k[-1] + 2))

    def excess(mean: float) -> float:
        with np.errstate(divide="ignore"):
            gains = np.log1p(0.5 ** k[:, None] * (mean - values) / (upper - mean)).sum(1)
        return float(np.logaddexp.reduce(np.append(gains, 0) + np.log(weight)) + math.log(gamma))

    low, high = float(values.mean()), upper * (1 - 1e-13)
    return float(optimize.brentq(excess, low, high, xtol=1e-15)) if excess(high) > 0 else upper


def by_hand(delta: Numbers, upper: float, share: float, beta: float, gamma: float) -> float:
    levels = [beta * one for one in ((0, 1 / 8, 1 / 4, 1 / 2, 3 / 4) if share < 1 else (0,))]
    each = gamma / len(levels)
    sums = [
        q + betting(np.maximum(delta - q, 0), each, upper - q) / share for q in levels if q < upper
    ]
    return min(upper, *sums)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", populations())
def test_the_bound_is_the_formula(name: str, share: float) -> None:
    """Written again in NumPy: a part of it that is wrong by 1 % fails."""
    drawn = np.random.default_rng(2).choice(populations()[name], 2000)
    found = bound_of([sample_of(drawn, largest=4.5)], share, 1e-6)
    top = max(4.5, float(drawn.max()))
    assert found == pytest.approx(by_hand(drawn, top, share, BETA, 1e-6), rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0, 5), min_size=20, max_size=200),
    st.floats(0.01, 1),
    st.floats(0.01, 1),
    st.floats(1e-9, 0.3),
)
def test_a_smaller_share_has_no_smaller_bound(
    delta: list[float], one: float, other: float, gamma: float
) -> None:
    known = sample_of(np.array(delta), largest=5.0)
    small, large = (bound_of([known], share, gamma) for share in sorted((one, other)))
    assert small >= large * (1 - 1e-8)


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_a_group_may_spread_over_populations_of_unknown_parts(share: float) -> None:
    """Their own bounds do not suffice: the worst group of a mixture pays more than of either."""
    same, few = np.array([BETA, BETA]), np.array([0.0, 2 * BETA])
    weights = np.array([0.5, 0.5]), np.array([1 - share / 2, share / 2])
    parts = [
        sample_of(d, torch.tensor([round(w * 10**10) for w in weight]))
        for d, weight in zip((same, few), weights, strict=True)
    ]
    alone = max(worst_mean(d, share, w) for d, w in zip((same, few), weights, strict=True))
    mixtures = [
        worst_mean(np.concatenate([same, few]), share, np.concatenate([(1 - a), a] @ np.array(
            [np.concatenate([weights[0], [0, 0]]), np.concatenate([[0, 0], weights[1]])])[None]))
        for a in np.linspace(0, 1, 21)
    ]  # fmt: skip
    assert max(mixtures) > 1.2 * alone
    assert bound_of(parts, share) >= max(mixtures) * (1 - 1e-9)


# --- the ε ----------------------------------------------------------------------------------------


def panel(b2: Tensor, largest: float | None = 0.02, kind: str = "add") -> Panel:
    pairs = GaussianPairs(torch.ones(len(b2), 1).double(), b2.double()[:, None])
    return Panel(kind, torch.arange(len(b2)), pairs, largest)


def costs(records: int = 4000) -> Tensor:
    b2 = torch.linspace(1e-5, 4e-4, records, dtype=torch.float64)
    b2[::20] = 8e-3  # a minority
    return b2


def gaussian_delta(variance: Numbers, epsilon: float) -> Numbers:
    """Return δ of two Gaussians, in closed form by SciPy."""
    mu = np.sqrt(variance)
    upper, lower = stats.norm.cdf(mu / 2 - epsilon / mu), stats.norm.cdf(-mu / 2 - epsilon / mu)
    return np.asarray(upper - math.exp(epsilon) * lower)


@pytest.mark.parametrize("draws", [1, 3])
def test_epsilon_is_the_smallest_that_the_formula_allows(draws: int) -> None:
    """With γ of five levels, two orders of D and D′, and three shares."""
    b2, delta, shares = costs(), 1e-4, (0.5, 0.1, 0.05)
    found = every_group([Account([GuideDraws((panel(b2),), draws)])], delta, shares)
    gamma = least_failure(delta) / len(shares)
    beta = delta - TESTS * least_failure(delta)
    for one in found:
        at = int(np.searchsorted(EPSILONS.numpy(), one.epsilon))
        for place, enough in ((at, True), (at - 1, False)):
            epsilon = float(EPSILONS[place])
            each = gaussian_delta(draws * b2.numpy(), epsilon)
            upper = float(gaussian_delta(np.array([draws * 0.02]), epsilon)[0])
            assert (by_hand(each, upper, one.share, beta, gamma) <= beta) is enough
        assert one.epsilon == float(EPSILONS[at])
        assert one.evidence is not None
        used = one.evidence.failure_probability * one.evidence.estimates
        assert used == pytest.approx(1 - one.confidence) == TESTS * least_failure(delta)
    assert [one.share for one in found] == list(shares)
    assert all(a.epsilon < b.epsilon for a, b in pairwise(found))


def runs() -> SampledGaussian:
    norms = NormCounts.none(torch.arange(3000), scope="static")  # type: ignore[arg-type]
    norms = norms.add(torch.linspace(0, 1, 3000), steps=200)
    return SampledGaussian(noise_multiplier=4, rate=0.02, steps=200, norms=norms)


@pytest.mark.parametrize("kind", ["draws", "counted", "runs", "given gamma"])
def test_of_everybody_it_is_the_mean(kind: str) -> None:
    accounting, b2 = Accounting(), costs()
    event: GuideDraws | SampledGaussian = GuideDraws((panel(b2),), 2, rounding=1e-9)
    if kind == "runs":
        event = runs()
    elif kind == "counted":
        counts = torch.arange(1, 4001)
        event = GuideDraws((replace(panel(b2), counts=counts),))
    elif kind == "given gamma":
        accounting = Accounting(failure_probability=1e-8)
    account = Account([event], accounting)
    (found,) = every_group([account], 1e-4, [1.0])
    mean = account._estimated(1e-4, None)
    assert mean is not None
    assert found.epsilon == pytest.approx(mean.epsilon, rel=1e-12)
    assert found.evidence == mean.evidence
    assert found.kind is Kind.GROUP


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(0.03, 1), min_size=2, max_size=2, unique=True), st.integers(0, 9))
def test_a_smaller_share_has_no_smaller_epsilon(shares: list[float], seed: int) -> None:
    b2 = torch.rand(1000, generator=torch.Generator().manual_seed(seed)).double() ** 8 * 0.01
    account = Account([GuideDraws((panel(b2),))])
    for asked in (shares, shares[::-1]):
        found = {one.share: one.epsilon for one in every_group([account], 1e-4, asked)}
        assert found[min(shares)] >= found[max(shares)]
    mean = account._estimated(1e-4, None)
    assert mean is not None
    assert min(found.values()) >= mean.epsilon


def test_more_shares_take_their_part_of_gamma() -> None:
    account = Account([GuideDraws((panel(costs()),))])
    (alone,), (joint, _) = (every_group([account], 1e-4, s) for s in ([0.05], [0.05, 0.1]))
    assert alone.confidence == joint.confidence
    assert alone.evidence is not None
    assert joint.evidence is not None
    assert joint.evidence.failure_probability == alone.evidence.failure_probability / 2
    assert joint.epsilon >= alone.epsilon


def test_it_is_at_most_what_the_worst_case_implies() -> None:
    accountant = BayesianAccountant(kind="add")
    b2 = costs(300)
    accountant._ids = torch.arange(300)
    accountant._draws = [GuideDraws((panel(b2, 8.1e-3),))]
    found = accountant.cost(1e-4, for_groups_of=0.12)
    assert found.worst_case is not None
    assert found.groups[0].epsilon <= found.worst_case.epsilon
    assert found.groups[0].kind is Kind.GROUP
    assert (found.groups[0].share, found.groups[0].certified) == (0.12, True)
    assert Assumption.GIVEN_FEATURES in found.groups[0].assumptions  # as of the other bounds


# --- several fits ---------------------------------------------------------------------------------


def test_two_charges_are_those_of_two_draws_and_later_records_count() -> None:
    b2, other = costs(), costs().flip(0)
    twice = Account([(GuideDraws((panel(b2),)), 2)])
    at_once = Account([GuideDraws((panel(b2),), 2)])
    of = partial(every_group, delta=1e-4, shares=[0.1])
    assert of([twice])[0].epsilon == of([at_once])[0].epsilon
    # The same record in two fits: its own costs add up, which the fits' own means would hide.
    aligned = Account([GuideDraws((panel(b2),)), GuideDraws((panel(b2.clone()),))])
    opposite = Account([GuideDraws((panel(b2),)), GuideDraws((panel(other),))])
    assert of([aligned])[0].epsilon > of([opposite])[0].epsilon
    later = Account([GuideDraws((panel(costs(3000) / 2),))])
    both = TableCost((at_once, later)).groups(1e-4, [0.1])[0].epsilon
    assert both >= max(of([one])[0].epsilon for one in (at_once, later)) * (1 - 1e-12)


# --- what is refused ------------------------------------------------------------------------------


def test_a_share_that_the_records_do_not_support_names_the_smallest_that_they_do() -> None:
    account = Account([GuideDraws((panel(costs(2000)),))])
    least = two_digits(least_share(2000, least_failure(1e-4) / 5))
    said = rf"for_groups_of=0.001: only shares from {least:g} are supported by 2000 "
    with pytest.raises(ValueError, match=said):
        every_group([account], 1e-4, [0.001])
    (found,) = every_group([account], 1e-4, [least])
    assert found.share == least
    few = Account([GuideDraws((panel(costs(3), kind="remove").select(torch.arange(1)),))])
    with pytest.raises(ValueError, match=r"for_groups_of=0.5: only everybody .* by 1 ref"):
        every_group([few], 1e-4, [0.5])


@pytest.mark.parametrize("m", [100, 1000, 20_000])
def test_below_the_least_share_the_records_might_be_unknown(m: int) -> None:
    """m records that cost nothing: the range alone is as good."""
    gamma = 1e-7
    least = least_share(m, gamma / 5)
    free = sample_of(np.zeros(m), largest=4.0)
    assert bound_of([free], least * 0.99, gamma) == pytest.approx(4.0)
    assert bound_of([free], least * 1.02, gamma) < 4.0 * 0.99
    assert least == pytest.approx(math.log(2 * 5 / gamma) / m, rel=0.25)


def test_without_a_range_there_is_none() -> None:
    account = Account([GuideDraws((panel(costs(), None),))])
    with pytest.raises(ValueError, match=r"for_groups_of=0\.1: .* cost of any conceivable record"):
        every_group([account], 1e-4, [0.1])
    by_order = Account([GuideDraws((panel(costs()),))], Accounting(conversion="cks"))
    with pytest.raises(ValueError, match="hockey-stick"):
        every_group([by_order], 1e-4, [0.1])


# --- what is said ---------------------------------------------------------------------------------

MODEL = bdpvi.BayesianLogisticRegression()


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound conceivable records by the closed form alone: larger, and there at once."""
    monkeypatch.setattr("bdpvi.privacy.conceivable._largest", lambda *_: math.inf)


def laplace(records: int = 400) -> bdpvi.Fit:
    data = logistic_data(records, 2).of_people(People())
    return bdpvi.fit(MODEL, guides.Laplace(MODEL), data, progress=False)


MISSED = (
    r"epsilon=0\.1 is missed by the certificate .* comes to every-group DP: for every group of at "
    r"least 20 % of the population ε = .*Larger groups"
)


def group_of(cost: bdpvi.Cost) -> Bound:
    (result,) = cost.groups
    return result


@pytest.mark.usefixtures("closed")
def test_the_owner_reads_a_curve_from_everybody_to_a_few(tmp_path: Path) -> None:
    fit, planned = laplace(), Charge(1, 1.0)
    before = bdpvi.cost(fit, for_groups_of=(0.5, 0.2))
    assert before.curve == ((1.0, 0.0), (0.5, 0.0), (0.2, 0.0))
    found = bdpvi.cost(fit, planned=planned, for_groups_of=(0.2, 0.5))
    assert found.curve[0] == (1.0, bayes(found).epsilon)
    assert [share for share, _ in found.curve] == [1.0, 0.5, 0.2]
    assert all(a[1] <= b[1] for a, b in pairwise(found.curve))
    assert not fit.ledger.entries()
    everybody = bdpvi.cost(fit, planned=planned, for_groups_of=1)
    assert group_of(everybody).epsilon == pytest.approx(bayes(everybody).epsilon, rel=1e-12)
    assert str(found).count("every-group DP: for every group of at least") == 2
    assert bdpvi.bayesian.draw_groups(found, tmp_path / "one.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="cost has no bound for groups"):
        bdpvi.bayesian.draw_groups(replace(found, groups=()), tmp_path / "two.png")
    assert not (tmp_path / "two.png").exists()


@pytest.mark.usefixtures("closed")
def test_it_has_its_own_words_on_a_receipt(tmp_path: Path) -> None:
    fit = laplace()
    released = bdpvi.release(fit, epsilon=20.0, guarantee=BayesianDP(for_groups_of=0.2))
    receipt = released.receipt
    assert receipt.group is receipt.bound
    assert (receipt.bayesian, receipt.worst_case, receipt.typical) == (None, None, None)
    assert (receipt.bound.epsilon, receipt.bound.share) == (20.0, 0.2)
    words = f"{receipt} {receipt.meaning}"
    assert "for every group of at least 20 % of the population" in words
    assert "with confidence 1 − 1e-08" in words
    assert "even if it was chosen from the data" in words
    assert "Bayesian DP" not in words
    assert "Bayesian differential privacy" not in words
    assert group_of(released.cost).epsilon <= 20.0
    save_release(released, tmp_path / "one.json")
    assert load_release(tmp_path / "one.json").receipt == receipt
    with pytest.raises(bdpvi.BudgetExceededError, match=MISSED):
        bdpvi.release(fit, epsilon=0.1, guarantee=BayesianDP(for_groups_of=0.2))
    assert len(fit.ledger.charges()) == 1


@pytest.mark.usefixtures("closed")
def test_its_receipt_has_no_number_from_the_records() -> None:
    receipts = set()
    for n in (400, 401):
        elsewhere()
        twice = [bdpvi.release(laplace(n), guarantee=BayesianDP(for_groups_of=0.2)) for _ in "ab"]
        receipts.add(tuple(str(one.receipt) for one in twice))
    assert len(receipts) == 1
    one, other = receipts.pop()
    assert "ε not published: it is the owner's certificate" in one
    assert other.startswith(
        f"{one}; all on these rows together, of this process alone: worst-case ε = "
    )


def test_the_temperature_is_planned_for_the_records_of_a_group() -> None:
    fit = laplace(60)
    for_all = BayesianDP(rows=1e4).temperature(fit, 1, 0.5, 1e-5)
    assert BayesianDP(rows=1e5, for_groups_of=0.1).temperature(fit, 1, 0.5, 1e-5) == for_all

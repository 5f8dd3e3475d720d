"""Three statements, each in its own words; what is certified has nothing read from records."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from accounts import bayes, elsewhere, typical_of
from scipy import stats
from simulated import logistic_data
from torch import Tensor

import bdpvi
from bdpvi import BayesianDP, TypicalRecord, guides
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.accounting.typical import share_of, typical
from bdpvi.datasets.dataset import People
from bdpvi.privacy import Assumption
from bdpvi.privacy.cost import Bound, Kind
from bdpvi.privacy.entry import Charge
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.releases.shared_file import load_release, save_release

MODEL = bdpvi.BayesianLogisticRegression()


def laplace(data: bdpvi.Dataset, *kinds: bdpvi.bayesian.Remove | bdpvi.bayesian.Add) -> bdpvi.Fit:
    from bdpvi.bayesian.mode.route import Mode

    return bdpvi.fit(
        MODEL,
        guides.Laplace(MODEL),
        data.of_people(People()),
        neighbours=Mode(*kinds),
        progress=False,
    )


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound conceivable records by the closed form alone: larger, and there at once."""
    monkeypatch.setattr("bdpvi.privacy.conceivable._largest", lambda *_: math.inf)


def robust(x: Tensor, y: Tensor | None = None) -> None:
    """Regression with heavy tails: a model of one's own, whose scores nothing is known of."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.StudentT(4.0, x @ w, 1.0), obs=y)


def own(records: int = 300) -> bdpvi.Fit:
    data = logistic_data(records, 2)
    guide = guides.MeanField(robust)
    training = bdpvi.Training(steps=30, seed=None)
    return bdpvi.fit(robust, guide, data, training=training, progress=False)


def panel(b2: Tensor, kind: str = "add", largest: float | None = None) -> Panel:
    pairs = GaussianPairs(torch.ones(len(b2), 1).double(), b2.double()[:, None])
    return Panel(kind, torch.arange(len(b2)), pairs, largest)


def test_a_typical_record_is_all_that_is_said_before_training() -> None:
    """For one's own model; not where a worst case or a certificate comes."""
    said = "no worst-case ε and no certified Bayesian ε, but a guarantee for typical records"
    with pytest.warns(bdpvi.NotCertifiedWarning, match=said):
        own(10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        laplace(logistic_data(10, 2))
        noisy = guides.FullRank(MODEL, noise_scale=0.3)
        bdpvi.fit(MODEL, noisy, logistic_data(10, 2), progress=False)


# --- certified ------------------------------------------------------------------------------------


def test_certified_is_by_betting_or_by_a_worst_case_alone() -> None:
    b2 = torch.linspace(1e-4, 2e-3, 500)
    by_range = bayes(bdpvi.bayesian.cost_of([GuideDraws((panel(b2, largest=0.01),))], 1e-4))
    by_student = bayes(bdpvi.bayesian.cost_of([GuideDraws((panel(b2),))], 1e-4))
    found = by_range.assuming(Assumption.FOUND_FROM_DATA)  # of receipts of earlier versions
    assert by_range.certified
    assert "certified)" in str(by_range)
    assert by_student.reliable
    assert not by_student.certified
    for one, why in (
        (by_student, "not certified: by Student's t"),
        (found, "not certified: temperature read from the records: no δ covers it"),
        (by_range.seeded(), "not certified: an experiment"),
        (replace(by_range, reliable=False), "not certified: the estimate is not reliable"),
    ):
        assert not one.certified
        assert why in str(one)
        assert " certified" not in str(one).replace("not certified", "")
        assert not one.public(0.5).certified
    assert by_range.public(0.5).certified
    worst = Bound(kind=Kind.WORST_CASE, epsilon=1.0, delta=1e-5, by="")
    assert not worst.certified  # a promise of its own, which needs no such word


def test_leaving_records_out_has_a_condition_and_held_out_records_have_none() -> None:
    b2 = torch.linspace(1e-4, 2e-3, 500)
    for kind, stands in (("add", False), ("remove", True)):
        found = bayes(bdpvi.bayesian.cost_of([GuideDraws((panel(b2, kind, 0.01),))], 1e-4))
        assert found.certified
        assert (Assumption.LEAVE_ONE_OUT in found.assumptions) is stands
        assert ("if the table's own records can serve as fresh records" in str(found)) is stands
        assert ("duplicates violate this" in found.meaning) is stands


@pytest.mark.usefixtures("closed")
def test_held_out_records_certify_the_mode_without_a_condition() -> None:
    data = logistic_data(160, 2)
    fit = laplace(
        data.select(torch.arange(100)), bdpvi.bayesian.Add(data.select(torch.arange(100, 160)))
    )
    found = bayes(bdpvi.cost(fit, planned=Charge(1, 1.0)))
    assert found.certified
    assert Assumption.LEAVE_ONE_OUT not in found.assumptions


# --- typical records ------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [29, 59, 299])
def test_the_share_is_what_the_number_of_records_allows(m: int) -> None:
    share, each = share_of(m)
    assert share == each
    # The largest of m values is below a share's quantile with probability share^m (Wilks 1941).
    assert share**m <= 0.05
    larger = {0.9: 0.95, 0.95: 0.99}.get(share)
    assert larger is None or larger**m > 0.05


def test_few_records_are_refused_with_how_many_there_must_be() -> None:
    with pytest.raises(
        ValueError,
        match=r"a statement about 90 % .* needs 29 reference records, and there are 28",
    ):
        typical(Account([GuideDraws((panel(torch.rand(28)),))]), 1e-5)


@pytest.mark.parametrize("relations", [("add",), ("add", "remove")])
def test_a_typical_epsilon_is_the_order_statistic(relations: tuple[str, ...]) -> None:
    # Steep where it counts, so that the next rank is off by more than the grid of ε.
    b2 = torch.logspace(-6, -1, 1000, dtype=torch.float64) ** 4 * 40
    event = GuideDraws(tuple(panel(b2, relation) for relation in relations), draws=2)
    found = typical(Account([event]), 1e-5)
    # P(Bin(m, share) ≥ rank) ≤ γ, by SciPy's binomial.
    share, gamma = 1 - 0.01 / len(relations), 0.05 / len(relations)
    rank = next(k for k in range(900, 1001) if stats.binom.sf(k - 1, 1000, share) <= gamma)
    exact = gaussian_epsilon(2 * float(b2[rank - 1]), 1e-5)
    assert exact * (1 - 1e-9) <= found.epsilon <= exact * 1.01
    assert (found.share, found.confidence) == (0.99, 0.95)
    assert found.relation == " or ".join(relations)


def test_its_confidence_holds_where_a_few_records_are_dear() -> None:
    """2 % of the population pay all: a panel that saw too few of them must not speak of 99 %."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(100):
        b2 = torch.as_tensor(np.where(rng.random(299) < 0.02, 4.0, 1e-3))
        wrong += typical(Account([GuideDraws((panel(b2),))]), 1e-5).epsilon < 5
    assert wrong <= stats.binom.isf(1e-6, 100, 0.05)


def test_rounding_is_paid_for_by_each_record() -> None:
    b2 = torch.linspace(1e-3, 4e-2, 300)
    plain, rounded = (
        typical(Account([GuideDraws((panel(b2),), rounding=one)]), 1e-5).epsilon
        for one in (0.0, 1e-6)
    )
    assert plain < rounded
    with pytest.raises(ValueError, match="does not cover the rounding"):
        typical(Account([GuideDraws((panel(b2),), rounding=1e-5)]), 1e-5)


def test_it_is_the_promise_of_ones_own_model_and_says_what_it_is_not(tmp_path: Path) -> None:
    fit = own()
    with pytest.warns(bdpvi.NotCertifiedWarning, match="typical-record DP ε, a guarantee for most"):
        released = bdpvi.release(fit, 2)
    receipt, promised = released.receipt, released.receipt.bound
    assert (receipt.typical, receipt.temperature) == (promised, 1.0)
    assert promised.epsilon >= typical_of(released.cost).epsilon
    words = f"{receipt} {receipt.meaning}"
    assert "at least 99 % of the population" in words
    assert "neither worst-case nor Bayesian" in words
    assert "Bayesian DP" not in words
    assert "certified" not in words.replace("certificate", "")
    save_release(released, tmp_path / "one.json")
    assert load_release(tmp_path / "one.json", robust).receipt == receipt
    aimed = bdpvi.release(fit, epsilon=4.0)
    assert aimed.receipt.bound.epsilon == 4.0
    assert typical_of(aimed.cost).epsilon <= 4.0


# --- a Bayesian one that is asked for -------------------------------------------------------------


def test_a_bayesian_epsilon_that_is_not_certified_is_refused_uncharged() -> None:
    fit = own(60)
    with pytest.raises(ValueError, match=r"not certified: by Student's t.*Nothing was charged"):
        bdpvi.release(fit, epsilon=100.0, temperature=50.0, guarantee=BayesianDP())
    assert not fit.ledger.entries()
    with pytest.warns(bdpvi.NotCertifiedWarning, match="not certified: by Student's t"):
        experiment = bdpvi.release(fit, temperature=50.0, guarantee=BayesianDP())
    assert "not certified: by Student's t" in str(experiment.receipt)
    assert bdpvi.release(fit, epsilon=100.0, guarantee=TypicalRecord()).receipt.typical


@pytest.mark.usefixtures("closed")
def test_draws_of_the_mode_are_certified_at_the_epsilon_that_was_asked_for() -> None:
    fit = laplace(logistic_data(120, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        released = bdpvi.release(fit, epsilon=20.0)
    assert released.receipt.bound.epsilon == 20.0
    assert released.receipt.temperature == 1.0
    assert released.receipt.bound.certified
    assert Assumption.RELEASE_AFTER_CERTIFICATE in released.receipt.bound.assumptions
    with pytest.raises(bdpvi.BudgetExceededError, match="Fewer draws, a higher temperature"):
        bdpvi.release(fit, epsilon=0.1)
    assert len(fit.ledger.charges()) == 1


# --- a record less changes nothing but the law of the draws ---------------------------------------


@pytest.mark.usefixtures("closed")
def test_leaving_any_record_out_changes_no_word_of_what_is_published(tmp_path: Path) -> None:
    data = logistic_data(60, 1, seed=3)
    tables = [data, *(data.without(int(i)) for i in data.ids[:: len(data) // 6])]
    texts, certificates = set(), set()
    for number, table in enumerate(tables):
        elsewhere()
        told = []
        for name in (f"{number}.json", f"{number}-again.json"):  # the second tells of the first
            released = bdpvi.release(laplace(table))
            certificates.add(bayes(released.cost).epsilon)
            assert released.receipt.bound.epsilon == math.inf
            save_release(released, tmp_path / name)
            content = json.loads((tmp_path / name).read_text(encoding="utf-8"))
            assert "epsilon" not in content["receipt"]["bayesian"]
            del content["samples"], content["latents"]
            told.append(json.dumps(content) + str(released.receipt))
        assert ["all on these rows together" in one for one in told] == [False, True]
        texts.add(tuple(told))
    assert len(texts) == 1
    assert len(certificates) > 1  # the owner's, of each table by itself

"""How well anybody tells whether a record is in the table, against the best attacks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from simulated import logistic_data
from test_cli import run

import bdpvi
from bdpvi import guides
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.membership import membership_of
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.mode.route import Mode
from bdpvi.bayesian.neighbours.route import Add
from bdpvi.bayesian.pricing import membership_in
from bdpvi.privacy import Charge, Influence
from bdpvi.privacy.cost import Bound, Kind
from bdpvi.privacy.ledger import Ledger

RECORDS = 20_000


@pytest.mark.parametrize("draws", [1, 9])
@pytest.mark.parametrize(("least", "excess"), [(0.01, 0.005), (0.2, 1e-9)])
def test_of_equal_covariances_it_is_the_best_test_of_two_normal_laws(
    draws: int, least: float, excess: float
) -> None:
    distance = torch.linspace(least, 0.2, RECORDS, dtype=torch.float64)
    pairs = GaussianPairs(torch.ones(RECORDS, 1).double(), distance.square()[:, None])
    panel = Panel("add", torch.arange(RECORDS), pairs, largest=0.04)
    found = membership_of([Account([GuideDraws((panel,), draws)])])
    mu = distance.numpy() * math.sqrt(draws)
    right = norm.cdf(mu / 2).mean()
    assert right * (1 - 1e-9) <= found.accuracy <= right * (1 + excess)
    assert found.anyone == pytest.approx(norm.cdf(0.1 * math.sqrt(draws)), rel=1e-9)
    for false, true in found.rates:  # a threshold for each record that accuses as many outsiders
        best = norm.sf(norm.isf(false) - mu).mean()
        assert best <= true
        assert true <= 1.25 * best or least < 0.2
    assert not found.own


@pytest.mark.parametrize("kind", ["remove", "add"])
@pytest.mark.parametrize("precision", [pytest.param(0.5, marks=pytest.mark.slow), 2.0])
def test_members_are_found_by_the_law_with_the_record(kind: str, precision: float) -> None:
    """N(0, 1) against N(b, 1/k): the orders differ at few wrongly accused."""
    shift, n = 0.1, 4000
    r, b2 = torch.full((n, 1), precision).double(), torch.full((n, 1), precision * shift**2)
    span = math.log(precision) if precision > 1 else -math.log(precision)
    bound = Influence(added=kind == "add", columns=1, shift=shift, spread=span, share=0.0)
    panel = Panel(kind, torch.arange(n), GaussianPairs(r, b2.double()), influence=bound)
    found = membership_of([Account([GuideDraws((panel,))])])
    x = np.linspace(-12, 12, 200_001)
    data, neighbour = norm.pdf(x), norm.pdf(x, shift, precision**-0.5)
    member, outsider = (data, neighbour) if kind == "remove" else (neighbour, data)
    likely = np.argsort(outsider / member)
    false, true = (np.cumsum(law[likely]) * (x[1] - x[0]) for law in (outsider, member))
    for rate, most in found.rates:
        best = np.interp(rate, false, true)
        assert best <= most <= 1.6 * best
    distance = np.abs(member - outsider).sum() * (x[1] - x[0]) / 2
    assert (1 + distance) / 2 <= found.accuracy <= found.anyone


def test_of_a_fit_it_is_what_the_best_attack_reaches() -> None:
    """The likelihood ratio of draws with and without each of 40 fresh records."""
    data = logistic_data(300, 3)
    fresh = logistic_data(2000, 3, seed=1)
    fresh = bdpvi.Dataset(fresh.x, fresh.y, ids=torch.arange(2000) + 10_000)
    model = bdpvi.BayesianLogisticRegression()
    route = Mode(Add(fresh))
    fit = bdpvi.fit(model, guides.Laplace(model), data, neighbours=route, progress=False)
    found = bdpvi.bayesian.membership(fit, planned=Charge(1, 1.0))
    pairs, g, right = fit.panels[0].pairs, torch.Generator().manual_seed(0), []
    for i in range(0, len(pairs.r), max(1, len(pairs.r) // 40)):
        r, b = pairs.r[i], (pairs.b2[i] / pairs.r[i]).sqrt()
        with_, without = torch.randn(2, 20_000, len(r), generator=g).double()
        without = b + without / r.sqrt()

        def loss(x: torch.Tensor, r: torch.Tensor = r, b: torch.Tensor = b) -> torch.Tensor:
            value: torch.Tensor = (r * (x - b).square() - x.square() - r.log()).sum(1)
            return value

        hits = (loss(with_) > 0).double().mean() + (loss(without) <= 0).double().mean()
        right.append(float(hits) / 2)
    attack = torch.tensor(right)
    error = float(attack.std()) / len(attack) ** 0.5 + 0.5 / (len(attack) * 40_000) ** 0.5
    assert float(attack.mean()) - 3 * error <= found.accuracy
    assert found.accuracy - 0.5 <= 2 * (float(attack.mean()) - 0.5) + 3 * error
    assert float(attack.max()) - 0.015 <= found.anyone
    assert "for no person whatever in more than" in str(found)


def test_it_is_refused_without_a_range_and_without_draws() -> None:
    model = bdpvi.BayesianLogisticRegression.unweighted(intercept=True)
    data = logistic_data(60, 3)
    fit = bdpvi.fit(model, guides.Laplace(model), data, progress=False)
    with pytest.raises(ValueError, match="needs a bound on the cost of any conceivable record"):
        bdpvi.bayesian.membership(fit, planned=Charge(1, 1.0))


def test_a_gaussian_distance_bounds_an_attack_more_closely() -> None:
    given: dict[str, Any] = {"kind": Kind.WORST_CASE, "epsilon": 3.0, "delta": 1e-5, "by": ""}
    assert Bound(**given, distance=0.6).attack_success == pytest.approx(norm.cdf(0.3), rel=1e-9)
    assert Bound(**given, distance=0.6).attack_success < Bound(**given).attack_success


def test_an_account_has_the_certified_average_and_a_receipt_has_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = logistic_data(2000, 2)
    model = bdpvi.BayesianLogisticRegression()
    ledger = Ledger.at(tmp_path / "ledger.jsonl")
    fit = bdpvi.fit(model, guides.Laplace(model), data, ledger=ledger, progress=False)
    assert membership_in(ledger) is None
    release = bdpvi.release(fit, draws=1)
    again = membership_in(Ledger.at(tmp_path / "ledger.jsonl"))
    assert again == bdpvi.bayesian.membership(fit)
    run("account", tmp_path / "ledger.jsonl")
    said = capsys.readouterr().out
    assert str(again) in said
    assert "read from the records and is the owner's" in said
    assert release.cost.membership is not None
    assert str(again.accuracy)[:6] not in f"{release.receipt.to_dict()}{release.receipt.meaning}"
    assert release.receipt.in_one_sentence == ""

"""What is charged and released in one go: the price is the event's, and is paid before a draw."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import flat
import numpy as np
import pytest
import torch
from simulated import logistic_data

import bdpvi
from bdpvi import BayesianLogisticRegression, BudgetExceededError, Dataset
from bdpvi.datasets import exact
from bdpvi.guides import MeanField
from bdpvi.privacy import worst_case
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.ledger import Entry, Ledger
from bdpvi.privacy.perturbed_objective import PerturbedObjective
from bdpvi.regression.objective import ObjectivePerturbation
from bdpvi.regression.objective_plan import Rule
from bdpvi.regression.perturbed_objective import SummedObjective
from bdpvi.releases.route import Allowance
from bdpvi.tables import setup
from bdpvi.tables.prepared import Prepared, fit_private

MODEL = BayesianLogisticRegression.unweighted(limit=2.0, intercept=True)
COUNTED = ["reserved", "constants", "release", "ended"]
"""What a release charges whose rows are counted."""


def prepared(data: Any, base_rate: float | None = None, **route: Any) -> Prepared:
    """Return rows with the default route."""
    return Prepared.of(setup.logistic(base_rate), data, ObjectivePerturbation(**route))


def test_the_price_is_the_events_and_the_target_is_met_from_below() -> None:
    data, route = logistic_data(200, 3), ObjectivePerturbation(rows=2e4)
    release = fit_private(MODEL, data, epsilon=1.0, route=route)
    (entry,) = data.people.ledger.entries()
    assert entry.events is not None
    found = worst_case.epsilon(entry.events, 1e-5)
    assert found is not None
    assert 0.998 <= found.epsilon <= 1.0
    assert data.people.ledger.worst_case(1e-5) == found
    assert release.receipt.bound.epsilon == 1.0
    assert release.receipt.bound.kind.value == "worst-case DP"
    (event,) = entry.events
    plan = route.plan(MODEL, 3, Allowance(1.0, 1e-5, 0.0))
    assert isinstance(event, PerturbedObjective)
    assert event == plan.with_noise(event.noise_multiplier).event


def test_what_was_spent_before_counts() -> None:
    data = logistic_data(100, 2)
    constants = SampledGaussian(noise_multiplier=10.0)
    data.people.ledger.charge(Entry(kind="constants", events=(constants,)))
    route = ObjectivePerturbation(rows=1e5)
    fit_private(MODEL, data, epsilon=1.0, route=route)
    total = data.people.ledger.worst_case(1e-5)
    assert total is not None
    assert 0.998 <= total.epsilon <= 1.0
    for one in (route, None):  # declared or not: nothing is counted in vain
        with pytest.raises(ValueError, match=r"epsilon=1 cannot be reached .* 2 charges made"):
            fit_private(MODEL, data, epsilon=1.0, route=one)
    fit_private(MODEL, data, epsilon=3.0, route=route)
    assert len(data.people.ledger.entries()) == 3
    total = data.people.ledger.worst_case(1e-5)
    assert total is not None
    assert 2.99 <= total.epsilon <= 3.0


def test_settings_follow_from_the_noisy_number_of_rows_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noise = np.array([4000.0])
    monkeypatch.setattr(exact, "count_noise", lambda *_: noise)
    release = fit_private(MODEL, logistic_data(1000, 2), epsilon=1.0)
    assert "Settings assume about 5,000 rows, counted with noise" in release.receipt.about


def test_it_is_charged_before_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    data = logistic_data(1000, 2)
    count = exact.count_noise

    def counted(*given: Any) -> Any:
        assert [entry.kind for entry in data.people.ledger.entries()] == COUNTED[:2]
        return count(*given)

    def interrupted(*_: Any, **__: Any) -> Any:
        assert [entry.kind for entry in data.people.ledger.entries()] == COUNTED
        raise KeyboardInterrupt

    monkeypatch.setattr(exact, "count_noise", counted)

    monkeypatch.setattr("bdpvi.regression.objective.minima_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit_private(MODEL, data, epsilon=1.0)
    assert [entry.kind for entry in data.people.ledger.entries()] == COUNTED


def test_rows_of_one_person_are_priced_together() -> None:
    """The noise is more than twice that of one row."""
    noises = []
    for rows in (1, 2):
        data, ledger = logistic_data(50, 2), Ledger(unit="patient", rows_per_unit=rows)
        data.people.unit, data.people.rows_per_unit = "patient", rows
        route = ObjectivePerturbation(rows=1e4)
        made = Prepared.of(MODEL, data, route, ledger=ledger)
        release = made.release(epsilon=1.0)
        (event,) = ledger.entries()[0].events or ()
        assert isinstance(event, PerturbedObjective)
        noises.append(event.noise_multiplier / event.residual)
        total = ledger.worst_case(1e-5)
        assert total is not None
        assert 0.998 <= total.epsilon <= 1.0
        assert release.receipt.bound.unit == ledger.book().whose
    assert 2.0 < noises[1] / noises[0] < 2.3


@pytest.mark.filterwarnings("ignore::bdpvi.PrivacyUtilityWarning")
def test_neighbouring_tables_pay_the_same_and_differ_by_one_gradient() -> None:
    """Whether there is a draw, and what it costs, does not depend on the records."""
    data = logistic_data(20, 2)
    plan = ObjectivePerturbation(rows=20).plan(MODEL, 2, Allowance(1.0, 1e-5, 0.0))
    w = torch.tensor([5.0, 2.0, -9.0], dtype=torch.float64)
    whole = SummedObjective.of(plan, data.x, data.y).gradient(w)
    for i in range(20):
        less = data.without(i)
        moved = whole - SummedObjective.of(plan, less.x, less.y).gradient(w)
        assert float(moved.norm()) <= plan.event.residual * plan.clip + 1e-12
    tables = [data, data.without(3), data.select(data.ids < 1), data.select(data.ids < 0)]
    prices = []
    for records in tables:
        alone = Dataset(records.x, records.y)
        assert fit_private(MODEL, alone, epsilon=1.0).samples.shape == (1, 3)
        prices.append(alone.people.ledger.entries()[0].events)
    assert prices.count(prices[0]) == len(tables)


def test_other_models_and_guides_are_refused_before_anything_is_charged() -> None:
    data = logistic_data(30, 2)

    def other(x: torch.Tensor, y: torch.Tensor | None = None) -> None:
        """Return nothing."""

    calls: list[tuple[str, dict[str, Any]]] = [
        ("model observes no site", {"model": other}),
        ("is for BayesianLogisticRegression", {"model": other, "route": ObjectivePerturbation()}),
        ("takes no guide", {"guide": MeanField(MODEL)}),
        ("epsilon must be", {"epsilon": 0}),
        ("delta must lie", {"delta": 0}),
        ("needs a pair", {"data": data.x}),
    ]
    for words, changes in calls:
        given = {"model": MODEL, "data": data, "epsilon": 1.0, **changes}
        with pytest.raises(ValueError, match=words):
            fit_private(given.pop("model"), given.pop("data"), **given)
    assert data.people.ledger.entries() == ()


def test_public_facts_and_several_minima() -> None:
    """Declared rows change ridge and clip of the residual; an intercept may be left out."""
    left = Allowance(0.2, 1e-5, 0.0)
    few, many = (ObjectivePerturbation(rows=n).plan(MODEL, 10, left) for n in (300, 1e6))
    assert few.ridge > many.ridge
    assert few.event.residual == 0.5
    assert many == replace(
        ObjectivePerturbation(rows=1.2e6).plan(MODEL, 10, left), facts=many.facts
    )
    unknown = ObjectivePerturbation().plan(MODEL, 10, left)
    assert unknown.event == many.event
    assert ObjectivePerturbation(rule=Rule(scale=1.0)).plan(MODEL, 10, left).clip > many.clip
    data = logistic_data(300, 3)
    release = fit_private(
        BayesianLogisticRegression.unweighted(),
        data,
        epsilon=2.0,
        route=ObjectivePerturbation(draws=3),
    )
    assert release.samples.shape == (3, 3)
    assert release.receipt.draws == 3
    total = data.people.ledger.worst_case(1e-5)
    assert total is not None
    assert 1.996 <= total.epsilon <= 2.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"expected_rows": 9}, "rows must be from 10 to 1e12, got 9"),
        ({"expected_rows": 2e12}, "rows must be from 10 to 1e12"),
        ({"expected_rows": float("nan")}, "rows must be"),
        ({"draws": 0}, "draws must be"),
        ({"epsilon": 0}, "epsilon must be"),
        ({"base_rate": 1.0}, "base_rate must"),
    ],
)
def test_declared_facts_out_of_range_are_refused_before_anything_is_charged(
    given: dict[str, Any], words: str
) -> None:
    data = logistic_data(100, 2)
    with pytest.raises(ValueError, match=words):
        flat.private(data, **{"epsilon": 1.0, "progress": False, **given})
    assert data.ledger.entries() == ()


def test_no_columns_are_refused_before_anything_is_charged() -> None:
    data = Dataset(torch.zeros(100, 0).double(), torch.zeros(100).double())
    with pytest.raises(ValueError, match="x has no columns"):
        prepared(data)
    assert data.ledger.entries() == ()


def test_an_epsilon_that_drowns_everything_gives_the_declared_base_rate_and_says_so() -> None:
    data = logistic_data(1000, 20)
    fit = prepared(data, 0.2, rows=1e3)
    with pytest.warns(bdpvi.PrivacyUtilityWarning, match=r"smallest useful ε is about 0\.1;"):
        release = fit.release(epsilon=1e-4)
    assert float((release.predict_mean(data.x) - 0.2).abs().max()) < 0.03
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared(data, rows=1e3).release(epsilon=0.12)


@pytest.mark.usefixtures("quick")
def test_a_bayesian_guarantee_takes_draws_from_the_posterior() -> None:
    data = logistic_data(2000, 3)
    model, asked = BayesianLogisticRegression(), bdpvi.BayesianDP(rows=2000)
    ledger = bdpvi.Ledger()
    release = fit_private(model, data, epsilon=1.0, guarantee=asked, ledger=ledger)
    assert release.cost.bayesian is not None
    assert release.cost.bayesian.certified
    assert release.cost.bayesian.epsilon <= 1.0
    assert release.receipt.temperature is not None
    assert release.receipt.temperature >= 1.0
    spent = release.cost.bayesian.epsilon
    missed = r"is missed by the certificate .*1 charge made before"  # its price is not forgotten
    with pytest.raises(BudgetExceededError, match=missed):
        bdpvi.fit_private(model, data, epsilon=1.01 * spent, guarantee=asked, ledger=ledger)
    with pytest.raises(ValueError, match="leave route or guarantee out"):
        bdpvi.fit_private(
            model,
            data,
            epsilon=1.0,
            guarantee=asked,
            route=ObjectivePerturbation(rows=2000),
        )

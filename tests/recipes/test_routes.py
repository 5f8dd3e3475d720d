"""What is charged and released in one go: the price is the event's, and is paid before a draw."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from simulated import logistic_data

import bdpvi
from bdpvi import BayesianLogisticRegression, Budget, BudgetExceededError, Dataset
from bdpvi.accounting import worst_case
from bdpvi.accounting.events import PerturbedObjective, SampledGaussian
from bdpvi.accounting.ledger import Entry, Ledger
from bdpvi.dp.objective_plan import Rule
from bdpvi.dp.perturbed_objective import WeightedObjective
from bdpvi.guides import MeanField
from bdpvi.recipes.objective import ObjectivePerturbation
from bdpvi.recipes.routes import fit_private
from bdpvi.releasing.prepared import Left

MODEL = BayesianLogisticRegression(limit=2.0, intercept=True)


def test_the_price_is_the_events_and_the_target_is_met_from_below() -> None:
    data, route = logistic_data(200, 3), ObjectivePerturbation(rows=200)
    release = fit_private(MODEL, data, epsilon=1.0, route=route)
    (entry,) = data.people.ledger.entries()
    assert entry.events is not None
    found = worst_case.epsilon(entry.events, 1e-5)
    assert found is not None
    assert 0.998 <= found.epsilon <= 1.0
    assert data.people.ledger.worst_case(1e-5) == found
    assert release.receipt.epsilon == 1.0
    assert release.receipt.guarantee == "worst-case DP"
    (event,) = entry.events
    plan = route.plan(MODEL, 3, Left(1.0, 1e-5, 0.0))
    assert isinstance(event, PerturbedObjective)
    assert event == plan.with_noise(event.noise_multiplier).event


def test_what_was_spent_before_counts() -> None:
    data = logistic_data(100, 2)
    constants = SampledGaussian(noise_multiplier=10.0)
    data.people.ledger.charge(Entry(kind="constants", events=(constants,)))
    route = ObjectivePerturbation(rows=100)
    fit_private(MODEL, data, epsilon=1.0, route=route)
    total = data.people.ledger.worst_case(1e-5)
    assert total is not None
    assert 0.998 <= total.epsilon <= 1.0
    for one in (route, None):  # declared or not: nothing is counted in vain
        with pytest.raises(ValueError, match=r"epsilon=1 cannot be reached .* by 2 charges"):
            fit_private(MODEL, data, epsilon=1.0, route=one)
    fit_private(MODEL, data, epsilon=3.0, route=route)
    assert len(data.people.ledger.entries()) == 3
    total = data.people.ledger.worst_case(1e-5)
    assert total is not None
    assert 2.99 <= total.epsilon <= 3.0


def test_a_budget_refuses_before_anything_is_charged_or_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, ledger = logistic_data(1000, 2), Ledger(budget=Budget(0.5))
    monkeypatch.setattr("bdpvi.recipes.objective.perturbed_minima", None)
    with pytest.raises(BudgetExceededError, match=r"over the budget of ε = 0\.5"):
        fit_private(MODEL, data, epsilon=1.0, ledger=ledger)
    assert ledger.entries() == ()
    monkeypatch.undo()
    fit_private(MODEL, data, epsilon=0.5, ledger=ledger)
    assert [one.kind for one in ledger.entries()] == ["constants", "release"]


def test_it_is_charged_before_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    data = logistic_data(50, 2)

    def interrupted(*_: Any, **__: Any) -> Any:
        assert len(data.people.ledger.entries()) == 2
        raise KeyboardInterrupt

    monkeypatch.setattr("bdpvi.recipes.objective.perturbed_minima", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit_private(MODEL, data, epsilon=1.0)
    assert len(data.people.ledger.entries()) == 2


def test_a_process_killed_at_its_draw_has_paid(tmp_path: Path) -> None:
    script = f"""
import os, signal
from bdpvi.recipes import objective, routes
from bdpvi.accounting.ledger import Ledger
from bdpvi import BayesianLogisticRegression, Dataset
import torch
def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
objective.perturbed_minima = killed
data = Dataset(torch.zeros(5, 2), torch.ones(5))
routes.fit_private(BayesianLogisticRegression(clip=0.5), data, epsilon=1.0,
                   ledger=Ledger.at({str(tmp_path / "ledger.jsonl")!r}))
"""
    env = {**os.environ, "PYTHONPATH": str(Path(bdpvi.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], check=False, env=env)
    assert done.returncode == -signal.SIGKILL
    entries = Ledger.at(tmp_path / "ledger.jsonl").entries()
    assert [one.kind for one in entries] == ["constants", "release"]


def test_rows_of_one_person_have_no_price_together_and_are_refused() -> None:
    data, ledger = logistic_data(50, 2), Ledger(unit="patient", rows_per_unit=2)
    data.people.unit, data.people.rows_per_unit = "patient", 2
    with pytest.raises(ValueError, match="rows_per_unit=2: a minimum of a perturbed objective"):
        fit_private(MODEL, data, epsilon=1.0, ledger=ledger)
    assert ledger.entries() == ()


def test_a_release_is_saved_and_read_back(tmp_path: Path) -> None:
    data = logistic_data(60, 3)
    release = fit_private(MODEL, (data.x, data.y), epsilon=2.0)
    bdpvi.save_release(release, tmp_path / "release.json")
    back = bdpvi.load_release(tmp_path / "release.json")
    assert back.receipt == release.receipt
    assert torch.equal(back.predict_proba(data.x), release.predict_proba(data.x))
    assert json.loads((tmp_path / "release.json").read_text())["receipt"]["temperature"] is None


@pytest.mark.filterwarnings("ignore::bdpvi.PrivacyUtilityWarning")
def test_neighbouring_tables_pay_the_same_and_differ_by_one_gradient() -> None:
    """Whether there is a draw, and what it costs, does not depend on the records."""
    data = logistic_data(20, 2)
    plan = ObjectivePerturbation(rows=20).plan(MODEL, 2, Left(1.0, 1e-5, 0.0))
    w = torch.tensor([5.0, 2.0, -9.0], dtype=torch.float64)
    whole = WeightedObjective(plan, data.x, data.y).gradient(w)
    for i in range(20):
        less = data.without(i)
        moved = whole - WeightedObjective(plan, less.x, less.y).gradient(w)
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
        ("model=.* has no route", {"model": other}),
        ("is for BayesianLogisticRegression", {"model": other, "route": ObjectivePerturbation()}),
        ("takes no guide", {"guide": MeanField(MODEL)}),
        ("epsilon must be", {"epsilon": 0}),
        ("delta must lie", {"delta": 0}),
        ("y must be 0 or 1", {"data": (data.x, data.y + 1)}),
        ("data must be a Dataset or a pair", {"data": data.x}),
    ]
    for words, changes in calls:
        given = {"model": MODEL, "data": data, "epsilon": 1.0, **changes}
        with pytest.raises(ValueError, match=words):
            fit_private(given.pop("model"), given.pop("data"), **given)
    assert data.people.ledger.entries() == ()


def test_public_facts_and_several_minima() -> None:
    """Declared rows change ridge and clip of the residual; an intercept may be left out."""
    left = Left(0.2, 1e-5, 0.0)
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
        BayesianLogisticRegression(), data, epsilon=2.0, route=ObjectivePerturbation(draws=3)
    )
    assert release.samples.shape == (3, 3)
    assert release.receipt.draws == 3
    total = data.people.ledger.worst_case(1e-5)
    assert total is not None
    assert 1.996 <= total.epsilon <= 2.0

"""A refusal names what is at fault, and its remedy works."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from simulated import logistic_data

import bdpvi
from bdpvi import BayesianDP, Budget, BudgetExceededError, Ledger, TypicalRecord, guides
from bdpvi.bayesian.accounting.accountant import cost_of
from bdpvi.bayesian.accounting.answer import why_none
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.privacy.cost import Cost

pytestmark = pytest.mark.usefixtures("quick")
ROUNDING, TOO_MUCH = "does not cover the rounding", "a record can move them too far"


def fitted(ledger: Ledger | None = None, **grid: Any) -> bdpvi.Fit:
    model = bdpvi.BayesianLogisticRegression()
    guide = guides.Laplace(model, **grid)
    return bdpvi.fit(model, guide, logistic_data(1000, 5), ledger=ledger, progress=False)


def released(fit: bdpvi.Fit, draws: int = 1, **given: Any) -> bdpvi.Release:
    return bdpvi.release(fit, draws, guarantee=BayesianDP(), **given)


def test_a_grid_that_is_too_fine_is_named_and_a_coarser_one_works() -> None:
    for draws, grid in ((1, 2.0**-30), (10, 2.0**-22)):
        fit = fitted(grid=grid)
        with pytest.raises(ValueError, match=rf"{ROUNDING}.*coarser grid \(grid=\)") as refused:
            released(fit, draws)
        assert TOO_MUCH not in str(refused.value)
        assert fit.ledger.entries() == ()
        released(fitted(grid=2.0**-10), draws)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"draws": 1000}, {"draws": 10}),  # fewer samples
        ({"temperature": 1e-4}, {"temperature": 1.0}),  # a higher temperature
    ],
)
def test_draws_that_cost_too_much_are_no_fault_of_the_grid(
    given: dict[str, Any], remedy: dict[str, Any]
) -> None:
    fit = fitted()
    with pytest.raises(ValueError, match=TOO_MUCH) as refused:
        released(fit, **given)
    assert "grid" not in str(refused.value)
    assert fit.ledger.entries() == ()
    coarse = fitted(grid=2.0**-4)
    with pytest.raises(ValueError, match=TOO_MUCH):  # what the other message would advise
        released(coarse, **given)
    released(fit, **remedy)


def test_an_infinite_epsilon_is_not_due_to_rounding() -> None:
    assert "no finite ε before they are rounded" in why_none(1e-5, float("inf"), 1e-12)
    assert ROUNDING in why_none(1e-5, 2.0, 1e-5)


@pytest.mark.parametrize(("rounding", "rest"), [(1e-10, 40.0), (4e-6, 1e-3)])
def test_typical_records_have_the_same_causes(rounding: float, rest: float) -> None:
    b2 = torch.full((300, 1), rest, dtype=torch.float64)
    pairs = GaussianPairs(torch.ones_like(b2), b2)
    panel = Panel("remove", torch.arange(300), pairs)
    from bdpvi.bayesian.accounting.accountant import Account
    from bdpvi.bayesian.accounting.typical import typical

    words = TOO_MUCH if rest > 1 else ROUNDING
    with pytest.raises(ValueError, match=words):
        typical(Account([GuideDraws((panel,), rounding=rounding)]), 1e-5)
    assert typical(Account([GuideDraws((panel,))]), 1e-5).epsilon > 0
    assert isinstance(cost_of([GuideDraws((panel,))], 1e-5), Cost)


def test_a_target_that_a_certificate_misses_is_no_budget() -> None:
    fit = fitted()
    with pytest.raises(BudgetExceededError, match=r"epsilon=0\.3 is missed by the cer") as refused:
        released(fit, epsilon=0.3)
    assert "budget" not in str(refused.value)
    assert "which comes to Bayesian DP" in str(refused.value)
    assert fit.ledger.entries() == ()
    made = released(fit, epsilon=0.3, temperature=1e3)  # the remedy
    assert made.receipt.bound.epsilon == 0.3


def test_a_budget_that_a_certificate_exceeds_is_one() -> None:
    fit = fitted(Ledger(budget=Budget(0.05)))
    with pytest.raises(BudgetExceededError, match=r"over the budget of Bayesian DP ε = 0\.05"):
        released(fit)
    assert fit.ledger.entries() == ()


def test_a_target_for_typical_records_has_a_price() -> None:
    fit = fitted()
    with pytest.raises(BudgetExceededError, match=r"epsilon=0\.001 is missed by the price"):
        bdpvi.release(fit, 1, epsilon=0.001, temperature=1.0, guarantee=TypicalRecord())
    assert fit.ledger.entries() == ()

"""Draws from a Laplace fit behind a gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from simulated import logistic_data

import bdpvi
from bdpvi import (
    BayesianLogisticRegression,
    Budget,
    Dataset,
    Ledger,
    PrivacyUtilityWarning,
    TooFewRecordsError,
    guides,
)
from bdpvi.bayesian import gated_samples
from bdpvi.bayesian.gated.gate import Gate, Shape, chances
from bdpvi.privacy.events import SampledGaussian, Threshold

DATA = logistic_data(4000, 3)


def fitted(ledger: Ledger | None = None, data: Dataset = DATA, **options: Any) -> bdpvi.Fit:
    model = BayesianLogisticRegression(**options)
    records = Dataset(data.x, data.y)
    return bdpvi.fit(model, guides.Laplace(model), records, ledger=ledger, progress=False)


def test_a_release_costs_what_the_gate_has_and_the_draws_are_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def chances(shape: Any, distance: float, spare: float) -> Gate:
        asked.append((shape, distance, spare))
        return Gate(4, (1.0,))

    monkeypatch.setattr(gated_samples, "chances", chances)
    ledger = Ledger()
    fit = fitted(ledger)
    made = bdpvi.release(fit, 3, temperature=2.0, guarantee=bdpvi.WorstCaseDP(epsilon=1.5))
    assert made.samples.shape == (3, 4)
    assert made.receipt.bound.epsilon == pytest.approx(1.5, rel=0.005)
    (entry,) = ledger.entries()
    gate, spare = entry.events or ()
    assert isinstance(gate, SampledGaussian)
    assert isinstance(spare, Threshold)
    ((shape, distance, delta),) = asked
    assert distance == pytest.approx(1 / gate.noise_multiplier)
    assert delta == spare.delta
    assert (shape.columns, shape.draws, shape.temperature) == (4, 3, 2.0)
    assert shape.ratio == pytest.approx(7**0.5 / 2 / 4)


def test_it_reads_the_least_curvature_of_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def chance(self: Gate, curvature: float) -> float:
        seen.append(curvature)
        return 1.0

    monkeypatch.setattr(Gate, "chance", chance)
    fit = fitted(Ledger())
    bdpvi.release(fit, guarantee=bdpvi.WorstCaseDP(epsilon=2.0))
    released: Any = fit.released
    least = 1 / np.linalg.eigvalsh(released.covariance_matrix.numpy())[-1]
    assert seen == [pytest.approx(0.998 * least / (7**0.5 / 2 * 4))]


def test_a_refusal_is_charged_and_a_spent_budget_refuses_before() -> None:
    ledger = Ledger(budget=Budget(0.5, 1e-5))
    fit = fitted(ledger, Dataset(DATA.x[:60], DATA.y[:60]))
    with pytest.raises(TooFewRecordsError, match="refused: the posterior is too flat"):
        bdpvi.release(fit, guarantee=bdpvi.WorstCaseDP(epsilon=0.5))
    assert len(ledger.entries()) == 1
    with pytest.raises(ValueError, match=r"cannot be reached|over the budget"):
        bdpvi.release(fit, guarantee=bdpvi.WorstCaseDP(epsilon=0.5))
    assert len(ledger.entries()) == 1


def test_the_owner_hears_of_a_refusal_before_the_charge() -> None:
    fit = fitted(Ledger())
    with pytest.warns(PrivacyUtilityWarning, match="below about ([0-9,]+) records") as told:
        bdpvi.release(fit, guarantee=bdpvi.WorstCaseDP(epsilon=2.0))
    assert told[0].filename == __file__
    gate, spare = fit.ledger.entries()[0].events or ()
    shape = Shape(4, 7**0.5 / 2 / 4)
    sure = chances(shape, 1 / gate.noise_multiplier, spare.delta)  # type: ignore[attr-defined]
    at = next(cell for cell in range(4, 10_000) if sure.chance(cell) >= 0.95)
    said = int(str(told[0].message).split("about ")[1].split()[0].replace(",", ""))
    assert said == pytest.approx(at * 5.5 / 0.03, rel=0.1)


def test_other_fits_and_two_epsilons_are_refused_uncharged() -> None:
    gate = bdpvi.WorstCaseDP(epsilon=1.0)
    wide, fit = fitted(Ledger(), prior_scale=5.0), fitted(Ledger())
    model = BayesianLogisticRegression(clip=0.5, prior_scale=0.3, limit=2.0)
    records = Dataset(DATA.x[:60], DATA.y[:60])
    mean = bdpvi.fit(model, guides.MeanField(model, noise_scale=1.0), records, progress=False)
    for one, match in ((wide, "prior_scale=5.0 is too wide"), (mean, "ObjectivePerturbation")):
        with pytest.raises(ValueError, match=match):
            bdpvi.release(one, guarantee=gate)
        assert not one.ledger.entries()
    with pytest.raises(ValueError, match=r"for bdpvi.release of a fit; route=PosteriorDraws"):
        bdpvi.fit_private(fit.model, records, epsilon=1.0, guarantee=gate)
    frame = pd.DataFrame({"x": [0.0, 1.0] * 50, "y": ["a", "b"] * 50})
    with pytest.raises(ValueError, match=r"for bdpvi.release of a fit; draws=PosteriorDraws"):
        bdpvi.private(frame, target="y", positive="a", epsilon=1.0, guarantee=gate)
    with pytest.raises(ValueError, match="both have an ε"):
        bdpvi.release(fit, epsilon=1.0, guarantee=gate)
    with pytest.raises(ValueError, match="epsilon"):
        bdpvi.WorstCaseDP(epsilon=-1.0)
    for options in ({"draws": 0}, {"temperature": 0.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            bdpvi.release(fit, **options, guarantee=gate)
    assert not fit.ledger.entries()


def test_a_refusal_leaves_its_receipt_beside_a_saved_fit(tmp_path: Path) -> None:
    fit = fitted(Ledger(), Dataset(DATA.x[:60], DATA.y[:60]))
    bdpvi.save_fit(fit, tmp_path / "fit")
    with pytest.raises(TooFewRecordsError, match="refused"):
        bdpvi.release(fit, guarantee=bdpvi.WorstCaseDP(epsilon=0.5))
    assert len(fit.ledger.entries()) == 1
    assert (tmp_path / "fit" / "release-1.json").exists()

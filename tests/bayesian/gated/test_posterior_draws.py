"""Draws of a posterior with a worst case, through the doors that users have."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from simulated import logistic_data

import bdpvi
from bdpvi import (
    BayesianLogisticRegression,
    Dataset,
    Ledger,
    PosteriorDraws,
    PrivacyUtilityWarning,
    TooFewRecordsError,
)
from bdpvi.bayesian.gated import route as gated
from bdpvi.bayesian.gated.coordinates import Coordinates, norm
from bdpvi.bayesian.gated.gate import Gate, curvature
from bdpvi.datasets.dataset import BlockData, People
from bdpvi.datasets.records import Held
from bdpvi.noise.keys import Key
from bdpvi.privacy.book import Book
from bdpvi.privacy.events import SampledGaussian, Threshold
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.releases.mechanisms import Solve
from bdpvi.releases.route import planned
from bdpvi.releases.transaction import Before, Transaction
from bdpvi.tables.prepared import Prepared

MODEL = BayesianLogisticRegression(limit=2.0)
DATA = logistic_data(6000, 3)


def data() -> Dataset:
    """Return the records as nobody has used them before."""
    return Dataset(DATA.x, DATA.y)


def released(epsilon: float = 1.0, records: Any = None, **options: Any) -> bdpvi.Release:
    route = PosteriorDraws(**{"rows": 5000, **options})
    records = records or data()
    return bdpvi.fit_private(MODEL, records, epsilon=epsilon, route=route, ledger=Ledger())


def test_a_draw_predicts_like_the_posterior_and_costs_what_was_asked() -> None:
    ledger = Ledger()
    route = PosteriorDraws(rows=5000, draws=5)
    made = bdpvi.fit_private(MODEL, data(), epsilon=2.0, route=route, ledger=ledger)
    assert made.samples.shape == (5, 4)
    bound = made.receipt.bound
    assert bound.epsilon == 2.0
    (entry,) = ledger.entries()
    assert entry.events is not None
    moments, gate, spare = entry.events
    assert isinstance(moments, SampledGaussian)
    assert isinstance(gate, SampledGaussian)
    assert isinstance(spare, Threshold)
    mu = np.hypot(1 / moments.noise_multiplier, 1 / gate.noise_multiplier)
    assert 0.99 * 2.0 <= gaussian_epsilon(float(mu**2), 1e-5 - spare.delta) <= 2.0
    assert "refusal is covered by ε" in str(made.receipt.about)
    chance = made.predict_proba(DATA.x)[:, 1]
    true = torch.sigmoid(DATA.x @ torch.linspace(-1, 1, 3).double())
    assert float((chance - true).abs().mean()) < 0.03


def test_draws_are_of_the_posterior_at_their_temperature() -> None:
    """Mean and covariance over 60,000 draws; a standard error is 0.4 % of a variance √2."""
    records = Dataset(DATA.x[:300, :2], DATA.y[:300])
    route = PosteriorDraws(rows=500, draws=200, temperature=4.0, whiten=torch.eye(2))
    plan = replace(route._settings(2, 1 / 60, 3e-6), curvature=None)
    made = Coordinates(torch.eye(2).double(), torch.zeros(2).double())
    peak = gated._mode(Held((records.x, records.y)), made, 300, 0.0)
    every = [route.draw(MODEL, records, plan, Key.of_seed(at)).latents["w"] for at in range(300)]
    w = torch.cat(every)
    w[:, -1] /= 2
    white = (w - peak.point) @ torch.linalg.inv(peak.root).T / 2
    assert float(white.mean(0).abs().max()) < 0.02
    assert float((torch.cov(white.T) - torch.eye(3)).abs().max()) < 0.025


def test_the_gate_has_the_price_that_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shape, distance and δ of the gate, and the noise of the coordinates, are those of events."""
    asked, noise, keys = [], [], list[str]()

    def chances(shape: Any, distance: float, spare: float) -> Gate:
        asked.append((shape, distance, spare))
        return Gate(4, (1.0,))

    def of(records: Any, columns: int, multiplier: float, key: Key) -> Coordinates:
        noise.append(multiplier)
        return Coordinates(torch.eye(3).double()[:2], torch.zeros(3).double())

    def child(self: Key, *labels: str | int) -> Key:
        keys.append(str(labels))
        return named(self, *labels)

    named = Key.child
    monkeypatch.setattr(gated, "chances", chances)
    monkeypatch.setattr(Coordinates, "released", of)
    monkeypatch.setattr(Key, "child", child)
    route = PosteriorDraws(rows=5000, draws=3, temperature=2.0)
    plan = route._settings(3, 4.0, 3e-6)
    keys.clear()
    route.draw(MODEL, data(), plan, Key.of_seed(0))
    moments, gate, spare = plan.events
    assert noise == [moments.noise_multiplier]  # type: ignore[attr-defined]
    ((shape, distance, delta),) = asked
    assert distance == pytest.approx(1 / gate.noise_multiplier)  # type: ignore[attr-defined]
    assert delta == spare.delta
    assert (shape.columns, shape.draws, shape.temperature) == (3, 3, 2.0)
    assert shape.ratio == pytest.approx(6**0.5 / 2 / (2 * 1.25**2 + 4) ** 0.5)
    assert len(keys) == len(set(keys)) >= 3
    whole = plan.event.noise_multiplier**-2
    parts = [one.noise_multiplier**-2 for one in (moments, gate)]  # type: ignore[attr-defined]
    assert sum(parts) == pytest.approx(whole)


def test_samples_vary_as_the_posterior_does() -> None:
    """Their covariance over 400 draws, beside the inverse Hessian of the weighted likelihood."""
    made = released(20.0, draws=300, rows=2e4)
    x, m = DATA.x.clamp(-2, 2), made.samples.mean(0)
    z = torch.cat([x, torch.ones(len(x), 1)], 1)
    p = torch.sigmoid(z @ m)
    length = torch.cat([x, torch.full((len(x), 1), 2.0)], 1).norm(dim=1)
    weight = (0.5 * 7**0.5 / length).clamp(max=1)
    usual = torch.linalg.inv((z.T * (weight * p * (1 - p))) @ z)
    ratio = torch.linalg.eigvals(torch.cov(made.samples.T) @ torch.linalg.inv(usual)).real
    assert float(ratio.min()) > 0.6
    assert float(ratio.max()) < 1.5


def test_the_least_curvature_is_that_of_the_posterior_and_never_above() -> None:
    made = Coordinates(2 * torch.eye(3).double()[:2], torch.full((3,), 0.1).double())
    held = Held((DATA.x[:500], DATA.y[:500]))
    peak = gated._mode(held, made, 500, 0.0)
    u = 2 * (DATA.x[:500].clamp(-2, 2) - 0.1)[:, :2].numpy()
    u = u * np.minimum(1, 1.25 * 2**0.5 / np.linalg.norm(u, axis=1))[:, None]
    z = np.c_[u, np.full(500, 2.0)]
    c, b = 6**0.5 / 2, (2 * 1.25**2 + 4) ** 0.5
    p = 1 / (1 + np.exp(-z @ peak.point.numpy()))
    weight = np.minimum(1, c / np.linalg.norm(z, axis=1)) * p * (1 - p)
    least = np.linalg.eigvalsh((z.T * weight) @ z + 4 * c * b * np.eye(3))[0] / (c * b)
    found = curvature(peak.root, c, b)
    assert 0.997 * least < found < 0.999 * least


def test_blocks_have_the_same_draws_and_a_work_repeats_its_own() -> None:
    route = PosteriorDraws(rows=5000)
    blocks = BlockData.of_items([*zip(DATA.x, DATA.y, strict=True)])
    every = []
    for records in (data(), blocks):
        prepared = Prepared.of(MODEL, records, route, ledger=Ledger())
        work = Transaction(prepared.ledger, Key.of_seed(3), kept=True)
        first = prepared.release(epsilon=1.5, work=work)
        again = prepared.release(epsilon=1.5, work=work)
        assert torch.equal(first.samples, again.samples)
        assert len(prepared.ledger.entries()) == 1
        every.append(first.samples)
    torch.testing.assert_close(every[0], every[1], atol=1e-2, rtol=0)


def test_a_refusal_is_charged_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()
    flat = Dataset(torch.zeros(400, 3).double(), torch.ones(400).double())
    route = PosteriorDraws(rows=1e4, curvature=0.1)
    with pytest.raises(TooFewRecordsError, match=r"refused: the posterior is too flat.*charged"):
        bdpvi.fit_private(MODEL, flat, epsilon=0.5, route=route, ledger=ledger)
    assert ledger.worst_case(1e-5).epsilon == pytest.approx(0.5, rel=0.01)  # type: ignore[union-attr]


def test_a_refusal_is_as_likely_as_the_gate_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gated, "curvature", lambda root, norm, longest: 40.0)
    route = PosteriorDraws(rows=5000, curvature=0.1, whiten=torch.eye(3))
    out, chance = 0, 0.0
    for _ in range(60):
        few = Dataset(DATA.x[:200], DATA.y[:200])
        try:
            bdpvi.fit_private(MODEL, few, epsilon=1.0, route=route, ledger=Ledger())
            out += 1
        except TooFewRecordsError:
            pass
        if not chance:
            left = gated_plan(route, 1.0)
            chance = left.gate(Coordinates(torch.eye(3), torch.zeros(3))).chance(40.0)
    assert 0.1 < chance < 0.9
    assert abs(out / 60 - chance) < 4 * (chance * (1 - chance) / 60) ** 0.5


def gated_plan(route: PosteriorDraws, epsilon: float) -> gated.GatedPlan:
    """Return the settings as a release has them."""
    prepared = Prepared.of(MODEL, data(), route, ledger=Ledger())
    solve = Solve(prepared.model, prepared.data, prepared.route, epsilon, 1e-5)
    plan, _, _ = Transaction(Ledger(), Key.of_seed(0)).charge(solve)
    made: gated.GatedPlan = plan.settings
    return made


def test_a_hopeless_target_is_refused_uncharged_with_one_that_would_do() -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match="Nothing was charged") as error:
        bdpvi.fit_private(MODEL, DATA, epsilon=0.1, route=PosteriorDraws(rows=5000), ledger=ledger)
    assert not ledger.entries()
    enough = float(re.search(r"ε = ([\d.]+) would do", str(error.value)).group(1))  # type: ignore[union-attr]
    plan = gated_plan(PosteriorDraws(rows=5000), 1.02 * enough)
    assert 0.5 <= plan.chance < 0.8


def test_a_possible_refusal_is_a_warning() -> None:
    plan = gated_plan(PosteriorDraws(rows=5000), 0.84)
    assert plan.chance < 0.95
    assert "would be refused, at the same price" in PosteriorDraws(rows=5000).caution(plan, 1e-5)


def test_public_coordinates_leave_all_to_the_gate() -> None:
    made = released(1.0, whiten=torch.eye(3))
    assert made.samples.shape == (1, 4)
    whitened, public = (
        gated_plan(PosteriorDraws(rows=5000, whiten=one), 1.0) for one in (None, torch.eye(3))
    )
    assert public.distance == pytest.approx(
        whitened.distance / (1 - whitened.share) ** 0.5, rel=0.01
    )
    assert 0 < whitened.share < 0.25
    assert gated_plan(PosteriorDraws(rows=1000, curvature=1.0), 1.0).share == 0.25
    assert [len(one.events) for one in (whitened, public)] == [3, 2]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"whiten": torch.zeros(2, 3)}, "whiten must be finite, .* with independent rows"),
        ({"whiten": torch.zeros(0, 3)}, "whiten must be finite, .* with independent rows"),
        ({"whiten": torch.eye(2)}, "whiten has 2 columns, and x has 3"),
        ({"draws": 0}, "draws"),
        ({"temperature": 0.0}, "temperature"),
        ({"rows": 3}, "rows must be from 10"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        released(**options)


def test_other_models_guides_and_units_name_a_route_that_works() -> None:
    for model in (
        BayesianLogisticRegression.unweighted(),
        bdpvi.BayesianPoissonRegression(largest=9),
    ):
        with pytest.raises(ValueError, match="for BayesianLogisticRegression with an intercept"):
            bdpvi.fit_private(model, data(), epsilon=1.0, route=PosteriorDraws())
    people = People(Ledger(unit="id", rows_per_unit=2), unit="id", rows_per_unit=2)
    with pytest.raises(ValueError, match=r"no price for several .*ObjectivePerturbation"):
        bdpvi.fit_private(
            MODEL, data().of_people(people), epsilon=1.0, route=PosteriorDraws(rows=5000)
        )
    with pytest.raises(ValueError, match="takes no guide"):
        bdpvi.fit_private(
            MODEL, data(), epsilon=1.0, route=PosteriorDraws(), guide=bdpvi.guides.Laplace(MODEL)
        )


def test_constant_columns_and_few_rows_are_no_fault() -> None:
    x = torch.cat([DATA.x, torch.ones(len(DATA.x), 1)], 1)
    made = released(3.0, Dataset(x, DATA.y))
    assert made.samples.shape == (1, 5)
    assert bool(made.samples.isfinite().all())
    with pytest.raises(TooFewRecordsError, match="refused"):
        released(1.0, Dataset(x[:3], DATA.y[:3]))


def wide(intercept: float) -> Dataset:
    """Return 3,300 × 9 records, as of a table whose draws were refused."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(3300, 9, generator=g, dtype=torch.float64)
    y = torch.rand(3300, generator=g, dtype=torch.float64) < torch.sigmoid(x[:, 0] + intercept)
    return Dataset(x, y.double())


@pytest.mark.filterwarnings("error:about .* of 100 tables")
def test_whoever_makes_the_caution_an_error_pays_nothing() -> None:
    ledger, route = Ledger(), PosteriorDraws(rows=3300)
    with pytest.raises(PrivacyUtilityWarning):
        bdpvi.fit_private(MODEL, wide(-3.3), epsilon=3.0, route=route, ledger=ledger)
    assert not ledger.entries()


def test_a_rare_class_has_half_the_usual_curvature_and_the_caution_says_so() -> None:
    route = PosteriorDraws(rows=3300)
    prepared: Any = Prepared.of(MODEL, wide(-3.3), route, ledger=Ledger())
    args = prepared.route, MODEL, 9, Before(Book("a"))
    with pytest.warns(PrivacyUtilityWarning) as told:
        plan = planned(*args, 2.0, 1e-5)
    parts = Held((prepared.data.x, prepared.data.y))
    made = prepared.route._coordinates(parts, plan, Key.of_seed(0))
    root = gated._mode(parts, made, 3300, 0.0).root
    found = curvature(root, norm(made.columns), made.longest)
    assert found == pytest.approx(plan.curvature / 2, rel=0.2)
    said = re.findall(r"(?:about|and) (\d+) of 100", str(told[0].message))
    refused = [round(100 * (1 - plan.gate().chance(part * plan.curvature))) for part in (1, 0.5)]
    assert [int(one) for one in said] == refused
    assert refused[0] < 5 < 90 < refused[1]
    enough = float(re.search(r"about ([\d.]+);", str(told[0].message)).group(1))  # type: ignore[union-attr]
    for epsilon, least, most in ((1.05 * enough, 0.95, 1.0), (0.9 * enough, 0.0, 0.95)):
        plan = planned(*args, epsilon, 1e-5)
        assert least <= plan.gate().chance(plan.curvature / 2) <= most
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planned(*args, 1.1 * enough, 1e-5)


@pytest.mark.parametrize(
    ("options", "people", "match"),
    [
        ({}, 2, "no price for several"),
        ({"draws": 10_000_000}, 1, "no ε would do.* Nothing was charged"),
    ],
)
def test_what_no_count_could_change_is_refused_before_the_count(
    options: dict[str, Any], people: int, match: str
) -> None:
    unit: dict[str, Any] = {} if people == 1 else {"unit": "id", "rows_per_unit": people}
    ledger = Ledger(**unit)
    records = data().of_people(People(ledger, **unit))
    with pytest.raises(ValueError, match=match) as error:
        bdpvi.fit_private(MODEL, records, epsilon=1.0, route=PosteriorDraws(**options))
    assert type(error.value) is ValueError
    assert {one.kind for one in ledger.entries()} == {"reserved", "ended"}


def test_a_small_count_says_that_it_was_charged() -> None:
    ledger = Ledger()
    with pytest.raises(TooFewRecordsError, match="Only the count of records was charged"):
        bdpvi.fit_private(MODEL, data(), epsilon=0.1, route=PosteriorDraws(), ledger=ledger)
    assert [one.purpose for one in ledger.entries() if one.kind == "constants"] == ["rows"]

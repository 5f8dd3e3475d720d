"""Modes, their neighbours and certificates, against refits by other means."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from accounts import elsewhere
from pyro.infer.autoguide import AutoLaplaceApproximation
from scipy import optimize
from scipy.special import expit
from torch import Tensor

import bdpvi
from bdpvi import Dataset, Training, guides
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.losses import deltas_of
from bdpvi.bayesian.mode.expansion import ModeExpansion
from bdpvi.bayesian.mode.influence import of_any_table
from bdpvi.bayesian.mode.objective import LogPosterior, search_mode
from bdpvi.bayesian.mode.route import Mode
from bdpvi.bayesian.neighbours.route import Add, Remove
from bdpvi.bayesian.optimum.packed import unpack
from bdpvi.bayesian.optimum.weighted import Weighted
from bdpvi.datasets.records import Held
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy import conversions
from bdpvi.privacy.event import WITH, WITHOUT

MODEL = BayesianLogisticRegression()


def table(rows: int, d: int, seed: int, kind: str = "light") -> Dataset:
    """Return a table of one of the populations that costs are hard to judge of."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, d))
    if kind == "heavy":
        x = random.standard_t(2, (rows, d))
    elif kind == "clustered":
        x = 0.2 * x + 2 * (random.random((rows, 1)) < 0.1)
    elif kind == "rare corner":
        x = np.where(random.random((rows, 1)) < 0.004, 9.0, 0.3 * x)
    w = np.random.default_rng(d).standard_normal(d)
    y = (random.random(rows) < expit(x @ w - 0.5)).astype(float)
    return Dataset(torch.tensor(x), torch.tensor(y))


def refit(model: BayesianLogisticRegression, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mode and the Hessian, by scipy."""
    z = model.design(x)
    weight, precision = model.record_weights(z).numpy(), model.precision(z.shape[1])
    rows, target = z.numpy(), y.numpy()

    def loss(w: np.ndarray) -> float:
        data = weight @ (np.logaddexp(0, rows @ w) - target * (rows @ w))
        return float(data + precision / 2 * w @ w)

    def gradient(w: np.ndarray) -> Any:
        return rows.T @ (weight * (expit(rows @ w) - target)) + precision * w

    def hessian(w: np.ndarray) -> Any:
        p = expit(rows @ w)
        return (rows.T * (weight * p * (1 - p))) @ rows + precision * np.eye(len(w))

    start = np.zeros(z.shape[1])
    found = optimize.minimize(loss, start, jac=gradient, hess=hessian, method="trust-exact").x
    for _ in range(3):  # what the search left
        found = found - np.linalg.solve(hessian(found), gradient(found))
    return torch.tensor(found), torch.tensor(hessian(found))


def pair(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> GaussianPairs:
    """Return N(m, H⁻¹) against another."""
    factor = torch.linalg.cholesky(torch.linalg.inv(one[1]))
    r, axes = torch.linalg.eigh(factor.T @ other[1] @ factor)
    shift = torch.linalg.solve(factor, other[0] - one[0])
    return GaussianPairs(r.unsqueeze(0), (r * (axes.T @ shift).square()).unsqueeze(0))


@pytest.mark.parametrize("kind", ["light", "heavy", "rare corner"])
def test_neighbours_are_those_of_refits(kind: str) -> None:
    data, more = table(60, 3, 0, kind), table(4, 3, 1, kind)
    more = replace(more, ids=more.ids + 1000)
    fit = bdpvi.fit(
        MODEL, guides.Laplace(MODEL), data, neighbours=Mode(Remove(), Add(more)), progress=False
    )
    whole = refit(MODEL, data.x, data.y)
    assert torch.allclose(fit.parameters["loc"], whole[0], atol=1e-8)
    covariance = fit.parameters["scale_tril"] @ fit.parameters["scale_tril"].T
    assert torch.allclose(covariance, torch.linalg.inv(whole[1]), rtol=1e-7)
    for panel in fit.panels:
        for i in range(4):
            if panel.kind == "remove":
                keep = torch.arange(60) != i
                other = refit(MODEL, data.x[keep], data.y[keep])
            else:
                other = refit(
                    MODEL,
                    torch.cat([data.x, more.x[i : i + 1]]),
                    torch.cat([data.y, more.y[i : i + 1]]),
                )
            truth = pair(whole, other)
            assert torch.allclose(panel.pairs.r[i], truth.r[0], rtol=0, atol=1e-8)
            assert torch.allclose(panel.pairs.b2[i].sum(), truth.b2.sum(), rtol=1e-6)
            for epsilon in (0.05, 0.5):
                found = panel.pairs.select(slice(i, i + 1)).hockey_stick(epsilon)
                assert torch.allclose(found, truth.hockey_stick(epsilon), rtol=2e-3, atol=1e-12)
        assert panel.error is not None
        assert float(panel.error.max()) < 1e-7


def test_polynomials_and_passes_agree() -> None:
    """Where a stronger pull leaves the polynomial too rough, passes over the data take over."""
    model = BayesianLogisticRegression(prior_scale=1.0)
    data = table(40, 3, 3)
    fit = bdpvi.fit(model, guides.Laplace(model), data, progress=False)
    whole = refit(model, data.x, data.y)
    panel = fit.panels[0]
    assert panel.error is not None
    assert float(panel.error.max()) < 1e-6
    for i in (0, 11, 39):
        keep = torch.arange(40) != i
        truth = pair(whole, refit(model, data.x[keep], data.y[keep]))
        found = panel.pairs.select(slice(i, i + 1))
        assert torch.allclose(found.hockey_stick(0.5), truth.hockey_stick(0.5), rtol=3e-3)


def test_one_far_record_asks_for_no_larger_tensor() -> None:
    """What δ pays for is a mean; yet no single neighbour is left rough."""
    data = table(2000, 3, 0)
    records = Weighted.of(MODEL, data)
    n = records.x.shape[1]
    peak = search_mode(
        LogPosterior(Held(records), len(data), MODEL.precision(n), torch.zeros(n).double()),
        torch.zeros(n).double(),
    )[-1]
    near, far = torch.full((9999,), 1e-4).double() / peak.longest, torch.tensor([1e-3]).double()
    far = far / peak.longest

    def degree(far: Tensor) -> int:
        return ModeExpansion.around(peak, far).degree

    assert degree(far) == degree(torch.cat([near, 8 * far])) == 3
    assert degree(near) == degree(torch.cat([near, far])) == 2


@pytest.mark.parametrize("kind", ["light", "heavy", "rare corner"])
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_what_a_polynomial_leaves_out_is_within_its_bounds(kind: str, degree: int) -> None:
    """Gradient and curvature at displacements, against the records' own sums."""
    data = table(200, 3, 2, kind)
    records = Weighted.of(MODEL, data)
    n = records.x.shape[1]
    zeros = torch.zeros(n).double()
    peak = search_mode(LogPosterior(Held(records), 200, MODEL.precision(n), zeros), zeros)[-1]
    made = ModeExpansion.around(peak, torch.tensor([1.0 / peak.longest]).double())
    assert made.degree == 3
    way = torch.randn(40, n, generator=torch.Generator().manual_seed(0)).double()
    moves = torch.logspace(-2, 0, 40).double()[:, None] * torch.nn.functional.normalize(way)
    length, h = moves.norm(dim=1), peak.longest
    pull, bend = made.pull(moves, degree), unpack(made.bend(moves, degree))
    prior = peak.posterior.precision * peak.root.T @ peak.root
    true_pull = records.pulls(peak.point, peak.root, moves) + moves @ prior
    true_bend = unpack(records.bends(peak.point, peak.root, moves).T) + prior
    end = max(degree, 2)
    most = (h * length).exp() * (h * length) ** end * length / math.factorial(end + 1)
    assert bool(((pull - true_pull).norm(dim=1) <= most + 1e-13).all())
    most = (h * length).exp() * (h * length) ** (degree + 1) / math.factorial(degree + 1)
    off = (bend - true_bend).flatten(1).norm(dim=1)
    assert bool((off <= most + 1e-13).all())
    assert float((off / most).max()) > 0.003  # the bound is not empty


def test_pyros_laplace_guide_is_ours_and_settings_that_do_not_matter_are_refused() -> None:
    data, guide = table(500, 4, 0), AutoLaplaceApproximation(MODEL)
    whole = bdpvi.fit(MODEL, guides.Laplace(MODEL), data, progress=False)
    other = bdpvi.fit(MODEL, guide, data, training=Training(steps=60), progress=False)
    assert type(other.guide) is guides.Laplace
    assert torch.equal(whole.parameters["loc"], other.parameters["loc"])
    for training in (Training(rate=0.2), Training(optim=lambda _: None)):
        with pytest.raises(ValueError, match=r"^training: .*found by Newton steps"):
            bdpvi.fit(MODEL, guides.Laplace(MODEL), data, training=training, progress=False)


def rows_to_add(data: Dataset) -> Tensor:
    """Return rows that move a fit far: corners of the box, and along its eigenvectors."""
    fit = bdpvi.fit(MODEL, guides.Laplace(MODEL), data, progress=False)
    _, axes = torch.linalg.eigh(fit.parameters["scale_tril"] @ fit.parameters["scale_tril"].T)
    d = data.x.shape[1]
    corners = torch.randn(3, d, generator=torch.Generator().manual_seed(0)).sign().double()
    along = axes[:d, [0, -1]].T.sign()
    return 2 * torch.cat([corners, along, -along])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rows", [0, 25, 400])
def test_no_record_costs_more_than_any_record_is_said_to(seed: int, rows: int) -> None:
    data = table(max(rows, 9), 3, seed, ["light", "heavy", "clustered"][seed])
    some, whole = data.select(torch.arange(rows)), refit(MODEL, data.x[:rows], data.y[:rows])
    far = rows_to_add(data)
    for x in far:
        for label in (0.0, 1.0):
            more = refit(
                MODEL, torch.cat([some.x, x[None]]), torch.cat([some.y, torch.tensor([label])])
            )
            added = of_any_table(MODEL, 4, added=True)
            removed = of_any_table(MODEL, 4, added=False)
            assert added is not None
            assert removed is not None
            for epsilon in (0.3, 2.0):
                forth, back = pair(whole, more), pair(more, whole)
                assert float(forth.hockey_stick(epsilon)) <= added.delta(epsilon, WITH)
                assert float(forth.reverse().hockey_stick(epsilon)) <= added.delta(epsilon, WITHOUT)
                assert float(back.hockey_stick(epsilon)) <= removed.delta(epsilon, WITH)
                assert float(back.reverse().hockey_stick(epsilon)) <= removed.delta(
                    epsilon, WITHOUT
                )


def certified(data: Dataset, delta: float, neighbours: Mode | None = None) -> float:
    fit = bdpvi.fit(MODEL, guides.Laplace(MODEL), data, neighbours=neighbours, progress=False)
    found = Account([GuideDraws(fit.panels)]).cost(delta).bayesian
    assert found is not None
    return found.epsilon


def exceeds(kind: str, rows: int, seed: int, delta: float) -> float:
    """Return how far the mean δ of fresh records, by refit, is above δ, in standard errors."""
    data, fresh = table(rows, 3, seed, kind), table(300, 3, 1000 + seed, kind)
    fresh = replace(fresh, ids=fresh.ids + 10_000)
    epsilon = certified(data, delta)
    fit = bdpvi.fit(MODEL, guides.Laplace(MODEL), data, neighbours=Mode(Add(fresh)), progress=False)
    pairs, found = fit.panels[0].pairs, []
    for one in (pairs, pairs.reverse()):
        own = one.hockey_stick(epsilon)
        found.append(float((own.mean() - delta) / (own.std() / len(own) ** 0.5)))
    return max(found)


KINDS = ("light", "heavy", "clustered", "rare corner")


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_over_fresh_records_is_within_a_certificate(kind: str) -> None:
    assert exceeds(kind, 400, 5, 1e-2) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(50))
def test_certificates_hold_on_many_tables(kind: str, seed: int) -> None:
    assert exceeds(kind, (300, 1000, 3000)[seed % 3], seed, 1e-2) <= 4


ODD: dict[str, Any] = {
    "separable": lambda x, y: (x, (x[:, 0] > 0).double()),
    "one class": lambda x, y: (x, torch.ones_like(y)),
    "constant column": lambda x, y: (torch.cat([x, torch.ones(len(x), 1).double()], 1), y),
    "duplicate columns": lambda x, y: (torch.cat([x, x], 1), y),
    "wide": lambda x, y: (torch.randn(len(x), 2 * len(x)).double(), y),
    "far out": lambda x, y: (1e6 * x, y),
    "few": lambda x, y: (x[:5], y[:5]),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tables_have_a_fit_and_a_price(name: str) -> None:
    data = table(40, 3, 0)
    x, y = ODD[name](data.x, data.y)
    fit = bdpvi.fit(MODEL, guides.Laplace(MODEL), (x, y), progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert bdpvi.release(fit, delta=1e-2).samples.isfinite().all()
    found = Account([GuideDraws(fit.panels)]).cost(1e-2).bayesian
    assert found is not None
    assert math.isfinite(found.epsilon)


@pytest.mark.parametrize("heldout", [0, 5])
def test_rows_decide_neither_a_fit_nor_a_word_of_the_receipt(
    heldout: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bdpvi.privacy.conceivable._largest", lambda *_: math.inf)
    said, fresh = set(), replace(table(heldout, 3, 1), ids=torch.arange(100, 100 + heldout))
    kinds = (Remove(), Add(fresh)) if heldout else ()
    for rows in (0, 1, 2, 40):
        elsewhere()
        told = []
        for _ in range(2):  # the second tells of the first, however many rows there are
            data, guide = table(rows, 3, 0), guides.Laplace(MODEL)
            fit = bdpvi.fit(MODEL, guide, data, neighbours=Mode(*kinds), progress=False)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # δ is more than 1/N
                told.append(bdpvi.release(fit, epsilon=8.0).receipt)
                cost = bdpvi.cost(fit)
            assert cost.bayesian is not None
            assert cost.bayesian.certified
            assert cost.bayesian.epsilon < 8
        assert (told[0].together, bool(told[1].together)) == ("", True)
        said.add(repr(told))
    assert len(said) == 1


@pytest.mark.parametrize("rows", [0, 1])
def test_with_fewer_than_two_rows_each_costs_what_the_dearest_would(rows: int) -> None:
    fit = bdpvi.fit(MODEL, guides.Laplace(MODEL), table(rows, 3, 0), progress=False)
    influence, orders = fit.panels[0].influence, torch.logspace(-1, 5, 49, dtype=torch.float64)
    assert influence is not None
    for direction in ("remove D‖D′", "remove D′‖D"):
        found = deltas_of([(GuideDraws(fit.panels), 1)], direction, 1e-5)
        assert found.bound is not None
        moments = influence.log_moment(orders, direction)
        for epsilon in (0.5, 2.0, 5.0):
            dearest = float(conversions.delta(moments, orders, epsilon).min())
            assert found.bound(epsilon) == pytest.approx(dearest, rel=1e-12)
            assert found.at(epsilon).tolist() == [found.bound(epsilon)] * 2


def test_few_rows_are_refused_where_no_worst_case_is_known() -> None:
    model = BayesianLogisticRegression(prior_scale=3.0)
    with pytest.raises(ValueError, match="data has 2 records; at least 3 are needed"):
        bdpvi.fit(model, guides.Laplace(model), table(2, 3, 0), progress=False)


def test_other_models_and_guides_are_told_of_their_routes() -> None:
    data = table(30, 3, 0)
    clipped = BayesianLogisticRegression(clip=0.5)
    with pytest.raises(ValueError, match=r"neighbours=Mode\(\) is for guides\.Laplace"):
        bdpvi.fit(MODEL, guides.FullRank(MODEL), data, neighbours=Mode(), progress=False)
    with pytest.raises(ValueError, match=r"without\s+clip"):
        bdpvi.fit(clipped, guides.Laplace(clipped), data, neighbours=Mode(), progress=False)


def test_what_is_proven_of_a_neighbour_covers_how_far_it_is_off() -> None:
    """Also where a record has most of its own direction's curvature, by a weak prior."""
    model = BayesianLogisticRegression(prior_scale=3.0)
    data = table(12, 3, 1)
    fit = bdpvi.fit(model, guides.Laplace(model), data, progress=False)
    whole, panel = refit(model, data.x, data.y), fit.panels[0]
    assert panel.error is not None
    assert bool(((panel.error >= 0) & (panel.error <= 1)).all())
    for i in range(12):
        keep = torch.arange(12) != i
        truth = pair(whole, refit(model, data.x[keep], data.y[keep]))
        for epsilon in (0.1, 1.0):
            found = float(panel.pairs.select(slice(i, i + 1)).hockey_stick(epsilon))
            off = (1 + math.exp(epsilon)) * float(panel.error[i])
            assert float(truth.hockey_stick(epsilon)) <= 1.003 * found + off


def test_a_guide_that_is_a_mode_is_not_trained_as_another() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3).double(), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    with pytest.raises(ValueError, match=r"use guides\.FullRank"):
        bdpvi.fit(model, AutoLaplaceApproximation(model), table(30, 3, 0), progress=False)
    given: dict[str, Any] = {"neighbours": bdpvi.Coupled(), "progress": False}
    with pytest.raises(ValueError, match=r"by Coupled; use guides\.FullRank"):
        bdpvi.fit(MODEL, guides.Laplace(MODEL), table(30, 3, 0), **given)

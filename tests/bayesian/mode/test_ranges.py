"""Certificates of Poisson, negative binomial, linear and multinomial regressions, against refits.

The refits take the Pyro model's own log-likelihood and autograd, and share no formula with
:mod:`bdpvi.bayesian.mode`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from test_modes import pair
from torch import Tensor

import bdpvi
from bdpvi import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianMultinomialRegression,
    BayesianNegativeBinomialRegression,
    BayesianOrdinalRegression,
    BayesianPoissonRegression,
    Dataset,
    guides,
)
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.mode.classes import moments
from bdpvi.bayesian.mode.influence import _spread, of_any_table
from bdpvi.bayesian.mode.plan import planned_temperature
from bdpvi.bayesian.mode.route import Mode
from bdpvi.bayesian.neighbours.route import Add, Remove
from bdpvi.bayesian.storage import load_fit, save_fit
from bdpvi.models.family import weighing
from bdpvi.models.losses import LossBound
from bdpvi.models.multinomial import Softmax
from bdpvi.models.ordinal import ordered_logits
from bdpvi.models.own import OwnRegression
from bdpvi.models.poisson import ContinuedPoisson
from bdpvi.models.traces import log_likelihood
from bdpvi.privacy import conversions
from bdpvi.privacy.conceivable import Influence
from bdpvi.privacy.event import WITH, WITHOUT

CUTS = torch.tensor([-1.0, 0.2, 1.5], dtype=torch.float64)
MODELS: dict[str, Any] = {
    "poisson": BayesianPoissonRegression.bounded(largest=4),
    "negative binomial": BayesianNegativeBinomialRegression.bounded(largest=4, dispersion=0.5),
    "linear": BayesianLinearRegression.bounded(largest=4.0, middle=1.0, error_scale=0.5),
    "multinomial": BayesianMultinomialRegression.bounded(classes=3),
    "own": OwnRegression(
        family=lambda a: dist.Categorical(logits=ordered_logits(a - CUTS[0], CUTS.diff())),
        targets=(0, 3),
        whole=True,
        bound=LossBound(score=1.0, curvature=0.5, concordance=1.0),
    ),
}
ENDS = {
    "poisson": (0.0, 4.0, 9.0),
    "negative binomial": (0.0, 4.0, 9.0),
    "linear": (-3.0, 1.0, 9.0),
    "multinomial": (0.0, 1.0, 2.0),
    "own": (0.0, 3.0, 9.0),
}
"""Targets that move fits far, two of them beyond the public bounds."""
SLOWER = [pytest.param(one, marks=[pytest.mark.slow] * (one == "own")) for one in MODELS]


def table(name: str, rows: int, d: int, seed: int, spread: float = 1.0) -> Dataset:
    g = torch.Generator().manual_seed(seed)
    x = spread * torch.randn(rows, d, generator=g, dtype=torch.float64)
    w = torch.randn(d, generator=torch.Generator().manual_seed(d), dtype=torch.float64) / d**0.5
    a = x @ w + 0.4
    if name == "linear":
        y = a + torch.randn(rows, generator=g, dtype=torch.float64)
    elif name == "multinomial":
        y = torch.multinomial(torch.stack([a, -a, 0 * a], 1).softmax(1), 1, generator=g)[:, 0]
    elif name == "own":
        y = torch.multinomial(ordered_logits(a - CUTS[0], CUTS.diff()).exp(), 1, generator=g)[:, 0]
    else:
        y = torch.poisson(a.exp(), generator=g)
    return Dataset(x, y.double())


def refit(model: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mode of the Pyro model, flat, and the Hessian there."""
    prior = model.priors(x)["w"]

    def loss(flat: Tensor) -> Tensor:
        w = flat.view(prior.mean.shape)
        own = log_likelihood(model, {"w": w}, x, y).sum() if len(x) else 0.0
        value: Tensor = ((w - prior.mean) / prior.sd).square().sum() / 2 - own
        return value

    w, turns = prior.mean.double().flatten().clone(), 0
    while turns < 60:
        turns += 1
        gradient = torch.autograd.functional.jacobian(loss, w)
        hessian = torch.autograd.functional.hessian(loss, w)
        step = torch.linalg.solve(hessian, gradient)
        size = 1.0
        while loss(w - size * step) > loss(w) and size > 1e-6:
            size /= 2
        w = w - size * step
        if float(step @ hessian @ step) < 1e-24:
            break
    return w, torch.autograd.functional.hessian(loss, w)


def fitted(model: Any, data: Dataset, neighbours: Mode | None = None) -> bdpvi.Fit:
    return bdpvi.fit(model, guides.Laplace(model), data, neighbours=neighbours, progress=False)


# --- constants ------------------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [3, 4, 5])
def test_cumulants_are_derivatives(degree: int) -> None:
    basis, g = Softmax(3).basis, torch.Generator().manual_seed(1)
    b, step = torch.randn(5, 2, generator=g, dtype=torch.float64), 1e-5
    before, after = (moments(b + by * torch.eye(2)[0], basis, degree - 1) for by in (-step, step))
    slope, found = (after - before) / (2 * step), moments(b, basis, degree)
    # Packed entries that begin with the first variable.
    assert torch.allclose(found[:, : slope.shape[1]], slope, atol=1e-8)


# --- neighbours -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [25, 70])
@pytest.mark.parametrize("name", MODELS)
def test_neighbours_are_those_of_refits(name: str, rows: int) -> None:
    model, data, more = MODELS[name], table(name, rows, 2, 0), table(name, 4, 2, 1, 3.0)
    more = replace(more, ids=more.ids + 1000)
    fit = fitted(model, data, Mode(Remove(), Add(more)))
    whole = refit(model, data.x, data.y)
    assert torch.allclose(fit.parameters["loc"], whole[0], atol=1e-8)
    covariance = fit.parameters["scale_tril"] @ fit.parameters["scale_tril"].T
    assert torch.allclose(covariance, torch.linalg.inv(whole[1]), rtol=1e-6, atol=1e-9)
    for panel in fit.panels:
        for i in range(4):
            if panel.kind == "remove":
                keep = torch.arange(rows) != i
                other = refit(model, data.x[keep], data.y[keep])
            else:
                x, y = (
                    torch.cat([a, b[i : i + 1]]) for a, b in ((data.x, more.x), (data.y, more.y))
                )
                other = refit(model, x, y)
            truth = pair(whole, other)
            assert torch.allclose(panel.pairs.b2[i].sum(), truth.b2.sum(), rtol=1e-5)
            for epsilon in (0.05, 0.5):
                found = panel.pairs.select(slice(i, i + 1)).hockey_stick(epsilon)
                assert torch.allclose(found, truth.hockey_stick(epsilon), rtol=3e-3, atol=1e-11)
        assert panel.error is not None
        assert float(panel.error.max()) < 1e-6


@pytest.mark.parametrize("rows", [400, pytest.param(4000, marks=pytest.mark.slow)])
def test_rows_at_the_kink_are_summed_exactly(rows: int) -> None:
    """Displacements carry some across it, where a polynomial is wrong."""
    model, data = MODELS["poisson"], table("poisson", rows, 2, 3)
    start = fitted(model, data).parameters["loc"]
    kink, own = ContinuedPoisson(4.0).kink, data.x.clone()
    # As near to it as records move predictors.
    design = model.design(own)
    away = (kink - design @ start) / start[0]
    near = (design[:, 0] + away).abs() < 1.9
    own[:, 0] = torch.where(near & (torch.arange(rows) % 3 == 0), own[:, 0] + away, own[:, 0])
    moved = Dataset(own, data.y)
    fit, whole = fitted(model, moved), refit(model, moved.x, moved.y)
    panel = fit.panels[0]
    order = panel.pairs.b2.sum(1).argsort(descending=True)
    for i in [*order[:3].tolist(), 5]:
        keep = torch.arange(rows) != i
        truth = pair(whole, refit(model, moved.x[keep], moved.y[keep]))
        assert torch.allclose(panel.pairs.b2[i].sum(), truth.b2.sum(), rtol=1e-6)
        assert torch.allclose(panel.pairs.r[i], truth.r[0], rtol=0, atol=1e-8)


# --- the range of any record ----------------------------------------------------------------------


def rows_to_add(model: Any, data: Dataset) -> Tensor:
    """Return rows that move a fit far: corners of the box, and along its eigenvectors."""
    fit, d = fitted(model, data), data.x.shape[1]
    factor = fit.parameters["scale_tril"]
    n = d + 1
    of_rows = (factor @ factor.T).view(n, -1, n, factor.shape[0] // n).diagonal(0, 1, 3).sum(-1)
    _, axes = torch.linalg.eigh(of_rows)
    corners = torch.randn(2, d, generator=torch.Generator().manual_seed(0)).sign().double()
    along = axes[:d, [0, -1]].T.sign()
    return torch.cat([2 * corners, 2 * along, -2 * along, 0.2 * corners[:1]])


@pytest.mark.parametrize("rows", [0, 12, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SLOWER)
def test_no_record_moves_a_fit_further_than_any_is_said_to(name: str, rows: int) -> None:
    """Shifts and eigenvalues by refit over their bounds, for every table and for this one."""
    model = MODELS[name]
    data = table(name, max(rows, 9), 2, rows, 2.0)
    some = data.select(torch.arange(rows))
    whole, closest = refit(model, some.x, some.y), 0.0
    columns = 3 * (2 if name == "multinomial" else 1)
    for x in rows_to_add(model, data):
        for target in ENDS[name]:
            y = torch.tensor([target]).double()
            more = Dataset(torch.cat([some.x, x[None]]), torch.cat([some.y, y]))
            after = refit(model, more.x, more.y)
            for added, one, other, base in (
                (True, whole, after, some), (False, after, whole, more),
            ):  # fmt: skip
                bounds = [of_any_table(model, columns, added=added)]
                if rows:
                    kinds = Add(Dataset(data.x[:1], data.y[:1], ids=torch.tensor([9999])))
                    own = fitted(model, base, Mode(kinds if added else Remove(3)))
                    bounds.append(own.panels[0].influence)
                truth = pair(one, other)
                shift = float((truth.b2 / truth.r).sum().sqrt())
                low, high = float(truth.r.min()), float(truth.r.max())
                for found in bounds:
                    assert found is not None
                    least, most = math.exp(-found.spread), math.exp(found.spread)
                    least, most = (
                        (least, most + found.share) if added else (least * (1 - found.share), most)
                    )
                    assert shift <= found.shift
                    assert least - 1e-9 <= low
                    assert high <= most + 1e-9
                    closest = max(closest, shift / found.shift)
                for epsilon in (0.3, 2.0):
                    forth, back = (
                        float(one.hockey_stick(epsilon)) for one in (truth, truth.reverse())
                    )
                    assert bounds[0] is not None
                    assert forth <= bounds[0].delta(epsilon, WITH)
                    assert back <= bounds[0].delta(epsilon, WITHOUT)
    assert closest > 0.35


def test_without_a_record_no_bound_is_smaller_by_a_percent() -> None:
    """The worst record of an empty Poisson table: count 0 against the highest rate is out of
    reach, count Y is not; the bound's formula, by hand."""
    model = MODELS["poisson"]
    c, b = math.sqrt(2 + 4) / 2, math.sqrt(2 * 4 + 4)
    ridge = 4 * 4 * c * b
    assert model.precision(3) == pytest.approx(ridge, rel=1e-12)
    found = of_any_table(model, 3, added=True)
    assert found is not None
    h, pull = b / math.sqrt(ridge), 4 * c / math.sqrt(ridge)
    assert found.shift == pytest.approx(-math.log(1 - h * pull) / h, rel=1e-4)
    assert found.share == pytest.approx(2 * c * b / ridge, rel=1e-12)


@pytest.mark.parametrize("name", ["poisson", "multinomial"])
@pytest.mark.parametrize("added", [True, False])
def test_nothing_is_proven_without_a_limit(name: str, added: bool) -> None:
    model = replace(MODELS[name], limit=None, prior_scale=0.2, weight_norm=1.0)
    assert of_any_table(model, 6, added=added) is None
    more = table(name, 4, 2, 1)
    kind = Add(replace(more, ids=more.ids + 1000)) if added else Remove()
    assert fitted(model, table(name, 30, 2, 0), Mode(kind)).panels[0].influence is None


@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("draws", [1, 10])
def test_an_own_curvature_of_several_ranks_is_within_the_spread(added: bool, draws: int) -> None:
    """Precisions of rest and own curvature of two ranks, at their ends, in random axes."""
    s, a, n = 0.08, 0.06, 4
    g = torch.Generator().manual_seed(draws)
    one = Influence(added=added, columns=n, shift=0.1, spread=s, share=a)
    wide = _spread(one)
    basis, other = torch.linalg.qr(torch.randn(2, 600, n, n, generator=g).double())[0]
    basis[:300] = other[:300]
    ends = torch.where(torch.rand(600, n, generator=g) < 0.5, -s, s).double().exp()
    own = (other[:, :, :2] @ other[:, :, :2].mT) * a
    if added:
        precision = (basis * ends.unsqueeze(1)) @ basis.mT + own
    else:
        half = (basis * ends.sqrt().unsqueeze(1)) @ basis.mT
        precision = half @ (torch.eye(n) - own) @ half
    shift = torch.randn(600, n, generator=g).double()
    shift[:200] = basis[:200, :, 0]
    shift = one.shift * shift / shift.norm(dim=1, keepdim=True)
    r, axes = torch.linalg.eigh(precision)
    b2 = r * (axes.mT @ shift.unsqueeze(2)).squeeze(2).square()
    pairs = GaussianPairs(r.repeat(1, draws), b2.repeat(1, draws))
    for epsilon in (0.1, 0.5, 1.5):
        for way, some in ((WITH, pairs), (WITHOUT, pairs.reverse())):
            assert float(some.hockey_stick(epsilon).max()) <= wide.delta(epsilon, way, draws)


# --- certificates ---------------------------------------------------------------------------------


def exceeds(name: str, rows: int, seed: int, delta: float) -> float:
    """Return how far the mean δ of fresh records, by expansion, is above δ, in standard errors."""
    model, data = MODELS[name], table(name, rows, 2, seed)
    fresh = table(name, 300, 2, 1000 + seed)
    fresh = replace(fresh, ids=fresh.ids + 10_000)
    found = Account([GuideDraws(fitted(model, data).panels)]).cost(delta).bayesian
    assert found is not None
    pairs = fitted(model, data, Mode(Add(fresh))).panels[0].pairs
    own = [one.hockey_stick(found.epsilon) for one in (pairs, pairs.reverse())]
    return max(float((one.mean() - delta) / (one.std() / len(one) ** 0.5)) for one in own)


@pytest.mark.parametrize("name", SLOWER)
def test_the_mean_over_fresh_records_is_within_a_certificate(name: str) -> None:
    assert exceeds(name, 400, 5, 1e-2) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(30))
def test_certificates_hold_on_many_tables(name: str, seed: int) -> None:
    assert exceeds(name, (300, 1000, 3000)[seed % 3], seed, 1e-2) <= 4


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", MODELS)
def test_a_release_has_every_guarantee(name: str, tmp_path: Path) -> None:
    model, data = MODELS[name], table(name, 300, 2, 0)
    fit = fitted(model, data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # δ is more than 1/N
        release = bdpvi.release(fit, delta=1e-2)
        cost = bdpvi.cost(fit, delta=1e-2)
    assert cost.bayesian is not None
    assert cost.bayesian.certified
    assert cost.worst_case is not None
    assert release.receipt.bayesian is not None
    assert release.samples.isfinite().all()
    save_fit(fit, tmp_path / "fit")
    again = load_fit(tmp_path / "fit", model, guides.Laplace(model))
    assert torch.equal(again.parameters["loc"], fit.parameters["loc"])
    assert again.panels[0].influence == fit.panels[0].influence
    assert weighing(model) is not None
    columns = fit.panels[0].pairs.r.shape[1]
    plans = [
        planned_temperature(model, columns, rows=rows, epsilon=0.2, delta=1e-5)
        for rows in (100, 4000)
    ]
    assert plans[0] > plans[1] >= 1


@pytest.mark.parametrize("name", MODELS)
def test_a_model_without_weights_says_what_certifies(name: str) -> None:
    model = MODELS[name].plain
    assert not model.weighs
    with pytest.raises(ValueError, match=r"bounded\(\)"):
        fitted(model, table(name, 30, 2, 0))


@pytest.mark.parametrize("name", ["poisson", "negative binomial"])
def test_no_target_is_beyond_the_bounds_of_a_score(name: str) -> None:
    """Records that are held out may have any numbers."""
    y = torch.tensor([-9.0, 2.0, 9.0], dtype=torch.float64)
    assert MODELS[name].terms(torch.zeros(3, 2), y)[1].tolist() == [0.0, 2.0, 4.0]


def test_what_has_no_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="has no bound on what a record moves"):
        BayesianOrdinalRegression.bounded(classes=3)
    with pytest.raises(ValueError, match="dispersion must be given"):
        BayesianNegativeBinomialRegression.bounded(largest=4)
    with pytest.raises(ValueError, match=r"error_scale=1\.0 needs weighted records"):
        BayesianLinearRegression(largest=4.0, error_scale=1.0)
    with pytest.raises(ValueError, match="exposure=1: weighted records have none"):
        BayesianPoissonRegression.bounded(largest=4, exposure=1)
    with pytest.raises(ValueError, match="class_weights"):
        BayesianMultinomialRegression.bounded(classes=2, class_weights=(1.0, 2.0))
    with pytest.raises(ValueError, match="prior_scale must be given"):
        BayesianPoissonRegression(largest=4, prior_scale=None)


def test_two_classes_cost_what_logistic_regression_costs() -> None:
    """Differences of two classes' weights are √2 as large, in the same units."""
    data = table("multinomial", 200, 2, 0)
    data = Dataset(data.x, (data.y == 1).double())
    two = fitted(BayesianMultinomialRegression.bounded(classes=2), data)
    one = fitted(BayesianLogisticRegression(), data)
    loc = two.parameters["loc"].view(3, 2)
    assert torch.allclose(loc[:, 1] - loc[:, 0], one.parameters["loc"], atol=1e-7)
    assert torch.allclose(two.panels[0].pairs.b2.sum(1), one.panels[0].pairs.b2.sum(1), rtol=1e-5)
    assert torch.allclose(two.panels[0].pairs.r, one.panels[0].pairs.r, atol=1e-7)


def test_a_category_counts_as_one_column() -> None:
    told = BayesianPoissonRegression.bounded(largest=4, levels=((0, 1, 2),))
    plain = BayesianPoissonRegression.bounded(largest=4)
    assert told.precision(5) == plain.precision(3)
    x = 50 * torch.randn(400, 4, generator=torch.Generator().manual_seed(0)).double()
    design = told.design(x)
    lengths = torch.linalg.vector_norm(design, dim=1)
    assert float(lengths.max()) <= told.longest(5) * (1 + 1e-12)
    assert float(lengths.max()) > 0.99 * told.longest(5)
    scores = told.record_weights(design) * lengths
    assert float(scores.max()) <= told.weighted_norm(5) * (1 + 1e-12)


@pytest.mark.parametrize("largest", [20, 1000])
def test_ten_draws_of_large_counts_have_a_worst_case(largest: int) -> None:
    """Samples are rounded exactly, so no e^ε times a rounding error uses up δ."""
    model = BayesianPoissonRegression.bounded(largest=largest)
    fit = fitted(model, table("poisson", 40, 3, 0))
    found = bdpvi.cost(fit, planned=bdpvi.privacy.Charge(10, 1.0)).worst_case
    assert found is not None
    influence = of_any_table(model, 4, added=True)
    assert influence is not None
    orders = torch.logspace(-1, 5, 481, dtype=torch.float64)
    moments = (influence.log_moment(orders, way, 10) for way in (WITH, WITHOUT))
    closed = max(float(conversions.epsilon(moment, orders, 1e-5).min()) for moment in moments)
    assert found.epsilon == pytest.approx(closed, rel=2e-3)
    assert found.epsilon > 20

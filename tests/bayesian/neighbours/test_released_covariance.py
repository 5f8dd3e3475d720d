"""The ridge of a guide: the covariance that samples are released with."""

from __future__ import annotations

from pathlib import Path

import dp_accounting
import pytest
import torch
from accounts import bayes, evidence_of
from simulated import logistic_data

import bdpvi
from bdpvi import Coupled, Optimum
from bdpvi.bayesian import Remove
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import summarise
from bdpvi.bayesian.optimum.sensitivity import ROOM
from bdpvi.bayesian.storage import load_fit, save_fit
from bdpvi.guides import FullRank, GaussianGuide, MeanField
from bdpvi.privacy.ledger import Charge

GUIDES = [MeanField, FullRank]
RIDGE = 7.0


def fitted(
    kind: type[GaussianGuide], data: bdpvi.Dataset, ridge: float = RIDGE, clip: float = 0.5
) -> bdpvi.Fit:
    model = bdpvi.BayesianLogisticRegression.unweighted(clip=clip)
    guide = kind(model, ridge=ridge)
    return bdpvi.fit(model, guide, data, neighbours=Optimum(precision=1e-9), progress=False)


@pytest.mark.parametrize("kind", GUIDES)
def test_samples_are_released_with_the_widened_covariance(kind: type[GaussianGuide]) -> None:
    fit = fitted(kind, logistic_data(40, 3))
    covariance = torch.diag(fit.posterior.variance)
    released = torch.diag(fit.released.variance)
    if kind is FullRank:
        covariance = fit.posterior.covariance_matrix  # type: ignore[attr-defined]
        released = fit.released.covariance_matrix  # type: ignore[attr-defined]
    torch.testing.assert_close(released, covariance + RIDGE * covariance @ covariance)
    assert torch.equal(fit.released.mean, fit.posterior.mean)
    draws = bdpvi.bayesian.preview(fit, 20_000, generator=torch.Generator().manual_seed(0))["w"]
    torch.testing.assert_close(torch.cov(draws.T), released, rtol=0.1, atol=0.03)


@pytest.mark.parametrize("kind", GUIDES)
def test_neighbours_are_compared_as_they_would_be_released(kind: type[GaussianGuide]) -> None:
    data = logistic_data(50, 3)
    fit = fitted(kind, data)
    orders = torch.tensor([0.5, 2.0, 5.0], dtype=torch.float64)
    found = fit.panels[0].pairs
    for record in (0, 7, 49):
        there = fitted(kind, data.without(record))
        exact = summarise(fit.released, there.released)
        for one, two in ((found, exact), (found.reverse(), exact.reverse())):
            cost, truth = one.renyi(orders)[:, record], two.renyi(orders)[:, 0]
            assert bool((cost >= truth * (1 - 1e-9)).all())
            # An error proven to 1e-9 is priced at about its power ⅔.
            torch.testing.assert_close(cost, truth, rtol=1e-4, atol=1e-12)


def test_coupled_neighbours_are_compared_as_they_would_be_released() -> None:
    data = logistic_data(30, 2)
    model = bdpvi.BayesianLogisticRegression(clip=0.5)

    def train(records: bdpvi.Dataset) -> bdpvi.Fit:
        guide = FullRank(model, ridge=RIDGE)
        return bdpvi.fit(
            model,
            guide,
            records,
            training=bdpvi.Training(steps=20, seed=0),
            neighbours=Coupled(Remove()),
            progress=False,
        )

    fit, there = train(data), train(data.without(4))
    exact = summarise(fit.released, there.released)
    torch.testing.assert_close(fit.panels[0].pairs.r[4], exact.r[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(fit.panels[0].pairs.b2[4], exact.b2[0], rtol=1e-6, atol=1e-12)


def test_a_ridge_evens_out_what_records_cost() -> None:
    """A clipped score of norm C, seen through Σ + κΣ², shows at most about C²/κ."""
    data, clip = logistic_data(120, 4), 0.1
    plain, ridged = (fitted(FullRank, data, ridge, clip).panels[0].pairs for ridge in (0.0, 1e4))
    spread = [float(p.b2.sum(1).max() / p.b2.sum(1).mean()) for p in (plain, ridged)]
    assert spread[1] < spread[0]
    assert float(ridged.b2.sum(1).max()) < 1.1 * clip**2 / 1e4


def test_a_fit_is_not_read_back_with_another_ridge(tmp_path: Path) -> None:
    fit = fitted(MeanField, logistic_data(20, 2))
    save_fit(fit, tmp_path / "fit")
    back = load_fit(tmp_path / "fit", fit.model, MeanField(fit.model, ridge=RIDGE))
    assert torch.equal(back.released.variance, fit.released.variance)
    with pytest.raises(ValueError, match=r"was made with ridge=7\.0, and not ridge=0\.0"):
        load_fit(tmp_path / "fit", fit.model, MeanField(fit.model))


def test_bad_ridge() -> None:
    with pytest.raises(ValueError, match=r"ridge must be .* got -1"):
        FullRank(bdpvi.BayesianLogisticRegression.unweighted(), ridge=-1)
    with pytest.raises(AttributeError):
        FullRank(bdpvi.BayesianLogisticRegression.unweighted()).ridge = 3.0  # type: ignore[misc]


@pytest.mark.parametrize("kind", GUIDES)
def test_a_public_noise_scale_leaves_the_means_alone_to_tell(kind: type[GaussianGuide]) -> None:
    data, scale = logistic_data(50, 3), 0.3
    model = bdpvi.BayesianLogisticRegression(clip=0.5)

    def train(records: bdpvi.Dataset) -> bdpvi.Fit:
        guide = kind(model, noise_scale=scale)
        return bdpvi.fit(model, guide, records, neighbours=Optimum(precision=1e-9), progress=False)

    fit = train(data)
    torch.testing.assert_close(fit.released.variance, torch.full((3,), scale**2).double())
    found = fit.panels[0].pairs
    assert bool((found.r == 1).all())
    for record in (0, 7, 49):
        there = train(data.without(record))
        moved = float((fit.released.mean - there.released.mean).norm()) / scale
        cost = float(found.b2[record].sum().sqrt())
        assert moved * (1 - 1e-9) <= cost <= moved * (1 + 1e-5)
    # No floor: any ε can be had.
    assert bdpvi.WorstCaseDP().temperature(fit, 1, 1e-3, 1e-5) < float("inf")


def test_coupled_neighbours_with_a_public_noise_scale_differ_in_means_alone() -> None:
    model = bdpvi.BayesianLogisticRegression(clip=0.5)
    guide = FullRank(model, noise_scale=0.3)
    fit = bdpvi.fit(
        model,
        guide,
        logistic_data(30, 2),
        training=bdpvi.Training(steps=20),
        neighbours=Coupled(),
        progress=False,
    )
    assert bool((fit.panels[0].pairs.r == 1).all())


def test_a_fit_is_read_back_with_its_noise_scale(tmp_path: Path) -> None:
    model = bdpvi.BayesianLogisticRegression(clip=0.5)
    fit = bdpvi.fit(
        model,
        FullRank(model, noise_scale=0.3),
        logistic_data(30, 2),
        neighbours=Optimum(),
        progress=False,
    )
    save_fit(fit, tmp_path / "fit")
    back = load_fit(tmp_path / "fit", model, FullRank(model, noise_scale=0.3))
    assert torch.equal(back.released.variance, fit.released.variance)
    sensitivity = 0.5 * (1 + 2 * ROOM)
    assert back.panels[0].largest == pytest.approx((sensitivity / 0.3) ** 2, rel=1e-12)
    assert fit.panels[0].largest == back.panels[0].largest
    with pytest.raises(ValueError, match="noise_scale=None"):
        load_fit(tmp_path / "fit", model, FullRank(model))
    with pytest.raises(ValueError, match="ridge=2"):
        FullRank(model, ridge=2.0, noise_scale=0.3)


@pytest.mark.parametrize("kind", GUIDES)
def test_no_record_whatever_moves_the_mean_further_than_the_bound(
    kind: type[GaussianGuide],
) -> None:
    """Brute force: records far out and on the wrong side, added to data of several sizes."""
    clip, prior, scale = 0.4, 1.5, 0.2
    model = bdpvi.BayesianLogisticRegression.unweighted(clip=clip, prior_scale=prior)
    worst = 0.0
    for size in (4, 40):
        data = logistic_data(size, 3)
        data = bdpvi.Dataset(data.x, (torch.arange(size) % 2).double())
        fit = bdpvi.fit(
            model, kind(model, noise_scale=scale), data, neighbours=Optimum(), progress=False
        )
        bound = fit.panels[0].largest
        assert bound is not None
        assert bool((fit.panels[0].pairs.b2.sum(1) <= bound * (1 + 1e-6)).all())
        for direction in torch.eye(3, dtype=torch.float64):
            for far, label in ((0.1, 0.0), (30.0, 1.0), (30.0, 0.0)):
                x = torch.cat([data.x, far * direction[None]])
                joined = bdpvi.Dataset(x, torch.cat([data.y, torch.tensor([label]).double()]))
                guide = kind(model, noise_scale=scale)
                there = bdpvi.fit(
                    model, guide, joined, neighbours=Optimum(Remove(3)), progress=False
                )
                moved = (there.released.mean - fit.released.mean).norm() / scale
                worst = max(worst, float(moved**2) / bound)
    assert 0.2 < worst <= 1 + 1e-6  # near the bound where the data say little


def test_with_a_bound_for_any_record_epsilon_holds_for_every_distribution() -> None:
    model = bdpvi.BayesianLogisticRegression(clip=0.1, prior_scale=0.5)
    guide = FullRank(model, noise_scale=1.0)
    fit = bdpvi.fit(model, guide, logistic_data(900, 3), neighbours=Optimum(), progress=False)

    rule = bdpvi.bayesian.Accounting(conversion="hockey-stick", failure_probability=1e-10)
    found = bdpvi.cost(fit, planned=Charge(1, 0.01), accounting=rule)
    assert bayes(found).reliable
    assert evidence_of(bayes(found)).estimator == "betting"
    # Against the analytic Gaussian mechanism of dp_accounting at the same sensitivity.
    assert found.worst_case is not None
    assert fit.panels[0].largest is not None
    noise = (0.01 / fit.panels[0].largest) ** 0.5
    exact = dp_accounting.get_epsilon_gaussian(noise, 1e-5)
    assert exact <= found.worst_case.epsilon <= exact * (1 + 1e-5)  # rounding is paid from δ
    assert bayes(found).epsilon < found.worst_case.epsilon
    # Two releases compose: as one of half the temperature.
    both = bdpvi.bayesian.cost_of([(GuideDraws(fit.panels, 1, 0.01), 2)], 1e-5, rule)
    half = bdpvi.cost(fit, planned=Charge(1, 0.005), accounting=rule)
    assert bayes(both).epsilon == pytest.approx(bayes(half).epsilon, rel=1e-9)


def test_without_a_clip_or_by_svi_nothing_bounds_a_record() -> None:
    data = logistic_data(30, 2)
    free = bdpvi.BayesianLogisticRegression.unweighted()
    clipped = bdpvi.BayesianLogisticRegression(clip=0.5)
    fits = (
        bdpvi.fit(
            free, FullRank(free, noise_scale=1.0), data, neighbours=Optimum(), progress=False
        ),
        bdpvi.fit(clipped, FullRank(clipped), data, neighbours=Optimum(), progress=False),
        bdpvi.fit(
            clipped,
            FullRank(clipped, noise_scale=1.0),
            data,
            training=bdpvi.Training(steps=5),
            neighbours=bdpvi.Coupled(),
            progress=False,
        ),
    )
    for fit in fits:
        assert fit.panels[0].largest is None
        assert bdpvi.cost(fit, planned=Charge(1, 100.0)).worst_case is None


@pytest.mark.parametrize("kind", GUIDES)
def test_a_record_in_a_direction_of_its_own_reaches_the_bound(kind: type[GaussianGuide]) -> None:
    """Only the prior holds it there, so a bound smaller by 0.1 % would be wrong."""
    model = bdpvi.BayesianLogisticRegression(clip=0.2, prior_scale=0.2)
    plain = logistic_data(20, 3)
    x = torch.cat([plain.x * torch.tensor([1.0, 1.0, 0.0]), torch.eye(3)[2:]]).double()
    data = bdpvi.Dataset(x, torch.cat([(torch.arange(20) % 2).double(), torch.ones(1).double()]))
    fits = [
        bdpvi.fit(model, kind(model, noise_scale=0.3), d, neighbours=Optimum(), progress=False)
        for d in (data, data.without(20))
    ]
    moved = float((fits[0].released.mean - fits[1].released.mean).norm()) / 0.3
    bound = fits[0].panels[0].largest
    assert bound is not None
    assert 0.999 * bound**0.5 < moved <= bound**0.5 * (1 + 1e-9)

"""The low-rank guide against dense algebra, separate runs and torch's own divergences."""

from __future__ import annotations

from collections.abc import Mapping

import pyro
import pyro.distributions as dist
import pytest
import torch
from simulated import logistic_data
from torch.distributions import MultivariateNormal, kl_divergence

import bdpvi
from bdpvi._ground.progress import silent
from bdpvi.bayesian.inference.svi import Problem, default_optimiser, run_svi
from bdpvi.bayesian.neighbours.rows import RowFits, train_rows
from bdpvi.guides import FullRank, LowRank
from bdpvi.noise.batches import BatchPlan

STEPS = 30


def linear(x: torch.Tensor, y: torch.Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    noise = pyro.sample("noise", dist.HalfNormal(x.new_tensor(1.0)))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, noise), obs=y)


def parameters(d: int = 6, rank: int = 2, batch: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"loc": (batch, d), "scale": (batch, d), "cov_factor": (batch, d, rank)}
    found = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }
    return {**found, "scale": found["scale"].abs() + 0.1}


def dense(values: dict[str, torch.Tensor]) -> torch.Tensor:
    factor = values["cov_factor"]
    return torch.diag_embed(values["scale"] ** 2) + factor @ factor.transpose(1, 2)


def gaussian(values: Mapping[str, torch.Tensor]) -> MultivariateNormal:
    return MultivariateNormal(values["loc"], dense({n: v[None] for n, v in values.items()})[0])


@pytest.mark.parametrize("ridge", [0.0, 3.0])
def test_covariance_is_diagonal_plus_low_rank_and_widened_by_the_ridge(ridge: float) -> None:
    values, guide = parameters(), LowRank(linear, ridge=ridge)
    covariance = dense(values)
    found = guide.released(values)
    expected = covariance + ridge * covariance @ covariance
    torch.testing.assert_close(found.covariance_matrix, expected)  # type: ignore[attr-defined]
    point = torch.zeros(6, dtype=torch.float64)
    log_density = MultivariateNormal(values["loc"], expected).log_prob(point)
    torch.testing.assert_close(found.log_prob(point), log_density)


@pytest.mark.parametrize("rate", [0.5, 1.0])
@pytest.mark.parametrize("logistic", [True, False])
def test_row_of_record_equals_a_run_without_it(rate: float, logistic: bool) -> None:
    model = bdpvi.BayesianLogisticRegression(clip=0.5) if logistic else linear
    data = logistic_data(20, 4)

    def problem(records: bdpvi.Dataset) -> Problem:
        plan = BatchPlan(steps=STEPS, rate=rate, seed=3)
        return Problem(model, LowRank(model, rank=2), records, plan, default_optimiser(STEPS))

    rows = train_rows(problem(data), RowFits("remove", data, -1.0))
    alone, _ = run_svi(problem(data.without(7)), silent)
    for name, value in alone.items():
        torch.testing.assert_close(rows[name][7], value, rtol=0, atol=1e-10)


def test_panel_has_the_divergences_of_separate_fits() -> None:
    data = logistic_data(20, 4)

    def train(records: bdpvi.Dataset) -> bdpvi.Fit:
        guide = LowRank(linear, rank=2)
        return bdpvi.fit(
            linear, guide, records, training=bdpvi.Training(steps=STEPS, seed=0), progress=False
        )

    fit, there = train(data), train(data.without(7))
    p, q = (gaussian(one.parameters) for one in (there, fit))
    found = fit.panels[0].pairs
    order = torch.ones(1, dtype=torch.float64)
    exact = {float(kl_divergence(p, q)), float(kl_divergence(q, p))}
    for pairs in (found, found.reverse()):
        value = float(pairs.renyi(order)[0, 7])
        assert any(value == pytest.approx(one, rel=1e-6) for one in exact)


def test_released_samples_have_its_covariance() -> None:
    data = logistic_data(40, 4)
    fit = bdpvi.fit(
        linear,
        LowRank(linear, init_scale=1.0),
        data,
        training=bdpvi.Training(steps=1, seed=0),
        progress=False,
    )
    draws = 40_000
    generator = torch.Generator().manual_seed(0)
    latents = bdpvi.bayesian.preview(fit, draws, generator=generator)
    flat = torch.cat([latents["w"], latents["noise"].log().unsqueeze(1)], 1)
    covariance = fit.posterior.covariance_matrix  # type: ignore[attr-defined]
    spread = torch.outer(covariance.diagonal(), covariance.diagonal()).sqrt() * (2 / draws) ** 0.5
    assert bool(((flat.T.cov() - covariance).abs() < 5 * spread).all())
    assert bdpvi.release(fit).latents["w"].shape == (1, 4)


def test_a_public_start_stays_as_it_was_given() -> None:
    """Training is in place: a start that moved with it would no longer be public."""
    guide = FullRank(linear, start={"loc": torch.ones(5, dtype=torch.float64)})
    data = logistic_data(20, 4)
    bdpvi.fit(linear, guide, data, training=bdpvi.Training(steps=3), progress=False)
    assert torch.equal(guide.start["loc"], torch.ones(5, dtype=torch.float64))
    assert not torch.equal(guide.parameters["loc"], guide.start["loc"])


def test_bad_ranks_and_starts() -> None:
    data = logistic_data(20, 4)
    with pytest.raises(ValueError, match="rank must be a whole number of at least 1, got 0"):
        LowRank(linear, rank=0)
    with pytest.raises(ValueError, match="rank=6 must be at most 5"):
        bdpvi.fit(
            linear, LowRank(linear, rank=6), data, training=bdpvi.Training(steps=1), progress=False
        )
    with pytest.raises(ValueError, match=r"start has \['mean'\]; FullRank has the parameters"):
        FullRank(linear, start={"mean": torch.zeros(5)})
    for bad in (torch.zeros(4), torch.full((5,), torch.nan)):
        guide = FullRank(linear, start={"loc": bad})
        with pytest.raises(ValueError, match=r"start\['loc'\] must be"):
            bdpvi.fit(linear, guide, data, training=bdpvi.Training(steps=1), progress=False)

"""Clipped scores against the clipped likelihood in closed form, and against derivatives by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from _clipped import Clipped
from pyro import poutine
from pyro.optim import SGD
from simulated import logistic_data

import bdpvi
from bdpvi import BayesianLogisticRegression, Coupled, Dataset
from bdpvi._ground.progress import silent
from bdpvi.bayesian import Remove
from bdpvi.bayesian.inference.svi import Problem, default_optimiser, run_svi
from bdpvi.bayesian.neighbours.rows import RowFits, train_rows
from bdpvi.guides import FullRank, MeanField
from bdpvi.models.traces import log_likelihood
from bdpvi.noise.batches import BatchPlan

C = 0.7


def linear(x: torch.Tensor, y: torch.Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    noise = pyro.sample("noise", dist.LogNormal(x.new_zeros(()), 1.0))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, noise), obs=y)


@pytest.mark.parametrize("guide", [MeanField, FullRank])
def test_logistic_regression_is_trained_as_by_its_clipped_likelihood(guide: Any) -> None:
    data = logistic_data(20, 3)
    plain = BayesianLogisticRegression.unweighted()
    by_score, by_likelihood, unclipped = (
        bdpvi.fit(
            model,
            guide(model),
            data,
            training=bdpvi.Training(steps=15, rate=0.5, seed=0, device="cpu"),
            progress=False,
        )
        for model in (Clipped(plain, 0.3), BayesianLogisticRegression(clip=0.3), plain)
    )
    for name, value in by_likelihood.parameters.items():
        torch.testing.assert_close(by_score.parameters[name], value, rtol=1e-9, atol=1e-10)
    assert not torch.allclose(unclipped.parameters["loc"], by_likelihood.parameters["loc"])
    for name in ("r", "b2"):
        found, expected = (getattr(f.panels[0].pairs, name) for f in (by_score, by_likelihood))
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)


def gradients(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Return the gradient of each record's clipped log-likelihood in w and z = log noise."""
    w, z = w.clone().requires_grad_(), z.clone().requires_grad_()
    latents = {"w": w, "noise": z.exp()}
    trace = poutine.trace(poutine.condition(Clipped(linear, C), data=latents)).get_trace(x, y)
    site = trace.nodes["_score"]
    each = site["fn"].log_prob(site["value"])
    rows = [torch.autograd.grad(one, (w, z), retain_graph=True) for one in each]
    return torch.stack([torch.cat([a, b[None]]) for a, b in rows])


def test_scores_are_clipped_in_the_unconstrained_latents() -> None:
    data = logistic_data(40, 3)
    x, y = data.x, data.y + 0.3
    w, z = torch.tensor([0.4, -0.2, 0.9]).double(), torch.tensor(0.5).double()
    residual, variance = y - x @ w, (2 * z).exp()
    by_hand = torch.cat(
        [(residual / variance).unsqueeze(1) * x, (residual**2 / variance - 1).unsqueeze(1)], 1
    )
    norm = by_hand.norm(dim=1, keepdim=True)
    assert bool((norm > C).any())
    assert bool((norm < C).any())
    found = gradients(x, y, w, z)
    torch.testing.assert_close(found, by_hand * (C / norm).clamp(max=1))


def test_a_score_that_is_not_finite_counts_for_nothing() -> None:
    x, y = torch.full((2, 3), 1e200, dtype=torch.float64), torch.tensor([1.0, 2.0]).double()
    x[1] = 1.0
    found = gradients(x, y, torch.ones(3).double(), torch.zeros(()).double())
    assert bool((found[0] == 0).all())
    assert float(found[1].norm()) == pytest.approx(C)


def test_its_value_is_the_log_likelihood() -> None:
    data = logistic_data(10, 3)
    latents = {"w": torch.ones(3).double(), "noise": torch.tensor(1.5).double()}
    found = log_likelihood(Clipped(linear, C), latents, data.x, data.y)
    normal = dist.Normal(data.x.sum(1), 1.5)
    torch.testing.assert_close(found, normal.log_prob(data.y))


def test_row_of_record_equals_a_run_without_it() -> None:
    data, model = logistic_data(12, 3), Clipped(linear, C)

    def problem(records: Dataset) -> Problem:
        plan = BatchPlan(steps=15, rate=0.5, seed=3)
        return Problem(model, FullRank(model), records, plan, default_optimiser(15))

    rows = train_rows(problem(data), RowFits("remove", data, -1.0))
    alone, _ = run_svi(problem(data.without(7)), silent)
    for name, value in alone.items():
        torch.testing.assert_close(rows[name][7], value, rtol=0, atol=1e-10)


def test_no_record_moves_a_step_by_more_than_the_clip() -> None:
    data, rate = logistic_data(12, 3), 1e-12
    x = torch.cat([data.x, torch.full((1, 3), 50.0).double()])
    joined = Dataset(x, torch.cat([data.y, torch.tensor([-1e4]).double()]))
    train = partial(
        bdpvi.fit,
        training=bdpvi.Training(steps=1, seed=0, optim=SGD({"lr": rate})),
        neighbours=Coupled(Remove(3)),
        progress=False,
    )
    for model, within in ((Clipped(linear, C), True), (linear, False)):
        a, b = (train(model, MeanField(model), one).parameters["loc"] for one in (data, joined))
        moved = float((a - b).norm())
        assert (moved <= rate * C * (1 + 1e-9)) is within
        assert moved > 0.99 * rate * C


def test_it_is_a_model_of_records_as_its_model_is() -> None:
    data, model = logistic_data(12, 3), Clipped(linear, C)
    bdpvi.check(model, MeanField(model), data)
    fit = bdpvi.fit(
        model, MeanField(model), data, training=bdpvi.Training(steps=3, seed=0), progress=False
    )
    released = bdpvi.release(fit, temperature=100.0, guarantee=bdpvi.BayesianDP())
    assert released.receipt.bound.kind.value == "Bayesian DP"
    expected = data.x @ released.latents["w"][0]
    torch.testing.assert_close(released.predict_mean(data.x), expected)
    with pytest.raises(ValueError, match="target 'y' is Normal and not 0 or 1"):
        released.predict_proba(data.x)
    logistic = Clipped(BayesianLogisticRegression.unweighted(), C)
    with pytest.raises(ValueError, match="y must be 0 or 1"):
        bdpvi.fit(logistic, MeanField(logistic), Dataset(data.x, data.y + 1), progress=False)
    with pytest.raises(ValueError, match=r"clip must be .* got -1"):
        Clipped(linear, -1)

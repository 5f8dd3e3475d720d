"""DPVI: gradients against autograd one record at a time, noise by its distribution, runs."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import Trace_ELBO
from scipy.stats import chi2
from simulated import logistic_data, single
from torch import Tensor
from torch.nn.functional import softplus

from bdpvi import BayesianLogisticRegression, Dataset
from bdpvi.bayesian.inference.svi import default_optimiser
from bdpvi.bench.methods.runs import Run, Stream, Streams
from bdpvi.bench.methods.scores import Batch, RecordScores
from bdpvi.bench.methods.variational import (
    DPVISettings,
    Gaussians,
    dpvi_runs,
    noisy_gradients,
    train,
)
from bdpvi.guides import MeanField
from bdpvi.models.traces import log_likelihood
from bdpvi.noise.batches import BatchPlan
from bdpvi.releases.noisy_sum import deviation_for

MODEL = BayesianLogisticRegression.unweighted()
MODELS = {
    "logistic": BayesianLogisticRegression.unweighted(prior_scale=1.5, intercept=True),
    "clipped": BayesianLogisticRegression(clip=0.8),
}
dpvi = single(dpvi_runs)


def guides_of(runs: int, size: int, seed: int = 0) -> Gaussians:
    """Return guides with parameters drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    loc, raw = torch.randn((2, runs, size), generator=generator, dtype=torch.float64) / 2
    return Gaussians(loc, raw - 2)


def by_autograd(guides: Gaussians, r: int, noise: Tensor, loss: Any) -> Tensor:
    """Return the gradient of a loss of the draw in one run's parameters, by torch's autograd."""
    loc, raw = (one[r].clone().requires_grad_() for one in (guides.loc, guides.raw))
    return torch.cat(torch.autograd.grad(loss(loc + softplus(raw) * noise, raw), [loc, raw]))


@pytest.mark.parametrize("name", MODELS)
def test_gradient_against_autograd_one_record_at_a_time(name: str) -> None:
    model, clip, rate = MODELS[name], 0.7, 0.3
    data = logistic_data(40, 3)
    records = RecordScores(model, data)
    runs = [Run(noise_multiplier=0.0, seed=seed) for seed in (3, 4)]
    guides = guides_of(len(runs), records.dim)
    streams = Streams(runs, data, steps=10, rate=rate)
    chosen = DPVISettings(rate=rate, clip=clip)
    found = torch.cat(noisy_gradients(records, guides, streams, chosen, 5), dim=1)
    clipped = []

    def elbo(w: Tensor, raw: Tensor) -> Tensor:
        """Minus the log prior and the entropy, in the terms that the parameters change."""
        prior = model.departure(w).square().sum() * model.precision(records.dim) / 2
        return prior - softplus(raw).log().sum()

    def likelihood(i: int) -> Any:
        """The log-likelihood of a record, through Pyro's own trace."""
        x, y = data.x[i : i + 1], data.y[i : i + 1]
        return lambda w, raw: log_likelihood(model, {"w": w}, x, y).sum() + 0 * raw.sum()

    for r, run in enumerate(runs):
        stream = Stream(run.seed, 10, rate)
        noise = stream.base(5, records.dim)
        total = by_autograd(guides, r, noise, elbo)
        for i in stream.plan.batch(5, data.ids).nonzero().squeeze(1).tolist():
            own = by_autograd(guides, r, noise, likelihood(i))
            norm = float(own.norm())
            clipped.append(norm > clip)
            total = total - own * min(1.0, clip * (1 - 2**-20) / norm) / rate
        torch.testing.assert_close(found[r], total, rtol=1e-10, atol=1e-10)
    assert len(set(clipped)) == 2, "the clip must matter to some records and not to others"


class OneRecord(Streams):
    """Batches of one record, or of none."""

    record: int | None = None

    def batch(self, step: int) -> Batch | None:
        index = torch.tensor([[self.record or 0]])
        return Batch(
            index, torch.full(index.shape, float(self.record is not None), dtype=torch.float64)
        )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 39), st.sampled_from(sorted(MODELS)), st.floats(-3, 6))
def test_no_record_moves_the_sum_by_more_than_the_clip(
    record: int, name: str, log_scale: float
) -> None:
    clip, data = 0.7, logistic_data(40, 3)
    data = Dataset(data.x * 10**log_scale, data.y)
    records = RecordScores(MODELS[name], data)
    guides = guides_of(1, records.dim, seed=record)
    streams = OneRecord([Run(noise_multiplier=0.0, seed=1)], data, steps=1, rate=0.5)
    chosen = DPVISettings(rate=0.5, clip=clip)
    without = torch.cat(noisy_gradients(records, guides, streams, chosen, 0))
    streams.record = record
    with_it = torch.cat(noisy_gradients(records, guides, streams, chosen, 0))
    rounding = 1e-14 * float(without.abs().max())
    assert float((with_it - without).norm()) * 0.5 <= clip * (1 + 1e-12) + rounding


def test_noise_in_the_gradient_is_the_clip_times_the_multiplier_over_the_rate() -> None:
    data, chosen = logistic_data(50, 3), DPVISettings(rate=0.2, clip=0.6)
    runs = [Run(noise_multiplier=sigma, seed=2) for sigma in (0.0, 1.0, 3.0)]
    streams, records = Streams(runs, data, steps=400, rate=0.2), RecordScores(MODEL, data)
    one = guides_of(1, 3)
    guides = Gaussians(one.loc.expand(3, 3), one.raw.expand(3, 3))
    times = deviation_for(3.0, 0.6, 6) / deviation_for(1.0, 0.6, 6)
    assert times == pytest.approx(3, rel=1e-8)
    drawn = []
    for number in range(400):
        gradient = torch.cat(noisy_gradients(records, guides, streams, chosen, number), dim=1)
        noise = gradient[1:] - gradient[0]
        torch.testing.assert_close(noise[1], times * noise[0], rtol=1e-9, atol=1e-9)
        drawn.append(noise[0] * 0.2 / 0.6)
    sample = torch.cat(drawn)
    low, high = chi2.interval(1 - 1e-6, len(sample))
    assert low < float(sample.square().sum()) < high
    fresh = Streams(runs[1:2], data, steps=400, rate=0.2)
    expected = torch.cat([fresh.noisy(torch.zeros(1, 6).double(), 1.0)[0] for _ in range(400)])
    torch.testing.assert_close(sample, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_runs_side_by_side_are_as_alone(name: str) -> None:
    model, data = MODELS[name], logistic_data(60, 3)
    runs = [Run(noise_multiplier=s, seed=seed) for s, seed in ((0.5, 1), (2.0, 1), (2.0, 5))]
    settings = DPVISettings(steps=15, rate=0.2, draws=4)
    together = dpvi_runs(model, data, runs=runs, settings=settings)
    for run, outcome in zip(runs, together, strict=True):
        noise = {"noise_multiplier": run.noise_multiplier, "seed": run.seed}
        alone = dpvi(model, data, settings=settings, **noise)
        assert outcome.cost == alone.cost
        close = torch.testing.assert_close
        close(outcome.latents["w"], alone.latents["w"], rtol=1e-8, atol=1e-8)


def test_no_step_depends_on_how_many_records_there_are() -> None:
    """A record that no batch has changes nothing: sums are divided by the rate alone."""
    data, plan = logistic_data(60, 3), BatchPlan(steps=5, rate=0.1, seed=0)
    seen = torch.stack([plan.batch(step, data.ids) for step in range(plan.steps)]).any(0)
    settings = DPVISettings(steps=5, rate=0.1, draws=2)
    one, other = (
        dpvi(MODEL, records, noise_multiplier=1.0, settings=settings, seed=0).latents["w"]
        for records in (data, data.without(int((~seen).nonzero()[0])))
    )
    assert torch.equal(one, other)


def test_same_seed_same_result_and_secret_runs_differ() -> None:
    data, settings = logistic_data(60, 3), DPVISettings(steps=10, rate=0.2, draws=None)

    def one(seed: int | None) -> Tensor:
        outcome = dpvi(MODEL, data, noise_multiplier=1.0, settings=settings, seed=seed)
        return outcome.latents["w"]

    assert torch.equal(one(3), one(3))
    assert not torch.equal(one(3), one(4))
    assert not torch.equal(one(None), one(None))


def trained(data: Dataset, sigma: float, seed: int, **given: Any) -> Gaussians:
    settings = DPVISettings(**given)
    runs = [Run(noise_multiplier=sigma, seed=seed)]
    streams = Streams(runs, data, steps=settings.steps, rate=settings.rate)
    return train(MODEL, data, streams, settings)


def test_empty_batches_leave_prior_entropy_and_noise() -> None:
    data = logistic_data(5, 2)
    noisy = trained(data, 1.0, 0, steps=20, rate=1e-9)
    assert bool((noisy.loc.isfinite() & noisy.raw.isfinite()).all())
    # With nothing else to learn from, a noiseless guide goes to the prior N(0, 1).
    quiet = trained(data, 0.0, 0, steps=800, rate=1e-9)
    close, like = torch.testing.assert_close, torch.zeros(1, 2, dtype=torch.float64)
    close(quiet.loc, like, atol=0.15, rtol=0)
    close(quiet.scale, like + 1, atol=0.15, rtol=0)


def test_without_privacy_it_is_pyros_variational_inference(data: Dataset) -> None:
    """Step by step, on all records with the same base noise."""
    found = trained(data, 0.0, 0, steps=40, rate=1.0, clip=None)
    guide, plan = MeanField(MODEL), Stream(0, 40, 1.0).plan
    pyro.clear_param_store()
    svi = pyro.infer.SVI(MODEL, guide, default_optimiser(40), Trace_ELBO())
    optim: Any = svi.optim
    for step in range(40):
        torch.manual_seed(plan.noise_seed(step))
        svi.step(data.x, data.y)
        optim.step()
    store = pyro.get_param_store()
    torch.testing.assert_close(found.loc[0], store["loc"].detach(), rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(found.scale[0], store["scale"].detach(), rtol=1e-7, atol=1e-8)
    pyro.clear_param_store()


def test_mean_and_draws_come_from_the_trained_guide() -> None:
    data, given = logistic_data(60, 2), {"steps": 30, "rate": 0.5}
    guide = trained(data, 1.0, 3, **given)

    def latents(draws: int | None) -> Tensor:
        chosen = DPVISettings(**given, draws=draws)  # type: ignore[arg-type]
        return dpvi(MODEL, data, noise_multiplier=1.0, settings=chosen, seed=3).latents["w"]

    torch.testing.assert_close(latents(None), guide.loc)
    n, variance = 20_000, guide.scale[0].square()
    sample = latents(n)
    assert bool(((sample.mean(0) - guide.loc[0]).abs() < 5 * (variance / n).sqrt()).all())
    spread = (torch.outer(variance, variance) * 2 / n).sqrt()
    assert bool(((sample.T.cov() - variance.diag()).abs() < 5 * spread).all())


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"steps": 0}, "steps"),
        ({"rate": math.nan}, "rate"),
        ({"clip": 0.0}, "clip"),
        ({"draws": 0}, "draws"),
    ],
)
def test_bad_settings(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        DPVISettings(**settings)


def test_bad_runs(data: Dataset) -> None:
    for sigma in (-1.0, math.nan):
        with pytest.raises(ValueError, match="noise_multiplier"):
            dpvi(MODEL, data, noise_multiplier=sigma)
    with pytest.raises(ValueError, match="seed"):
        dpvi(MODEL, data, noise_multiplier=1.0, seed=-1)
    with pytest.raises(ValueError, match="clip=None"):
        dpvi(MODEL, data, noise_multiplier=1.0, settings=DPVISettings(clip=None))
    with pytest.raises(ValueError, match="runs"):
        dpvi_runs(MODEL, data, runs=[])
    with pytest.raises(ValueError, match="data has 0 records"):
        dpvi(MODEL, data.select(data.ids < 0), noise_multiplier=1.0)
    with pytest.raises(ValueError, match="y must be 0 or 1"):
        dpvi(MODEL, Dataset(data.x, data.y + 1), noise_multiplier=1.0)

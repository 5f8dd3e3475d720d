"""DPVI: gradients against autograd one record at a time, noise by its distribution, runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from accounts import worst_of
from hypothesis import given, settings
from hypothesis import strategies as st
from published import RenyiAccountant
from pyro import poutine
from scipy.stats import chi2
from simulated import logistic_data, single
from torch import Tensor
from torch.distributions import transform_to

import bdpvi
from bdpvi import BayesianLogisticRegression, Dataset
from bdpvi.bayesian.inference.guide import Free, Reparameterised
from bdpvi.bench.methods.moments import MomentsAccountant
from bdpvi.bench.methods.runs import Run, Stream, Streams
from bdpvi.bench.methods.scores import Batch, Clip, scores
from bdpvi.bench.methods.variational import (
    DPVIGradient,
    DPVISettings,
    chain_rule,
    dpvi_runs,
    train,
)
from bdpvi.datasets.abalone import load_abalone
from bdpvi.guides import FullRank, MeanField
from bdpvi.models.contract import Model
from bdpvi.noise.batches import BatchPlan
from bdpvi.noise.secure import sum_step
from bdpvi.releases.noisy_sum import deviation_for
from bdpvi.tables.metrics import accuracy

GUIDES = [MeanField, FullRank]
dpvi = single(dpvi_runs)


def linear(x: Tensor, y: Tensor | None = None) -> None:
    """Linear regression with unknown noise: a latent variable that is not a real vector."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(()), 2.0).expand([x.shape[1]]).to_event(1))
    scale = pyro.sample("scale", dist.HalfNormal(x.new_tensor(1.5)))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, scale), obs=y)


MODELS: dict[str, Model] = {
    "logistic": BayesianLogisticRegression.unweighted(prior_scale=1.5, intercept=True),
    "clipped": BayesianLogisticRegression(clip=0.8),
    "linear": linear,
}


def random_free(guide: Reparameterised, data: Dataset, runs: int, seed: int = 0) -> Free:
    guide.setup(data.x, data.y)
    generator = torch.Generator().manual_seed(seed)
    return {
        name: transform_to(guide.constraints[name]).inv(value)
        + torch.randn((runs, *value.shape), generator=generator, dtype=torch.float64) / 2
        for name, value in guide.initial(data.x).items()
    }


def by_autograd(
    guide: Reparameterised, free: Free, noise: Tensor, loss: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Return the gradient of a loss of the draw in one run's parameters, by torch's autograd."""
    leaves = {name: value.clone().requires_grad_() for name, value in free.items()}
    parameters = {n: transform_to(guide.constraints[n])(v) for n, v in leaves.items()}
    if "scale_tril" in parameters:
        draw = parameters["loc"] + parameters["scale_tril"] @ noise
    else:
        draw = parameters["loc"] + parameters["scale"] * noise
    gradients = torch.autograd.grad(loss(draw), list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(free[name]) if g is None else g
        for name, g in zip(leaves, gradients, strict=True)
    }


def log_prob(
    guide: Reparameterised, model: Model, flat: Tensor, data: Dataset, observed: bool
) -> Tensor:
    """Return the log-density of one side of the model, through Pyro's own trace."""
    trace = poutine.trace(poutine.condition(model, data=guide.unpack(flat))).get_trace(
        data.x, data.y
    )
    trace.compute_log_prob()
    total = sum(
        trace.nodes[name]["log_prob_sum"]
        for name in trace.observation_nodes
        if (name == "y") == observed
    )
    if not observed and model is linear:
        total = total + flat[-1]  # scale = e^flat
    return torch.as_tensor(total)


def entropy(guide: Reparameterised, free: Free) -> dict[str, Tensor]:
    leaves = {name: value.clone().requires_grad_() for name, value in free.items()}
    parameters = {n: transform_to(guide.constraints[n])(v) for n, v in leaves.items()}
    gradients = torch.autograd.grad(
        guide.distribution(parameters).entropy(), list(leaves.values()), allow_unused=True
    )
    return {
        name: torch.zeros_like(free[name]) if g is None else g
        for name, g in zip(leaves, gradients, strict=True)
    }


@pytest.mark.parametrize("kind", GUIDES)
@pytest.mark.parametrize("name", MODELS)
def test_gradient_against_autograd_one_record_at_a_time(name: str, kind: type[FullRank]) -> None:
    model, clip, rate = MODELS[name], {"linear": 1.2}.get(name, 0.7), 0.3
    data = logistic_data(40, 3)
    guide = kind(model)
    runs = [Run(noise_multiplier=0.0, seed=seed) for seed in (3, 4)]
    free = random_free(guide, data, len(runs))
    streams = Streams(runs, data, steps=10, rate=rate)
    gradient = DPVIGradient(
        scores(model, data, guide.unpack), guide, streams, DPVISettings(rate=rate, clip=clip)
    )(free, 5)
    clipped = []
    for r, run in enumerate(runs):
        one = {n: value[r] for n, value in free.items()}
        stream = Stream(run.seed, 10, rate)
        noise = stream.base(5, guide.dim)
        batch = data.select(stream.plan.batch(5, data.ids))
        total = by_autograd(
            guide, one, noise, lambda w: -log_prob(guide, model, w, data, observed=False)
        )
        for i in range(len(batch)):
            record = batch.select(torch.tensor([i]))
            own = by_autograd(
                guide, one, noise, lambda w: log_prob(guide, model, w, record, observed=True)  # noqa: B023
            )  # fmt: skip
            norm = math.sqrt(sum(float(g.square().sum()) for g in own.values()))
            clipped.append(norm > clip)
            for n, g in own.items():
                total[n] = total[n] - g * min(1.0, clip * (1 - 2**-20) / norm) / rate
        for n, g in entropy(guide, one).items():
            torch.testing.assert_close(gradient[n][r], total[n] - g, rtol=1e-10, atol=1e-10)
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
@given(
    st.integers(0, 39), st.sampled_from(sorted(MODELS)), st.sampled_from(GUIDES), st.floats(-3, 6)
)
def test_no_record_moves_the_sum_by_more_than_the_clip(
    record: int, name: str, kind: type[FullRank], log_scale: float
) -> None:
    model, clip = MODELS[name], 0.7
    data = logistic_data(40, 3)
    data = Dataset(data.x * 10**log_scale, data.y)
    guide = kind(model)
    free = random_free(guide, data, 1, seed=record)
    streams = OneRecord([Run(noise_multiplier=0.0, seed=1)], data, steps=1, rate=0.5)
    records = scores(model, data, guide.unpack)
    step = DPVIGradient(records, guide, streams, DPVISettings(rate=0.5, clip=clip))
    chain = chain_rule(guide, free, streams.base(0, guide.dim))
    without = step(free, 0)
    streams.record = record
    with_it = step(free, 0)
    moved = sum(float((with_it[n] - without[n]).square().sum()) for n in free) ** 0.5
    rounding = 1e-14 * max(float(v.abs().max()) for v in without.values())
    assert moved * 0.5 <= clip * (1 + 1e-12) + rounding
    # The same without subtracting: what the latents' gradient does to the parameters.
    w, _ = guide.pushforward(free, streams.base(0, guide.dim)[0])
    share = records.likelihood(w, streams.batch(0), Clip(clip, chain.norm))
    assert float(chain.norm(share.unsqueeze(1))) <= clip * (1 + 1e-12)


def test_a_record_without_a_finite_gradient_takes_no_part() -> None:
    data = logistic_data(5, 2)
    data.x[2] = 1e200  # squared in the likelihood: infinite
    guide = MeanField(linear)
    free = random_free(guide, data, 1)
    settings = DPVISettings(rate=0.5, clip=1.0)
    streams = OneRecord([Run(noise_multiplier=0.0, seed=1)], data, steps=1, rate=0.5)
    step = DPVIGradient(scores(linear, data, guide.unpack), guide, streams, settings)
    without = step(free, 0)
    streams.record = 2
    with_it = step(free, 0)
    for name, value in without.items():
        assert torch.equal(with_it[name], value)


@pytest.mark.parametrize("kind", GUIDES)
def test_a_score_s_norm_is_that_of_its_gradient_in_the_parameters(kind: type[FullRank]) -> None:
    guide = kind(BayesianLogisticRegression.unweighted())
    free = random_free(guide, logistic_data(10, 4), 3)
    noise, score = (torch.randn(*shape, dtype=torch.float64) for shape in ((3, 4), (3, 6, 4)))
    norm = chain_rule(guide, free, noise).norm(score)
    for r, i in itertools.product(range(3), range(6)):
        own = by_autograd(guide, {n: v[r] for n, v in free.items()}, noise[r], score[r, i].dot)
        exact = math.sqrt(sum(float(g.square().sum()) for g in own.values()))
        assert float(norm[r, i]) == pytest.approx(exact, rel=1e-10)


@pytest.mark.parametrize("seed", [None, 7])
def test_privacy_noise_is_standard_normal(seed: int | None) -> None:
    n = 1_000_000
    stream = Stream(seed, 1, 0.5)
    noise = torch.cat([stream.noise.whole(n // 64) for _ in range(64)]) * sum_step(1.0)
    # A standard deviation wrong by 1 % would be 14 standard errors away.
    low, high = chi2.interval(1 - 1e-6, n)
    assert low < float(noise.square().sum()) < high
    assert abs(float(noise.sum())) < 5 * math.sqrt(n)
    assert abs(float((noise[1:] * noise[:-1]).sum())) < 5 * math.sqrt(n)
    assert float((noise.abs() > 1.959964).double().mean()) == pytest.approx(0.05, abs=0.0012)


def test_noise_in_the_gradient_is_the_clip_times_the_multiplier_over_the_rate() -> None:
    model, data = BayesianLogisticRegression.unweighted(), logistic_data(50, 3)
    guide = FullRank(model)
    sigmas, settings = (0.0, 1.0, 3.0), DPVISettings(rate=0.2, clip=0.6)
    runs = [Run(noise_multiplier=sigma, seed=2) for sigma in sigmas]
    streams = Streams(runs, data, steps=200, rate=0.2)
    step = DPVIGradient(scores(model, data, guide.unpack), guide, streams, settings)
    free = random_free(guide, data, 1)
    free = {n: v.expand(3, *v.shape[1:]) for n, v in free.items()}
    times = deviation_for(3.0, 0.6, 12) / deviation_for(1.0, 0.6, 12)
    assert times == pytest.approx(3, rel=1e-8)
    drawn = []
    for number in range(200):
        gradient = step(free, number)
        noise = torch.cat([(g[1:] - g[0]).flatten(1) for g in gradient.values()], dim=1)
        torch.testing.assert_close(noise[1], times * noise[0], rtol=1e-9, atol=1e-9)
        drawn.append(noise[0] * 0.2 / 0.6)
    sample = torch.cat(drawn)
    assert len(sample) == 200 * (3 + 9)
    low, high = chi2.interval(1 - 1e-6, len(sample))
    assert low < float(sample.square().sum()) < high
    fresh = Streams(runs[1:2], data, steps=200, rate=0.2)
    expected = torch.cat([fresh.noisy(torch.zeros(1, 12).double(), 1.0)[0] for _ in range(200)])
    torch.testing.assert_close(sample, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("rate", "table"),
    [
        (0.001, {0.4: 7.9415, 0.8: 1.0222, 1.2: 0.4037, 1.6: 0.2256, 2.0: 0.1459}),
        (0.01, {2.0: 0.9358, 4.0: 0.4331, 6.0: 0.2837, 8.0: 0.2113, 10.0: 0.1683}),
    ],
)
def test_moments_accountant_through_training(rate: float, table: dict[float, float]) -> None:
    model, data = BayesianLogisticRegression.unweighted(), logistic_data(20, 2)
    outcomes = dpvi_runs(
        model,
        MeanField(model),
        data,
        runs=[Run(noise_multiplier=sigma, seed=0) for sigma in table],
        settings=DPVISettings(steps=2000, rate=rate, draws=1),
        delta=1e-3,
        accountant=MomentsAccountant(),
    )
    for outcome, epsilon in zip(outcomes, table.values(), strict=True):
        assert outcome.cost is not None
        found = worst_of(outcome.cost)
        assert found.epsilon == pytest.approx(epsilon, rel=1e-3)
        assert (found.delta, found.by) == (1e-3, "moments accountant")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", GUIDES)
def test_runs_side_by_side_are_as_alone(name: str, kind: type[FullRank]) -> None:
    model, data = MODELS[name], logistic_data(60, 3)
    guide = kind(model)
    runs = [Run(noise_multiplier=s, seed=seed) for s, seed in ((0.5, 1), (2.0, 1), (2.0, 5))]
    settings = DPVISettings(steps=15, rate=0.2, draws=4)
    together = dpvi_runs(model, guide, data, runs=runs, settings=settings)
    for run, outcome in zip(runs, together, strict=True):
        alone = dpvi(
            model,
            guide,
            data,
            noise_multiplier=run.noise_multiplier,
            settings=settings,
            seed=run.seed,
        )
        assert outcome.cost == alone.cost
        for site, value in alone.latents.items():
            torch.testing.assert_close(outcome.latents[site], value, rtol=1e-8, atol=1e-8)


def test_no_step_depends_on_how_many_records_there_are() -> None:
    """A record that no batch has changes nothing: sums are divided by the rate alone."""
    model, data = BayesianLogisticRegression.unweighted(), logistic_data(60, 3)
    plan = BatchPlan(steps=5, rate=0.1, seed=0)
    seen = torch.stack([plan.batch(step, data.ids) for step in range(plan.steps)]).any(0)
    guide, settings = MeanField(model), DPVISettings(steps=5, rate=0.1, draws=2)
    one, other = (
        dpvi(model, guide, records, noise_multiplier=1.0, settings=settings, seed=0).latents["w"]
        for records in (data, data.without(int((~seen).nonzero()[0])))
    )
    assert torch.equal(one, other)


def test_same_seed_same_result_and_secret_runs_differ() -> None:
    model, data = BayesianLogisticRegression.unweighted(), logistic_data(60, 3)

    def one(seed: int | None) -> Tensor:
        settings = DPVISettings(steps=10, rate=0.2, draws=None)
        outcome = dpvi(
            model, MeanField(model), data, noise_multiplier=1.0, settings=settings, seed=seed
        )
        return outcome.latents["w"]

    assert torch.equal(one(3), one(3))
    assert not torch.equal(one(3), one(4))
    assert not torch.equal(one(None), one(None))


def test_empty_batches_leave_prior_entropy_and_noise() -> None:
    model, data = BayesianLogisticRegression.unweighted(), logistic_data(5, 2)
    guide = MeanField(model)
    runs = [Run(noise_multiplier=1.0, seed=0)]
    parameters = train(model, guide, data, runs=runs, settings=DPVISettings(steps=20, rate=1e-9))
    assert all(bool(value.isfinite().all()) for value in parameters.values())
    # With nothing else to learn from, a noiseless guide goes to the prior N(0, 1).
    quiet = [Run(noise_multiplier=0.0, seed=0)]
    parameters = train(model, guide, data, runs=quiet, settings=DPVISettings(steps=800, rate=1e-9))
    torch.testing.assert_close(
        parameters["loc"], torch.zeros(1, 2, dtype=torch.float64), atol=0.15, rtol=0
    )
    torch.testing.assert_close(
        parameters["scale"], torch.ones(1, 2, dtype=torch.float64), atol=0.15, rtol=0
    )


def test_without_privacy_it_is_variational_inference(data: Dataset) -> None:
    model = BayesianLogisticRegression.unweighted()
    guide = FullRank(model)
    settings = DPVISettings(steps=400, rate=1.0, clip=None, draws=None)
    outcome = dpvi(model, guide, data, noise_multiplier=0.0, settings=settings, seed=0)
    assert outcome.cost is None
    fit = bdpvi.fit(
        model,
        guide,
        data,
        training=bdpvi.Training(steps=400, seed=0),
        neighbours=bdpvi.Coupled(bdpvi.bayesian.Remove(3)),
        progress=False,
    )
    torch.testing.assert_close(outcome.latents["w"][0], fit.posterior.mean, atol=0.05, rtol=0)


def test_mean_and_draws_come_from_the_trained_guide() -> None:
    model, data = BayesianLogisticRegression.unweighted(), logistic_data(60, 2)
    guide, run = FullRank(model), Run(noise_multiplier=1.0, seed=3)
    settings = {"steps": 30, "rate": 0.5}
    parameters = train(model, guide, data, runs=[run], settings=DPVISettings(**settings))  # type: ignore[arg-type]
    posterior = guide.posterior({n: v[0] for n, v in parameters.items()})

    def latents(draws: int | None) -> Tensor:
        chosen = DPVISettings(**settings, draws=draws)  # type: ignore[arg-type]
        outcome = dpvi(model, guide, data, noise_multiplier=1.0, settings=chosen, seed=3)
        return outcome.latents["w"]

    torch.testing.assert_close(latents(None)[0], posterior.mean)
    n = 20_000
    sample, covariance = latents(n), posterior.covariance_matrix  # type: ignore[attr-defined]
    variance = covariance.diagonal()
    assert bool(((sample.mean(0) - posterior.mean).abs() < 5 * (variance / n).sqrt()).all())
    spread = (torch.outer(variance, variance) * 2 / n).sqrt()
    assert bool(((sample.T.cov() - covariance).abs() < 5 * spread).all())


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"steps": 0}, "steps"),
        ({"rate": math.nan}, "rate"),
        ({"clip": 0.0}, "clip"),
        ({"clip": math.nan}, "clip"),
        ({"draws": 0}, "draws"),
    ],
)
def test_bad_settings(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        DPVISettings(**settings)


def test_bad_runs(data: Dataset) -> None:
    model = BayesianLogisticRegression.unweighted()
    guide = MeanField(model)
    for sigma in (-1.0, math.nan):
        with pytest.raises(ValueError, match="noise_multiplier"):
            dpvi(model, guide, data, noise_multiplier=sigma)
    with pytest.raises(ValueError, match="seed"):
        dpvi(model, guide, data, noise_multiplier=1.0, seed=-1)
    with pytest.raises(ValueError, match="clip=None"):
        dpvi(model, guide, data, noise_multiplier=1.0, settings=DPVISettings(clip=None))
    with pytest.raises(ValueError, match="runs"):
        dpvi_runs(model, guide, data, runs=[])
    with pytest.raises(ValueError, match="data has 0 records"):
        dpvi(model, guide, data.select(data.ids < 0), noise_multiplier=1.0)
    with pytest.raises(ValueError, match="y must be 0 or 1"):
        dpvi(model, guide, Dataset(data.x, data.y + 1), noise_multiplier=1.0)


def test_abalone_is_learnt(uci: Path) -> None:
    split = load_abalone(uci)
    model = BayesianLogisticRegression.unweighted()
    settings = DPVISettings(steps=300, rate=0.05, clip=5.0)
    runs = [Run(noise_multiplier=5.0, seed=seed) for seed in range(4)]
    outcomes = dpvi_runs(
        model,
        MeanField(model),
        split.train,
        runs=runs,
        settings=settings,
        accountant=RenyiAccountant(),
    )
    mean = sum(accuracy(model, outcome.latents, split.test) for outcome in outcomes) / len(runs)
    assert mean > 0.73

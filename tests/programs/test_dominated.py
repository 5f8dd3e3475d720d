"""A latent that privacy noise dominates has its prior's width, in every table, frame and draw."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from empty_levels import fitted
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.optim import PyroOptim
from scipy import stats
from torch import Tensor

import bdpvi
from bdpvi import DPVI
from bdpvi.bayesian.inference.optimisers import adam_factors
from bdpvi.bench.methods.pace import pace
from bdpvi.noise.keys import Key
from bdpvi.programs.arguments import Arguments
from bdpvi.programs.course import Course, left_in_average, reached, walk
from bdpvi.programs.moments import FLAT, prior_given
from bdpvi.programs.plan import DPVIPlan
from bdpvi.programs.reading import read
from bdpvi.releases.route import Allowance

pytestmark = pytest.mark.usefixtures("fresh_store")

LEVELS = 8
"""The number of levels; the last half is empty."""


def records(count: int = 4000) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    level = torch.randint(0, LEVELS // 2, (count,), generator=generator)
    x = torch.cat([torch.randn(count, 1, generator=generator), torch.eye(LEVELS)[level]], 1)
    return x, torch.poisson((0.5 * x[:, 0] + 0.2 * level).exp(), generator=generator)


@pytest.fixture(scope="module")
def release() -> bdpvi.Release:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Key, "fresh", classmethod(lambda cls: Key.of_seed(3)))
        model = bdpvi.BayesianPoissonRegression(
            largest=15, levels=(tuple(range(1, 1 + LEVELS)),), prior_scale=2.0
        )
        route = DPVI(rows=4000, steps=300, draws=4000)
        return bdpvi.fit_private(model, records(), epsilon=2.0, route=route)


def test_an_empty_level_is_as_wide_as_its_prior_wherever_it_is_shown(
    release: bdpvi.Release,
) -> None:
    summary = release.summary(odds=True)
    empty = summary.coefficients[1 + LEVELS // 2 : 1 + LEVELS]
    assert all(one.note == "dominated by privacy noise" for one in empty)
    assert all((one.low or 0.0) < 0 < (one.high or 0.0) for one in empty)
    assert all(one.sd == pytest.approx(2.0, rel=0.1) for one in empty)
    frame, content = summary.to_frame(), summary.to_dict()["coefficients"]
    for one, row in zip(empty, content[1 + LEVELS // 2 :], strict=False):
        assert frame.loc[one.name, "ratio_low"] == row["ratio"][1] < 0.1
        assert frame.loc[one.name, "ratio_high"] == row["ratio"][2] > 10
    drawn = release.latents["w"][:, 1 + LEVELS // 2 : 1 + LEVELS]
    assert drawn.std(0).tolist() == pytest.approx([2.0] * (LEVELS // 2), rel=0.05)


def test_what_records_identify_keeps_its_guide(release: bdpvi.Release) -> None:
    rows = release.summary().coefficients
    used = [one for one in (*rows[: 1 + LEVELS // 2], rows[-1]) if one.note != "base level"]
    assert not any(one.note for one in used)  # the intercept is part of every level's sum
    assert max(one.sd or 9.0 for one in used) < 0.3
    (base,) = (at for at in range(1, 1 + LEVELS // 2) if rows[at].note == "base level")
    truth = {at: 0.2 * (at - base) for at in range(1, 1 + LEVELS // 2)} | {0: 0.5}
    for at, one in enumerate(rows[: 1 + LEVELS // 2]):
        if at != base:
            assert abs(one.mean - truth[at]) < 4.5 * (one.sd or 0.0)


def test_the_headline_never_says_yes_above_a_note(release: bdpvi.Release) -> None:
    summary = release.summary()
    seen = sum(coefficient.measured for coefficient in summary.coefficients)
    first = str(replace(summary, reliable=True)).splitlines()[0]
    assert first == (
        f"95 % intervals; reliable: only where measured, {seen} of {LEVELS + 1} "
        "coefficients are measured"
    )
    clear = tuple(coefficient for coefficient in summary.coefficients if coefficient.measured)
    one = replace(summary, reliable=True, coefficients=clear)
    assert f"; reliable: yes, {len(clear)} of {len(clear)} " in str(one)
    why = str(replace(one, reliable=False)).splitlines()[0]
    assert why == "95 % intervals; reliable: no, for a reason given below"


@pytest.mark.parametrize("pull", [0.0, 0.05, 0.3, 2.0])
def test_a_walk_is_as_wide_as_adam_makes_it(pull: float) -> None:
    """Noise about a slope, both far larger than Adam's steps; the optimum is where it starts."""
    steps, first, rate, decay, many = 400, 200, 0.05, 0.1 ** (1 / 400), 20_000
    place = torch.zeros(many, requires_grad=True)
    optim = torch.optim.Adam([place], lr=rate)
    plan = torch.optim.lr_scheduler.ExponentialLR(optim, decay)
    generator, total = torch.Generator().manual_seed(0), torch.zeros(many)
    square = 0.0
    for number in range(steps):
        noise = torch.randn(many, generator=generator)
        place.grad = 7.0 * (noise + pull * place.detach())
        square += float(place.grad.square().mean()) / steps
        optim.step()
        plan.step()
        if number >= first:
            total += place.detach() / (steps - first)
    plain = PyroOptim(torch.optim.Adam, {"lr": 1.0})
    factors = adam_factors(plain, steps)
    assert factors is not None
    rates, fresh = factors[:, :2].T
    rates = rates * rate * decay ** torch.arange(steps).double()
    of_it = torch.tensor([7.0 * pull / square**0.5]).double()
    deviation = float(total.std())
    assert float(walk(rates, fresh, first, of_it)) == pytest.approx(deviation, rel=0.02)
    if pull:
        share = pull**2 * deviation**2 * (steps - first)
        assert float(reached(rates, fresh, first, of_it)) == pytest.approx(min(share, 1), rel=0.04)


def test_noise_in_joint_directions_is_what_adam_leaves_there() -> None:
    """Two latents of which the sum is well known and the difference hardly."""
    steps, rate, many = 400, 0.05, 20_000
    curvature = torch.tensor([[0.5, 0.48], [0.48, 0.5]])
    place = torch.zeros(many, 2, requires_grad=True)
    optim = torch.optim.Adam([place], lr=rate)
    generator, total = torch.Generator().manual_seed(0), torch.zeros(many, 2)
    course: Any = Course.__new__(Course)
    course.steps, course.first, course.square = steps, 200, torch.zeros(2).double()
    for number in range(steps):
        noise = torch.randn(many, 2, generator=generator)
        place.grad = place.detach() @ curvature + noise
        course.square += place.grad.square().mean(0).double() / steps
        optim.step()
        if number >= course.first:
            total += place.detach() / 200
    course.descent = type("D", (), {"optim": PyroOptim(torch.optim.Adam, {"lr": rate})})()
    covariance = torch.linalg.inv(curvature.double())
    left = left_in_average(covariance, 1.0, 1.0, 200)
    found = course._reached(covariance, left)[1]
    torch.testing.assert_close(found, torch.cov(total.double().T), rtol=0.05, atol=0.0)
    assert float(found[0, 0]) < 0.5 * float(left[0, 0])


def test_a_mean_is_shrunk_by_the_walk_and_one_of_a_narrow_prior_more() -> None:
    def program(scale: float) -> Any:
        def model(x: Tensor, y: Tensor | None = None) -> None:
            w = pyro.sample("w", dist.Normal(x.new_zeros(2), scale).to_event(1))
            with pyro.plate("records", len(x)):
                pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

        guide = AutoNormal(model, init_scale=scale / 100)
        table = torch.randn(50, 2), torch.randn(50)
        return read(model, guide, Trace_ELBO(), Arguments.of(table, {}))

    for scale in (0.1, 3.0):
        pyro.clear_param_store()
        found = program(scale)
        course: Any = Course.__new__(Course)
        course.descent = type("Descent", (), {"program": found})()
        course.steps, course.first, course.averaged = 4, 2, 2
        course.identified, course.variance, course.gaussian = None, 1.0, True
        course.descent.mechanism = type("Mechanism", (), {"rate": 1.0})()
        course._reached = lambda covariance, left: (0.5, 0 * left)
        course.products = torch.zeros(2, 0, 0)
        course.sums = {
            n: torch.full_like(v, 1.8) if "loc" in n else 2 * v.detach()
            for n, v in found.parameters.items()
        }
        one = torch.ones(2, dtype=torch.float64)
        course.moments = torch.stack([one, 0 * one, 0 * one, one, 0 * one]).expand(2, 5, 2)  # flat
        course.pull = 0 * one
        posterior = course.posterior()
        assert not posterior.measured.any()
        share = scale**2 / (scale**2 + 0.25)
        assert posterior.mean.tolist() == pytest.approx([0.9 * share] * 2, rel=1e-5)
        assert posterior.covariance.tolist() == pytest.approx([scale**2] * 2, rel=1e-5)


def test_a_prior_that_depends_on_a_latent_is_averaged_over_it() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        size = pyro.sample("size", dist.LogNormal(x.new_tensor(0.0), 1.0))
        with pyro.plate("groups", 3):
            effect = pyro.sample("effect", dist.Normal(x.new_tensor(1.0), size))
        rate = pyro.sample("rate", dist.Gamma(x.new_tensor(4.0), 1.0))
        shift = pyro.sample("shift", dist.ImproperUniform(dist.constraints.real, (), ()))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(effect[0] + rate + shift, 1.0), obs=y)

    def guide(x: Tensor, y: Tensor | None = None) -> None:
        at = pyro.param("at", torch.tensor(2.0).log())
        pyro.sample("size", dist.LogNormal(at, 1e-3))
        with pyro.plate("groups", 3):
            pyro.sample("effect", dist.Normal(at * 0, 1e-3))
        pyro.sample("rate", dist.LogNormal(at * 0, 1e-3))
        pyro.sample("shift", dist.Normal(at * 0 + 5.0, 1e-3))

    torch.manual_seed(0)
    program = read(
        model, guide, Trace_ELBO(), Arguments.of((torch.zeros(9, 1), torch.zeros(9)), {})
    )
    assert [site.name for site in program.sites] == ["size", "effect", "rate", "shift"]
    kept = torch.tensor([True, True, False, False, False, False])
    mean, variance = prior_given(program, kept)
    assert mean[2:4].tolist() == pytest.approx([1.0] * 2)
    assert variance[2:4].tolist() == pytest.approx([4.0] * 2, rel=0.01)  # of the guide's size
    log = stats.loggamma(4.0)
    assert float(mean[4]) == pytest.approx(log.mean(), abs=5 * log.std() / 200**0.5)
    assert float(variance[4]) == pytest.approx(log.var(), rel=0.5)
    assert variance[5] == pytest.approx(FLAT**2, rel=1e-3)
    none = torch.zeros(6, dtype=torch.bool)
    wide = prior_given(program, none)[1]
    assert float(wide[0]) == pytest.approx(1.0)
    assert float(wide[1]) > 2  # E size² = e² = 7.4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logistic", "poisson", "ordinal", "linear"])
def test_empty_levels_exclude_0_no_more_often_than_by_chance(kind: str) -> None:
    out, noted, width = (
        torch.cat(one) for one in zip(*(fitted(kind, s) for s in range(5)), strict=True)
    )
    assert int(out.sum()) <= stats.binom(len(out), 0.05).ppf(0.99)
    assert bool((width[noted] > 4).all())


@pytest.fixture(scope="module")
def of_classes() -> bdpvi.Release:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(1500, 4, generator=generator, dtype=torch.float64)
    truth = torch.tensor([[1.0, 0, -1], [0, 0, 0], [0, 1, 0], [0, 0, 0]]).double()
    chances = (x @ truth).softmax(1)
    y = torch.multinomial(chances, 1, generator=generator)[:, 0].double()
    route = DPVI(rows=1500, steps=200, draws=4000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Key, "fresh", classmethod(lambda cls: Key.of_seed(3)))
        model = bdpvi.BayesianMultinomialRegression(classes=3)
        return bdpvi.fit_private(model, (x, y), epsilon=0.3, route=route)


def test_draws_of_classes_vary_by_noise_where_it_hides_a_weight(of_classes: bdpvi.Release) -> None:
    guide = of_classes.guide
    assert guide is not None
    assert guide.moved is not None
    hidden = ~torch.tensor(guide.measured)
    assert hidden.sum() > 5
    spread = of_classes.samples[:, hidden].std(0)
    assert torch.allclose(spread, torch.full_like(spread, guide.moved), rtol=0.06)  # 5 errors
    factors = adam_factors(PyroOptim(torch.optim.Adam, {"lr": 0.01}), 200)
    assert factors is not None
    alone = walk(factors[:, 0], factors[:, 1], 100, torch.zeros(1))
    assert guide.moved == pytest.approx(float(alone), rel=1e-5)


def test_intervals_of_classes_are_those_of_the_prior_where_noise_hides_a_weight(
    of_classes: bdpvi.Release,
) -> None:
    guide = of_classes.guide
    assert guide is not None
    rows = of_classes.summary().coefficients  # of differences from the first class
    seen = torch.tensor(guide.measured).reshape(5, 3)
    hidden = ~(seen[:, 1:] | seen[:, :1]).flatten()
    assert hidden.sum() > 3
    for row, both in zip(rows, hidden.tolist(), strict=True):
        if both:
            assert row.sd == pytest.approx(5 * 2**0.5, rel=0.06)
            assert row.low is not None and row.high is not None  # noqa: PT018
            assert row.high - row.low == pytest.approx(2 * 1.96 * 5 * 2**0.5, rel=0.09)
    shown = of_classes.to_inference_data()["posterior"]["w"].to_numpy()[0].reshape(4000, -1)
    unseen = ~torch.tensor(guide.measured).numpy()
    assert shown[:, unseen].std(0) == pytest.approx(5, rel=0.06)
    again = of_classes.with_draws(100)
    assert bool((again.samples[:, ~torch.tensor(guide.measured)].std(0) < 1).all())


def test_a_prior_as_wide_as_five_does_not_drown_predictions(of_classes: bdpvi.Release) -> None:
    guide = of_classes.guide
    assert guide is not None
    x = torch.randn(2000, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    found = of_classes.predict_proba(x)
    w = torch.tensor(guide.mean).double().reshape(5, 3)
    at_mean = (torch.cat([x, torch.ones(2000, 1).double()], 1) @ w).softmax(1)
    assert (found - at_mean).abs().mean() < 0.02


def test_classes_go_as_far_as_noise_lets_noisy_gradient_descent_go() -> None:
    """In the limit of much noise, whose rule for the path length has 0.2 where this has 0.24."""
    model, steps, rows = bdpvi.BayesianMultinomialRegression(classes=4), 500, 2000

    def at(epsilon: float, model: Any = model, **more: Any) -> tuple[Any, Any]:
        x, y = torch.randn(40, 10, dtype=torch.float64), torch.arange(40).remainder(2).double()
        made = DPVI(rows=rows, steps=steps, **more).adapt(model, bdpvi.Dataset(x, y), None)
        plan = made.plan(model, 10, Allowance(epsilon=epsilon, delta=1e-5, variance=0.0))
        return made.pace(model, plan, 10), plan.actual_event

    (lr, decay), event = at(0.002)
    found = pace(11, rows, noise_multiplier=event.noise_multiplier, steps=steps, rate=event.rate)
    noise = found["clip"] * event.noise_multiplier / (event.rate * rows) / math.sqrt(steps)
    way = found["step_size"] * steps  # by 1/30 + ν²(d + 1)/0.2, the first of which is little
    assert lr * math.sqrt(steps) == pytest.approx(1.2 * way * noise, rel=3e-3)
    assert decay == 1
    assert at(1.0)[0] == (0.01, 1.0)
    assert at(50.0)[0] == (0.03, 1.0)  # or large weights are not reached
    (lr, _), event = at(4.0)
    noise = found["clip"] * event.noise_multiplier / (event.rate * rows)
    assert lr == pytest.approx(0.24 / 11 / noise / 40, rel=3e-3)
    assert 0.01 < lr < 0.03
    assert at(0.002, lr=0.3)[0] == (0.3, 1.0)
    assert at(0.002, bdpvi.BayesianOrdinalRegression(classes=4))[0] == (0.05, 0.1)


@pytest.mark.whole
def test_intervals_of_classes_cover_large_weights_of_many_records() -> None:
    """At a rate of 0.01 training would not reach them: the first weights are above 8."""
    generator = torch.Generator().manual_seed(0)
    truth = 4 / 5**0.5 * torch.randn(5, 3, generator=generator, dtype=torch.float64)
    truth[0] += torch.tensor([-6.0, 0.0, 6.0])
    x = torch.randn(100_000, 5, generator=generator, dtype=torch.float64)
    y = torch.multinomial((x @ truth).softmax(1), 1, generator=generator)[:, 0].double()
    torch.manual_seed(0)
    made = bdpvi.fit_private(
        bdpvi.BayesianMultinomialRegression(classes=3), (x, y), epsilon=1.0,
        route=DPVI(rows=100_000),
    )  # fmt: skip
    w = made.latents["w"][:, :5]
    apart = w - w.mean(-1, keepdim=True)
    z = (apart.mean(0) - truth + truth.mean(1, keepdim=True)) / apart.std(0)
    assert z.square().mean() < 3


@pytest.mark.parametrize(("epsilon", "follows"), [(0.2, False), (3.0, True)])
def test_the_clip_of_classes_starts_at_the_usual_norm(epsilon: float, follows: bool) -> None:
    left = Allowance(epsilon=epsilon, delta=1e-5, variance=0.0)
    plain, made = (DPVIPlan.of(DPVI(rows=2000.0), 44, left, usual=u) for u in (None, 2.0))
    assert plain.clip.bound == pytest.approx(44**0.5)
    assert made.clip.bound == 2.0
    assert (plain.clip.counts, made.clip.counts) == (True, follows)
    assert made.size == 44 + follows

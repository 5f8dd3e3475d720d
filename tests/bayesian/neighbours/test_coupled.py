"""Coupled neighbours against separate runs, and the fit against plain Pyro."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import SGD, Adam, PyroOptim
from simulated import logistic_data

from bdpvi import (
    BayesianLogisticRegression,
    BayesianMultinomialRegression,
    Coupled,
    Dataset,
    Training,
    fit,
)
from bdpvi._ground.progress import silent
from bdpvi.bayesian import Add, Remove
from bdpvi.bayesian.inference.svi import Problem, default_optimiser, isolated, run_svi
from bdpvi.bayesian.neighbours.row_gradients import Step, TracedGradient
from bdpvi.bayesian.neighbours.rows import RowFits, row_gradient, train_rows
from bdpvi.guides import FullRank, GaussianGuide, MeanField
from bdpvi.models.contract import Model
from bdpvi.noise.batches import BatchPlan

GUIDES = [MeanField, FullRank]
STEPS = 40


def problem(
    data: Dataset,
    guide: type[GaussianGuide] = FullRank,
    rate: float = 0.4,
    clip: float | None = 0.5,
    optim: PyroOptim | None = None,
) -> Problem:
    model = BayesianLogisticRegression.unweighted(clip=clip, intercept=True)
    plan = BatchPlan(steps=STEPS, rate=rate, seed=3)
    return Problem(model, guide(model), data, plan, optim or default_optimiser(STEPS))


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float) -> None:
    for name in b:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=tolerance)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("rate", [0.4, 1.0])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_row_of_record_equals_a_run_without_it(
    data: Dataset, guide: type[GaussianGuide], rate: float, clip: float | None
) -> None:
    rows = train_rows(problem(data, guide, rate, clip), RowFits("remove", data, -1.0))
    for record in (0, 17, 59):
        alone, _ = run_svi(problem(data.without(record), guide, rate, clip), silent)
        assert_same({name: value[record] for name, value in rows.items()}, alone, 1e-10)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_closed_form_gradient_equals_the_traced_one(
    data: Dataset, guide: type[GaussianGuide], clip: float | None
) -> None:
    p = problem(data, guide, clip=clip)
    p.guide.setup(data.x, data.y)
    generator = torch.Generator().manual_seed(0)
    free = {
        name: torch.randn((60, *value.shape), generator=generator, dtype=value.dtype)
        for name, value in p.guide.initial(data.x).items()
    }
    weight = torch.randint(-1, 2, (60,), generator=generator).double()
    closed, traced = row_gradient(p), TracedGradient(p)
    assert not isinstance(closed, TracedGradient)
    with isolated(data.x), pyro.validation_enabled(False):
        results = []
        for gradient in (closed, traced):
            seen, noise = gradient.see(data), torch.Generator().manual_seed(5)
            batch = tuple(part[:20] for part in seen)
            out = {name: torch.empty_like(value) for name, value in free.items()}
            gradient(free, Step(seen, weight, batch, noise), out)
            results.append(out)
    assert_same(results[0], results[1], 1e-9)


def test_row_of_heldout_record_equals_a_run_with_it(data: Dataset) -> None:
    train, heldout = data.select(torch.arange(50)), data.select(torch.arange(50, 60))
    rows = train_rows(problem(train), RowFits("add", heldout, 1.0))
    for row in (0, 9):
        joined = data.select(torch.cat([torch.arange(50), torch.tensor([50 + row])]))
        alone, _ = run_svi(problem(joined), silent)
        assert_same({name: value[row] for name, value in rows.items()}, alone, 1e-10)


def test_heldout_records_that_the_model_cannot_take_are_left_out() -> None:
    data = Dataset(torch.zeros(20, 1), torch.arange(20.0) % 3)
    fresh = Dataset(torch.zeros(4, 1), torch.tensor([0.0, 1.0, 3.0, 0.5]), ids=torch.arange(20, 24))
    with pytest.warns(UserWarning, match="2 records left out"):
        rows = Add(fresh).rows(data, BayesianMultinomialRegression(classes=3))
    assert rows.records.y.tolist() == [0.0, 1.0]


def test_heldout_records_are_none_of_the_data(data: Dataset) -> None:
    rest = data.without(7)
    with pytest.raises(ValueError, match="heldout has record id 12, which is in the data already"):
        Add(data.select(torch.tensor([7, 12]))).rows(rest, BayesianLogisticRegression())
    assert (
        Add(data.select(torch.tensor([7]))).rows(rest, BayesianLogisticRegression()).kind == "add"
    )


@pytest.mark.parametrize(("shift", "factor"), [(0.0, 1.0), (1.0, 1.0), (0.0, 3.0)])
def test_fresh_records_unlike_the_data_are_named(shift: float, factor: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 3, generator=generator, dtype=torch.float64)
    x[400:, 1] = shift + factor * x[400:, 1]
    data = Dataset(x, (x[:, 0] > 0).double(), feature_names=("height", "age", "weight"))
    fresh, rest = (data.select(one) for one in torch.arange(600).split([400, 200])[::-1])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        Add(fresh).rows(rest, BayesianLogisticRegression())
    told = [str(one.message) for one in seen]
    assert len(told) == (shift != 0 or factor != 1)
    assert all("feature 'age' is distributed unlike the data's" in one for one in told)


@pytest.mark.parametrize("optim", [SGD({"lr": 1e-3}), Adam({"lr": 0.05})])
def test_a_neighbour_that_changes_nothing_is_the_fit(data: Dataset, optim: PyroOptim) -> None:
    rows = train_rows(problem(data, optim=optim), RowFits("none", data, 0.0))
    fitted, _ = run_svi(problem(data, optim=optim), silent)
    assert_same({name: value[5] for name, value in rows.items()}, fitted, 1e-10)


@pytest.mark.parametrize("guide", GUIDES)
def test_fit_equals_plain_pyro_on_the_same_batches_and_noise(
    data: Dataset, guide: type[GaussianGuide]
) -> None:
    p = problem(data, guide, rate=0.4, clip=None, optim=Adam({"lr": 0.05}))
    fitted, _ = run_svi(p, silent)

    def model(x: torch.Tensor, y: torch.Tensor) -> None:
        x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
        prior = dist.Normal(torch.zeros(4, dtype=x.dtype), torch.ones(4, dtype=x.dtype))
        w = pyro.sample("w", prior.to_event(1))
        with pyro.poutine.scale(scale=1 / 0.4), pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    plain_guide = guide(p.model)
    svi = SVI(model, plain_guide, Adam({"lr": 0.05}), Trace_ELBO())
    for step in range(STEPS):
        batch = p.plan.batch(step, data.ids)
        torch.manual_seed(p.plan.noise_seed(step))
        svi.step(data.x[batch], data.y[batch])
    plain = {name: pyro.param(name).detach() for name in plain_guide.constraints}
    pyro.clear_param_store()
    assert_same(fitted, plain, 1e-10)


def test_fit_is_the_same_with_and_without_neighbours_bit_for_bit(data: Dataset) -> None:
    def run(kinds: tuple[Remove | Add, ...]) -> dict[str, torch.Tensor]:
        model = BayesianLogisticRegression.unweighted()
        return dict(
            fit(
                model,
                FullRank(model),
                data.select(torch.arange(50)),
                training=Training(steps=STEPS, rate=0.4, seed=0, device="cpu"),
                neighbours=Coupled(*kinds),
                progress=False,
            ).parameters
        )

    heldout = data.select(torch.arange(50, 60))
    one, two = run((Remove(3),)), run((Remove(), Add(heldout)))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_chunks_do_not_matter(data: Dataset) -> None:
    p = problem(data)
    small, large = (Coupled(chunk=chunk).train(p, silent).panels[0] for chunk in (7, 1000))
    torch.testing.assert_close(small.pairs.b2, large.pairs.b2, rtol=1e-8, atol=1e-20)


def test_any_pyro_model_with_several_latents_and_supports(data: Dataset) -> None:
    def model(x: torch.Tensor, y: torch.Tensor | None = None) -> None:
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
        mix = pyro.sample("mix", dist.Dirichlet(torch.ones(3)))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x @ w + mix[0], scale), obs=y)

    def setting(records: Dataset) -> Problem:
        plan = BatchPlan(steps=STEPS, rate=0.4, seed=1)
        return Problem(model, FullRank(model), records, plan, default_optimiser(STEPS))

    rows = train_rows(setting(data), RowFits("remove", data, -1.0))
    alone, _ = run_svi(setting(data.without(4)), silent)
    assert rows["loc"].shape == (60, 1 + 3 + 2)
    assert_same({name: value[4] for name, value in rows.items()}, alone, 1e-10)


GROUPS = 4


def hierarchical(x: torch.Tensor, y: torch.Tensor | None = None) -> None:
    """Effects and slopes of groups, in a plate of their own; the first feature is the group."""
    centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
    spread = pyro.sample("spread", dist.HalfNormal(1.0))
    with pyro.plate("groups", GROUPS):
        effect = pyro.sample("effect", dist.Normal(centre, spread))
        slope = pyro.sample("slope", dist.LogNormal(0.0, 0.5))
    at = x[:, 0].long()
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(effect[at] + slope[at] * x[:, 1], 1.0), obs=y)


@pytest.mark.parametrize("guide", [MeanField, FullRank])
def test_a_record_of_a_group_moves_what_training_without_it_moves(
    guide: type[GaussianGuide],
) -> None:
    plain = logistic_data(60, 1)
    group = (torch.arange(60) % GROUPS).to(plain.x)
    data = Dataset(torch.stack([group, plain.x[:, 0]], 1), plain.x[:, 0] + 0.3 * group)

    def setting(model: Model, records: Dataset) -> Problem:
        plan = BatchPlan(steps=STEPS, rate=0.5, seed=1)
        return Problem(model, guide(model), records, plan, default_optimiser(STEPS))

    rows = train_rows(setting(hierarchical, data), RowFits("remove", data, -1.0))
    assert rows["loc"].shape == (60, 2 + 2 * GROUPS)
    for record in (5, 30):
        alone, _ = run_svi(setting(hierarchical, data.without(record)), silent)
        assert_same({name: value[record] for name, value in rows.items()}, alone, 1e-10)
    whole, _ = run_svi(setting(hierarchical, data), silent)
    moved = (rows["loc"][5] - whole["loc"]).abs()  # of group 1: the effects come after two others
    assert moved.min() > 0  # all coordinates, by the centre and the spread
    assert moved[2:6].argmax() == 1


def test_optimisers_that_mix_rows_are_refused(data: Dataset) -> None:
    for optim in (
        PyroOptim(torch.optim.LBFGS, {}),
        Adam({"lr": 0.1}, {"clip_norm": 1.0}),
        Adam(lambda name: {"lr": 0.1}),
    ):
        with pytest.raises(ValueError, match="optim"):
            Coupled().train(problem(data, optim=optim), silent)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_rows_on_cuda_equal_a_run_on_cuda() -> None:
    data = logistic_data(60, 3).to("cuda")
    rows = train_rows(problem(data), RowFits("remove", data, -1.0))
    alone, _ = run_svi(problem(data.without(17)), silent)
    assert_same({name: value[17] for name, value in rows.items()}, alone, 1e-10)


def test_threads_give_what_one_gives_and_stop_together(monkeypatch: pytest.MonkeyPatch) -> None:
    data = logistic_data(600, 3)
    p = replace(problem(data), plan=BatchPlan(steps=30, rate=0.2))
    rows = RowFits("remove", data, -1.0)
    before = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    alone = train_rows(p, rows)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert_same(train_rows(p, rows), alone, 1e-12)
    done = 0

    def stop_at_five() -> None:
        nonlocal done
        done += 1
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_rows(p, rows, stop_at_five)
    assert done == 5
    torch.set_num_threads(before)

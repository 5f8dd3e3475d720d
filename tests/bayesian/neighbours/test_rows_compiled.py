"""The compiled rows against torch's, against autograd through Pyro, and at their edges."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pyro
import pytest
import torch
from pyro.optim import SGD, Adam, OneCycleLR, PyroOptim
from simulated import logistic_data
from torch.distributions import transform_to

from bdpvi import BayesianLogisticRegression, Dataset
from bdpvi.bayesian.inference.guide import Free
from bdpvi.bayesian.inference.optimisers import adam_factors
from bdpvi.bayesian.inference.svi import Problem, default_optimiser, isolated
from bdpvi.bayesian.neighbours.row_gradients import (
    LogisticGradient,
    RowGradient,
    RowSteps,
    Step,
    TracedGradient,
)
from bdpvi.bayesian.neighbours.rows import RowFits, row_gradient, train_rows
from bdpvi.guides import FullRank, GaussianGuide, MeanField
from bdpvi.noise.batches import BatchPlan

numba = pytest.importorskip("numba")
compiled = pytest.importorskip("bdpvi.bayesian.neighbours.rows_compiled")

GUIDES = [MeanField, FullRank]


def problem(data: Dataset, guide: type[GaussianGuide], clip: float | None = 0.5) -> Problem:
    model = BayesianLogisticRegression.unweighted(clip=clip, prior_scale=0.7)
    plan = BatchPlan(steps=20, rate=0.4, seed=3)
    p = Problem(model, guide(model), data, plan, default_optimiser(plan.steps))
    p.guide.setup(data.x, data.y)
    return p


def parameters(p: Problem, rows: int, spread: float = 1.0) -> Free:
    generator, like = torch.Generator().manual_seed(0), p.data.x
    shapes = {
        name: transform_to(p.guide.constraints[name]).inv(value).shape
        for name, value in p.guide.initial(like).items()
    }
    return {
        name: spread * torch.randn(rows, *shape, generator=generator, dtype=torch.float64).to(like)
        for name, shape in shapes.items()
    }


def gradient_of(
    gradient: RowGradient, p: Problem, free: Free, batch: int, weight: torch.Tensor | None = None
) -> Free:
    """Return the gradients on the first records; every row has the record of its number."""
    rows = len(next(iter(free.values())))
    if weight is None:
        weight = (torch.arange(rows) % 3 - 1).to(p.data.x)
    every = gradient.see(p.data)
    if isinstance(gradient, compiled.CompiledGradient):
        return of_kernels(gradient, every, free, batch, weight)
    extra = tuple(part[:rows] for part in every)
    out = {name: torch.full_like(value, torch.nan) for name, value in free.items()}
    with isolated(p.data.x), pyro.validation_enabled(False):
        noise = torch.Generator().manual_seed(5)
        step = Step(extra, weight, tuple(part[:batch] for part in every), noise)
        gradient(free, step, out)
    return out


def of_kernels(
    gradient: Any, every: tuple[torch.Tensor, ...], free: Free, batch: int, weight: torch.Tensor
) -> Free:
    """Return the first moments after a step of Adam with β₁ = 0: the gradients.

    A run has one sign, so that rows are in it whose weight has that sign; all others have no
    record of their own, whatever the sign.
    """
    start = torch.vmap(gradient.packed)(free).T.contiguous()
    adam = torch.tensor([[1.0, 1.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    result = torch.full_like(start, torch.nan)
    for sign in (-1.0, 1.0):
        mine = (weight == sign).nonzero().squeeze(1)
        state = (start.clone(), torch.zeros_like(start), torch.zeros_like(start))
        run = RowSteps(every, [torch.arange(batch)], [mine], [5], adam)
        gradient.train(state, tuple(part[: len(weight)] for part in every), sign, run)
        chosen = (weight == sign) | ((weight == 0) & (sign > 0))
        result[:, chosen] = state[1][:, chosen]
    out: Free = gradient.unpacked(result)
    return out


def in_torch(p: Problem) -> LogisticGradient:
    assert isinstance(p.model, BayesianLogisticRegression)
    assert isinstance(p.guide, MeanField | FullRank)
    return LogisticGradient(p.model, p.guide, p.plan.rate)


def assert_close(a: Free, b: Free, tolerance: float) -> None:
    assert a.keys() == b.keys()
    for name, value in b.items():
        torch.testing.assert_close(a[name], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize(
    ("features", "batch", "rows"),
    [(1, 0, 1), (2, 1, 7), (3, 5, 127), (4, 4, 128), (14, 203, 300), (50, 18, 129)],
)
def test_gradient_is_that_of_torch(
    guide: type[GaussianGuide], clip: float | None, features: int, batch: int, rows: int
) -> None:
    p = problem(logistic_data(300, features), guide, clip)
    free = parameters(p, rows)
    found = row_gradient(p)
    assert isinstance(found, compiled.CompiledGradient)
    assert_close(
        gradient_of(found, p, free, batch), gradient_of(in_torch(p), p, free, batch), 1e-11
    )


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_gradient_is_that_of_autograd_through_pyro(
    guide: type[GaussianGuide], clip: float | None
) -> None:
    p = problem(logistic_data(150, 5), guide, clip)
    free = parameters(p, 131)
    traced = gradient_of(TracedGradient(p), p, free, 42)
    assert_close(gradient_of(row_gradient(p), p, free, 42), traced, 1e-9)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_logits_beyond_every_limit_saturate(guide: type[GaussianGuide], dtype: torch.dtype) -> None:
    data = logistic_data(30, 3)
    p = problem(replace(data, x=1000 * data.x).to("cpu", dtype), guide, clip=None)
    free = parameters(p, 30)
    ours, theirs = (gradient_of(g, p, free, 20) for g in (row_gradient(p), in_torch(p)))
    assert all(bool(value.isfinite().all()) for value in ours.values())
    assert_close(ours, theirs, 1e-9 if dtype == torch.float64 else 1e-3)


@pytest.mark.parametrize("guide", GUIDES)
def test_a_row_that_diverged_shows_it_and_spoils_no_other(guide: type[GaussianGuide]) -> None:
    p = problem(logistic_data(10, 3), guide)
    free = parameters(p, 10)
    well = gradient_of(row_gradient(p), p, free, 10)
    free["loc"][4] = torch.nan
    ill = gradient_of(row_gradient(p), p, free, 10)
    assert bool(ill["loc"][4].isnan().all())
    others = torch.arange(10) != 4
    assert all(torch.equal(ill[name][others], well[name][others]) for name in well)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_threads_give_the_same_bits(
    guide: type[GaussianGuide], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = logistic_data(700, 3).to("cpu", dtype)
    p, threads = problem(data, guide), torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    alone = train_rows(p, RowFits("remove", data, -1.0))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    both = train_rows(p, RowFits("remove", data, -1.0))
    torch.set_num_threads(threads)
    assert all(torch.equal(both[name], value) for name, value in alone.items())


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_row_does_not_depend_on_where_it_lies(
    guide: type[GaussianGuide], dtype: torch.dtype
) -> None:
    p = problem(logistic_data(300, 3).to("cpu", dtype), guide)
    free, none = parameters(p, 300), p.data.x.new_zeros(300)
    whole = gradient_of(row_gradient(p), p, free, 42, none)
    end = {name: value[137:] for name, value in free.items()}
    some = gradient_of(row_gradient(p), p, end, 42, none[137:])
    assert all(torch.equal(some[name], value[137:]) for name, value in whole.items())


@pytest.mark.parametrize("missing", ["numba", "bdpvi.bayesian.neighbours.rows_compiled"])
def test_without_numba_torch_trains_the_same_rows(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = logistic_data(60, 3)
    p = problem(data, FullRank)
    with_numba = train_rows(p, RowFits("remove", data, -1.0))
    for name in ("rows_compiled", "compiled_functions"):
        monkeypatch.delitem(sys.modules, f"bdpvi.bayesian.neighbours.{name}")
    monkeypatch.setitem(sys.modules, missing, None)
    assert type(row_gradient(p)) is LogisticGradient
    assert_close(train_rows(p, RowFits("remove", data, -1.0)), with_numba, 1e-10)


PLAIN = [
    lambda steps: default_optimiser(steps),
    lambda _: Adam({"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-3}),
    lambda steps: OneCycleLR(
        {
            "optimizer": torch.optim.Adam,
            "optim_args": {"lr": 0.01},
            "max_lr": 0.1,
            "total_steps": steps + 1,
        }
    ),
]
OTHER = [
    lambda _: Adam({"lr": 0.03, "weight_decay": 0.1}),
    lambda _: Adam({"lr": 0.03, "amsgrad": True}),
    lambda _: SGD({"lr": 1e-3}),
]


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("optim", [*PLAIN, *OTHER])
def test_every_optimiser_trains_as_by_torch(
    guide: type[GaussianGuide],
    optim: Callable[[int], PyroOptim],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = logistic_data(150, 3)
    p = problem(data, guide)
    plan = BatchPlan(steps=50, rate=0.4, seed=3)
    p = replace(p, plan=plan, optim=optim(plan.steps))
    assert (adam_factors(p.optim, plan.steps) is not None) == (optim in PLAIN)
    for rows in (
        RowFits("remove", data, -1.0),
        RowFits("remove", data.select(torch.arange(9)), 1.0),
    ):
        ticks: list[None] = []
        ours = train_rows(p, rows, lambda ticks=ticks: ticks.append(None))  # type: ignore[misc]
        assert len(ticks) == plan.steps
        with monkeypatch.context() as patched:
            patched.setattr("bdpvi.bayesian.neighbours.rows.row_gradient", in_torch)
            assert_close(ours, train_rows(p, rows), 1e-10)


@pytest.mark.parametrize("guide", GUIDES)
def test_rows_that_are_observed_end_where_others_do(guide: type[GaussianGuide]) -> None:
    data = logistic_data(150, 3)
    p, rows = problem(data, guide), RowFits("remove", data, -1.0)
    path: list[dict[str, torch.Tensor]] = []
    observed = train_rows(p, rows, observe=lambda _, now: path.append(now))
    assert len(path) == p.plan.steps
    assert_close(path[-1], observed, 0)
    assert_close(train_rows(p, rows), observed, 1e-10)


def test_a_guide_of_ones_own_is_trained_by_torch() -> None:
    class Own(MeanField):
        """Might draw in another way."""

    assert type(row_gradient(problem(logistic_data(10, 3), Own))) is LogisticGradient


def _over(function: Any) -> Callable[[Any], Any]:
    """Return a function of a vector, compiled from one of its numbers."""

    @numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
    def over(x: Any) -> Any:
        result = np.empty_like(x)
        for i in range(len(x)):
            result[i] = function(x[i])
        return result

    return lambda x: over(x)


@compiled.compiled  # type: ignore[untyped-decorator]
def _exp(x: Any) -> Any:
    return compiled.exponential(x, type(x)(1))


@compiled.compiled  # type: ignore[untyped-decorator]
def _softplus(x: Any) -> Any:
    return compiled.softplus(x)[0]


@compiled.compiled  # type: ignore[untyped-decorator]
def _softplus_derivative(x: Any) -> Any:
    return compiled.softplus(x)[1]


def _slopes(x: Any) -> Any:
    """Return the slopes of two records, the second at 3, which no bound holds."""
    tiles = [np.zeros((2, compiled._LANES), x.dtype) for _ in range(0, len(x), compiled._LANES)]
    for start, tile in zip(range(0, len(x), compiled._LANES), tiles, strict=True):
        part = x[start : start + compiled._LANES]
        tile[0, : len(part)], tile[1] = part, 3
        compiled._slopes(tile, np.full(2, np.inf, x.dtype))
    return np.concatenate([tile[0] for tile in tiles])[: len(x)]


def _exact_sigmoid(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("function", "exact", "at_the_end"),
    [
        (_over(_exp), mpmath.exp, None),
        (_slopes, _exact_sigmoid, 1),
        (_over(_softplus), lambda x: mpmath.log1p(mpmath.exp(x)), 1000),
        (_over(_softplus_derivative), _exact_sigmoid, 1),
    ],
    ids=["exp", "sigmoid", "softplus", "its derivative"],
)
def test_functions_err_by_a_few_roundings(
    function: Callable[[Any], Any],
    exact: Callable[[Any], Any],
    at_the_end: float | None,
    dtype: type[np.floating[Any]],
) -> None:
    """Of eight roundings beside those of r = x − n·log(2), which are two of n·log(2) at most.

    With fused multiplication and addition one of the two goes.
    """
    x = np.linspace(-30, 30, 601).astype(dtype)
    expected = np.array([float(exact(mpmath.mpf(float(value)))) for value in x])
    allowed = (8 + np.abs(x)) * np.finfo(dtype).eps
    assert (np.abs(function(x) / expected - 1) < allowed).all()
    with np.errstate(over="ignore"):
        ends = function(np.array([-1000.0, 1000.0, np.nan], dtype))
    assert 0 <= ends[0] < (1e-18 if function is _slopes else 1e-37)
    assert ends[1] == (ends[1] if at_the_end is None else at_the_end) > 0
    assert np.isnan(ends[2])

"""Many guides trained side by side, as rows of one parameter matrix, each on data of its own."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyro
import torch
from pyro import poutine
from pyro.optim import PyroOptim
from torch import Tensor
from torch.distributions import transform_to
from torch.distributions.utils import _standard_normal

from bdpvi.models import (
    BayesianLogisticRegression,
    RecordWeights,
    likelihood_slope,
    log_likelihood,
)
from bdpvi.svi import Observer, Problem, decay, fresh, isolated
from bdpvi.types import Dataset


@dataclass(frozen=True, eq=False)
class Rows:
    """What the rows are trained on: the data plus ``sign`` times one record each.

    Removing a record is adding it with the sign −1: its term cancels the one in the batch.
    """

    kind: str
    records: Dataset
    sign: float


Free = dict[str, Tensor]
"""Unconstrained parameters of m rows, each (m, ...)."""


class RowGradient(Protocol):
    """Gradient of every row's negative ELBO on one batch."""

    def __call__(self, free: Free, records: Dataset, weight: Tensor, x: Tensor, y: Tensor) -> Free:
        """Return the gradients.

        Args:
            free: parameters of m rows.
            records: one extra record for each row.
            weight: of the extra record in each row, (m,); 0 where it is not in the batch.
            x, y: the batch that all rows share.
        """


def train_rows(
    problem: Problem,
    rows: Rows,
    tick: Callable[[], object] = lambda: None,
    observe: Observer | None = None,
) -> dict[str, Tensor]:
    """Train one guide per row along the fit's own plan; return constrained parameters, (m, ...).

    Args:
        problem: the fit's.
        rows: the neighbours.
        tick: called after every step.
        observe: called after every step with the rows' constrained parameters, (m, ...).
    """
    data, plan, records = problem.data, problem.plan, rows.records
    optim = fused(fresh(problem.optim))
    with isolated(data), pyro.validation_enabled(False):
        problem.guide.setup(data.x, data.y)
        transforms = {name: transform_to(c) for name, c in problem.guide.constraints.items()}
        free = {
            name: transforms[name].inv(value).expand(len(records), *value.shape).clone()
            for name, value in problem.guide.initial(data.x).items()
        }
        gradient = row_gradient(problem)
        for step in range(plan.steps):
            batch = plan.batch(step, data.ids)
            weight = rows.sign * plan.batch(step, records.ids).to(data.x.dtype)
            torch.manual_seed(plan.noise_seed(step))
            grads = gradient(free, records, weight, data.x[batch], data.y[batch])
            for name, value in free.items():
                value.grad = grads[name]
            optim(free.values())
            decay(optim)
            tick()
            if observe is not None:
                observe(step, {name: transforms[name](value) for name, value in free.items()})
        return {name: transforms[name](value) for name, value in free.items()}


def row_gradient(problem: Problem) -> RowGradient:
    """Return the closed form where there is one, else the gradient through the traced model."""
    if type(problem.model) is BayesianLogisticRegression and isinstance(
        problem.guide, Reparameterised
    ):
        return LogisticGradient(problem.model, problem.guide, problem.plan.rate)
    return TracedGradient(problem)


class TracedGradient:
    """For any Pyro model: ``torch.func`` over the traced model and guide."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.transforms = {n: transform_to(c) for n, c in problem.guide.constraints.items()}
        self.vmapped = torch.vmap(
            torch.func.grad(self._loss), in_dims=(0, 0, 0, 0, None, None), randomness="same"
        )

    def __call__(self, free: Free, records: Dataset, weight: Tensor, x: Tensor, y: Tensor) -> Free:
        """Return the gradients, see :class:`RowGradient`."""
        return self.vmapped(free, records.x, records.y, weight, x, y)  # type: ignore[no-any-return]

    def _loss(
        self, free: Free, x_extra: Tensor, y_extra: Tensor, weight: Tensor, x: Tensor, y: Tensor
    ) -> Tensor:
        model, guide, rate = self.problem.model, self.problem.guide, self.problem.plan.rate
        values = {name: self.transforms[name](value) for name, value in free.items()}
        q = poutine.trace(poutine.substitute(guide, data=values)).get_trace(x, y)
        with RecordWeights(1 / rate):
            p = poutine.trace(poutine.replay(model, trace=q)).get_trace(x, y)
        latents = {name: p.nodes[name]["value"] for name in p.stochastic_nodes if name in q.nodes}
        extra = log_likelihood(model, latents, x_extra[None], y_extra[None]).sum()
        return q.log_prob_sum() - p.log_prob_sum() - weight / rate * extra  # type: ignore[no-any-return]


@runtime_checkable
class Reparameterised(Protocol):
    """A guide that knows the derivative of its own draws; see ``bdpvi.guides``."""

    @property
    def dim(self) -> int:
        """Length of the flat vector."""

    def pushforward(self, free: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """Return the latents of many guides for one base noise."""

    def pullback(self, free: Mapping[str, Tensor], noise: Tensor, gradient: Tensor) -> Free:
        """Return the gradient of a loss of the latents minus the entropy."""


@dataclass(frozen=True)
class LogisticGradient:
    """For logistic regression: two matrix products and a sigmoid per pair of row and record."""

    model: BayesianLogisticRegression
    guide: Reparameterised
    rate: float

    def __call__(self, free: Free, records: Dataset, weight: Tensor, x: Tensor, y: Tensor) -> Free:
        """Return the gradients, see :class:`RowGradient`."""
        noise = _standard_normal((self.guide.dim,), x.dtype, x.device)
        w = self.guide.pushforward(free, noise)
        signed, bound = self._signed_design(x, y)
        score = likelihood_slope(w @ signed.T, bound) @ signed
        extra, extra_bound = self._signed_design(records.x, records.y)
        slope = weight * likelihood_slope((w * extra).sum(1), extra_bound)
        score.addcmul_(slope.unsqueeze(1), extra)
        gradient = torch.sub(w / self.model.prior_scale**2, score, alpha=1 / self.rate)
        return self.guide.pullback(free, noise, gradient)

    def _signed_design(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return (2y − 1)·design, so that y never appears again, and the slope bounds."""
        design = self.model.design(x)
        return (2 * y - 1).unsqueeze(1) * design, self.model.slope_bound(design)


ELEMENTWISE = {
    "Adadelta", "Adagrad", "AdagradRMSProp", "Adam", "AdamW", "Adamax", "ASGD", "ClippedAdam",
    "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
}  # fmt: skip


def check_elementwise(optim: PyroOptim) -> None:
    """Raise unless the optimiser acts on every entry alone, so that rows do not mix."""
    name = getattr(optim.pt_optim_constructor, "__name__", repr(optim.pt_optim_constructor))
    schedule = getattr(optim, "pt_scheduler_constructor", None)
    if name not in ELEMENTWISE:
        raise ValueError(f"optim={name} may mix rows; use one of {sorted(ELEMENTWISE)}")
    if schedule is torch.optim.lr_scheduler.ReduceLROnPlateau:
        raise ValueError("optim: ReduceLROnPlateau follows one row's loss; use another schedule")
    if optim.pt_clip_args:
        raise ValueError("optim: clip_args would clip all rows by one common norm")
    if callable(optim.pt_optim_args):
        raise ValueError("optim: per-parameter optim_args cannot be used with coupled neighbours")


def fused(optim: PyroOptim) -> PyroOptim:
    """Return the optimiser with torch's one-pass implementation where it has one."""
    constructor: Callable[..., Any] = optim.pt_optim_constructor
    if "fused" not in inspect.signature(constructor).parameters:
        return optim
    faster = copy.copy(optim)
    faster.pt_optim_args = {"fused": True, **optim.pt_optim_args}
    return faster

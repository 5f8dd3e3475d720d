"""One run of stochastic variational inference, by ``pyro.infer.SVI``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import ExponentialLR, PyroOptim
from torch import Tensor

from bdpvi._ground.checkpoint import UNKEPT, KeptState
from bdpvi._ground.host import HOST, onto
from bdpvi._ground.isolation import isolated as isolated
from bdpvi._ground.progress import Track
from bdpvi.bayesian.inference.guide import Guide
from bdpvi.bayesian.inference.optimisers import decay, fresh
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.contract import Model
from bdpvi.models.traces import GlobalLatents, RecordWeights
from bdpvi.noise.batches import BatchPlan


@dataclass(frozen=True, eq=False)
class Problem:
    """The five inputs of a fit; θ is a pure function of them."""

    model: Model
    guide: Guide
    data: Dataset
    plan: BatchPlan
    optim: PyroOptim


@dataclass(frozen=True, eq=False)
class Convergence:
    """Convergence diagnostics. They are computed from single records' losses, so they are secret.

    Attributes:
        elbo: estimate of the evidence lower bound before every step, (steps,).
        gradient_norm: Euclidean norm of its gradient in the unconstrained parameters, (steps,).
    """

    elbo: Tensor
    gradient_norm: Tensor

    @classmethod
    def of(cls, course: Iterable[tuple[float, float]]) -> Convergence:
        """Return the values and the gradients' norms of a search, step by step."""
        return cls(*torch.tensor([*course], dtype=torch.float64).T)

    @property
    def drift(self) -> float:
        """Change of the mean ELBO from the third to the last quarter, in standard errors.

        Beyond about 3 the fit has not converged; train for more steps.
        """
        quarter = max(2, len(self.elbo) // 4)
        last, before = self.elbo[-quarter:], self.elbo[-2 * quarter : -quarter]
        if len(before) < 2:
            return float("nan")
        error = ((last.var() + before.var()) / quarter).sqrt()
        return float((last.mean() - before.mean()) / error.clamp(min=torch.finfo(error.dtype).tiny))

    def __str__(self) -> str:
        quarter = max(1, len(self.elbo) // 4)
        return (
            f"ELBO {self.elbo[-quarter:].mean():.1f} over the last {quarter} of {len(self.elbo)} "
            f"steps (drift {self.drift:+.1f} standard errors), "
            f"gradient norm {self.gradient_norm[-1]:.3g}"
        )


def default_optimiser(steps: int, lr: float = 0.05, decay: float = 0.01) -> PyroOptim:
    """Return Adam whose learning rate falls from ``lr`` to ``lr * decay`` over ``steps`` steps.

    The falling rate lets θ settle despite minibatch noise; a constant rate leaves variation that
    the accounting would charge for.
    """
    settings = {"optimizer": torch.optim.Adam, "optim_args": {"lr": lr}}
    return ExponentialLR({**settings, "gamma": decay ** (1 / steps)})


def run_svi(
    problem: Problem,
    track: Track[Any],
    kept: KeptState = UNKEPT,
) -> tuple[dict[str, Tensor], Convergence]:
    """Train the guide; return its constrained parameters, detached, and its convergence.

    Each step sees a Poisson batch in which every record has weight 1/q, so the prior counts once
    and the ELBO estimate is unbiased. It resumes from the last saved state of ``kept``,
    bit for bit.

    Raises:
        ValueError: if a step's Poisson batch is empty.
        FloatingPointError: if the ELBO stops being finite.
    """
    data, plan, optim = problem.data, problem.plan, fresh(problem.optim)
    loss = Trace_ELBO()
    norms: list[float] = []

    def loss_and_grads(model: Model, guide: Guide, x: Tensor, y: Tensor) -> float:
        value: float = loss.loss_and_grads(model, guide, x, y)
        params = (p for _, p in pyro.get_param_store().named_parameters())
        norms.append(float(sum(p.grad.square().sum().double() for p in params)) ** 0.5)
        return value

    def model(x: Tensor, y: Tensor) -> Any:
        with RecordWeights(1 / plan.rate), GlobalLatents():
            return problem.model(x, y)

    losses: list[float] = []
    with isolated(data.x), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Encountered", UserWarning)  # NaN is an error below
        problem.guide.setup(data.x, data.y)
        svi = SVI(model, problem.guide, optim, loss.loss, loss_and_grads=loss_and_grads)
        if (begun := kept.state()) is not None:
            _restore(problem, optim, begun)
            losses, norms = list(begun["losses"]), list(begun["norms"])
        first, ids = len(losses), data.ids.to(HOST)
        for step in track(range(plan.steps), "fit"):
            if step < first:
                continue
            batch = plan.batch(step, ids)
            if not bool(batch.any()):
                raise ValueError(
                    f"rate={plan.rate} left the Poisson batch of step {step} empty "
                    f"(expected size {plan.rate * len(data):.3g}); use a higher rate"
                )
            torch.default_generator.manual_seed(plan.noise_seed(step))
            # Pyro's checks of the sites are needed once; they cost more than the step.
            with pyro.validation_enabled(step == 0):
                chosen = onto(batch.nonzero().squeeze(1), data.x.device)
                losses.append(svi.step(data.x[chosen], data.y[chosen]))
            if not math.isfinite(losses[-1]):
                raise FloatingPointError(
                    f"optim: the ELBO became {-losses[-1]} at step {step}; lower the learning rate"
                )
            decay(optim)
            kept.save_if_due(lambda: _state(optim, losses, norms))
        trained = pyro.get_param_store()
        parameters = {name: trained[name].detach().clone() for name in problem.guide.constraints}
    return parameters, Convergence(-torch.tensor(losses), torch.tensor(norms))


def _state(optim: PyroOptim, losses: list[float], norms: list[float]) -> dict[str, Any]:
    """Return everything later steps depend on; parameters unconstrained, in Pyro's order."""
    parameters = {name: p.detach() for name, p in pyro.get_param_store().named_parameters()}
    return {
        "parameters": parameters, "optim": optim.get_state(), "losses": losses, "norms": norms,
    }  # fmt: skip


def _restore(problem: Problem, optim: PyroOptim, state: Mapping[str, Any]) -> None:
    """Restore Pyro's parameters and the optimiser from a :func:`_state`."""
    store, constraints = pyro.get_param_store(), problem.guide.constraints
    initial = problem.guide.initial(problem.data.x)
    for name, value in state["parameters"].items():
        store.setdefault(name, initial[name], constraints[name])
        dict(store.named_parameters())[name].data.copy_(value)
    optim.set_state(state["optim"])

"""Pyro's optimisers for training many guides side by side, as rows of one matrix."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro.optim import PyroLRScheduler, PyroOptim
from torch import Tensor
from torch.optim.adam import adam

_ADAM_OPTIONS = ("amsgrad", "maximize", "weight_decay")
"""Settings that are zero in plain Adam."""

_OTHERWISE = ("amsgrad", "capturable", "decoupled_weight_decay", "differentiable", "foreach")
"""Settings of Adams that :func:`together` leaves alone."""

ELEMENTWISE = {
    "Adadelta", "Adagrad", "AdagradRMSProp", "Adam", "AdamW", "Adamax", "ASGD", "ClippedAdam",
    "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
}  # fmt: skip


def fresh(optim: PyroOptim) -> PyroOptim:
    """Return the same optimiser without the state of any earlier run."""
    clean = copy.copy(optim)
    clean.optim_objs, clean.grad_clip, clean._state_waiting_to_be_consumed = {}, {}, {}
    return clean


def decay(optim: PyroOptim) -> None:
    """Advance the learning-rate schedule, if there is one."""
    if isinstance(optim, PyroLRScheduler):
        optim.step()


def check_elementwise(optim: PyroOptim) -> None:
    """Raise unless the optimiser acts on every entry separately, so that rows do not mix."""
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


def adam_factors(optim: PyroOptim, steps: int) -> Tensor | None:
    """Return the coefficients of Adam's steps, (steps, 5); None if it is not plain Adam.

    With step size η and moments m and v the parameter falls by η'm / (r√v + ε). A row is
    (η', 1 − β₁, 1 − β₂, r, ε), where η' = η/(1 − β₁ᵗ) and r = (1 − β₂ᵗ)^-½. Settings are read from
    a run of the optimiser on one parameter, so any schedule works.

    >>> adam_factors(PyroOptim(torch.optim.Adam, {"lr": 0.1, "betas": (0.5, 0.75)}), 1).tolist()
    [[0.2, 0.5, 0.25, 2.0, 1e-08]]
    """
    if optim.pt_optim_constructor is not torch.optim.Adam:
        return None
    optim, probe, factors = fresh(optim), torch.zeros(1), []
    probe.grad = torch.zeros(1)
    for step in range(1, steps + 1):
        optim([probe])
        held = optim.optim_objs[probe]
        (group,) = getattr(held, "optimizer", held).param_groups
        if any(group.get(name) for name in _ADAM_OPTIONS):
            return None
        one, two = group["betas"]
        rate = float(group["lr"]) / (1 - one**step)
        factors.append([rate, 1 - one, 1 - two, (1 - two**step) ** -0.5, group["eps"]])
        decay(optim)
    return torch.tensor(factors, dtype=torch.float64)


def fused(optim: PyroOptim) -> PyroOptim:
    """Return the optimiser with torch's fused implementation where there is one."""
    constructor: Callable[..., Any] = optim.pt_optim_constructor
    if "fused" not in inspect.signature(constructor).parameters:
        return optim
    faster = copy.copy(optim)
    faster.pt_optim_args = {"fused": True, **optim.pt_optim_args}
    return faster


def together(optim: PyroOptim, values: Sequence[Tensor]) -> None:
    """Take a step of the optimiser, as ``optim(values)``; from the second on Adam's is one call.

    Pyro has an optimiser for each parameter, whose calls cost more than what they compute.

    Args:
        optim: the optimiser, which keeps the state.
        values: the parameters, with gradients of the same layout.
    """
    held = [optim.optim_objs.get(value) for value in values]
    each: list[Any] = [getattr(one, "optimizer", one) for one in held]  # of a schedule
    fusible = not optim.pt_clip_args and all(map(_fusible, each, values))
    settings = [{**one.param_groups[0], "params": None} for one in each] if fusible else []
    if not fusible or any(setting != settings[0] for setting in settings):
        optim(values)
        return
    states, own = [one.state[value] for one, value in zip(each, values, strict=True)], settings[0]
    with torch.no_grad():
        adam(
            list(values),
            [value.grad for value in values],  # type: ignore[misc]
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            beta1=own["betas"][0],
            beta2=own["betas"][1],
            **{name: own[name] for name in ("amsgrad", "lr", "weight_decay", "eps", "maximize")},
        )


def _fusible(optim: Any, value: Tensor) -> bool:
    """Whether this is an Adam in training, with settings that torch's fused one has too."""
    if type(optim) is not torch.optim.Adam or not optim.state.get(value):
        return False
    (group,) = optim.param_groups
    if group["fused"] is False or any(group.get(name) for name in _OTHERWISE):
        return False
    there = value.is_floating_point() and value.is_contiguous()
    return there and bool(group["fused"] or value.is_cpu)
